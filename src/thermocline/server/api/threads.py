"""Runs blocking work on a bounded number of threads, so that the event loop never blocks.

In:   blocking functions, each with the tenant that it is for
Out:  their results, awaited

- The number of threads is bounded, and so is the work that waits for one; beyond both, `start`
  raises `Overloaded`. Threads and places in the queue are shared fairly among tenants.
- Waiting work is dropped when its caller cancels it, or when its client disconnects. Work that has
  begun runs to its end even if no task awaits it any more; cancelling it is up to the caller.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from starlette.types import Receive

from thermocline.errors import Overloaded
from thermocline.server.access.fair_share import FairTurns
from thermocline.server.api.http.incoming import ClientGone, wait_for_disconnect

THREADS_MAX = 16
WAITING_MAX = 128

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Work of a tenant, and the future of its result."""

    tenant: str
    run: Callable[[], Any]
    done: "asyncio.Future[Any]"


class WorkerThreads:
    """Threads for one kind of work; call it on the event loop's thread."""

    def __init__(
        self, name: str, *, threads: int = THREADS_MAX, waiting_max: int = WAITING_MAX
    ) -> None:
        self._name = name
        self._threads = threads
        self._waiting_max = waiting_max
        self._pool: ThreadPoolExecutor | None = None
        self.turns = FairTurns(threads, waiting_max)
        self._running: set[Future[Any]] = set()

    def start(self, work: Callable[[], Result], *, tenant: str = "") -> "asyncio.Future[Result]":
        """Start work and return its future; `Overloaded` when too much waits already."""
        return self._start(work, tenant).done

    def _start(self, work: Callable[[], Any], tenant: str) -> _Work:
        made = _Work(tenant, work, asyncio.get_running_loop().create_future())
        if self.turns.take(tenant):
            self._submit(made)
        elif self.turns.wait(tenant, made):
            made.done.add_done_callback(lambda _: self.turns.remove(tenant, made))
        else:
            raise Overloaded(
                "too many requests wait for a thread",
                hint="try again in a moment",
                waiting_max=self._waiting_max,
                retry_after_s=1,
            )
        return made

    async def run(
        self,
        work: Callable[[], Result],
        *,
        tenant: str = "",
        receive: Receive | None = None,
    ) -> Result:
        """Run work on a thread and return its result.

        With the `receive` of a request whose body was read, work that waits is dropped when the
        client disconnects: `ClientGone`.
        """
        made = self._start(work, tenant)
        if receive is None or not self.turns.waiting:
            return cast("Result", await made.done)
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({made.done, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not made.done.done() and self.turns.remove(tenant, made):
                raise ClientGone
            return cast("Result", await made.done)
        finally:
            gone.cancel()

    def _submit(self, work: _Work) -> None:
        if self._pool is None:
            name = f"thermocline-{self._name}"
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=name)
        running = self._pool.submit(work.run)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        finished = asyncio.wrap_future(running)
        finished.add_done_callback(lambda one: self._finish(work, one))

    def _finish(self, work: _Work, finished: "asyncio.Future[Any]") -> None:
        self.turns.give_back(work.tenant, self._submit)
        error = None if finished.cancelled() else finished.exception()
        if work.done.done():
            return  # no task awaits it any more
        if finished.cancelled():
            work.done.cancel()
        elif error is not None:
            work.done.set_exception(error)
            work.done.exception()  # mark it as retrieved, even if no task awaits it
        else:
            work.done.set_result(finished.result())

    @property
    def is_busy(self) -> bool:
        """Whether a thread is working, even if no task awaits it any more."""
        return bool(self._running)

    def close(self) -> None:
        """Release the threads; running work ends by itself. Later work gets new threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
