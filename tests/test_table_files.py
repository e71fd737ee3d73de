"""CSV and JSON files are appended with exact values, or not at all."""

import gzip
import json
from datetime import UTC, datetime

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

import thermocline as tc

NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def table(tmp_path):
    return tc.TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", timezone="Europe/Berlin", overlap="allow"
    )


def test_a_folder_of_csv_files_gives_an_empty_table_its_columns(table, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.csv").write_text("ts,x,code\n2024-06-01 14:00:00,1,007\n")
    (folder / "2.csv.gz").write_bytes(gzip.compress(b"ts,x,code\n2024-06-01T13:00:00Z,2.5,\n"))
    (folder / "3.json").write_text("not a CSV file")
    report = table.append_csv(folder)
    assert (report, report.row_count) == (2, 2)
    assert table.to_arrow().to_pylist() == [
        {"ts": NOON, "x": 1.0, "code": "007"},  # a clock time in the table's zone
        {"ts": NOON.replace(hour=13), "x": 2.5, "code": None},
    ]


def test_declared_types_win_and_only_new_columns_can_be_declared(table, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("ts,price\n2024-06-01T12:00:00Z,0.10\n")
    table.append_csv(file, types={"price": "decimal128(10, 2)"})
    assert table.schema().field("price").type == pa.decimal128(10, 2)
    with pytest.raises(tc.Invalid) as caught:
        table.append_csv(file, types={"price": pa.float64()})
    assert caught.value.facts["column"] == "price"
    with pytest.raises(tc.Invalid, match="no file has this column"):
        table.append_csv(file, types={"volume": "int64"}, evolve=True)
    with pytest.raises(tc.Invalid, match="not the types of columns"):
        table.append_csv(file, types="int64")


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.csv", "ts,n\n2024-06-01T12:00:00Z,1\n2024-06-01T13:00:00Z,2.5\n", 3),
        ("a.csv", "ts,n\n2024-06-01T12:00:00Z,1\n1717243200,2\n", 3),
        ("a.csv", "ts,n\n2024-06-01T12:00:00Z,1\n2024-06-01T13:00:00Z\n", 3),
        ("a.json", '{"ts": "2024-06-01T12:00:00Z", "n": 1}\n{"ts": null, "n": 1}\n', 2),
        ("a.json", '{"ts": "2024-06-01T12:00:00Z", "n": 1}\n{"ts": "2024-06-01T13:00:00Z"', 2),
        ("a.json", '[{"ts": "2024-06-01T12:00:00Z", "n": 9223372036854775808}]', 1),
    ],
)
def test_a_row_that_does_not_fit_refuses_the_append_and_is_named(table, tmp_path, name, text, line):
    file = tmp_path / name
    file.write_text(text)
    append = table.append_csv if name.endswith("csv") else table.append_json
    with pytest.raises(tc.Invalid) as caught:
        append(file, types={"n": "int64"})
    assert (caught.value.facts["file"], caught.value.facts["line"]) == (str(file), line)
    assert table.version() == 1
    assert not list((tmp_path / "t").rglob("*.parquet"))


def test_new_columns_need_evolve_and_a_transaction_is_appended_once(table, tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text('{"ts": "2024-06-01T12:00:00Z", "x": 1}')
    second.write_text('{"ts": "2024-06-01T13:00:00Z", "x": 2, "tags": {"host": "a"}}')
    table.append_json(first, txn=("nightly", 1))
    assert table.append_json(first, txn=("nightly", 1)) == 2
    with pytest.raises(tc.Invalid) as caught:
        table.append_json([first, second])
    assert caught.value.facts["columns"] == ["tags"]
    table.append_json(second, evolve=True)
    assert [row["tags"] for row in table.to_arrow().to_pylist()] == [None, {"host": "a"}]


def test_an_integer_index_takes_files_and_entity_tables_are_other_tables(tmp_path):
    blocks = tc.TimeSeriesTable.create(
        tmp_path / "b", index_column="height", index_type="uint64", bucket=100
    )
    (tmp_path / "b.csv").write_text("height,gas\n18446744073709551615,1\n7,2\n")
    blocks.append_csv(tmp_path / "b.csv")
    assert blocks.to_arrow()["height"].to_pylist() == [2**64 - 1, 7]


values = st.dictionaries(
    st.sampled_from(["i", "f", "s", "b"]),
    st.one_of(
        st.none(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.booleans(),
    ),
)
KINDS = {"i": "int64", "f": "float64", "s": "string", "b": "bool"}


def fits(name, value):
    """Return whether a column holds a value of JSON exactly: the plain model."""
    if value is None:
        return True
    if isinstance(value, bool):
        return name == "b"
    if isinstance(value, str):
        return name == "s" or (name == "f" and value in ("NaN", "Infinity", "-Infinity"))
    if name == "i":
        whole = isinstance(value, int) or (value.is_integer() and abs(value) < 2**53)
        return whole and -(2**63) <= value < 2**63
    return name == "f" and (isinstance(value, float) or int(float(value)) == value)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(values, max_size=4))
def test_json_is_stored_as_it_was_written_or_refused(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("json")
    table = tc.TimeSeriesTable.create(
        folder / "t", time_column="ts", bucket="1h", schema={"ts": "timestamp", **KINDS}
    )
    file = folder / "rows.ndjson"
    file.write_text("".join(json.dumps({"ts": "2024-06-01", **row}) + "\n" for row in rows))
    bad = [n for n, row in enumerate(rows, 1) if not all(fits(k, v) for k, v in row.items())]
    if bad:
        with pytest.raises(tc.Invalid) as caught:
            table.append_json(file)
        assert caught.value.facts["line"] == bad[0]
        return
    table.append_json(file)
    found = [{k: row[k] for k in KINDS} for row in table.to_arrow().to_pylist()]
    assert found == [{k: row.get(k) for k in KINDS} for row in rows]
