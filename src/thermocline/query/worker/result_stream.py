"""The answer of a running query as a stream of Arrow batches.

In:   a run, which gives bytes of Arrow's stream format
Out:  a `RecordBatchReader` that reads batches from the worker on demand

- No batch is buffered: the worker blocks until the client reads.
- The stream ends only when the run confirms that the answer is complete; after a failure every
  further read raises the same error.
- Closing a stream, or dropping the last reference to it, ends its query.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from thermocline.errors import Unavailable
from thermocline.query.worker.running_query import QueryRun


class ResultStream(pa.ipc.RecordBatchStreamReader):  # type: ignore[misc]  # Arrow has no types
    """A reader of batches that gives its worker back when it is closed or dropped."""

    def __init__(self, run: QueryRun, abandon: Callable[[QueryRun], None]) -> None:
        self.query_id = run.query_id
        self._source = _AnswerBytes(run, abandon)
        try:
            super().__init__(pa.PythonFile(self._source, "r"))
        except pa.ArrowException as error:
            raise Unavailable(
                "the answer of a query worker cannot be read", hint="run the query again"
            ) from error
        self.report = run.report  # it arrives before the first rows, which were read above

    def close(self) -> None:
        """End the query if it is still running; a later read raises an error."""
        self._source.abandon()
        super().close()

    def __exit__(self, *reason: object) -> None:
        self.close()


class _AnswerBytes:
    """The bytes of an answer in the sizes that Arrow reads, without a copy within one message."""

    closed = False

    def __init__(self, run: QueryRun, abandon: Callable[[QueryRun], None]) -> None:
        self._run = run
        self._abandon = abandon
        self._pending = memoryview(b"")
        self._is_whole = False
        self._is_closed = False

    def read(self, size_bytes: int) -> bytes:
        return bytes(self._read_bytes(size_bytes))

    def read_buffer(self, size_bytes: int) -> Any:
        return pa.py_buffer(self._read_bytes(size_bytes))

    def _read_bytes(self, size_bytes: int) -> memoryview | bytes:
        # Invariant: only one thread reads a run, and after `abandon` this thread must not.
        if self._is_closed and not self._is_whole:
            hint = "run the query again and read its answer to the end"
            raise Unavailable("the answer was closed", hint=hint)
        found: memoryview | bytes = b""
        while not self._is_whole and size_bytes > len(found):
            if not self._pending:
                more = self._run.next_bytes()
                self._is_whole = more is None
                self._pending = more or memoryview(b"")
            count = size_bytes - len(found)
            part, self._pending = self._pending[:count], self._pending[count:]
            found = b"".join((found, part)) if found else part
        return found

    def abandon(self) -> None:
        self._is_closed = True
        if not self._is_whole:
            self._abandon(self._run)

    def close(self) -> None: ...

    def __del__(self) -> None:
        self.abandon()
