"""Keeps the dirty set small enough to be read: warns above one limit, refuses above another.

In:   writes about to be made; how much is dirty, looked up now and then
Out:  nothing, a warning in the log, or `Overloaded` that names the limit

- A reading costs its dirty keys, so the number of changes that wait for an export is bounded.
- The number is looked up once in `look_s`, or at once when the last look and the writes since
  could be past a limit. Between looks, other processes' writes are not seen.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from thermocline.errors import Invalid, Overloaded
from thermocline.hot.postgres.dirty import Pressure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntitySettings:
    """How entities of a type are kept.

    An export is due when `export_changes` wait for it, or any for `export_age_s`. Past
    `changes_warn` it is said in the log, past `changes_max` writes are refused. Rows older than
    `evict_age_s` leave PostgreSQL once the lake has them; None keeps all. Of deleted keys,
    `gone_keys_max` are remembered each for itself. With `is_read_only` nothing is written at all.
    """

    mode: str = "strict"
    export_changes: int = 10_000
    export_age_s: float = 60.0
    changes_warn: int = 200_000
    changes_max: int = 1_000_000
    look_s: float = 1.0
    evict_age_s: float | None = None
    gone_keys_max: int = 1_000_000
    is_read_only: bool = False


class Room:
    """How many more changes fit. Any thread may use it."""

    def __init__(
        self,
        settings: EntitySettings,
        pressure: Callable[[], Pressure],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._pressure = pressure
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_s: float | None = None
        self._changes = 0
        self._has_warned = False

    def check_writable(self) -> None:
        """Raise `Invalid` where entities are only read."""
        if self._settings.is_read_only:
            hint = "connect without read_only"
            raise Invalid("the lake is open for reading only", hint=hint)

    def admit(self, writes: int = 1) -> None:
        """Count writes that are about to be made; `Overloaded` when there is no room for them."""
        self.check_writable()
        with self._lock:
            self._changes += writes
            now_s = self._clock()
            is_old = self._looked_s is None or now_s - self._looked_s >= self._settings.look_s
            must_look = is_old or self._changes > self._settings.changes_warn
        if not must_look:
            return
        found = self._pressure().changes
        with self._lock:
            self._changes, self._looked_s = found + writes, now_s
            self._say(found)
        if found + writes > self._settings.changes_max:
            raise Overloaded(
                "too many changes wait for an export",
                hint="export now, or more often; then write again",
                changes=found,
                changes_max=self._settings.changes_max,
            )

    def _say(self, changes: int) -> None:
        is_past = changes > self._settings.changes_warn
        if is_past and not self._has_warned:
            logger.warning(
                "%d changes wait for an export (changes_warn=%d); readings slow down",
                changes,
                self._settings.changes_warn,
            )
        self._has_warned = is_past
