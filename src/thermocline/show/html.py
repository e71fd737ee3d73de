"""A table as a notebook shows it: its facts, its coverage and its columns, in plain HTML.

In:   what a version holds, and the table's root
Out:  one element of HTML

- Every text from the table is escaped: a column may have the name `<script>`.
- It uses no script, no style sheet and no request to a host: a saved notebook looks the same on
  another machine.
- It inherits the notebook's colours and adds transparent greys, so it suits light and dark.
"""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from thermocline.show.facts import table_facts
from thermocline.show.picture import FULL, SHARE_WIDTH, CoverageLane, coverage_picture
from thermocline.show.text import position_text, visible

if TYPE_CHECKING:
    from thermocline.cold.coverage_report import CoverageReport

BLOCKS_WIDE = 96
COLUMNS_MAX = 100

_GREY = "rgba(128,128,128,.35)"
_HELD = "#2f9e6e"
_IN_PART = "#d99a2b"
_CELL = "text-align:left;padding:1px 12px 1px 0;border:0;background:transparent;color:inherit"
_TABLE = "border-collapse:collapse;border:0;margin:4px 0;color:inherit"


def table_html(
    held: "CoverageReport", root: str, *, name: str = "", hot_rows: int | None = None
) -> str:
    """Return a table's facts, coverage and columns as one element of HTML.

    A table of a lake has a `name`, and `hot_rows` that no segment has yet.
    """
    facts = table_facts(held, root)
    if hot_rows is not None:
        facts["hot rows"] = f"{hot_rows:,}"
    name = name or root.rstrip("/").rpartition("/")[2] or root
    rows = "".join(_row_html(_faint_html(label), _escape(value)) for label, value in facts.items())
    return (
        f'<div style="font-size:13px;line-height:1.5;max-width:60em">'
        f"<div><strong>{_escape(name)}</strong> {_faint_html('time series table')}</div>"
        f'<table style="{_TABLE}">{rows}</table>{_coverage_html(held)}{_columns_html(held)}</div>'
    )


def list_html(what: str, place: str, lines: Sequence[tuple[str, str]]) -> str:
    """Return a list of named things, each with a line about it, as one element of HTML."""
    rows = "".join(
        _row_html(_escape(name), _faint_html(text)) for name, text in lines[:COLUMNS_MAX]
    )
    more = len(lines) - COLUMNS_MAX
    rest = _row_html(_faint_html(f"and {more:,} more"), "") if more > 0 else ""
    body = rows + rest or _row_html(_faint_html("no tables yet"), "")
    return (
        f'<div style="font-size:13px;line-height:1.5;max-width:60em">'
        f"<div><strong>{_escape(what)}</strong> {_faint_html(place)}</div>"
        f'<table style="{_TABLE}">{body}</table></div>'
    )


def _coverage_html(held: "CoverageReport") -> str:
    picture = coverage_picture(held, BLOCKS_WIDE + SHARE_WIDTH)
    if not picture.lanes:
        return ""
    bucket, whole = held.state.spec.bucket, held.coverage.whole
    begin, end = (
        position_text(bucket, bucket.start(edge)) for edge in (whole.first(), whole.last() + 1)
    )
    ends = (
        f'<div style="display:flex;justify-content:space-between">'
        f"{_faint_html(begin)}{_faint_html(end)}</div>"
    )
    more = _row_html("", _faint_html(picture.more), "") if picture.more else ""
    lanes = "".join(
        _row_html(_escape(lane.label), _bar_html(lane), _escape(lane.share))
        for lane in picture.lanes
    )
    return f'<table style="{_TABLE};width:100%">{lanes}{_row_html("", ends, "")}{more}</table>'


def _bar_html(lane: CoverageLane) -> str:
    """Return one lane as a drawing: full blocks, lower blocks for in part, a line for missing."""
    shapes, place = [], 0
    for level, run in groupby(lane.levels):
        width = len(list(run))
        if level:
            high = 12 if level == FULL else 1 + level
            colour = _HELD if level == FULL else _IN_PART
            shapes.append(
                f'<rect x="{place}" y="{12 - high}" width="{width}" height="{high}" '
                f'fill="{colour}"/>'
            )
        place += width
    said = escape(f"{lane.label} {lane.share} held".strip(), quote=True)
    return (
        f'<svg role="img" aria-label="{said}" viewBox="0 0 {place} 12" width="100%" height="14" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges" '
        f'style="display:block;border:1px solid {_GREY}"><title>{said}</title>{"".join(shapes)}'
        f"</svg>"
    )


def _columns_html(held: "CoverageReport") -> str:
    columns = held.state.schema.columns
    if not columns:
        return _faint_html("no columns yet: the first append adds them")
    rows = "".join(
        _row_html(_escape(c.name), _faint_html(str(c.type))) for c in columns[:COLUMNS_MAX]
    )
    more = len(columns) - COLUMNS_MAX
    rest = _row_html(_faint_html(f"and {more:,} more"), "") if more > 0 else ""
    return (
        f"<details><summary>{len(columns):,} columns</summary>"
        f'<table style="{_TABLE}">{rows}{rest}</table></details>'
    )


def _row_html(*cells: str) -> str:
    last = len(cells) - 1
    return (
        '<tr style="background:transparent">'
        + "".join(
            f'<td style="{_CELL};{"width:100%" if place == 1 < last else "white-space:nowrap"}">'
            f"{cell}</td>"
            for place, cell in enumerate(cells)
        )
        + "</tr>"
    )


def _escape(value: str) -> str:
    return escape(visible(value), quote=True)


def _faint_html(value: str) -> str:
    return f'<span style="opacity:.7">{_escape(value)}</span>'
