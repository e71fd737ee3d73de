"""One query on one worker, from its request to its end.

In:   a worker process, the tables the query may name, hot rows to share with the worker
Out:  the bytes of its answer, message by message; one error if it fails

- An answer is complete only when the worker says so and its row count equals the rows received. If
  the worker ends before that, every further read raises the same error; an answer is never short.
- A run ends exactly once. Then its worker is free for the next query, or discarded.
- Any thread may stop a run at any time: the engine is interrupted first, after `PATIENCE_S` the
  process is asked to exit, and after `PATIENCE_S` more it is killed. The error gives the reason of
  the first stop.

One thread reads a run; any thread may stop it.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from thermocline.errors import NotFound, Overloaded, QueryTimeout, ThermoclineError, Unavailable
from thermocline.hot.tier import HotSnapshot
from thermocline.query.report import QueryReport
from thermocline.query.worker.protocol import (
    COUNT,
    FIT,
    MessageKind,
    PeerGone,
    pack_value,
    unpack_value,
)
from thermocline.query.worker.request import TableLocation
from thermocline.query.worker.shared_memory import SharedParts
from thermocline.query.worker.worker_process import WorkerProcess

PATIENCE_S = 0.5

HotSource = Callable[[], HotSnapshot]
OnEnd = Callable[["QueryRun", bool], None]


class RequestNotAccepted(Exception):
    """The worker ended before it accepted the request: another worker may run it."""


class QueryRun:
    """A running query; it calls `done` once, with whether its worker can take another query."""

    def __init__(
        self,
        query_id: str,
        worker: WorkerProcess,
        hot: Mapping[str, HotSource],
        shared: SharedParts,
        timeout_s: float,
        done: OnEnd,
    ) -> None:
        self.query_id = query_id
        self.worker = worker
        self.deadline_s = time.monotonic() + timeout_s
        self.report = QueryReport()
        self.is_abandoned = False  # whether its reader has gone; then `drain` reads to the end
        self._timeout_s = timeout_s
        self._hot = hot
        self._shared = shared
        self._on_end = done
        self._lock = threading.RLock()
        self._is_accepted = False
        self._rows = 0
        self._reason: ThermoclineError | None = None
        self._kill_at_s: float | None = None
        self._is_leaving = False
        self._is_over = False
        self._error: ThermoclineError | None = None

    def begin(self, request: bytes, tables: tuple[TableLocation, ...]) -> None:
        """Send the request; if the worker has ended, `next_bytes` raises the error."""
        with suppress(PeerGone):
            self.worker.send(MessageKind.REQUEST, request)
        self.worker.tables = tables

    def next_bytes(self) -> memoryview | None:
        """Return the next bytes of the answer, or None after its end.

        Raises the error of the query, the same one at each call; `RequestNotAccepted` when the
        worker ended before it accepted the request.
        """
        if self._is_over:
            if self._error is not None:
                raise self._error
            return None
        try:
            return self._receive_rows()
        except PeerGone:
            cause = self.worker.cause_of_end()
            error = self._finish(self._reason or self._lost_worker_error(cause), is_fit=False)
            if not self._is_accepted and self._reason is None:
                raise RequestNotAccepted from None
            raise error from None
        except ThermoclineError:
            raise
        except BaseException:
            # An exception in the middle of the protocol: the position in the stream is unknown.
            hint = "run the query again"
            self._finish(Unavailable("the query was interrupted", hint=hint), is_fit=False)
            raise

    def _receive_rows(self) -> memoryview | None:
        while True:
            kind, data = self.worker.receive()
            if kind is MessageKind.ROWS:
                self._rows += COUNT.unpack_from(data)[0]
                return memoryview(data)[COUNT.size :]
            if kind is MessageKind.ACCEPTED:
                self._is_accepted = True
            elif kind is MessageKind.REPORT:
                self.report = unpack_value(data)
            elif kind is MessageKind.HOT_WANTED:
                self._send_hot_rows(data.decode())
            elif kind is MessageKind.FAILED:
                error: ThermoclineError = unpack_value(data[len(FIT) :])
                # The worker may have failed while it registered tables: send all of them again.
                self.worker.tables = None
                raise self._finish(self._reason or error, is_fit=data.startswith(FIT))
            elif kind is MessageKind.END and COUNT.unpack(data[len(FIT) :])[0] == self._rows:
                self._finish(None, is_fit=data.startswith(FIT))
                return None
            else:
                hint = "run the query again"
                error = Unavailable("the answer of a query worker is incomplete", hint=hint)
                raise self._finish(error, is_fit=False)

    def _send_hot_rows(self, name: str) -> None:
        """Send the hot rows of a table that the worker requests; they are read at this moment."""
        try:
            if name not in self._hot:
                hint = "run the query again"
                raise NotFound("this table has no hot rows", hint=hint, table=name)
            snapshot = self._hot[name]()
            with self._shared.lend(snapshot) as (note, files):
                self.worker.send_with_files(MessageKind.HOT, pack_value(note), files)
        except ThermoclineError as error:
            self.worker.send(MessageKind.HOT, pack_value(error))

    def _lost_worker_error(self, cause: str) -> ThermoclineError:
        if cause == "SIGALRM":
            return timeout_error(self._timeout_s, self.query_id)
        return Overloaded(
            "the query ended its worker process",
            hint="select fewer rows or columns",
            query_id=self.query_id,
            cause=cause,
        )

    def _finish(self, error: ThermoclineError | None, *, is_fit: bool) -> ThermoclineError:
        """Record how the run ended, give its worker back, and return the error to raise."""
        with self._lock:
            is_first, self._is_over = not self._is_over, True
            if is_first:
                self._error = error
        if is_first:
            self._on_end(self, is_fit)
        return self._error or Unavailable("the query is over")

    def stop(self, reason: ThermoclineError) -> None:
        """Interrupt the query for this reason; `check_deadline` must be called later to kill it."""
        with self._lock:
            if self._is_over or self._reason is not None:
                return
            self._reason = reason
            self._kill_at_s = time.monotonic() + PATIENCE_S
            self.worker.interrupt()

    def check_deadline(self, now_s: float) -> float | None:
        """Stop or kill the query past its deadline; return when to check again, None at its end."""
        with self._lock:
            if self._is_over:
                return None
            if self._reason is None and now_s >= self.deadline_s:
                self.stop(timeout_error(self._timeout_s, self.query_id))
            if self._kill_at_s is None:
                return self.deadline_s
            if now_s >= self._kill_at_s:
                # A killed worker leaves its pins behind, so ask the worker to exit by itself first.
                (self.worker.kill if self._is_leaving else self.worker.leave)()
                self._is_leaving = True
                self._kill_at_s = now_s + PATIENCE_S
            return self._kill_at_s

    def drain(self) -> None:
        """Read a stopped run to its end, so that its worker can be reused."""
        with suppress(ThermoclineError, RequestNotAccepted):
            while self.next_bytes() is not None:
                pass


def timeout_error(timeout_s: float, query_id: str) -> QueryTimeout:
    """Return the error of a query that exceeded its timeout."""
    return QueryTimeout(
        "the query took longer than its limit",
        hint="select fewer rows or columns, or raise the timeout",
        timeout_s=timeout_s,
        query_id=query_id,
    )
