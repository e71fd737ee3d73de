"""The contender of the log bench: opens tables and asks for their gaps.

In:   a table's folder; a stretch of time
Out:  the version, or how many gaps there are

- `open` ends when the version is known, so that an open that only promises is not counted as one.
- The library is imported when the contender is made; what it imports later, it pays for.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any


class Thermocline:
    """Our own table, by its public face."""

    def __init__(self) -> None:
        import thermocline

        self._library = thermocline
        self._table: Any = None

    def open(self, root: str) -> int:
        """Open a table and return its version."""
        self._table = self._library.TimeSeriesTable.open(root)
        return int(self._table.version())

    def gaps(self, start: str, end: str) -> int:
        """Return how many gaps the open table has between two instants."""
        first, after = datetime.fromisoformat(start), datetime.fromisoformat(end)
        self._gaps = self._table.gaps(first, after)
        return len(self._gaps)

    def open_and_gaps(self, root: str, start: str, end: str) -> int:
        """Open a table, ask it at once, and return how many gaps there are."""
        self.open(root)
        return self.gaps(start, end)

    def forget(self) -> None:
        """Let go of the table, so that freeing it is nobody's time."""
        self._table = self._gaps = None


CONTENDERS: dict[str, Callable[[], Thermocline]] = {"thermocline": Thermocline}
