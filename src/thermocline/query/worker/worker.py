"""The program of a worker process: runs one query at a time under a memory limit.

In:   requests over a socket: SQL, parameters, tables; hot rows when the worker requests them
Out:  Arrow IPC bytes, or an answer's bytes in its format, over the same socket, then `END` with the
      number of rows, or `FAILED`

- The gate, the constants and the query all run here: the process that serves clients never parses
  the text of a query.
- A separate thread reads the socket, so that an interrupt arrives while the engine runs. When the
  pool's process ends, the worker exits at once.
- If a query runs past its timeout and the pool does not kill the worker, the operating system's
  alarm does, without cooperation of the engine.
- A condition is a query whose rows come in batches: the worker answers each batch with the mask of
  the rows that match.
- Tables stay open between queries and are registered again only when they changed.

A worker starts no process and reads only its tables; the pool gives it its spill folder.
"""

import json
import os
import queue
import re
import signal
import socket
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.errors import (
    Invalid,
    Overloaded,
    ThermoclineError,
    Unavailable,
)
from thermocline.hot.tier import HotSnapshot
from thermocline.query import spill
from thermocline.query.report import QueryReport, public_report
from thermocline.query.session import Session
from thermocline.query.sql.predicate import compile_predicate
from thermocline.query.worker.memory_limit import (
    ALLOWANCE_BYTES,
    can_allocate,
    raise_file_limit,
    set_memory_limit,
)
from thermocline.query.worker.protocol import (
    COUNT,
    FIT,
    WORN,
    AnswerRequest,
    MessageKind,
    PeerGone,
    TableLocation,
    WorkerRequest,
    WorkerSettings,
    lost_files_error,
    pack_error,
    pack_report,
    receive,
    receive_files,
    send,
    unpack_value,
)
from thermocline.query.worker.shared_memory import SnapshotHeader, map_snapshot
from thermocline.show.answer_format import ENCODERS, AnswerInfo

BATCH_ROWS = 16_384
SLICE_BYTES = 4 << 20
MESSAGE_SLICE_BYTES = 1 << 20
KEPT_BYTES_MAX = 128 << 20
"""The size of the first rows that a client asks for with a limit."""
LOSS_BYTES_MAX = ALLOWANCE_BYTES // 2
"""How much memory of earlier queries a worker may retain and still take another query."""

ALARM_GRACE_S = 2.0
"""How long after its timeout the alarm ends a query that the pool neither stopped nor killed."""

_ARROW_THREADS = 2
_OUT_OF_MEMORY = re.compile("out of memory|bad.alloc|failed to allocate|allocation failure", re.I)
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_WARM_UP = "select count(*), max(h) from (select hash(i) as h from range(200000) r(i) order by h)"


def serve(descriptor: int) -> None:
    """Answer requests from this socket until the process at its other end exits."""
    channel = socket.socket(fileno=descriptor)
    _, data = receive(channel)
    settings: WorkerSettings = unpack_value(data)
    try:
        worker = Worker(channel, settings)
    except ThermoclineError as error:
        send(channel, MessageKind.FAILED, WORN, pack_error(error))
        return
    worker.run()


class Worker:
    """A warm session under the memory limit, and the two threads that use it."""

    def __init__(self, channel: socket.socket, settings: WorkerSettings) -> None:
        self._channel = channel
        self._settings = settings
        self._requests: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._batches: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._hot: queue.SimpleQueue[tuple[Any, list[int]]] = queue.SimpleQueue()
        self._is_interrupted = threading.Event()
        self._tables: dict[str, tuple[TableLocation, ColdTable | None]] = {}
        self._packed_memory_error = pack_error(_memory_error())
        pa.set_cpu_count(_ARROW_THREADS)
        pa.set_io_thread_count(_ARROW_THREADS)
        self._session = Session(
            threads=settings.threads,
            memory_limit_bytes=settings.memory_bytes,
            spill_limit_bytes=settings.spill_bytes,
            keeps_definitions=False,  # the next query may be another tenant's
        )
        self._session.sql(_WARM_UP)
        compile_predicate("x", pa.schema([("x", pa.bool_())]))
        # Order matters: set the limit after everything is loaded that all queries share.
        threading.Thread(target=self._listen, name="listen", daemon=True).start()
        raise_file_limit()
        set_memory_limit(settings.memory_bytes)

    def run(self) -> None:
        """Answer one request after the other."""
        send(self._channel, MessageKind.READY)
        while True:
            data = self._requests.get()
            try:
                self._answer_request(data)
            except PeerGone:
                self._exit_process()
            except MemoryError:
                # Packed in advance: there may not be enough memory left to pack an error.
                send(self._channel, MessageKind.FAILED, WORN, self._packed_memory_error)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _listen(self) -> None:
        try:
            while True:
                kind, data = receive(self._channel)
                if kind is MessageKind.REQUEST:
                    self._is_interrupted.clear()
                    self._requests.put(data)
                elif kind is MessageKind.INTERRUPT:
                    self._is_interrupted.set()
                    self._session.interrupt()
                elif kind is MessageKind.BATCH:
                    self._batches.put(data)
                elif kind is MessageKind.HOT:
                    answer = unpack_value(data)
                    count = answer.part_count if isinstance(answer, SnapshotHeader) else 0
                    self._hot.put((answer, receive_files(self._channel, count)))
        finally:
            self._exit_process()

    def _exit_process(self) -> None:
        try:
            # A pin that is left behind blocks vacuum until its lease ends.
            self._session.release_pins()
            # The pool removes the folder of a dead worker, but the pool may have died first.
            spill.remove_folder(self._settings.folder)
        finally:
            os._exit(0)

    def _answer_request(self, data: bytearray) -> None:
        send(self._channel, MessageKind.ACCEPTED)
        try:
            kind, last = MessageKind.END, COUNT.pack(self._run_query(_decode_request(data)))
        except ThermoclineError as error:
            kind, last = (
                MessageKind.FAILED,
                pack_error(self._hide_spill_folder(classify_memory_error(error))),
            )
        # A query may leave some memory allocated. If the next query could not have its whole
        # budget, the pool replaces this worker. Order matters: check after the error is freed,
        # because its frames held batches.
        is_fit = can_allocate(self._settings.memory_bytes + ALLOWANCE_BYTES - LOSS_BYTES_MAX)
        send(self._channel, kind, FIT if is_fit else WORN, last)

    def _run_query(self, request: WorkerRequest) -> int:
        signal.setitimer(signal.ITIMER_REAL, request.timeout_s + ALARM_GRACE_S)
        try:
            if request.schema is not None:
                return self._match_batches(request)
            if request.task is not None:
                return self._run_task(request)
            self._register_tables(request.tables)
            reader, report = self._session.read(request.query, request.params, BATCH_ROWS)
            if request.answer is not None:
                return self._send_answer(reader, report, request.answer)
            send(self._channel, MessageKind.REPORT, pack_report(report))
            return self._send_rows(reader)
        except (RecursionError, UnicodeError, ValueError, TypeError) as error:
            raise Invalid("the query cannot be run", hint="fix the SQL") from error
        except OSError as error:
            raise Unavailable(
                "the query worker failed", hint="run the query again", error=str(error)
            ) from error

    def _run_task(self, request: WorkerRequest) -> int:
        """Run one of the functions that a node does not run in its own process."""
        from thermocline.contract.evolve.judge import judge_contract

        tasks = {
            "judge_contract": judge_contract,
            "hint_parameters": self._session.hint_parameters,
        }
        done = tasks[str(request.task)](request.params)
        send(self._channel, MessageKind.ROWS, COUNT.pack(0), done)
        return 0

    def _match_batches(self, request: WorkerRequest) -> int:
        """Answer each batch with the mask of the rows that match; return the number of rows."""
        while not self._batches.empty():  # of a condition that was abandoned
            self._batches.get()
        schema = pa.ipc.read_schema(pa.py_buffer(request.schema))
        condition = compile_predicate(request.query, schema)
        bounds = condition.bounds(schema)
        about = json.dumps({"columns": condition.columns, "bounds": bounds}).encode()
        send(self._channel, MessageKind.ROWS, COUNT.pack(0), about)
        rows = 0
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0)  # the pool's process may read for long
            data = self._batches.get()
            signal.setitimer(signal.ITIMER_REAL, request.timeout_s + ALARM_GRACE_S)
            if not data:
                return rows
            with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
                mask = condition.mask(stream.read_next_batch())
            bits = np.packbits(mask.to_numpy(zero_copy_only=False), bitorder="little")
            send(self._channel, MessageKind.ROWS, COUNT.pack(len(mask)), bits)
            rows += len(mask)

    def _register_tables(self, notes: tuple[TableLocation, ...] | None) -> None:
        """Make the session's tables those of the request; unchanged tables stay open."""
        if notes is None:
            return
        wanted = {note.name.lower(): note for note in notes}
        for name in [name for name in self._tables if name not in wanted]:
            self._session.deregister(name)
            del self._tables[name]
        for name, note in wanted.items():
            known = self._tables.get(name)
            if known is not None and known[0] == note and known[1] is not None:
                continue
            try:
                table = ColdTable(open_storage(note.root, note.storage_options))
                hot = (
                    (lambda name=note.name: self._request_hot_rows(name)) if note.has_hot else None
                )
                self._session.register_view(note.name, table, hot)
                self._tables[name] = (note, table)
            except ThermoclineError as error:
                # A table that cannot be opened fails only the queries that name it.
                self._session.register_broken(note.name, error)
                self._tables[name] = (note, None)

    def _request_hot_rows(self, name: str) -> HotSnapshot:
        send(self._channel, MessageKind.HOT_WANTED, name.encode())
        answer, files = self._hot.get()
        if isinstance(answer, ThermoclineError):
            raise answer
        if len(files) != answer.part_count:
            for file in files:
                os.close(file)
            raise lost_files_error()
        return map_snapshot(answer, files)

    def _send_rows(self, reader: pa.RecordBatchReader) -> int:
        """Send the batches of an answer as the engine returns them; return the row count."""
        sink = _StreamSink()
        rows = 0
        with pa.ipc.new_stream(pa.PythonFile(sink, "w"), reader.schema) as writer:
            for batch in reader:
                for part in _slice_batch(batch):
                    if self._is_interrupted.is_set():
                        hint = "run the query again"
                        raise Unavailable("the query was interrupted", hint=hint)
                    writer.write_batch(part)
                    send(
                        self._channel,
                        MessageKind.ROWS,
                        COUNT.pack(part.num_rows),
                        *sink.take_parts(),
                    )
                    rows += part.num_rows
        if not rows:
            # The writer sends the schema with the first batch, or with Arrow's end marker. That
            # marker is removed: only `END` ends the answer.
            schema = b"".join(sink.take_parts())[: -len(_ARROW_END)]
            send(self._channel, MessageKind.ROWS, COUNT.pack(0), schema)
        return rows

    def _send_answer(
        self, reader: pa.RecordBatchReader, report: QueryReport, request: AnswerRequest
    ) -> int:
        """Send an answer's bytes in its format, in slices; return the number of rows."""
        batches: Iterable[pa.RecordBatch] = reader
        is_truncated = None
        if request.rows_max is not None:
            batches, is_truncated = read_first_rows(reader, request.rows_max)
        about = AnswerInfo(request.query_id, public_report(report))
        encoder = ENCODERS[request.form](reader.schema, about)
        pending, rows = encoder.head(), 0
        send(self._channel, MessageKind.REPORT, pack_report(report, is_truncated=is_truncated))
        for batch in batches:
            for part in _slice_batch(batch):
                if self._is_interrupted.is_set():
                    raise Unavailable("the query was interrupted", hint="run the query again")
                self._send_slices(pending + encoder.rows(part), part.num_rows)
                pending = b""
                rows += part.num_rows
        self._send_slices(pending + encoder.end(is_truncated=bool(is_truncated)), 0)
        return rows

    def _send_slices(self, data: bytes, rows: int) -> None:
        """Send bytes in messages of up to `MESSAGE_SLICE_BYTES`; the first one counts the rows."""
        left = memoryview(data)
        while left or rows:
            part, left = left[:MESSAGE_SLICE_BYTES], left[MESSAGE_SLICE_BYTES:]
            send(self._channel, MessageKind.ROWS, COUNT.pack(rows), part)
            rows = 0

    def _hide_spill_folder(self, error: ThermoclineError) -> ThermoclineError:
        """Return the error without the path of the spill folder, which clients must not see."""
        folder = self._settings.folder
        if folder not in f"{error.facts}":
            return error
        facts = {name: str(fact).replace(folder, "spill") for name, fact in error.facts.items()}
        return type(error)(error.message, hint=error.hint, **facts)


class _StreamSink:
    """The bytes that Arrow's stream writer has written since the last `take_parts`."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[Any] = []

    def write(self, data: Any) -> int:
        self._parts.append(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def take_parts(self) -> list[Any]:
        parts, self._parts = self._parts, []
        return parts


def read_first_rows(
    batches: Iterable[pa.RecordBatch], rows_max: int
) -> tuple[list[pa.RecordBatch], bool]:
    """Return the first rows, and whether there are more."""
    kept: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        part = batch.slice(0, rows_max - rows)
        size_bytes += part.nbytes
        if size_bytes > KEPT_BYTES_MAX:
            raise Overloaded(
                "the first rows are larger than the memory limit",
                hint="ask for fewer rows, or omit rows_max",
                bytes_max=KEPT_BYTES_MAX,
            )
        if part.num_rows:
            kept.append(part)
        rows += batch.num_rows
        if rows > rows_max:
            return kept, True
    return kept, False


def _slice_batch(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return a batch in slices of about `SLICE_BYTES`, each of at least one row."""
    if batch.nbytes <= SLICE_BYTES:
        return [batch]
    count = max(1, batch.num_rows * SLICE_BYTES // batch.nbytes)
    return [batch.slice(start, count) for start in range(0, batch.num_rows, count)]


def _decode_request(data: bytearray) -> WorkerRequest:
    try:
        request: WorkerRequest = unpack_value(data)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise Invalid(
            "a parameter is of a type that cannot be sent to a worker",
            hint="use numbers, texts, times and lists of them",
            error=str(error),
        ) from error
    return request


def classify_memory_error(error: ThermoclineError) -> ThermoclineError:
    """Return the error, as `Overloaded` when its text shows that the engine is out of memory.

    At the memory limit any part of the engine may fail, even its parser, each with another kind.
    """
    said = str(error.facts.get("error", ""))
    if isinstance(error, Overloaded) or not _OUT_OF_MEMORY.search(said):
        return error
    return _memory_error()


def _memory_error() -> Overloaded:
    return Overloaded(
        "the query needs more memory than the limit",
        hint="select fewer rows or columns, or raise the memory limit",
    )
