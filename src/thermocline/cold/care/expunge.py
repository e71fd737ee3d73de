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

from thermocline.cold.care.pin import list_pinned_versions
from thermocline.cold.care.vacuum import GRACE_S_MIN, expire_versions
from thermocline.cold.log.checkpoint import encode_checkpoint
from thermocline.cold.table import ColdTable
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    Action,
    AddSegment,
    RemoveSegment,
    Segment,
    SetDeletes,
)
from thermocline.format.log.commit import decode_commit, encode_commit
from thermocline.format.log.commit_note import NoteRequests
from thermocline.format.log.state import SegmentSet, TableState


@dataclass(frozen=True, slots=True)
class ExpungeReport:
    """What was removed. Readers hold the `pinned` versions; vacuum removes their files later."""

    oldest: Version
    files: int
    size_bytes: int
    commits: int
    checkpoints: int
    pinned: tuple[Version, ...]


def expunge(table: ColdTable, words: Sequence[str], numbers: Sequence[int] = ()) -> ExpungeReport:
    """Make every version before the newest unreadable, and remove words and bounds from the log."""
    silent = _Redaction(words, numbers)
    newest = table.state()
    # Order matters: versions expire before the first file is removed, and pins are read after that,
    # so that a reader gets all of a version or an error that it has expired.
    after = expire_versions(table, newest.version, "erase")
    pinned = tuple(sorted(v for v in list_pinned_versions(table) if v < newest.version))
    files, size_bytes = _remove_files(table, after, newest.version, pinned)
    first = table.log.first_version()
    commits = sum(_redact_commit(table, one, silent) for one in range(first, after.version + 1))
    _redact_base(table, first, silent)
    checkpoints = _rewrite_checkpoints(table)
    _remove_shortcuts(table, newest.version)
    return ExpungeReport(newest.version, files, size_bytes, commits, checkpoints, pinned)


def _remove_files(
    table: ColdTable, newest: TableState, oldest: Version, pinned: Sequence[Version]
) -> tuple[int, int]:
    """Remove the files of versions that cannot be read, and files too old to be in writing."""
    ever, live = _list_named_paths(table, oldest, newest, pinned)
    cut_off = table.log.now() - GRACE_S_MIN * NS_PER_S
    files = size_bytes = 0
    for folder in layout.SEGMENT_FOLDERS:
        for stored in table.storage.list(folder):
            is_old = stored.path in ever or stored.modified_ns < cut_off
            if stored.path not in live and is_old:
                table.storage.delete(stored.path)
                files += 1
                size_bytes += stored.size_bytes
    return files, size_bytes


def _list_named_paths(
    table: ColdTable, oldest: Version, newest: TableState, pinned: Sequence[Version]
) -> tuple[set[str], set[str]]:
    """Return the paths that any version has named, and those that readable versions need."""
    ever: set[str] = set()
    needed = {path for segment in newest.segments for path in segment.paths}
    # The log does not return expired versions, so their files are tracked commit by commit.
    live: dict[str, Segment] = {}
    base, first = table.log.base(), table.log.first_version()
    if base is not None:
        live = {segment.segment_id: segment for segment in base.segments}
        ever |= {path for segment in live.values() for path in segment.paths}
        if base.version >= oldest or base.version in pinned:
            needed |= ever
        first = Version(first + 1)
    for version in range(first, newest.version + 1):
        for action in table.log.commit(version).actions:
            if isinstance(action, AddSegment | SetDeletes):
                live[action.segment.segment_id] = action.segment
                ever |= {*action.segment.paths}
            elif isinstance(action, RemoveSegment):
                live.pop(action.segment_id, None)
        if version >= oldest or version in pinned:
            needed |= {path for segment in live.values() for path in segment.paths}
    return ever, needed


def _redact_commit(table: ColdTable, version: int, silent: "_Redaction") -> bool:
    """Remove the words from a commit; tell whether it had any."""
    path = layout.commit_path(version)
    data = table.storage.read(path)
    commit = decode_commit(data, version)
    actions = tuple(silent.redact_action(action) for action in commit.actions)
    if actions == commit.actions:
        return False
    table.storage.replace(path, encode_commit(replace(commit, actions=actions)))
    return True


def _redact_base(table: ColdTable, first: Version, silent: "_Redaction") -> None:
    """Remove the words from the base of a truncated log."""
    base = table.log.base()
    if base is None:
        return
    segments = {one.segment_id: silent.redact_segment(one) for one in base.segments}
    note = silent.redact_action(NoteRequests(dict(base.requests)))
    assert isinstance(note, NoteRequests)
    clean = replace(base, segments=SegmentSet(changed=segments), requests=note.requests)
    table.storage.replace(layout.base_path(first), encode_checkpoint(clean))


@dataclass(frozen=True, slots=True)
class _Redaction:
    """What to remove from commits: texts that contain a word, bounds that equal a number."""

    words: Sequence[str]
    numbers: Sequence[int]

    def redact_action(self, action: Action) -> Action:
        """Return an action with the same effect, without the words and numbers."""
        match action:
            case AddSegment(segment):
                return replace(action, segment=self.redact_segment(segment))
            case SetDeletes(segment):
                return replace(action, segment=self.redact_segment(segment))
            case NoteRequests(requests):
                kept = {key: rows for key, rows in requests.items() if not self._contains_word(key)}
                return NoteRequests(kept)
        return action

    def redact_segment(self, segment: Segment) -> Segment:
        """Return a segment without bounds that contain a word or number."""
        kept = {
            key: both
            for key, both in segment.stats.items()
            if not any(self._contains_word(bound) for bound in both)
        }
        return replace(segment, stats=kept)

    def _contains_word(self, value: Any) -> bool:
        if isinstance(value, int):
            return value in self.numbers
        text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
        quoted = orjson.dumps(text).decode()
        return any(word in text or word in quoted for word in self.words)


def _rewrite_checkpoints(table: ColdTable) -> int:
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
        reopened = ColdTable(table.storage)
        reopened.log.write_checkpoint(reopened.state().version)
    return len(found)


def _remove_shortcuts(table: ColdTable, oldest: Version) -> None:
    """Remove the shortcuts of versions that cannot be read."""
    for stored in table.storage.list(layout.TABLE_COVERAGE_FOLDER):
        version = layout.table_coverage_version(stored.path.rpartition("/")[2])
        if version is None or version < oldest:
            table.storage.delete(stored.path)
