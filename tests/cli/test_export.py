"""Rows written out, and read again by somebody else."""

import csv
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.cli.argument import Format
from thermocline.cli.terminal.export import write_rows
from thermocline.errors import Invalid
from thermocline.show.lines import distinct_names


def written(table, form, *, is_file=False):
    sink = io.BytesIO()
    write_rows(table.to_reader(), form, sink, is_file=is_file)
    return sink.getvalue()


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
def test_any_text_comes_back_from_csv(rows):
    table = pa.table({"a": [a for a, _ in rows], "b,\n": [b for _, b in rows]})
    data = written(table.cast(pa.schema([("a", pa.string()), ("b,\n", pa.string())])), Format.CSV)
    found = list(csv.reader(io.StringIO(data.decode(), newline="")))
    assert found == [["a", "b,\n"], *(list(row) for row in rows)]


def test_an_empty_answer_has_a_header():
    table = pa.table({"a": pa.array([], pa.int64())})
    assert written(table, Format.CSV) == b"a\n"
    assert written(table, Format.JSON) == (
        b'{"columns":[{"name":"a","type":"int64"}],"rows":[\n]}\n'
    )
    assert written(table, Format.NDJSON) == b""


def test_many_batches_are_one_answer():
    table = pa.concat_tables([pa.table({"a": [n]}) for n in range(3)])
    assert written(table, Format.CSV) == b"a\n0\n1\n2\n"
    assert written(table, Format.NDJSON).count(b"\n") == 3
    assert written(table, Format.JSON).count(b"{") == 5


def test_a_type_that_parquet_lacks_is_invalid_and_says_what_to_use():
    table = pa.table({"a": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(Invalid) as caught:
        written(table, Format.PARQUET)
    assert "--format" in caught.value.hint


@given(st.lists(st.sampled_from(["a", "a_2", "a_3", "b"]), max_size=8))
def test_names_are_made_to_differ_and_the_first_of_each_stays(names):
    found = distinct_names(names)
    assert len(set(found)) == len(names)
    for place, name in enumerate(names):
        if name not in names[:place]:
            assert found[place] == name
