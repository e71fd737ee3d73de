"""Takes whole buckets out of live segments, whatever rows they have there.

In:   a state, and for the coverage of a segment which of its buckets are meant
Out:  the actions that take exactly the rows of these buckets out

- A segment that has nothing else goes as a whole, and its file is not opened.
- What is left of a segment keeps a sidecar that is the same as one measured from its rows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from thermocline.format.action import Action, Segment, removal, with_deletes
from thermocline.format.conflict import Window
from thermocline.format.coverage import Buckets, Coverage, empty
from thermocline.format.state import TableState
from thermocline.lake.coverage import CoverageIndex
from thermocline.lake.measure import row_entities
from thermocline.lake.segment import decode_deletes, encode_deletes, read_rows
from thermocline.lake.stage import Stage
from thermocline.lake.storage import Storage

Meant: TypeAlias = Callable[[Coverage], dict[str, Buckets]]
"""Which buckets of a coverage are meant, by entity; the key is empty where none are declared."""


class Hollowing:
    """Takes buckets out of the segments of a table."""

    def __init__(self, storage: Storage, index: CoverageIndex, stage: Stage) -> None:
        self._storage = storage
        self._index = index
        self._stage = stage

    def actions(self, state: TableState, meant: Meant, window: Window) -> list[Action]:
        """Return what takes the buckets out of every segment that meets the window.

        Sidecars of what is left are staged when this returns.
        """
        found = []
        for segment in state.segments.overlapping(window.start, window.end):
            held = self._index.of_segment(state, segment)
            shared = meant(held)
            if shared:
                found.append(self._without(state, segment, held, shared))
        return found

    def _without(
        self, state: TableState, segment: Segment, held: Coverage, shared: dict[str, Buckets]
    ) -> Action:
        rest = held.minus(_only(shared, state))
        if not rest.whole:
            return removal(segment)
        positions = self._positions(state, segment, shared)
        deletes = decode_deletes(segment.deletes) | BitMap(positions)
        path, checksum = self._stage.put_coverage(rest)
        return with_deletes(
            segment,
            deletes=encode_deletes(deletes),
            deleted_count=len(deletes),
            coverage_path=path,
            coverage_checksum=checksum,
        )

    def _positions(
        self, state: TableState, segment: Segment, shared: dict[str, Buckets]
    ) -> npt.NDArray[np.uint32]:
        names = [state.spec.time_column, *state.spec.entity_columns]
        found = [np.empty(0, dtype=np.uint32)]
        for rows in read_rows(self._storage, state, segment, names):
            times = rows.batch.column(state.spec.time_column)
            unit = times.type.unit
            buckets = state.spec.bucket.of_values(times.cast(pa.int64()).to_numpy(), unit)
            hit = np.zeros(len(buckets), dtype=bool)
            codes, keys = row_entities(rows.batch, state.spec)
            for code, key in enumerate(keys):
                if key in shared:
                    mine = codes == code
                    hit[mine] = np.isin(buckets[mine], shared[key].numbers())
            found.append(rows.positions[hit].astype(np.uint32))
        return np.concatenate(found)


def _only(shared: dict[str, Buckets], state: TableState) -> Coverage:
    width_s = state.spec.bucket.width_s
    if not state.spec.entity_columns:
        return Coverage(width_s, shared[""], {})
    return replace(empty(width_s), entities=shared)
