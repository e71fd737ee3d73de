"""The buckets of histograms: how much each grew in a stretch of time, in one form for all kinds.

In:   rows of histograms, each with its counts as stored; runs of rows between which counts grew
Out:  `BucketCounts`: what each bucket of each group gained; lists of buckets by group

- A run is a stretch of rows of one series without a restart. What its buckets gained is the last
  row's counts minus those of the row before the run: rows between them cancel out.
- Exponential histograms change their scale and offset as values come. Two rows are compared at the
  smaller of their scales, where each bucket is a union of buckets of the finer one. The rows of a
  group are added at its smallest scale, and under its largest zero threshold.
- Rows with different explicit bounds cannot be compared: what happened between them is unknown.
- A bucket that shrank without any other sign shows a restart: the last row counts whole.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from thermocline.query.series.samples import Floats, Ints

BUCKET = pa.struct(
    [
        pa.field("lower", pa.float64()),
        pa.field("upper", pa.float64()),
        pa.field("count", pa.float64()),
        pa.field("scale", pa.int32()),
    ]
)
"""A bucket holds values above `lower` up to `upper`; `scale` is null for explicit bounds."""

EXPLICIT, POSITIVE, ZERO, NEGATIVE = 0, 1, 2, 3
_SHIFT_MAX = 62


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """One row for each bucket that gained: its group, its kind, where it is, and how much.

    `layout` is the number of the bounds of an explicit histogram, else the scale; `place` is the
    bucket's index in them. `thresholds` is the zero threshold that applies to the group.
    """

    groups: Ints
    kinds: Ints
    layouts: Ints
    places: Ints
    thresholds: Floats
    counts: Floats

    def __len__(self) -> int:
        return len(self.groups)


@dataclass(slots=True)
class Layouts:
    """The lists of bounds that occur, numbered; equal lists have one number."""

    bounds: list[Floats] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def number_rows(self, lists: pa.ListArray) -> Ints:
        """Return the number of each row's bounds; -1 for a row without bounds."""
        offsets = lists.offsets.to_numpy().astype(np.int64)
        flat = lists.values.to_numpy(zero_copy_only=False)
        valid = lists.is_valid().to_numpy(zero_copy_only=False)
        found = np.full(len(lists), -1, dtype=np.int64)
        for row in np.flatnonzero(valid):
            some = flat[offsets[row] : offsets[row + 1]]
            key = some.tobytes()
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self.bounds)
                self.bounds.append(np.array(some, dtype=np.float64))
            found[row] = number
        return found


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs, one row each: the group it adds to, its last row, and the row before it or -1."""

    groups: Ints
    lasts: Ints
    firsts: Ints


def gained_in_runs(rows: pa.Table, runs: Runs, layouts: Layouts) -> BucketCounts:
    """Return what the buckets gained in each run; `rows` has the columns of the table."""
    if not len(runs.groups):
        return _concat([])
    used, places = np.unique(np.concatenate((runs.lasts, runs.firsts)), return_inverse=True)
    if len(used) and used[0] == -1:
        used, places = used[1:], places - 1
    some = rows.take(pa.array(used)).combine_chunks()
    numbers = layouts.number_rows(_lists(some, "bounds", pa.float64()))
    entries = _entries_of(some, numbers)
    count = len(runs.groups)
    lasts, firsts = places[:count], places[count:]
    is_comparable = (firsts < 0) | (numbers[lasts] == numbers[firsts])
    lasts, firsts = lasts[is_comparable], firsts[is_comparable]
    run_groups = runs.groups[is_comparable]
    count = len(run_groups)
    plain = _add_sign(entries, lasts, np.arange(count), 1.0)
    has_first = np.flatnonzero(firsts >= 0)
    before = _add_sign(entries, firsts[has_first], has_first, -1.0)
    both = _merge(_concat([plain, before]))
    shrunk = np.unique(both.groups[both.counts < 0])
    if len(shrunk):
        keep = ~np.isin(both.groups, shrunk)
        whole = _pick(plain, np.isin(plain.groups, shrunk))
        both = _merge(_concat([_pick(both, keep), whole]))
    both = _pick(both, both.counts > 0)
    return BucketCounts(
        run_groups[both.groups],
        both.kinds,
        both.layouts,
        both.places,
        both.thresholds,
        both.counts,
    )


def merge_groups(parts: list[BucketCounts]) -> BucketCounts:
    """Return the buckets of all parts, those of one group and place added together."""
    return _merge(_concat(parts))


def list_buckets(found: BucketCounts, layouts: Layouts, groups: int) -> pa.Array:
    """Return the buckets of each group, from the lowest up, as lists of `BUCKET`."""
    lower, upper, scales, is_explicit = _edges(found, layouts)
    order = np.lexsort((upper, lower, found.groups))
    sizes = np.bincount(found.groups, minlength=groups)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    fields = [
        pa.array(lower[order]),
        pa.array(upper[order]),
        pa.array(found.counts[order]),
        pa.array(scales[order].astype(np.int32), mask=is_explicit[order]),
    ]
    items = pa.StructArray.from_arrays(fields, fields=list(BUCKET))
    return pa.ListArray.from_arrays(pa.array(offsets), items)


def _edges(
    found: BucketCounts, layouts: Layouts
) -> tuple[Floats, Floats, Ints, npt.NDArray[np.bool_]]:
    """Return lower and upper bounds, scales, and which buckets are explicit."""
    is_explicit = found.kinds == EXPLICIT
    lower = np.zeros(len(found))
    upper = np.zeros(len(found))
    for number in np.unique(found.layouts[is_explicit]):
        bounds = np.concatenate(([-np.inf], layouts.bounds[number], [np.inf]))
        mine = is_explicit & (found.layouts == number)
        lower[mine] = bounds[found.places[mine]]
        upper[mine] = bounds[found.places[mine] + 1]
    scales = np.where(is_explicit, 0, found.layouts)
    width = np.exp2(-scales.astype(np.float64))
    with np.errstate(over="ignore"):
        near = np.exp2(found.places * width)
        far = np.exp2((found.places + 1) * width)
    near = np.maximum(near, found.thresholds)
    for kind, low, high in (
        (POSITIVE, near, far),
        (NEGATIVE, -far, -near),
        (ZERO, -found.thresholds, found.thresholds),
    ):
        mine = found.kinds == kind
        lower[mine], upper[mine] = low[mine], high[mine]
    return lower, upper, scales, is_explicit


def _entries_of(rows: pa.Table, numbers: Ints) -> BucketCounts:
    """Return every bucket with a count; the group of an entry is the number of its row."""
    counts = _lists(rows, "bucket_counts", pa.int64())
    parts = [_expand(counts, EXPLICIT, numbers, None, None)]
    scales = _ints(rows, "scale")
    thresholds = _floats(rows, "zero_threshold")
    for name, kind in (("positive", POSITIVE), ("negative", NEGATIVE)):
        offsets = _ints(rows, f"{name}_offset")
        lists = _lists(rows, f"{name}_counts", pa.int64())
        parts.append(_expand(lists, kind, scales, offsets, thresholds))
    zeros = _floats(rows, "zero_count")
    has_scale = rows.column("scale").is_valid().to_numpy() if "scale" in rows.column_names else None
    at = np.flatnonzero(zeros > 0) if has_scale is None else np.flatnonzero((zeros > 0) & has_scale)
    parts.append(
        BucketCounts(
            at,
            np.full(len(at), ZERO, dtype=np.int64),
            scales[at],
            np.zeros(len(at), dtype=np.int64),
            thresholds[at],
            zeros[at],
        )
    )
    return _concat(parts)


def _expand(
    lists: pa.ListArray, kind: int, layouts: Ints, offsets: Ints | None, thresholds: Floats | None
) -> BucketCounts:
    ends = lists.offsets.to_numpy().astype(np.int64)
    sizes = np.diff(ends)
    rows = np.repeat(np.arange(len(lists), dtype=np.int64), sizes)
    inside = np.arange(ends[0], ends[-1]) - np.repeat(ends[:-1], sizes) if len(rows) else rows
    counts = lists.values.to_numpy(zero_copy_only=False)[ends[0] : ends[-1]].astype(np.float64)
    has = counts > 0
    rows, inside, counts = rows[has], inside[has], counts[has]
    places = inside if offsets is None else inside + offsets[rows]
    limits = np.zeros(len(rows)) if thresholds is None else thresholds[rows]
    kinds = np.full(len(rows), kind, dtype=np.int64)
    return BucketCounts(rows, kinds, layouts[rows], places, limits, counts)


def _lists(rows: pa.Table, name: str, kind: pa.DataType) -> pa.ListArray:
    if name not in rows.column_names:
        return pa.nulls(rows.num_rows, pa.list_(kind))
    column = rows.column(name).combine_chunks()
    return column.cast(pa.list_(kind)) if column.type != pa.list_(kind) else column


def _ints(rows: pa.Table, name: str) -> Ints:
    if name not in rows.column_names:
        return np.zeros(rows.num_rows, dtype=np.int64)
    return rows.column(name).fill_null(0).to_numpy().astype(np.int64)


def _floats(rows: pa.Table, name: str) -> Floats:
    if name not in rows.column_names:
        return np.zeros(rows.num_rows)
    return rows.column(name).fill_null(0).to_numpy().astype(np.float64)


def _add_sign(entries: BucketCounts, rows: Ints, groups: Ints, sign: float) -> BucketCounts:
    """Return the entries of these rows as entries of these groups, with a sign."""
    order = np.argsort(entries.groups, kind="stable")
    sorted_rows = entries.groups[order]
    first = np.searchsorted(sorted_rows, rows, "left")
    sizes = np.searchsorted(sorted_rows, rows, "right") - first
    at = order[_ranges(first, sizes)]
    picked = _pick(entries, at)
    return BucketCounts(
        np.repeat(groups, sizes),
        picked.kinds,
        picked.layouts,
        picked.places,
        picked.thresholds,
        picked.counts * sign,
    )


def _ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return the numbers from each start, as many as its size, one range after the other."""
    if not len(starts):
        return np.zeros(0, dtype=np.int64)
    before = np.cumsum(sizes) - sizes
    return np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)


def _pick(found: BucketCounts, which: npt.NDArray[np.generic]) -> BucketCounts:
    return BucketCounts(
        found.groups[which],
        found.kinds[which],
        found.layouts[which],
        found.places[which],
        found.thresholds[which],
        found.counts[which],
    )


def _concat(parts: list[BucketCounts]) -> BucketCounts:
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return BucketCounts(none, none, none, none, np.zeros(0), np.zeros(0))
    return BucketCounts(
        np.concatenate([one.groups for one in parts]),
        np.concatenate([one.kinds for one in parts]),
        np.concatenate([one.layouts for one in parts]),
        np.concatenate([one.places for one in parts]),
        np.concatenate([one.thresholds for one in parts]),
        np.concatenate([one.counts for one in parts]),
    )


def _merge(found: BucketCounts) -> BucketCounts:
    """Return one entry for each group and bucket, at the group's smallest scale."""
    if not len(found):
        return found
    kinds, layouts, places = found.kinds, found.layouts, found.places
    thresholds = found.thresholds
    scaled = kinds != EXPLICIT
    if scaled.any():
        count = int(found.groups.max()) + 1
        least = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(least, found.groups[scaled], layouts[scaled])
        largest = np.zeros(count)
        np.maximum.at(largest, found.groups[scaled], thresholds[scaled])
        target = np.where(scaled, least[found.groups], layouts)
        shifts = np.where(scaled, np.minimum(layouts - target, _SHIFT_MAX), 0)
        places = np.where(scaled & (kinds != ZERO), places >> shifts, places)
        layouts = target
        thresholds = np.where(scaled, largest[found.groups], thresholds)
        # A bucket that ends at or below the zero threshold is a part of the zero bucket.
        with np.errstate(over="ignore"):
            tops = np.exp2((places + 1) * np.exp2(-layouts.astype(np.float64)))
        is_zero = scaled & (kinds != ZERO) & (tops <= thresholds)
        kinds = np.where(is_zero, ZERO, kinds)
        places = np.where(is_zero, 0, places)
    order = np.lexsort((places, layouts, kinds, found.groups))
    groups, kinds, layouts, places = (one[order] for one in (found.groups, kinds, layouts, places))
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (
        (groups[1:] != groups[:-1])
        | (kinds[1:] != kinds[:-1])
        | (layouts[1:] != layouts[:-1])
        | (places[1:] != places[:-1])
    )
    starts = np.flatnonzero(is_new)
    return BucketCounts(
        groups[starts],
        kinds[starts],
        layouts[starts],
        places[starts],
        thresholds[order][starts],
        np.add.reduceat(found.counts[order], starts),
    )
