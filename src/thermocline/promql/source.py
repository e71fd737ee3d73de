"""Where an evaluation reads samples: an interface, and one that holds samples in memory.

In:   matchers, a stretch of time
Out:  the samples of the series that match, with their labels

`MemorySource` serves tests and the conformance suite. `lake_source` reads a lake's tables.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from thermocline.promql.labels import Labels, Matcher, match_values, value_of
from thermocline.promql.notes import Notes
from thermocline.promql.values import SampleSet


class SampleSource(Protocol):
    """Reads samples by labels and time."""

    def select(
        self,
        alternatives: Sequence[Sequence[Matcher]],
        first_ms: int,
        last_ms: int,
        notes: Notes,
    ) -> SampleSet:
        """Return the samples from `first_ms` to `last_ms` of each series that matches.

        A series matches when all matchers of one alternative match. Series without samples may be
        left off. The source's limits apply, and it may add notes.
        """


def matching_places(
    labels: Sequence[Labels], alternatives: Sequence[Sequence[Matcher]]
) -> list[int]:
    """Return the places of the series that match, in order."""
    found: set[int] = set()
    for matchers in alternatives:
        places = range(len(labels))
        chosen = list(places)
        for matcher in matchers:
            values = [value_of(labels[place], matcher.name) for place in chosen]
            distinct = list(dict.fromkeys(values))
            fits = dict(zip(distinct, match_values(matcher, distinct), strict=True))
            chosen = [place for place, value in zip(chosen, values, strict=True) if fits[value]]
        found.update(chosen)
    return sorted(found)


class MemorySource:
    """Samples in memory."""

    def __init__(self) -> None:
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}

    def add(self, labels: Labels, time_ms: int, value: float) -> None:
        """Add a sample; the samples of a series must be added in the order of time."""
        times, values = self._series.setdefault(labels, ([], []))
        if times and times[-1] == time_ms:
            values[-1] = value
            return
        times.append(time_ms)
        values.append(value)

    def select(
        self,
        alternatives: Sequence[Sequence[Matcher]],
        first_ms: int,
        last_ms: int,
        notes: Notes,  # noqa: ARG002
    ) -> SampleSet:
        """Return the samples of a stretch of time of each series that matches."""
        every = sorted(self._series)
        chosen = [every[place] for place in matching_places(every, alternatives)]
        times, values = [], []
        for labels in chosen:
            time, value = map(np.array, self._series[labels])
            inside = (time >= first_ms) & (time <= last_ms)
            times.append(time[inside].astype(np.int64))
            values.append(value[inside].astype(np.float64))
        counts = [len(one) for one in times]
        return SampleSet(
            chosen,
            np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            np.concatenate(times) if times else np.zeros(0, np.int64),
            np.concatenate(values) if values else np.zeros(0),
            [False] * len(chosen),
        )
