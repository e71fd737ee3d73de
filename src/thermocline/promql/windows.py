"""Functions of samples in windows of time: rates, sums, quantiles and regressions, in columns.

In:   samples of series, and the end of a window for each step
Out:  for each series and step a value, and whether there is one

- A window is open at its start and closed at its end.
- The places of all windows are found by one search over all series. A function is then one pass
  over the column of values for all windows (`reduceat`), or over the samples of a bounded number
  of windows at once (`_expand`).
- Sums that could lose digits, because a value is beyond 2**53 or the sums of many, are made
  exactly.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from thermocline.promql.values import Bools, Floats, Ints, SampleSet

_EXPANDED_MAX = 4_000_000
_EXACT_FROM = 2.0**50
_MS_PER_S = 1_000.0


@dataclass(frozen=True, slots=True)
class Windows:
    """For each series and step, in one column: the places of the samples of its window."""

    samples: SampleSet
    lows: Ints
    highs: Ints
    ends_ms: Ints
    times_ms: Ints
    range_ms: int
    steps: int

    @property
    def counts(self) -> Ints:
        """The number of samples of each window."""
        return self.highs - self.lows


Evaluated = tuple[Floats, Bools]
"""The value of each window, and whether it has one."""


def count_until(samples: SampleSet, times_ms: Ints) -> Ints:
    """Return for each series and time the place after its last sample at or before the time."""
    series = len(samples.labels)
    if not len(samples.times_ms):
        return np.zeros((series, len(times_ms)), np.int64)
    first = int(samples.times_ms.min())
    span = int(samples.times_ms.max()) - first + 2
    number = np.repeat(np.arange(series, dtype=np.int64), np.diff(samples.offsets))
    keys = number * span + (samples.times_ms - first + 1)
    asked = np.clip(times_ms - first + 1, 0, span - 1)
    wanted = np.arange(series, dtype=np.int64)[:, None] * span + asked[None, :]
    return np.searchsorted(keys, wanted.ravel(), side="right").reshape(wanted.shape)


def find_windows(samples: SampleSet, ends_ms: Ints, times_ms: Ints, range_ms: int) -> Windows:
    """Return the windows of this length that end at these times, for every series."""
    highs = count_until(samples, ends_ms)
    lows = count_until(samples, ends_ms - range_ms)
    series = len(samples.labels)
    return Windows(
        samples,
        lows.ravel(),
        highs.ravel(),
        np.tile(ends_ms, series),
        np.tile(times_ms, series),
        range_ms,
        len(ends_ms),
    )


def _reduce(ufunc: np.ufunc, values: np.ndarray, lows: Ints, highs: Ints) -> np.ndarray:
    """Return the reduction of each stretch of a column; every stretch has a value."""
    padded = np.append(values, values.dtype.type(0))
    pairs = np.empty(2 * len(lows), np.int64)
    pairs[0::2], pairs[1::2] = lows, highs
    with np.errstate(invalid="ignore", over="ignore"):
        return ufunc.reduceat(padded, pairs)[::2] if len(lows) else values[:0]


def _expand(lows: Ints, counts: Ints) -> Iterator[tuple[slice, Ints, Ints, Ints]]:
    """Yield groups of windows: which, the places of their samples, group numbers and starts."""
    ends = np.cumsum(counts)
    first = 0
    while first < len(lows):
        base = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, base + _EXPANDED_MAX, side="right")))
        part = slice(first, last)
        sizes = counts[part]
        starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
        group = np.repeat(np.arange(last - first, dtype=np.int64), sizes)
        places = np.arange(int(sizes.sum()), dtype=np.int64) - starts[group] + lows[part][group]
        yield part, places, group, starts
        first = last


def exact_sum(values: Floats) -> float:
    """Return the sum of values, exactly rounded; infinite and NaN values are added as floats do."""
    finite = values[np.isfinite(values)]
    if len(finite) != len(values):
        return float(np.sum(values[~np.isfinite(values)]))
    try:
        return math.fsum(finite)
    except OverflowError:
        return math.fsum(finite * 2.0**-64) * 2.0**64


def exact_mean(values: Floats) -> float:
    """Return the mean of values; it does not overflow where their sum does."""
    total = exact_sum(values)
    if math.isinf(total) and np.isfinite(values).all():
        return math.fsum(values * 2.0**-64) / len(values) * 2.0**64
    return total / len(values)


def needs_exact_sum(values: Floats) -> bool:
    """Tell whether adding the values as they come could lose digits or overflow."""
    finite = np.abs(values[np.isfinite(values)])
    return bool(len(finite)) and bool(finite.max() >= _EXACT_FROM)


def _with_samples(
    windows: Windows, compute: Callable[[Ints, Ints], Floats], *, least: int = 1
) -> Evaluated:
    """Return what `compute` finds for the windows that have at least so many samples."""
    has = windows.counts >= least
    values = np.zeros(len(has))
    if has.any():
        values[has] = compute(windows.lows[has], windows.highs[has])
    return values, has


def sum_over_time(windows: Windows) -> Evaluated:
    """Return the sum of each window."""
    values = windows.samples.values

    def compute(lows: Ints, highs: Ints) -> Floats:
        if needs_exact_sum(values):
            pairs = zip(lows, highs, strict=True)
            return np.array([exact_sum(values[low:high]) for low, high in pairs])
        return _reduce(np.add, values, lows, highs)

    return _with_samples(windows, compute)


def avg_over_time(windows: Windows) -> Evaluated:
    """Return the mean of each window."""
    values = windows.samples.values

    def compute(lows: Ints, highs: Ints) -> Floats:
        if needs_exact_sum(values):
            pairs = zip(lows, highs, strict=True)
            return np.array([exact_mean(values[low:high]) for low, high in pairs])
        return _reduce(np.add, values, lows, highs) / (highs - lows)

    return _with_samples(windows, compute)


def _reducing(ufunc: np.ufunc) -> Callable[[Windows], Evaluated]:
    return lambda windows: _with_samples(
        windows, lambda lows, highs: _reduce(ufunc, windows.samples.values, lows, highs)
    )


def count_over_time(windows: Windows) -> Evaluated:
    """Return the number of samples of each window."""
    return windows.counts.astype(np.float64), windows.counts > 0


def present_over_time(windows: Windows) -> Evaluated:
    """Return 1 for each window with a sample."""
    return np.ones(len(windows.counts)), windows.counts > 0


def last_over_time(windows: Windows) -> Evaluated:
    """Return the last value of each window."""
    return _with_samples(windows, lambda _, highs: windows.samples.values[highs - 1])


def first_over_time(windows: Windows) -> Evaluated:
    """Return the first value of each window."""
    return _with_samples(windows, lambda lows, _: windows.samples.values[lows])


def _time_of_last(windows: Windows) -> Evaluated:
    return _with_samples(windows, lambda _, highs: windows.samples.times_ms[highs - 1] / _MS_PER_S)


def _time_of_first(windows: Windows) -> Evaluated:
    return _with_samples(windows, lambda lows, _: windows.samples.times_ms[lows] / _MS_PER_S)


def _time_of_extreme(ufunc: np.ufunc) -> Callable[[Windows], Evaluated]:
    """Return the function of the last time at which the extreme value of a window was seen."""

    def evaluate(windows: Windows) -> Evaluated:
        values, times = windows.samples.values, windows.samples.times_ms

        def compute(lows: Ints, highs: Ints) -> Floats:
            found = np.zeros(len(lows))
            for part, places, group, starts in _expand(lows, highs - lows):
                chosen = values[places]
                extreme = ufunc.reduceat(chosen, starts)[group]
                is_extreme = (chosen == extreme) | np.isnan(extreme)
                when = np.where(is_extreme, times[places], -(1 << 62))
                found[part] = np.maximum.reduceat(when, starts) / _MS_PER_S
            return found

        return _with_samples(windows, compute)

    return evaluate


def _count_marked(windows: Windows, is_change: Bools) -> Evaluated:
    """Return how many samples of each window, but for its first, are marked."""
    total = np.concatenate(([0], np.cumsum(is_change)))
    return _with_samples(
        windows, lambda lows, highs: (total[highs] - total[lows + 1]).astype(np.float64)
    )


def changes(windows: Windows) -> Evaluated:
    """Return how often the value changed within each window."""
    values = windows.samples.values
    differs = np.zeros(len(values), dtype=bool)
    both_nan = np.isnan(values[1:]) & np.isnan(values[:-1])
    differs[1:] = (values[1:] != values[:-1]) & ~both_nan
    return _count_marked(windows, differs)


def resets(windows: Windows) -> Evaluated:
    """Return how often the value fell within each window."""
    values = windows.samples.values
    falls = np.zeros(len(values), dtype=bool)
    falls[1:] = values[1:] < values[:-1]
    return _count_marked(windows, falls)


def extrapolate(windows: Windows, *, is_counter: bool, is_rate: bool) -> Evaluated:
    """Return what a series gained in each window, extrapolated to the ends of the window."""
    times, values = windows.samples.times_ms, windows.samples.values

    def compute(lows: Ints, highs: Ints) -> Floats:
        first, last = values[lows], values[highs - 1]
        gained = last - first
        if is_counter:
            gained = gained + _lost_at_resets(values, lows, highs)
        ends = windows.ends_ms[windows.counts >= 2]
        first_ms, last_ms = times[lows], times[highs - 1]
        to_start = (first_ms - (ends - windows.range_ms)) / _MS_PER_S
        to_end = (ends - last_ms) / _MS_PER_S
        sampled = (last_ms - first_ms) / _MS_PER_S
        between = sampled / (highs - lows - 1)
        threshold = between * 1.1
        to_start = np.where(to_start >= threshold, between / 2, to_start)
        if is_counter:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                to_zero = sampled * (first / gained)
            is_sooner = (gained > 0) & (first >= 0) & (to_zero < to_start)
            to_start = np.where(is_sooner, to_zero, to_start)
        to_end = np.where(to_end >= threshold, between / 2, to_end)
        factor = (sampled + to_start + to_end) / sampled
        if is_rate:
            factor = factor / (windows.range_ms / _MS_PER_S)
        return gained * factor

    with np.errstate(invalid="ignore", over="ignore"):
        return _with_samples(windows, compute, least=2)


def _lost_at_resets(values: Floats, lows: Ints, highs: Ints) -> Floats:
    """Return the sum of the values from which a counter fell to a lower one, by window."""
    lost = np.zeros(len(values))
    lost[1:] = np.where(values[1:] < values[:-1], values[:-1], 0.0)
    if not lost.any():
        return np.zeros(len(lows))
    found: Floats = _reduce(np.add, lost, lows + 1, highs)
    return found


def instant_change(windows: Windows, *, is_rate: bool) -> Evaluated:
    """Return the change between the last two samples of each window, by second if `is_rate`."""
    times, values = windows.samples.times_ms, windows.samples.values

    def compute(lows: Ints, highs: Ints) -> Floats:  # noqa: ARG001
        last, before = values[highs - 1], values[highs - 2]
        change = last - before
        if not is_rate:
            return change
        took_s = (times[highs - 1] - times[highs - 2]) / _MS_PER_S
        return np.where(last < before, last, change) / took_s

    with np.errstate(invalid="ignore"):
        return _with_samples(windows, compute, least=2)


def _deviation(root: bool) -> Callable[[Windows], Evaluated]:
    def evaluate(windows: Windows) -> Evaluated:
        values = windows.samples.values

        def compute(lows: Ints, highs: Ints) -> Floats:
            found = np.zeros(len(lows))
            for part, places, group, starts in _expand(lows, highs - lows):
                chosen = values[places]
                count = (highs - lows)[part]
                away = chosen - chosen[starts][group]
                mean = np.add.reduceat(away, starts) / count
                found[part] = np.add.reduceat((away - mean[group]) ** 2, starts) / count
            return np.sqrt(found) if root else found

        with np.errstate(invalid="ignore", over="ignore"):
            return _with_samples(windows, compute)

    return evaluate


def quantile_over_time(windows: Windows, quantiles: Floats) -> Evaluated:
    """Return the quantile of each window; `quantiles` has one for each step."""
    values = windows.samples.values
    asked = np.tile(quantiles, len(windows.samples.labels))[windows.counts >= 1]

    def compute(lows: Ints, highs: Ints) -> Floats:
        found = np.zeros(len(lows))
        for part, places, group, starts in _expand(lows, highs - lows):
            chosen = values[places]
            order = np.lexsort((np.where(np.isnan(chosen), -np.inf, chosen), group))
            found[part] = pick_quantiles(chosen[order], starts, (highs - lows)[part], asked[part])
        return found

    return _with_samples(windows, compute)


def pick_quantiles(ordered: Floats, starts: Ints, counts: Ints, quantiles: Floats) -> Floats:
    """Return the quantile of each stretch of sorted values, between the two nearest values."""
    with np.errstate(invalid="ignore"):
        inside = np.clip(np.nan_to_num(quantiles, nan=0.0), 0, 1)
        rank = inside * (counts - 1)
        low = np.floor(rank).astype(np.int64)
        high = np.minimum(low + 1, counts - 1)
        weight = rank - low
        found = ordered[starts + low] * (1 - weight) + ordered[starts + high] * weight
        found = np.where(quantiles < 0, -np.inf, np.where(quantiles > 1, np.inf, found))
    return np.where(np.isnan(quantiles), np.nan, found)


def mad_over_time(windows: Windows) -> Evaluated:
    """Return the median absolute deviation of each window."""
    values = windows.samples.values

    def compute(lows: Ints, highs: Ints) -> Floats:
        found = np.zeros(len(lows))
        for part, places, group, starts in _expand(lows, highs - lows):
            counts, half = (highs - lows)[part], np.full(part.stop - part.start, 0.5)
            chosen = values[places]
            ordered = chosen[np.lexsort((chosen, group))]
            away = np.abs(chosen - pick_quantiles(ordered, starts, counts, half)[group])
            found[part] = pick_quantiles(away[np.lexsort((away, group))], starts, counts, half)
        return found

    return _with_samples(windows, compute)


def _fit_lines(windows: Windows, from_ms: Ints) -> tuple[Floats, Floats, Bools]:
    """Return slope and intercept of the line through each window; x is 0 at `from_ms`."""
    times, values = windows.samples.times_ms, windows.samples.values
    has = windows.counts >= 2
    lows, counts = windows.lows[has], windows.counts[has]
    slopes, intercepts = np.zeros(len(has)), np.zeros(len(has))
    slope, intercept = np.zeros(len(lows)), np.zeros(len(lows))
    for part, places, group, starts in _expand(lows, counts):
        n = counts[part].astype(np.float64)
        x = (times[places] - from_ms[has][part][group]) / _MS_PER_S
        y = values[places]
        mean_x, mean_y = np.add.reduceat(x, starts) / n, np.add.reduceat(y, starts) / n
        away_x, away_y = x - mean_x[group], y - mean_y[group]
        slope[part] = np.add.reduceat(away_x * away_y, starts) / np.add.reduceat(
            away_x * away_x, starts
        )
        intercept[part] = mean_y - slope[part] * mean_x
        low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
        is_flat = low == high
        slope[part] = np.where(is_flat, np.where(np.isinf(low), np.nan, 0.0), slope[part])
        intercept[part] = np.where(is_flat, np.where(np.isinf(low), np.nan, low), intercept[part])
    slopes[has], intercepts[has] = slope, intercept
    return slopes, intercepts, has


def deriv(windows: Windows) -> Evaluated:
    """Return the slope of the line through each window, by second."""
    times = np.append(windows.samples.times_ms, 0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        slopes, _, has = _fit_lines(windows, times[windows.lows])
    return slopes, has


def predict_linear(windows: Windows, seconds: Floats) -> Evaluated:
    """Return the value so many seconds after each step, on the line through its window."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        slopes, intercepts, has = _fit_lines(windows, windows.times_ms)
        ahead = np.tile(seconds, len(windows.samples.labels))
        return slopes * ahead + intercepts, has


def smooth(windows: Windows, factor: Floats, trend: Floats) -> Evaluated:
    """Return the last value of each window after double exponential smoothing."""
    values = windows.samples.values
    series = len(windows.samples.labels)
    has = windows.counts >= 2
    sf, tf = np.tile(factor, series)[has], np.tile(trend, series)[has]

    def compute(lows: Ints, highs: Ints) -> Floats:
        counts = highs - lows
        level = before = values[lows]
        slope = values[lows + 1] - level
        for place in range(1, int(counts.max())):
            goes_on = counts > place
            at = np.minimum(lows + place, highs - 1)
            if place > 1:
                slope = np.where(goes_on, tf * (level - before) + (1 - tf) * slope, slope)
            smoothed = sf * values[at] + (1 - sf) * (level + slope)
            before = np.where(goes_on, level, before)
            level = np.where(goes_on, smoothed, level)
        return level

    return _with_samples(windows, compute, least=2)


WINDOW_FUNCTIONS: dict[str, Callable[[Windows], Evaluated]] = {
    "sum_over_time": sum_over_time,
    "avg_over_time": avg_over_time,
    "min_over_time": _reducing(np.fmin),
    "max_over_time": _reducing(np.fmax),
    "count_over_time": count_over_time,
    "present_over_time": present_over_time,
    "last_over_time": last_over_time,
    "first_over_time": first_over_time,
    "stddev_over_time": _deviation(root=True),
    "stdvar_over_time": _deviation(root=False),
    "mad_over_time": mad_over_time,
    "changes": changes,
    "resets": resets,
    "deriv": deriv,
    "rate": lambda windows: extrapolate(windows, is_counter=True, is_rate=True),
    "increase": lambda windows: extrapolate(windows, is_counter=True, is_rate=False),
    "delta": lambda windows: extrapolate(windows, is_counter=False, is_rate=False),
    "irate": lambda windows: instant_change(windows, is_rate=True),
    "idelta": lambda windows: instant_change(windows, is_rate=False),
    "ts_of_last_over_time": _time_of_last,
    "ts_of_first_over_time": _time_of_first,
    "ts_of_max_over_time": _time_of_extreme(np.fmax),
    "ts_of_min_over_time": _time_of_extreme(np.fmin),
}
"""Functions of one range vector without other arguments."""
