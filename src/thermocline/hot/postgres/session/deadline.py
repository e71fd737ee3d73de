"""Cuts a connection when its answer misses a deadline.

In:   a connection and the time that its caller may wait
Out:  nothing, or a connection error in the waiting caller

A timeout of the server (`statement_timeout`) has no effect when the server or the network is
silent: in a network black hole, a middlebox may even acknowledge the packets. So the client has
its own deadline. After it, this module shuts the socket down, and the waiting caller sees a lost
connection.

One thread serves all connections of a pool; it sleeps until the nearest deadline.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg

_NEVER_S = float("inf")


@dataclass(eq=False, slots=True)
class Deadline:
    """When one connection will be cut; `is_past` once it has been."""

    connection: psycopg.Connection[Any]
    at_s: float
    is_past: bool = False


class Deadlines:
    """The deadlines of a pool's connections. Any thread may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: set[Deadline] = set()
        self._thread: threading.Thread | None = None
        self._wakes_s = _NEVER_S
        self._is_closed = False
        self._is_forced = False

    @contextmanager
    def within(self, connection: psycopg.Connection[Any], limit_s: float) -> Iterator[Deadline]:
        """Cut the connection if the block takes longer than the limit."""
        deadline = Deadline(connection, time.monotonic() + limit_s)
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="postgres-deadlines", daemon=True
                )
                self._thread.start()
            self._waiting.add(deadline)
            if self._is_forced:
                self._cut_due(_NEVER_S)
            # Most blocks end long before the thread wakes for an earlier deadline: waking it for
            # each block would take a tenth of a page's time.
            if deadline.at_s < self._wakes_s:
                self._wakes_s = deadline.at_s
                self._changed.notify()
        try:
            yield deadline
        finally:
            with self._changed:
                self._waiting.discard(deadline)

    def close(self, *, force: bool = False) -> None:
        """End the thread; with `force`, cut every connection now and every later one."""
        with self._changed:
            self._is_closed = True
            self._is_forced = force
            if force:
                self._cut_due(_NEVER_S)
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        with self._changed:
            while not self._is_closed:
                now_s = time.monotonic()
                self._cut_due(now_s)
                nearest_s = min((one.at_s for one in self._waiting), default=_NEVER_S)
                # Invariant: the thread never sleeps past a deadline; `within` wakes it for a nearer
                # one.
                self._wakes_s = nearest_s
                is_idle = nearest_s == _NEVER_S
                self._changed.wait(None if is_idle else max(nearest_s - now_s, 0.001))

    def _cut_due(self, now_s: float) -> None:
        for deadline in [one for one in self._waiting if one.at_s <= now_s]:
            self._waiting.discard(deadline)
            deadline.is_past = True
            _cut(deadline.connection)


def _cut(connection: psycopg.Connection[Any]) -> None:
    # A duplicate handle: closing it does not close libpq's descriptor.
    with suppress(OSError, psycopg.Error), _socket_of(connection) as handle:
        handle.shutdown(socket.SHUT_RDWR)


def _socket_of(connection: psycopg.Connection[Any]) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))
