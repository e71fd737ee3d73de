"""The contenders of the growth bench: one class for each piece of work and library.

In:   a scratch folder, and how large the work is
Out:  a table of that size, made without the clock; the timed call; what the call answered

- A piece of work makes its rows and its table when it is constructed; `run` is the timed call.
- Tables of many segments take minutes to build: they are built once for each size, below the
  scratch folder, and a piece of work that changes its table gets a copy made of hard links.
- A library that cannot do a piece of work has no class for it.
"""

import os
import resource
import shutil
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START_US = 1_420_070_400_000_000  # 2015-01-01
MINUTE_US = 60_000_000
TIME = pa.timestamp("us", tz="UTC")
WIDE_ROWS = 10
ENTITY_ROWS = 5
SEGMENT_ROWS = 60
FILES_A_COMMIT = 100
WRITE_ROWS = 10
WINDOW = "6h"


class Work(Protocol):
    """One piece of work, ready to be timed."""

    def run(self) -> Any: ...


class WideAppend:
    """Append ten rows to a table with so many columns."""

    def __init__(self, folder: Path, size: int) -> None:
        self._table = new_table(folder / "wide")
        self._table.append(wide_rows(size, 0))
        self._rows = wide_rows(size, 1)

    def run(self) -> int:
        """Append, and return the rows appended."""
        self._table.append(self._rows)
        return len(self._rows)


class DecadeAppend:
    """Append a row a minute, in buckets of one second."""

    def __init__(self, folder: Path, size: int) -> None:
        self._table = new_table(folder / "decade", bucket="1s")
        self._rows = minutes(size)

    def run(self) -> int:
        """Append, and return the rows appended."""
        self._table.append(self._rows)
        return len(self._rows)


class LastFullWindow:
    """Ask a table of lone seconds for its newest whole window; there is none."""

    def __init__(self, folder: Path, size: int) -> None:
        table = new_table(folder / "decade", bucket="1s")
        table.append(minutes(size))
        self._table = type(table).open(str(folder / "decade"))

    def run(self) -> str:
        """Ask, and return the answer as text."""
        return str(self._table.last_fully_covered_window(WINDOW))


class EntityAppend:
    """Append five hours of so many entities."""

    def __init__(self, folder: Path, size: int) -> None:
        self._root = folder / "entities"
        self._table = new_table(
            self._root, bucket="1h", entity_columns=["device"], entities_max=size
        )
        self._rows = devices(size)

    def run(self) -> int:
        """Append, and return the rows appended."""
        self._table.append(self._rows)
        return len(self._rows)

    def sidecar_share(self) -> float:
        """Return the bytes of the segments' sidecars as a share of the segments' own."""
        return folder_bytes(self._root / "_coverage" / "segments") / folder_bytes(
            self._root / "data"
        )


class EntityGaps:
    """Open a table of so many entities, and ask for its gaps for the first time."""

    def __init__(self, folder: Path, size: int) -> None:
        self._root = built(
            folder.parent / f"entities-{size}", lambda place: EntityAppend(place, size)
        )
        self._class = type(new_table(folder / "warm"))  # the late imports are not timed

    def run(self) -> int:
        """Ask, and return how many gaps there are."""
        return len(self._class.open(str(self._root / "entities")).gaps())


class DeleteWhere:
    """Delete the rows of one host in every segment."""

    def __init__(self, folder: Path, size: int) -> None:
        kept = built(folder.parent / f"segments-{size}", lambda place: make_segments(place, size))
        shutil.copytree(kept / "table", folder / "table", copy_function=os.link)
        self._table = open_table(folder / "table")
        self._table.delete(
            "host = 'nowhere'", end="2000-01-01T00:00"
        )  # compiles for the first time

    def run(self) -> int:
        """Delete, and return the version."""
        return int(self._table.delete("host = 'b'"))


class ManySegments:
    """A session over a table of so many segments of 60 rows."""

    query = "select count(*) as n from m"

    def __init__(self, folder: Path, size: int) -> None:
        import thermocline

        kept = built(folder.parent / f"segments-{size}", lambda place: make_segments(place, size))
        self._session = thermocline.Session()
        self._session.register_tstable("m", str(kept / "table"))

    def run(self) -> int:
        """Ask, and return the number in the first row."""
        return int(self._session.sql(self.query).column(0)[0].as_py())


class ManySegmentsSum(ManySegments):
    """A sum over every segment, which has to read them all."""

    query = "select cast(sum(value) as bigint) as n from m"


class ManySegmentsLimit(ManySegments):
    """Any ten rows."""

    query = "select value from m limit 10"

    def run(self) -> int:
        """Ask, and return the number of rows."""
        return len(self._session.sql(self.query))


class ThreadedWrites:
    """Write ten rows at a time to a lake, so many times, from one thread."""

    threads = 1

    def __init__(self, folder: Path, size: int) -> None:
        import thermocline

        self._lake = thermocline.connect(str(folder / "lake"))
        self._lake.create_table("m", time_column="ts", bucket="1m", entity_columns=["host"])
        self._table = self._lake.table("m")
        self._rows = hour(0).slice(0, WRITE_ROWS)
        self._writes = size // self.threads
        self._table.write(self._rows)

    def _write_all(self) -> None:
        for _ in range(self._writes):
            self._table.write(self._rows)

    def run(self) -> int:
        """Write from every thread, and return how many writes there were."""
        writers = [threading.Thread(target=self._write_all) for _ in range(self.threads)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        return self._writes * self.threads


class SixteenThreads(ThreadedWrites):
    """The same writes from sixteen threads."""

    threads = 16


class ReferenceWideAppend:
    """The reference library: append ten rows to a table with so many columns."""

    def __init__(self, folder: Path, size: int) -> None:
        self._table = new_reference(folder / "wide", "1s")
        self._table.append(wide_rows(size, 0))
        self._rows = wide_rows(size, 1)

    def run(self) -> int:
        """Append, and return the rows appended."""
        self._table.append(self._rows)
        return len(self._rows)


class ReferenceDecadeAppend:
    """The reference library: append a row a minute, in intervals of one second."""

    def __init__(self, folder: Path, size: int) -> None:
        self._table = new_reference(folder / "decade", "1s")
        self._rows = minutes(size)

    def run(self) -> int:
        """Append, and return the rows appended."""
        self._table.append(self._rows)
        return len(self._rows)


class ReferenceEntityAppend:
    """The reference library: append five hours of so many entities."""

    def __init__(self, folder: Path, size: int) -> None:
        self._table = new_reference(folder / "entities", "1h", ["device"])
        self._rows = devices(size)

    def run(self) -> int:
        """Append, and return the rows appended."""
        self._table.append(self._rows)
        return len(self._rows)


class ReferenceSegments:
    """The reference library: a session over a table of so many segments of 60 rows."""

    query = ManySegments.query

    def __init__(self, folder: Path, size: int) -> None:
        import timeseries_table_format

        def make(place: Path) -> None:
            table = new_reference(place / "table", "1s", ["host"])
            for number in range(size):
                table.append(hour(number))

        kept = built(folder.parent / f"reference-{size}", make)
        self._session = timeseries_table_format.Session()
        self._session.register_tstable("m", str(kept / "table"))

    def run(self) -> int:
        """Ask, and return the number in the first row."""
        return int(self._session.sql(self.query).column(0)[0].as_py())


class ReferenceSegmentsSum(ReferenceSegments):
    """The reference library: a sum over every segment."""

    query = ManySegmentsSum.query


class Grower:
    """Holds the piece of work of one library that is timed next."""

    def __init__(self, works: Mapping[str, Callable[[Path, int], Work]]) -> None:
        self._works = works
        self._work: Any = None

    def tasks(self) -> list[str]:
        """Return the names of the pieces of work that the library can do."""
        return list(self._works)

    def ready(self, task: str, folder: str, size: int) -> None:
        """Make everything that the timed call needs."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        self._work = self._works[task](place, size)

    def run(self) -> Any:
        """Make the timed call and return its answer."""
        return self._work.run()

    def sidecar_share(self) -> float:
        """Return what the piece of work says of its sidecars."""
        return float(self._work.sidecar_share())

    def peak_mb(self) -> float:
        """Return the largest memory that this process has had."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def new_table(root: Path, bucket: str = "1h", **spec: Any) -> Any:
    """Return a new table of ours."""
    import thermocline

    made = {"time_column": "ts", "bucket": bucket, "overlap": "allow", **spec}
    return thermocline.TimeSeriesTable.create(table_root=str(root), **made)


def open_table(root: Path) -> Any:
    """Return our table in a folder."""
    import thermocline

    return thermocline.TimeSeriesTable.open(str(root))


def new_reference(root: Path, granularity: str, entities: list[str] | None = None) -> Any:
    """Return a new table of the reference library."""
    import timeseries_table_format

    return timeseries_table_format.TimeSeriesTable.create(
        table_root=str(root),
        index_column="ts",
        index_type="timestamp",
        index_granularity=granularity,
        entity_columns=entities,
    )


def built(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder that was made whole, by this call or an earlier one."""
    if not folder.exists():
        unfinished = folder.with_suffix(f".{os.getpid()}.partial")
        unfinished.mkdir(parents=True)
        work = make(unfinished)
        if hasattr(work, "run"):
            work.run()
        unfinished.rename(folder)
    return folder


def make_segments(place: Path, size: int) -> None:
    """Make a table of so many segments: an hour of two hosts each, many files in one commit."""
    table = new_table(place / "table", entity_columns=["host"])
    for first in range(0, size, FILES_A_COMMIT):
        paths = []
        for number in range(first, min(size, first + FILES_A_COMMIT)):
            paths.append(place / f"{number}.parquet")
            pq.write_table(hour(number), paths[-1])
        table.append_parquet(paths)
        for path in paths:
            path.unlink()


def wide_rows(columns: int, turn: int) -> pa.Table:
    """Return ten rows of so many columns of doubles beside the time."""
    times = START_US + (np.arange(WIDE_ROWS) + turn * WIDE_ROWS) * MINUTE_US
    values = pa.array(np.arange(WIDE_ROWS) / 8)
    named = {f"c{place}": values for place in range(columns - 1)}
    return pa.table({"ts": pa.array(times).cast(TIME), **named})


def minutes(rows: int) -> pa.Table:
    """Return a row a minute: no two of them in neighbouring seconds."""
    times = START_US + np.arange(rows) * MINUTE_US
    return pa.table({"ts": pa.array(times).cast(TIME), "value": np.arange(rows) / 8})


def devices(count: int) -> pa.Table:
    """Return five rows, an hour apart, of each of so many devices."""
    times = START_US + np.repeat(np.arange(ENTITY_ROWS), count) * 60 * MINUTE_US
    names = pa.array([f"device-{place:06}" for place in range(count)])
    indices = pa.array(np.tile(np.arange(count, dtype=np.int32), ENTITY_ROWS))
    device = pa.DictionaryArray.from_arrays(indices, names).cast(pa.string())
    return pa.table(
        {
            "ts": pa.array(times).cast(TIME),
            "device": device,
            "value": np.arange(count * ENTITY_ROWS) % 1_000 / 8,
        }
    )


def hour(number: int) -> pa.Table:
    """Return the rows of one segment: an hour of two hosts."""
    start = datetime.fromtimestamp(START_US / 1e6, UTC) + timedelta(hours=number)
    offsets = np.arange(SEGMENT_ROWS) * MINUTE_US
    times = int(start.timestamp()) * 1_000_000 + offsets
    hosts = ["a" if row % 2 else "b" for row in range(SEGMENT_ROWS)]
    return pa.table({"ts": pa.array(times).cast(TIME), "host": hosts, "value": offsets / 1e6})


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


OURS: dict[str, Callable[[Path, int], Work]] = {
    "wide append": WideAppend,
    "decade append": DecadeAppend,
    "last full window": LastFullWindow,
    "entity append": EntityAppend,
    "entity gaps": EntityGaps,
    "delete where": DeleteWhere,
    "count": ManySegments,
    "sum": ManySegmentsSum,
    "count of many": ManySegments,
    "limit of many": ManySegmentsLimit,
    "one thread": ThreadedWrites,
    "sixteen threads": SixteenThreads,
}
THEIRS: dict[str, Callable[[Path, int], Work]] = {
    "wide append": ReferenceWideAppend,
    "decade append": ReferenceDecadeAppend,
    "entity append": ReferenceEntityAppend,
    "count": ReferenceSegments,
    "sum": ReferenceSegmentsSum,
}
CONTENDERS: dict[str, Callable[[], Grower]] = {
    "thermocline": lambda: Grower(OURS),
    "ttf-0.9.0": lambda: Grower(THEIRS),
}
