"""Group commit: the journal thread writes all waiting requests with one write and one fsync.

In:   requests from many threads
Out:  a future for each; it is done when the request is durable and visible

- Durable before visible, visible before answered: the journal returns, then the thread applies the
  request, then it sets the future.
- The thread applies every request that is in the journal, or it ends: so no flush skips such rows.
- The queue has a limit in bytes. Above it a request is refused at once; accepted requests are
  never dropped.
- One thread writes, so an interrupt in a caller's thread cannot stop a write halfway.
- If a bug ends that thread, every waiting request fails with `OutcomeUnknown`, and later requests
  are refused.
"""

import threading
import time as clock
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from thermocline.errors import OutcomeUnknown, Overloaded, ThermoclineError, Unavailable
from thermocline.hot.wal.frame import Lsn
from thermocline.hot.wal.journal import Journal, JournalEntry

GROUP_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """An entry, the callback once it is durable, and the future of the waiting caller.

    The future returns `result`, or without it the lsn.
    """

    entry: JournalEntry
    apply: Callable[[Lsn], None]
    result: int | None = None
    future: "Future[int]" = field(default_factory=Future)


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
        self._queue: list[WriteRequest] = []
        self._queued_bytes = 0
        self._group: list[WriteRequest] = []
        self._is_closing = False
        self._synced_s = clock.monotonic()
        self.last_error: ThermoclineError | None = None
        self._thread = threading.Thread(target=self._run, name="thermocline-journal", daemon=True)
        self._thread.start()

    def submit(self, request: WriteRequest) -> "Future[int]":
        """Queue a request; its future is done once the request is durable and applied."""
        request.future.set_running_or_notify_cancel()  # a submitted write cannot be cancelled
        size_bytes = len(request.entry.payload)
        with self._changed:
            if self._is_closing:
                raise Unavailable("the journal is closed", hint="open the lake again")
            if self._queue and self._queued_bytes + size_bytes > self._queue_bytes_max:
                raise Overloaded(
                    "too many bytes wait to be written to the journal",
                    hint="send less, or later",
                    queued_bytes=self._queued_bytes,
                    queued_bytes_max=self._queue_bytes_max,
                )
            self._queue.append(request)
            self._queued_bytes += size_bytes
            self._changed.notify()
        return request.future

    def probe(self) -> None:
        """Test whether the journal can be written, and store the error, or None, in `trouble`.

        Does nothing while a group is being written, or after the thread has ended.
        """
        if self._is_closing or not self._writing.acquire(blocking=False):
            return
        try:
            self._journal.probe()
        except ThermoclineError as error:
            self.last_error = error
        else:
            self.last_error = None
        finally:
            self._writing.release()

    @contextmanager
    def pause(self) -> Iterator[Journal]:
        """Let the calling thread use the journal between two groups."""
        with self._writing:
            yield self._journal

    def stop(self) -> None:
        """Refuse new requests, write the queued ones and end the thread."""
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
        except BaseException as error:  # noqa: BLE001 passed to every waiting caller
            self._fail_waiting(error)

    def _write_next(self) -> bool:
        with self._changed:
            if not self._queue and not self._is_closing:
                self._changed.wait(self._sync_interval_s)
            self._group = self._take_group()
            is_done = self._is_closing and not self._group
        if self._group:
            self._commit(self._group)
        # Under load the queue is never empty and the wait never times out: check the clock too.
        if self._sync_interval_s is not None and not is_done:
            now_s = clock.monotonic()
            if now_s - self._synced_s >= self._sync_interval_s:
                self._synced_s = now_s
                self._sync()
        return not is_done

    def _fail_waiting(self, error: BaseException) -> None:
        """Fail every waiting request with the reason why the journal thread ended.

        Crash here: a bug, or the end of the process. It is unknown whether the rows are durable,
        so no client may get an answer that says so.
        """
        unknown = OutcomeUnknown("the journal thread ended", why=repr(error))
        unknown.__cause__ = error
        with self._changed:
            self._is_closing = True
            waiting, self._queue = [*self._group, *self._queue], []
        self.last_error = unknown
        for request in waiting:
            if not request.future.done():
                request.future.set_exception(unknown)

    def _take_group(self) -> list[WriteRequest]:
        size_bytes, count = 0, 0
        for request in self._queue:
            size_bytes += len(request.entry.payload)
            count += 1
            if size_bytes >= GROUP_BYTES_MAX:
                break
        group, self._queue = self._queue[:count], self._queue[count:]
        self._queued_bytes -= size_bytes
        return group

    def _commit(self, group: list[WriteRequest]) -> None:
        try:
            with self._writing:
                lsns = self._append_group(group)
        except ThermoclineError as error:
            self.last_error = error
            for request in group:
                request.future.set_exception(error)
        else:
            self.last_error = None
            for request, lsn in zip(group, lsns, strict=True):
                request.future.set_result(lsn if request.result is None else request.result)

    def _append_group(self, group: list[WriteRequest]) -> list[Lsn]:
        """Write a group and apply it; return its lsns.

        An error while durable rows are applied ends the journal thread: to answer "not stored"
        would be wrong, and a flush of later rows must not skip rows that are not in memory.
        """
        first = self._journal.next_lsn
        try:
            return self._journal.append([request.entry for request in group])
        finally:
            # Even when it raises: entries that got their lsns are in the journal, and only the
            # watermark could not be written. A flush of later rows would skip them.
            if self._journal.next_lsn != first:
                self._apply(group, first)

    def _apply(self, group: list[WriteRequest], first: Lsn) -> None:
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
            self.last_error = error  # the next interval tries again, in a new file
        else:
            self.last_error = None
