"""Keeps a dead server from slowing everyone who asks for it.

In:   what became of the last tries to reach it
Out:  `Unavailable` at once while it is taken for dead; otherwise nothing

    closed      everyone may try; `failures_max` failures in a row open it
    open        nobody may, for `open_s`, then twice as long, up to `open_max_s`
    half open   one may try; it closes the breaker or opens it again, the others are refused

The clock is a monotonic one: a wall clock set back would keep a breaker open for ever.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from thermocline.errors import Unavailable


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a server is taken for dead, and for how long it is left alone."""

    failures_max: int = 3
    open_s: float = 1.0
    open_max_s: float = 15.0


class Breaker:
    """The state of one server as its callers see it. Any thread may use it."""

    def __init__(
        self,
        settings: BreakerSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings or BreakerSettings()
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_s = self._settings.open_s
        self._open_until_s: float | None = None
        self._is_probing = False

    @property
    def state(self) -> str:
        """`closed`, `open` or `half_open`."""
        with self._lock:
            if self._open_until_s is None:
                return "closed"
            is_over = self._is_probing or self._clock() >= self._open_until_s
            return "half_open" if is_over else "open"

    def admit(self) -> None:
        """Let the caller try, or raise `Unavailable` with the time until somebody may.

        Whoever is let through says afterwards whether it `succeeded` or `failed`, or that it
        found out neither (`released`).
        """
        with self._lock:
            if self._open_until_s is None:
                return
            left_s = self._open_until_s - self._clock()
            if left_s <= 0 and not self._is_probing:
                self._is_probing = True
                return
        raise Unavailable(
            "PostgreSQL does not answer and is left alone for a moment",
            hint="try again after retry_after_s",
            retry_after_s=round(max(left_s, 0.1), 3),
        )

    def released(self) -> None:
        """A try ended without a word about the server: the next one who asks may try."""
        with self._lock:
            self._is_probing = False

    def succeeded(self) -> None:
        """The server answered: everyone may try again."""
        with self._lock:
            self._failures = 0
            self._is_probing = False
            self._open_until_s = None
            self._open_s = self._settings.open_s

    def failed(self) -> None:
        """The server could not be reached, or went away."""
        with self._lock:
            self._failures += 1
            was_probe = self._is_probing
            self._is_probing = False
            if was_probe:
                self._open_s = min(self._open_s * 2, self._settings.open_max_s)
            elif self._failures < self._settings.failures_max:
                return
            self._open_until_s = self._clock() + self._open_s
