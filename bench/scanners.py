"""The contenders of the scan bench: each answers SQL over the days it was given.

In:   where the contender's table is and the files of the days, then one query at a time
Out:  a `pyarrow.Table` for each query, kept here; its row count, or a file to compare

- Every answer is whole in memory as Arrow before the clock stops.
- A session is opened once and kept, as a user's session is; a contender imports its library when
  it is made.
- All engines use every core and read times as UTC.
- Our session remembers statements it has admitted, by their text; nobody remembers answers.
  `ThermoclineNewText` changes the text each time, so that nothing is remembered.

`DuckDb` is the yardstick: no table format at all, the files that matter named by hand, and every
setting for speed that our own engine has. `DuckDbDefault` is the same as it comes.
"""

import os
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from queries import Query

# What our own engine sets beside threads and zone, apart from its locks. A test compares the two.
ENGINE_SETTINGS: tuple[str, ...] = (
    "memory_limit = '2147483648B'",
    "preserve_insertion_order = false",
    "parquet_metadata_cache = true",
    "late_materialization_max_rows = 10000",
)


class Scanner(Protocol):
    """An engine that answers SQL over a table of days."""

    def open(self, place: dict[str, Any]) -> None: ...

    def run(self, query: dict[str, Any]) -> int: ...

    def forget(self) -> None: ...

    def keep(self, path: str) -> None: ...


class _Kept:
    """Holds the last answer, so that it can be compared after the clock has stopped."""

    _answer: pa.Table | None = None

    def forget(self) -> None:
        """Let go of the last answer, so that freeing it is nobody's time."""
        self._answer = None

    def keep(self, path: str) -> None:
        """Write the last answer into an Arrow file."""
        assert self._answer is not None
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, self._answer.schema) as writer:
            writer.write_table(self._answer)


class Thermocline(_Kept):
    """Our own session over our own table."""

    def open(self, place: dict[str, Any]) -> None:
        """Open a session and register the table."""
        import thermocline

        self._session = thermocline.Session()
        self._session.register_tstable("trips", place["root"])

    def run(self, query: dict[str, Any]) -> int:
        """Answer one query and return its number of rows."""
        self._answer = self._session.sql(Query(**query).duckdb_sql("trips"))
        return len(self._answer)


class ThermoclineNewText(Thermocline):
    """The same, asked in words it has never seen: each text ends in a new comment."""

    _asked = 0

    def run(self, query: dict[str, Any]) -> int:
        """Answer one query and return its number of rows."""
        self._asked += 1
        return super().run({**query, "text": f"{query['text']} /* {self._asked} */"})


class DuckDb(_Kept):
    """DuckDB on exactly the files that the query needs, set as our own engine is set."""

    settings = ENGINE_SETTINGS

    def open(self, place: dict[str, Any]) -> None:
        """Open a connection in memory."""
        import duckdb

        self._files: list[str] = place["files"]
        self._connection = duckdb.connect()
        for setting in (f"threads = {os.cpu_count()}", "timezone = 'UTC'", *self.settings):
            self._connection.execute(f"set global {setting}")

    def run(self, query: dict[str, Any]) -> int:
        """Answer one query and return its number of rows."""
        asked = Query(**query)
        files = ", ".join(f"'{self._files[day]}'" for day in asked.days)
        text = asked.duckdb_sql(f"read_parquet([{files}])")
        self._answer = self._connection.sql(text).to_arrow_table()
        return len(self._answer)


class DuckDbDefault(DuckDb):
    """DuckDB on the same files with its own defaults."""

    settings = ()


class TimeseriesTableFormat(_Kept):
    """A session of timeseries-table-format, DataFusion inside."""

    def open(self, place: dict[str, Any]) -> None:
        """Open a session and register the table."""
        import timeseries_table_format

        self._session = timeseries_table_format.Session()
        self._session.register_tstable("trips", place["root"])

    def run(self, query: dict[str, Any]) -> int:
        """Answer one query and return its number of rows."""
        self._answer = self._session.sql(Query(**query).datafusion_sql("trips"))
        return len(self._answer)


class DeltaLake(_Kept):
    """deltalake's own query builder, DataFusion inside."""

    def open(self, place: dict[str, Any]) -> None:
        """Open the table and register it."""
        import deltalake

        self._builder = deltalake.QueryBuilder()
        self._builder.register("trips", deltalake.DeltaTable(place["root"]))

    def run(self, query: dict[str, Any]) -> int:
        """Answer one query and return its number of rows."""
        answer = self._builder.execute(Query(**query).datafusion_sql("trips"))
        self._answer = pa.table(answer)
        return len(self._answer)


CONTENDERS: dict[str, Callable[[], Scanner]] = {
    "thermocline": Thermocline,
    "thermocline-new-text": ThermoclineNewText,
    "thermocline-before": Thermocline,
    "thermocline-written": Thermocline,
    "duckdb": DuckDb,
    "duckdb-default": DuckDbDefault,
    "ttf-0.9.0": TimeseriesTableFormat,
    "ttf-0.4.0": TimeseriesTableFormat,
    "deltalake": DeltaLake,
}
