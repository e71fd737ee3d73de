"""Chooses the segments that compaction rewrites, and how: from the log alone.

In:   a state
Out:  groups of segments, one commit each; slices of a group, one segment each

- Small segments that are near each other in time are merged. The first pass groups by day, the
  second by month, the third by year: many small segments are merged within a day, a few within
  a year.
- A segment that is larger than all others of its group together is not rewritten: a row is moved at
  most as often as the amount of data around it doubles.
- A segment with many deleted rows is rewritten at any size, alone if necessary.
- A group has limits in segments and bytes. `share` divides these limits for a compaction that
  failed with a larger group.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thermocline.cold.change.export_plan import KEY_COLUMN
from thermocline.cold.compact.merge import Slice
from thermocline.cold.segment.parquet import read_rows
from thermocline.cold.table import ColdTable
from thermocline.format.instant import NS_PER_S
from thermocline.format.log.action import ENTITIES_FEATURE, Segment
from thermocline.format.log.conflict import TimeWindow
from thermocline.format.log.state import TableState

TARGET_BYTES = 64 << 20
TARGET_ROWS = 2_500_000
INPUTS_MIN = 8
INPUTS_MAX = 2_000
INPUTS_LEAST = 2
BYTES_MAX = 4 << 30
DELETED_SHARE_MAX = 0.2
LEVEL_MAX = 16
"""How often rows are rewritten because their segments are small: a bound if sizes mislead."""
KEYS_SAMPLED_MAX = 1_000_000
DAY_NS = 86_400 * NS_PER_S
WINDOWS_NS = (DAY_NS, 32 * DAY_NS, 384 * DAY_NS)


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """When a segment counts as small, and how many segments one commit rewrites.

    A segment with less than half of `target_bytes` and of `target_rows` is small. Compaction
    starts at `inputs_min` small segments.
    """

    target_bytes: int = TARGET_BYTES
    target_rows: int = TARGET_ROWS
    inputs_min: int = INPUTS_MIN
    inputs_max: int = INPUTS_MAX
    bytes_max: int = BYTES_MAX
    deleted_share_max: float = DELETED_SHARE_MAX
    level_max: int = LEVEL_MAX


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """Segments that one commit merges, in the order of their times."""

    segments: tuple[Segment, ...]

    @property
    def size_bytes(self) -> int:
        """The size of their files."""
        return sum(segment.file_size for segment in self.segments)

    @property
    def rows(self) -> int:
        """Their live rows."""
        return sum(live_rows(segment) for segment in self.segments)

    @property
    def deleted(self) -> int:
        """Their deleted rows."""
        return sum(segment.deleted_count for segment in self.segments)


def live_rows(segment: Segment) -> int:
    """Return how many rows of a segment are not deleted."""
    return segment.row_count - segment.deleted_count


def live_bytes(segment: Segment) -> int:
    """Return about how many bytes the live rows of a segment take."""
    return segment.file_size * live_rows(segment) // max(segment.row_count, 1)


def plan_groups(state: TableState, limits: CompactionLimits) -> Iterator[CompactionGroup]:
    """Yield the groups that are worth rewriting now. No segment is in two groups."""
    is_keyed = ENTITIES_FEATURE in state.spec.features
    left = [s for s in state.segments if is_small(s, limits) or is_dirty(s, limits)]
    for width_ns in (None,) if is_keyed else WINDOWS_NS:
        rest: list[Segment] = []
        for near in _group_by_time(left, width_ns):
            chosen, others = _split_oversized(near, limits)
            rest += others
            for part in _cut_to_limits(chosen, limits):
                if _is_worthwhile(part, limits):
                    yield CompactionGroup(tuple(part))
                else:
                    rest += part
        left = rest


def is_small(segment: Segment, limits: CompactionLimits) -> bool:
    """Tell whether a segment has less than half of the target's rows and bytes."""
    has_few_rows = live_rows(segment) * 2 < limits.target_rows
    has_few_bytes = live_bytes(segment) * 2 < limits.target_bytes
    return has_few_rows and has_few_bytes and segment.level < limits.level_max


def is_dirty(segment: Segment, limits: CompactionLimits) -> bool:
    """Tell whether too many rows of a segment are deleted."""
    return segment.deleted_count > limits.deleted_share_max * segment.row_count


def take_within_limits(
    segments: Sequence[Segment], limits: CompactionLimits, share: int
) -> list[Segment]:
    """Return the first segments that fit the limits of one commit, at least two."""
    inputs_max, bytes_max = limits.inputs_max // share, limits.bytes_max // share
    taken: list[Segment] = []
    size_bytes = 0
    for segment in segments[: max(-(-len(segments) // share), INPUTS_LEAST)]:
        size_bytes += segment.file_size
        is_full = len(taken) >= inputs_max or size_bytes > bytes_max
        if is_full and len(taken) >= INPUTS_LEAST:
            break
        taken.append(segment)
    return taken


def _group_by_time(segments: Iterable[Segment], width_ns: int | None) -> Iterator[list[Segment]]:
    """Yield lists of segments that begin in the same period, each list in order of time."""
    ordered = sorted(segments, key=lambda s: (s.ts_min, s.segment_id))
    stretches: dict[int, list[Segment]] = {}
    for segment in ordered:
        stretch = 0 if width_ns is None else segment.ts_min // width_ns
        stretches.setdefault(stretch, []).append(segment)
    yield from stretches.values()


def _split_oversized(
    near: list[Segment], limits: CompactionLimits
) -> tuple[list[Segment], list[Segment]]:
    """Return the segments to rewrite, and those that are larger than all others together."""
    dirty = [s for s in near if is_dirty(s, limits)]
    clean = sorted((s for s in near if not is_dirty(s, limits)), key=live_bytes)
    joining = sum(live_bytes(s) for s in (*dirty, *clean))
    others = []
    while clean and live_bytes(clean[-1]) * 2 > joining:
        joining -= live_bytes(clean[-1])
        others.append(clean.pop())
    taken = {s.segment_id for s in (*dirty, *clean)}
    return [s for s in near if s.segment_id in taken], others


def _cut_to_limits(segments: list[Segment], limits: CompactionLimits) -> Iterator[list[Segment]]:
    while segments:
        part = take_within_limits(segments, limits, 1)
        yield part
        segments = segments[len(part) :]


def _is_worthwhile(part: Sequence[Segment], limits: CompactionLimits) -> bool:
    return len(part) >= limits.inputs_min or any(is_dirty(s, limits) for s in part)


def plan_slices(
    table: ColdTable, state: TableState, group: CompactionGroup, limits: CompactionLimits
) -> list[Slice]:
    """Return slices that contain every row of a group once, each for about one new segment.

    If a slice can end between two segments, it does, so that few files are read twice. For an
    entity table some keys are read, to estimate their distribution.
    """
    count = max(
        -(-group.rows // limits.target_rows),
        -(-sum(map(live_bytes, group.segments)) // limits.target_bytes),
    )
    if count <= 1:
        return [Slice(group.segments)]
    if ENTITIES_FEATURE in state.spec.features:
        return _slice_by_key(group.segments, _find_key_cuts(table, state, group.segments, count))
    bounds = [None, *_TimeSpread(group.segments).cuts(group.rows / count), None]
    windows = [TimeWindow(start, end) for start, end in pairwise(bounds)]
    return [
        Slice(tuple(s for s in group.segments if window.meets(s.ts_min, s.ts_max)), window)
        for window in windows
    ]


class _TimeSpread:
    """Estimates how rows are distributed in time: evenly within each segment."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._first = np.array([s.ts_min for s in segments], dtype=np.float64)
        self._span = np.array([s.ts_max - s.ts_min + 1 for s in segments], dtype=np.float64)
        self._rows = np.array([live_rows(s) for s in segments], dtype=np.float64)
        self._edges = sorted({s.ts_min for s in segments})
        self._end = max(s.ts_max for s in segments)

    def cuts(self, rows_each: float) -> list[int]:
        """Return the times at which to cut, about `rows_each` rows apart."""
        before = [(edge, self._rows_before(edge)) for edge in self._edges]
        total, done = float(self._rows.sum()), 0.0
        cuts: list[int] = []
        while total - done > 1.25 * rows_each:
            near = [(abs(rows - done - rows_each), at) for at, rows in before]
            off, edge = min(near)
            cut = edge if off <= 0.2 * rows_each else self._time_at(done + rows_each)
            if cut <= (cuts[-1] if cuts else self._edges[0]):
                break
            cuts.append(cut)
            done = self._rows_before(cut)
        return cuts

    def _rows_before(self, time: int) -> float:
        """Return the estimated number of rows before a time."""
        part = np.clip((time - self._first) / self._span, 0.0, 1.0)
        return float((part * self._rows).sum())

    def _time_at(self, rows: float) -> int:
        """Return the time before which there are about this many rows."""
        low: int = self._edges[0]
        high: int = self._end + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._rows_before(middle) < rows else (low, middle)
        return high


def _find_key_cuts(
    table: ColdTable, state: TableState, segments: Sequence[Segment], count: int
) -> list[str]:
    """Return keys that cut the rows into about `count` equal parts, from a sample of keys."""
    parts: list[pa.Array] = []
    for segment in segments:
        looked = read_rows(table.storage, state, segment, [KEY_COLUMN])
        parts.extend(rows.batch.column(0) for rows in looked)
        if sum(map(len, parts)) > KEYS_SAMPLED_MAX:
            break
    keys = pa.chunked_array(parts, pa.string())
    ordered = keys.take(pc.array_sort_indices(keys))
    found = [ordered[len(ordered) * part // count].as_py() for part in range(1, count)]
    return sorted(set(found))


def _slice_by_key(segments: Sequence[Segment], cuts: Sequence[str]) -> list[Slice]:
    bounds = [None, *cuts, None]
    return [Slice(tuple(segments), low=low, high=high) for low, high in pairwise(bounds)]
