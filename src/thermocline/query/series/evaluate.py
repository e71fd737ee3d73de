"""Evaluates a function of series: samples in slices of time become one row for a series and window.

In:   a `SeriesFunction`; slices of time, and a function that reads the samples of a slice
Out:  an Arrow table: window, series, what the series did in it, and the labels of the series

- Slices are read in order of time, so memory holds two slices, the last sample of every series,
  and the result. The result has a limit. One slice is read while another is evaluated.
- A sample counts in the window that holds its time. Windows begin where `time_bucket` begins them.
- How the time is cut into slices does not change the result.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from thermocline.errors import Overloaded
from thermocline.query.series.buckets import (
    BUCKET,
    BucketCounts,
    Layouts,
    Runs,
    gained_in_runs,
    list_buckets,
    merge_groups,
)
from thermocline.query.series.samples import (
    STEP,
    WHOLE,
    Bools,
    Floats,
    Ints,
    Samples,
    Steps,
    last_places,
    measure_differences,
    measure_durations,
    measure_steps,
    series_order,
)

RESULT_ROWS_MAX = 2_000_000
RESULT_BUCKETS_MAX = 8_000_000
ORIGIN_NS = 946_857_600 * 10**9
"""Where windows are counted from, as `time_bucket` does: Monday, 2000-01-03."""

RATE, INCREASE, DELTA, IRATE = "rate", "increase", "delta", "irate"
FUNCTIONS = (RATE, INCREASE, DELTA, IRATE)
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class SeriesFunction:
    """What to compute: the function, its window and lookback, and of which kind of table.

    With `wants_buckets`, what each bucket of a histogram gained is computed as well.
    """

    name: str
    window_ns: int
    lookback_ns: int
    is_histogram: bool = False
    wants_buckets: bool = False

    def window_of(self, time_ns: int) -> int:
        """Return the number of the window that holds a time."""
        return (time_ns - ORIGIN_NS) // self.window_ns

    def start_of(self, window: int) -> int:
        """Return the first nanosecond of a window."""
        return window * self.window_ns + ORIGIN_NS


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A half-open stretch of time."""

    low_ns: int
    high_ns: int


@dataclass(slots=True)
class _Windows:
    """Rows of the result, in columns: series by its number, window, and values."""

    series: Ints
    windows: Ints
    counts: Ints
    known: Ints
    increases: Floats
    sums: Floats
    rates: Floats

    def __len__(self) -> int:
        return len(self.series)


@dataclass(slots=True)
class SeriesNumbers:
    """The series that occur, numbered from 0, and when each was last seen."""

    ids: list[int] = field(default_factory=list)
    last_seen_ns: dict[int, int] = field(default_factory=dict)
    _numbers: dict[int, int] = field(default_factory=dict)

    def number_rows(self, ids: pa.ChunkedArray) -> Ints:
        """Return the number of each row's series."""
        if not len(ids):
            return np.zeros(0, dtype=np.int64)
        encoded = ids.combine_chunks().dictionary_encode()
        numbers = np.array(
            [self._number(one) for one in encoded.dictionary.to_pylist()], dtype=np.int64
        )
        return numbers[encoded.indices.to_numpy()]

    def _number(self, series_id: int) -> int:
        number = self._numbers.get(series_id)
        if number is None:
            number = self._numbers[series_id] = len(self.ids)
            self.ids.append(series_id)
        return number


@dataclass(frozen=True, slots=True)
class SeriesResult:
    """The rows of a result without labels, and its series."""

    rows: pa.Table
    series: SeriesNumbers


def evaluate_series(
    function: SeriesFunction,
    slices: Sequence[TimeSlice],
    read: Callable[[TimeSlice], pa.Table],
    windows_from: int | None,
) -> SeriesResult:
    """Return the rows of a function over all slices.

    `read` returns the samples of a slice with the columns `series_id`, `time_ns`, `start_ns`,
    `value`, `is_delta`, for histograms also `sum` and the columns of buckets. Windows before
    `windows_from` are context and get no row. `Overloaded` when the result passes its limit.
    """
    numbers = SeriesNumbers()
    layouts = Layouts()
    parts: list[_Windows] = []
    buckets: list[tuple[_Windows, BucketCounts]] = []
    total = held = 0
    for part, gained in _evaluate_slices(function, slices, read, windows_from, numbers, layouts):
        total, held = total + len(part), held + len(gained)
        if total > RESULT_ROWS_MAX or held > RESULT_BUCKETS_MAX:
            raise Overloaded(
                "the function has more rows than the limit",
                hint="compare ts, metric or service_name with constants, or widen the window",
                rows_max=RESULT_ROWS_MAX,
                buckets_max=RESULT_BUCKETS_MAX,
            )
        parts.append(part)
        buckets.append((part, gained))
    return SeriesResult(_join_parts(function, parts, buckets, numbers, layouts), numbers)


def _evaluate_slices(
    function: SeriesFunction,
    slices: Sequence[TimeSlice],
    read: Callable[[TimeSlice], pa.Table],
    windows_from: int | None,
    numbers: SeriesNumbers,
    layouts: Layouts,
) -> Iterator[tuple[_Windows, BucketCounts]]:
    before: pa.Table | None = None
    for part, fresh in _read_ahead(slices, read):
        if not fresh.num_rows:
            continue
        rows = fresh if before is None else pa.concat_tables([before, fresh])
        samples = _samples_of(rows, numbers)
        order = series_order(samples.series, samples.times_ns)
        samples = samples.take(order)
        windows = (samples.times_ns - ORIGIN_NS) // function.window_ns
        is_context = samples.times_ns < part.low_ns
        if windows_from is not None:
            is_context |= windows < windows_from
        measure = measure_differences if function.name == DELTA else measure_steps
        steps = measure(samples, function.lookback_ns)
        yield _summarize(function, rows, order, samples, steps, windows, is_context, layouts)
        places = last_places(samples)
        ends = samples.times_ns[places]
        for number, end in zip(samples.series[places].tolist(), ends.tolist(), strict=True):
            numbers.last_seen_ns[number] = end
        recent = places[ends >= part.high_ns - function.lookback_ns]
        before = rows.take(pa.array(order[recent])).combine_chunks()


def _read_ahead(
    slices: Sequence[TimeSlice], read: Callable[[TimeSlice], pa.Table]
) -> Iterator[tuple[TimeSlice, pa.Table]]:
    """Yield each slice with its rows; the next one is read meanwhile, in a second thread."""
    if len(slices) == 1:
        yield slices[0], read(slices[0])
        return
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = [reader.submit(read, part) for part in slices[:1]]
        for place, part in enumerate(slices):
            rows = coming.pop().result()
            coming += [reader.submit(read, one) for one in slices[place + 1 : place + 2]]
            yield part, rows


def _samples_of(rows: pa.Table, numbers: SeriesNumbers) -> Samples:
    return Samples(
        numbers.number_rows(rows.column("series_id")),
        rows.column("time_ns").to_numpy(),
        rows.column("start_ns").to_numpy(),
        rows.column("value").to_numpy(),
        rows.column("is_delta").to_numpy(),
    )


def _summarize(
    function: SeriesFunction,
    rows: pa.Table,
    order: Ints,
    samples: Samples,
    steps: Steps,
    windows: Ints,
    is_context: Bools,
    layouts: Layouts,
) -> tuple[_Windows, BucketCounts]:
    """Return one row for each series and window, and what its buckets gained."""
    is_new = np.ones(len(samples), dtype=bool)
    is_new[1:] = (samples.series[1:] != samples.series[:-1]) | (windows[1:] != windows[:-1])
    is_new[1:] |= is_context[1:] != is_context[:-1]
    starts = np.flatnonzero(is_new)
    chosen = ~is_context[starts]
    ends = np.append(starts[1:], len(samples)) - 1
    is_known = steps.kinds != 0
    increases = np.where(is_known, steps.increases, 0.0)
    none = np.zeros(int(chosen.sum()))
    sums = rates = none
    if function.is_histogram:
        sums = np.add.reduceat(_sum_steps(rows, order, steps), starts)[chosen]
    if function.name == IRATE:
        took = measure_durations(samples, steps, function.lookback_ns, ends) / _NS_PER_S
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = np.where(took > 0, steps.increases[ends] / took, np.nan)[chosen]
    found = _Windows(
        samples.series[starts][chosen],
        windows[starts][chosen],
        (ends - starts + 1)[chosen],
        np.add.reduceat(is_known.astype(np.int64), starts)[chosen],
        np.add.reduceat(increases, starts)[chosen],
        sums,
        rates,
    )
    if not (function.is_histogram and function.wants_buckets):
        return found, merge_groups([])
    group_of = np.cumsum(is_new) - 1
    numbers = np.cumsum(chosen) - 1
    runs = _find_runs(steps, group_of, chosen[group_of])
    sorted_runs = Runs(
        numbers[runs.groups], order[runs.lasts], np.where(runs.firsts < 0, -1, order[runs.firsts])
    )
    return found, gained_in_runs(rows, sorted_runs, layouts)


def _sum_steps(rows: pa.Table, order: Ints, steps: Steps) -> Floats:
    """Return what the sum of a histogram gained with each sample; 0 where it is unknown."""
    sums = rows.column("sum").fill_null(float("nan")).to_numpy()[order]
    gained = np.zeros(len(sums))
    gained[1:] = sums[1:] - sums[:-1]
    gained = np.where(steps.kinds == WHOLE, sums, np.where(steps.kinds == STEP, gained, 0.0))
    return np.nan_to_num(gained, nan=0.0)


def _find_runs(steps: Steps, group_of: Ints, is_chosen: Bools) -> Runs:
    """Return the runs of samples without a restart, each within one group.

    A run that begins with a step is compared with the sample before it, one that begins with an
    unknown sample with that sample, and one that begins with a whole value with nothing.
    """
    count = len(group_of)
    begins = np.ones(count, dtype=bool)
    begins[1:] = (group_of[1:] != group_of[:-1]) | (steps.kinds[1:] != STEP)
    starts = np.flatnonzero(begins)
    lasts = np.append(starts[1:], count) - 1
    kinds = steps.kinds[starts]
    firsts = np.where(kinds == WHOLE, -1, np.where(kinds == STEP, starts - 1, starts))
    kept = is_chosen[starts] & (lasts != firsts)
    return Runs(group_of[starts][kept], lasts[kept], firsts[kept])


def _join_parts(
    function: SeriesFunction,
    parts: list[_Windows],
    buckets: list[tuple[_Windows, BucketCounts]],
    numbers: SeriesNumbers,
    layouts: Layouts,
) -> pa.Table:
    """Return the rows of all slices as one table; a window that two slices share is one row."""
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0)])
        for name in ("series", "windows", "counts", "known", "increases", "sums", "rates")
    }
    series = columns["series"].astype(np.int64)
    windows = columns["windows"].astype(np.int64)
    order = np.lexsort((windows, series))  # stable: of equal rows, that of the later slice is last
    is_new = np.ones(len(order), dtype=bool)
    same = (series[order][1:] == series[order][:-1]) & (windows[order][1:] == windows[order][:-1])
    is_new[1:] = ~same
    starts = np.flatnonzero(is_new)
    ends = np.append(starts[1:], len(order)) - 1 if len(starts) else starts

    def total(name: str) -> npt.NDArray[Any]:
        values = columns[name][order]
        return np.add.reduceat(values, starts) if len(starts) else values[:0]

    known = total("known") > 0
    ids = np.array(numbers.ids, dtype=np.int64)[series[order][starts]]
    times_us = (windows[order][starts] * function.window_ns + ORIGIN_NS) // 1_000
    made: dict[str, pa.Array] = {
        "ts": pa.array(times_us, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "series_id": pa.array(ids),
        "samples": pa.array(total("counts").astype(np.int64)),
    }
    increases = total("increases")
    if function.name == IRATE:
        last = columns["rates"][order][ends] if len(ends) else np.zeros(0)
        made["rate"] = pa.array(last, mask=np.isnan(last))
    elif function.name == DELTA:
        made["delta"] = pa.array(increases, mask=~known)
    else:
        made["increase"] = pa.array(increases, mask=~known)
        made["rate"] = pa.array(increases / (function.window_ns / _NS_PER_S), mask=~known)
    if function.is_histogram and function.name in (RATE, INCREASE):
        made["sum_increase"] = pa.array(total("sums"), mask=~known)
        if function.wants_buckets:
            place_of = np.empty(len(order), dtype=np.int64)
            place_of[order] = np.cumsum(is_new) - 1
            made["histogram"] = _join_buckets(buckets, place_of, layouts, len(starts))
    return pa.table(made)


def _join_buckets(
    buckets: list[tuple[_Windows, BucketCounts]], place_of: Ints, layouts: Layouts, rows: int
) -> pa.Array:
    moved, first = [], 0
    for part, gained in buckets:
        groups = place_of[first + gained.groups]
        moved.append(
            BucketCounts(
                groups,
                gained.kinds,
                gained.layouts,
                gained.places,
                gained.thresholds,
                gained.counts,
            )
        )
        first += len(part)
    if not moved:
        return pa.nulls(rows, pa.list_(BUCKET))
    return list_buckets(merge_groups(moved), layouts, rows)


def add_labels(result: SeriesResult, labels: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows of a result with the labels of their series; `labels` has `series_id`."""
    places = pc.index_in(result.rows.column("series_id"), labels.column("series_id"))
    found = result.rows
    for name in names:
        found = found.append_column(name, labels.column(name).take(places))
    return found
