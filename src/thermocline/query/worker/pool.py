"""Runs SQL in worker processes, each with a memory limit and a timeout.

In:   SQL with parameters; the tables it may name, with their hot rows
Out:  Arrow tables and streams; errors of this package only

- A query can harm only its worker: the worker parses, checks, evaluates and runs the text, with a
  memory limit that the operating system enforces and a timeout after which it is killed.
- A worker runs one query at a time and stays warm for the next. The pool replaces a worker that
  died, and other queries are not affected.
- Every wait has a timeout: for a worker, for its start, for the answer. Every request, message and
  collected answer has a size limit.
- When the pool's process ends, even by a crash, no worker process and no spilled rows remain.

The worker requests the hot rows of a table after it has parsed the query, so that only tables
that the query names are read.
"""

import os
import pickle
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from thermocline.errors import Conflict, Invalid, Overloaded, QueryCancelled, Unavailable
from thermocline.format.argument import check_parameters, check_seconds, check_text
from thermocline.hot.tier import HotSnapshot
from thermocline.machine import core_count
from thermocline.query.worker.protocol import REQUEST_BYTES_MAX, pack_value
from thermocline.query.worker.request import TableLocation, WorkerRequest, WorkerSettings
from thermocline.query.worker.result_stream import ResultStream
from thermocline.query.worker.running_query import QueryRun, RequestNotAccepted
from thermocline.query.worker.shared_memory import SharedParts
from thermocline.query.worker.watchdog import QueryWatchdog
from thermocline.query.worker.worker_process import WorkerProcess

WORKERS_DEFAULT = 2
MEMORY_BYTES_DEFAULT = 256 << 20
SPILL_BYTES_DEFAULT = 4 << 30
ANSWER_BYTES_MAX_DEFAULT = 512 << 20
TIMEOUT_S_DEFAULT = 60.0
TIMEOUT_S_MAX = 24 * 3_600.0
WAIT_S_DEFAULT = 10.0
WAITING_MAX = 64
TRIES_MAX = 3

Params = Sequence[Any] | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table that queries may name: its location, and a function that returns its hot rows.

    `hot` is called once for each query that names the table, in the thread that runs the query.
    """

    name: str
    root: str | os.PathLike[str]
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    hot: Callable[[], HotSnapshot] | None = None


class _PendingQuery(NamedTuple):
    """A query and its two requests: `first` with the tables, `again` for a worker that has them."""

    query_id: str
    first: bytes
    again: bytes
    tables: tuple[TableLocation, ...]
    hot: Mapping[str, Callable[[], HotSnapshot]]
    limit_s: float


class QueryPool:
    """Worker processes that run SQL; safe to use from many threads.

    The pool calls `tables` at the start of every query without tables of its own. It starts workers
    when it needs them.
    """

    def __init__(
        self,
        tables: Callable[[], Mapping[str, TableRef]] = dict,
        *,
        workers: int = WORKERS_DEFAULT,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        spill_bytes: int = SPILL_BYTES_DEFAULT,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        wait_s: float = WAIT_S_DEFAULT,
        answer_bytes_max: int = ANSWER_BYTES_MAX_DEFAULT,
    ) -> None:
        if workers < 1:
            raise Invalid("a pool has at least one worker", workers=workers)
        self._tables = tables
        self._workers_max = workers
        self._timeout_s = timeout_s
        self._wait_s = wait_s
        self._answer_bytes_max = answer_bytes_max
        threads = max(1, core_count() // workers)
        self._settings = WorkerSettings(memory_bytes, spill_bytes, threads)
        self._changed = threading.Condition()
        self._workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self._count = 0  # workers that run or are being started
        self._waiting = 0
        self._is_closed = False
        self._watchdog = QueryWatchdog()
        self._shared = SharedParts()
        weakref.finalize(self, _discard_all, self._workers)

    def sql(
        self,
        query: str,
        params: Params = None,
        *,
        tables: Mapping[str, TableRef] | None = None,
        timeout_s: float | None = None,
        query_id: str | None = None,
    ) -> pa.Table:
        """Return the answer of one SELECT as a table, as `Session.sql` does.

        `Overloaded` when it exceeds its memory limit or timeout, when its answer is larger than
        this pool collects, or when all workers stay busy. `QueryCancelled` when it is cancelled.
        """
        with self.sql_reader(
            query, params, tables=tables, timeout_s=timeout_s, query_id=query_id
        ) as reader:
            batches: list[pa.RecordBatch] = []
            size_bytes = 0
            for batch in reader:
                batches.append(batch)
                size_bytes += batch.nbytes
                if size_bytes > self._answer_bytes_max:
                    raise Overloaded(
                        "the answer is larger than the limit",
                        hint="read it as a stream, or select fewer rows or columns",
                        bytes_max=self._answer_bytes_max,
                    )
            return pa.Table.from_batches(batches, reader.schema)

    def sql_reader(
        self,
        query: str,
        params: Params = None,
        *,
        tables: Mapping[str, TableRef] | None = None,
        timeout_s: float | None = None,
        query_id: str | None = None,
    ) -> ResultStream:
        """Return the answer of one SELECT as a stream of batches.

        `tables` are those that it may name, in place of the pool's.
        The query occupies its worker, and its timeout runs, until the stream is read to its end,
        fails, is closed or dropped. The stream raises errors that come after the first batches.
        """
        limit_s = self._timeout_s if timeout_s is None else check_seconds(timeout_s, "timeout_s")
        check_text(query, "query")
        if query_id is not None:
            check_text(query_id, "query_id")
        params = check_parameters(params, "params")
        if not 0 < limit_s <= TIMEOUT_S_MAX:
            raise Invalid(
                "the timeout of a query is out of range",
                hint="give seconds above 0, up to the maximum",
                timeout_s=limit_s,
                timeout_s_max=TIMEOUT_S_MAX,
            )
        refs = list((self._tables() if tables is None else tables).values())
        notes = tuple(
            TableLocation(ref.name, os.fspath(ref.root), ref.storage_options, ref.hot is not None)
            for ref in refs
        )
        asked = _PendingQuery(
            query_id or uuid.uuid4().hex,
            _encode_request(WorkerRequest(query, params, limit_s, notes)),
            _encode_request(WorkerRequest(query, params, limit_s, None)),
            notes,
            {ref.name: ref.hot for ref in refs if ref.hot is not None},
            limit_s,
        )
        for _ in range(TRIES_MAX):
            with suppress(RequestNotAccepted):
                return self._begin_query(asked)
        raise Unavailable(
            "query workers end before they accept a query",
            hint="check the memory and the process limits of the machine",
        )

    def _begin_query(self, asked: "_PendingQuery") -> ResultStream:
        worker = self._checkout(asked.tables)
        run = QueryRun(
            asked.query_id, worker, asked.hot, self._shared, asked.limit_s, self._release
        )
        if not self._watchdog.add(run):
            self._give_back(worker, is_fit=True)
            hint = "choose another id, or wait"
            raise Conflict("a query of this id is running", hint=hint, query_id=run.query_id)
        try:
            same = worker.tables == asked.tables
            run.begin(asked.again if same else asked.first, asked.tables)
            return ResultStream(run, self._watchdog.abandon)
        except BaseException:
            self._watchdog.abandon(run)
            raise

    def cancel(self, query_id: str) -> bool:
        """End a running query within a second; False when no query of this id is running.

        A thread that waits for its answer or reads it gets `QueryCancelled`.
        """
        check_text(query_id, "query_id")
        hint = "a client cancelled it by its id; run it again if its answer is needed"
        reason = QueryCancelled("the query was cancelled", hint=hint, query_id=query_id)
        return self._watchdog.stop(query_id, reason)

    def _checkout(self, tables: tuple[TableLocation, ...]) -> WorkerProcess:
        """Return a worker for one query: an idle one, a new one, or the next that becomes idle.

        It prefers a worker that already has these tables open.
        """
        until_s = time.monotonic() + self._wait_s
        with self._changed:
            if self._waiting >= WAITING_MAX:
                raise self._busy_error()
            self._waiting += 1
            try:
                while True:
                    self._check_open()
                    self._idle.sort(key=lambda one: one.tables == tables)
                    while self._idle:
                        worker = self._idle.pop()
                        if worker.is_running:
                            return worker
                        self._forget(worker)
                    if self._count < self._workers_max:
                        self._count += 1
                        break
                    if not self._changed.wait(max(0.0, until_s - time.monotonic())):
                        raise self._busy_error()
            finally:
                self._waiting -= 1
        return self._start_worker()

    def _start_worker(self) -> WorkerProcess:
        worker = None
        try:
            worker = WorkerProcess(self._settings)
        finally:
            with self._changed:
                if worker is None:
                    self._count -= 1
                    self._changed.notify_all()
                else:
                    self._workers.add(worker)
        if self._is_closed:
            self._give_back(worker, is_fit=False)
            self._check_open()
        return worker

    def _busy_error(self) -> Overloaded:
        return Overloaded(
            "all query workers are busy",
            hint="try again in a moment",
            workers=self._workers_max,
            waited_s=self._wait_s,
            waiting=self._waiting,
        )

    def _release(self, run: QueryRun, is_fit: bool) -> None:
        self._watchdog.remove(run)
        self._give_back(run.worker, is_fit=is_fit)

    def _give_back(self, worker: WorkerProcess, *, is_fit: bool) -> None:
        with self._changed:
            if is_fit and not self._is_closed:
                self._idle.append(worker)
                self._changed.notify_all()
                return
        # Order matters: the worker's memory and spilled rows are freed before another one starts.
        self._forget(worker)

    def _forget(self, worker: WorkerProcess) -> None:
        worker.discard()
        with self._changed:
            self._workers.discard(worker)
            self._count -= 1
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the pool is closed", hint="open another pool")

    def worker_ids(self) -> list[int]:
        """Return the process ids of the workers that are alive."""
        with self._changed:
            return sorted(worker.pid for worker in self._workers if worker.is_running)

    def close(self) -> None:
        """End every query and every worker. When this returns, no process or spilled row remains.

        Streams that are still being read raise an error.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._watchdog.stop_all(Unavailable("the lake or pool was closed", hint="open it again"))
        with self._changed:
            workers, self._idle = list(self._workers), []
        for worker in workers:
            worker.leave()  # all exit at the same time; `discard` waits for each
        for worker in workers:
            worker.discard()
        self._shared.close()

    def __enter__(self) -> "QueryPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _encode_request(request: WorkerRequest) -> bytes:
    try:
        data = pack_value(request)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise Invalid(
            "a parameter is of a type that cannot be sent to a worker",
            hint="use numbers, texts, times and lists of them",
            error=str(error),
        ) from error
    if len(data) > REQUEST_BYTES_MAX:
        raise Invalid(
            "query and parameters are too long",
            hint="put long lists into a table",
            bytes=len(data),
            bytes_max=REQUEST_BYTES_MAX,
        )
    return data


def _discard_all(workers: set[WorkerProcess]) -> None:
    for worker in list(workers):
        worker.discard()
