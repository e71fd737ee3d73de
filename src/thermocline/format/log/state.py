"""What a table is at one version: the fold of its commits.

In:   a state (or nothing) and the commits that follow it
Out:  the state after them

- Only `fold` makes a state from commits; a checkpoint is a stored state.
- A state is immutable: a reader keeps the one it began with.
- The segments of a checkpoint stay in columns until one is needed, so that the cost of opening a
  table does not grow with the number of its segments.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from thermocline.errors import Corruption
from thermocline.format.instant import NS_PER_US, TimeNs
from thermocline.format.layout import Version, commit_path
from thermocline.format.log.action import (
    Action,
    AddSegment,
    Expire,
    Mark,
    RemoveSegment,
    Segment,
    SetDeletes,
    SetMark,
    SetTable,
    SetTxn,
    TableSpec,
)
from thermocline.format.log.commit import Commit
from thermocline.format.log.commit_note import NoteFlush, NoteHole, NoteRequests
from thermocline.format.schema import Schema

REQUESTS_KEPT_MAX = 16_384
"""How many idempotency keys a table remembers: a retry with one of these is recognised."""


class SegmentColumns(Protocol):
    """The segments of a checkpoint, in columns; `segments` decodes the few that are needed.

    `ts_min_us` is rounded down and `ts_max_us` up, so that a filter on them never misses a row.
    """

    @property
    def ids(self) -> list[str]: ...

    @property
    def ts_min_us(self) -> npt.NDArray[np.int64]: ...

    @property
    def ts_max_us(self) -> npt.NDArray[np.int64]: ...

    def segments(self, rows: Iterable[int]) -> list[Segment]: ...


@dataclass(frozen=True)
class SegmentSet:
    """The live segments: those of a checkpoint, except `gone`, and those `changed` since."""

    base: SegmentColumns | None = None
    changed: Mapping[str, Segment] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.overlapping(None, None))

    def overlapping(self, start: int | None, end: int | None) -> list[Segment]:
        """Return the segments that may have rows from `start` up to, not including, `end`."""
        found = [
            segment
            for segment in self.changed.values()
            if (start is None or segment.ts_max >= start) and (end is None or segment.ts_min < end)
        ]
        if self.base is None:
            return found
        hit = np.ones(len(self.base.ts_min_us), dtype=bool)
        if start is not None:
            hit &= self.base.ts_max_us >= start // NS_PER_US
        if end is not None:
            hit &= self.base.ts_min_us < -(-end // NS_PER_US)
        rows = np.flatnonzero(hit).tolist()
        if self.gone or self.changed:
            ids = self.base.ids
            rows = [
                row for row in rows if ids[row] not in self.gone and ids[row] not in self.changed
            ]
        exact = [
            segment
            for segment in self.base.segments(rows)
            if (start is None or segment.ts_max >= start) and (end is None or segment.ts_min < end)
        ]
        return exact + found

    def holding(self, rows: int) -> list[Segment]:
        """Return some segments that have so many live rows in total, or all of them."""
        found: list[Segment] = []
        for segment in self._in_turn():
            if rows <= 0:
                break
            found.append(segment)
            rows -= segment.row_count - segment.deleted_count
        return found

    def _in_turn(self) -> Iterator[Segment]:
        """Yield the segments in any order; those of the checkpoint are decoded one by one."""
        yield from self.changed.values()
        if self.base is not None:
            for row, key in enumerate(self.base.ids):
                if key not in self.gone and key not in self.changed:
                    yield from self.base.segments([row])

    def find(self, segment_id: str) -> Segment | None:
        """Return the live segment of this id, or None when there is none."""
        if segment_id in self.changed:
            return self.changed[segment_id]
        if self.base is None or segment_id in self.gone or segment_id not in self._rows:
            return None
        return self.base.segments([self._rows[segment_id]])[0]

    def __contains__(self, segment_id: str) -> bool:
        if segment_id in self.changed:
            return True
        return self.base is not None and segment_id not in self.gone and segment_id in self._rows

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {} if self.base is None else {key: row for row, key in enumerate(self.base.ids)}


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the live segments; `digest` identifies their coverage, in any order."""

    segments: int = 0
    rows: int = 0
    size_bytes: int = 0
    digest: int = 0


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one version.

    `txn_id` is that of the version's commit. `clock_steps` are the versions whose time is not after
    the time of the version before: a writer's clock had run ahead and was set back.
    """

    version: Version
    time: TimeNs
    spec: TableSpec
    schema_id: int
    schemas: Mapping[int, Schema]
    segments: SegmentSet
    totals: Totals
    marks: Mapping[str, Mark] = field(default_factory=dict)
    txns: Mapping[str, int] = field(default_factory=dict)
    oldest: Version = Version(1)
    holes: tuple[NoteHole, ...] = ()
    requests: Mapping[str, int] = field(default_factory=dict)
    txn_id: str = ""
    clock_steps: tuple[Version, ...] = ()

    @property
    def schema(self) -> Schema:
        """The columns as they are at this version."""
        return self.schemas[self.schema_id]


def fold(state: TableState | None, commits: Iterable[Commit]) -> TableState:
    """Return the state after the commits; `Corruption` when they do not follow each other."""
    folding = _StateBuilder(state)
    for commit in commits:
        folding.apply(commit)
    return folding.state()


def coverage_digest(segment_id: str, coverage_checksum: str) -> int:
    """Return the number that stands for one segment's coverage in a version's digest."""
    text = f"{segment_id} {coverage_checksum}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class _StateBuilder:
    """A mutable state while commits are applied to it; private to one `fold`."""

    def __init__(self, state: TableState | None) -> None:
        self._start = state
        self._version = state.version if state else Version(0)
        self._time = state.time if state else TimeNs(0)
        self._spec = state.spec if state else None
        self._schema_id = state.schema_id if state else 0
        self._schemas = dict(state.schemas) if state else {}
        self._set = state.segments if state else SegmentSet()
        self._changed = dict(self._set.changed)
        self._gone = set(self._set.gone)
        totals = state.totals if state else Totals()
        self._sums = [totals.segments, totals.rows, totals.size_bytes]
        self._digest = totals.digest
        self._marks = dict(state.marks) if state else {}
        self._txns = dict(state.txns) if state else {}
        self._oldest = state.oldest if state else Version(1)
        self._holes = state.holes if state else ()
        self._requests = state.requests if state else {}
        self._txn_id = state.txn_id if state else ""
        self._clock_steps = state.clock_steps if state else ()

    def apply(self, commit: Commit) -> None:
        if commit.version != self._version + 1:
            raise Corruption(
                "commits do not follow each other",
                hint="run `thermocline table fsck`",
                version=commit.version,
                after=self._version,
            )
        if commit.previous and self._txn_id and commit.previous != self._txn_id:
            raise Corruption(
                "a commit does not follow from the commit before it: one of the two was replaced",
                hint="restore both from one copy of the table; `thermocline table repair` goes "
                "back to before them",
                path=commit_path(commit.version),
                before=commit_path(commit.version - 1),
                expected=commit.previous,
                found=self._txn_id,
            )
        for action in commit.actions:
            self._apply_action(action, commit.version)
        if self._version and commit.time <= self._time:
            self._clock_steps = (*self._clock_steps, commit.version)
        self._version, self._time, self._txn_id = commit.version, commit.time, commit.txn_id

    def _apply_action(self, action: Action, version: Version) -> None:
        match action:
            case SetTable(spec, schema_id, schema):
                self._spec, self._schema_id = spec, schema_id
                self._schemas[schema_id] = schema
            case AddSegment(segment):
                self._check_not_live(segment.segment_id, version)
                self._changed[segment.segment_id] = segment
                self._add_totals(segment, 1)
            case RemoveSegment():
                self._check_live(action.segment_id, version)
                self._changed.pop(action.segment_id, None)
                self._gone.add(action.segment_id)
                self._add_totals(action, -1)
            case SetDeletes(segment, before_count, before_checksum):
                self._check_live(segment.segment_id, version)
                self._changed[segment.segment_id] = segment
                self._sums[1] -= segment.deleted_count - before_count
                self._digest ^= coverage_digest(segment.segment_id, before_checksum)
                self._digest ^= coverage_digest(segment.segment_id, segment.coverage_checksum)
            case SetMark(source, mark):
                self._marks[source] = mark
            case SetTxn(application, sequence):
                self._txns[application] = sequence
            case Expire(before):
                self._oldest = max(self._oldest, before)
            case NoteHole() | NoteRequests() | NoteFlush():
                self._apply_note(action)

    def _apply_note(self, note: NoteHole | NoteRequests | NoteFlush) -> None:
        match note:
            case NoteHole():
                self._holes = (*self._holes, note)
            case NoteRequests(requests):
                known = [*self._requests.items(), *requests.items()]
                self._requests = dict(known[-REQUESTS_KEPT_MAX:])
            case NoteFlush():
                pass  # it describes this commit alone; the other actions have the rows

    def _add_totals(self, segment: Segment | RemoveSegment, sign: int) -> None:
        rows = segment.row_count - segment.deleted_count
        for place, value in enumerate((1, rows, segment.file_size)):
            self._sums[place] += sign * value
        self._digest ^= coverage_digest(segment.segment_id, segment.coverage_checksum)

    # Checkpoints are not searched for a segment: that would read all ids and make opening slower
    # with every segment. A fold from the first commit, as fsck does it, checks every segment.

    def _check_live(self, segment_id: str, version: Version) -> None:
        is_in_base = self._set.base is not None and segment_id not in self._gone
        if segment_id not in self._changed and not is_in_base:
            raise _fold_error("a commit changes a segment that is not live", segment_id, version)

    def _check_not_live(self, segment_id: str, version: Version) -> None:
        if segment_id in self._changed:
            raise _fold_error("a commit adds a segment that is live already", segment_id, version)

    def state(self) -> TableState:
        if self._spec is None:
            raise Corruption(
                "the first commit does not say what the table is",
                hint="restore the first commit from a copy",
            )
        base_gone = frozenset(self._gone) if self._set.base is not None else frozenset()
        segments, rows, size_bytes = self._sums
        return TableState(
            self._version,
            self._time,
            self._spec,
            self._schema_id,
            self._schemas,
            SegmentSet(self._set.base, self._changed, base_gone),
            Totals(segments, rows, size_bytes, self._digest),
            self._marks,
            self._txns,
            self._oldest,
            self._holes,
            self._requests,
            self._txn_id,
            self._clock_steps,
        )


def _fold_error(message: str, segment_id: str, version: Version) -> Corruption:
    hint = "run `thermocline table fsck`"
    return Corruption(message, hint=hint, segment=segment_id, version=version)
