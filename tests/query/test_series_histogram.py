"""What buckets of histograms gain, and quantiles over them, against models in plain Python."""

import math
import random
from datetime import UTC, datetime

import pytest

import thermocline as tc
from query.series_model import Point, bucket_increases, increases, quantile
from thermocline.ingest.otlp.tables import TABLES
from thermocline.query.session import Session

START_S = 1_717_200_000
BOUNDS = ([0.1, 0.5, 1.0, 5.0], [0.2, 1.0], [])
COUNTED = {"metric": "duration", "type": "histogram", "temporality": "cumulative"}


def edges(bounds):
    return list(zip([-math.inf, *bounds], [*bounds, math.inf], strict=True))


def random_histograms(seed, series=5, span_s=1_500):
    """Return cumulative and delta histograms with explicit bounds, with restarts and pauses."""
    choose = random.Random(seed)
    found = []
    for number in range(series):
        cells = edges(BOUNDS[number % len(BOUNDS)])
        is_delta = number == 3
        start, time = START_S - choose.choice([20, 9_000]), START_S + choose.randrange(60)
        counts, total = dict.fromkeys(cells, 0), 0.0
        while time < START_S + span_s:
            if choose.random() < 0.06 or is_delta:
                start, counts, total = time - 9, dict.fromkeys(cells, 0), 0.0
            if choose.random() < 0.05:
                time += 700
            for _ in range(choose.randrange(12)):
                counts[choose.choice(cells)] += choose.randrange(4)
            total += choose.randrange(100) / 4
            value = float(sum(counts.values()))
            found.append(Point(number, time, value, start, is_delta, total, dict(counts)))
            time += choose.choice([10, 15])
    return found


def histogram_row(point, **more):
    bounds = sorted(upper for _, upper in point.buckets if upper < math.inf)
    return {
        "ts": datetime.fromtimestamp(point.time, UTC),
        "ts_ns": point.time * 10**9,
        "series_id": point.series,
        "service_name": f"service-{point.series % 2}",
        "start_ns": None if point.start is None else point.start * 10**9,
        "count": int(point.value),
        "sum": point.sum,
        "bounds": bounds,
        "bucket_counts": [point.buckets.get(one, 0) for one in edges(bounds)],
        **COUNTED,
        **({"temporality": "delta"} if point.delta else {}),
        **more,
    }


def exponential_row(point, scale, positive, negative=(), zero=0, threshold=0.0, **more):
    """Return a row with counts by index; `positive` and `negative` are dictionaries."""

    def columns(name, counts):
        first = min(counts, default=0)
        filled = [
            counts.get(first + place, 0) for place in range(max(counts, default=-1) - first + 1)
        ]
        return {f"{name}_offset": first, f"{name}_counts": filled}

    row = histogram_row(Point(point.series, point.time, 0, point.start, point.delta), **more)
    total = sum(positive.values()) + sum(dict(negative).values()) + zero
    return {
        **row,
        "type": "exponential_histogram",
        "count": total,
        "bounds": None,
        "bucket_counts": None,
        "scale": scale,
        "zero_count": zero,
        "zero_threshold": threshold,
        **columns("positive", dict(positive)),
        **columns("negative", dict(negative)),
    }


@pytest.fixture
def lake(tmp_path):
    with tc.connect(tmp_path / "lake") as opened:
        table = TABLES["metric_histograms"]
        made = opened.create_table(table.name, **table.creation_options())
        made.cold.adopt_columns(table.schema, evolve=True)
        yield opened


def gained(lake, width=60):
    """Return by (series, window) what each bucket gained, as the column `histogram` says."""
    rows = lake.sql(f"select * from increase('metric_histograms', '{width}s')").to_pylist()
    return {
        (one["series_id"], int(one["ts"].timestamp())): {
            (bucket["lower"], bucket["upper"]): bucket["count"] for bucket in one["histogram"]
        }
        for one in rows
    }


@pytest.mark.parametrize("seed", range(5))
def test_what_buckets_gain_is_the_model_s_for_random_histograms(lake, seed):
    points = random_histograms(seed)
    rows = [histogram_row(point) for point in points]
    random.Random(seed).shuffle(rows)
    table = lake.table("metric_histograms")
    table.write(rows[::2])
    table.flush()
    table.write(rows[1::2])
    width = (60, 240, 41)[seed % 3]
    assert gained(lake, width) == bucket_increases(points, width, max(300, width))
    found = lake.sql(f"select * from rate('metric_histograms', '{width}s')").to_pylist()
    assert {
        (one["series_id"], int(one["ts"].timestamp())): (one["increase"], one["samples"])
        for one in found
    } == increases(points, width, max(300, width))
    sums = [Point(p.series, p.time, p.value, p.start, p.delta, p.sum) for p in points]
    assert math.isclose(
        sum(one["sum_increase"] or 0 for one in found), _sum_of(sums, max(300, width))
    )


def _sum_of(points, lookback):
    from query.series_model import steps

    total = 0.0
    for point, before, kind in steps(points, lookback):
        if kind != "unknown":
            total += point.sum if kind == "whole" else point.sum - before.sum
    return total


def base(scale):
    return 2 ** (2**-scale)


def test_an_exponential_histogram_that_loses_resolution_is_compared_at_the_smaller_scale(lake):
    first = exponential_row(Point(1, START_S, 0, START_S - 5), 1, {0: 2, 1: 3, 2: 1})
    second = exponential_row(Point(1, START_S + 30, 0, START_S - 5), 0, {0: 6, 1: 2, 3: 4})
    lake.table("metric_histograms").write([first, second])
    # Whole first sample at scale 0: {0: 5, 1: 1}; then 1 more in 0, 1 more in 1, 4 more in 3.
    assert gained(lake) == {(1, START_S): {(1.0, 2.0): 6, (2.0, 4.0): 2, (8.0, 16.0): 4}}


def test_exponential_buckets_have_the_bounds_that_the_protocol_says(lake):
    row = exponential_row(
        Point(1, START_S, 0, START_S - 5), 3, {-9: 1, 5: 2}, {-3: 4}, zero=7, threshold=1e-6
    )
    lake.table("metric_histograms").write([row])
    ((_, found),) = gained(lake).items()
    expected = {
        (base(3) ** -9, base(3) ** -8): 1,
        (base(3) ** 5, base(3) ** 6): 2,
        (-(base(3) ** -2), -(base(3) ** -3)): 4,
        (-1e-6, 1e-6): 7,
    }
    assert sorted(found.values()) == sorted(expected.values())
    for one, other in zip(sorted(found), sorted(expected), strict=True):
        assert one == pytest.approx(other)


def test_a_wider_zero_bucket_takes_the_buckets_below_it(lake):
    point = Point(1, START_S, 0, START_S - 5)
    later = Point(1, START_S + 30, 0, START_S - 5)
    lake.table("metric_histograms").write(
        [
            exponential_row(point, 0, {-3: 2, 1: 1}, zero=1, threshold=0.0),
            exponential_row(later, 0, {1: 4}, zero=5, threshold=0.25),
        ]
    )
    assert gained(lake) == {(1, START_S): {(-0.25, 0.25): 5, (2.0, 4.0): 4}}


def test_a_bucket_that_shrinks_shows_a_restart(lake):
    rows = [
        histogram_row(
            Point(1, START_S, 5.0, None, buckets={(-math.inf, 1.0): 5, (1.0, math.inf): 0})
        ),
        histogram_row(
            Point(1, START_S + 30, 6.0, None, buckets={(-math.inf, 1.0): 0, (1.0, math.inf): 6})
        ),
    ]
    lake.table("metric_histograms").write(rows)
    assert gained(lake) == {(1, START_S): {(1.0, math.inf): 6.0}}


def test_what_happened_while_bounds_changed_is_unknown(lake):
    first, second = edges([1.0]), edges([2.0])
    rows = [
        histogram_row(Point(1, START_S, 4.0, None, buckets=dict.fromkeys(first, 2))),
        histogram_row(Point(1, START_S + 15, 9.0, None, buckets=dict.fromkeys(second, 4))),
        histogram_row(Point(1, START_S + 30, 11.0, None, buckets=dict.fromkeys(second, 5))),
    ]
    lake.table("metric_histograms").write(rows)
    (found,) = lake.sql("select * from rate('metric_histograms', '1m')").to_pylist()
    assert (found["increase"], found["histogram"]) == (7.0, [])


@pytest.fixture(scope="module")
def engine():
    with Session(threads=1) as session:
        yield session


def ask(engine, q, *lists):
    """Return the quantile of several lists of (lower, upper, count[, scale])."""
    kind = "struct(lower double, upper double, count double, scale integer)[]"

    def number(value):
        return f"'{value}'::double"

    rows = ", ".join(
        "(["
        + ", ".join(
            f"{{'lower': {number(one[0])}, 'upper': {number(one[1])}, 'count': {number(one[2])},"
            f" 'scale': {one[3] if len(one) > 3 else 'null'}}}"
            for one in some
        )
        + f"]::{kind})"
        for some in lists
    )
    text = f"select histogram_quantile({q}, h) as q from (values {rows}) t(h)"
    return engine.sql(text).column("q")[0].as_py()


@pytest.mark.parametrize("seed", range(10))
def test_a_quantile_of_equal_bounds_is_that_of_prometheus(engine, seed):
    choose = random.Random(seed)
    bounds = sorted({choose.randrange(-20, 200) / 10 for _ in range(choose.randrange(1, 12))})
    lists = [
        [(*cell, float(choose.randrange(20))) for cell in edges(bounds)]
        for _ in range(choose.randrange(1, 5))
    ]
    merged = [
        (*cell, sum(one[place][2] for one in lists)) for place, cell in enumerate(edges(bounds))
    ]
    for q in (0.01, 0.5, 0.9, 0.99, 1.0, choose.random()):
        expected = quantile(q, merged)
        found = ask(engine, q, *lists)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), (q, merged)


def test_a_quantile_within_an_exponential_bucket_is_even_over_the_logarithm(engine):
    assert ask(engine, 0.5, [(1, 4, 2.0, -1)]) == pytest.approx(2.0)
    assert ask(engine, 0.5, [(-4, -1, 2.0, -1)]) == pytest.approx(-2.0)
    assert ask(engine, 0.5, [(-1, 1, 2.0, 0)]) == pytest.approx(0.0)
    # Two scales are added as distributions: half of what is in 1 to 4 lies below 2.
    assert ask(engine, 0.75, [(1, 4, 2.0, -1)], [(1, 2, 2.0, 0)]) == pytest.approx(2.0)


def test_bounds_that_differ_are_added_as_distributions(engine):
    # Below 1: 4 of the first and 2 of the second list; below 2: all eight.
    assert ask(engine, 0.75, [(0, 1, 4.0)], [(0, 2, 4.0)]) == pytest.approx(1.0)
    assert ask(engine, 0.875, [(0, 1, 4.0)], [(0, 2, 4.0)]) == pytest.approx(1.5)


def test_a_quantile_at_the_limits(engine):
    some = [(-math.inf, 1, 1.0), (1, 2, 1.0), (2, math.inf, 1.0)]
    assert ask(engine, 0.99, some) == 2.0
    assert ask(engine, 0, some) == 0.0
    assert ask(engine, -0.1, some) == -math.inf
    assert ask(engine, 1.1, some) == math.inf
    assert ask(engine, "null", some) is None
    assert ask(engine, 0.5, []) is None
    assert ask(engine, 0.5, [(0, 1, 0.0)]) is None
    assert ask(engine, 0.5, [(-math.inf, -1, 2.0)]) == -1.0


def test_a_quantile_by_group_over_a_table(lake):
    cells = edges([1.0, 2.0])
    points = [
        Point(
            series,
            START_S + 20,
            10.0,
            START_S,
            buckets=dict(zip(cells, counts, strict=True)),
        )
        for series, counts in ((1, (0, 10, 0)), (2, (10, 0, 0)), (3, (0, 0, 10)))
    ]
    lake.table("metric_histograms").write([histogram_row(point) for point in points])
    found = lake.sql(
        "select service_name, histogram_quantile(0.75, histogram) as p75,"
        " histogram_quantile(0.25, histogram) as p25 from rate('metric_histograms', '1m')"
        " where metric = 'duration' group by all order by all"
    ).to_pylist()
    assert found == [
        {"service_name": "service-0", "p75": 0.75, "p25": 0.25},
        {"service_name": "service-1", "p75": 2.0, "p25": 1.5},
    ]
