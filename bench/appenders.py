"""The contenders of the append bench: each makes a table and appends one day's file to it.

In:   a folder to make the table in, then the path of a Parquet file for each append
Out:  a table of that contender's own kind, and how many rows it says it holds

- `append` starts from the file's path and returns when the contender's ordinary call returns;
  what is durable by then is the contender's own affair and is looked up with strace.
- Every contender is used by the calls its documentation shows for this.
- A contender imports its library when it is made, so that no import is timed.

`Floor` is no table at all: it is the work that nobody can leave out.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

import fhvhv
import lanes

TIME_COLUMN = lanes.TIME_COLUMN
BUCKET = "1h"


class Appender(Protocol):
    """A kind of table that days are appended to."""

    def create(self, root: str) -> None: ...

    def append(self, path: str) -> None: ...

    def rows(self) -> int: ...


class Thermocline:
    """Our own table: hourly buckets, an append that overlaps is refused."""

    def __init__(self) -> None:
        import thermocline

        self._library = thermocline
        self._class = thermocline.TimeSeriesTable  # its modules are loaded when it is first named

    def create(self, root: str) -> None:
        """Make an empty table."""
        self._root = root
        self._table = self._class.create(
            table_root=root, time_column=TIME_COLUMN, bucket=BUCKET, overlap="reject"
        )

    def append(self, path: str) -> None:
        """Append one day."""
        self._table.append_parquet(path)

    def rows(self) -> int:
        """Count by SQL, in a session of its own."""
        session = self._library.Session()
        session.register_tstable("trips", self._root)
        return _first(session.sql("select count(*) as trips from trips"))


class ThermoclineWritten(Thermocline):
    """Our own table, which writes the rows itself instead of copying the file."""

    def append(self, path: str) -> None:
        """Append one day as a stream of Arrow batches."""
        self._table.append(_batches(path))


class TimeseriesTableFormat04:
    """timeseries-table-format 0.4: hourly buckets, the file is taken as it is."""

    def __init__(self) -> None:
        import timeseries_table_format

        self._library = timeseries_table_format

    def create(self, root: str) -> None:
        """Make an empty table."""
        self._root = root
        self._table = self._library.TimeSeriesTable.create(
            table_root=root, index_column=TIME_COLUMN, index_type="timestamp", bucket=BUCKET
        )

    def append(self, path: str) -> None:
        """Append one day."""
        self._table.append_parquet(path)

    def rows(self) -> int:
        """Count by SQL, in a session of its own."""
        session = self._library.Session()
        session.register_tstable("trips", self._root)
        return _first(session.sql("select count(*) as trips from trips"))


class TimeseriesTableFormat09(TimeseriesTableFormat04):
    """timeseries-table-format 0.9: one row for each entity and second, so the files have lanes."""

    def create(self, root: str) -> None:
        """Make an empty table of the finest interval there is, with the lane as entity."""
        self._root = root
        self._table = self._library.TimeSeriesTable.create(
            table_root=root,
            index_column=TIME_COLUMN,
            index_type="timestamp",
            index_granularity="1s",
            entity_columns=[lanes.COLUMN],
        )

    def append(self, path: str) -> None:
        """Append one day: a stream of Arrow batches, as this version takes no file."""
        self._table.append(_batches(path))


class DeltaLake:
    """deltalake (delta-rs): the file read with pyarrow, appended as a stream of batches."""

    def __init__(self) -> None:
        import deltalake

        self._library = deltalake

    def create(self, root: str) -> None:
        """Remember the folder: the first append makes the table."""
        self._root = root

    def append(self, path: str) -> None:
        """Append one day."""
        self._library.write_deltalake(self._root, _batches(path), mode="append")

    def rows(self) -> int:
        """Count by the library's own SQL."""
        builder = self._library.QueryBuilder()
        builder.register("trips", self._library.DeltaTable(self._root))
        return _first(pa.table(builder.execute("select count(*) as trips from trips")))


class DuckDb:
    """A DuckDB database file: read the day, insert it."""

    def __init__(self) -> None:
        import duckdb

        self._library = duckdb

    def create(self, root: str) -> None:
        """Open a new database file; the first append makes the table."""
        Path(root).mkdir(parents=True)
        self._database = self._library.connect(str(Path(root) / "trips.duckdb"))
        self._database.execute("set timezone = 'UTC'")
        self._has_table = False

    def append(self, path: str) -> None:
        """Insert one day in one transaction."""
        verb = "insert into trips" if self._has_table else "create table trips as"
        self._database.execute(f"{verb} select * from read_parquet(?)", [path])
        self._has_table = True

    def rows(self) -> int:
        """Count by SQL."""
        return _first(self._database.sql("select count(*) from trips").to_arrow_table())


class Floor:
    """Copies the file and decodes its time column: the least any of them has to do."""

    is_durable = True

    def create(self, root: str) -> None:
        """Make the folder."""
        self._root = Path(root)
        self._root.mkdir(parents=True)
        self._rows = 0

    def append(self, path: str) -> None:
        """Copy, make durable where that is the task, decode."""
        target = self._root / Path(path).name
        shutil.copyfile(path, target)
        if self.is_durable:
            _sync(target)
            _sync(self._root)
        self._rows += len(pq.ParquetFile(target).read(columns=[TIME_COLUMN]))

    def rows(self) -> int:
        """Return the rows decoded so far."""
        return self._rows


class VolatileFloor(Floor):
    """The same without any fsync: a crash may lose the day."""

    is_durable = False


def incoming(contender: str, day: fhvhv.Day) -> Path:
    """Return the file that this contender is given for a day."""
    return lanes.laned(day.path) if contender == "ttf-0.9.0" else day.path


def _batches(path: str) -> pa.RecordBatchReader:
    file = pq.ParquetFile(path)
    return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())


def _first(table: pa.Table) -> int:
    value: Any = table.column(0)[0].as_py()
    return int(value)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


CONTENDERS: dict[str, Callable[[], Appender]] = {
    "thermocline": Thermocline,
    "thermocline-written": ThermoclineWritten,
    "ttf-0.9.0": TimeseriesTableFormat09,
    "ttf-0.4.0": TimeseriesTableFormat04,
    "deltalake": DeltaLake,
    "duckdb": DuckDb,
    "floor": Floor,
    "floor-volatile": VolatileFloor,
}
