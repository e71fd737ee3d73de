"""Exports changes from PostgreSQL to the lake, and pairs the two halves for a read.

In:   an `EntitySource` (PostgreSQL) and a `Table` (the lake)
Out:  a version that has every change of one snapshot; exact views

    1  freeze    one snapshot of PostgreSQL: the version p to build on, all changes, their keys
    2  stage     the rows of these keys in that snapshot, read here or by Spark's workers
    3  claim     PostgreSQL records the attempt before the lake
    4  commit    put-if-absent of version p + 1, with its change ids: this decides the export
    5  retire    PostgreSQL's head moves to p + 1, and exactly those changes are deleted
    R  roll forward, by any process: step 5 for every version after the head in the log

- A crash before 4 leaves files that no version names. After a crash between 4 and 5, the next
  process that rolls forward finishes the export. No step is ever undone.
- Invariant: in every snapshot of PostgreSQL, a key without a change has its last committed value in
  the lake at the head. So the lake at the head, without the dirty keys, plus the dirty rows, is the
  committed state: it needs no clock, and no writer waits.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime

import pyarrow as pa

from thermocline.cold.change.export_plan import (
    KEY_COLUMN,
    ExportBatch,
    KeyedSegment,
    find_flush_note,
    find_last_flush,
)
from thermocline.cold.entity_view import EntityView
from thermocline.cold.table import ColdTable
from thermocline.entity.columns import conform_rows, fit_state, fit_table, has_newer_contract
from thermocline.entity.model import ExportResult
from thermocline.errors import Conflict, Corruption, NotFound, ThermoclineError
from thermocline.format.instant import from_datetime
from thermocline.format.layout import Version
from thermocline.format.log.state import TableState
from thermocline.hot.postgres.export.dirty import DirtySnapshot, FrozenChanges, LakeHead
from thermocline.hot.postgres.export.source import EntitySource

EXPORT_TRIES_MAX = 16
VIEW_TRIES_MAX = 8


class RowStaging:
    """How an export reads the changed rows and stages them: here, with their changes."""

    def __init__(self, source: EntitySource) -> None:
        self._source = source

    def freeze(self) -> AbstractContextManager[FrozenChanges | None]:
        """Give the block the changes of one snapshot; None when nothing is dirty."""
        return nullcontext(self._source.freeze())

    def stage(self, frozen: FrozenChanges, state: TableState) -> pa.Table | Sequence[KeyedSegment]:
        """Return the rows of the changed keys, sorted by key, or staged segments of them."""
        return conform_rows(frozen.snapshot.rows, state.schema).sort_by(KEY_COLUMN)

    def discard(self) -> None:
        """Remove what was staged, because no commit will name it: here, nothing."""


def export(
    source: EntitySource,
    table: ColdTable,
    staging: RowStaging | None = None,
    *,
    tries_max: int = EXPORT_TRIES_MAX,
) -> ExportResult | None:
    """Export every change of one snapshot in one version; None when nothing is dirty.

    When this returns, the version is durable and PostgreSQL's head is at it. After an error the
    changes are still dirty, and possibly in a version too: the next export finds out. `Conflict`
    when other exports committed first in every try.
    """
    for _ in range(tries_max):
        roll_forward(source, table)
        try:
            exported = _commit_export(source, table, staging or RowStaging(source))
        except Conflict:
            continue  # another process exported first: take a new snapshot
        # Crash here: between commit and retire. The log says that it happened.
        if exported is not None:
            roll_forward(source, table)
        return exported
    raise Conflict(
        "other exports committed first in every try",
        hint="let fewer processes export this type",
        type=source.type_name,
        tries=tries_max,
    )


def _commit_export(
    source: EntitySource, table: ColdTable, staging: RowStaging
) -> ExportResult | None:
    """Steps 1 to 4."""
    try:
        with staging.freeze() as frozen:
            if frozen is None:
                return None
            snapshot = frozen.snapshot
            # A commit of columns only does not change rows: the export may follow it like the head.
            state = fit_table(table, snapshot.layout.contract)
            if has_newer_contract(state.spec, snapshot.layout.contract):
                hint = "begin again from a new snapshot"
                raise Conflict("the type has a newer contract", hint=hint, type=source.type_name)
            rows = staging.stage(frozen, state)
        note = source.claim(frozen)
    except BaseException:
        with suppress(ThermoclineError):
            staging.discard()
        raise
    batch = ExportBatch(snapshot.head.version, snapshot.keys, rows, note, state)
    version = table.commit_export(batch).version
    counts = (len(snapshot.keys), batch.row_count, len(frozen.changes))
    return ExportResult(version, snapshot.taken_at, *counts)


def roll_forward(source: EntitySource, table: ColdTable) -> Version:
    """Step R: move PostgreSQL's head to the end of the log; return that version.

    Any process may call it at any time, also repeatedly. `Corruption` when one half was restored
    from a copy that is older than the other half.
    """
    # Order matters: the log first. PostgreSQL records an attempt before it is in the log.
    newest = table.state().version
    head = source.head()
    if head.version > newest:
        newest = table.state().version  # another process exported between the two reads
    check_lake(head, newest, table)
    if head.version < newest:
        # Make the version durable first: PostgreSQL deletes the changes that it contains.
        table.log.sync_commit(newest)
    for version in range(head.version + 1, newest + 1):
        source.retire(Version(version), find_flush_note(table.log.commit(version)))
    return newest


def check_lake(head: LakeHead, newest: Version, table: ColdTable) -> None:
    """Raise `Corruption` when PostgreSQL's exports went to another lake or another history."""
    if newest < head.version:
        raise Corruption(
            "the lake is older than PostgreSQL: it was restored from a copy made before an export",
            hint="restore a newer copy of the table's folder",
            head=head.version,
            newest=newest,
        )
    if head.version == 0 or head.as_of is None:
        return
    note = find_last_flush(table.log, head.version)
    if note is None or note.source != head.store_id or note.as_of != from_datetime(head.as_of):
        raise Corruption(
            "the lake has another history than PostgreSQL exported",
            hint="open the lake that this PostgreSQL goes with, or restore it",
            head=head.version,
            expected=head.as_of.isoformat(),
            store=head.store_id,
        )


class ViewBuilder:
    """Pairs PostgreSQL snapshots with their lake versions, and checks each version once."""

    def __init__(self, source: EntitySource, table: ColdTable) -> None:
        self._source = source
        self._table = table
        self._checked: tuple[Version, datetime | None] | None = None
        self._known_up_to = Version(0)
        self._last: tuple[TableState, DirtySnapshot, EntityView] | None = None

    def view(self) -> EntityView:
        """Return the committed state: the lake at the head, the keys it hides, the hot rows.

        While nothing changes, views share everything but their time.
        """
        for _ in range(VIEW_TRIES_MAX):
            snapshot = self._source.snapshot()
            state = self._state(snapshot.head)
            if state is not None:
                return self._build_or_reuse(state, snapshot)
            roll_forward(self._source, self._table)
        raise Conflict(
            "the lake's versions expire faster than they are read",
            hint="keep versions for longer",
            type=self._source.type_name,
        )

    def _build_or_reuse(self, state: TableState, snapshot: DirtySnapshot) -> EntityView:
        last = self._last
        if last is not None and last[0] is state and last[1].layout is snapshot.layout:
            _, before, view = last
            if before.rows is snapshot.rows and before.keys is snapshot.keys:
                return replace(view, as_of=from_datetime(snapshot.taken_at))
            made = build_view(state, snapshot)
            # The same state object as before, so that caches by identity hold.
            made = replace(made, state=view.state)
        else:
            made = build_view(state, snapshot)
        self._last = (state, snapshot, made)
        return made

    def state(self, head: LakeHead) -> TableState:
        """Return the state that a head goes with; `NotFound` when it has expired."""
        state = self._state(head)
        if state is None:
            raise NotFound("this version has expired", hint="try again", version=head.version)
        return state

    def _state(self, head: LakeHead) -> TableState | None:
        newest = self._table.state().version
        if self._checked != (head.version, head.as_of):
            check_lake(head, newest, self._table)
            self._checked = (head.version, head.as_of)
        self._check_ahead(head, newest)
        if head.version == 0:
            return None
        try:
            return self._table.state(int(head.version))
        except NotFound:
            return None  # vacuumed before PostgreSQL followed: the next version has its rows

    def _check_ahead(self, head: LakeHead, newest: Version) -> None:
        """Raise `Corruption` when a commit ahead of the head is unknown to this PostgreSQL."""
        first = max(head.version, self._known_up_to) + 1
        for version in range(first, newest + 1):
            note = find_flush_note(self._table.log.commit(version))
            if note is not None and note.changes:
                self._source.check_commit_known(Version(version), note)
        self._known_up_to = max(newest, self._known_up_to)


def build_view(state: TableState, snapshot: DirtySnapshot) -> EntityView:
    """Return the view of a snapshot and the lake state of its head."""
    fit = fit_state(state, snapshot.layout.contract)
    rows = conform_rows(snapshot.rows, fit.schema)
    return EntityView(fit, snapshot.keys, rows, from_datetime(snapshot.taken_at))


def cold_view(table: ColdTable, state: TableState, why: str) -> EntityView:
    """Return a view of only the lake at a version: exact as of its export, with the warning."""
    note = find_last_flush(table.log, state.version)
    as_of = state.time if note is None else note.as_of
    rows = pa.table([pa.nulls(0, c.type) for c in state.schema.columns], schema=state.schema.arrow)
    return EntityView(state, pa.array([], pa.string()), rows, as_of, why)
