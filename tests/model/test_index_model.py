"""Tables with an integer index or calendar buckets, against a plain list of rows."""

import calendar
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thermocline as tc
from thermocline.errors import CoverageOverlapError, Invalid

EDGES = {
    "int64": [-(2**63), -(2**62), -11, -10, -1, 0, 1, 9, 10, 11, 99, 2**53 + 1, 2**63 - 1],
    "uint64": [0, 1, 9, 10, 11, 99, 2**53 + 1, 2**63, 2**64 - 11, 2**64 - 1],
}
ARROW = {"int64": pa.int64(), "uint64": pa.uint64()}
ENTITIES = ("a", "b", None)

kinds = st.sampled_from(["int64", "uint64"])
near = st.integers(0, 60)
steps = st.tuples(
    st.sampled_from(["append", "replace", "allow", "delete", "reopen"]),
    st.lists(st.tuples(st.integers(0, 15), st.sampled_from(ENTITIES)), min_size=1, max_size=4),
    near,
)


def table_of(kind, rows):
    """Return rows of (index, entity, value) as an Arrow table."""
    index, entity, value = zip(*rows, strict=True)
    return pa.table(
        {
            "height": pa.array(index, ARROW[kind]),
            "chain": pa.array(entity, pa.string()),
            "gas": pa.array(value, pa.int64()),
        }
    )


class PlainTable:
    """The rows in a list; every answer by looking at each of them."""

    def __init__(self, step):
        self.step = step
        self.rows = []

    def cells(self, rows):
        return {(entity, index // self.step) for index, entity, _ in rows}

    def append(self, rows, policy):
        held, new = self.cells(self.rows), self.cells(rows)
        if policy == "append" and held & new:
            raise CoverageOverlapError("held")
        if policy == "replace":
            self.rows = [row for row in self.rows if not self.cells([row]) & new]
        self.rows += rows

    def delete(self, low, high):
        self.rows = [row for row in self.rows if not low <= row[0] < high]

    def gaps(self, first, end):
        """Return the missing buckets between two values, as (entity, start of the bucket)."""
        buckets = range(first // self.step, -(-end // self.step))
        entities = {entity for _, entity, _ in self.rows}
        return {(e, b * self.step) for e in entities for b in buckets} - {
            (entity, bucket * self.step) for entity, bucket in self.cells(self.rows)
        }


@settings(max_examples=60, deadline=None)
@given(kind=kinds, step=st.sampled_from([3, 7, 10, 2**40]), history=st.lists(steps, max_size=7))
def test_an_integer_index_is_a_plain_list_of_rows(tmp_path_factory, kind, step, history):
    root = tmp_path_factory.mktemp("index") / "t"
    table = tc.TimeSeriesTable.create(
        root,
        index_column="height",
        index_type=kind,
        bucket=step,
        entity_columns="chain",
        schema={"height": kind, "chain": "string", "gas": "int64"},
    )
    plain = PlainTable(step)
    for number, (verb, places, at) in enumerate(history):
        pool = [*EDGES[kind], *range(20, 80, 7)]
        rows = [(pool[(place + at) % len(pool)], chain, number) for place, chain in places]
        if verb == "reopen":
            table.checkpoint()
            table = tc.TimeSeriesTable.open(root)
        elif verb == "delete":
            table.delete(f"gas < {number - 2}", start=at, end=at + 40)
            plain.rows = [r for r in plain.rows if not (at <= r[0] < at + 40 and r[2] < number - 2)]
        else:
            append_both(table, plain, kind, rows, verb)
        check_equal(table, plain, root)


def append_both(table, plain, kind, rows, verb):
    policy = "reject" if verb == "append" else verb
    try:
        plain.append(rows, verb)
    except CoverageOverlapError:
        with pytest.raises(CoverageOverlapError):
            table.append(table_of(kind, rows), overlap=policy)
    else:
        table.append(table_of(kind, rows), overlap=policy)


def check_equal(table, plain, root):
    found = sorted(map(tuple, map(dict.values, table.to_arrow().to_pylist())), key=repr)
    assert found == sorted(plain.rows, key=repr)
    session = tc.Session()
    session.register_tstable("t", root)
    for low, high in ((0, 11), (-(2**62), 2**62), (30, 2**64)):
        inside = [row for row in plain.rows if low <= row[0] < high]
        assert table.scan(start=low, end=high).read_all().num_rows == len(inside)
        answer = session.sql(
            "select count(*) n from t where height >= $1 and height < $2", [low, high]
        )
        assert answer.column("n").to_pylist() == [len(inside)]
    missing = {
        (row["chain"], start)
        for row in table.gaps(0, 100).to_pylist()
        for start in range(row["start"], row["end"], plain.step)
    }
    if plain.rows:
        assert missing == plain.gaps(0, 100)
    assert table.fsck().is_sound


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_every_edge_of_the_type_is_held_by_one_bucket(tmp_path, kind):
    table = tc.TimeSeriesTable.create(
        tmp_path / "t", index_column="h", index_type=kind, index_granularity=10
    )
    table.append(pa.table({"h": pa.array(EDGES[kind], ARROW[kind])}), overlap="allow")
    assert table.to_arrow().column("h").to_pylist() == EDGES[kind]
    runs = table.coverage().to_pylist()
    assert sum(run["buckets"] for run in runs) == len({value // 10 for value in EDGES[kind]})
    assert runs[0]["start"] == EDGES[kind][0]  # the first bucket is cut at the end of the type
    assert runs[-1]["end"] is None  # no value of the type is past the last bucket
    assert table.gaps(-(2**80), 2**80).num_rows
    assert table.coverage_ratio(-(2**80), 2**80) < 1e-9
    with pytest.raises(CoverageOverlapError) as caught:
        table.append(pa.table({"h": pa.array(EDGES[kind][-1:], ARROW[kind])}))
    assert caught.value.facts["overlapping"] == 1


@pytest.mark.parametrize(
    ("values", "kind"), [([1], pa.uint64()), ([1.0], pa.float64()), (["1"], pa.string())]
)
def test_an_index_of_another_type_is_refused(tmp_path, values, kind):
    table = tc.TimeSeriesTable.create(tmp_path / "t", index_column="h", bucket=10)
    with pytest.raises(Invalid):
        table.append(pa.table({"h": pa.array(values, kind)}))


def test_narrower_integers_are_taken_as_they_are(tmp_path):
    table = tc.TimeSeriesTable.create(tmp_path / "t", index_column="h", bucket=10)
    table.append(pa.table({"h": pa.array([1], pa.int16())}))
    table.append(pa.table({"h": pa.array([2**40], pa.int64())}))
    table.append(pa.table({"h": pa.array([20], pa.uint8())}))
    assert table.schema().field("h").type == pa.int64()
    assert sorted(table.to_arrow().column("h").to_pylist()) == [1, 20, 2**40]


@pytest.mark.parametrize(
    "options",
    [{"timezone": "UTC"}, {"retention": "9d"}, {"bucket": "1h"}, {"index_type": "int32"}],
)
def test_an_integer_index_has_no_clock(tmp_path, options):
    options = {"index_column": "h", "bucket": 10, "index_type": "int64", **options}
    with pytest.raises(Invalid):
        tc.TimeSeriesTable.create(tmp_path / "t", **options)


def test_an_integer_table_of_a_lake_is_written_queried_and_flushed(tmp_path):
    with tc.connect(tmp_path / "lake") as lake:
        blocks = lake.create_table("blocks", index_column="height", bucket=100)
        blocks.write([{"height": 7, "gas": 1}, {"height": 250, "gas": 2}])
        asked = "select height, gas from blocks where height > 100 order by height"
        assert lake.sql(asked).to_pylist() == [{"height": 250, "gas": 2}]
        gaps = "select * from gaps('blocks', 0, 400)"
        held = [{"start": 100, "end": 200, "buckets": 1}, {"start": 300, "end": 400, "buckets": 1}]
        assert lake.sql(gaps).to_pylist() == held == blocks.gaps(0, 400).to_pylist()
        version = blocks.flush()
        blocks.write([{"height": 350, "gas": 3}])
        assert lake.sql(asked).num_rows == 2
        assert blocks.scan(start=300).read_all().num_rows == 1
        assert lake.sql(f"select count(*) n from blocks at (version => {version})").to_pylist() == [
            {"n": 2}
        ]
        assert blocks.last_fully_covered_window(200) == (200, 400)
        assert blocks.info()["start"] == "0"
        assert "range" in blocks._repr_html_()


days = st.dates(date(1965, 1, 1), date(2035, 12, 31))


def month_of(day, count):
    return (day.year * 12 + day.month - 1 - 1970 * 12) // count


def week_of(day, count):
    return (day.toordinal() - date(1969, 12, 29).toordinal()) // 7 // count


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(days, min_size=1, max_size=5), min_size=1, max_size=4), st.data())
def test_calendar_buckets_are_those_of_the_calendar(tmp_path_factory, parts, data):
    word, unit_of = data.draw(st.sampled_from([("mo", month_of), ("w", week_of)]))
    count = data.draw(st.sampled_from([1, 2, 3, 12]))
    root = tmp_path_factory.mktemp("calendar") / "t"
    table = tc.TimeSeriesTable.create(root, time_column="ts", bucket=f"{count}{word}")
    held = set()
    for part in parts:
        moments = pa.array([datetime(d.year, d.month, d.day, 23, 59) for d in part])
        units = {unit_of(day, count) for day in part}
        if held & units:
            with pytest.raises(CoverageOverlapError):
                table.append(pa.table({"ts": moments}))
        else:
            table.append(pa.table({"ts": moments}))
            held |= units
    spans = tc.TimeSeriesTable.open(root).coverage().to_pylist()
    found = set()
    for span in spans:
        first, last = unit_of(span["start"].date(), count), unit_of(span["end"].date(), count)
        assert last - first == span["buckets"]
        assert (span["start"].hour, span["end"].hour) == (0, 0)
        assert word == "w" or span["start"].day == 1
        assert word == "mo" or span["start"].weekday() == calendar.MONDAY
        found |= set(range(first, last))
    assert found == held


def test_the_last_full_window_of_months_is_found(tmp_path):
    table = tc.TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1mo")
    table.append(pa.table({"ts": [datetime(2024, month, 9) for month in (1, 2, 3, 5)]}))
    one, two = datetime(2024, 5, 1, tzinfo=UTC), datetime(2024, 6, 1, tzinfo=UTC)
    assert table.last_fully_covered_window("1mo") == (one, two)
    spring = (datetime(2024, 2, 1, tzinfo=UTC), datetime(2024, 4, 1, tzinfo=UTC))
    assert table.last_fully_covered_window("2mo") == spring
    assert table.last_fully_covered_window("60d") == spring
    assert table.last_fully_covered_window("61d")[0] == datetime(2024, 1, 1, tzinfo=UTC)
