"""Files become rows, and what does not become one is told with its line, its text and a reason."""

import csv
import gzip
import io
import json

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from thermocline.errors import Invalid, Overloaded, Unavailable
from thermocline.format.bucket import Bucket
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import create_schema
from thermocline.ingest.files import csv_records
from thermocline.ingest.files.bad_rows import BadRowCollector
from thermocline.ingest.files.input_files import find_input_files
from thermocline.ingest.files.parse import ReadTarget, SchemaDrift, read_file

ARROW = pa.schema(
    [
        ("ts", pa.timestamp("us")),
        ("host", pa.string()),
        ("value", pa.float64()),
        ("count", pa.int64()),
    ]
)
HEAD = "ts,host,value,count\n"
GOOD = "2024-06-01T00:00:00,a,1.5,7\n"


def spec(**options):
    return TableSpec("", "ts", Bucket(3600), ("host",), "allow", **options)


def read(path, *, arrow=ARROW, strict=True, on_bad="quarantine", rows_max=1_000, **options):
    """Return the rows of a file, and its bad rows as (line, reason, raw)."""
    sieve = BadRowCollector(on_bad, rows_max)
    reading = ReadTarget(create_schema(arrow, "ts"), spec(**options), sieve, is_strict=strict)
    (file,) = find_input_files([path], None)
    rows = [row for batch in read_file(file, reading) for row in batch.to_pylist()]
    assert all(bad.file == str(path) for bad in sieve.bad)
    return rows, [(bad.line, bad.reason, bad.raw) for bad in sieve.bad]


@pytest.fixture
def file(tmp_path):
    """Write a file and return its path."""

    def write(text, name="in.csv"):
        path = tmp_path / name
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def test_S06_one_bad_row_among_a_million_is_found_with_its_line_and_the_others_are_in(file):
    lines = ["2024-06-01,a,1,1\n"] * 1_000_000
    lines[654_321] = "2024-06-01,a,one,1\n"
    path = file(HEAD + "".join(lines))
    sieve = BadRowCollector("quarantine", 10)
    reading = ReadTarget(create_schema(ARROW, "ts"), spec(), sieve, is_strict=True)
    count = sum(batch.num_rows for batch in read_file(find_input_files([path], None)[0], reading))
    assert count == 999_999
    (bad,) = sieve.bad
    assert (bad.line, bad.raw) == (654_323, "2024-06-01,a,one,1")
    assert "value" in bad.reason
    assert "one" in bad.reason


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2024-06-01,a,1\n", "3 fields where 4 are expected"),
        ("2024-06-01,a,1,2,3\n", "5 fields where 4 are expected"),
        ("yesterday,a,1,2\n", "ts"),
        (",a,1,2\n", "no time"),
        ("1717200000,a,1,2\n", "ts"),
        ("2024-06-01,a,much,2\n", "value"),
        ("2024-06-01,a,1,2.5\n", "count"),
        ("2024-06-01,a,1,99999999999999999999\n", "count"),
        ('2024-06-01,"a,1,2\n', "quote"),
    ],
)
def test_a_bad_line_of_csv_is_told_and_its_neighbours_are_in(file, line, said):
    rows, bad = read(file(HEAD + GOOD * 3 + line + GOOD * 2))
    assert len(rows) == 5
    ((number, reason, raw),) = bad
    assert (number, raw) == (5, line.rstrip("\n"))
    assert said in reason


def test_a_quote_that_is_never_closed_costs_one_line_wherever_it_stands(file, monkeypatch):
    monkeypatch.setattr(csv_records, "LINES_PER_ROW_MAX", 10)
    open_line = '2024-06-01,"a,1,2\n'
    rows, bad = read(file(HEAD + GOOD * 3 + open_line + GOOD * 30 + open_line + GOOD * 4))
    assert len(rows) == 37
    assert [number for number, _, _ in bad] == [5, 36]


def test_two_stray_quotes_do_not_make_one_row_of_all_lines_between_them(file):
    rows, bad = read(file(HEAD + GOOD + '2024-06-01,"a,1,2\n' + GOOD * 3 + '2024-06-01,"b,3,4\n'))
    assert len(rows) == 4
    assert [number for number, _, _ in bad] == [3, 7]


def test_lines_are_counted_as_an_editor_does(file):
    many = '2024-06-01,"two\nlines",1,2\n'
    rows, bad = read(file(HEAD + many + "\n" + many + "bad\n" + many))
    assert [row["host"] for row in rows] == ["two\nlines"] * 3
    assert [(number, raw) for number, _, raw in bad] == [(7, "bad")]


def test_bytes_that_are_no_text_cost_one_row(file):
    path = file(HEAD.encode() + GOOD.encode() + b"2024-06-01,\xff\xfe,1,2\n" + GOOD.encode())
    rows, bad = read(path)
    assert len(rows) == 2
    ((number, reason, raw),) = bad
    assert number == 3
    assert "UTF-8" in reason
    assert raw.startswith("2024-06-01,")


@pytest.mark.parametrize("bad", ["", "bad\n"])
def test_a_file_means_the_same_with_a_bad_row_and_without(file, bad):
    text = (
        "\ufeff" + HEAD + ' 2024-06-01 , a ,  1 ,\r\n"2024-06-01T02:00:00+02:00","x ""y""",,3\r\n'
    )
    rows, told = read(file(text + bad))
    assert [(row["host"], row["value"], row["count"]) for row in rows] == [
        (" a ", 1.0, None),
        ('x "y"', None, 3),
    ]
    assert rows[0]["ts"] == rows[1]["ts"]
    assert len(told) == len(bad.splitlines())


def test_clock_times_are_those_of_the_tables_zone_and_others_say_theirs(file):
    arrow = ARROW.set(0, pa.field("ts", pa.timestamp("us", tz="UTC")))
    text = HEAD + "2024-06-01T02:00:00,a,1,1\n2024-06-01T00:00:00Z,a,1,1\n"
    rows, bad = read(file(text), arrow=arrow, timezone="Europe/Berlin")
    assert not bad
    assert rows[0]["ts"] == rows[1]["ts"]


def test_a_clock_time_that_does_not_exist_is_a_bad_row(file):
    arrow = ARROW.set(0, pa.field("ts", pa.timestamp("us", tz="UTC")))
    text = HEAD + "2024-03-31T02:30:00,a,1,1\n2024-03-31T03:30:00,a,1,1\n"
    rows, bad = read(file(text), arrow=arrow, timezone="Europe/Berlin")
    assert len(rows) == 1
    assert [number for number, _, _ in bad] == [2]


@pytest.mark.parametrize("name", ["in.csv.gz", "in.tsv", "in.tsv.gz"])
def test_files_are_known_by_their_endings(file, name):
    text = (HEAD + GOOD).replace(",", "\t" if "tsv" in name else ",")
    rows, bad = read(file(text, name))
    assert (len(rows), bad) == (1, [])


def test_a_torn_file_is_told_and_is_no_error(file, tmp_path):
    whole = gzip.compress((HEAD + GOOD * 50).encode())
    path = tmp_path / "torn.csv.gz"
    path.write_bytes(whole[:-12])
    _, bad = read(path)
    assert len(bad) == 1
    assert "cannot be read further" in bad[0][1]


def test_a_file_that_this_machine_does_not_have_is_not_a_bad_one(file):
    path = file(HEAD + GOOD)
    (found,) = find_input_files([path], None)
    path.unlink()
    reading = ReadTarget(
        create_schema(ARROW, "ts"), spec(), BadRowCollector("quarantine", 10), is_strict=True
    )
    with pytest.raises(Unavailable):
        list(read_file(found, reading))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no header row"),
        ("host,value\na,1\n", "lacks columns"),
        ("ts,host,host\n2024-06-01,a,b\n", "twice"),
    ],
)
def test_a_file_that_cannot_be_a_part_of_the_table_is_told_as_a_whole(file, text, said):
    rows, bad = read(file(text))
    assert rows == []
    ((number, reason, _),) = bad
    assert number is None
    assert said in reason


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"ts": "2024-06-01", "host": "a", "value": "1"}', "value"),
        ('{"ts": "2024-06-01", "host": "a", "count": 1.5}', "count"),
        ('{"ts": "2024-06-01", "host": "a", "count": true}', "boolean"),
        ('{"ts": "2024-06-01", "host": 7}', "host"),
        ('{"ts": 1717200000, "host": "a"}', "ts"),
        ('{"host": "a"}', "no time"),
        ('{"ts": "2024-06-01", "host": "a", "value": NaN}', "not JSON"),
        ('{"ts": "2024-06-01", "host": "a"', "not JSON"),
        ("[1, 2]", "not a JSON object"),
    ],
)
def test_a_bad_line_of_json_is_told_and_its_neighbours_are_in(file, line, said):
    good = '{"ts": "2024-06-01T00:00:00Z", "host": "a", "value": 1, "count": 2}\n'
    rows, bad = read(file(good * 2 + "\n" + line + "\n" + good, "in.jsonl"))
    assert len(rows) == 3
    ((number, reason, raw),) = bad
    assert (number, raw) == (4, line)
    assert said in reason


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_a_negative_zero_of_json_keeps_its_sign(file, form):
    line = '{"ts": "2024-06-01", "host": "-0", "value": -0, "count": -0}'
    rows, bad = read(file(form.format(line), "in.json"))
    assert (rows[0]["host"], str(rows[0]["value"]), str(rows[0]["count"])) == ("-0", "-0.0", "0")
    assert bad == []


def test_a_json_array_is_rows_by_number(file):
    text = json.dumps([{"ts": "2024-06-01", "host": "a"}, 5, {"ts": "2024-06-02", "host": "b"}])
    rows, bad = read(file(text, "in.json"))
    assert [row["host"] for row in rows] == ["a", "b"]
    assert [(number, raw) for number, _, raw in bad] == [(2, "5")]


def test_rows_of_parquet_without_a_time_are_told_by_number(tmp_path):
    path = tmp_path / "in.parquet"
    times = pa.array([1, None, 3], pa.timestamp("us"))
    pq.write_table(pa.table({"ts": times, "host": ["a", "b", "c"]}), path)
    rows, bad = read(path)
    assert [row["host"] for row in rows] == ["a", "c"]
    ((number, reason, raw),) = bad
    assert number == 2
    assert "no time" in reason
    assert json.loads(raw)["host"] == "b"


def test_parquet_that_is_none_is_told_as_a_whole(file):
    rows, bad = read(file(b"PAR1 and no more", "in.parquet"))
    assert rows == []
    assert [number for number, _, _ in bad] == [None]


def test_the_first_bad_row_stops_where_none_is_allowed(file):
    with pytest.raises(Invalid) as caught:
        read(file(HEAD + GOOD + "bad\n"), on_bad="fail")
    assert caught.value.facts["line"] == 3


def test_too_many_bad_rows_stop(file):
    with pytest.raises(Overloaded) as caught:
        read(file(HEAD + "bad\n" * 20), rows_max=10)
    assert caught.value.facts["line"] == 2


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ts,host,new\n2024-06-01,a,1\n", "in.csv"),
        ('{"ts": "2024-06-01", "host": "a", "new": 1}\n', "in.jsonl"),
    ],
)
def test_S07_a_column_that_the_table_does_not_have_stops_or_is_left_out(file, text, name):
    path = file(text, name)
    with pytest.raises(SchemaDrift) as caught:
        read(path)
    assert caught.value.facts["columns"] == ["new"]
    rows, bad = read(path, strict=False)
    assert (len(rows), bad) == (1, [])


def test_S07_types_of_parquet_that_do_not_fit_stop_or_cost_the_file_or_its_rows(tmp_path):
    path = tmp_path / "in.parquet"
    times = pa.array([1, 2], pa.timestamp("us"))
    pq.write_table(pa.table({"ts": times, "host": ["a", "b"], "count": ["x", "y"]}), path)
    with pytest.raises(SchemaDrift) as caught:
        read(path)
    assert caught.value.facts["column"] == "count"
    rows, bad = read(path, strict=False)
    assert rows == []
    assert [number for number, _, _ in bad] == [None]
    narrow = ARROW.set(3, pa.field("count", pa.int8()))
    pq.write_table(pa.table({"ts": times, "host": ["a", "b"], "count": [1, 1_000]}), path)
    with pytest.raises(SchemaDrift):
        read(path, arrow=narrow)
    rows, bad = read(path, arrow=narrow, strict=False)
    assert [row["count"] for row in rows] == [1]
    assert [number for number, _, _ in bad] == [2]


TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r\ufeff"), min_size=1, max_size=6
)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(TEXTS, st.floats(allow_nan=False), st.integers(-9, 9)), max_size=8),
    st.lists(st.integers(0, 8), max_size=3),
)
def test_whatever_texts_hold_bad_rows_are_told_apart_from_them(tmp_path, good, places):
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    buffer.write(HEAD)
    lines = []
    for place, (host, value, count) in enumerate([*good, ("end", 0.0, 0)]):
        if place in places:
            lines.append(buffer.getvalue().count("\n") + 1)
            buffer.write("2024-06-01,?,nothing,1\n")
        writer.writerow(["2024-06-01", host, repr(value), count])
    path = tmp_path / "in.csv"
    path.write_text(buffer.getvalue(), newline="")
    rows, bad = read(path)
    assert [(r["host"], r["value"], r["count"]) for r in rows] == [*good, ("end", 0.0, 0)]
    assert [number for number, _, _ in bad] == lines


def test_values_that_a_column_would_round_or_cut_are_bad_rows_of_csv(file):
    rows, bad = read(
        file(
            HEAD
            + GOOD
            + "2024-06-01,a,9007199254740993,1\n"  # 2**53 + 1: no double is this number
            + "2024-06-01,a,1e400,1\n"
            + "2024-06-01,a,9007199254740992,1\n"
            + "2024-06-01,a,-inf,1\n"
        )
    )
    assert [row["value"] for row in rows] == [1.5, 2.0**53, float("-inf")]
    assert [(line, "value" in reason) for line, reason, _ in bad] == [(3, True), (4, True)]


DECIMAL = ARROW.append(pa.field("price", pa.decimal128(38, 20)))
LISTS = ARROW.append(pa.field("many", pa.list_(pa.int64()))).append(
    pa.field("one", pa.struct([("a", pa.int64())]))
)


@pytest.mark.parametrize(
    ("arrow", "line", "said"),
    [
        (ARROW, '"value": 9007199254740993', "value"),
        (ARROW, '"value": 18446744073709551617', "value"),
        (ARROW.set(2, pa.field("value", pa.float32())), '"value": 1e39', "value"),
        (LISTS, '"many": [1, 2.7]', "many"),
        (LISTS, '"one": {"a": 2.7}', "one"),
        (LISTS, '"one": {"a": 2, "b": 3}', "one"),
    ],
)
def test_values_that_a_column_would_round_or_cut_are_bad_rows_of_json(file, arrow, line, said):
    text = f'{{"ts": "2024-06-01", "host": "a", {line}}}'
    rows, bad = read(file(text + "\n", "in.jsonl"), arrow=arrow)
    assert rows == []
    ((number, reason, raw),) = bad
    assert (number, raw) == (1, text)
    assert f"column {said} (" in reason


@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_decimals_of_json_keep_every_digit(file, form):
    digits = "12345678901234567.12345678901234567891"
    line = f'{{"ts": "2024-06-01", "host": "a", "value": 0.5, "price": {digits}}}'
    rows, bad = read(file(form.format(line), "in.json"), arrow=DECIMAL)
    assert (str(rows[0]["price"]), rows[0]["value"], bad) == (digits, 0.5, [])


def test_whole_numbers_are_times_in_nanoseconds_or_no_times(file):
    arrow = ARROW.set(0, pa.field("ts", pa.timestamp("us", tz="UTC")))
    lines = ["1717200000000000000", "1717200000", "1717200000000", "1717200000000000"]
    lines.append("1717200000000000001")  # microseconds do not keep its last digit
    rows, bad = read(file(HEAD + "".join(f"{n},a,1,1\n" for n in lines)), arrow=arrow)
    assert [row["ts"].isoformat() for row in rows] == ["2024-06-01T00:00:00+00:00"]
    assert [line for line, _, _ in bad] == [3, 4, 5, 6]
    assert "nanoseconds since 1970" in bad[0][1]
    assert "2024-06-01T13:00:00Z" in bad[0][1]
    text = "".join(f'{{"ts": {n}, "host": "a"}}\n' for n in lines)
    rows, bad = read(file(text, "in.jsonl"), arrow=arrow)
    assert (len(rows), [line for line, _, _ in bad]) == (1, [2, 3, 4, 5])


def test_a_float_of_parquet_that_a_narrower_column_would_round_is_a_bad_row(tmp_path):
    path = tmp_path / "in.parquet"
    times = pa.array([1, 2, 3], pa.timestamp("us"))
    pq.write_table(pa.table({"ts": times, "host": ["a"] * 3, "value": [0.5, 0.1, 1e39]}), path)
    narrow = ARROW.set(2, pa.field("value", pa.float32()))
    rows, bad = read(path, arrow=narrow, strict=False)
    assert [row["value"] for row in rows] == [0.5]
    assert [number for number, _, _ in bad] == [2, 3]
