"""Enforces a table's limit of entities, pending writes included.

In:   the entities of each write
Out:  nothing, or `EntityLimitReached`

- A write reserves room for its new entities before it is written and releases it if it fails.
  Concurrent writes count together, so every acknowledged write can be flushed.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Set

from thermocline.errors import EntityLimitReached


class EntityLimit:
    """The entities of one table; `load` is called once, at the first reservation."""

    def __init__(self, load: Callable[[], Iterable[str]]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._known: set[str] | None = None
        self._reserved: Counter[str] = Counter()

    def reserve(self, found: Set[str], entities_max: int, table: str) -> set[str]:
        """Reserve room for the new entities and return them; `EntityLimitReached` past the limit.

        The caller must call `settle` with them, whether the write succeeded or failed.
        """
        with self._lock:
            if self._known is None:
                self._known = set(self._load())
            new = set(found) - self._known
            if len(self._known) + len(self._reserved.keys() | new) > entities_max:
                raise EntityLimitReached(
                    "more entities than the table's limit",
                    hint="raise entities_max, or declare fewer or coarser entity columns",
                    table=table,
                    entities_max=entities_max,
                )
            self._reserved.update(new)
            return new

    def settle(self, new: Set[str], *, is_written: bool) -> None:
        """Keep the reservations of entities that were written; release the others."""
        if not new:
            return
        with self._lock:
            self._reserved.subtract(new)
            self._reserved += Counter()  # drops entities without a pending write
            if is_written and self._known is not None:
                self._known |= new
