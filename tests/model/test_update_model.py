"""Updates and upserts by key, against a plain dict; and what a report counts."""

import threading
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thermocline as tc
from fixtures.lake import rows
from thermocline.errors import Conflict, CoverageOverlapError, Invalid, NotFound

START = datetime(2024, 6, 1)
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us")),
        ("host", pa.string()),
        ("value", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)

keys = st.tuples(st.integers(0, 9), st.sampled_from(["a", "b", None]))
values = st.sampled_from([None, 0.0, -0.0, 1.5, 2.5])
changes = st.dictionaries(keys, values, min_size=1, max_size=5)
verbs = st.sampled_from(["update", "upsert", "append", "delete", "reopen"])


def table_of(cells, *, with_tags=False):
    """Return rows by (hour, host) as an Arrow table."""
    columns = {
        "ts": pa.array([START + timedelta(hours=hour) for hour, _ in cells], SCHEMA.field(0).type),
        "host": pa.array([host for _, host in cells], pa.string()),
        "value": pa.array(list(cells.values()), pa.float64()),
    }
    if with_tags:
        columns["tags"] = pa.array([["new"]] * len(cells), SCHEMA.field(3).type)
    return pa.table(columns)


def content(table):
    """Return the rows by key; a key that is held twice is an error."""
    found = {}
    for row in table.to_arrow().to_pylist():
        key = ((row["ts"] - START) // timedelta(hours=1), row["host"])
        assert key not in found
        found[key] = (repr(row["value"]), row["tags"])
    return found


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(verbs, changes), max_size=8))
def test_updates_are_those_of_a_plain_dict(tmp_path_factory, history):
    root = tmp_path_factory.mktemp("update") / "t"
    table = tc.TimeSeriesTable.create(
        root, time_column="ts", bucket="1h", entity_columns="host", schema=SCHEMA
    )
    plain = {}
    for verb, given_cells in history:
        if verb == "reopen":
            table.checkpoint()
            table = tc.TimeSeriesTable.open(root)
        elif verb == "delete":
            table.delete("value = 1.5")
            plain = {key: held for key, held in plain.items() if held[0] != "1.5"}
        elif verb == "append":
            fresh = {key: one for key, one in given_cells.items() if key not in plain}
            table.append(table_of(fresh, with_tags=True))
            plain |= {key: (repr(one), ["new"]) for key, one in fresh.items()}
        else:
            update_both(table, plain, given_cells, inserts=verb == "upsert")
        assert content(table) == plain
        assert sum(run["buckets"] for run in table.coverage().to_pylist()) == len(plain)
    assert table.fsck().is_sound


def update_both(table, plain, cells, *, inserts):
    before = table.version()
    known = {key for key in cells if key in plain}
    if not inserts and known != cells.keys():
        with pytest.raises(Invalid) as caught:
            table.update_rows(table_of(cells))
        assert caught.value.facts["observed_violations"] == len(cells.keys() - known)
        assert caught.value.facts["reason"] == "unmatched_source_key"
        assert table.version() == before
        return
    same = {key for key in known if plain[key][0] == repr(cells[key])}
    verb = table.upsert if inserts else table.update_rows
    report = verb(table_of(cells))
    assert (report.matched, report.unchanged) == (len(known), len(same))
    assert report.inserted == len(cells) - len(known)
    assert report.no_op == (same == cells.keys())
    assert report.committed_version == table.version() == before + (not report.no_op)
    plain |= {
        key: (repr(one), plain[key][1] if key in plain else None) for key, one in cells.items()
    }


@pytest.fixture
def prices(table):
    table.append(rows([0, 1, 2, 3]))
    table.append(rows([0, 1], "AMD"))
    return table


def test_columns_that_the_rows_lack_keep_their_values(prices):
    prices.add_column("note", pa.string())
    stamped = rows([1]).drop_columns(["close"]).append_column("note", pa.array(["late"]))
    report = prices.update_rows(stamped, columns=["note"], key=["symbol", "ts"])
    assert (report.matched, report.inserted, report.unchanged) == (1, 0, 0)
    found = prices.to_arrow(where="note = 'late'").to_pylist()
    assert [(row["symbol"], row["close"]) for row in found] == [("NVDA", 1.0)]


def test_a_null_in_the_rows_is_a_new_value(prices):
    cleared = rows([1]).set_column(2, "close", pa.array([None], pa.float64()))
    prices.update_rows(cleared)
    assert prices.to_arrow(where="close is null").num_rows == 1


def test_an_update_needs_the_version_it_was_computed_from(prices):
    version = prices.version()
    prices.append(rows([9]))
    with pytest.raises(Conflict) as caught:
        prices.update_rows(rows([1], close=5), expected_version=version)
    assert caught.value.facts == {"expected": version, "found": version + 1}
    assert prices.update_rows(rows([1], close=5), expected_version=version + 1).rows_updated == 1


def test_an_old_version_still_has_the_old_values(prices):
    version = prices.version()
    prices.update_rows(rows([1], close=500))
    old = prices.to_arrow(at=version, where="close = 500").num_rows
    assert (old, prices.to_arrow(where="close >= 500").num_rows) == (0, 1)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda t: pa.concat_tables([t, t]), {"reason": "duplicate_source_key"}),
        (
            lambda t: t.set_column(0, "ts", pa.nulls(t.num_rows, t.schema.field("ts").type)),
            {"reason": "null_identity"},
        ),
        (lambda t: t.drop_columns(["symbol"]), {"missing": ["symbol"]}),
        (lambda t: t.append_column("more", pa.array([1])), {}),
        (lambda t: t.drop_columns(["close"]), {}),
    ],
)
def test_rows_that_cannot_be_an_update_are_refused(prices, change, facts):
    version = prices.version()
    with pytest.raises(Invalid) as caught:
        prices.update_rows(change(rows([1])))
    assert facts.items() <= caught.value.facts.items()
    assert prices.version() == version


@pytest.mark.parametrize("columns", [["nope"], ["ts"], ["symbol"], ["close", "close"]])
def test_columns_that_cannot_be_set_are_refused(prices, columns):
    with pytest.raises((Invalid, NotFound)):
        prices.update_rows(rows([1]), columns=columns)


def test_a_key_is_the_entity_columns_and_the_index(prices):
    with pytest.raises(Invalid) as caught:
        prices.upsert(rows([1]), key=["close"])
    assert caught.value.facts["key_columns"] == ["symbol", "ts"]


def test_an_update_sees_rows_that_were_appended_while_it_was_planned(tmp_path):
    table = tc.TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", entity_columns="symbol", overlap="allow"
    )
    table.append(rows([0, 1, 2]))
    other = tc.TimeSeriesTable.open(tmp_path / "t")
    raced = threading.Event()

    def append_first():
        if not raced.is_set():
            raced.set()
            other.append(rows([1], "AMD", close=3))

    table.cold.check_before_commit = append_first
    report = table.upsert(pa.concat_tables([rows([1], close=9), rows([1], "AMD", close=9)]))
    assert (report.matched, report.inserted) == (2, 0)
    found = table.to_arrow(start="2024-06-01T01:00", end="2024-06-01T02:00")
    assert found.column("close").to_pylist() == [9.0, 9.0]


def test_a_unique_table_keeps_one_row_for_each_entity_and_bucket(tmp_path):
    table = tc.TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", entity_columns="symbol", unique=True
    )
    assert table.spec().features == ("unique",)
    table.append(rows([0, 1]))
    table.append(rows([0, 1], "AMD"))
    with pytest.raises(Invalid, match="two rows of one entity"):
        table.append(pa.concat_tables([rows([5]), rows([5])]))
    with pytest.raises(CoverageOverlapError):
        table.append(rows([1]))
    for overlap in ("allow",):
        with pytest.raises(Invalid, match="unique"):
            table.append(rows([7]), overlap=overlap)
        with pytest.raises(Invalid, match="unique"):
            table.set_overlap(overlap)
    table.append(rows([1], close=9), overlap="replace")
    assert table.upsert(rows([1, 2], close=8)).inserted == 1
    assert table.to_arrow().num_rows == 5
    late = rows([2]).set_column(
        0,
        "ts",
        pa.array([START + timedelta(hours=2, minutes=5)]).cast(rows([2]).schema.field("ts").type),
    )
    with pytest.raises(CoverageOverlapError):
        table.upsert(late)


def test_hot_rows_of_a_lake_are_updated_too(tmp_path):
    with tc.connect(tmp_path / "lake") as lake:
        table = lake.create_table("m", index_column="n", bucket=10, entity_columns="host")
        table.write([{"n": 1, "host": "a", "v": 1.0}, {"n": 2, "host": "a", "v": 2.0}])
        report = table.upsert(pa.table({"n": [2, 3], "host": ["a", "a"], "v": [20.0, 30.0]}))
        assert (report.matched, report.inserted) == (1, 1)
        answer = lake.sql("select v from m order by n").column("v").to_pylist()
        assert answer == [1.0, 20.0, 30.0]
