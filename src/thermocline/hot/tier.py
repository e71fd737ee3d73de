"""What hot tiers hold: rows in parts, each with the mark of the flush that takes it.

In:   a call of a reader or a flush
Out:  `HotSnapshot`, `FrozenParts`

- A mark is a number that goes up with every flush of one table from one source. A lake version
  carries the mark of the last flush it contains.
- A part is in the lake exactly when the version's mark has reached the part's mark. A reader takes
  the snapshot first, then the newest version, and omits the parts that this version contains. So
  it reads each row once, whichever flushes committed in between.
- No part straddles a mark: a flush takes whole parts.
- Parts are immutable. A snapshot is one reference, however many rows it holds.

A tier does not import the lake, and the lake does not import tiers: `flush.py` moves rows down,
`snapshot.py` reads both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from thermocline.format.index_column import index_numbers, unit_size
from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import Mark


@dataclass(frozen=True, slots=True)
class HotPart:
    """Rows of one schema that one flush will take, and the mark that this flush commits.

    `requests` maps the idempotency keys of the requests in these rows to their numbers of rows.
    """

    mark: Mark
    schema_id: int
    batch: pa.RecordBatch
    size_bytes: int
    requests: Mapping[str, int] = field(default_factory=dict)
    _bounds: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)

    def bounds(self, column: str) -> tuple[int, int]:
        """Return the first and last position in the index column; computed once."""
        if column not in self._bounds:
            values, unit = index_numbers(self.batch.column(column))
            size = unit_size(unit)
            self._bounds[column] = int(values.min()) * size, int(values.max()) * size
        return self._bounds[column]


@dataclass(frozen=True, slots=True)
class HotVersion:
    """The one lake version that a snapshot of a keyed table goes with; its rows may change.

    `hidden` maps segments of that version to deletion vectors: the rows that a hot row replaces,
    and those already deleted. Every row committed before `as_of` is in the two halves. `warning`
    says what is missing, and is empty for an exact snapshot.
    """

    version: Version
    as_of: TimeNs
    hidden: Mapping[str, str] = field(default_factory=dict)
    warning: str = ""


@dataclass(frozen=True, slots=True)
class HotSnapshot:
    """All hot rows of a table at one moment; `mark` is that of the last retired flush.

    For a keyed table, `pairing` names the version to read, and marks are not used. `others` are the
    snapshots of other journals of the same table; `warning` says which of them are missing.
    """

    source: str
    mark: Mark
    parts: tuple[HotPart, ...] = ()
    pairing: HotVersion | None = None
    others: tuple["HotSnapshot", ...] = ()
    warning: str = ""

    @property
    def sources(self) -> tuple["HotSnapshot", ...]:
        """This snapshot and those of the other journals."""
        return (self, *self.others)

    @property
    def row_count(self) -> int:
        """The rows of all journals; some of them may be in a newer version already."""
        return sum(part.batch.num_rows for one in self.sources for part in one.parts)


@dataclass(frozen=True, slots=True)
class FrozenParts:
    """What the next flush carries, and the mark it sets."""

    mark: Mark
    parts: tuple[HotPart, ...] = field(default_factory=tuple)
