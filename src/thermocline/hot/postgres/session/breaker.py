"""A circuit breaker: callers fail at once while the server is down, instead of waiting for it.

In:   the results of the last attempts to reach the server
Out:  `Unavailable` at once while the breaker is open; otherwise nothing

    closed      every caller may try; `failures_max` failures in a row open it
    open        every caller is refused, for `open_s`, then twice as long, up to `open_max_s`
    half open   one caller may try, and closes the breaker or opens it again; others are refused

The clock is monotonic: a wall clock that is set back would keep the breaker open indefinitely.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from thermocline.errors import Unavailable


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """After how many failures the breaker opens, and for how long."""

    failures_max: int = 3
    open_s: float = 1.0
    open_max_s: float = 15.0


class Breaker:
    """The circuit breaker of one server. Any thread may use it."""

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

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Admit the caller to one attempt, or raise `Unavailable` with the time until the next.

        In the block the caller calls `record_success` or `record_failure`, if it learns either.
        However the attempt ends, the next caller may try.
        """
        with self._lock:
            if self._open_until_s is not None:
                left_s = self._open_until_s - self._clock()
                if left_s > 0 or self._is_probing:
                    raise Unavailable(
                        "PostgreSQL does not answer, and new attempts pause for a moment",
                        hint="try again after retry_after_s",
                        retry_after_s=round(max(left_s, 0.1), 3),
                    )
                self._is_probing = True
        try:
            yield
        finally:
            with self._lock:
                self._is_probing = False

    def record_success(self) -> None:
        """Record that the server answered: every caller may try again."""
        with self._lock:
            self._failures = 0
            self._is_probing = False
            self._open_until_s = None
            self._open_s = self._settings.open_s

    def record_failure(self) -> None:
        """Record that the server could not be reached, or that the connection was lost."""
        with self._lock:
            self._failures += 1
            was_probe = self._is_probing
            self._is_probing = False
            if was_probe:
                self._open_s = min(self._open_s * 2, self._settings.open_max_s)
            elif self._failures < self._settings.failures_max:
                return
            self._open_until_s = self._clock() + self._open_s
