"""Quantiles and fractions of classic histograms: series of buckets with their bounds in `le`.

In:   a vector of cumulative buckets
Out:  a vector with one series for each histogram

- The buckets of one histogram share all labels but `le`. All steps at which a histogram has the
  same buckets are computed at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from thermocline.promql.labels import BUCKET_BOUND, NAME, Labels, drop_labels, value_of
from thermocline.promql.notes import Notes
from thermocline.promql.values import Bools, Floats, Ints, SeriesVector, empty_vector, make_vector

_SMALL_DELTA = 1e-12
_LE = frozenset({BUCKET_BOUND})


@dataclass(frozen=True, slots=True)
class _Buckets:
    """The cumulative counts of a histogram (bounds by steps) at these steps; bounds rise."""

    number: int
    steps: Ints
    bounds: Floats
    counts: Floats


def parse_bound(text: str) -> float | None:
    """Return the bound in a label; None when it is not a number."""
    if text.strip() != text or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _histograms(vector: SeriesVector, notes: Notes) -> tuple[list[Labels], Bools, list[_Buckets]]:
    """Return the labels of all histograms, where each has a bucket, and their buckets."""
    members: dict[Labels, list[tuple[float, int]]] = {}
    for place, labels in enumerate(vector.labels):
        text = value_of(labels, BUCKET_BOUND)
        bound = parse_bound(text)
        if bound is None:
            name = value_of(labels, NAME)
            about = f' for metric name "{name}"' if name else ""
            notes.warn(f'bucket label "le" is missing or has a malformed value of "{text}"{about}')
            continue
        members.setdefault(drop_labels(labels, _LE), []).append((bound, place))
    has = np.zeros((len(members), vector.has.shape[1]), dtype=bool)
    found: list[_Buckets] = []
    for number, buckets in enumerate(members.values()):
        buckets.sort()
        places = [place for _, place in buckets]
        present = vector.has[places]
        has[number] = present.any(axis=0)
        bounds = np.array([bound for bound, _ in buckets])
        for steps, chosen in _patterns(present):
            kept = bounds[chosen]
            rows = vector.values[np.array(places)[chosen]][:, steps]
            starts = np.flatnonzero(np.append(True, kept[1:] != kept[:-1]))
            summed = np.add.reduceat(rows, starts, axis=0)
            found.append(_Buckets(number, steps, kept[starts], summed))
    return list(members), has, found


def _patterns(present: Bools) -> Iterator[tuple[Ints, Ints]]:
    """Yield the steps that have the same buckets, and the places of these buckets."""
    if present.all():
        yield np.arange(present.shape[1]), np.arange(len(present))
        return
    patterns, which = np.unique(present, axis=1, return_inverse=True)
    which = which.reshape(-1)
    for number in range(patterns.shape[1]):
        places = np.flatnonzero(patterns[:, number])
        if len(places):
            yield np.flatnonzero(which == number), places


def _evaluate(
    vector: SeriesVector, notes: Notes, compute: Callable[[_Buckets], Floats]
) -> SeriesVector:
    labels, has, histograms = _histograms(vector, notes)
    if not labels:
        return empty_vector(vector.values.shape[1])
    values = np.full(has.shape, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        for one in histograms:
            values[one.number, one.steps] = compute(one)
    return make_vector(labels, values, has, drops=True)


def histogram_quantile(vector: SeriesVector, quantiles: Floats, notes: Notes) -> SeriesVector:
    """Return a quantile of each histogram, a number for each step."""
    odd = np.unique(quantiles[~((quantiles >= 0) & (quantiles <= 1))])
    for quantile in odd:
        notes.check_quantile(float(quantile))

    def compute(one: _Buckets) -> Floats:
        return _quantile_of(one, quantiles[one.steps], notes)

    return _evaluate(vector, notes, compute)


def _quantile_of(one: _Buckets, quantiles: Floats, notes: Notes) -> Floats:
    bounds, steps = one.bounds, len(one.steps)
    found = np.full(steps, np.nan)
    if len(bounds) >= 2 and bounds[-1] == np.inf:
        counts = _force_monotonic(one.counts, notes)
        total = counts[-1]
        rank = np.clip(quantiles, 0, 1) * total
        place = (counts[:-1] < rank).sum(axis=0)
        at = np.arange(steps)
        inner = np.minimum(place, len(bounds) - 2)
        upper = bounds[inner]
        lower = np.where(inner > 0, bounds[inner - 1], 0.0)
        below = np.where(inner > 0, counts[inner - 1, at], 0.0)
        linear = lower + (upper - lower) * ((rank - below) / (counts[inner, at] - below))
        found = np.where((inner == 0) & (bounds[0] <= 0), bounds[0], linear)
        found = np.where(place == len(bounds) - 1, bounds[-2], found)
        found = np.where((total == 0) | np.isnan(total), np.nan, found)
    found = np.where(quantiles < 0, -np.inf, np.where(quantiles > 1, np.inf, found))
    return np.where(np.isnan(quantiles), np.nan, found)


def _force_monotonic(counts: Floats, notes: Notes) -> Floats:
    """Return counts that never fall from bucket to bucket; tiny differences are ignored."""
    fixed = counts.copy()
    for row in range(1, len(fixed)):
        before, now = fixed[row - 1], fixed[row]
        gap = np.abs(before - now)
        is_tiny = gap <= _SMALL_DELTA * np.minimum(np.abs(before) + np.abs(now), 1.8e308)
        falls = (now < before) & ~is_tiny
        if falls.any():
            notes.info(
                "input to histogram_quantile needed to be fixed for monotonicity (see"
                " https://prometheus.io/docs/prometheus/latest/querying/functions/"
                "#histogram_quantile)"
            )
        fixed[row] = np.where(falls | is_tiny, before, now)
    return fixed


def histogram_fraction(
    vector: SeriesVector, lower: Floats, upper: Floats, notes: Notes
) -> SeriesVector:
    """Return which fraction of each histogram is between two values, numbers for each step."""

    def compute(one: _Buckets) -> Floats:
        if one.bounds[-1] != np.inf:
            return np.full(len(one.steps), np.nan)
        low, high = lower[one.steps], upper[one.steps]
        total = one.counts[-1]
        share = (_rank_of(one, high) - _rank_of(one, low)) / total
        share = np.where(low >= high, 0.0, share)
        return np.where((total == 0) | np.isnan(low) | np.isnan(high), np.nan, share)

    return _evaluate(vector, notes, compute)


def _rank_of(one: _Buckets, values: Floats) -> Floats:
    """Return how many observations of a histogram are below a value, for each step."""
    bounds, at = one.bounds, np.arange(len(one.steps))
    place = np.searchsorted(bounds, values, side="right")
    inner = np.minimum(place, len(bounds) - 1)
    first = 0.0 if bounds[0] > 0 else -np.inf
    lower = np.where(inner > 0, bounds[inner - 1], first)
    below = np.where(inner > 0, one.counts[inner - 1, at], 0.0)
    here, upper = one.counts[inner, at], bounds[inner]
    linear = below + (here - below) * (values - lower) / (upper - lower)
    rank = np.where(lower == -np.inf, here, linear)
    rank = np.where(upper == np.inf, below, rank)
    rank = np.where(values <= lower, below, rank)
    return np.where(place == len(bounds), one.counts[-1], rank)
