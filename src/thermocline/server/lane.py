"""The way of OpenTelemetry's requests to the journal: waiting, decoded together, written at once.

In:   deliveries from the event loop
Out:  a future for each: what was taken of it, or why nothing was

- A delivery is answered as taken when its rows are durable, in all tables that they go to. When
  one table has them and another does not, it is answered as to be sent again.
- Nothing is taken and then dropped: what cannot be taken is an error from the first.
- When the workers keep up, a delivery is decoded and written alone. When they do not, what waits
  for one tenant and signal is decoded as one request and written as one batch for each table: the
  more waits, the less each costs.
- A delivery with a request id is written alone, so that a resend of it can be told from others.
- Inflating, decoding and encoding happen in the workers; the loop only queues and answers.
- Where cores are few, a second worker stands by: two that take turns at the interpreter wait for
  each other, and for the loop, more than they help. On two cores one alone takes a quarter more
  than two do, and is late half as often. When it hangs on a request for longer than `PATIENCE_S`,
  the other one goes on with the rest.
- How many bytes wait is the `Room`'s to say: the caller holds room for a delivery until its
  future is done.
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
from thermocline.ingest.otlp.outcome import Decoded, Limits
from thermocline.ingest.otlp.protobuf import warm_up
from thermocline.ingest.otlp.together import Body
from thermocline.machine import core_count
from thermocline.server.lane_write import Member, Result, Sink, Writing

WORKERS = 2
GROUP_BYTES_MAX = 4 << 20
GROUP_COUNT_MAX = 512
# Of compressed bodies nobody knows what they inflate to: fewer are taken together, so that others
# get their turn. What they may have in memory is not for a guess: decoding goes by rounds.
COMPRESSED_COUNT_MAX = 16
COMPRESSED_GROWTH = 10
EAGER_BYTES = 1 << 20
WRITING_MAX = 2
CORES_PER_WORKER = 2
PATIENCE_S = 0.1

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request: whose, of which signal, and its body as it came."""

    tenant: str
    signal: str
    body: Body
    request_id: str | None = None


@dataclass(slots=True)
class _Waiting:
    """A delivery and who waits for it."""

    delivery: Delivery
    future: "asyncio.Future[Decoded]"


@dataclass(slots=True)
class _Queue:
    """What waits for one tenant and signal, and how many groups of it are being written."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    size_bytes: int = 0
    writing: int = 0
    is_ready: bool = False


@dataclass(slots=True)
class _Queues:
    """What waits, by tenant and signal; `ready` has the keys that a worker should look at.

    While `WRITING_MAX` groups of a key are on their way to the disk, the next ones wait for each
    other: they would wait for the disk anyway, and together they cost less. Much that waits is not
    held back, nor what is written alone.
    """

    by_key: dict[Key, _Queue] = field(default_factory=dict)
    ready: deque[Key] = field(default_factory=deque)
    count: int = 0

    def add(self, waiting: _Waiting) -> bool:
        """Queue a delivery; tell whether a worker should look."""
        key = (waiting.delivery.tenant, waiting.delivery.signal)
        queue = self.by_key.setdefault(key, _Queue())
        queue.waiting.append(waiting)
        queue.size_bytes += len(waiting.delivery.body.data)
        self.count += 1
        return self._look(key, queue)

    def _look(self, key: Key, queue: _Queue) -> bool:
        if queue.is_ready or not queue.waiting:
            return False
        queue.is_ready = (
            queue.writing < WRITING_MAX
            or queue.size_bytes >= EAGER_BYTES
            or queue.waiting[0].delivery.request_id is not None
        )
        if queue.is_ready:
            self.ready.append(key)
        return queue.is_ready

    def take(self) -> tuple[Key, list[_Waiting]]:
        """Return what the next worker does: some of one key's, and its turn comes round again."""
        key = self.ready.popleft()
        queue = self.by_key[key]
        waiting = queue.waiting
        taken = [waiting.popleft()]
        weight_bytes = _weight_bytes(taken[0])
        is_alone = taken[0].delivery.request_id is not None
        while waiting and not is_alone and len(taken) < GROUP_COUNT_MAX:
            weight_bytes += _weight_bytes(waiting[0])
            if waiting[0].delivery.request_id is not None or weight_bytes > GROUP_BYTES_MAX:
                break
            taken.append(waiting.popleft())
        queue.size_bytes -= sum(len(one.delivery.body.data) for one in taken)
        queue.writing += 1
        queue.is_ready = False
        self.count -= len(taken)
        self._look(key, queue)
        return key, taken

    def written(self, key: Key) -> bool:
        """Note that a group is done with; tell whether a worker should look."""
        queue = self.by_key.get(key)
        if queue is None:
            return False
        queue.writing -= 1
        if not queue.waiting and not queue.writing:
            del self.by_key[key]
        return self._look(key, queue)


def _weight_bytes(waiting: _Waiting) -> int:
    """Return what a delivery counts in a group: about its size when it is inflated."""
    body = waiting.delivery.body
    if body.coding == "identity":
        return len(body.data)
    least_bytes = GROUP_BYTES_MAX // COMPRESSED_COUNT_MAX
    return max(least_bytes, COMPRESSED_GROWTH * len(body.data))


class Lane:
    """Takes deliveries on the event loop and gives them to a few threads."""

    def __init__(
        self,
        sink: Sink,
        *,
        workers: int = WORKERS,
        limits: Limits | None = None,
        body_bytes_max: int = BODY_BYTES_MAX,
        write_wait_s: float = 1.0,
        is_compiled: bool = True,
    ) -> None:
        """`workers` counts those that stand by as well.

        `write_wait_s` is how long a write waits for a flush to make room.

        Without `is_compiled` all is decoded by the official library, and nothing is compiled.
        """
        self._writing = Writing(
            sink,
            limits=limits or Limits(),
            body_bytes_max=body_bytes_max,
            write_wait_s=write_wait_s,
        )
        self._is_compiled = is_compiled
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._standby = threading.Condition(lock)
        self._queues = _Queues()
        self._at_work_s: dict[int, float] = {}  # since when, by worker
        self._at_once = min(workers, max(1, core_count() // CORES_PER_WORKER))
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
        """Begin to work; the loop that this runs in is the one that is answered."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()
        if self._is_compiled:
            # Beside the first requests, which the official way decodes meanwhile.
            threading.Thread(target=warm_up, name="thermocline-warm-up", daemon=True).start()

    @property
    def count(self) -> int:
        """How many deliveries are not answered yet."""
        return self._count

    def offer(self, delivery: Delivery) -> "asyncio.Future[Decoded]":
        """Queue a delivery; its future is done when its rows are durable, or never will be.

        On the loop's thread. The future gives the counts, without rows; it raises what the sender
        is to be told. `Unavailable` when the lane stops.
        """
        if self._is_stopping or self._loop is None:
            raise Unavailable("the node is stopping", hint="try again later")
        waiting = _Waiting(delivery, self._loop.create_future())
        self._count += 1
        with self._changed:
            if self._queues.add(waiting):
                self._wake()
        return waiting.future

    async def stop(self, deadline_s: float) -> None:
        """Take no more and finish what waits; what is not done by then is told to come again."""
        self._is_stopping = True
        assert self._loop is not None
        end_s = self._loop.time() + deadline_s
        try:
            while self._count and self._loop.time() < end_s:
                await asyncio.sleep(0.005)
        finally:  # a stop that is cancelled leaves nobody waiting either
            self._give_up()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, max(0.1, end_s - self._loop.time()))

    def _give_up(self) -> None:
        """Tell all who wait for a worker to come again."""
        with self._changed:
            left = [one for queue in self._queues.by_key.values() for one in queue.waiting]
            self._queues = _Queues()
            self._changed.notify_all()
            self._standby.notify_all()
        late = Unavailable("the node is stopping", hint="try again later")
        self._resolve([(one, late) for one in left])

    def _run(self, place: int) -> None:
        while True:
            with self._changed:
                self._at_work_s.pop(place, None)
                is_standby = place >= self._at_once
                while not self._queues.ready or (is_standby and not self._is_stuck()):
                    if self._is_stopping and not self._queues.count:
                        return
                    if is_standby:  # nobody wakes it because others hang: it looks
                        self._standby.wait(PATIENCE_S)
                    else:
                        self._changed.wait()
                key, group = self._queues.take()
                self._at_work_s[place] = clock.monotonic()
                if self._queues.ready:
                    # Whoever offered while this one was on its way woke nobody else.
                    self._wake()
            self._work(key, group)

    def _is_stuck(self) -> bool:
        """Tell whether as many as should be are at work, each of them for too long."""
        late_s = clock.monotonic() - PATIENCE_S
        since = self._at_work_s.values()
        return len(since) >= self._at_once and max(since) < late_s

    def _wake(self) -> None:
        """Let one more worker look, if there is one: whoever is at work looks when it is done."""
        if any(place not in self._at_work_s for place in range(self._at_once)):
            self._changed.notify()

    def _work(self, key: Key, group: list[_Waiting]) -> None:
        first = group[0].delivery
        members = [Member(place, one.delivery.body) for place, one in enumerate(group)]

        def settle(results: Sequence[tuple[int, Result]]) -> None:
            with self._changed:
                if self._queues.written(key):
                    self._wake()
            self._tell([(group[place], result) for place, result in results])

        self._writing.take(first.tenant, first.signal, members, first.request_id, settle)

    def _tell(self, results: list[tuple[_Waiting, Result]]) -> None:
        """Hand results to the loop, from any thread: one call for all of them."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(self._resolve, results)

    def _resolve(self, results: list[tuple[_Waiting, Result]]) -> None:
        self._report({result for _, result in results if isinstance(result, Unavailable)})
        for waiting, result in results:
            self._count -= 1
            if waiting.future.done():
                continue  # whoever asked has gone
            if isinstance(result, Decoded):
                waiting.future.set_result(result)
            else:
                waiting.future.set_exception(result)

    def _report(self, errors: set[Unavailable]) -> None:
        """Tell the loop of errors that nobody meant: senders learn only to come again."""
        for error in errors:
            cause = error.__cause__
            if cause is not None and not isinstance(cause, ThermoclineError | OSError):
                assert self._loop is not None
                about = {"message": error.message, "exception": cause}
                self._loop.call_exception_handler(about)
