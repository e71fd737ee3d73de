"""Aggregations over groups of series, for all steps at once.

In:   a vector, groups by labels, a parameter for each step
Out:  a vector with one series for each group, or with chosen series of each

- Series are ordered by group once; each aggregation is then one reduction along that axis.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from thermocline.errors import Invalid
from thermocline.promql.labels import Labels, grouping_key, make_labels
from thermocline.promql.notes import Notes, go_number
from thermocline.promql.syntax import Aggregation
from thermocline.promql.values import (
    Bools,
    Floats,
    Ints,
    SeriesVector,
    apply_drops,
    empty_vector,
    make_vector,
)
from thermocline.promql.windows import exact_mean, exact_sum, needs_exact_sum

_INT_MAX = 9.2e18


@dataclass(frozen=True, slots=True)
class _Groups:
    """The series of a vector in the order of their groups; group `n` begins at `starts[n]`."""

    labels: list[Labels]
    drops: list[bool]
    starts: Ints
    order: Ints
    values: Floats
    has: Bools

    @property
    def counts(self) -> Ints:
        """The number of samples of each group and step."""
        return np.add.reduceat(self.has.astype(np.int64), self.starts, axis=0)

    def reduce(self, ufunc: np.ufunc, filling: float) -> Floats:
        """Return the reduction of each group; cells without a sample count as `filling`."""
        cells = np.where(self.has, self.values, filling)
        found: Floats = ufunc.reduceat(cells, self.starts, axis=0)
        return found

    def members(self) -> list[Ints]:
        """Return for each group the places of its series."""
        return np.split(np.arange(len(self.order)), self.starts[1:])


def _group(vector: SeriesVector, node: Aggregation) -> _Groups:
    key = grouping_key(node.names, by=node.is_by)
    numbers: dict[Labels, int] = {}
    of_series = [numbers.setdefault(key(labels), len(numbers)) for labels in vector.labels]
    order = np.argsort(of_series, kind="stable")
    starts = np.searchsorted(np.array(of_series)[order], np.arange(len(numbers)))
    drops = [False] * len(numbers)
    for number, flag in zip(of_series, vector.drops, strict=True):
        drops[number] = drops[number] or flag
    return _Groups(list(numbers), drops, starts, order, vector.values[order], vector.has[order])


def aggregate(
    node: Aggregation, vector: SeriesVector, parameter: Floats | str | None, notes: Notes
) -> SeriesVector:
    """Return the aggregation of a vector; `parameter` has a number for each step, or is a text."""
    steps = vector.values.shape[1]
    if isinstance(parameter, str):
        return _count_values(node, vector, parameter)
    _check_parameter(node.operator, parameter, notes)
    if not len(vector):
        return empty_vector(steps)
    groups = _group(vector, node)
    if parameter is not None and node.operator in ("topk", "bottomk", "limitk"):
        return _choose(node.operator, vector, groups, parameter)
    if parameter is not None and node.operator == "quantile":
        values = _quantiles(groups, parameter)
    elif node.operator in _SIMPLE:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            values = _SIMPLE[node.operator](groups)
    else:
        raise Invalid(
            f"the aggregation {node.operator} is not supported", hint="it is experimental"
        )
    return make_vector(groups.labels, values, groups.counts > 0, drops=groups.drops)


def _check_parameter(operator: str, parameter: Floats | None, notes: Notes) -> None:
    if parameter is None or not len(parameter):
        return
    if operator == "quantile":
        odd = parameter[~((parameter >= 0) & (parameter <= 1))]
        for quantile in np.unique(odd):
            notes.check_quantile(float(quantile))
    elif operator in ("topk", "bottomk", "limitk"):
        if np.isnan(parameter).any():
            raise Invalid("Parameter value is NaN", hint="give a number of series")
        if np.abs(parameter).max() >= _INT_MAX:
            flow = "overflows" if parameter.max() >= _INT_MAX else "underflows"
            worst = float(parameter.max() if flow == "overflows" else parameter.min())
            raise Invalid(
                f"Scalar value {go_number(worst)} {flow} int64", hint="give a number of series"
            )


def _sum(groups: _Groups) -> Floats:
    if needs_exact_sum(groups.values[groups.has]):
        return _exactly(groups, exact_sum)
    return groups.reduce(np.add, 0.0)


def _mean(groups: _Groups) -> Floats:
    if needs_exact_sum(groups.values[groups.has]):
        return _exactly(groups, exact_mean)
    return groups.reduce(np.add, 0.0) / groups.counts


def _exactly(groups: _Groups, compute: Callable[[Floats], float]) -> Floats:
    steps = groups.values.shape[1]
    found = np.zeros((len(groups.labels), steps))
    for number, members in enumerate(groups.members()):
        for step in range(steps):
            chosen = groups.values[members, step][groups.has[members, step]]
            if len(chosen):
                found[number, step] = compute(chosen)
    return found


def _variance(groups: _Groups) -> Floats:
    sizes = np.diff(np.append(groups.starts, len(groups.order)))
    # Differences from one value of the group keep their digits where the values are large.
    near = np.repeat(groups.reduce(np.fmax, -np.inf), sizes, axis=0)
    away = np.where(groups.has, groups.values - near, 0.0)
    mean = np.repeat(np.add.reduceat(away, groups.starts, axis=0) / groups.counts, sizes, axis=0)
    cells = np.where(groups.has, (away - mean) ** 2, 0.0)
    found: Floats = np.add.reduceat(cells, groups.starts, axis=0) / groups.counts
    return found


_SIMPLE: dict[str, Callable[[_Groups], Floats]] = {
    "sum": _sum,
    "avg": _mean,
    "min": lambda groups: groups.reduce(np.fmin, np.nan),
    "max": lambda groups: groups.reduce(np.fmax, np.nan),
    "count": lambda groups: groups.counts.astype(np.float64),
    "group": lambda groups: np.ones(groups.counts.shape),
    "stddev": lambda groups: np.sqrt(_variance(groups)),
    "stdvar": _variance,
}


def _quantiles(groups: _Groups, quantiles: Floats) -> Floats:
    steps = groups.values.shape[1]
    found = np.zeros((len(groups.labels), steps))
    inside = np.clip(np.nan_to_num(quantiles, nan=0.0), 0, 1)
    for number, members in enumerate(groups.members()):
        values, has = groups.values[members], groups.has[members]
        order = np.lexsort((np.where(np.isnan(values), -np.inf, values), ~has), axis=0)
        ordered = np.take_along_axis(values, order, axis=0)
        rank = inside * np.maximum(has.sum(axis=0) - 1, 0)
        low = np.floor(rank).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(has.sum(axis=0) - 1, 0))
        weight, step = rank - low, np.arange(steps)
        with np.errstate(invalid="ignore"):
            found[number] = ordered[low, step] * (1 - weight) + ordered[high, step] * weight
    found = np.where(quantiles < 0, -np.inf, np.where(quantiles > 1, np.inf, found))
    return np.where(np.isnan(quantiles), np.nan, found)


def _choose(
    operator: str, vector: SeriesVector, groups: _Groups, parameter: Floats
) -> SeriesVector:
    """Return the largest, smallest or first series of each group and step."""
    most = np.clip(parameter, 0, len(vector)).astype(np.int64)
    kept = np.zeros(vector.has.shape, dtype=bool)
    ranking: list[int] = []
    for members in groups.members():
        values, has = groups.values[members], groups.has[members]
        keys: list[Floats | Bools] = [~has]
        if operator != "limitk":
            signed = -values if operator == "topk" else values
            keys = [np.where(np.isnan(values), 0.0, signed), np.isnan(values), ~has]
        order = np.lexsort(keys, axis=0)
        places = groups.order[members]
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(len(order))[:, None] + 0 * order, axis=0)
        kept[places] = has & (rank < most[None, :])
        ranking += [int(places[place]) for place in order[:, -1]]
    chosen = SeriesVector(
        [vector.labels[place] for place in ranking],
        vector.values[ranking],
        kept[ranking],
        [vector.drops[place] for place in ranking],
    )
    made = make_vector(chosen.labels, chosen.values, chosen.has, drops=chosen.drops)
    return SeriesVector(made.labels, made.values, made.has, made.drops, is_ordered=True)


def _count_values(node: Aggregation, vector: SeriesVector, label: str) -> SeriesVector:
    """Return how many series of each group have each value, which becomes a label."""
    try:
        label.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"invalid label name {label!r}", hint="use a name in UTF-8") from error
    if not label:
        raise Invalid('invalid label name ""', hint="name the label of the values")
    steps = vector.values.shape[1]
    if not len(vector):
        return empty_vector(steps)
    groups = _group(vector, node)
    counts: dict[Labels, Floats] = {}
    drops: dict[Labels, bool] = {}
    for number, members in enumerate(groups.members()):
        values, has = groups.values[members], groups.has[members]
        kept = [pair for pair in groups.labels[number] if pair[0] != label]
        for value in np.unique(values[has]).tolist():
            same = np.isnan(values) if math.isnan(value) else values == value
            # Groups that differ only in this label are one group when it has the value.
            labels = make_labels([*kept, (label, go_number_plain(value))])
            counts[labels] = counts.get(labels, np.zeros(steps)) + (same & has).sum(axis=0)
            drops[labels] = drops.get(labels, False) or groups.drops[number]
    counted = np.array(list(counts.values())).reshape(len(counts), steps)
    return make_vector(list(counts), counted, counted > 0, drops=list(drops.values()))


def go_number_plain(value: float) -> str:
    """Return a number without an exponent."""
    text = go_number(value)
    if "e" not in text:
        return text
    return np.format_float_positional(value, trim="-")


__all__ = ["aggregate", "apply_drops", "go_number_plain"]
