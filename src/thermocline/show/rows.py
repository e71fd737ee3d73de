"""Rows of an Arrow table as a notebook shows them: a bounded preview in plain HTML.

In:   an Arrow table, and how much of it to show
Out:  one element of HTML: the first and the last rows and columns, with names and types

- Every text is escaped, and a long one is cut: a value can be `<script>` or a megabyte.
- It uses no script, no style sheet and no request to a host.
"""

from dataclasses import dataclass
from html import escape

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.show.text import visible
from thermocline.show.value import text_values

ALIGNMENTS = ("right", "left", "auto")
_GREY = "rgba(128,128,128,.35)"
_CELL = f"padding:2px 10px;border:0;border-bottom:1px solid {_GREY};vertical-align:top"


@dataclass(frozen=True, slots=True)
class PreviewOptions:
    """How much of an answer a notebook shows, and how its cells are aligned."""

    max_rows: int = 20
    max_cols: int = 50
    max_cell_chars: int = 2_000
    align: str = "right"


def rows_html(rows: pa.Table, options: PreviewOptions = PreviewOptions()) -> str:
    """Return a preview of rows as one element of HTML."""
    shown_rows = _ends(rows.num_rows, options.max_rows)
    shown_columns = _ends(rows.num_columns, options.max_cols)
    omits_columns = len(shown_columns) < rows.num_columns
    omits_rows = len(shown_rows) < rows.num_rows
    taken = pa.array(shown_rows, pa.int64())
    parts = [_column_html(rows, place, taken, options) for place in shown_columns]
    if omits_columns:
        gap = (_cell("th", "…", "center"), [_cell("td", "…", "center")] * len(shown_rows))
        parts.insert((options.max_cols + 1) // 2, gap)
    lines = ["".join(cells) for cells in zip(*(cells for _, cells in parts), strict=True)]
    if omits_rows:
        lines.insert((options.max_rows + 1) // 2, _cell("td", "…", "center") * len(parts))
    head = "".join(name for name, _ in parts)
    body = "".join(f'<tr style="background:transparent">{line}</tr>' for line in lines)
    counts = (
        f"{_of(len(shown_rows), rows.num_rows)} rows, "
        f"{_of(len(shown_columns), rows.num_columns)} columns"
    )
    return (
        '<div style="font-size:13px;line-height:1.4;color:inherit">'
        '<div style="overflow:auto;max-height:420px">'
        '<table style="border-collapse:collapse;border:0;color:inherit">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f'<div style="opacity:.7;margin:4px 0">{counts}</div></div>'
    )


def _of(shown: int, total: int) -> str:
    return f"{total:,}" if shown == total else f"{shown:,} of {total:,}"


def _ends(total: int, limit: int) -> list[int]:
    """Return the places of the first and the last, up to a limit."""
    if total <= limit:
        return list(range(total))
    head = (limit + 1) // 2
    return [*range(head), *range(total - limit + head, total)]


def _column_html(
    rows: pa.Table, place: int, taken: pa.Array, options: PreviewOptions
) -> tuple[str, list[str]]:
    """Return the head of a column and its cells."""
    field, column = rows.schema.field(place), rows.column(place).take(taken)
    is_number = (
        kinds.is_integer(field.type)
        or kinds.is_floating(field.type)
        or kinds.is_decimal(field.type)
    )
    align = options.align if options.align != "auto" else "right" if is_number else "left"
    name = _shorten(field.name, 64)
    type_text = f'<div style="opacity:.6;font-weight:normal">{_shorten(str(field.type), 64)}</div>'
    cells = []
    for text in (value for chunk in column.chunks for value in text_values(chunk)):
        shown = '<span style="opacity:.5">null</span>' if text is None else ""
        cells.append(_cell("td", shown or _shorten(text or "", options.max_cell_chars), align))
    return _cell("th", name + type_text, align), cells


def _shorten(text: str, length: int) -> str:
    """Return a text for HTML, cut at a length."""
    return escape(visible(text if len(text) <= length else text[: length - 1] + "…"), quote=True)


def _cell(tag: str, html: str, align: str) -> str:
    return f'<{tag} style="{_CELL};text-align:{align}">{html}</{tag}>'
