"""Rates, increases and differences of series, against a model that goes sample by sample."""

import itertools
import random
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

import thermocline as tc
from query.series_model import Point, increases, window_of
from thermocline.errors import Invalid, NotFound, Overloaded
from thermocline.ingest.otlp.tables import TABLES
from thermocline.query.series.evaluate import SeriesFunction, TimeSlice, evaluate_series

START_S = 1_717_200_000
COUNTER = {"metric": "visits", "type": "sum", "temporality": "cumulative", "is_monotonic": True}


def random_points(seed, series=6, span_s=2_400):
    """Return samples with restarts, pauses, late starts, repeats and samples without a value."""
    choose = random.Random(seed)  # not a secret
    found = []
    for number in range(series):
        is_delta = number % 3 == 2
        start = START_S - choose.choice([10, 5_000])
        knows_start = choose.random() < 0.7
        time, value = START_S + choose.randrange(300), float(choose.randrange(50))
        while time < START_S + span_s:
            if choose.random() < 0.05:
                start, value = time - 1, float(choose.randrange(90))  # restarted
            if choose.random() < 0.04:
                time += choose.choice([400, 900])  # paused
            value = value + choose.randrange(9) if not is_delta else float(choose.randrange(9))
            shown = None if choose.random() < 0.05 else value
            began = time - 15 if is_delta else start
            point = Point(number, time, shown, began if knows_start else None, is_delta)
            found += [point] * (2 if choose.random() < 0.05 else 1)
            time += choose.choice([5, 15, 15, 20])
    return found


def point_row(point, **more):
    return {
        "ts": datetime.fromtimestamp(point.time, UTC),
        "ts_ns": point.time * 10**9,
        "series_id": point.series,
        "service_name": f"service-{point.series % 2}",
        "attributes": f'{{"number":{point.series}}}',
        "start_ns": None if point.start is None else point.start * 10**9,
        "value": point.value,
        **COUNTER,
        **({"temporality": "delta"} if point.delta else {}),
        **more,
    }


@pytest.fixture
def lake(tmp_path):
    with tc.connect(tmp_path / "lake") as opened:
        table = TABLES["metric_points"]
        made = opened.create_table(table.name, **table.creation_options())
        made.cold.adopt_columns(table.schema, evolve=True)
        yield opened


def write_in_parts(lake, points, seed):
    """Write samples out of order in four flushes, and the rest as hot rows."""
    rows = [point_row(point) for point in points]
    random.Random(seed).shuffle(rows)
    table = lake.table("metric_points")
    for part in range(5):
        table.write(rows[part::5])
        if part < 4:
            table.flush()


def answer(lake, sql):
    return lake.sql(sql).to_pylist()


@pytest.mark.parametrize("seed", range(6))
def test_an_increase_is_the_model_s_for_random_samples(lake, seed):
    points = random_points(seed)
    write_in_parts(lake, points, seed)
    width = (60, 300, 37)[seed % 3]
    found = {
        (one["series_id"], int(one["ts"].timestamp())): (one["increase"], one["samples"])
        for one in answer(lake, f"select * from increase('metric_points', '{width}s')")
    }
    assert found == increases(points, width, max(width, 300))


def test_windows_begin_where_time_bucket_begins_them(lake):
    write_in_parts(lake, random_points(1), 1)
    for width in ("1m", "7m", "1h", "1d", "7d"):
        text = {"m": "minutes", "h": "hours", "d": "days"}[width[-1]]
        (wrong,) = answer(
            lake,
            f"select count(*) as n from rate('metric_points', '{width}')"
            f" where ts <> time_bucket(interval '{width[:-1]} {text}', ts)",
        )
        assert wrong == {"n": 0}


@pytest.mark.parametrize("seed", range(4))
def test_conditions_that_are_pushed_to_samples_do_not_change_the_answer(lake, seed):
    write_in_parts(lake, random_points(seed), seed)
    moment = datetime.fromtimestamp(START_S + 700 + 90 * seed, UTC)
    for function in ("rate", "irate"):
        for column, operator, value in (
            ("ts", ">", moment),
            ("ts", "<=", moment),
            ("service_name", "=", "service-1"),
            ("series_id", ">=", 3),
            ("attributes", "=", '{"number":2}'),
            ("metric", "<", "z"),
        ):
            text = f"select * from {function}('metric_points', '1m') where {{}} order by 1, 10"
            pushed = lake.sql(text.format(f"{column} {operator} ?"), [value])
            hidden = f"coalesce({column}, {column}) {operator} ?"
            assert pushed.equals(lake.sql(text.format(hidden), [value])), (column, operator)
            assert pushed.num_rows


@pytest.mark.parametrize("seed", range(8))
def test_how_time_is_cut_into_slices_changes_nothing(seed):
    points = [point for point in random_points(seed) if point.value is not None]
    random.Random(seed).shuffle(points)
    table = pa.table(
        {
            "series_id": pa.array([point.series for point in points]),
            "time_ns": pa.array([point.time * 10**9 for point in points]),
            "start_ns": pa.array([(point.start or 0) * 10**9 for point in points]),
            "value": pa.array([point.value for point in points]),
            "is_delta": pa.array([point.delta for point in points]),
        }
    )
    times = table.column("time_ns").to_numpy()
    first, last = int(times.min()), int(times.max()) + 1
    choose = random.Random(seed + 100)

    def read(part):
        inside = (times >= part.low_ns) & (times < part.high_ns)
        return table.filter(pa.array(inside))

    for name in ("increase", "irate", "delta"):
        function = SeriesFunction(name, 60 * 10**9, 300 * 10**9)
        whole = evaluate_series(function, [TimeSlice(first, last)], read, None).rows
        cuts = sorted(choose.randrange(first, last) for _ in range(choose.randrange(1, 30)))
        edges = [first, *cuts, last]
        slices = [TimeSlice(*pair) for pair in itertools.pairwise(edges)]
        parts = evaluate_series(function, slices, read, None).rows
        key = [("series_id", "ascending"), ("ts", "ascending")]
        one, other = whole.sort_by(key), parts.sort_by(key)
        assert one.drop_columns(["series_id"]).num_rows == other.num_rows
        for column in one.column_names:
            left = one.column(column).to_numpy(zero_copy_only=False)
            right = other.column(column).to_numpy(zero_copy_only=False)
            if left.dtype.kind == "f":
                assert np.allclose(left, right, rtol=1e-12, equal_nan=True), (name, column)
            else:
                assert (left == right).all(), (name, column)


def test_a_difference_of_a_gauge_may_be_negative_and_counters_are_not_gauges(lake):
    gauge = {"type": "gauge", "temporality": None, "is_monotonic": None}
    rows = [
        point_row(Point(1, START_S + at, value), **gauge)
        for at, value in ((0, 5.0), (30, 3.0), (60, 9.0), (90, 1.0))
    ]
    rows.append(point_row(Point(2, START_S + 5, 7.0, START_S)))
    lake.table("metric_points").write(rows)
    found = answer(lake, "select * from delta('metric_points', '1m') order by ts")
    assert [(one["series_id"], one["delta"]) for one in found] == [(1, -2.0), (1, -2.0)]
    (counter,) = answer(lake, "select series_id, increase from rate('metric_points', '1m')")
    assert counter == {"series_id": 2, "increase": 7.0}


def test_an_instant_rate_is_that_of_the_last_two_samples(lake):
    points = [Point(1, START_S + at, value) for at, value in ((0, 1.0), (10, 2.0), (30, 12.0))]
    lake.table("metric_points").write([point_row(point) for point in points])
    (found,) = answer(lake, "select rate from irate('metric_points', '1m')")
    assert found == {"rate": 0.5}


def test_a_sample_that_was_sent_twice_counts_once(lake):
    point = Point(1, START_S + 20, 4.0, START_S, delta=True)
    lake.table("metric_points").write([point_row(point)] * 3)
    assert answer(lake, "select increase from rate('metric_points', '1m')") == [{"increase": 4.0}]


def test_the_lookback_can_be_longer(lake):
    points = [Point(1, START_S, 1.0), Point(1, START_S + 900, 5.0)]
    lake.table("metric_points").write([point_row(point) for point in points])
    short = answer(lake, "select sum(increase) as n from rate('metric_points', '1m')")
    long = answer(lake, "select sum(increase) as n from rate('metric_points', '1m', '15m')")
    assert (short, long) == ([{"n": None}], [{"n": 4.0}])


def test_two_calls_a_join_and_an_empty_table_answer(lake):
    empty = "select * from rate('metric_points', '1m')"
    assert lake.sql(empty).num_rows == 0
    write_in_parts(lake, random_points(3), 3)
    (found,) = answer(
        lake,
        "select count(*) as n, sum(a.increase) as one, sum(b.increase) as other"
        " from rate('metric_points', '1m') a join increase('metric_points', '1m') b"
        " using (ts, series_id) where a.metric = 'visits' and b.service_name = 'service-0'",
    )
    (alone,) = answer(
        lake,
        "select count(*) as n, sum(increase) as one, sum(increase) as other"
        " from rate('metric_points', '1m') where service_name = 'service-0'",
    )
    assert found == alone
    assert found["n"] > 0


FILLED = "select * from rate('metric_points', '1m')"


@pytest.mark.parametrize(
    ("sql", "error", "part"),
    [
        ("select * from rate('metric_points')", Invalid, "arguments"),
        ("select * from rate('nothing', '1m')", NotFound, "table"),
        ("select * from rate('metric_points', 'x')", Invalid, "duration"),
        ("select * from rate('metric_points', '1mo')", Invalid, "month"),
        ("select * from rate('metric_points', interval '1 month')", Invalid, "month"),
        ("select * from rate('metric_points', '0s')", Invalid, "at least 1 second"),
        ("select * from rate('logs', '1m')", Invalid, "no series"),
        ("select * from rate('metric_points', metric)", Invalid, "constant"),
        ("select rate('metric_points', '1m')", Invalid, "not allowed"),
        ("select * from fill_gaps('metric_points', '1m')", Invalid, "query in brackets"),
        ("select * from fill_gaps((select 1 as a), '1m')", Invalid, "one time column"),
        (
            "select * from fill_gaps((select * from read_csv('/etc/passwd')), '1m')",
            Invalid,
            "not allowed",
        ),
        ("select * from fill_gaps((select * from nothing), '1m')", NotFound, "table"),
        ("select * from fill_gaps((select now() as ts), '1d')", Invalid, "start of a window"),
        ("select * from fill_gaps((select now() as ts), '1d', 'soon')", Invalid, "unknown way"),
        (
            "select * from fill_gaps((" * 6 + FILLED + "), '1m')" * 6,
            Invalid,
            "nested too deeply",
        ),
        (
            "select * from fill_gaps((select today() as ts from range(2100000)), '1d')",
            Overloaded,
            "more rows",
        ),
    ],
)
def test_a_wrong_call_is_refused_with_the_reason(lake, sql, error, part):
    logs = TABLES["logs"]
    lake.create_table(logs.name, **logs.creation_options()).cold.adopt_columns(
        logs.schema, evolve=True
    )
    with pytest.raises(error) as found:
        lake.sql(sql)
    assert part in str(found.value)


WINDOWS = "select time_bucket(interval '1 minute', ts) as ts, service_name, sum(value) as n"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("null", [2.0, None, None, 8.0]),
        ("previous", [2.0, 2.0, 2.0, 8.0]),
        ("linear", [2.0, 4.0, 6.0, 8.0]),
    ],
)
def test_gaps_are_filled_for_every_group(lake, mode, expected):
    points = [Point(0, START_S, 2.0), Point(0, START_S + 180, 8.0), Point(1, START_S + 60, 1.0)]
    lake.table("metric_points").write([point_row(point) for point in points])
    found = answer(
        lake,
        f"select * from fill_gaps(({WINDOWS} from metric_points where value > $least"
        f" group by all), '1m', '{mode}') where service_name = 'service-0' order by ts".replace(
            "$least", "0"
        ),
    )
    assert [one["n"] for one in found] == expected
    assert [int(one["ts"].timestamp()) - START_S for one in found] == [0, 60, 120, 180]
    other = answer(
        lake,
        f"select n from fill_gaps(({WINDOWS} from metric_points group by all), '1m', '{mode}')"
        " where service_name = 'service-1' order by ts",
    )
    after = 1.0 if mode == "previous" else None
    assert [one["n"] for one in other] == [None, 1.0, after, after]


def test_a_filled_query_takes_parameters_and_functions_of_series(lake):
    points = random_points(5)
    write_in_parts(lake, points, 5)
    inner = "select ts, service_name, sum(increase) as n from rate('metric_points', '1m')"
    found = lake.sql(
        f"select * from fill_gaps(({inner} where service_name = ? group by all), '1m')"
        " where ts >= ? order by ts",
        ["service-1", datetime.fromtimestamp(START_S, UTC)],
    )
    times = [int(time.timestamp()) for time in found.column("ts").to_pylist()]
    expected = [
        window_of(point.time, 60)
        for point in points
        if point.series % 2 and point.value is not None
    ]
    assert times == list(range(min(expected), max(expected) + 1, 60))


@pytest.mark.parametrize(
    "kind", [(unit, zone) for unit in ("ms", "us", "ns") for zone in ("UTC", None)]
)
def test_any_table_with_series_and_values_has_rates_whatever_its_times(make_table, session, kind):
    unit, zone = kind
    scale = {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    times = pa.array([(START_S + 10 * place) * scale for place in range(30)], pa.int64())
    columns = {
        "ts": times.cast(pa.timestamp(unit, tz=zone)),
        "series_id": pa.array([7] * 30),
        "value": pa.array([float(place) for place in range(30)]),
    }
    session.register_tstable("counts", make_table(pa.table(columns)))
    text = "select increase from rate('counts', '1m') where ts >= ? order by ts"
    found = session.sql(text, [datetime.fromtimestamp(START_S + 60, UTC)])
    assert found.column("increase").to_pylist() == [6.0] * 4
    (whole,) = session.sql("select sum(increase) as n from rate('counts', '1m')").to_pylist()
    assert whole == {"n": 29.0}
    (series,) = session.sql("select samples, last_seen from metric_series('counts')").to_pylist()
    assert series == {"samples": 30, "last_seen": datetime.fromtimestamp(START_S + 290, UTC)}
