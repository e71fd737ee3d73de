"""What every hot tier offers: rows in parts, each with the mark of the flush that takes it.

In:   nothing; a tier is asked
Out:  `HotSnapshot`, `Frozen`

- A mark is a number that goes up with every flush of one table from one source. A lake version
  carries the mark of the last flush it contains.
- A part is in the lake exactly when the version's mark has reached the part's. So a reader takes
  the snapshot first and the newest version after it, and leaves out the parts that have arrived:
  whatever flushes landed in between, each row is read once.
- No part straddles a mark: a flush takes whole parts.
- Parts are never changed. A snapshot costs a reference, whatever it holds.

A tier knows nothing of the lake, and the lake nothing of tiers: `flush.py` goes down, `snapshot.py`
goes up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from thermocline.format.action import Mark
from thermocline.format.instant import NS_PER_UNIT, TimeNs
from thermocline.format.layout import Version


@dataclass(frozen=True, slots=True)
class HotPart:
    """Rows of one schema that one flush will take, and the mark the lake has once it did.

    `requests` are those whose rows are among them, each with how many it has.
    """

    mark: Mark
    schema_id: int
    batch: pa.RecordBatch
    size_bytes: int
    requests: Mapping[str, int] = field(default_factory=dict)
    _bounds: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)

    def times_ns(self, column: str) -> tuple[int, int]:
        """Return the first and last time in a column that has no nulls; looked for once."""
        if column not in self._bounds:
            times = self.batch.column(column)
            found = pc.min_max(times.cast(pa.int64()))
            unit_ns = NS_PER_UNIT[times.type.unit]
            low, high = found["min"].as_py(), found["max"].as_py()
            self._bounds[column] = low * unit_ns, high * unit_ns
        return self._bounds[column]


@dataclass(frozen=True, slots=True)
class HotVersion:
    """The one version that a snapshot goes with, where rows are found by key and may change.

    `hidden` are rows of its segments that do not count any more: a deletion vector for each, the
    deleted ones included. All that was committed before `as_of` is in the two halves; `warning`
    says what is not, and is empty where nothing is missing.
    """

    version: Version
    as_of: TimeNs
    hidden: Mapping[str, str] = field(default_factory=dict)
    warning: str = ""


@dataclass(frozen=True, slots=True)
class HotSnapshot:
    """All hot rows of a table at one moment; `mark` is that of the last flush known to be done.

    Where rows change, it names its version in `pairing`, and marks say nothing.
    """

    source: str
    mark: Mark
    parts: tuple[HotPart, ...] = ()
    pairing: HotVersion | None = None


@dataclass(frozen=True, slots=True)
class Frozen:
    """What the next flush carries, and the mark it sets."""

    mark: Mark
    parts: tuple[HotPart, ...] = field(default_factory=tuple)


class HotTable(Protocol):
    """The hot rows of one table."""

    @property
    def source(self) -> str:
        """The name under which a version carries this tier's mark."""
        ...

    def snapshot(self) -> HotSnapshot:
        """Return every row acknowledged before this call that no retired flush has taken."""
        ...

    def freeze(self) -> Frozen | None:
        """Fix what the next flush carries, or None when there is nothing.

        Until `retire` the same mark is given each time, so that a flush can be repeated.
        """
        ...

    def retire(self, mark: Mark) -> None:
        """Forget the rows up to a mark: a committed version has them."""
        ...
