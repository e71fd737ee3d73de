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
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from thermocline.errors import Invalid, Overloaded, Unavailable
from thermocline.format.argument import check_parameters, check_seconds, check_text
from thermocline.hot.tier import HotSnapshot
from thermocline.machine import core_count
from thermocline.query.worker.protocol import (
    REQUEST_BYTES_MAX,
    AnswerRequest,
    TableLocation,
    WorkerRequest,
    WorkerSettings,
    pack_value,
)
from thermocline.query.worker.query_queue import WAIT_S_DEFAULT, QueryQueue
from thermocline.query.worker.running_query import EncodedAnswer, ResultStream, RunningQuery
from thermocline.query.worker.shared_memory import SharedParts
from thermocline.query.worker.worker_condition import WorkerCondition
from thermocline.query.worker.worker_process import WorkerProcess

WORKERS_DEFAULT = 2
MEMORY_BYTES_DEFAULT = 256 << 20
SPILL_BYTES_DEFAULT = 4 << 30
ANSWER_BYTES_MAX_DEFAULT = 512 << 20
TIMEOUT_S_DEFAULT = 60.0
TIMEOUT_S_MAX = 24 * 3_600.0
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


class QueryPool:
    """Worker processes that run SQL; safe to use from many threads.

    It starts workers when it needs them. Its `queue` has the queries that wait or run.
    """

    def __init__(
        self,
        *,
        workers: int = WORKERS_DEFAULT,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        spill_bytes: int = SPILL_BYTES_DEFAULT,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        wait_s: float = WAIT_S_DEFAULT,
        answer_bytes_max: int = ANSWER_BYTES_MAX_DEFAULT,
        folders: Sequence[str] = (),
    ) -> None:
        """With `folders`, workers are confined to them: no other files, no network."""
        if workers < 1:
            raise Invalid("a pool has at least one worker", workers=workers)
        self.queue = QueryQueue(workers, wait_s)
        self.timeout_s = timeout_s
        self._answer_bytes_max = answer_bytes_max
        self._folders = tuple(folders)
        threads = max(1, core_count() // workers)
        self._settings = WorkerSettings(memory_bytes, spill_bytes, threads)
        self._lock = threading.Lock()
        self._workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self._is_closed = False
        self._shared = SharedParts()
        weakref.finalize(self, _discard_all, self._workers)

    def sql(
        self,
        query: str,
        params: Params = None,
        *,
        tables: Iterable[TableRef] = (),
        timeout_s: float | None = None,
        query_id: str | None = None,
        tenant: str = "",
    ) -> pa.Table:
        """Return the answer of one SELECT as a table, as `Session.sql` does.

        `Overloaded` when it exceeds its memory limit or timeout, when its answer is larger than
        this pool collects, or when all workers stay busy. `QueryCancelled` when it is cancelled.
        """
        with self.sql_reader(
            query, params, tables=tables, timeout_s=timeout_s, query_id=query_id, tenant=tenant
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
        tables: Iterable[TableRef] = (),
        timeout_s: float | None = None,
        query_id: str | None = None,
        tenant: str = "",
    ) -> ResultStream:
        """Wait for a turn, then return the answer of one SELECT as a stream of batches."""
        self._check_open()
        admitted = self.queue.admit(query_id, tenant)
        try:
            admitted.turn.result()
        except BaseException:
            self.queue.leave(admitted)
            raise
        return self.run(admitted, query, params, tables, timeout_s)

    def run(
        self,
        admitted: RunningQuery,
        query: str,
        params: Params,
        tables: Iterable[TableRef],
        timeout_s: float | None,
    ) -> ResultStream:
        """Return the answer of one SELECT over these tables; the query has its turn.

        The query occupies its worker, and its timeout runs, until the stream is read to its end,
        fails, is closed or dropped. The stream raises errors that come after the first batches.
        """
        self._run(admitted, query, params, tables, timeout_s, None)
        return ResultStream(admitted, self.queue.leave)

    def run_encoded(
        self,
        admitted: RunningQuery,
        query: str,
        params: Params,
        tables: Iterable[TableRef],
        timeout_s: float | None,
        answer: AnswerRequest,
    ) -> EncodedAnswer:
        """Return the answer of one SELECT in a format, encoded by the worker, as `run` does."""
        self._run(admitted, query, params, tables, timeout_s, answer)
        try:
            return EncodedAnswer(admitted, self.queue.leave)
        except BaseException:
            self.queue.leave(admitted)
            raise

    def _run(
        self,
        admitted: RunningQuery,
        query: str,
        params: Params,
        tables: Iterable[TableRef],
        timeout_s: float | None,
        answer: AnswerRequest | None,
    ) -> None:
        """Start a query on a worker."""
        try:
            request = WorkerRequest(
                check_text(query, "query"),
                check_parameters(params, "params"),
                self._check_timeout(timeout_s),
                None,
                answer=answer,
            )
            refs = list(tables)
            locations = tuple(
                TableLocation(
                    ref.name, os.fspath(ref.root), ref.storage_options, ref.hot is not None
                )
                for ref in refs
            )
            hot = {ref.name: ref.hot for ref in refs if ref.hot is not None}
            again = _encode_request(request)
            first = _encode_request(replace(request, tables=locations))
            for _ in range(TRIES_MAX):
                worker = self._take_worker(locations)
                admitted.assign(worker, request.timeout_s, hot, self._shared, self._end)
                self.queue.watch(admitted)
                if admitted.start(again if worker.tables == locations else first, locations):
                    return
                self._give_back(worker, is_fit=False)
            raise _start_error()
        except BaseException:
            self.queue.leave(admitted)
            raise

    def open_condition(
        self, where: str, schema: pa.Schema, *, tenant: str = "", timeout_s: float | None = None
    ) -> WorkerCondition:
        """Wait for a turn, then compile a condition on batches of this schema in a worker.

        It occupies the worker until it is closed. Errors are those of `sql_reader`.
        """
        self._check_open()
        request = WorkerRequest(
            check_text(where, "where"),
            None,
            self._check_timeout(timeout_s),
            None,
            schema.serialize().to_pybytes(),
        )
        admitted = self._start_alone(request, tenant)
        return WorkerCondition(admitted, request.timeout_s, self.queue.leave)

    def run_task(
        self, task: str, argument: bytes, *, tenant: str = "", timeout_s: float | None = None
    ) -> bytes:
        """Run a function of the worker's program on bytes, and return what it returns.

        `Overloaded` when it exceeds its memory limit or timeout, or when all workers stay busy.
        """
        self._check_open()
        limit_s = self._check_timeout(timeout_s)
        admitted = self._start_alone(WorkerRequest("", argument, limit_s, None, None, task), tenant)
        try:
            done = admitted.next_bytes() or b""
            admitted.drain()
            return bytes(done)
        except BaseException:
            self.queue.leave(admitted)
            raise

    def _start_alone(self, request: WorkerRequest, tenant: str) -> RunningQuery:
        """Wait for a turn, then start a request that names no table."""
        data = _encode_request(request)
        admitted = self.queue.admit(None, tenant)
        try:
            admitted.turn.result()
            for _ in range(TRIES_MAX):
                worker = self._take_worker(())
                admitted.assign(worker, request.timeout_s, {}, self._shared, self._end)
                self.queue.watch(admitted)
                if admitted.start(data, worker.tables):
                    return admitted
                self._give_back(worker, is_fit=False)
            raise _start_error()
        except BaseException:
            self.queue.leave(admitted)
            raise

    def _check_timeout(self, timeout_s: float | None) -> float:
        limit_s = self.timeout_s if timeout_s is None else check_seconds(timeout_s, "timeout_s")
        if not 0 < limit_s <= TIMEOUT_S_MAX:
            raise Invalid(
                "the timeout of a query is out of range",
                hint="give seconds above 0, up to the maximum",
                timeout_s=limit_s,
                timeout_s_max=TIMEOUT_S_MAX,
            )
        return limit_s

    def _take_worker(self, tables: tuple[TableLocation, ...]) -> WorkerProcess:
        """Return a worker for a query that has its turn: an idle one, or a new one.

        It prefers a worker that already has these tables open.
        """
        while True:
            with self._lock:
                self._check_open()
                self._idle.sort(key=lambda one: one.tables == tables)
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                break
            if worker.is_running:
                return worker
            self._give_back(worker, is_fit=False)
        worker = WorkerProcess(self._settings, self._folders)
        with self._lock:
            self._workers.add(worker)
            is_closed = self._is_closed
        if is_closed:
            self._give_back(worker, is_fit=False)
            self._check_open()
        return worker

    def _end(self, query: RunningQuery, is_fit: bool) -> None:
        assert query.worker is not None
        # Order matters: the worker's memory and spilled rows are freed before another one starts.
        self._give_back(query.worker, is_fit=is_fit)
        self.queue.end(query)

    def _give_back(self, worker: WorkerProcess, *, is_fit: bool) -> None:
        with self._lock:
            if is_fit and not self._is_closed:
                self._idle.append(worker)
                return
        worker.discard()
        with self._lock:
            self._workers.discard(worker)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the pool is closed", hint="open another pool")

    def worker_ids(self) -> list[int]:
        """Return the process ids of the workers that are alive."""
        with self._lock:
            return sorted(worker.pid for worker in self._workers if worker.is_running)

    def close(self) -> None:
        """End every query and every worker. When this returns, no process or spilled row remains.

        Streams that are still being read raise an error.
        """
        with self._lock:
            self._is_closed = True
        self.queue.stop_all(Unavailable("the lake or pool was closed", hint="open it again"))
        with self._lock:
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


def _start_error() -> Unavailable:
    return Unavailable(
        "query workers end before they accept a query",
        hint="check the memory and the process limits of the machine",
    )


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
