"""Group commit: whoever waits is written together, with one write and one sync.

In:   requests from many threads
Out:  a future for each; it is done when the request is durable and visible

- Durable before visible, visible before answered: the journal returns, then the request is
  applied, then its future is set.
- What is in the journal is applied, or the writer ends: no flush passes over it.
- The queue has a limit in bytes. Past it a request is refused at once, never taken and dropped.
- One thread writes; an interrupt in a caller's thread cannot strike in the middle of a write.
- When that thread ends by a bug, everybody who waits is told so, and nothing more is taken.
"""

import threading
import time as clock
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from thermocline.errors import OutcomeUnknown, Overloaded, ThermoclineError, Unavailable
from thermocline.hot.wal.frame import Lsn
from thermocline.hot.wal.journal import Entry, Journal

GROUP_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """An entry, what to do once it is durable, and who waits for it."""

    entry: Entry
    apply: Callable[[Lsn], None]
    future: "Future[Lsn]" = field(default_factory=Future)


class GroupCommit:
    """The one thread that writes a journal."""

    def __init__(
        self,
        journal: Journal,
        *,
        sync_interval_s: float | None = None,
        queue_bytes_max: int,
    ) -> None:
        self._journal = journal
        self._sync_interval_s = sync_interval_s
        self._queue_bytes_max = queue_bytes_max
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._queue: list[Request] = []
        self._queued_bytes = 0
        self._group: list[Request] = []
        self._is_closing = False
        self._synced_s = clock.monotonic()
        self.trouble: ThermoclineError | None = None
        self._thread = threading.Thread(target=self._run, name="thermocline-journal", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> "Future[Lsn]":
        """Queue a request; its future gives the lsn once it is durable and applied."""
        size_bytes = len(request.entry.payload)
        with self._changed:
            if self._is_closing:
                raise Unavailable("the journal is closed", hint="open the lake again")
            if self._queue and self._queued_bytes + size_bytes > self._queue_bytes_max:
                raise Overloaded(
                    "more writes are waiting for the disk than the limit",
                    hint="send less, or later",
                    queued_bytes=self._queued_bytes,
                    queued_bytes_max=self._queue_bytes_max,
                )
            self._queue.append(request)
            self._queued_bytes += size_bytes
            self._changed.notify()
        return request.future

    def probe(self) -> None:
        """Find out whether writes work when no write tells: `trouble` says it afterwards.

        While a group is being written, or after the writer ended, this does nothing.
        """
        if self._is_closing or not self._writing.acquire(blocking=False):
            return
        try:
            self._journal.probe()
        except ThermoclineError as error:
            self.trouble = error
        else:
            self.trouble = None
        finally:
            self._writing.release()

    @contextmanager
    def paused(self) -> Iterator[Journal]:
        """Give the journal to this thread, between two groups."""
        with self._writing:
            yield self._journal

    def stop(self) -> None:
        """Take no more, write what is queued and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def close(self) -> None:
        """Stop, and close the journal."""
        self.stop()
        with self._writing:
            self._journal.close()

    def _run(self) -> None:
        try:
            while self._write_next():
                pass
        except BaseException as error:  # noqa: BLE001 whoever waits gets it; nobody else could
            self._end(error)

    def _write_next(self) -> bool:
        with self._changed:
            if not self._queue and not self._is_closing:
                self._changed.wait(self._sync_interval_s)
            self._group = self._taken()
            is_done = self._is_closing and not self._group
        if self._group:
            self._commit(self._group)
        # Under load the queue is never empty: the interval is counted, not only waited for.
        if self._sync_interval_s is not None and not is_done:
            now_s = clock.monotonic()
            if now_s - self._synced_s >= self._sync_interval_s:
                self._synced_s = now_s
                self._sync()
        return not is_done

    def _end(self, error: BaseException) -> None:
        """Tell everybody who waits that the writer is gone, and why.

        Crash here: a bug, or the end of the process. Whether the rows are durable is not known,
        and nobody may be told that they are.
        """
        unknown = OutcomeUnknown("the journal's writer ended", why=repr(error))
        unknown.__cause__ = error
        with self._changed:
            self._is_closing = True
            waiting, self._queue = [*self._group, *self._queue], []
        self.trouble = unknown
        for request in waiting:
            if not request.future.done():
                request.future.set_exception(unknown)

    def _taken(self) -> list[Request]:
        size_bytes, count = 0, 0
        for request in self._queue:
            size_bytes += len(request.entry.payload)
            count += 1
            if size_bytes >= GROUP_BYTES_MAX:
                break
        group, self._queue = self._queue[:count], self._queue[count:]
        self._queued_bytes -= size_bytes
        return group

    def _commit(self, group: list[Request]) -> None:
        try:
            with self._writing:
                lsns = self._appended(group)
        except ThermoclineError as error:
            self.trouble = error
            for request in group:
                request.future.set_exception(error)
        else:
            self.trouble = None
            for request, lsn in zip(group, lsns, strict=True):
                request.future.set_result(lsn)

    def _appended(self, group: list[Request]) -> list[Lsn]:
        """Write a group and apply it; return its lsns.

        An error while durable rows are applied ends the writer: answering it as "not stored" would
        be wrong, and rows that come later must not be flushed past rows that are not in memory.
        """
        first = self._journal.next_lsn
        try:
            return self._journal.append([request.entry for request in group])
        finally:
            # Even when it raises: entries that got their lsns are in the journal, and only other
            # processes could not be told. A flush of later rows would pass over them.
            if self._journal.next_lsn != first:
                self._apply(group, first)

    def _apply(self, group: list[Request], first: Lsn) -> None:
        try:
            for place, request in enumerate(group):
                request.apply(Lsn(first + place))
        except ThermoclineError as error:
            raise RuntimeError("durable rows could not be applied") from error

    def _sync(self) -> None:
        try:
            with self._writing:
                self._journal.sync()
        except ThermoclineError as error:
            self.trouble = error  # tried again at the next interval, in a new file
        else:
            self.trouble = None
