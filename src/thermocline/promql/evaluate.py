"""Evaluates a PromQL expression at one time or at the steps of a range.

In:   the text of an expression, a source of samples, times in milliseconds
Out:  an `Answer`: the value, with warnings and infos

- An expression is evaluated once for all steps: a vector is a matrix of series and steps.
- The limits of an evaluation are its steps, its samples, its cells and its deadline. An evaluation
  beyond one ends with an error that names it; there is no shorter answer.
- What is experimental in PromQL, and native histograms, are refused by name.
"""

import re
import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from thermocline.errors import Invalid, Overloaded, QueryCancelled, QueryTimeout, Unsupported
from thermocline.promql.aggregate import aggregate
from thermocline.promql.binary import combine, same_labels_error
from thermocline.promql.functions import (
    DATE_FUNCTIONS,
    NUMBER_FUNCTIONS,
    clamp,
    label_join,
    label_replace,
    round_to,
)
from thermocline.promql.histogram import histogram_fraction, histogram_quantile
from thermocline.promql.labels import NAME, Labels, Matcher, make_labels, value_of
from thermocline.promql.notes import Notes
from thermocline.promql.source import SampleSource
from thermocline.promql.syntax import (
    Aggregation,
    Binary,
    Call,
    Negation,
    Node,
    Number,
    Selector,
    String,
    Subquery,
    When,
    parse_expression,
)
from thermocline.promql.values import (
    Bools,
    Floats,
    Ints,
    SameLabels,
    SampleSet,
    Scalar,
    SeriesVector,
    Text,
    apply_drops,
    are_stale,
    empty_vector,
    make_vector,
    merge_same_labels,
    vector_samples,
)
from thermocline.promql.windows import (
    WINDOW_FUNCTIONS,
    Evaluated,
    Windows,
    count_until,
    find_windows,
    predict_linear,
    quantile_over_time,
    smooth,
)

LOOKBACK_MS = 300_000
SUBQUERY_STEP_MS = 60_000
STEPS_MAX = 11_000
_INNER_STEPS_MAX = 200_000
_KEEPS_NAME = ("last_over_time", "first_over_time")
_OF_HISTOGRAMS = (
    "histogram_avg",
    "histogram_count",
    "histogram_stddev",
    "histogram_stdvar",
    "histogram_sum",
)
_SORTS = ("sort", "sort_desc", "sort_by_label", "sort_by_label_desc")

Value = Scalar | Text | SeriesVector


@dataclass(frozen=True, slots=True)
class EvaluationLimits:
    """What one evaluation may use; `deadline_s` is on the monotonic clock.

    An evaluation ends soon after `is_stopped` says so.
    """

    samples_max: int = 10_000_000
    cells_max: int = 20_000_000
    steps_max: int = STEPS_MAX
    deadline_s: float = float("inf")
    lookback_ms: int = LOOKBACK_MS
    subquery_step_ms: int = SUBQUERY_STEP_MS
    is_stopped: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Answer:
    """The value of an expression at these times; `samples` is set for a range selector."""

    value: Value | SampleSet
    times_ms: Ints
    notes: Notes


def evaluate_instant(
    source: SampleSource, text: str, time_ms: int, limits: EvaluationLimits | None = None
) -> Answer:
    """Return the value of an expression at one time; `Invalid` when it has none."""
    node = parse_expression(text)
    evaluation = _Evaluation(source, limits or EvaluationLimits(), time_ms, time_ms)
    times = np.array([time_ms], np.int64)
    if isinstance(node, Subquery) or (isinstance(node, Selector) and node.range_ms):
        return Answer(evaluation.range_at(node, times), times, evaluation.notes)
    return Answer(evaluation.finish(evaluation.evaluate(node, times)), times, evaluation.notes)


def evaluate_range(
    source: SampleSource,
    text: str,
    start_ms: int,
    end_ms: int,
    step_ms: int,
    limits: EvaluationLimits | None = None,
) -> Answer:
    """Return the value of an expression at each step from `start_ms` to `end_ms`."""
    limits = limits or EvaluationLimits()
    if step_ms <= 0:
        raise Invalid("zero or negative query resolution step widths are not accepted")
    if end_ms < start_ms:
        raise Invalid("end timestamp must not be before start time")
    if (end_ms - start_ms) // step_ms + 1 > limits.steps_max:
        raise Invalid(
            "exceeded maximum resolution of 11,000 points per timeseries",
            hint="use a longer step or a shorter range",
            steps_max=limits.steps_max,
        )
    node = parse_expression(text)
    if isinstance(node, Subquery | String) or (isinstance(node, Selector) and node.range_ms):
        raise Invalid(
            "invalid expression type for range query, must be Scalar or instant Vector",
            hint="use a function of a range such as rate(...)",
        )
    times = np.arange(start_ms, end_ms + 1, step_ms, dtype=np.int64)
    evaluation = _Evaluation(source, limits, start_ms, end_ms)
    return Answer(evaluation.finish(evaluation.evaluate(node, times)), times, evaluation.notes)


@dataclass(slots=True)
class _Evaluation:
    """One evaluation: its source, its limits, and what it has used of them."""

    source: SampleSource
    limits: EvaluationLimits
    start_ms: int
    end_ms: int
    notes: Notes = field(default_factory=Notes)
    samples: int = 0

    def finish(self, value: Value) -> Value:
        """Return the value without the names that functions dropped."""
        if not isinstance(value, SeriesVector):
            return value
        try:
            return apply_drops(value)
        except SameLabels as error:
            raise same_labels_error(error) from error

    def evaluate(self, node: Node, times: Ints) -> Value:
        """Return the value of a node at these times."""
        self._check_deadline()
        found = self._evaluate(node, times)
        if isinstance(found, SeriesVector) and found.values.size > self.limits.cells_max:
            raise Overloaded(
                "the query computes more values than the limit",
                hint="use a longer step, a shorter range, or fewer series",
                cells_max=self.limits.cells_max,
            )
        return found

    def _evaluate(self, node: Node, times: Ints) -> Value:
        if isinstance(node, Number):
            return Scalar(np.full(len(times), node.value))
        if isinstance(node, String):
            return Text(node.text)
        if isinstance(node, Selector):
            return self._instant_values(node, times)[0]
        if isinstance(node, Negation):
            return self._negate(self.evaluate(node.inner, times))
        if isinstance(node, Binary):
            left, right = self.evaluate(node.left, times), self.evaluate(node.right, times)
            assert not isinstance(left, Text)
            assert not isinstance(right, Text)
            found: Value = combine(node, left, right)
            return found
        if isinstance(node, Aggregation):
            return self._aggregate(node, times)
        if isinstance(node, Call):
            return self._call(node, times)
        raise Invalid("a range is not a value", hint="use a function such as rate(...)")

    def _negate(self, value: Value) -> Value:
        if isinstance(value, SeriesVector):
            return make_vector(value.labels, -value.values, value.has, drops=True)
        assert isinstance(value, Scalar)
        return Scalar(-value.values)

    def _aggregate(self, node: Aggregation, times: Ints) -> SeriesVector:
        parameter: Floats | str | None = None
        if node.parameter is not None:
            given = self.evaluate(node.parameter, times)
            assert not isinstance(given, SeriesVector)
            parameter = given.text if isinstance(given, Text) else given.values
        return aggregate(node, self.vector(node.inner, times), parameter, self.notes)

    def vector(self, node: Node, times: Ints) -> SeriesVector:
        """Return the vector of a node."""
        found = self.evaluate(node, times)
        assert isinstance(found, SeriesVector)
        return found

    def numbers(self, node: Node, times: Ints) -> Floats:
        """Return the number of a node at each time."""
        found = self.evaluate(node, times)
        assert isinstance(found, Scalar)
        return found.values

    def text(self, node: Node) -> str:
        """Return the string of a node."""
        assert isinstance(node, String)
        return node.text

    def _effective_times(self, when: When, times: Ints) -> Ints:
        """Return the times at which a selector with these modifiers is read."""
        if when.at is None:
            return times - when.offset_ms
        if isinstance(when.at, str):
            at_ms = self.start_ms if when.at == "start" else self.end_ms
        else:
            at_ms = round(when.at * 1000)
        return np.full(len(times), at_ms - when.offset_ms, np.int64)

    def _read(self, node: Selector, first_ms: int, last_ms: int) -> SampleSet:
        self._check_deadline()
        alternatives = node.alternatives or (node.matchers,)
        found = self.source.select(alternatives, first_ms, last_ms, self.notes)
        self.samples += len(found.times_ms)
        if self.samples > self.limits.samples_max:
            raise Overloaded(
                "the query reads more samples than the limit",
                hint="use a shorter range, or select fewer series",
                samples_max=self.limits.samples_max,
            )
        return found

    def _instant_values(self, node: Selector, times: Ints) -> tuple[SeriesVector, Floats]:
        """Return the newest value of each series at each time, and when it was (seconds)."""
        asked = self._effective_times(node.when, times)
        lookback_ms = self.limits.lookback_ms
        samples = self._read(node, int(asked.min()) - lookback_ms + 1, int(asked.max()))
        if not len(samples.times_ms):
            return empty_vector(len(times)), np.zeros((0, len(times)))
        self._check_cells(len(samples.labels), len(times))
        last = count_until(samples, asked) - 1
        at = np.maximum(last, 0)
        has = last >= samples.offsets[:-1][:, None]
        has &= samples.times_ms[at] > asked[None, :] - lookback_ms
        values = samples.values[at]
        has &= ~are_stale(values)
        when = samples.times_ms[at] / 1000.0
        kept = has.any(axis=1)
        vector = make_vector(samples.labels, values, has, drops=list(samples.drops))
        return vector, when[kept]

    def _check_cells(self, series: int, steps: int) -> None:
        if series * steps > self.limits.cells_max:
            raise Overloaded(
                "the query computes more values than the limit",
                hint="use a longer step, a shorter range, or fewer series",
                cells_max=self.limits.cells_max,
            )

    def range_at(self, node: Selector | Subquery, times: Ints) -> SampleSet:
        """Return the samples of a range selector or subquery that ends at one time."""
        samples, asked = self._range_samples(node, times)
        windows = find_windows(samples, asked, times, node.range_ms)
        places = [
            np.arange(low, high) for low, high in zip(windows.lows, windows.highs, strict=True)
        ]
        kept = [number for number, one in enumerate(places) if len(one)]
        chosen = np.concatenate([places[number] for number in kept]) if kept else np.zeros(0, int)
        counts = [len(places[number]) for number in kept]
        return SampleSet(
            [samples.labels[number] for number in kept],
            np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            samples.times_ms[chosen],
            samples.values[chosen],
            [samples.drops[number] for number in kept],
        )

    def _range_samples(self, node: Selector | Subquery, times: Ints) -> tuple[SampleSet, Ints]:
        """Return the samples of all windows of a range, and the ends of the windows."""
        asked = self._effective_times(node.when, times)
        first_ms, last_ms = int(asked.min()) - node.range_ms, int(asked.max())
        if isinstance(node, Selector):
            return self._read(node, first_ms + 1, last_ms).without_stale(), asked
        step_ms = node.step_ms or self.limits.subquery_step_ms
        begin_ms = first_ms // step_ms * step_ms + step_ms
        if (last_ms - begin_ms) // step_ms > _INNER_STEPS_MAX:
            raise Invalid(
                "the subquery has more steps than the limit",
                hint="use a longer step or a shorter range",
                steps_max=_INNER_STEPS_MAX,
            )
        inner_times = np.arange(begin_ms, last_ms + 1, step_ms, dtype=np.int64)
        if not len(inner_times):
            return vector_samples(empty_vector(0), inner_times), asked
        inner = self.evaluate(node.inner, inner_times)
        if isinstance(inner, Scalar):
            has = np.ones((1, len(inner_times)), dtype=bool)
            inner = SeriesVector([()], inner.values[None, :], has, [False])
        assert isinstance(inner, SeriesVector)
        return vector_samples(inner, inner_times), asked

    def _windows(self, node: Node, times: Ints) -> tuple[Windows, SampleSet]:
        if not isinstance(node, Selector | Subquery):
            raise Invalid("this function needs a range", hint="add a range such as [5m]")
        samples, asked = self._range_samples(node, times)
        self._check_cells(len(samples.labels), len(times))
        return find_windows(samples, asked, times, node.range_ms), samples

    def _call(self, node: Call, times: Ints) -> Value:
        name, arguments = node.name, node.arguments
        if name in WINDOW_FUNCTIONS or name in _WITH_RANGE:
            return self._call_with_range(node, times)
        if name in DATE_FUNCTIONS:
            return self._call_date(name, arguments, times)
        if name in NUMBER_FUNCTIONS:
            vector = self.vector(arguments[0], times)
            with np.errstate(all="ignore"):
                values = NUMBER_FUNCTIONS[name](vector.values)
            return make_vector(vector.labels, values, vector.has, drops=True)
        if name in _SORTS:
            return self._sort(name, arguments, times)
        if name in _OF_HISTOGRAMS:
            self.vector(arguments[0], times)
            return empty_vector(len(times))  # no sample is a native histogram
        run = _CALLS.get(name)
        if run is None:
            raise Unsupported(
                f"the function {name} is not supported", hint="it is experimental in PromQL"
            )
        return run(self, arguments, times)

    def _call_with_range(self, node: Call, times: Ints) -> SeriesVector:
        name, arguments = node.name, node.arguments
        place = 1 if name == "quantile_over_time" else 0
        numbers = [self.numbers(one, times) for at, one in enumerate(arguments) if at != place]
        windows, samples = self._windows(arguments[place], times)
        if name == "absent_over_time":
            is_seen = np.any(windows.counts.reshape(-1, len(times)) > 0, axis=0)
            return _absent(arguments[0], ~is_seen)
        if name in ("rate", "increase"):
            for labels, drops in zip(samples.labels, samples.drops, strict=True):
                if not drops:
                    self.notes.check_counter(value_of(labels, NAME))
        if name == "quantile_over_time":
            for quantile in np.unique(numbers[0][~((numbers[0] >= 0) & (numbers[0] <= 1))]):
                self.notes.check_quantile(float(quantile))
        if name in WINDOW_FUNCTIONS:
            found = WINDOW_FUNCTIONS[name](windows)
        else:
            found = _WITH_RANGE[name](windows, *numbers)
        shape = (len(samples.labels), len(times))
        values, has = found[0].reshape(shape), found[1].reshape(shape)
        drops_names: bool | list[bool] = samples.drops if name in _KEEPS_NAME else True
        return make_vector(samples.labels, values, has, drops=drops_names)

    def _call_date(self, name: str, arguments: Sequence[Node], times: Ints) -> SeriesVector:
        if not arguments:
            values = DATE_FUNCTIONS[name](times / 1000.0)
            return _one_series(values)
        vector = self.vector(arguments[0], times)
        values = DATE_FUNCTIONS[name](vector.values)
        return make_vector(vector.labels, values, vector.has, drops=True)

    def _sort(self, name: str, arguments: Sequence[Node], times: Ints) -> SeriesVector:
        vector = self.vector(arguments[0], times)
        if len(times) > 1 or self.start_ms != self.end_ms:
            self.notes.warn(
                "sort is ineffective for range queries since results are always ordered by labels"
            )
            return vector
        if name in ("sort", "sort_desc"):
            values = vector.values[:, 0]
            signed = -values if name == "sort_desc" else values
            order = np.lexsort((np.where(np.isnan(values), 0.0, signed), np.isnan(values)))
        else:
            names = [self.text(one) for one in arguments[1:]]
            keys = [
                ([_natural(value_of(labels, one)) for one in names], labels)
                for labels in vector.labels
            ]
            ranked = sorted(
                range(len(keys)), key=keys.__getitem__, reverse=name == "sort_by_label_desc"
            )
            order = np.array(ranked, dtype=np.int64)
        return SeriesVector(
            [vector.labels[place] for place in order],
            vector.values[order],
            vector.has[order],
            [vector.drops[place] for place in order],
            is_ordered=True,
        )

    def timestamp(self, arguments: Sequence[Node], times: Ints) -> SeriesVector:
        """Return when each value was measured."""
        node = arguments[0]
        if isinstance(node, Selector):
            vector, when = self._instant_values(node, times)
            return make_vector(vector.labels, when, vector.has, drops=True)
        vector = self.vector(node, times)
        when = np.broadcast_to(times / 1000.0, vector.values.shape).copy()
        return make_vector(vector.labels, when, vector.has, drops=True)

    def _check_deadline(self) -> None:
        if self.limits.is_stopped():
            raise QueryCancelled("the query was stopped", hint="send it again")
        if clock.monotonic() > self.limits.deadline_s:
            raise QueryTimeout(
                "the query did not end before its deadline",
                hint="use a shorter range or a longer step, or ask for more time",
            )


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts the numbers in texts by value."""
    parts = re.findall(r"\d+|\D+", text)
    return [(0, int(one), one) if one.isdigit() else (1, 0, one) for one in parts]


def _one_series(values: Floats) -> SeriesVector:
    return SeriesVector([()], values[None, :], np.ones((1, len(values)), dtype=bool), [False])


def _absent(node: Node, is_absent: Bools) -> SeriesVector:
    """Return 1 where nothing is there, with the labels that the selector asks for."""
    labels: Labels = ()
    if isinstance(node, Selector):
        labels = _asked_labels(node.matchers)
    return make_vector([labels], np.ones((1, len(is_absent))), is_absent[None, :])


def _asked_labels(matchers: Sequence[Matcher]) -> Labels:
    values: dict[str, str] = {}
    seen: set[str] = set()
    for one in matchers:
        if one.name == NAME:
            continue
        if one.op == "=" and one.name not in seen:
            values[one.name] = one.value
        else:
            values.pop(one.name, None)
        if one.op == "=":
            seen.add(one.name)
    return make_labels(values.items())


_WITH_RANGE: dict[str, Callable[..., Evaluated]] = {
    "quantile_over_time": quantile_over_time,
    "predict_linear": predict_linear,
    "double_exponential_smoothing": smooth,
    "absent_over_time": quantile_over_time,  # answered before it is called
}


def _call_absent(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    vector = run.vector(arguments[0], times)
    is_seen = np.any(vector.has, axis=0)
    return _absent(arguments[0], ~is_seen)


def _call_scalar(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    vector = run.vector(arguments[0], times)
    if not len(vector):
        return Scalar(np.full(len(times), np.nan))
    only = np.where(vector.has, vector.values, 0.0).sum(axis=0)
    return Scalar(np.where(vector.has.sum(axis=0) == 1, only, np.nan))


def _call_round(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    vector = run.vector(arguments[0], times)
    nearest = run.numbers(arguments[1], times) if len(arguments) > 1 else np.ones(len(times))
    with np.errstate(all="ignore"):
        values = round_to(vector.values, nearest)
    return make_vector(vector.labels, values, vector.has, drops=True)


def _call_clamp(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    low, high = run.numbers(arguments[1], times), run.numbers(arguments[2], times)
    return _clamp_vector(run.vector(arguments[0], times), low, high)


def _call_clamp_min(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    low = run.numbers(arguments[1], times)
    return _clamp_vector(run.vector(arguments[0], times), low, np.full(len(times), np.inf))


def _call_clamp_max(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    high = run.numbers(arguments[1], times)
    return _clamp_vector(run.vector(arguments[0], times), np.full(len(times), -np.inf), high)


def _clamp_vector(vector: SeriesVector, low: Floats, high: Floats) -> SeriesVector:
    values, has = clamp(vector, low, high)
    return make_vector(vector.labels, values, has, drops=True)


def _call_replace(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    target, template, source, pattern = map(run.text, arguments[1:])
    vector = run.vector(arguments[0], times)
    return _merge(label_replace(vector, target, template, source, pattern))


def _call_join(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    target, separator, *sources = map(run.text, arguments[1:])
    return _merge(label_join(run.vector(arguments[0], times), target, separator, sources))


def _merge(vector: SeriesVector) -> SeriesVector:
    try:
        return merge_same_labels(vector)
    except SameLabels as error:
        raise same_labels_error(error) from error


def _call_quantile(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    quantiles = run.numbers(arguments[0], times)
    return histogram_quantile(run.vector(arguments[1], times), quantiles, run.notes)


def _call_fraction(run: _Evaluation, arguments: Sequence[Node], times: Ints) -> Value:
    lower, upper = run.numbers(arguments[0], times), run.numbers(arguments[1], times)
    return histogram_fraction(run.vector(arguments[2], times), lower, upper, run.notes)


_CALLS: dict[str, Callable[[_Evaluation, Sequence[Node], Ints], Value]] = {
    "absent": _call_absent,
    "clamp": _call_clamp,
    "clamp_max": _call_clamp_max,
    "clamp_min": _call_clamp_min,
    "histogram_fraction": _call_fraction,
    "histogram_quantile": _call_quantile,
    "label_join": _call_join,
    "label_replace": _call_replace,
    "pi": lambda run, arguments, times: Scalar(np.full(len(times), np.pi)),
    "round": _call_round,
    "scalar": _call_scalar,
    "time": lambda run, arguments, times: Scalar(times / 1000.0),
    "timestamp": lambda run, arguments, times: run.timestamp(arguments, times),
    "vector": lambda run, arguments, times: _one_series(run.numbers(arguments[0], times)),
}
