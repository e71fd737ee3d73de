"""Removes whole buckets from live segments.

In:   a state, and a function that chooses buckets from the coverage of a segment
Out:  the actions that remove exactly the rows of these buckets

- If nothing of a segment remains, the whole segment is removed, without opening its file.
- Otherwise the segment gets a sidecar equal to one measured from its remaining rows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from thermocline.cold.coverage import CoverageIndex
from thermocline.cold.segment.measure import encode_entities
from thermocline.cold.segment.parquet import decode_deletes, encode_deletes, read_rows
from thermocline.cold.segment.stage import Stage
from thermocline.cold.storage.storage import Storage
from thermocline.format.coverage import Buckets, Coverage, empty_coverage
from thermocline.format.index_column import index_numbers
from thermocline.format.log.action import Action, Segment, removal, with_deletes
from thermocline.format.log.conflict import TimeWindow
from thermocline.format.log.state import TableState

BucketChooser: TypeAlias = Callable[[Coverage], dict[str, Buckets]]
"""Returns the buckets to remove, by entity; without entity columns the key is empty."""


class BucketRemoval:
    """Plans the removal of buckets from the segments of a table."""

    def __init__(self, storage: Storage, index: CoverageIndex, stage: Stage) -> None:
        self._storage = storage
        self._index = index
        self._stage = stage

    def plan_actions(
        self, state: TableState, meant: BucketChooser, window: TimeWindow
    ) -> list[Action]:
        """Return the actions that remove the buckets from every segment that meets the window.

        When this returns, the sidecars of the remaining rows are staged.
        """
        found = []
        for segment in state.segments.overlapping(window.start, window.end):
            held = self._index.of_segment(state, segment)
            shared = meant(held)
            if shared:
                found.append(self._remove_from_segment(state, segment, held, shared))
        return found

    def _remove_from_segment(
        self, state: TableState, segment: Segment, held: Coverage, shared: dict[str, Buckets]
    ) -> Action:
        rest = held.subtract(_to_coverage(shared, state))
        if not rest.whole:
            return removal(segment)
        positions = self._find_positions(state, segment, shared)
        deletes = decode_deletes(segment.deletes) | BitMap(positions)
        path, checksum = self._stage.put_coverage(rest)
        return with_deletes(
            segment,
            deletes=encode_deletes(deletes),
            deleted_count=len(deletes),
            coverage_path=path,
            coverage_checksum=checksum,
        )

    def _find_positions(
        self, state: TableState, segment: Segment, shared: dict[str, Buckets]
    ) -> npt.NDArray[np.uint32]:
        names = [state.spec.time_column, *state.spec.entity_columns]
        found = [np.empty(0, dtype=np.uint32)]
        for rows in read_rows(self._storage, state, segment, names):
            values = index_numbers(rows.batch.column(state.spec.time_column))
            buckets = state.spec.bucket.numbers_of(*values)
            hit = np.zeros(len(buckets), dtype=bool)
            codes, keys = encode_entities(rows.batch, state.spec)
            for code, key in enumerate(keys):
                if key in shared:
                    mine = codes == code
                    hit[mine] = np.isin(buckets[mine], shared[key].numbers())
            found.append(rows.positions[hit].astype(np.uint32))
        return np.concatenate(found)


def _to_coverage(shared: dict[str, Buckets], state: TableState) -> Coverage:
    code = state.spec.bucket.code
    if not state.spec.entity_columns:
        return Coverage(code, shared[""], {})
    return replace(empty_coverage(code), entities=shared)
