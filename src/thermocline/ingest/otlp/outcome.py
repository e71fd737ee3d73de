"""What decoding a request came to: batches, and a tally of what was refused or changed.

In:   limits; one note for each thing refused, cut or dropped
Out:  `Decoded`, with the counts and the message of OTLP's partial success

- Nothing is refused, cut or dropped without a note; every note is in the message.
- The message is bounded: reasons are a fixed set, and one example is named, cut short.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

EXAMPLE_LENGTH_MAX = 100
FOREIGN = "an item of another signal"
UNKNOWN = "items under names that OTLP does not have, ignored"
ITEMS = {"metrics": "data points", "logs": "log records", "traces": "spans"}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one item may carry. What exceeds it is cut or dropped, counted and told."""

    attributes_max: int = 1_024
    key_bytes_max: int = 1_024
    value_bytes_max: int = 65_536
    body_bytes_max: int = 1 << 20
    nesting_max: int = 16


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows of one request, by table, and what the sender must be told."""

    signal: str
    batches: Mapping[str, pa.RecordBatch]
    accepted: int
    rejected: int
    message: str

    @property
    def is_partial(self) -> bool:
        """Whether something was refused, or is worth a warning: the answer has to say so."""
        return bool(self.rejected or self.message)


@dataclass(slots=True)
class Tally:
    """Counts what happens to the items of one request."""

    signal: str
    accepted: int = 0
    _rejected: Counter[str] = field(default_factory=Counter)
    _noted: Counter[str] = field(default_factory=Counter)
    _example: str = ""
    _unknown: str = ""

    def reject(self, reason: str, name: str, count: int = 1) -> None:
        """Count items that were refused, and remember the name of the first."""
        if not self._rejected:
            self._example = name[:EXAMPLE_LENGTH_MAX]
        self._rejected[reason] += count

    def note(self, what: str, count: int = 1) -> None:
        """Count things that were taken, but changed or odd."""
        self._noted[what] += count

    def note_unknown(self, names: str) -> None:
        """Count a place where items are expected, and where only unknown names are."""
        self._unknown = self._unknown or names[:EXAMPLE_LENGTH_MAX]
        self.note(UNKNOWN)

    @property
    def unknown(self) -> str | None:
        """The unknown names of the first such place, when the request has no other item."""
        return None if self.accepted or self._rejected else self._unknown or None

    @property
    def is_noted(self) -> bool:
        """Whether anything was refused or noted yet."""
        return bool(self._rejected or self._noted)

    @property
    def is_foreign(self) -> bool:
        """Whether all items were refused because they are of another signal."""
        return not self.accepted and set(self._rejected) == {FOREIGN}

    def decoded(self, batches: Mapping[str, pa.RecordBatch]) -> Decoded:
        """Return the outcome with these batches."""
        rejected = self._rejected.total()
        return Decoded(self.signal, batches, self.accepted, rejected, self._message(rejected))

    def _message(self, rejected: int) -> str:
        parts = []
        if rejected:
            total = rejected + self.accepted
            reasons = _listed(self._rejected)
            first = f" (the first is of {self._example!r})" if self._example else ""
            parts.append(f"refused {rejected} of {total} {ITEMS[self.signal]}: {reasons}{first}")
        if self._noted:
            parts.append(f"taken with changes or doubts: {_listed(self._noted)}")
        return "; ".join(parts)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{reason} ({count})" for reason, count in counts.most_common())
