"""Draws rows as a box that fits the terminal.

In:   a stream of Arrow batches, a console
Out:  the box and a line under it that says what it omits

- Every line fits: wide columns are cut first, down to `WIDTH_CUT_MIN`; then columns in the middle
  are omitted. The line under the box says how many.
- Null differs from the text `null`, which is written in quotes, and from the empty text `""`.
- Times are in UTC or without a zone, with as many digits as the most exact time of their column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.show.text import visible
from thermocline.show.value import text_values

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

ROWS_SHOWN_DEFAULT = 40
WIDTH_CUT_MIN = 12
WIDTH_CUT_MAX = 60
_FRAME = 3  # a border and a space on either side
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """One column as it is drawn; None is null, and a column with `is_whole` is never cut."""

    name: str
    cells: tuple[str | None, ...]
    is_number: bool = False
    is_whole: bool = False

    @property
    def width(self) -> int:
        """The columns of a terminal that the widest cell takes."""
        from rich.cells import cell_len

        return max(cell_len(text) for text in (self.name, *(c or "null" for c in self.cells)))


def draw(
    rows: pa.RecordBatchReader,
    console: "Console",
    rows_max: int = ROWS_SHOWN_DEFAULT,
    nouns: tuple[str, str] = ("row", "rows"),
    also: str = "",
) -> None:
    """Draw the first rows, and their number below them; 0 draws all rows.

    `nouns` are the singular and the plural for the rows; `also` is written after the number.
    """
    kept, count = _take_rows(rows, rows_max)
    columns = [
        _format_column(kept.column(place), name) for place, name in enumerate(kept.schema.names)
    ]
    fitted = fit_columns(columns, console.width)
    console.print(_build_table(fitted, kept.num_rows))
    remarks = [f"{count:,} {nouns[count != 1]}"]
    if kept.num_rows < count:
        remarks[0] = f"{kept.num_rows:,} of {remarks[0]}"
    drawn = sum(column is not None for column, _ in fitted)
    if drawn < len(columns):
        remarks.append(f"{drawn} of {len(columns)} columns")
    remarks += [also] if also else []
    console.print(", ".join(remarks), style="dim")


def fit_columns(columns: Sequence[ShownColumn], width: int) -> list[tuple[ShownColumn | None, int]]:
    """Return the columns that fit, each with its width; None stands for the omitted columns."""
    widths = [min(column.width, WIDTH_CUT_MAX) for column in columns]
    least = [
        wide if column.is_whole else min(wide, WIDTH_CUT_MIN)
        for wide, column in zip(widths, columns, strict=True)
    ]
    room = width - 1
    places = _choose_columns(least, room)
    wide = [1 if place is None else widths[place] for place in places]
    floor = [1 if place is None else least[place] for place in places]
    while sum(wide) + _FRAME * len(wide) > room:
        widest = max(range(len(wide)), key=lambda place: wide[place] - floor[place])
        if wide[widest] <= floor[widest]:
            break
        wide[widest] -= 1
    shown = [None if place is None else columns[place] for place in places]
    return list(zip(shown, wide, strict=True))


def _choose_columns(least: list[int], room: int) -> list[int | None]:
    """Return the indices of the columns to draw; None stands for the omitted columns."""
    if sum(least) + _FRAME * len(least) <= room:
        return list(range(len(least)))
    left: list[int | None] = []
    right: list[int | None] = []
    free = room - 1 - _FRAME
    low, high = 0, len(least) - 1
    while low <= high:
        is_left = len(left) <= len(right)
        place = low if is_left else high
        if least[place] + _FRAME > free and (left or right):
            break
        free -= least[place] + _FRAME
        (left if is_left else right).append(place)
        low, high = (low + 1, high) if is_left else (low, high - 1)
    return [*left, None, *reversed(right)] if low <= high else [*left, *reversed(right)]


def _take_rows(rows: pa.RecordBatchReader, rows_max: int) -> tuple[pa.Table, int]:
    """Return the first rows, and the number of all rows."""
    kept, count = [], 0
    for batch in rows:
        if not rows_max or count < rows_max:
            kept.append(batch.slice(0, rows_max - count) if rows_max else batch)
        count += batch.num_rows
    return pa.Table.from_batches(kept, schema=rows.schema), count


def _format_column(column: pa.ChunkedArray, name: str) -> ShownColumn:
    cells: list[str | None] = []
    for chunk in column.chunks:
        cells += [None if text is None else _quote(text) for text in text_values(chunk)]
    kind = column.type
    if kinds.is_timestamp(kind):
        cells = _shorten_times(cells)
    is_number = bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))
    return ShownColumn(
        visible(name), tuple(cells), is_number, is_number or kinds.is_timestamp(kind)
    )


def _shorten_times(cells: Sequence[str | None]) -> list[str | None]:
    """Return ISO times with a space for the T, without zone, and without seconds if all are 0."""
    plain = [cell and cell.removesuffix("Z").replace("T", " ") for cell in cells]
    is_even = all(cell is None or cell[16:] in ("", ":00") for cell in plain)
    return [cell[:16] if cell and is_even else cell for cell in plain]


def _quote(text: str) -> str:
    return f'"{text}"' if text in ("", "null") else visible(text)


def _build_table(fitted: Sequence[tuple[ShownColumn | None, int]], rows: int) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED, border_style="dim", header_style="bold")
    left_out = ShownColumn(_ELLIPSIS, (_ELLIPSIS,) * rows)
    drawn = []
    for column, width in fitted:
        column = column or left_out
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(Text(_cut(column.name, width)), justify=justify, width=width, no_wrap=True)
        drawn.append(
            [
                Text("null", style="dim italic") if cell is None else Text(_cut(cell, width))
                for cell in column.cells
            ]
        )
    for row in zip(*drawn, strict=True):
        table.add_row(*row)
    return table


def _cut(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + _ELLIPSIS
