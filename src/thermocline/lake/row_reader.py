"""A stream of batches that is over when it is closed.

In:   a schema, and a generator of batches that holds what it reads (pins, files, a cursor)
Out:  what a `pyarrow.RecordBatchReader` offers, and `__arrow_c_stream__` for everything else

- When `close` returns, or the `with` block is left, the generator has released what it held, and
  reading on is `Invalid`. A reader that is let go releases it, too.
- Arrow's own reader of a generator cannot be closed: rows stayed readable, and the version pinned.
"""

import threading
from collections.abc import Generator, Iterator
from typing import Any

import pyarrow as pa

from thermocline.errors import Invalid


class RowReader:
    """Batches one after the other. One thread reads; any thread may close between two batches."""

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch, None, None]) -> None:
        self.schema = schema
        self._batches = batches
        self._lock = threading.RLock()
        self._is_closed = False

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch; `StopIteration` after the last, `Invalid` when closed."""
        with self._lock:
            if self._is_closed:
                raise Invalid("the reader is closed", hint="ask for the rows again")
            return next(self._batches)

    def __next__(self) -> pa.RecordBatch:
        return self.read_next_batch()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def read_all(self) -> pa.Table:
        """Return all rows that are left as one table."""
        return pa.Table.from_batches(list(self), self.schema)

    def read_pandas(self, **options: Any) -> Any:
        """Return all rows that are left as a data frame of pandas."""
        return self.read_all().to_pandas(**options)

    def cast(self, target_schema: pa.Schema) -> pa.RecordBatchReader:
        """Return a reader of the same rows in other types."""
        return self._arrow().cast(target_schema)

    def close(self) -> None:
        """Release what the reader holds; reading on is `Invalid` then."""
        with self._lock:
            self._is_closed = True
            self._batches.close()

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
