"""The commit log of one table: the arbiter of what is in it.

In:   commits to land, versions to read
Out:  states; a commit is landed exactly when its numbered file exists

- Versions are dense and begin at 1. A missing commit is an error, never a shorter history.
- CURRENT is a hint of where to begin looking. It is believed only as far as the log bears it
  out, and is written again when it was missing, empty, garbage, behind or ahead.
- Commit times go up with versions, whatever the clock does, so that an instant names a version.
- `land` never guesses: when a write's outcome is unknown, it looks for its own `txn_id`.
"""

import threading
import time as clock
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import orjson

from thermocline.errors import (
    Corruption,
    NotFound,
    OutcomeUnknown,
    ThermoclineError,
)
from thermocline.format import layout
from thermocline.format.action import Segment
from thermocline.format.commit import Commit, decode_commit, encode_commit
from thermocline.format.instant import NS_PER_US, TimeNs, written
from thermocline.format.layout import Version
from thermocline.format.state import TableState, fold
from thermocline.lake.checkpoint import read_checkpoint, write_checkpoint
from thermocline.lake.storage import Storage

CHECKPOINT_EVERY = 100
CHECKPOINTS_KEPT_PER_STEP = 10
LOOK_PAST_END = 3
OUTCOME_LOOKS_MAX = 3
STATES_KEPT_MAX = 8


class Log:
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
        self._past: dict[int, TableState] = {}

    def head(self) -> TableState:
        """Return the newest state; `NotFound` when there is no table here."""
        with self._lock:
            head = self._head or self._opened()
            newer = list(self._commits_after(head.version))
            if newer:
                head = fold(head, newer)
            if newer or self._head is None:
                self._check_end(head.version)
            self._head = head
            return head

    def state(self, version: int) -> TableState:
        """Return the state at a version; `NotFound` when it does not exist or has expired."""
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
            if version not in self._past:
                while len(self._past) >= STATES_KEPT_MAX:
                    self._past.pop(next(iter(self._past)))
                self._past[version] = self._replayed(Version(version))
            return self._past[version]

    def version_at(self, instant: int) -> Version:
        """Return the newest version committed at or before an instant."""
        head = self.head()
        if head.time <= instant:
            return head.version
        low, high = 0, int(head.version)
        while high - low > 1:  # times go up with versions, so halving finds the place
            middle = (low + high) // 2
            if self.commit(middle).time <= instant:
                low = middle
            else:
                high = middle
        if low == 0:
            raise NotFound(
                "the table did not exist then",
                hint="name a later time",
                asked=written(instant),
                first=written(self.commit(1).time),
            )
        return Version(low)

    def commit(self, version: int) -> Commit:
        """Return one commit; `Corruption` when it is damaged, `NotFound` when it is not there."""
        return decode_commit(self._storage.read(layout.commit_path(version)), version)

    def exists(self) -> bool:
        """Tell whether there is a table here at all."""
        return self._storage.size(layout.commit_path(1)) is not None or any(
            layout.commit_version(name) for name in self._names()
        )

    def land(self, commit: Commit) -> Commit | None:
        """Try to make this commit; return it as landed, or None when another has its version.

        When this returns a commit, it is durable and visible. `OutcomeUnknown` when the storage
        failed and would not say: then the commit may still be found later.
        """
        head = self._head
        if head is not None:
            commit = replace(commit, time=TimeNs(max(commit.time, head.time + NS_PER_US)))
        path, data = layout.commit_path(commit.version), encode_commit(commit)
        trouble: list[ThermoclineError] = []
        for _ in range(OUTCOME_LOOKS_MAX):
            try:
                if self._storage.put_new(path, data):
                    return commit
                theirs = self.commit(commit.version)
                return commit if theirs.txn_id == commit.txn_id else None
            except ThermoclineError as error:
                # The name may exist although the call failed. Trying again with the same bytes
                # is safe: it either creates the name, or finds it and reads who made it.
                trouble.append(error)
        raise self._after_trouble(commit, trouble) from trouble[-1]

    def settle(self, version: int) -> None:
        """Make a version that was read last: whoever landed it may have died before its sync.

        Whatever is thrown away because a version has it is thrown away after this.
        """
        self._storage.settle(layout.commit_path(version))

    def _after_trouble(self, commit: Commit, trouble: list[ThermoclineError]) -> ThermoclineError:
        """Return the last error if the commit was definitely not made, else `OutcomeUnknown`."""
        is_doubtful = any(isinstance(error, OutcomeUnknown) for error in trouble)
        try:
            is_absent = self._storage.size(layout.commit_path(commit.version)) is None
        except ThermoclineError:
            is_absent = False
        if is_absent and not is_doubtful:
            return trouble[-1]
        return OutcomeUnknown(
            "whether the commit landed is not known",
            hint="look for the transaction in `history` before trying again",
            version=commit.version,
            txn_id=commit.txn_id,
        )

    def accept(self, before: TableState | None, landed: Commit) -> TableState:
        """Return the state after a commit that landed on `before`, and hint at it.

        Nothing here can fail: the commit is made, and only hints are written.
        """
        state = fold(before, [landed])
        with self._lock:
            if self._head is None or self._head.version < state.version:
                self._head = state
        with suppress(ThermoclineError):
            if state.version % self._checkpoint_every == 0:
                self._checkpoint(state)
            self._write_hint(state.version)
        return state

    def now(self) -> TimeNs:
        """Return the time of a commit made now."""
        return TimeNs(self._now_ns() // NS_PER_US * NS_PER_US)

    def write_checkpoint(self, version: int) -> None:
        """Write the state of exactly this version down, and thin out older checkpoints."""
        self._checkpoint(self.state(version))

    def _checkpoint(self, state: TableState) -> None:
        write_checkpoint(self._storage, state)
        version = state.version
        # Ten checkpoints of each step are kept: every 100th version, every 1,000th, and so on.
        step = self._checkpoint_every
        while version - step * CHECKPOINTS_KEPT_PER_STEP > 0:
            old = version - step * CHECKPOINTS_KEPT_PER_STEP
            if old % step == 0 and old % (step * CHECKPOINTS_KEPT_PER_STEP):
                self._storage.delete(layout.checkpoint_path(old))
            step *= CHECKPOINTS_KEPT_PER_STEP

    def _opened(self) -> TableState:
        hint = self._read_hint()
        if hint is not None:
            with suppress(NotFound):
                return self._replayed(hint)
        names = list(self._names())
        versions = sorted(v for name in names if (v := layout.commit_version(name)) is not None)
        if not versions:
            raise NotFound("no table here", hint="create one first", root=self._storage.root)
        self._check_dense(versions)
        state = self._replayed(versions[-1])
        with suppress(ThermoclineError):
            self._write_hint(state.version)
        return state

    def _replayed(self, version: Version, *, below: int | None = None) -> TableState:
        """Return the state at a version from the newest usable checkpoint, one `below` if asked."""
        if self._storage.size(layout.commit_path(version)) is None:
            raise NotFound("no such version", version=version, root=self._storage.root)
        state = None
        for candidate in self._checkpoints_before(version):
            if below is not None and candidate >= below:
                continue
            state = read_checkpoint(self._storage, candidate, self._segments_without(candidate))
            if state is not None:
                break
        first = state.version + 1 if state else 1
        commits = (self._commit_within(v, version) for v in range(first, version + 1))
        return fold(state, commits) if state is None or first <= version else state

    def _segments_without(self, checkpoint: Version) -> Callable[[], Iterable[Segment]]:
        return lambda: self._replayed(checkpoint, below=checkpoint).segments

    def _commit_within(self, version: int, newest: int) -> Commit:
        try:
            return self.commit(version)
        except NotFound as error:
            raise _missing(version, newest) from error

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
            (v for name in self._names() if (v := layout.checkpoint_version(name)) is not None),
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

    def _check_dense(self, versions: list[Version]) -> None:
        for place, version in enumerate(versions, start=1):
            if version != place:
                raise _missing(place, versions[-1])

    def _check_end(self, version: int) -> None:
        for ahead in range(version + 2, version + 2 + LOOK_PAST_END):
            if self._storage.size(layout.commit_path(ahead)) is not None:
                if self._storage.size(layout.commit_path(version + 1)) is not None:
                    return  # another writer is ahead of this look; nothing is missing
                raise _missing(version + 1, ahead)

    def _names(self) -> Iterator[str]:
        for stored in self._storage.list(layout.LOG_FOLDER):
            yield stored.path.rsplit("/", 1)[-1]

    def _read_hint(self) -> Version | None:
        try:
            hint = orjson.loads(self._storage.read(layout.CURRENT_PATH))
            return Version(int(hint["version"]))
        except (NotFound, ValueError, TypeError, KeyError):
            return None

    def _write_hint(self, version: int) -> None:
        self._storage.put_hint(layout.CURRENT_PATH, orjson.dumps({"version": version}))


def _missing(version: int, newest: int) -> Corruption:
    return Corruption(
        "a commit in the middle of the log is missing",
        hint="restore it from a copy; later versions cannot be read without it",
        path=layout.commit_path(version),
        newest=newest,
    )
