"""The type of a new column is what most of its cells are, wherever they stand."""

import pyarrow as pa
import pytest

from thermocline.format.bucket import Bucket
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import Schema
from thermocline.ingest.files.infer_columns import (
    add_counts,
    count_cells,
    count_texts,
    infer_columns,
)
from thermocline.ingest.files.input_files import find_input_files

SPEC = TableSpec("", "ts", Bucket(3600))
LARGE = str(2**53 + 1)
UTC = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1"] * 9 + ["oops"], pa.int64()),
        (["1", "2", "oops"], pa.int64()),
        (["1", "2", "oops", "oops"], pa.string()),
        (["1", "2.5", "oops"], pa.float64()),
        (["1"] * 99 + ["2.5"], pa.float64()),
        (["1.5"] * 9 + ["NA"], pa.float64()),
        ([LARGE] * 9 + ["2.5"], pa.int64()),
        (["2.5"] * 9 + [LARGE], pa.float64()),
        (["2.5"] * 5 + [LARGE] * 5, pa.string()),
        (["1"] * 5 + ["2.5"] * 2 + [LARGE], pa.float64()),
        (["1"] * 5 + ["2.5"] + [LARGE] * 2, pa.int64()),
        ([str(2**63 - 1), str(-(2**63))], pa.int64()),
        ([str(2**64)], pa.string()),
        (["9223372036854775807"] * 9 + [str(2**64)], pa.int64()),
        (["10001"] * 99 + ["00501"], pa.string()),
        (["0", "-1", "10"], pa.int64()),
        (["+5", "1e5", ".5", "nan", "-inf"], pa.float64()),
        (["true", "False"] * 5 + [""], pa.bool_()),
        (["2024-06-01"] * 9 + ["soon"], pa.date32()),
        (["2024-06-01", "2024-06-01T10:00:00"], pa.timestamp("us")),
        (["2024-06-01"] * 9 + ["2024-06-01T10:00:00"], pa.timestamp("us")),
        (["true", "false", "soon"], pa.bool_()),
        (["2024-06-01 10:00:00.1234567Z"], pa.timestamp("ns", tz="UTC")),
        (["2024-06-01T10:00:00+02:00"], UTC),
        (["", " ", ""], pa.string()),
        ([], pa.string()),
    ],
)
def test_a_column_is_what_more_than_half_of_its_cells_are(cells, kind):
    assert count_texts(pa.array(cells, pa.string())).column_type() == kind


@pytest.fixture
def guessed(tmp_path):
    """Write files and return the types that their columns come to together."""

    def of(*texts, name="in.csv"):
        counts = {}
        for number, text in enumerate(texts):
            path = tmp_path / f"{number}-{name}"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            (file,) = find_input_files([path], None)
            add_counts(counts, count_cells(file, SPEC))
        found = infer_columns(counts, SPEC, Schema(()), {})
        return dict(zip(found.names, found.types, strict=True))

    return of


def test_the_last_of_many_cells_counts_as_the_first_does(guessed):
    many = "ts,v\n" + "2024-06-01T00:00:00Z,1\n" * 200_000
    assert guessed(many + "2024-06-01T00:00:00Z,2.5\n") == {"ts": UTC, "v": pa.float64()}


def test_cells_of_all_files_are_counted_together(guessed):
    good = "ts,v\n" + "2024-06-01,1\n" * 9
    assert guessed(good, "ts,v\n2024-06-01,oops\n")["v"] == pa.int64()
    assert guessed(good, "ts,v\n" + "2024-06-01,oops\n" * 9)["v"] == pa.string()


@pytest.mark.parametrize(
    "bad", [b"2024-06-01,\xff\n", b"2024-06-01\n", b'2024-06-01,"two\nlines"\n']
)
def test_a_line_that_cannot_be_read_leaves_the_others_counted(guessed, bad):
    assert guessed(b"ts,v\n" + b"2024-06-01,1\n" * 9 + bad + b"2024-06-01,1\n" * 9) == {
        "ts": pa.timestamp("us"),
        "v": pa.int64(),
    }


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1"] * 9 + ['"oops"'], pa.int64()),
        (["1"] * 9 + ["2.5"], pa.float64()),
        ([LARGE] * 9 + ["2.5"], pa.int64()),
        (["true"] * 9 + ["1"], pa.bool_()),
        (['"a"'] * 9 + ["1"], pa.string()),
        (['"1"'] * 9, pa.string()),
        (["[1, 2]"] * 9 + ["3"], pa.list_(pa.int64())),
        (["null"], pa.string()),
    ],
)
def test_values_of_json_are_counted_by_what_they_are(guessed, values, kind):
    lines = [f'{{"ts": "2024-06-01T00:00:00Z", "v": {value}}}\n' for value in values]
    assert guessed("".join(lines), name="in.jsonl") == {"ts": UTC, "v": kind}


def test_times_that_are_whole_numbers_are_instants_in_nanoseconds(guessed):
    found = guessed("ts,v\n1717200000000000000,1\n")
    assert found["ts"] == pa.timestamp("ns", tz="UTC")
