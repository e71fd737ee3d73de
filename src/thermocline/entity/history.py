"""The history of one entity: every recorded change, and before those what the exports carried.

In:   a key, its recorded changes, the lake's log, PostgreSQL's state of the key
Out:  `EntityRevision`s, oldest first; the revision of an instant; differences of two documents

- Every committed change is recorded with its write and kept for the type's retention.
- Before the first recorded change, the lake knows what each export carried: versions that were
  replaced between two exports have no revision there.
- Commits that only rewrite segments move a row without changing it: they add no revision.
- If the history does not reach back to an instant, the answer is an error, never "not there yet".
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

import pyarrow as pa

from thermocline.cold.care.pin import pin_version
from thermocline.cold.change.export_plan import KeyHits, find_keys
from thermocline.cold.entity_view import read_hits
from thermocline.cold.segment.parquet import decode_deletes
from thermocline.cold.table import ColdTable
from thermocline.entity.columns import fit_state
from thermocline.entity.model import EntityRevision, PropertyChange
from thermocline.errors import NotFound
from thermocline.format.argument import check_count
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
from thermocline.hot.postgres.revision.change import OPS
from thermocline.hot.postgres.revision.revisions import RevisionRow
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


def whole_history(
    table: ColdTable, found: KeyLookup, key: str, recorded: Sequence[RevisionRow]
) -> list[EntityRevision]:
    """Return a key's recorded changes, after what the exports before the first of them carried.

    Order matters: the recorded changes are read after `found`, so they have all that it has.
    """
    walked = history(table, found, key)
    if not recorded:
        return walked
    first = recorded[0].ver
    before = list(takewhile(lambda one: one.ver is None or one.ver < first, walked))
    if recorded[0].op == "d" and before and before[-1].document is None:
        before.pop()  # the export that carried this delete
    versions = {one.ver: one.version for one in walked if one.ver is not None}
    for one in walked:
        if one.ver is None and one.version is not None:
            deleted = [done.ver for done in recorded if done.op == "d" and done.at <= one.at]
            versions.update(dict.fromkeys(deleted[-1:], one.version))
    return before + [
        EntityRevision(
            one.ver,
            None if one.entity is None else one.entity.document,
            one.at,
            versions.get(one.ver),
            OPS[one.op],
            one.author,
            one.request_id,
        )
        for one in recorded
    ]


def revision_at(
    revisions: Sequence[EntityRevision], instant: datetime, floor: Callable[[], datetime | None]
) -> EntityRevision | None:
    """Return the revision that an entity had at an instant; None if it did not exist yet.

    `NotFound` if the history does not reach back so far. `floor` returns the time of the last
    change of the type that is no longer kept.
    """
    held = [one for one in revisions if one.at <= instant]
    if held:
        return held[-1]
    if revisions and (revisions[0].op, revisions[0].ver) == ("created", 1):
        return None
    begins = floor()
    is_whole = not revisions or revisions[0].op == "created"
    if is_whole and (begins is None or begins < instant):
        return None
    raise NotFound(
        "the history does not reach back to this instant",
        hint="ask for a later instant, or read the lake at a version",
        instant=instant.isoformat(),
        begins=None if not revisions else revisions[0].at.isoformat(),
    )


def differences(old: Any, new: Any, pointer: str = "") -> list[PropertyChange]:
    """Return the differences of two documents, by JSON pointer; a list is one value."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [PropertyChange(pointer, old, new)]
    made = []
    for name in dict.fromkeys([*old, *new]):
        place = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in new:
            made.append(PropertyChange(place, old[name], None, is_removed=True))
        elif name not in old:
            made.append(PropertyChange(place, None, new[name], is_added=True))
        else:
            made += differences(old[name], new[name], place)
    return made


def diff_revisions(
    revisions: Sequence[EntityRevision], key: str, old: int, new: int
) -> list[PropertyChange]:
    """Return the differences between two versions of an entity; a deleted one has no property."""
    old, new = check_count(old, "old", 1), check_count(new, "new", 1)
    by_ver = {one.ver: one.document or {} for one in revisions}
    missing = [ver for ver in (old, new) if ver not in by_ver]
    if missing:
        hint = "`history` lists the versions that are kept"
        raise NotFound("the history has no such version", hint=hint, id=key, versions=missing)
    return differences(by_ver[old], by_ver[new])


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
