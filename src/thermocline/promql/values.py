"""The values of an evaluation: scalars, texts, vectors over steps, and samples of series.

In:   columns
Out:  frozen values; a vector is one row for each series and one column for each step

- A cell that is not `has` has no sample. NaN is a value like others.
- A sample set holds the samples of all series in one column, sorted by series and time. Samples
  that mark the end of a series (stale markers) are among them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from thermocline.promql.labels import Labels, drop_name, labels_text

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STALE_BITS = np.int64(0x7FF0_0000_0000_0002)
STALE = np.array([STALE_BITS]).view(np.float64)[0]
"""The NaN by which a sender says that a series has ended."""


def are_stale(values: Floats) -> Bools:
    """Return which values are stale markers."""
    return np.ascontiguousarray(values).view(np.int64) == STALE_BITS


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number for each step."""

    values: Floats


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    text: str


@dataclass(frozen=True, slots=True)
class SeriesVector:
    """A value for each series and step; `drops` says whose metric name goes at the end.

    `is_ordered` is set where the order of the series is the answer's order.
    """

    labels: list[Labels]
    values: Floats
    has: Bools
    drops: list[bool]
    is_ordered: bool = False

    def __len__(self) -> int:
        return len(self.labels)


def make_vector(
    labels: list[Labels], values: Floats, has: Bools, *, drops: bool | list[bool] = False
) -> SeriesVector:
    """Return a vector without the series that have no sample at any step."""
    flags = [drops] * len(labels) if isinstance(drops, bool) else drops
    kept = has.any(axis=1)
    if kept.all():
        return SeriesVector(labels, values, has, flags)
    places = np.flatnonzero(kept)
    return SeriesVector(
        [labels[place] for place in places],
        values[places],
        has[places],
        [flags[place] for place in places],
    )


def empty_vector(steps: int) -> SeriesVector:
    """Return a vector without series."""
    return SeriesVector([], np.zeros((0, steps)), np.zeros((0, steps), dtype=bool), [])


class SameLabels(Exception):
    """Two series have the same labels at one step."""

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels_text(labels))


def merge_same_labels(vector: SeriesVector) -> SeriesVector:
    """Return a vector with one row for each set of labels; `SameLabels` if two meet at a step."""
    first: dict[Labels, int] = {}
    target = [first.setdefault(labels, len(first)) for labels in vector.labels]
    if len(first) == len(vector.labels):
        return vector
    shape = (len(first), vector.values.shape[1])
    values, has, drops = np.zeros(shape), np.zeros(shape, dtype=bool), [False] * len(first)
    for place, to in enumerate(target):
        here = vector.has[place]
        if (has[to] & here).any():
            raise SameLabels(vector.labels[place])
        values[to][here] = vector.values[place][here]
        has[to] |= here
        drops[to] = drops[to] or vector.drops[place]
    return SeriesVector(list(first), values, has, drops, vector.is_ordered)


def apply_drops(vector: SeriesVector) -> SeriesVector:
    """Return a vector without the names that its functions have dropped, merged by labels."""
    labels = [
        drop_name(one) if drops else one
        for one, drops in zip(vector.labels, vector.drops, strict=True)
    ]
    plain = SeriesVector(
        labels, vector.values, vector.has, [False] * len(labels), vector.is_ordered
    )
    return merge_same_labels(plain)


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Samples of series: those of series `n` are at `offsets[n]` to `offsets[n + 1]`."""

    labels: list[Labels]
    offsets: Ints
    times_ms: Ints
    values: Floats
    drops: list[bool]

    def without_stale(self) -> "SampleSet":
        """Return the samples that are no stale markers."""
        stale = are_stale(self.values)
        if not stale.any():
            return self
        kept = ~stale
        before = np.concatenate(([0], np.cumsum(kept)))
        return SampleSet(
            self.labels, before[self.offsets], self.times_ms[kept], self.values[kept], self.drops
        )


def empty_samples() -> SampleSet:
    """Return a set without series."""
    return SampleSet([], np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0), [])


def vector_samples(vector: SeriesVector, times_ms: Ints) -> SampleSet:
    """Return the cells of a vector as samples at these times."""
    counts = vector.has.sum(axis=1)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    times = np.broadcast_to(times_ms, vector.has.shape)[vector.has]
    return SampleSet(vector.labels, offsets, times, vector.values[vector.has], vector.drops)
