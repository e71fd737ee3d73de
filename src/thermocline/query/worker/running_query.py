"""One query from its admission to its end, and its answer as a stream of Arrow batches.

In:   a turn, a worker process, hot rows to share with the worker
Out:  a `RecordBatchReader` that reads batches from the worker on demand; one error if it fails

- An answer is complete only when the worker says so and its row count equals the rows received. If
  the worker ends before that, every further read raises the same error; an answer is never short.
- No batch is buffered: the worker blocks until the client reads. Closing a stream, or dropping the
  last reference to it, ends its query.
- A query ends exactly once. Then its worker is free for the next query, or discarded.
- Any thread may stop a query at any time, also before it has a worker. The engine is interrupted
  first, after `PATIENCE_S` the process is asked to exit, and after `PATIENCE_S` more it is killed.
  The error gives the reason of the first stop.

One thread reads a query's answer; any thread may stop it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pyarrow as pa

from thermocline.errors import NotFound, Overloaded, QueryTimeout, ThermoclineError, Unavailable
from thermocline.hot.tier import HotSnapshot
from thermocline.query.report import QueryReport
from thermocline.query.worker.protocol import (
    COUNT,
    FIT,
    MessageKind,
    PeerGone,
    TableLocation,
    pack_value,
    unpack_error,
    unpack_report,
)
from thermocline.query.worker.shared_memory import SharedParts
from thermocline.query.worker.worker_process import WorkerProcess

PATIENCE_S = 0.5

HotSource = Callable[[], HotSnapshot]
OnEnd = Callable[["RunningQuery", bool], None]


class RunningQuery:
    """A query that waits for its turn, has its turn, or runs on a worker.

    `turn` is done when the query may run. `deadline_s` is the end of the wait, then of the run.
    """

    def __init__(self, query_id: str, tenant: str, deadline_s: float) -> None:
        self.query_id = query_id
        self.tenant = tenant
        self.started_s = time.monotonic()
        self.deadline_s = deadline_s
        self.turn: Future[None] = Future()
        self.turn.set_running_or_notify_cancel()  # only the queue ends it
        self.worker: WorkerProcess | None = None
        self.report = QueryReport()
        self.is_truncated: bool | None = None  # of an encoded answer with a limit of rows
        self.is_abandoned = False  # whether its reader has gone; then `drain` reads to the end
        self.is_over = False
        self._timeout_s = 0.0
        self._hot: Mapping[str, HotSource] = {}
        self._shared: SharedParts | None = None
        self._on_end: OnEnd | None = None
        self._lock = threading.RLock()
        self._rows = 0
        self._reason: ThermoclineError | None = None
        self._kill_at_s: float | None = None
        self._is_leaving = False
        self._error: ThermoclineError | None = None

    def assign(
        self,
        worker: WorkerProcess,
        timeout_s: float,
        hot: Mapping[str, HotSource],
        shared: SharedParts,
        on_end: OnEnd,
    ) -> None:
        """Give a worker to the query; its timeout begins. Raises the reason if it was stopped.

        `on_end` is called once, with whether the worker can take another query.
        """
        self._hot, self._shared, self._on_end = hot, shared, on_end
        with self._lock:
            self.worker = worker
            self._timeout_s = timeout_s
            self.deadline_s = time.monotonic() + timeout_s
        if self._reason is not None:
            raise self._finish(self._reason, is_fit=True)

    def start(self, request: bytes, tables: tuple[TableLocation, ...] | None) -> bool:
        """Send the request; False when the worker ended before it accepted: try another one."""
        worker = self.worker
        assert worker is not None
        worker.tables = tables
        try:
            worker.send(MessageKind.REQUEST, request)
            if worker.receive()[0] is not MessageKind.ACCEPTED:
                raise PeerGone
        except PeerGone:
            with self._lock:
                if self._reason is None:
                    self.worker = None
                    return False
            raise self._finish(self._reason, is_fit=False) from None
        except BaseException:
            self._finish_interrupted()
            raise
        return True

    def next_bytes(self) -> memoryview | None:
        """Return the next bytes of the answer, or None after its end.

        Raises the error of the query, the same one at each call.
        """
        if self.is_over:
            if self._error is not None:
                raise self._error
            return None
        worker = self.worker
        assert worker is not None
        try:
            return self._receive_rows(worker)
        except PeerGone:
            lost = self._lost_worker_error(worker.cause_of_end())
            raise self._finish(self._reason or lost, is_fit=False) from None
        except ThermoclineError:
            raise
        except BaseException:
            self._finish_interrupted()
            raise

    @property
    def row_count(self) -> int:
        """The number of rows that have arrived."""
        return self._rows

    def send_batch(self, data: Any) -> None:
        """Send rows to a worker that evaluates a condition on them; empty data ends it."""
        assert self.worker is not None
        try:
            self.worker.send(MessageKind.BATCH, data)
        except PeerGone:
            lost = self._lost_worker_error(self.worker.cause_of_end())
            raise self._finish(self._reason or lost, is_fit=False) from None

    def move_deadline(self, deadline_s: float) -> None:
        """Set when the query must end; the caller watches it if that is earlier than before."""
        with self._lock:
            self.deadline_s = deadline_s

    def _receive_rows(self, worker: WorkerProcess) -> memoryview | None:
        while True:
            kind, data = worker.receive()
            if kind is MessageKind.ROWS:
                self._rows += COUNT.unpack_from(data)[0]
                return memoryview(data)[COUNT.size :]
            if kind is MessageKind.REPORT:
                self.report, self.is_truncated = unpack_report(data)
            elif kind is MessageKind.HOT_WANTED:
                self._send_hot_rows(worker, data.decode())
            elif kind is MessageKind.FAILED:
                error = unpack_error(data[len(FIT) :])
                # The worker may have failed while it registered tables: send all of them again.
                worker.tables = None
                raise self._finish(self._reason or error, is_fit=data.startswith(FIT))
            elif kind is MessageKind.END and COUNT.unpack(data[len(FIT) :])[0] == self._rows:
                self._finish(None, is_fit=data.startswith(FIT))
                return None
            else:
                hint = "run the query again"
                cut = Unavailable("the answer of a query worker is incomplete", hint=hint)
                raise self._finish(cut, is_fit=False)

    def _send_hot_rows(self, worker: WorkerProcess, name: str) -> None:
        """Send the hot rows of a table that the worker requests; they are read at this moment."""
        assert self._shared is not None
        try:
            if name not in self._hot:
                hint = "run the query again"
                raise NotFound("this table has no hot rows", hint=hint, table=name)
            snapshot = self._hot[name]()
            with self._shared.lend(snapshot) as (note, files):
                worker.send_with_files(MessageKind.HOT, pack_value(note), files)
        except ThermoclineError as error:
            worker.send(MessageKind.HOT, pack_value(error))

    def _lost_worker_error(self, cause: str) -> ThermoclineError:
        if cause == "SIGALRM":
            return self._timeout_error()
        return Overloaded(
            "the query ended its worker process",
            hint="select fewer rows or columns",
            query_id=self.query_id,
            cause=cause,
        )

    def _timeout_error(self) -> QueryTimeout:
        return QueryTimeout(
            "the query took longer than its limit",
            hint="select fewer rows or columns, or raise the timeout",
            timeout_s=self._timeout_s,
            query_id=self.query_id,
        )

    def _finish_interrupted(self) -> None:
        """End after an exception inside the protocol: the position in the stream is unknown."""
        hint = "run the query again"
        self._finish(Unavailable("the query was interrupted", hint=hint), is_fit=False)

    def _finish(self, error: ThermoclineError | None, *, is_fit: bool) -> ThermoclineError:
        """Record how the query ended, give its worker back, and return the error to raise."""
        with self._lock:
            is_first, self.is_over = not self.is_over, True
            if is_first:
                self._error = error
        if is_first and self._on_end is not None:
            self._on_end(self, is_fit)
        return self._error or Unavailable("the query is over")

    def stop(self, reason: ThermoclineError) -> None:
        """Interrupt the query for this reason; `check_deadline` must be called later to kill it."""
        with self._lock:
            if self.is_over or self._reason is not None:
                return
            self._reason = reason
            if self.worker is not None:
                self._kill_at_s = time.monotonic() + PATIENCE_S
                self.worker.interrupt()

    def check_deadline(self, now_s: float) -> float | None:
        """Stop or kill the query past its deadline; return when to check again, None for never."""
        with self._lock:
            if self.is_over or (self.worker is None and self.turn.done()):
                return None
            if self.worker is None:
                return self.deadline_s  # of its wait, which the queue ends
            if self._reason is None and now_s >= self.deadline_s:
                self.stop(self._timeout_error())
            if self._kill_at_s is None:
                return self.deadline_s
            if now_s >= self._kill_at_s:
                # A killed worker leaves its pins behind, so ask the worker to exit by itself first.
                (self.worker.kill if self._is_leaving else self.worker.leave)()
                self._is_leaving = True
                self._kill_at_s = now_s + PATIENCE_S
            return self._kill_at_s

    def drain(self) -> None:
        """Read a stopped query to its end, so that its worker can be reused."""
        with suppress(ThermoclineError):
            while self.next_bytes() is not None:
                pass


class EncodedAnswer:
    """The bytes of an answer in a format, as the worker encodes them.

    `report` and `is_truncated` are known before the first bytes are read.
    """

    def __init__(self, query: RunningQuery, leave: Callable[[RunningQuery], None]) -> None:
        self._query = query
        self._leave = leave
        self._first: memoryview | None = query.next_bytes()  # the report comes before it
        self.report = query.report
        self.is_truncated = query.is_truncated

    @property
    def row_count(self) -> int:
        """The number of rows whose bytes have arrived."""
        return self._query.row_count

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the bytes; an error ends them early."""
        part = self._first
        self._first = None
        while part is not None:
            yield part
            part = self._query.next_bytes()

    def close(self) -> None:
        """End the query if it is still running; no thread may read its answer now."""
        self._leave(self._query)


class ResultStream(pa.ipc.RecordBatchStreamReader):  # type: ignore[misc]  # Arrow has no types
    """A reader of batches that gives its worker back when it is closed or dropped."""

    def __init__(self, query: RunningQuery, leave: Callable[[RunningQuery], None]) -> None:
        self.query_id = query.query_id
        self._source = _AnswerBytes(query, leave)
        try:
            super().__init__(pa.PythonFile(self._source, "r"))
        except pa.ArrowException as error:
            raise Unavailable(
                "the answer of a query worker cannot be read", hint="run the query again"
            ) from error
        self.report = query.report  # it arrives before the first rows, which were read above

    def close(self) -> None:
        """End the query if it is still running; a later read raises an error."""
        self._source.leave()
        super().close()

    def __exit__(self, *reason: object) -> None:
        self.close()


class _AnswerBytes:
    """The bytes of an answer in the sizes that Arrow reads, without a copy within one message."""

    closed = False

    def __init__(self, query: RunningQuery, leave: Callable[[RunningQuery], None]) -> None:
        self._query = query
        self._leave = leave
        self._pending = memoryview(b"")
        self._is_whole = False
        self._is_closed = False

    def read(self, size_bytes: int) -> bytes:
        return bytes(self.read_bytes(size_bytes))

    def read_buffer(self, size_bytes: int) -> Any:
        return pa.py_buffer(self.read_bytes(size_bytes))

    def read_bytes(self, size_bytes: int) -> memoryview | bytes:
        # Invariant: only one thread reads a query, and after `leave` this thread must not.
        if self._is_closed and not self._is_whole:
            hint = "run the query again and read its answer to the end"
            raise Unavailable("the answer was closed", hint=hint)
        found: memoryview | bytes = b""
        while not self._is_whole and size_bytes > len(found):
            if not self._pending:
                more = self._query.next_bytes()
                self._is_whole = more is None
                self._pending = more or memoryview(b"")
            count = size_bytes - len(found)
            part, self._pending = self._pending[:count], self._pending[count:]
            found = b"".join((found, part)) if found else part
        return found

    def leave(self) -> None:
        self._is_closed = True
        if not self._is_whole:
            self._leave(self._query)

    def close(self) -> None: ...

    def __del__(self) -> None:
        self.leave()
