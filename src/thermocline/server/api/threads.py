"""Runs blocking work on a bounded number of threads, so that the event loop never blocks.

In:   blocking functions
Out:  their results, awaited

- The number of threads is bounded, and so is the work that waits for one; beyond both, `start`
  raises `Overloaded`.
- Work runs to its end even if no task awaits it any more; cancelling it is up to the caller.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from thermocline.errors import Overloaded

THREADS_MAX = 16
WAITING_MAX = 128

Result = TypeVar("Result")


class WorkerThreads:
    """Threads for one kind of work."""

    def __init__(
        self, name: str, *, threads: int = THREADS_MAX, waiting_max: int = WAITING_MAX
    ) -> None:
        self._name = name
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._busy_max = threads + waiting_max
        self._busy = 0
        self._running: set[Future[Any]] = set()

    def start(self, work: Callable[[], Result]) -> "asyncio.Future[Result]":
        """Start work and return its future; `Overloaded` when too much waits already."""
        if self._busy >= self._busy_max:
            raise Overloaded(
                "too many requests wait for a thread",
                hint="try again in a moment",
                waiting_max=self._busy_max,
                retry_after_s=1,
            )
        if self._pool is None:
            name = f"thermocline-{self._name}"
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=name)
        self._busy += 1
        running = self._pool.submit(work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        future = asyncio.wrap_future(running)
        future.add_done_callback(self._finish)
        return future

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run work on a thread and return its result."""
        return await self.start(work)

    @property
    def is_busy(self) -> bool:
        """Whether a thread is working, even if no task awaits it any more."""
        return bool(self._running)

    def _finish(self, future: "asyncio.Future[Result]") -> None:
        self._busy -= 1
        if not future.cancelled():
            future.exception()  # mark it as retrieved, even if no task awaits it any more

    def close(self) -> None:
        """Release the threads; running work ends by itself. Later work gets new threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
