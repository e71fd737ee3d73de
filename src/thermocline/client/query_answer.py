"""Streams the answer of a query from the node, as Arrow batches.

In:   an HTTP answer whose body is still to come
Out:  a `RecordBatchReader` with the query's id and report, like an embedded answer

- A truncated body is an error, never a shorter answer: the stream must end with Arrow's
  end-of-stream. The client then asks the node for the query's error and raises it.
- Closing the answer, or dropping the last reference to it, ends the query on the node.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import httpx2
import pyarrow as pa

from thermocline.errors import ThermoclineError, Unavailable
from thermocline.query.report import QueryReport, TableReport


class ClientAnswer(pa.ipc.RecordBatchStreamReader):  # type: ignore[misc]  # Arrow has no types
    """A reader of batches that ends its query when it is closed or garbage-collected."""

    def __init__(
        self, response: httpx2.Response, why: Callable[[str], ThermoclineError | None]
    ) -> None:
        query_id = response.headers.get("x-query-id", "")
        self.query_id = query_id
        self.report = _report(response.headers.get("x-thermocline-report", ""))
        # No reference cycle: dropping the last reference must end the query at once.
        self._source = _Body(response, lambda: why(query_id))
        try:
            super().__init__(pa.PythonFile(self._source, "r"))
        except pa.ArrowException as error:
            self._source.close_body()
            raise Unavailable("the answer cannot be read", hint="run the query again") from error
        except BaseException:
            self._source.close_body()
            raise

    def close(self) -> None:
        """End the query, if it is still running; further reads are errors."""
        self._source.close_body()
        super().close()

    def __exit__(self, *reason: object) -> None:
        self.close()


class _Body:
    """A readable file over an answer's body, for Arrow."""

    closed = False

    def __init__(
        self, response: httpx2.Response, why: Callable[[], ThermoclineError | None]
    ) -> None:
        self._response = response
        self._why = why
        self._parts: Iterator[bytes] = response.iter_raw()
        self._buffer = memoryview(b"")
        self._error: ThermoclineError | None = None

    def read(self, size_bytes: int) -> bytes:
        found: list[bytes] = []
        wanted = size_bytes
        while wanted:
            if not self._buffer:
                self._buffer = memoryview(self._next_part())
            part = self._buffer[:wanted]
            self._buffer = self._buffer[wanted:]
            wanted -= len(part)
            found.append(bytes(part))
        return b"".join(found)

    def _next_part(self) -> bytes:
        """Return more bytes; Arrow reads none after its end-of-stream, so an early end raises."""
        if self._error is None:
            try:
                for part in self._parts:
                    if part:
                        return part
            except (httpx2.HTTPError, httpx2.StreamError) as error:
                self._error = self._cut_error()
                raise self._error from error
            self._error = self._cut_error()
        raise self._error

    def _cut_error(self) -> ThermoclineError:
        self._response.close()
        hint = "run the query again"
        return self._why() or Unavailable("the answer was truncated", hint=hint)

    def close_body(self) -> None:
        if self._error is None:
            hint = "run the query again and read the answer to its end"
            self._error = Unavailable("the answer was closed", hint=hint)
        self._response.close()

    def close(self) -> None: ...

    def __del__(self) -> None:
        self._response.close()


def _report(text: str) -> QueryReport:
    try:
        tables: dict[str, Any] = json.loads(text).get("tables", {})
        known = {one.name for one in fields(TableReport)}  # a newer node may send more fields
        return QueryReport(
            {
                name: TableReport(**{key: answered[key] for key in answered.keys() & known})
                for name, answered in tables.items()
            }
        )
    except (ValueError, TypeError, AttributeError):
        return QueryReport()
