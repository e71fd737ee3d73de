"""The registered tables and plain Parquet files of a session, opened for one query.

In:   names, roots and tables; evaluated `AT` clauses and function arguments
Out:  states of tables, each read once a query; Arrow tables for the SQL functions

- A query reads one version of a table for each form of reference: the newest, or one `AS OF`.
  `gaps` and `coverage` describe the version that the query reads.
- The newest version comes with the hot rows that it does not contain yet. An `AS OF` reads a
  committed version only, so it never includes hot rows.
- A name is a plain identifier, is matched ignoring case, and is never a name of the engine.
"""

import difflib
import os
import time as clock
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from thermocline.cold.coverage_report import CoverageReport, history
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid, TableNotFound, ThermoclineError
from thermocline.format.argument import check_text
from thermocline.format.bucket import Bucket
from thermocline.format.instant import TimeNs, format_instant
from thermocline.hot.tier import HotSnapshot
from thermocline.names import is_table_name
from thermocline.query.sql.allowed_functions import SERIES_FUNCTIONS
from thermocline.query.sql.constant import ConstantValue
from thermocline.query.sql.gate import RESERVED_PREFIXES
from thermocline.snapshot import TableView, measure_coverage, resolve_view

ARGUMENTS = {
    "gaps": (1, 3),
    "coverage": (1, 1),
    "history": (1, 1),
    "fill_gaps": (2, 3),
    "metric_series": (0, 1),
    **dict.fromkeys(SERIES_FUNCTIONS, (2, 3)),
}
USAGE = {
    "gaps": "gaps('t'), gaps('t', start, end)",
    "coverage": "coverage('t')",
    "history": "history('t')",
    "fill_gaps": "fill_gaps((select ...), '1 minute', 'previous')",
    "metric_series": "metric_series(), metric_series('metric_points')",
    **{name: f"{name}('metric_points', '1 minute')" for name in SERIES_FUNCTIONS},
}


@dataclass(frozen=True, slots=True)
class Source:
    """One registered name: a table, or the paths of Parquet files; `hot` returns hot rows.

    With `error`, the table cannot be opened, and a query that needs it raises this.
    """

    name: str
    table: ColdTable | None = None
    paths: tuple[str, ...] = ()
    hot: Callable[[], HotSnapshot] | None = None
    error: ThermoclineError | None = None

    @property
    def folder(self) -> str | None:
        """The folder that the engine must be able to read; None when it is not known yet."""
        storage = None if self.table is None else self.table.storage
        return storage.root if isinstance(storage, LocalStorage) else None


def check_table_name(name: str) -> str:
    """Return a name that can be registered; `Invalid` for any other."""
    if not is_table_name(check_text(name, "name")) or name.lower().startswith(RESERVED_PREFIXES):
        raise Invalid(
            "this cannot be the name of a table",
            hint="use at most 63 letters, digits and underscores; avoid the reserved prefixes",
            name=name[:80],
            reserved=list(RESERVED_PREFIXES),
        )
    return name


def unknown_table_error(written_name: str, known: Iterable[str]) -> TableNotFound:
    """Return the error for an unregistered name; its hint suggests the closest name."""
    names = list(known)
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(written_name.lower(), by_lower, n=1, cutoff=0.0)
    hint = f"did you mean {by_lower[near[0]]}?" if near else "register a table first"
    if os.sep in written_name or written_name.endswith(".parquet"):
        hint = "files are not read by path: register_parquet(name, path) gives one a name"
    return TableNotFound("no such table", hint=hint, table=written_name, tables=sorted(names))


class QuerySnapshot:
    """The views that one query reads; each is opened at its first use and then kept."""

    def __init__(self) -> None:
        self._views: dict[tuple[str, str, int], TableView] = {}
        self._as_of: dict[str, TimeNs] = {}

    def newest(self, source: Source) -> TableView:
        """Return the newest view of a table, the same one for the whole query."""
        return self._open_once(source, "newest", 0)

    def at_version(self, source: Source, version: int) -> TableView:
        """Return the table at a version; `NotFound` when it does not exist or has expired."""
        return self._open_once(source, "version", version)

    def at_instant(self, source: Source, instant_ns: int) -> TableView:
        """Return the table at the newest version committed at or before an instant."""
        return self._open_once(source, "instant", instant_ns)

    def _open_once(self, source: Source, way: str, number: int) -> TableView:
        key = (source.name.lower(), way, number)
        if key not in self._views:
            now = TimeNs(clock.time_ns())  # all rows acknowledged by now are in the view
            view = self._views[key] = _open_view(source, way, number)
            as_of = view.pairing.as_of if view.pairing else now
            self._as_of[key[0]] = as_of if way == "newest" else view.state.time
        return self._views[key]

    def as_of(self, name: str) -> TimeNs:
        """Return the instant for which the view of a table is exact."""
        return self._as_of[name]

    def opened_views(self) -> list[tuple[str, TableView]]:
        """Return the lower-case names and views that were opened."""
        return [(name, view) for (name, _, _), view in self._views.items()]


def _open_view(source: Source, way: str, number: int) -> TableView:
    table = _require_table(source)
    if way == "newest":
        # Order matters: read the hot rows first, then the version that may contain some of them.
        return resolve_view(source.hot() if source.hot else None, table)
    version = number if way == "version" else table.log.version_at(number)
    return TableView(table.log.state(version))


def _require_table(source: Source) -> ColdTable:
    if source.error is not None:
        raise source.error
    if source.table is None:
        raise Invalid(
            "a plain Parquet file has no versions and no coverage",
            hint="append it to a table",
            table=source.name,
        )
    return source.table


def view_at(snapshot: QuerySnapshot, source: Source, unit: str, value: ConstantValue) -> TableView:
    """Return the view that an evaluated `AT` clause names."""
    if unit.upper() == "VERSION":
        if type(value.value) is not int:
            hint = "AS OF VERSION takes a whole number"
            raise Invalid("expected a version number", hint=hint, got=value.value)
        return snapshot.at_version(source, value.value)
    return snapshot.at_instant(source, _instant(value))


def answer_function(
    snapshot: QuerySnapshot, source: Source, function: str, values: Sequence[ConstantValue]
) -> pa.Table:
    """Return the rows of `gaps`, `coverage` or `history`; `values` are those after the name."""
    table = _require_table(source)
    if function == "history":
        return history(table)
    view = snapshot.newest(source)
    held = CoverageReport(view.state, measure_coverage(view, table))
    if function == "coverage":
        return held.runs()
    bucket = view.state.spec.bucket
    start, end = [*(_edge(value, bucket) for value in values), None, None][:2]
    return held.gaps(start, end)


def _edge(value: ConstantValue, bucket: Bucket) -> object:
    """Return the start or end of a range, as `gaps` takes it."""
    if value.type == '"NULL"':
        return None
    return format_instant(_instant(value)) if bucket.is_time else value.value


def _instant(value: ConstantValue) -> int:
    # A text may have a zone: it is read as a time with a zone; without one it is UTC.
    found = value.instant_as_column if value.type == "VARCHAR" else value.instant
    if found is None:
        raise Invalid(
            "expected a time",
            hint="write it like '2024-06-01 13:00:00' or TIMESTAMP '2024-06-01 13:00:00'",
            got=value.value,
        )
    return found
