"""Queues OpenTelemetry requests and writes them to the journal in groups.

In:   deliveries from the event loop
Out:  a future for each: the counts of accepted and rejected rows, or an error

- A delivery succeeds when its rows are durable in every table they go to. If one table has them
  and another does not, the client is asked to send the request again.
- An accepted delivery is never dropped: a delivery that cannot be accepted is refused at once.
- While the workers keep up, each delivery is decoded and written alone. Otherwise the waiting
  deliveries of one tenant and signal are decoded as one request and written as one batch for each
  table: the more deliveries wait, the less each costs.
- A delivery with a request id is written alone, so that a resend of it can be recognised.
- Workers inflate, decode and encode; the event loop only queues and answers.
- On few cores the second worker is on standby: two workers that share the interpreter wait for
  each other, and for the loop, more than they help. On two cores one worker takes a quarter more
  requests than two do, and is late half as often. If a request keeps the first worker busy for
  longer than `PATIENCE_S`, the standby worker continues with the other requests.
- `Room` limits the waiting bytes: the caller holds room for a delivery until its future is done.
"""

import asyncio
import threading
import time as clock
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from thermocline.errors import ThermoclineError, Unavailable
from thermocline.ingest.inflate import BODY_BYTES_MAX
from thermocline.ingest.otlp.batch_decode import RequestBody
from thermocline.ingest.otlp.outcome import DecodedRequest, DecodeLimits
from thermocline.ingest.otlp.protobuf import warm_up
from thermocline.machine import core_count
from thermocline.server.otlp.ingest_writer import GroupMember, GroupWriter, Result, TenantLakes

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


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """One request: its tenant, its signal, and its body as received."""

    tenant: str
    signal: str
    body: RequestBody
    request_id: str | None = None


@dataclass(slots=True)
class _PendingRequest:
    """A delivery and the future of its result."""

    request: IngestRequest
    future: "asyncio.Future[DecodedRequest]"


@dataclass(slots=True)
class _SignalQueue:
    """The waiting deliveries of one tenant and signal, and the number of groups being written."""

    waiting: deque[_PendingRequest] = field(default_factory=deque)
    size_bytes: int = 0
    writing: int = 0
    is_ready: bool = False


@dataclass(slots=True)
class _SignalQueues:
    """The waiting deliveries by tenant and signal; `ready` has the keys that a worker should take.

    While `WRITING_MAX` groups of a key are being written, its next deliveries wait and form one
    group: they would wait for the disk anyway, and a group costs less. Two cases do not wait: a
    queue of `EAGER_BYTES` or more, and a delivery that is written alone.
    """

    by_key: dict[QueueKey, _SignalQueue] = field(default_factory=dict)
    ready: deque[QueueKey] = field(default_factory=deque)
    count: int = 0

    def add(self, waiting: _PendingRequest) -> bool:
        """Queue a delivery; return whether a worker should take its key."""
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
    """Return a delivery's weight in a group: an estimate of its inflated size."""
    body = waiting.request.body
    if body.coding == "identity":
        return len(body.data)
    least_bytes = GROUP_BYTES_MAX // COMPRESSED_COUNT_MAX
    return max(least_bytes, COMPRESSED_GROWTH * len(body.data))


class IngestQueue:
    """Accepts deliveries on the event loop and hands them to a few worker threads."""

    def __init__(
        self,
        sink: TenantLakes,
        *,
        workers: int = WORKERS,
        limits: DecodeLimits | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
        write_wait_s: float = 1.0,
        is_compiled: bool = True,
    ) -> None:
        """`workers` includes those on standby.

        `write_wait_s` is how long a write waits for a flush to free memory. Without `is_compiled`
        the official library decodes every body, and nothing is compiled.
        """
        self._writer = GroupWriter(
            sink,
            limits=limits or DecodeLimits(),
            body_bytes_max=body_bytes_max,
            write_wait_s=write_wait_s,
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
        """The number of unanswered deliveries."""
        return self._count

    def offer(self, delivery: IngestRequest) -> "asyncio.Future[DecodedRequest]":
        """Queue a delivery; its future is done when its rows are durable or have failed for good.

        Call it on the loop's thread. The future gives the counts, without rows, or raises the
        error for the client. `Unavailable` when the node is stopping.
        """
        if self._is_stopping or self._loop is None:
            raise Unavailable("the node is stopping", hint="try again later")
        waiting = _PendingRequest(delivery, self._loop.create_future())
        self._count += 1
        with self._changed:
            if self._queues.add(waiting):
                self._wake()
        return waiting.future

    async def stop(self, deadline_s: float) -> None:
        """Refuse new deliveries and finish the waiting ones; at the deadline fail the rest."""
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
        """Fail every delivery that no worker has taken, so that its client sends it again."""
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
                    # A delivery queued while this worker woke up notified no other worker.
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
        first = group[0].request
        members = [GroupMember(place, one.request.body) for place, one in enumerate(group)]

        def settle(results: Sequence[tuple[int, Result]]) -> None:
            with self._changed:
                if self._queues.finish_group(key):
                    self._wake()
            self._deliver_results([(group[place], result) for place, result in results])

        self._writer.write_group(first.tenant, first.signal, members, first.request_id, settle)

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
