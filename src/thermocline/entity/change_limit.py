"""Limits the changes that wait for an export: warns above one limit, refuses writes above another.

In:   the number of writes to come; the number of changes, read from time to time
Out:  nothing, a warning in the log, or `Overloaded` with the limit

- A read costs time for each dirty key, so the number of changes that wait for an export is limited.
- The number is read once in `look_s`, or at once if the last number plus the writes since then may
  be above a limit. Between these reads, writes of other processes are not counted.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from thermocline.errors import Invalid, Overloaded
from thermocline.hot.postgres.export.dirty import Pressure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntitySettings:
    """The settings of an entity type.

    An export is due when `export_changes` wait for it, or any change for `export_age_s`. Above
    `changes_warn` the log has a warning, above `changes_max` writes are refused. Rows older than
    `evict_age_s` are evicted from PostgreSQL once the lake has them; None keeps all rows. The last
    versions of `gone_keys_max` deleted keys are kept. With `is_read_only` every write is refused.
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


class ChangeLimit:
    """The limit of changes that wait for an export. Any thread may use it."""

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
        """Raise `Invalid` if the lake is open for reading only."""
        if self._settings.is_read_only:
            hint = "connect without read_only"
            raise Invalid("the lake is open for reading only", hint=hint)

    def admit(self, writes: int = 1) -> None:
        """Count the writes to come; `Overloaded` above `changes_max`."""
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
            self._warn_once(found)
        if found + writes > self._settings.changes_max:
            raise Overloaded(
                "too many changes wait for an export",
                hint="export now, or more often; then write again",
                changes=found,
                changes_max=self._settings.changes_max,
            )

    def _warn_once(self, changes: int) -> None:
        is_past = changes > self._settings.changes_warn
        if is_past and not self._has_warned:
            logger.warning(
                "%d changes wait for an export (changes_warn=%d); reads slow down",
                changes,
                self._settings.changes_warn,
            )
        self._has_warned = is_past
