"""Expunges old versions and their files at once, and removes words of a subject from the log.

In:   a table whose newest version no longer has data of the subject, and the subject's words
Out:  a table without older versions and their files, and a log without the words

- A file is removed only if a version has named it, or if it is older than the shortest grace
  period: files of a writer that has not committed yet stay.
- If a reader has pinned an old version, its files stay until the lease ends; the result lists it.
- A commit is replaced by the same commit without the bounds and idempotency keys that contain a
  word. Segments, counts, checksums and times stay, and folding it gives the same rows.
- Checkpoints are hints; they are rebuilt from the redacted log.
- Running it again after a crash finishes the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from thermocline.cold.care.pin import pinned_versions
from thermocline.cold.care.vacuum import GRACE_S_MIN
from thermocline.cold.log.transaction import Plan, transact
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.storage.storage import Storage
from thermocline.cold.table import Table
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    Action,
    AddSegment,
    Expire,
    RemoveSegment,
    Segment,
    SetDeletes,
)
from thermocline.format.log.commit import decode_commit, encode_commit
from thermocline.format.log.commit_note import NoteRequests
from thermocline.format.log.state import TableState

_FOLDERS = (layout.DATA_FOLDER, layout.SEGMENT_COVERAGE_FOLDER)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was removed. Readers hold the `pinned` versions; vacuum removes their files later."""

    oldest: Version
    files: int
    size_bytes: int
    commits: int
    checkpoints: int
    pinned: tuple[Version, ...]


def forget(table: Table, words: Sequence[str], numbers: Sequence[int] = ()) -> Forgotten:
    """Make every version before the newest unreadable, and remove words and bounds from the log."""
    silent = _Silent(words, numbers)
    newest = table.state()
    # Order matters: versions expire before the first file is removed, and pins are read after that,
    # so that a reader gets all of a version or an error that it has expired.
    after = _expired(table, newest.version)
    pinned = tuple(sorted(v for v in pinned_versions(table) if v < newest.version))
    files, size_bytes = _remove(table, after, newest.version, pinned)
    commits = sum(_redacted(table, version, silent) for version in range(1, after.version + 1))
    checkpoints = _checkpoints_anew(table)
    _remove_shortcuts(table, newest.version)
    return Forgotten(newest.version, files, size_bytes, commits, checkpoints, pinned)


def _expired(table: Table, oldest: Version) -> TableState:
    def plan(state: TableState) -> Plan | None:
        return None if state.oldest >= oldest else Plan("erase", (Expire(oldest),))

    outcome = transact(table.log, plan)
    if outcome.is_landed:
        table.index.write(outcome.state)
    return outcome.state


def _remove(
    table: Table, newest: TableState, oldest: Version, pinned: Sequence[Version]
) -> tuple[int, int]:
    """Remove the files of versions that cannot be read, and files too old to be in writing."""
    ever, live = _named(table, oldest, newest, pinned)
    cut_off = table.log.now() - GRACE_S_MIN * NS_PER_S
    files = size_bytes = 0
    for folder in _FOLDERS:
        for stored in table.storage.list(folder):
            is_old = stored.path in ever or stored.modified_ns < cut_off
            if stored.path not in live and is_old:
                table.storage.delete(stored.path)
                files += 1
                size_bytes += stored.size_bytes
    return files, size_bytes


def _named(
    table: Table, oldest: Version, newest: TableState, pinned: Sequence[Version]
) -> tuple[set[str], set[str]]:
    """Return the paths that any version has named, and those that readable versions need."""
    ever: set[str] = set()
    needed = {path for segment in newest.segments for path in _paths(segment)}
    # The log does not return expired versions, so their files are tracked commit by commit.
    live: dict[str, Segment] = {}
    for version in range(1, newest.version + 1):
        for action in table.log.commit(version).actions:
            if isinstance(action, AddSegment | SetDeletes):
                live[action.segment.segment_id] = action.segment
                ever |= {*_paths(action.segment)}
            elif isinstance(action, RemoveSegment):
                live.pop(action.segment_id, None)
        if version >= oldest or version in pinned:
            needed |= {path for segment in live.values() for path in _paths(segment)}
    return ever, needed


def _paths(segment: Segment) -> tuple[str, str]:
    return segment.path, segment.coverage_path


def _redacted(table: Table, version: int, silent: "_Silent") -> bool:
    """Remove the words from a commit; tell whether it had any."""
    path = layout.commit_path(version)
    data = table.storage.read(path)
    commit = decode_commit(data, version)
    actions = tuple(silent.action(action) for action in commit.actions)
    if actions == commit.actions:
        return False
    _replace(table.storage, path, encode_commit(replace(commit, actions=actions)))
    return True


@dataclass(frozen=True, slots=True)
class _Silent:
    """What to remove from commits: texts that contain a word, bounds that equal a number."""

    words: Sequence[str]
    numbers: Sequence[int]

    def action(self, action: Action) -> Action:
        """Return an action with the same effect, without the words and numbers."""
        match action:
            case AddSegment(segment):
                return replace(action, segment=self._segment(segment))
            case SetDeletes(segment):
                return replace(action, segment=self._segment(segment))
            case NoteRequests(requests):
                kept = {key: rows for key, rows in requests.items() if not self._says(key)}
                return NoteRequests(kept)
        return action

    def _segment(self, segment: Segment) -> Segment:
        kept = {
            key: both
            for key, both in segment.stats.items()
            if not any(self._says(bound) for bound in both)
        }
        return replace(segment, stats=kept)

    def _says(self, value: Any) -> bool:
        if isinstance(value, int):
            return value in self.numbers
        text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
        quoted = orjson.dumps(text).decode()
        return any(word in text or word in quoted for word in self.words)


def _replace(storage: Storage, path: str, data: bytes) -> None:
    if isinstance(storage, LocalStorage):
        storage.replace(path, data)
    else:
        storage.put_hint(path, data)  # an object store replaces an object whole, and durably


def _checkpoints_anew(table: Table) -> int:
    """Remove all checkpoints and write that of the newest version; return how many went."""
    found = [
        stored.path
        for stored in table.storage.list(layout.LOG_FOLDER)
        if layout.checkpoint_version(stored.path.rpartition("/")[2]) is not None
    ]
    for path in found:
        table.storage.delete(path)
    if found:
        # A new table object: it has no cached state from before the commits were redacted.
        anew = Table(table.storage)
        anew.log.write_checkpoint(anew.state().version)
    return len(found)


def _remove_shortcuts(table: Table, oldest: Version) -> None:
    """Remove the shortcuts of versions that cannot be read."""
    for stored in table.storage.list(layout.TABLE_COVERAGE_FOLDER):
        version = layout.table_coverage_version(stored.path.rpartition("/")[2])
        if version is None or version < oldest:
            table.storage.delete(stored.path)
