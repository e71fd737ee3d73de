"""EXPLAIN: what a query reads of each table, and the engine's plan.

In:   a prepared query
Out:  an Arrow table: a row for each table, tier, file and step of the plan

- A file has its path inside its table. Paths of the machine never appear: only the listed facts of
  a step are shown, and none of them is a path.
- EXPLAIN reads no rows. EXPLAIN ANALYZE runs the query, discards its rows, and adds how many
  rows each step returned and how long it took.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from thermocline.query.report import TableReport
from thermocline.query.sql.gate import INTERNAL_PREFIX
from thermocline.query.sql.prepare import PreparedQuery

FILES_SHOWN_MAX = 1_000
DETAIL_LENGTH_MAX = 400

_SCHEMA = pa.schema(
    {
        "part": pa.string(),
        "name": pa.string(),
        "detail": pa.string(),
        "rows": pa.int64(),
        "ms": pa.float64(),
    }
)
_FACTS_SHOWN = (
    "Join Type",
    "Conditions",
    "Filters",
    "Expression",
    "Groups",
    "Aggregates",
    "Projections",
    "Order By",
    "Top",
)
_HIDDEN_STEPS = frozenset({"EXPLAIN_ANALYZE", "QUERY", "RESULT_COLLECTOR"})


class _Line(NamedTuple):
    part: str
    name: str
    detail: str
    rows: int | None = None
    ms: float | None = None


def explain(prepared: PreparedQuery, *, runs: bool) -> pa.Table:
    """Return what the query reads and the engine's plan; with `runs`, run the query."""
    options = "ANALYZE, FORMAT JSON" if runs else "FORMAT JSON"
    text = f"EXPLAIN ({options}) {prepared.text}"
    found = prepared.cursor.execute(text, prepared.parameters or None).fetchall()
    plan = orjson.loads(found[0][1])
    lines = [*_read_lines(prepared), *_plan_lines(plan, 0)]
    columns = list(zip(*lines, strict=True)) or [()] * len(_SCHEMA)
    return pa.table(
        [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )


def _read_lines(prepared: PreparedQuery) -> Iterator[_Line]:
    files: dict[str, list[tuple[str, int]]] = {}
    for table, path, size_bytes in prepared.table_files():
        files.setdefault(table, []).append((path, size_bytes))
    for name, report in prepared.report().tables.items():
        yield _Line("table", name, _table_detail(report), report.hot_rows + report.cold_rows)
        yield _Line("hot", name, "rows not yet in files", report.hot_rows)
        total = report.files + report.files_pruned
        yield _Line("cold", name, f"{report.files} of {total} files", report.cold_rows)
        read = files.get(name, [])
        for path, size_bytes in read[:FILES_SHOWN_MAX]:
            yield _Line("file", name, f"{path}, {size_bytes:,} bytes")
        if len(read) > FILES_SHOWN_MAX:
            yield _Line("file", name, f"and {len(read) - FILES_SHOWN_MAX:,} more files")


def _table_detail(report: TableReport) -> str:
    warning = f", {report.warning}" if report.warning else ""
    return f"version {report.version}, complete as of {report.as_of}{warning}"


def _plan_lines(plan: Any, depth: int) -> Iterator[_Line]:
    """Yield the steps of a plan, each before those that give it rows."""
    for step in plan if isinstance(plan, list) else [plan]:
        name = str(step.get("type") or step.get("name") or "").strip()
        inner = depth
        if name and name not in _HIDDEN_STEPS:
            inner = depth + 1
            facts = step.get("extra_info") or {}
            rows, seconds = step.get("intermediate_rows"), step.get("timing")
            if rows is None and str(facts.get("Estimated Cardinality", "")).isdigit():
                rows = int(facts["Estimated Cardinality"])
            ms = None if seconds is None else round(seconds * 1_000, 3)
            yield _Line("plan", "  " * depth + name, _step_detail(facts), rows, ms)
        yield from _plan_lines(step.get("children") or step.get("operator") or [], inner)


def _step_detail(facts: dict[str, Any]) -> str:
    found = []
    for key in _FACTS_SHOWN:
        values = facts.get(key)
        shown = values if isinstance(values, list) else [values] if values else []
        texts = [
            "deleted rows are skipped"
            if INTERNAL_PREFIX in str(one)
            else " ".join(str(one).split())
            for one in shown
        ]
        if texts:
            found.append(f"{key.lower()}: {', '.join(texts)}")
    return "; ".join(found)[:DETAIL_LENGTH_MAX]
