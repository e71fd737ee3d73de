"""The history of one entity: its revision in each lake commit that changed it, and the hot one.

In:   a key, the lake's log, PostgreSQL's state of the key
Out:  `EntityRevision`s, oldest first

- An export carries only the newest version of a key: versions that were replaced between two
  exports have no revision.
- Commits that only rewrite segments move a row without changing it: they add no revision.
- Lake versions that a vacuum expired are missing; the first revision is then the entity in the
  oldest kept version.
"""

from collections.abc import Sequence
from datetime import datetime

import pyarrow as pa

from thermocline.cold.care.pin import pin_version
from thermocline.cold.change.export_plan import KeyHits, find_keys
from thermocline.cold.entity_view import read_hits
from thermocline.cold.segment.parquet import decode_deletes
from thermocline.cold.table import ColdTable
from thermocline.entity.columns import fit_state
from thermocline.entity.model import EntityRevision
from thermocline.format.instant import to_datetime
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    AddSegment,
    RemoveSegment,
    Segment,
    SetDeletes,
)
from thermocline.format.log.commit import Commit
from thermocline.format.log.state import TableState
from thermocline.hot.postgres.export.arrow_rows import entity_of
from thermocline.hot.postgres.export.dirty import KeyLookup
from thermocline.hot.postgres.schema.layout import Layout
from thermocline.hot.postgres.store.operation import StoredEntity


def find_entities(
    table: ColdTable, state: TableState, layout: Layout, keys: Sequence[str]
) -> dict[str, StoredEntity]:
    """Return those entities of these keys that a lake version has."""
    fit = fit_state(state, layout.contract)
    wanted = pa.array(sorted(set(keys)), pa.string())
    made: dict[str, StoredEntity] = {}
    for hits in find_keys(table.storage, fit, wanted):
        if len(hits.positions):
            for row in read_hits(table.storage, fit, hits).to_pylist():
                made[row["_id"]] = entity_of(layout, row)
    return made


def history(table: ColdTable, found: KeyLookup, key: str) -> list[EntityRevision]:
    """Return a key's revisions in the lake up to the head, and its hot revision."""
    newest = table.state(int(found.head.version)) if found.head.version else None
    made = [] if newest is None else _cold_history(table, newest, found.layout, key)
    if found.is_dirty:
        entity = found.entity
        if entity is not None:
            made.append(EntityRevision(entity.ver, entity.document, entity.written_at))
        elif made and made[-1].document is not None:
            made.append(EntityRevision(None, None, found.taken_at))
    return made


def _cold_history(
    table: ColdTable, newest: TableState, layout: Layout, key: str
) -> list[EntityRevision]:
    walk = _KeyWalk(table, fit_state(newest, layout.contract), layout, key)
    # The newest state says which versions are kept; it may be newer than the head.
    oldest = table.state(min(int(table.state().oldest), int(newest.version)))
    with pin_version(table, oldest.version):
        walk.begin(oldest)
        for version in range(oldest.version + 1, newest.version + 1):
            walk.step(table.log.commit(version))
    return walk.revisions


class _KeyWalk:
    """Follows one key through the commits: the position and content of its live row."""

    def __init__(self, table: ColdTable, state: TableState, layout: Layout, key: str) -> None:
        self._storage = table.storage
        # The newest state has every schema of all segments.
        self._state = state
        self._layout = layout
        self._key = pa.array([key], pa.string())
        self._position: tuple[str, int] | None = None
        self.revisions: list[EntityRevision] = []

    def begin(self, oldest: TableState) -> None:
        self._find_in(list(oldest.segments), oldest.version, to_datetime(oldest.time))

    def step(self, commit: Commit) -> None:
        added = [action.segment for action in commit.actions if isinstance(action, AddSegment)]
        is_lost = any(self._loses(action) for action in commit.actions)
        if self._find_in(added, commit.version, to_datetime(commit.time)) or not is_lost:
            return
        self._position = None
        self.revisions.append(EntityRevision(None, None, to_datetime(commit.time), commit.version))

    def _loses(self, action: object) -> bool:
        if self._position is None:
            return False
        segment_id, position = self._position
        if isinstance(action, RemoveSegment):
            return action.segment_id == segment_id
        if isinstance(action, SetDeletes) and action.segment.segment_id == segment_id:
            return position in decode_deletes(action.segment.deletes)
        return False

    def _find_in(self, segments: Sequence[Segment], version: Version, at: datetime) -> bool:
        """Search the key in added segments; if found, store its new position and revision."""
        for hits in find_keys(self._storage, self._state, self._key, segments):
            if len(hits.positions):
                self._note_revision(hits, version, at)
                return True
        return False

    def _note_revision(self, hits: KeyHits, version: Version, at: datetime) -> None:
        self._position = (hits.segment.segment_id, int(hits.positions[0]))
        (row,) = read_hits(self._storage, self._state, hits).to_pylist()
        entity = entity_of(self._layout, row)
        last = self.revisions[-1] if self.revisions else None
        if last is None or last.ver != entity.ver:
            self.revisions.append(EntityRevision(entity.ver, entity.document, at, version))
