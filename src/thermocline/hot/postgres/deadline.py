"""Cuts a connection whose answer does not come in time.

In:   a connection and how long its owner is willing to wait
Out:  nothing, or an error where the owner waits

A limit that the server keeps (`statement_timeout`) does nothing when the server, or the way to
it, has gone silent: the packets of a black hole may even be acknowledged by something in between.
So the client has a limit of its own. Past it the socket is shut, and whoever waits on it finds
the connection lost.

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
    """When one connection is cut; `is_past` once it was."""

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
            # Most blocks end long before the thread would wake for an earlier one: to wake it
            # for each costs a page a tenth of its time.
            if deadline.at_s < self._wakes_s:
                self._wakes_s = deadline.at_s
                self._changed.notify()
        try:
            yield deadline
        finally:
            with self._changed:
                self._waiting.discard(deadline)

    def close(self, *, is_forced: bool = False) -> None:
        """End the thread; with `is_forced` cut every connection, those that come later too."""
        with self._changed:
            self._is_closed = True
            self._is_forced = is_forced
            if is_forced:
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
                # Invariant: it never sleeps past a deadline; whoever adds a nearer one wakes it.
                self._wakes_s = nearest_s
                is_idle = nearest_s == _NEVER_S
                self._changed.wait(None if is_idle else max(nearest_s - now_s, 0.001))

    def _cut_due(self, now_s: float) -> None:
        for deadline in [one for one in self._waiting if one.at_s <= now_s]:
            self._waiting.discard(deadline)
            deadline.is_past = True
            _cut(deadline.connection)


def _cut(connection: psycopg.Connection[Any]) -> None:
    # A second handle: closing it leaves the descriptor to libpq, which still owns it.
    with suppress(OSError, psycopg.Error), _handle(connection) as handle:
        handle.shutdown(socket.SHUT_RDWR)


def _handle(connection: psycopg.Connection[Any]) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))
