"""The coverage of a stretch of time as bars of blocks.

In:   what a version holds, a stretch, a width
Out:  a `Picture`, or its lines as one text

- A block is full only if every bucket in it is held, and empty only if none is: one missing
  bucket in a million is visible, and so is one held bucket in a million.
- A block contains whole buckets, or a bucket spans whole blocks.
- The least complete entities come first; the picture says how many are omitted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING

from thermocline.show.axis import draw_axis, draw_number_axis
from thermocline.show.text import display_time, pad, share_text, shorten, text_width, visible

if TYPE_CHECKING:
    from thermocline.cold.coverage_report import CoverageReport
    from thermocline.format.bucket import Bucket
    from thermocline.format.coverage import Buckets

BLOCKS = "·▁▂▃▄▅▆█"
"""A block's glyph by its level: empty, six steps of "in part", full."""

FULL = len(BLOCKS) - 1
WIDTH_MIN = 40
LANES_MAX = 10
LABEL_WIDTH_MAX = 24
SHARE_WIDTH = 8


@dataclass(frozen=True, slots=True)
class CoverageLane:
    """The coverage of one entity, or of the whole table, as levels from 0 to `FULL`."""

    label: str
    levels: tuple[int, ...]
    share: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The coverage of a stretch: its lanes, worst first, the axis under them and a legend."""

    lanes: tuple[CoverageLane, ...]
    more: str
    axis: tuple[str, ...]
    legend: tuple[str, ...]
    label_width: int

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Yield each line as the text before its blocks, the blocks, and the text after them."""
        for lane in self.lanes:
            blocks = "".join(BLOCKS[level] for level in lane.levels)
            yield pad(lane.label, self.label_width), blocks, lane.share.rjust(SHARE_WIDTH)
        below = [" " * self.label_width + line for line in self.axis]
        for line in (*below, *([self.more] if self.more else []), *self.legend):
            yield line.rstrip(), "", ""


def coverage_bar(
    held: "CoverageReport",
    width: int,
    start: object = None,
    end: object = None,
    entity: object = None,
    *,
    per_entity: bool = True,
) -> str:
    """Return the coverage of a stretch as bars of blocks with a time axis and a legend.

    No line is wider than `width`, or than `WIDTH_MIN` if that is more. If the table has entities,
    each has a bar, the least complete first, up to `LANES_MAX`.
    """
    picture = coverage_picture(held, width, start, end, entity, per_entity=per_entity)
    return "\n".join("".join(parts) for parts in picture.lines())


def coverage_picture(
    held: "CoverageReport",
    width: int,
    start: object = None,
    end: object = None,
    entity: object = None,
    *,
    per_entity: bool = True,
) -> Picture:
    """Return the picture that `coverage_bar` writes, for callers that add colours."""
    width = max(width, WIDTH_MIN)
    first, after = held.span(start, end)
    if after <= first:
        return Picture((), "", (), ("nothing is held: no stretch to draw",), 0)
    worst, rest = _order_worst_first(
        _entity_parts(held, entity, per_entity=per_entity), first, after
    )
    widest = min(max(text_width(label) for label, _, _ in worst), LABEL_WIDTH_MAX, width // 3)
    label_width = widest + 2 if widest else 0
    room = width - label_width - SHARE_WIDTH
    ranges = _block_ranges(first, after, room)
    lanes = tuple(
        CoverageLane(shorten(label, widest), _block_levels(buckets, ranges), share)
        for label, buckets, share in worst
    )
    bucket = held.state.spec.bucket
    begin, stop = bucket.start(first), bucket.start(after)
    axis_room = room + SHARE_WIDTH
    axis = (
        draw_axis(display_time(begin), display_time(stop), len(ranges), axis_room)
        if bucket.is_time
        else draw_number_axis(begin, stop, len(ranges), axis_room)
    )
    more = f"and {rest:,} more, none less complete than these" if rest else ""
    return Picture(
        lanes,
        more,
        axis,
        _make_legend(bucket, after - first, len(ranges), width),
        label_width,
    )


def block_level(held: int, total: int) -> int:
    """Return a block's level: 0 only if none is held, `FULL` only if all are, else between."""
    if held == 0:
        return 0
    return FULL if held == total else 1 + held * (FULL - 1) // total


def count_buckets(parts: Sequence["Buckets"], first: int, after: int) -> list[int]:
    """Return how many buckets of the range each part holds, from the bytes of all bitmaps."""
    import numpy as np

    from thermocline.format.bitmap_runs import find_runs
    from thermocline.format.coverage import BIAS

    runs = find_runs([part.to_bytes() for part in parts])
    low, high = np.maximum(runs.first, first + BIAS), np.minimum(runs.end, after + BIAS)
    sums = np.zeros(len(parts), dtype=np.int64)
    np.add.at(sums, runs.owner, np.maximum(high - low, 0))
    return [int(value) for value in sums]


def _entity_parts(
    held: "CoverageReport", entity: object, *, per_entity: bool
) -> list[tuple[str, "Buckets"]]:
    from thermocline.format.coverage import entity_values

    if entity is not None:
        return [(_entity_label(entity_values(held.key(entity))), held.buckets(entity))]
    if held.has_entities and per_entity and held.coverage.entities:
        return [
            (_entity_label(entity_values(key)), part)
            for key, part in held.coverage.entities.items()
        ]
    return [("", held.coverage.whole)]


def _entity_label(values: Iterable[object]) -> str:
    return visible(", ".join("null" if value is None else str(value) for value in values))


def _order_worst_first(
    parts: Sequence[tuple[str, "Buckets"]], first: int, after: int
) -> tuple[list[tuple[str, "Buckets", str]], int]:
    """Return the least complete parts with their shares, and how many parts are omitted."""
    held = count_buckets([buckets for _, buckets in parts], first, after)
    order = sorted(range(len(parts)), key=lambda place: (held[place], parts[place][0]))
    shown = [(*parts[place], share_text(held[place], after - first)) for place in order[:LANES_MAX]]
    return shown, len(parts) - len(shown)


def _block_ranges(first: int, after: int, room: int) -> list[tuple[int, int]]:
    """Return the buckets of each block: whole buckets a block, or whole blocks a bucket."""
    count = after - first
    if count <= room:
        each = room // count
        return [(bucket, bucket + 1) for bucket in range(first, after) for _ in range(each)]
    edges = [first + place * count // room for place in range(room + 1)]
    return list(pairwise(edges))


def _block_levels(buckets: "Buckets", ranges: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(block_level(buckets.count(low, high), high - low) for low, high in ranges)


def _make_legend(bucket: "Bucket", count: int, blocks: int, width: int) -> tuple[str, ...]:
    if blocks >= count:
        each = blocks // count
        scale = f"one bucket of {bucket} is {each} block{'s' if each > 1 else ''}"
    else:
        many = f"{count // blocks:,}" if count % blocks == 0 else f"about {count / blocks:,.1f}"
        scale = f"one block is {many} buckets of {bucket}"
    marks = f"{BLOCKS[FULL]} held  {BLOCKS[1]}{BLOCKS[3]}{BLOCKS[FULL - 1]} in part  · missing"
    if bucket.is_time:
        scale = f"{scale}, UTC"
    whole = f"{marks}  ({scale})"
    return (whole,) if len(whole) <= width else (marks, *wrap(scale, width))
