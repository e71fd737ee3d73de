"""Takes OpenTelemetry requests of both listeners, and writes them to the journal in groups.

In:   a key, a body
Out:  the counts of accepted and rejected rows; or the client's error

`Receiver` checks key and quota, `IngestQueue` groups the requests, `_GroupWrite` decodes a group
and writes its rows.

- A body is accepted only with a key that may ingest, and within the tenant's quota.
- Rows are counted when they are durable. No later step may fail: a client that gets an error sends
  again, and the rows would be stored twice.
- A request succeeds when its rows are durable in every table they go to. If one table has them
  and another does not, the client is asked to send the request again.
- An accepted request is never dropped: a request that cannot be accepted is refused at once.
- While the workers keep up, each request is decoded and written alone. Otherwise the waiting
  requests of one tenant and signal are decoded as one request and written as one batch for each
  table: the more requests wait, the less each costs.
- A request with a request id is written alone, so that a resend of it can be recognised.
- Workers inflate, decode and encode; the event loop only queues and answers.
- On few cores the second worker is on standby: two workers that share the interpreter wait for
  each other, and for the loop, more than they help. On two cores one worker takes a quarter more
  requests than two do, and is late half as often. If a request keeps the first worker busy for
  longer than `PATIENCE_S`, the standby worker continues with the other requests.
- `MemoryBudget` limits the waiting bytes: the listener holds a reservation for a request until its
  future is done.
- One write for each table carries the rows of a whole round. A body's result is given when every
  write that carries its rows is durable.
- If a write fails before the journal because of its rows (values that do not fit, a limit of the
  table), it is repeated for each body alone: one client's rows do not fail another's. The refused
  rows of a single body are counted and reported as OpenTelemetry's partial success.
- If a write fails for another reason, its clients are asked to send again, even if another table
  has some of their rows already: half a request is never reported as accepted.
- A table is created when its first rows arrive.
- A group is decoded and written in rounds, so that its inflated bodies are not in memory all at
  once.
"""

import asyncio
import threading
import time as clock
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pyarrow as pa

from thermocline.errors import (
    Conflict,
    EntityLimitReached,
    Invalid,
    NotFound,
    Overloaded,
    ThermoclineError,
    Unavailable,
)
from thermocline.ingest.inflate import BODY_BYTES_MAX
from thermocline.ingest.otlp.batch_decode import (
    DecodedGroup,
    DecodeOptions,
    RequestBody,
    decode_bodies,
)
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import ITEMS, DecodedRequest
from thermocline.ingest.otlp.protobuf import warm_up
from thermocline.ingest.otlp.tables import TABLES
from thermocline.ingest.rows import TrustedRows
from thermocline.lake_table import LakeTable
from thermocline.machine import core_count
from thermocline.names import OTLP_IDEMPOTENCY_KEY_LENGTH_MAX
from thermocline.server.access.guard import NodeGateway
from thermocline.server.access.quota import Quotas
from thermocline.server.observe.metrics import Metrics
from thermocline.server.otlp.memory_budget import MemoryBudget

INGEST_SCOPE = "ingest"
WORKERS = 2
GROUP_BYTES_MAX = 4 << 20
GROUP_COUNT_MAX = 512
# The inflated size of a compressed body is unknown: fewer are grouped, so that other tenants get
# their turn. Memory does not depend on this estimate: a group is decoded in rounds.
COMPRESSED_COUNT_MAX = 16
COMPRESSED_GROWTH = 10
EAGER_BYTES = 1 << 20
WRITING_MAX = 2
CORES_PER_WORKER = 2
PATIENCE_S = 0.1

QueueKey = tuple[str, str]
Result = DecodedRequest | ThermoclineError
Settle = Callable[[Sequence[Result]], None]


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """One request: its tenant, its signal, and its body as received."""

    tenant: str
    signal: str
    body: RequestBody
    request_id: str | None = None


@dataclass(slots=True)
class _PendingRequest:
    """A request and the future of its result."""

    request: IngestRequest
    future: "asyncio.Future[DecodedRequest]"


@dataclass(slots=True)
class _SignalQueue:
    """The waiting requests of one tenant and signal, and the number of groups being written."""

    waiting: deque[_PendingRequest] = field(default_factory=deque)
    size_bytes: int = 0
    writing: int = 0
    is_ready: bool = False


@dataclass(slots=True)
class _SignalQueues:
    """The waiting requests by tenant and signal; `ready` has the keys that a worker should take.

    While `WRITING_MAX` groups of a key are being written, its next requests wait and form one
    group: they would wait for the disk anyway, and a group costs less. Two cases do not wait: a
    queue of `EAGER_BYTES` or more, and a request that is written alone.
    """

    by_key: dict[QueueKey, _SignalQueue] = field(default_factory=dict)
    ready: deque[QueueKey] = field(default_factory=deque)
    count: int = 0

    def add(self, waiting: _PendingRequest) -> bool:
        """Queue a request; return whether a worker should take its key."""
        key = (waiting.request.tenant, waiting.request.signal)
        queue = self.by_key.setdefault(key, _SignalQueue())
        queue.waiting.append(waiting)
        queue.size_bytes += len(waiting.request.body.data)
        self.count += 1
        return self._mark_ready(key, queue)

    def _mark_ready(self, key: QueueKey, queue: _SignalQueue) -> bool:
        if queue.is_ready or not queue.waiting:
            return False
        queue.is_ready = (
            queue.writing < WRITING_MAX
            or queue.size_bytes >= EAGER_BYTES
            or queue.waiting[0].request.request_id is not None
        )
        if queue.is_ready:
            self.ready.append(key)
        return queue.is_ready

    def take_group(self) -> tuple[QueueKey, list[_PendingRequest]]:
        """Remove and return the next group; the rest of its key goes to the end of the line."""
        key = self.ready.popleft()
        queue = self.by_key[key]
        waiting = queue.waiting
        taken = [waiting.popleft()]
        weight_bytes = _weight_bytes(taken[0])
        is_alone = taken[0].request.request_id is not None
        while waiting and not is_alone and len(taken) < GROUP_COUNT_MAX:
            weight_bytes += _weight_bytes(waiting[0])
            if waiting[0].request.request_id is not None or weight_bytes > GROUP_BYTES_MAX:
                break
            taken.append(waiting.popleft())
        queue.size_bytes -= sum(len(one.request.body.data) for one in taken)
        queue.writing += 1
        queue.is_ready = False
        self.count -= len(taken)
        self._mark_ready(key, queue)
        return key, taken

    def finish_group(self, key: QueueKey) -> bool:
        """Record that a group is written; return whether a worker should take its key again."""
        queue = self.by_key.get(key)
        if queue is None:
            return False
        queue.writing -= 1
        if not queue.waiting and not queue.writing:
            del self.by_key[key]
        return self._mark_ready(key, queue)


def _weight_bytes(waiting: _PendingRequest) -> int:
    """Return a request's weight in a group: an estimate of its inflated size."""
    body = waiting.request.body
    if body.coding == "identity":
        return len(body.data)
    least_bytes = GROUP_BYTES_MAX // COMPRESSED_COUNT_MAX
    return max(least_bytes, COMPRESSED_GROWTH * len(body.data))


class IngestQueue:
    """Accepts requests on the event loop and hands them to a few worker threads."""

    def __init__(
        self,
        gateway: NodeGateway,
        *,
        workers: int = WORKERS,
        limits: DecodeLimits | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
        write_wait_s: float = 1.0,
        is_compiled: bool = True,
        retention_s: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """`workers` includes those on standby.

        `retention_s` says how long a table that the queue creates keeps its rows, by signal.

        `write_wait_s` is how long a write waits for a flush to free memory. Without `is_compiled`
        the official library decodes every body, and nothing is compiled.
        """
        self._options = _WriteOptions(
            gateway, limits or DecodeLimits(), body_bytes_max, write_wait_s, retention_s
        )
        self._is_compiled = is_compiled
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._standby = threading.Condition(lock)
        self._queues = _SignalQueues()
        self._busy_since_s: dict[int, float] = {}  # when each busy worker began, by its number
        self._active_max = min(workers, max(1, core_count() // CORES_PER_WORKER))
        self._count = 0
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads = [
            threading.Thread(
                target=self._run, args=(place,), name=f"thermocline-lane-{place}", daemon=True
            )
            for place in range(workers)
        ]

    async def start(self) -> None:
        """Start the workers; results go to the event loop that runs this."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()
        if self._is_compiled:
            # Compiles in the background; the official library decodes the first requests.
            threading.Thread(target=warm_up, name="thermocline-warm-up", daemon=True).start()

    @property
    def count(self) -> int:
        """The number of unanswered requests."""
        return self._count

    def offer(self, request: IngestRequest) -> "asyncio.Future[DecodedRequest]":
        """Queue a request; its future is done when its rows are durable or have failed permanently.

        Call it on the loop's thread. The future gives the counts, without rows, or raises the
        error for the client. `Unavailable` when the node is stopping.
        """
        if self._is_stopping or self._loop is None:
            raise Unavailable("the node is stopping", hint="try again later")
        waiting = _PendingRequest(request, self._loop.create_future())
        self._count += 1
        with self._changed:
            if self._queues.add(waiting):
                self._wake()
        return waiting.future

    async def stop(self, deadline_s: float) -> None:
        """Refuse new requests and finish the waiting ones; at the deadline fail the rest."""
        self._is_stopping = True
        assert self._loop is not None
        end_s = self._loop.time() + deadline_s
        try:
            while self._count and self._loop.time() < end_s:
                await asyncio.sleep(0.005)
        finally:  # also when the stop is cancelled
            self._refuse_waiting()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, max(0.1, end_s - self._loop.time()))

    def _refuse_waiting(self) -> None:
        """Fail every request that no worker has taken, so that its client sends it again."""
        with self._changed:
            left = [one for queue in self._queues.by_key.values() for one in queue.waiting]
            self._queues = _SignalQueues()
            self._changed.notify_all()
            self._standby.notify_all()
        late = Unavailable("the node is stopping", hint="try again later")
        self._resolve([(one, late) for one in left])

    def _run(self, place: int) -> None:
        while True:
            with self._changed:
                self._busy_since_s.pop(place, None)
                is_standby = place >= self._active_max
                while not self._queues.ready or (is_standby and not self._is_stuck()):
                    if self._is_stopping and not self._queues.count:
                        return
                    if is_standby:  # a hanging worker cannot wake it, so it polls
                        self._standby.wait(PATIENCE_S)
                    else:
                        self._changed.wait()
                key, group = self._queues.take_group()
                self._busy_since_s[place] = clock.monotonic()
                if self._queues.ready:
                    # A request queued while this worker woke up notified no other worker.
                    self._wake()
            self._write_group(key, group)

    def _is_stuck(self) -> bool:
        """Tell whether every active worker has been busy for longer than `PATIENCE_S`."""
        late_s = clock.monotonic() - PATIENCE_S
        since = self._busy_since_s.values()
        return len(since) >= self._active_max and max(since) < late_s

    def _wake(self) -> None:
        """Wake an idle worker, if there is one: a busy worker checks the queues when it ends."""
        if any(place not in self._busy_since_s for place in range(self._active_max)):
            self._changed.notify()

    def _write_group(self, key: QueueKey, group: list[_PendingRequest]) -> None:
        def settle(results: Sequence[Result]) -> None:
            with self._changed:
                if self._queues.finish_group(key):
                    self._wake()
            self._deliver_results(list(zip(group, results, strict=True)))

        _GroupWrite(self._options, [one.request for one in group], settle).run()

    def _deliver_results(self, results: list[tuple[_PendingRequest, Result]]) -> None:
        """Hand results to the loop, from any thread, in one call."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, so no caller waits any more
            self._loop.call_soon_threadsafe(self._resolve, results)

    def _resolve(self, results: list[tuple[_PendingRequest, Result]]) -> None:
        self._report_bugs({result for _, result in results if isinstance(result, Unavailable)})
        for waiting, result in results:
            self._count -= 1
            if waiting.future.done():
                continue  # the caller has cancelled it
            if isinstance(result, DecodedRequest):
                waiting.future.set_result(result)
            else:
                waiting.future.set_exception(result)

    def _report_bugs(self, errors: set[Unavailable]) -> None:
        """Report bugs to the event loop: clients only learn to send again."""
        for error in errors:
            cause = error.__cause__
            if cause is not None and not isinstance(cause, ThermoclineError | OSError):
                assert self._loop is not None
                about = {"message": error.message, "exception": cause}
                self._loop.call_exception_handler(about)


@dataclass(frozen=True, slots=True)
class Receiver:
    """The ingest queue, with the checks that precede it."""

    queue: IngestQueue
    budget: MemoryBudget
    gateway: NodeGateway
    quotas: Quotas | None = None
    metrics: Metrics = field(default_factory=Metrics)

    async def ingest(
        self, tenant: str, signal: str, body: RequestBody, request_id: str | None = None
    ) -> DecodedRequest:
        """Return the counts of a body once its rows are durable; raise the client's error."""
        if request_id is not None and not 0 < len(request_id) <= OTLP_IDEMPOTENCY_KEY_LENGTH_MAX:
            raise Invalid(
                "an idempotency key is empty or too long",
                hint="send a random key with each request, such as a UUID",
                length_max=OTLP_IDEMPOTENCY_KEY_LENGTH_MAX,
            )
        size_bytes = len(body.data)
        if self.quotas is not None:
            self.quotas.take_ingest(tenant, size_bytes)
        outcome = await self.queue.offer(IngestRequest(tenant, signal, body, request_id))
        self.metrics.count_ingested(signal, max(0, outcome.accepted), size_bytes)
        if outcome.rejected > 0:
            self.metrics.count_rejected(signal, outcome.rejected)
        return outcome


@dataclass(frozen=True, slots=True)
class _WriteOptions:
    """Where groups are written to, and the limits of their bodies."""

    gateway: NodeGateway
    limits: DecodeLimits
    body_bytes_max: int
    write_wait_s: float
    retention_s: Mapping[str, float]

    def open_table(self, tenant: str, name: str) -> LakeTable:
        """Return a table, after creating it if it is missing."""
        lake = self.gateway.lake(tenant)
        try:
            return lake.table(name)
        except NotFound:
            try:
                return lake.create_table(name, **TABLES[name].creation_options(self.retention_s))
            except Conflict:
                return lake.table(name)  # another worker was first


class _GroupWrite:
    """Decodes and writes one group; settles the results when the last of its writes is done.

    A request's place is its position in the group.
    """

    def __init__(
        self, options: _WriteOptions, requests: Sequence[IngestRequest], settle: Settle
    ) -> None:
        """`settle` gets the result of each request, once, on any thread."""
        self._options = options
        self._requests = requests
        self._first = requests[0]  # all have its tenant and signal; one with an id is alone
        self._settle = settle
        self._lock = threading.Lock()
        self._open = 1  # `run` itself; each write adds one
        lost = Unavailable("the request was not processed")
        self._results: list[Result] = [lost] * len(requests)
        self._joined: set[int] = set()

    def run(self) -> None:
        """Decode and write the group."""
        try:
            for decoded_groups in self._decode(range(len(self._requests))):
                for decoded in decoded_groups:
                    self._put(decoded.positions, decoded.outcome)
                self._write_tables(decoded_groups)
        except ThermoclineError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  every waiting client must get a result
            self._fail(_internal_error("a request could not be taken", error))
        finally:
            self._finish_write()

    def _decode(
        self, places: Sequence[int], *, is_together: bool = True
    ) -> Iterator[list[DecodedGroup]]:
        limits, bytes_max = self._options.limits, self._options.body_bytes_max
        options = DecodeOptions(clock.time_ns(), limits, bytes_max, is_together)
        bodies = [self._requests[place].body for place in places]
        return decode_bodies(self._first.signal, bodies, options)

    def _write_tables(self, decoded_groups: list[DecodedGroup]) -> None:
        tables = _rows_by_table(decoded_groups)
        for name, (rows, places) in tables.items():
            try:
                self._submit(name, rows, places)
            except ThermoclineError as error:
                is_about_rows = _is_about_rows(error)
                if len(places) == 1 and is_about_rows:
                    self._refuse(places[0], rows.num_rows, error)
                elif is_about_rows or not (
                    isinstance(error, Overloaded) or len(places) == 1 or len(tables) == 1
                ):  # a client without rows for this table need not send again
                    self._write_each(places, name)
                else:
                    self._fail(error, places)

    def _write_each(self, places: Sequence[int], name: str) -> None:
        """Write the table's rows of each request alone, to find the one that it refuses."""
        rounds = self._decode(places, is_together=False)
        for decoded in (one for decoded_groups in rounds for one in decoded_groups):
            place = places[decoded.positions[0]]
            self._separate(place, decoded.outcome)
            if isinstance(decoded.outcome, DecodedRequest) and name in decoded.outcome.batches:
                rows = pa.Table.from_batches([decoded.outcome.batches[name]])
                try:
                    self._submit(name, rows, [place])
                except ThermoclineError as error:
                    if _is_about_rows(error):
                        self._refuse(place, rows.num_rows, error)
                    else:
                        self._fail(error, [place])

    def _submit(self, name: str, rows: pa.Table, places: Sequence[int]) -> None:
        future = self._options.open_table(self._first.tenant, name).submit(
            TrustedRows(rows),
            request_id=self._first.request_id,
            evolve=True,
            wait_s=self._options.write_wait_s,
        )
        with self._lock:
            self._open += 1

        def settle(finished: "Future[int]") -> None:
            error = finished.exception()
            if isinstance(error, ThermoclineError):
                self._fail(error, places)
            elif error is not None:
                self._fail(_internal_error("a write failed", error), places)
            self._finish_write()

        future.add_done_callback(settle)

    def _put(self, places: Sequence[int], outcome: Result) -> None:
        """Set the outcome of bodies that were decoded together; the first has their total count."""
        for place in places:
            self._results[place] = _without_rows(outcome, is_first=place == places[0])
        if len(places) > 1:
            self._joined.update(places)

    def _separate(self, place: int, outcome: Result) -> None:
        """Replace a shared outcome by that of the body alone, so that it has the body's counts."""
        with self._lock:
            if place in self._joined:
                self._joined.discard(place)
                if isinstance(self._results[place], DecodedRequest):
                    self._results[place] = _without_rows(outcome, is_first=True)

    def _refuse(self, place: int, rows: int, error: ThermoclineError) -> None:
        """Record that a table permanently refused the rows of a body."""
        with self._lock:
            result = self._results[place]
            if isinstance(result, DecodedRequest):
                what = f"refused {rows} {ITEMS[result.signal]}: {error.message}"
                message = f"{result.message}; {what}" if result.message else what
                self._results[place] = replace(
                    result,
                    accepted=max(0, result.accepted - rows),
                    rejected=result.rejected + rows,
                    message=message,
                )

    def _fail(self, error: ThermoclineError, places: Sequence[int] | None = None) -> None:
        """Record that these requests, or all decoded ones, must be sent again."""
        with self._lock:
            for place in range(len(self._results)) if places is None else places:
                if isinstance(self._results[place], DecodedRequest):
                    self._results[place] = error

    def _finish_write(self) -> None:
        """Count a write as finished; after the last one, settle the results."""
        with self._lock:
            self._open -= 1
            is_last = not self._open
        if is_last:
            self._settle(self._results)


def _without_rows(outcome: Result, *, is_first: bool) -> Result:
    """Return an outcome without its rows; the first of several bodies has their total count."""
    if not isinstance(outcome, DecodedRequest):
        return outcome
    accepted = outcome.accepted if is_first else 0
    return DecodedRequest(outcome.signal, {}, accepted, outcome.rejected, outcome.message)


def _rows_by_table(decoded_groups: list[DecodedGroup]) -> dict[str, tuple[pa.Table, list[int]]]:
    """Return the rows of all shares by table, and the places of their requests."""
    found: dict[str, tuple[list[pa.RecordBatch], list[int]]] = {}
    for decoded in decoded_groups:
        if isinstance(decoded.outcome, DecodedRequest):
            for name, batch in decoded.outcome.batches.items():
                batches, places = found.setdefault(name, ([], []))
                batches.append(batch)
                places += decoded.positions
    return {name: (pa.Table.from_batches(rows), places) for name, (rows, places) in found.items()}


def _internal_error(message: str, error: BaseException) -> Unavailable:
    """Return the client's error for a bug; the bug itself is its cause."""
    client_error = Unavailable(message, why=repr(error))
    client_error.__cause__ = error
    return client_error


def _is_about_rows(error: ThermoclineError) -> bool:
    """Tell whether the rows cause the error, so that sending them again cannot succeed."""
    return isinstance(error, Invalid | EntityLimitReached)
