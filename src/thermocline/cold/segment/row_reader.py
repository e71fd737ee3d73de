"""A stream of batches that releases its resources when it is closed.

In:   a schema, and a generator of batches that holds resources (pins, files, a cursor)
Out:  the methods of a `pyarrow.RecordBatchReader`, and `__arrow_c_stream__` for other libraries

- When `close` returns, or the `with` block ends, the generator has released its resources, and
  further reads raise `Invalid`. A reader that is garbage-collected releases them too.
- The lake or session that a reader came from may end it: further reads then raise the error that
  the lake or session gave.
- Arrow's reader of a generator cannot be closed: its rows would stay readable, and the version
  pinned.
"""

import threading
from collections.abc import Generator, Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa

from thermocline.errors import Invalid, ThermoclineError, Unsupported
from thermocline.format.argument import check_count


def polars_frame(rows: pa.Table) -> Any:
    """Return rows as a polars data frame; `Unsupported` for what polars cannot hold."""
    polars = _require("polars")
    # polars ends with a panic, which is no `Exception`, when it meets these.
    if wide := [field.name for field in rows.schema if _has_wide_decimal(field.type)]:
        raise Unsupported(
            "polars cannot hold the digits of a column",
            hint="omit the column, or take its values from to_arrow()",
            columns=wide,
        )
    return polars.from_arrow(rows)


def pandas_frame(rows: pa.Table, **options: Any) -> Any:
    """Return rows as a pandas data frame; `options` are those of Arrow's `to_pandas`.

    Whole numbers with nulls stay exact: as pandas' nullable integers where Arrow alone would make
    them doubles.
    """
    pandas = _require("pandas")
    if options:
        return rows.to_pandas(**options)
    nullable = {
        place: column
        for place, column in enumerate(rows.columns)
        if pa.types.is_integer(column.type) and column.null_count
    }
    others = [place for place in range(rows.num_columns) if place not in nullable]
    frame = rows.select(others).to_pandas(integer_object_nulls=True)
    for place, column in nullable.items():
        sign = "U" if pa.types.is_unsigned_integer(column.type) else ""
        kind = pandas.api.types.pandas_dtype(f"{sign}Int{column.type.bit_width}")
        at = min(place, frame.shape[1])  # a column may have become the index
        name = rows.field(place).name
        frame.insert(at, name, kind.__from_arrow__(column), allow_duplicates=True)
    return frame


def _require(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        hint = f"pip install {package}"
        raise Unsupported(f"{package} is not installed", hint=hint, package=package) from error


def _has_wide_decimal(kind: pa.DataType) -> bool:
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return pa.types.is_decimal256(kind) or any(_has_wide_decimal(one) for one in inner)


class RowReader:
    """Batches one after the other. One thread reads; any thread may close between two batches."""

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch, None, None]) -> None:
        self.schema = schema
        self._batches = batches
        self._lock = threading.RLock()
        self._error: ThermoclineError | None = None
        self._rest: pa.RecordBatch | None = None  # of a batch that `head` took the first rows of

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch; `StopIteration` after the last, `Invalid` when closed."""
        with self._lock:
            if self._error is not None:
                raise self._error
            batch, self._rest = self._rest, None
            return next(self._batches) if batch is None else batch

    def __next__(self) -> pa.RecordBatch:
        return self.read_next_batch()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def read_all(self) -> pa.Table:
        """Return the remaining rows as one table."""
        return pa.Table.from_batches(list(self), self.schema)

    def head(self, rows: int = 10) -> pa.Table:
        """Return the next rows, up to a number, as one table."""
        wanted, held = check_count(rows, "rows"), list[pa.RecordBatch]()
        while wanted:
            try:
                batch = self.read_next_batch()
            except StopIteration:
                break
            held.append(batch.slice(0, wanted))
            if batch.num_rows > wanted:
                self._rest = batch.slice(wanted)
            wanted -= held[-1].num_rows
        return pa.Table.from_batches(held, self.schema)

    def to_pandas(self, **options: Any) -> Any:
        """Return the remaining rows as a pandas data frame."""
        return self.read_pandas(**options)

    def to_polars(self) -> Any:
        """Return the remaining rows as a polars data frame."""
        return polars_frame(self.read_all())

    def read_pandas(self, **options: Any) -> Any:
        """Return the remaining rows as a pandas data frame."""
        return pandas_frame(self.read_all(), **options)

    def cast(self, target_schema: pa.Schema) -> pa.RecordBatchReader:
        """Return a reader of the same rows in other types."""
        return self._arrow().cast(target_schema)

    def close(self) -> None:
        """Release what the reader holds; further reads raise `Invalid`."""
        self.end(Invalid("the reader is closed", hint="ask for the rows again"))

    def end(self, error: ThermoclineError) -> None:
        """Release what the reader holds; further reads raise this error or an earlier one."""
        with self._lock:
            self._error = self._error or error
            self._batches.close()

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"RowReader({'closed, ' if self._error else ''}columns=[{columns}])"

    def __enter__(self) -> "RowReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _arrow(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def _export_to_c(self, pointer: int) -> None:
        self._arrow()._export_to_c(pointer)  # noqa: SLF001  # Arrow's name for it

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._arrow().__arrow_c_stream__(requested_schema)
