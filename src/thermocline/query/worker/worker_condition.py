"""A condition on rows, evaluated in a worker process.

In:   the text of a condition and a schema; batches
Out:  the columns that the condition reads; for each batch a mask

- The text is a client's: like a query, it is parsed and evaluated in a worker only, under the
  worker's memory limit. It may occupy the engine for its timeout, over all batches together.
- While the caller reads its next batch, the worker waits; after `IDLE_S` the condition ends.
"""

import json
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from thermocline.query.worker.running_query import RunningQuery

BATCH_BYTES_MAX = 16 << 20
IDLE_S = 600.0


class WorkerCondition:
    """A compiled condition; it occupies its worker until `close`. Used by one thread at a time."""

    def __init__(
        self, query: RunningQuery, timeout_s: float, leave: Callable[[RunningQuery], None]
    ) -> None:
        """`query` was started with the condition; `leave` ends it at any stage."""
        self._query = query
        self._leave = leave
        self._left_s = timeout_s
        about = json.loads(bytes(self._receive()))
        self.columns: tuple[str, ...] = tuple(about["columns"])
        self._bounds: dict[str, list[int | None]] = about["bounds"]

    def window(self, time_column: str) -> tuple[int | None, int | None]:
        """Return the half-open time range outside which the condition is never true."""
        low, high = self._bounds.get(time_column, (None, None))
        return low, high

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether the condition is true."""
        rows = max(1, batch.num_rows * BATCH_BYTES_MAX // max(batch.nbytes, BATCH_BYTES_MAX))
        parts = [
            self._mask_part(batch.slice(start, rows)) for start in range(0, batch.num_rows, rows)
        ]
        return pa.concat_arrays(parts) if parts else pa.array([], pa.bool_())

    def _mask_part(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        self._query.send_batch(sink.getvalue())
        bits = np.frombuffer(self._receive(), np.uint8)
        return pa.array(np.unpackbits(bits, count=batch.num_rows, bitorder="little").view(bool))

    def _receive(self) -> memoryview:
        """Return the worker's next answer, within what is left of the timeout."""
        began_s = time.monotonic()
        self._query.move_deadline(began_s + self._left_s)
        found = self._query.next_bytes()
        assert found is not None
        now_s = time.monotonic()
        self._left_s -= now_s - began_s
        self._query.move_deadline(now_s + IDLE_S)
        return found

    def close(self) -> None:
        """Give the worker back."""
        if self._query.is_over:
            return
        self._query.send_batch(b"")
        self._query.drain()

    def __enter__(self) -> "WorkerCondition":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._leave(self._query)
