"""How many entities a table has, those on their way included, and whether more fit.

In:   the entities of each write
Out:  nothing, or `Overloaded`

- A write takes its place before it is written and gives it back if it is not: writes that are on
  their way together count together, so none is acknowledged that a flush could not take.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Set

from thermocline.errors import Overloaded


class EntityRoom:
    """The entities of one table; `load` is asked once, when it is first needed."""

    def __init__(self, load: Callable[[], Iterable[str]]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._known: set[str] | None = None
        self._coming: Counter[str] = Counter()

    def take(self, found: Set[str], entities_max: int, table: str) -> set[str]:
        """Return those that are new, having taken their places; `Overloaded` when there are none.

        Whoever takes places calls `settle` in any case.
        """
        with self._lock:
            if self._known is None:
                self._known = set(self._load())
            new = set(found) - self._known
            if len(self._known) + len(self._coming.keys() | new) > entities_max:
                raise Overloaded(
                    "more entities than the table's limit",
                    hint="raise entities_max, or declare fewer or coarser entity columns",
                    table=table,
                    entities_max=entities_max,
                )
            self._coming.update(new)
            return new

    def settle(self, new: Set[str], *, is_written: bool) -> None:
        """Keep the places of entities that were written; give back those of others."""
        if not new:
            return
        with self._lock:
            self._coming.subtract(new)
            self._coming += Counter()  # drops what nobody brings any more
            if is_written and self._known is not None:
                self._known |= new
