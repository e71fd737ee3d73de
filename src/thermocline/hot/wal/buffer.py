"""The hot rows of one table in memory: immutable batches, merged when there are many.

In:   durable batches, in the order of their lsns
Out:  parts, shared by reference

- The parts are one immutable tuple that each write replaces: a snapshot is one reference.
- Sixteen parts of one size become one of the next, up to `MERGED_ROWS_MAX` rows: a thousand small
  writes become a few dozen parts, each row is copied a few times, large writes are never copied.
- Frozen parts are not merged with later ones: no part straddles a mark.

Only one thread writes at a time; snapshots need no lock.
"""

from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa

from thermocline.format.log.action import Mark
from thermocline.format.null_columns import unify_columns
from thermocline.hot.tier import FrozenParts, HotPart, HotSnapshot
from thermocline.hot.wal.frame import Lsn

FAN_IN = 16
MERGED_ROWS_MAX = 65_536


class TableBuffer:
    """The parts of one table that no retired flush has taken."""

    def __init__(self, source: str, mark: Mark) -> None:
        self._snapshot = HotSnapshot(source, mark)
        self._levels: list[int] = []
        self._frozen_count = 0

    @property
    def size_bytes(self) -> int:
        """The memory that all parts occupy."""
        return sum(part.size_bytes for part in self._snapshot.parts)

    def add(
        self,
        lsn: Lsn,
        schema_id: int,
        batch: pa.RecordBatch,
        size_bytes: int,
        requests: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Add durable rows; the next snapshot has them."""
        part = HotPart(Mark(lsn), schema_id, batch, size_bytes, requests)
        parts = [*self._snapshot.parts, part]
        self._levels.append(0)
        while self._has_run(parts):
            level = self._levels[-1] + 1
            parts[-FAN_IN:] = [_merge_parts(parts[-FAN_IN:])]
            self._levels[-FAN_IN:] = [level]
        self._replace_parts(self._snapshot.mark, parts)

    def _has_run(self, parts: list[HotPart]) -> bool:
        last = parts[-FAN_IN:]
        return (
            len(parts) - self._frozen_count >= FAN_IN
            and len(set(self._levels[-FAN_IN:])) == 1
            and len({part.schema_id for part in last}) == 1
            and sum(part.batch.num_rows for part in last) <= MERGED_ROWS_MAX
        )

    def snapshot(self) -> HotSnapshot:
        """Return the current rows."""
        return self._snapshot

    def freeze(self) -> FrozenParts | None:
        """Return what the next flush takes: what an unretired flush froze, else all parts."""
        parts = self._snapshot.parts
        if not self._frozen_count:
            self._frozen_count = len(parts)
        if not self._frozen_count:
            return None
        frozen = parts[: self._frozen_count]
        return FrozenParts(frozen[-1].mark, frozen)

    def retire(self, mark: Mark) -> int:
        """Drop the parts up to a mark; return the number of bytes freed."""
        gone = [part for part in self._snapshot.parts if part.mark <= mark]
        kept = [part for part in self._snapshot.parts if part.mark > mark]
        self._levels = self._levels[len(gone) :]
        self._frozen_count = max(0, self._frozen_count - len(gone))
        self._replace_parts(Mark(max(mark, self._snapshot.mark)), kept)
        return sum(part.size_bytes for part in gone)

    def _replace_parts(self, mark: Mark, parts: list[HotPart]) -> None:
        self._snapshot = HotSnapshot(self._snapshot.source, mark, tuple(parts))


def _merge_parts(parts: list[HotPart]) -> HotPart:
    batch = pa.concat_batches(unify_columns([part.batch for part in parts]))
    requests = {key: count for part in parts for key, count in part.requests.items()}
    size_bytes = batch.get_total_buffer_size()
    return HotPart(parts[-1].mark, parts[-1].schema_id, batch, size_bytes, requests)
