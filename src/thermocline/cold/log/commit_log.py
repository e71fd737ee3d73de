"""The commit log of one table: it alone decides what the table contains.

In:   commits to write, versions to read
Out:  states; a version is committed exactly when its numbered file exists

- Versions are dense and begin at 1, or at the base of a truncated log: a durable state of a version
  that is at most the oldest kept one. A missing commit after it is an error, never a shorter
  history.
- CURRENT says where to start reading. If it is missing, empty, garbage or behind, it is rewritten.
  CURRENT, a checkpoint and the coverage of a version are written only after that version's commit
  is durable. If one of them is ahead of the log, commits were lost: every read and write of the log
  then raises `Corruption`, and no new commit reuses the number of a lost one.
- Each commit names the one before it, so a commit of another table or history is detected.
- Commit times increase with versions, so that an instant determines a version. A time is at most
  `CLOCK_AHEAD_S_MAX` ahead of the writer's clock. Past that, times step back to the clock, and
  earlier versions count as made no later than the version after the step. A clock before 2020 was
  never set, and moves no time back.
- `try_commit` never guesses: if the outcome of a write is unknown, it looks for its own `txn_id`.
"""

import logging
import threading
import time as clock
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from thermocline.cold.log.checkpoint import (
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from thermocline.cold.storage.storage import Storage
from thermocline.errors import (
    Corruption,
    NotFound,
    OutcomeUnknown,
    ThermoclineError,
)
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S, NS_PER_US, TimeNs, format_instant
from thermocline.format.layout import Version
from thermocline.format.log.action import Segment
from thermocline.format.log.commit import Commit, decode_commit, encode_commit
from thermocline.format.log.current import Current, decode_current, encode_current
from thermocline.format.log.state import TableState, fold

CHECKPOINT_EVERY = 100
CHECKPOINTS_KEPT_PER_STEP = 10
VERSIONS_LOOKED_AHEAD = 3
COMMIT_TRIES_MAX = 3
STATES_KEPT_MAX = 8
CLOCK_AHEAD_S_MAX = 3_600
"""How far a commit's time may be ahead of the clock of its writer."""
CLOCK_SET_AFTER_NS = 1_577_836_800 * NS_PER_S
"""2020-01-01: a clock that shows an earlier time was never set, and no time steps back to it."""
CLOCK_STEP = "clock_set_back_s"
"""The metric of a commit whose time is before that of the version before it, in seconds."""
HEAD_CHECK_S = 1.0
"""How often a process checks that the newest commit it knows still exists."""

logger = logging.getLogger(__name__)


class CommitLog:
    """The commits of one table. Safe to use from many threads."""

    def __init__(
        self,
        storage: Storage,
        *,
        now_ns: Callable[[], int] = clock.time_ns,
        checkpoint_every: int = CHECKPOINT_EVERY,
    ) -> None:
        self._storage = storage
        self._now_ns = now_ns
        self._checkpoint_every = checkpoint_every
        self._lock = threading.RLock()
        self._head: TableState | None = None
        self._states: dict[int, TableState] = {}
        self._head_checked_s = 0.0

    def head(self) -> TableState:
        """Return the newest state; `NotFound` when there is no table here.

        `Corruption` that names a commit file when another file proves that this commit was lost.
        """
        with self._lock:
            head = self._head or self._open()
            if self._is_truncated_past(head.version):
                head, self._head = self._open(), None
            newer = list(self._commits_after(head.version))
            if newer:
                head = fold(head, newer)
            if newer or self._head is None:
                self._check_end(head.version)
            else:
                self._check_head_exists(head.version)
            self._head = head
            return head

    def state(self, version: int) -> TableState:
        """Return the state at a version; `NotFound` when it does not exist or has expired.

        `Corruption` when its commit is missing although later ones are there.
        """
        head = self.head()
        if version == head.version:
            return head
        if not 1 <= version < head.version:
            raise NotFound(
                "no such version",
                hint="`history` lists the versions that exist",
                version=version,
                newest=head.version,
            )
        if version < head.oldest:
            raise NotFound(
                "this version has expired: its files were vacuumed",
                hint="read a version that is kept, or keep versions for longer",
                version=version,
                oldest=head.oldest,
            )
        with self._lock:
            if version not in self._states:
                while len(self._states) >= STATES_KEPT_MAX:
                    self._states.pop(next(iter(self._states)))
                if self._storage.size(layout.commit_path(version)) is None:
                    raise self.find_missing(version, head.version)
                self._states[version] = self._replay(Version(version))
            return self._states[version]

    def _is_truncated_past(self, version: int) -> bool:
        """Tell whether the log was truncated after a version that this process read last.

        That takes longer than the shortest grace period, so the check is made every `HEAD_CHECK_S`.
        """
        if self._head is None or clock.monotonic() - self._head_checked_s < HEAD_CHECK_S:
            return False
        if self._storage.size(layout.commit_path(version)) is not None:
            return False
        return self.first_version() > version

    def first_version(self) -> Version:
        """Return the version at which the log begins: 1, or that of its newest base."""
        return max((v for v, _ in self._bases()), default=Version(1))

    def _bases(self) -> list[tuple[Version, str]]:
        """Return the bases of the log with their paths, the newest first."""
        found = ((layout.base_version(name), name) for name in self._list_names())
        return sorted(((v, layout.base_path(v)) for v, _ in found if v is not None), reverse=True)

    def version_at(self, instant: int) -> Version:
        """Return the newest version committed at or before an instant."""
        found = self.newest_by(instant)
        if not found and (first := self.first_version()) > 1:
            raise _expired_error(0, first)
        if not found:
            raise NotFound(
                "the table did not exist then",
                hint="name a later time",
                asked=format_instant(instant),
                first=format_instant(self.commit(1).time),
            )
        return found

    def newest_by(self, instant: int) -> Version:
        """Return the newest version committed at or before an instant; 0 when there is none.

        Where times step back, a version counts as made no later than any later version.
        """
        head = self.head()
        if head.time <= instant:
            return head.version
        after = head.version + 1
        # Between two steps, times increase. The newest such range that begins at or before the
        # instant has the version: all ranges after it are later.
        begin = self.first_version()
        steps = [step for step in head.clock_steps if step > begin]
        for first in (*reversed(steps), begin):
            if self.commit(first).time <= instant:
                return self._newest_between(first, after, instant)
            after = first
        return Version(0)

    def _newest_between(self, low: int, high: int, instant: int) -> Version:
        """Return the last version by the instant; `low` is by then, and `high` is excluded."""
        while high - low > 1:
            middle = (low + high) // 2
            if self.commit(middle).time <= instant:
                low = middle
            else:
                high = middle
        return Version(low)

    def commit(self, version: int) -> Commit:
        """Return one commit; `NotFound` when the log never reached it.

        `Corruption` when it is damaged, or missing although it existed.
        """
        try:
            data = self._storage.read(layout.commit_path(version))
        except NotFound as error:
            head = self._head
            if head is None or not 1 <= version <= head.version:
                raise
            if version < (first := self.first_version()):
                raise _expired_error(version, first) from error
            raise self.find_missing(version, head.version) from error
        return decode_commit(data, version)

    def exists(self) -> bool:
        """Tell whether there is a table here, or the remains of one that lost its log."""
        if self._storage.size(layout.commit_path(1)) is not None:
            return True
        return bool(self.versions() or self.evidence())

    def versions(self) -> list[Version]:
        """Return the versions that have commit files, in order, from a listing."""
        found = (layout.commit_version(name) for name in self._list_names())
        return sorted(version for version in found if version is not None)

    def evidence(self) -> dict[str, Version]:
        """Return the files that prove that a version was durable, each with that version."""
        found = {}
        current = self.read_current()
        if current is not None:
            found[layout.CURRENT_PATH] = current.version
        for name in self._list_names():
            if (version := layout.checkpoint_version(name)) is not None:
                found[layout.checkpoint_path(version)] = version
            if (version := layout.base_version(name)) is not None:
                found[layout.base_path(version)] = version
        for stored in self._storage.list(layout.TABLE_COVERAGE_FOLDER):
            name = stored.path.rsplit("/", 1)[-1]
            if (version := layout.table_coverage_version(name)) is not None:
                found[stored.path] = version
        return found

    def try_commit(self, commit: Commit) -> Commit | None:
        """Try to write this commit; return it as written, or None when another has its version.

        When this returns a commit, it is durable and visible. `OutcomeUnknown` when a storage
        failure hides the outcome: the commit may still appear later.
        """
        head = self._head
        if head is not None:
            commit = _set_time(commit, head.time)
        self._check_base(commit)
        return self._write_commit(commit)

    def commit_repair(self, state: TableState, commit: Commit) -> TableState | None:
        """Write the commit that accepts a loss, after an intact state; return the state after it.

        None when another commit has its version. When this returns a state, CURRENT names it.
        """
        with self._lock:
            landed = self._write_commit(_set_time(commit, state.time))
            if landed is None:
                return None
            after = fold(state, [landed])
            self._write_current(after)
            self.sync_commit(after.version)
            self._head, self._states = after, {}
            return after

    def advance_current(self, current: Current) -> None:
        """Make CURRENT name a version, unless it already names that one or a later one."""
        found = self.read_current()
        if found is None or found.version < current.version:
            self._storage.put_hint(layout.CURRENT_PATH, encode_current(current))

    def _write_commit(self, commit: Commit) -> Commit | None:
        path, data = layout.commit_path(commit.version), encode_commit(commit)
        trouble: list[ThermoclineError] = []
        for _ in range(COMMIT_TRIES_MAX):
            try:
                if self._storage.put_new(path, data):
                    return commit
                theirs = self.commit(commit.version)
                return commit if theirs.txn_id == commit.txn_id else None
            except ThermoclineError as error:
                # The name may exist although the call failed. A retry with the same bytes is safe:
                # it either creates the name, or finds it and reads whose transaction made it.
                trouble.append(error)
        raise self._resolve_failure(commit, trouble) from trouble[-1]

    def sync_commit(self, version: int) -> None:
        """Fsync the commit file of a version that was read: its writer may have died before that.

        Call this before discarding anything because a version contains it.
        """
        self._storage.settle(layout.commit_path(version))

    def _resolve_failure(self, commit: Commit, trouble: list[ThermoclineError]) -> ThermoclineError:
        """Return the last error if the commit definitely does not exist, else `OutcomeUnknown`."""
        is_doubtful = any(isinstance(error, OutcomeUnknown) for error in trouble)
        try:
            is_absent = self._storage.size(layout.commit_path(commit.version)) is None
        except ThermoclineError:
            is_absent = False
        if is_absent and not is_doubtful:
            return trouble[-1]
        return OutcomeUnknown(
            "it is not known whether the commit was made",
            hint="look for the transaction in `history` before trying again",
            version=commit.version,
            txn_id=commit.txn_id,
        )

    def advance_head(self, before: TableState | None, landed: Commit) -> TableState:
        """Return the state after a commit that follows `before`, and write CURRENT.

        This never fails: the commit exists, and the files written here are only hints.
        """
        state = fold(before, [landed])
        with self._lock:
            if self._head is None or self._head.version < state.version:
                self._head = state
        with suppress(ThermoclineError):
            if state.version % self._checkpoint_every == 0:
                self._checkpoint(state)
            self._write_current(state)
        return state

    def now(self) -> TimeNs:
        """Return the time of a commit made now."""
        return TimeNs(self._now_ns() // NS_PER_US * NS_PER_US)

    def write_checkpoint(self, version: int) -> None:
        """Write the checkpoint of exactly this version, and remove some older ones."""
        state = self.state(version)
        # Order matters: a checkpoint proves that its commit was durable.
        self.sync_commit(version)
        self._checkpoint(state)

    def write_base(self, version: int) -> None:
        """Make the state of a version durable as the base of the log; commits before it may go.

        When this returns, the base was read back and equals the replayed state. `NotFound` when the
        log does not have the version, `Corruption` when the base cannot be read back.
        """
        state = self._replay(Version(version))
        # Order matters: the base proves that its commit was durable.
        self.sync_commit(version)
        path, data = layout.base_path(version), encode_checkpoint(state)
        # The name is created as a commit's is: no reader ever sees a base that is not whole.
        if not self._storage.put_new(path, data):
            self._storage.settle(path)  # of a truncation that died, or runs now
        stored = read_checkpoint(self._storage, Version(version), _refuse_replay(path), path)
        if stored is None or encode_checkpoint(stored) != data:
            self._storage.delete(path)
            raise Corruption(
                "the base of the log is not the state that it was written from",
                hint="no commit was removed; run it again",
                path=path,
            )

    def _checkpoint(self, state: TableState) -> None:
        write_checkpoint(self._storage, state)
        version = state.version
        # Keep ten checkpoints of each step: every 100th version, every 1,000th, and so on.
        step = self._checkpoint_every
        while version - step * CHECKPOINTS_KEPT_PER_STEP > 0:
            old = version - step * CHECKPOINTS_KEPT_PER_STEP
            if old % step == 0 and old % (step * CHECKPOINTS_KEPT_PER_STEP):
                self._storage.delete(layout.checkpoint_path(old))
            step *= CHECKPOINTS_KEPT_PER_STEP

    def _open(self) -> TableState:
        current = self.read_current()
        if current is not None and self._storage.size(layout.commit_path(current.version)) is None:
            if current.version >= self.first_version():
                raise self._find_lost(current.version, layout.CURRENT_PATH)
            current = None  # the log was truncated past a CURRENT that was never fsynced
        if current is not None:
            state = self._replay(current.version)
            check_current(current, state)
            return state
        # Order matters: proofs of versions are listed before the versions, which may grow.
        evidence = self.evidence()
        first = self.first_version()
        versions = [version for version in self.versions() if version >= first]
        self._check_dense(versions, first)
        newest = versions[-1] if versions else Version(0)
        for path, version in sorted(evidence.items()):
            if version > newest:
                raise self._find_lost(version, path)
        if not versions:
            raise NotFound("no table here", hint="create one first", root=self._storage.root)
        state = self._replay(newest)
        with suppress(ThermoclineError):
            # Order matters: the commit's writer may have died before its sync, and CURRENT proves
            # that the commit was durable.
            self.sync_commit(state.version)
            self._write_current(state)
        return state

    def _find_lost(self, known: Version, proof: str) -> Corruption:
        """Return the error for a version without a commit file that another file proves."""
        newest = max((v for v in self.versions() if v < known), default=0)
        return lost_commits_error(newest + 1, known, proof)

    def _replay(self, version: Version, *, below: int | None = None) -> TableState:
        """Return the state at a version, replayed from the newest usable checkpoint.

        With `below`, only older checkpoints are used.
        """
        if self._storage.size(layout.commit_path(version)) is None:
            raise NotFound("no such version", version=version, root=self._storage.root)
        state = None
        for candidate in self._checkpoints_before(version):
            if below is not None and candidate >= below:
                continue
            found = read_checkpoint(self._storage, candidate, self._segment_replayer(candidate))
            state = found and self._verify_checkpoint(found, version)
            if state is not None:
                break
        else:
            state = self._read_base(version)
        first = state.version + 1 if state else 1
        commits = (self._read_existing(v, version) for v in range(first, version + 1))
        return fold(state, commits) if state is None or first <= version else state

    def base(self) -> TableState | None:
        """Return the state at which a truncated log begins; None when the log is whole."""
        return self._read_base(self.first_version())

    def check_base(self) -> TableState | None:
        """Return the base after every column of it was read and compared; else `Corruption`."""
        base = self.base()
        if base is not None and (columns := base.segments.base) is not None:
            columns.segments(range(len(columns.ids)))
            assert len(columns.ts_min_us) == len(columns.ts_max_us) == len(columns.ids)
        return base

    def _read_base(self, version: Version) -> TableState | None:
        """Return the state of the newest usable base up to a version; None for a whole log.

        `Corruption` that names the base when a truncated log cannot be read without it.
        """
        bases = [(base, path) for base, path in self._bases() if base <= version]
        for base, path in bases:
            found = read_checkpoint(self._storage, base, _refuse_replay(path), path)
            state = found and self._verify_checkpoint(found, version)
            if state is not None:
                return state
        if bases and self._storage.size(layout.commit_path(1)) is None:
            raise _damaged_base_error(bases[0][1])
        return None

    def _verify_checkpoint(self, state: TableState, newest: int) -> TableState | None:
        """Return the state of a checkpoint if the log agrees that it is of its commit, else None.

        The following commit names the checkpoint's commit. If an older release wrote one of the
        two, the checkpoint's own commit is compared.
        """
        if state.txn_id and state.version < newest:
            following = self._read_existing(state.version + 1, newest)
            if following.previous == state.txn_id:
                return state
        own = self._read_existing(state.version, newest)
        is_same = own.time == state.time and state.txn_id in ("", own.txn_id)
        if is_same:
            return replace(state, txn_id=own.txn_id)
        path = layout.checkpoint_path(state.version)
        logger.warning("checkpoint %s is not of this log; replaying the log instead", path)
        return None

    def _segment_replayer(self, checkpoint: Version) -> Callable[[], Iterable[Segment]]:
        return lambda: self._replay(checkpoint, below=checkpoint).segments

    def _read_existing(self, version: int, newest: int) -> Commit:
        try:
            return self.commit(version)
        except NotFound as error:
            if version < (first := self.first_version()):
                raise _expired_error(version, first) from error  # truncated meanwhile
            raise self.find_missing(version, newest) from error

    def _checkpoints_before(self, version: Version) -> Iterator[Version]:
        # Steps double as in `write_checkpoint`: these are the only versions that may have one.
        step, seen = self._checkpoint_every, set()
        below = version - version % step
        for _ in range(CHECKPOINTS_KEPT_PER_STEP + 1):
            if below > 0 and below not in seen:
                seen.add(below)
                yield Version(below)
            below -= step
        listed = sorted(
            (
                v
                for name in self._list_names()
                if (v := layout.checkpoint_version(name)) is not None
            ),
            reverse=True,
        )
        yield from (v for v in listed if v <= version and v not in seen)

    def _commits_after(self, version: int) -> Iterator[Commit]:
        while True:
            version += 1
            try:
                yield self.commit(version)
            except NotFound:
                return

    def _check_dense(self, versions: list[Version], first: Version) -> None:
        for place, version in enumerate(versions, start=first):
            if version != place:
                raise self.find_missing(place, versions[-1])

    def find_missing(self, version: int, newest: int) -> Corruption:
        """Return the error for a commit that is missing although later ones are there."""
        first = min(self.versions(), default=Version(0))
        if version >= first:
            return _missing_commit_error(version, newest)
        return Corruption(
            "the beginning of the log is missing",
            hint="restore the commit, or the base if the log was truncated, from a copy",
            path=layout.commit_path(version),
            base=layout.base_path(first),
            newest=newest,
        )

    def _check_end(self, version: int) -> None:
        for ahead in range(version + 2, version + 2 + VERSIONS_LOOKED_AHEAD):
            if self._storage.size(layout.commit_path(ahead)) is not None:
                if self._storage.size(layout.commit_path(version + 1)) is not None:
                    return  # another writer committed meanwhile; nothing is missing
                raise _missing_commit_error(version + 1, ahead)
        step = self._checkpoint_every
        checkpoint = version - version % step + step
        for known, path in (
            (version + 1, layout.table_coverage_path(version + 1)),
            (checkpoint, layout.checkpoint_path(checkpoint)),
        ):
            if self._storage.size(path) is None:
                continue
            if self._storage.size(layout.commit_path(version + 1)) is None:
                raise lost_commits_error(version + 1, known, path)

    def _check_head_exists(self, version: int) -> None:
        """Raise `Corruption` when the newest commit disappeared; checked every `HEAD_CHECK_S`."""
        now_s = clock.monotonic()
        if now_s - self._head_checked_s < HEAD_CHECK_S:
            return
        if self._storage.size(layout.commit_path(version)) is None:
            raise lost_commits_error(version, version, "this process has read it")
        self._head_checked_s = now_s

    def _check_base(self, commit: Commit) -> None:
        """Raise `Corruption` if a commit would follow a lost one, or reuse its number."""
        if commit.base and self._storage.size(layout.commit_path(commit.base)) is None:
            raise lost_commits_error(commit.base, commit.base, "this process has read it")
        current = self.read_current()
        if current is None or current.version < commit.version:
            return
        if self._storage.size(layout.commit_path(current.version)) is None:
            raise self._find_lost(current.version, layout.CURRENT_PATH)

    def _list_names(self) -> Iterator[str]:
        for stored in self._storage.list(layout.LOG_FOLDER):
            yield stored.path.rsplit("/", 1)[-1]

    def read_current(self) -> Current | None:
        """Return what CURRENT says; None when it is missing, torn or damaged."""
        try:
            return decode_current(self._storage.read(layout.CURRENT_PATH))
        except NotFound:
            return None

    def _write_current(self, state: TableState) -> None:
        current = Current(state.version, state.spec.table_id, state.txn_id)
        self._storage.put_hint(layout.CURRENT_PATH, encode_current(current))


def check_current(current: Current, state: TableState) -> None:
    """Raise `Corruption` unless the commit that CURRENT names is the one in the log."""
    is_same_table = current.table_id in ("", state.spec.table_id)
    if is_same_table and current.txn_id in ("", state.txn_id):
        return
    raise Corruption(
        "the log has another commit than the one that CURRENT names",
        hint="the commit or the whole log was replaced; restore it from a copy, or see "
        "`thermocline table repair`",
        path=layout.commit_path(current.version),
        proof=layout.CURRENT_PATH,
        expected=current.txn_id,
        found=state.txn_id,
    )


def _set_time(commit: Commit, newest_ns: int) -> Commit:
    """Return a commit with its time: after the newest commit's, unless that is too far ahead.

    Then the commit keeps the clock's time, and records by how much the time stepped back.
    """
    if commit.time > newest_ns:
        return commit
    ahead_s = (newest_ns - commit.time) // NS_PER_S
    if ahead_s <= CLOCK_AHEAD_S_MAX or commit.time < CLOCK_SET_AFTER_NS:
        return replace(commit, time=TimeNs(newest_ns + NS_PER_US))
    return replace(commit, metrics={**commit.metrics, CLOCK_STEP: int(ahead_s)})


def _refuse_replay(path: str) -> Callable[[], Iterable[Segment]]:
    """Return what a base has in the place of the log: the commits before it are gone."""

    def refuse() -> Iterable[Segment]:
        raise _damaged_base_error(path)

    return refuse


def _damaged_base_error(path: str) -> Corruption:
    """Return the error for a base without which a truncated log cannot be read."""
    return Corruption(
        "the base of the log is damaged",
        hint="restore it from a copy; versions before the next checkpoint need it",
        path=path,
    )


def _expired_error(version: int, oldest: int) -> NotFound:
    return NotFound(
        "this version has expired: its commit was removed from the log",
        hint="read a version that is kept, or keep versions for longer",
        **({"version": version} if version else {}),
        oldest=oldest,
    )


def lost_commits_error(first: int, known: int, proof: str) -> Corruption:
    """Return the error for commits that were durable and are missing now."""
    return Corruption(
        "the newest commits of the log are missing",
        hint="restore them from a copy; `thermocline table repair` says what is lost without them",
        path=layout.commit_path(first),
        known=known,
        proof=proof,
    )


def _missing_commit_error(version: int, newest: int) -> Corruption:
    return Corruption(
        "a commit in the middle of the log is missing",
        hint="restore it from a copy; later versions cannot be read without it",
        path=layout.commit_path(version),
        newest=newest,
    )
