"""The outcome of decoding a request: batches, and a tally of refused and changed items.

In:   one note for each item or value that is refused, truncated or dropped
Out:  `DecodedRequest`, with the counts and the message of OTLP's partial success

- Every refused, truncated or dropped part has a note, and every note is in the message.
- The message is bounded: reasons are a fixed set, and only one truncated example is named.
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
class DecodedRequest:
    """The rows of one request by table, with the counts and the message for the client."""

    signal: str
    batches: Mapping[str, pa.RecordBatch]
    accepted: int
    rejected: int
    message: str

    @property
    def is_partial(self) -> bool:
        """Whether the response must report refused items or warnings."""
        return bool(self.rejected or self.message)


@dataclass(slots=True)
class Tally:
    """Counts what happens to the items of one request."""

    signal: str
    accepted: int = 0
    _rejected: Counter[str] = field(default_factory=Counter)
    _notes: Counter[str] = field(default_factory=Counter)
    _example: str = ""
    _unknown: str = ""

    def reject(self, reason: str, name: str, count: int = 1) -> None:
        """Count refused items, and keep the name of the first as an example."""
        if not self._rejected:
            self._example = name[:EXAMPLE_LENGTH_MAX]
        self._rejected[reason] += count

    def note(self, what: str, count: int = 1) -> None:
        """Count parts that were accepted with a change or a warning."""
        self._notes[what] += count

    def note_unknown(self, names: str) -> None:
        """Count a place where items are expected, and where only unknown names are."""
        self._unknown = self._unknown or names[:EXAMPLE_LENGTH_MAX]
        self.note(UNKNOWN)

    @property
    def unknown(self) -> str | None:
        """The unknown names of the first such place, when the request has no other item."""
        return None if self.accepted or self._rejected else self._unknown or None

    @property
    def has_notes(self) -> bool:
        """Whether anything was refused or noted so far."""
        return bool(self._rejected or self._notes)

    @property
    def is_foreign(self) -> bool:
        """Whether all items were refused because they are of another signal."""
        return not self.accepted and set(self._rejected) == {FOREIGN}

    def outcome(self, batches: Mapping[str, pa.RecordBatch]) -> DecodedRequest:
        """Return the outcome with these batches."""
        rejected = self._rejected.total()
        return DecodedRequest(
            self.signal, batches, self.accepted, rejected, self._format_message(rejected)
        )

    def _format_message(self, rejected: int) -> str:
        parts = []
        if rejected:
            total = rejected + self.accepted
            reasons = _list_counts(self._rejected)
            first = f" (the first is of {self._example!r})" if self._example else ""
            parts.append(f"refused {rejected} of {total} {ITEMS[self.signal]}: {reasons}{first}")
        if self._notes:
            parts.append(f"accepted with changes or warnings: {_list_counts(self._notes)}")
        return "; ".join(parts)


def _list_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{reason} ({count})" for reason, count in counts.most_common())
