"""Evaluation in columns: the same as point by point, and the rules of the language."""

import itertools
import math
import random

import numpy as np
import pytest

from thermocline.errors import Invalid, Unsupported
from thermocline.promql.answer import format_value, instant_document, range_document
from thermocline.promql.evaluate import evaluate_instant, evaluate_range
from thermocline.promql.labels import make_labels
from thermocline.promql.source import MemorySource
from thermocline.promql.values import STALE

LOOKBACK_MS = 300_000


def labels(name, **pairs):
    return make_labels([("__name__", name), *pairs.items()])


@pytest.fixture(scope="module")
def samples():
    """Counters with resets, holes and ends, by label."""
    choose = random.Random(18)
    found = {}
    for number in range(12):
        value, series = 0.0, []
        for time_ms in range(0, 3_600_000, 15_000):
            if choose.random() < 0.1:
                continue
            value = 0.0 if choose.random() < 0.02 else value + choose.randrange(20)
            ended = choose.random() < 0.01
            series.append((time_ms + choose.randrange(4_000), float(STALE) if ended else value))
        found[labels("hits_total", pod=f"p{number}", zone="ab"[number % 2])] = series
    return found


@pytest.fixture(scope="module")
def source(samples):
    made = MemorySource()
    for one, series in samples.items():
        for time_ms, value in series:
            made.add(one, time_ms, value)
    return made


def window(series, end_ms, range_ms):
    return [
        (time, value)
        for time, value in series
        if end_ms - range_ms < time <= end_ms and not is_stale(value)
    ]


def is_stale(value):
    return np.array([value]).view(np.int64)[0] == np.array([STALE]).view(np.int64)[0]


def slow_rate(points, end_ms, range_ms):
    """The rate of Prometheus' documentation, sample by sample."""
    if len(points) < 2:
        return None
    gained = points[-1][1] - points[0][1]
    for (_, before), (_, now) in itertools.pairwise(points):
        if now < before:
            gained += before
    sampled = (points[-1][0] - points[0][0]) / 1000
    between = sampled / (len(points) - 1)
    start = (points[0][0] - (end_ms - range_ms)) / 1000
    end = (end_ms - points[-1][0]) / 1000
    if start >= between * 1.1:
        start = between / 2
    if gained > 0 and points[0][1] >= 0:
        start = min(start, sampled * points[0][1] / gained)
    if end >= between * 1.1:
        end = between / 2
    return gained * (sampled + start + end) / sampled / (range_ms / 1000)


def slow_quantile(points, *_):
    values = sorted(value for _, value in points)
    rank = 0.9 * (len(values) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(values) - 1)
    return values[low] * (1 - (rank - low)) + values[high] * (rank - low)


def slow_deviation(points, *_):
    values = [value for _, value in points]
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


SLOW = {
    "rate(hits_total[5m])": slow_rate,
    "sum_over_time(hits_total[5m])": lambda points, *_: math.fsum(value for _, value in points),
    "avg_over_time(hits_total[5m])": lambda points, *_: (
        math.fsum(value for _, value in points) / len(points)
    ),
    "max_over_time(hits_total[5m])": lambda points, *_: max(value for _, value in points),
    "resets(hits_total[5m])": lambda points, *_: sum(
        now[1] < before[1] for before, now in itertools.pairwise(points)
    ),
    "quantile_over_time(0.9, hits_total[5m])": slow_quantile,
    "stddev_over_time(hits_total[5m])": slow_deviation,
    "idelta(hits_total[5m])": lambda points, *_: (
        points[-1][1] - points[-2][1] if len(points) > 1 else None
    ),
}


@pytest.mark.parametrize("text", SLOW)
def test_windows_in_columns_are_those_point_by_point(source, samples, text):
    answer = evaluate_range(source, text, 0, 3_900_000, 37_000)
    found = {
        (one, int(at)): float(answer.value.values[place, step])
        for place, one in enumerate(answer.value.labels)
        for step, at in enumerate(answer.times_ms)
        if answer.value.has[place, step]
    }
    expected = {}
    for one, series in samples.items():
        for at in range(0, 3_900_001, 37_000):
            points = window(series, at, 300_000)
            value = SLOW[text](points, at, 300_000) if points else None
            if value is not None:
                expected[tuple(pair for pair in one if pair[0] != "__name__"), at] = value
    assert found.keys() == expected.keys()
    assert all(math.isclose(found[key], expected[key], rel_tol=1e-9, abs_tol=1e-9) for key in found)


def test_a_range_is_its_instants(source):
    text = "sum by (zone) (hits_total) / on() group_left() count(hits_total offset 1m)"
    whole = evaluate_range(source, text, 60_000, 3_600_000, 300_000).value
    for step, at_ms in enumerate(range(60_000, 3_600_001, 300_000)):
        one = evaluate_instant(source, text, at_ms).value
        assert {labels: float(one.values[place, 0]) for place, labels in enumerate(one.labels)} == {
            labels: float(whole.values[place, step])
            for place, labels in enumerate(whole.labels)
            if whole.has[place, step]
        }


def test_values_are_counted_over_groups_that_their_label_joins():
    made = MemorySource()
    for number, version in enumerate((6, 6, 7)):
        made.add(labels("build", job=f"j{number}", group="a"), 0, version)
    found = evaluate_instant(made, 'count_values by (job, group) ("job", build)', 0).value
    counts = {dict(one)["job"]: found.values[place, 0] for place, one in enumerate(found.labels)}
    assert counts == {"6": 2, "7": 1}


def test_a_stale_marker_ends_a_series_at_once_and_silence_after_five_minutes():
    made = MemorySource()
    made.add(labels("up", job="a"), 0, 1.0)
    made.add(labels("up", job="b"), 0, 1.0)
    made.add(labels("up", job="b"), 60_000, float(STALE))
    jobs = {
        at: [dict(one)["job"] for one in evaluate_instant(made, "up", at).value.labels]
        for at in (59_999, 60_000, LOOKBACK_MS - 1, LOOKBACK_MS)
    }
    assert jobs == {59_999: ["a", "b"], 60_000: ["a"], LOOKBACK_MS - 1: ["a"], LOOKBACK_MS: []}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hits_total + on(zone) hits_total", "many-to-many matching not allowed"),
        ('label_replace(hits_total, "pod", "x", "zone", "a|b")', "same labelset"),
        ("topk(NaN, hits_total)", "Parameter value is NaN"),
        ('hits_total{pod=~"(?=a)"}', "not valid PromQL"),
        ("(" * 200 + "1" + ")" * 200, "nested too deep"),
        ("hits_total[5m", "not valid PromQL"),
        ("-" * 5000 + "1", "nested too deep"),
    ],
)
def test_what_cannot_be_answered_is_an_error(source, text, message):
    with pytest.raises(Invalid, match=message):
        evaluate_instant(source, text, 3_600_000)


@pytest.mark.parametrize("text", ["info(hits_total)", "hits_total @ -5"])
def test_what_is_not_supported_is_refused_by_name(source, text):
    with pytest.raises(Unsupported, match=r"info|@"):
        evaluate_instant(source, text, 3_600_000)


def test_a_pattern_cannot_stop_the_node(source):
    made = MemorySource()
    made.add(labels("a", path="a" * 60 + "!"), 0, 1.0)
    assert not evaluate_instant(made, 'a{path=~"(a+)+"}', 0).value.labels


def test_answers_have_the_form_of_prometheus(source):
    made = MemorySource()
    made.add(labels("a", x='q"'), 1_500, 0.1)
    instant = instant_document(evaluate_instant(made, "a", 1_500))
    assert instant == (
        b'{"status":"success","data":{"resultType":"vector","result":'
        b'[{"metric":{"__name__":"a","x":"q\\""},"value":[1.5,"0.1"]}]}}'
    )
    ranged = range_document(evaluate_range(made, "rate(a[1m]) or vector(1)", 1_500, 3_000, 1_500))
    assert b'"resultType":"matrix"' in ranged
    assert b'"values":[[1.5,"1"],[3,"1"]]' in ranged
    assert b'"infos":["PromQL info: metric might not be a counter' in ranged
    assert instant_document(evaluate_instant(made, '"x"', 0)) == (
        b'{"status":"success","data":{"resultType":"string","result":[0.0,"x"]}}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e-7, "1.5e-7"),
        (0.00001, "0.00001"),
        (math.nan, "NaN"),
        (-math.inf, "-Inf"),
        (-0.0, "-0"),
        (1e16, "10000000000000000"),
    ],
)
def test_values_are_written_as_prometheus_writes_them(value, text):
    assert format_value(value) == text
