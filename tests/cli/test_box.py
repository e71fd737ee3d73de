"""Rows drawn as a box."""

import io

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from thermocline.cli.terminal.box import draw


def drawn(table, width=80, rows_max=40):
    sink = io.StringIO()
    draw(table.to_reader(), Console(file=sink, width=width, markup=False), rows_max)
    return sink.getvalue().splitlines()


def test_null_the_text_null_and_empty_text_look_different():
    cells = [line.split("│")[1].strip() for line in drawn(pa.table({"a": [None, "null", ""]}))[3:6]]
    assert cells == ["null", '"null"', '""']


def test_numbers_stand_to_the_right():
    lines = drawn(pa.table({"number": [1], "text": ["x"]}))
    assert lines[3] == "│      1 │ x    │"


def test_only_the_first_rows_are_drawn_and_the_rest_is_counted():
    lines = drawn(pa.table({"a": range(100)}), rows_max=3)
    assert len(lines) == 8
    assert lines[-1] == "3 of 100 rows"
    assert len(drawn(pa.table({"a": range(100)}), rows_max=0)) == 105


def test_columns_without_room_are_left_out_of_the_middle_and_counted():
    lines = drawn(pa.table({f"column_{n}": ["some text"] for n in range(20)}), width=60)
    assert "column_0" in lines[1]
    assert "column_19" in lines[1]
    assert "column_10" not in lines[1]
    assert "…" in lines[1]
    assert lines[-1].endswith("of 20 columns")


def test_times_are_as_long_as_the_most_exact_of_their_column():
    hours = pa.array([0, 3_600], pa.timestamp("s", tz="UTC"))
    seconds = pa.array([0, 1], pa.timestamp("s"))
    lines = drawn(pa.table({"hours": hours, "seconds": seconds}))
    assert lines[3] == "│ 1970-01-01 00:00 │ 1970-01-01 00:00:00 │"


def test_what_data_says_is_no_markup_and_steers_no_terminal():
    lines = drawn(pa.table({"[bold]a": ["[red]x[/red]\x1b[2J\ny"]}))
    assert "[bold]a" in lines[1]
    assert "[red]x[/red]␛[2J␊y" in lines[3]
    assert len(lines) == 6


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
        st.text(max_size=90) | st.integers(-(2**60), 2**60) | st.none(),
        min_size=1,
        max_size=12,
    ),
    st.integers(40, 200),
)
def test_no_line_is_wider_than_the_terminal(row, width):
    table = pa.Table.from_pylist([row])
    assert all(cell_len(line) <= width for line in drawn(table, width))
