"""Replaces all rows of whole windows by others, in one commit.

In:   the windows, rows staged for them, and numbers that the writer stores with the commit
Out:  one version in which the windows hold the staged rows and nothing else

- With no staged rows, the windows become empty.
- The writer's numbers move in the same commit. A refill is computed from the numbers at its start:
  if another refill of the same writer commits first, this one is not committed.
- Rows that another writer adds to the windows meanwhile are replaced too: the plan is made again.
- A refill may also redefine the table: other columns, none of the earlier rows. Older versions stay
  as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from thermocline.cold.change.append import Columns, columns_after
from thermocline.cold.change.commit_staged import stage_of
from thermocline.cold.change.remove_buckets import Hollowing
from thermocline.cold.log.transaction import Plan
from thermocline.cold.segment.stage import Stage, Staged
from thermocline.cold.table import Table
from thermocline.errors import Conflict, Invalid
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import Buckets, Coverage
from thermocline.format.log.action import (
    Action,
    AddSegment,
    Segment,
    SetTable,
    SetTxn,
    TableSpec,
    removal,
)
from thermocline.format.log.conflict import EVERYTHING, Window
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema, adopt, fit

WINDOWS_TOLD_APART_MAX = 1_000
"""Past this many windows, a refill counts as having read everything from the first to the last."""


class Overtaken(Conflict):
    """Another refill of the same writer committed first; this one was not committed."""


@dataclass(frozen=True, slots=True)
class Refill:
    """What to replace, and the numbers to store with it.

    `windows` are buckets of the table: of all entities, or of the entities with the given keys;
    None means all rows. `remembered` are the writer's numbers after the commit, `seen` the state
    they were last read from. `anew` gives the table a new spec and new columns; then `windows` is
    None.
    """

    windows: Buckets | Mapping[str, Buckets] | None
    seen: TableState
    remembered: Mapping[str, int] = field(default_factory=dict)
    anew: tuple[TableSpec, pa.Schema] | None = None


def refill(table: Table, staged: Sequence[Staged], wish: Refill) -> TableState:
    """Commit the refill and return the state after it, also if an equal refill is there already.

    `Overtaken` when another refill of this writer committed first: nothing is changed, and the
    staged files are removed.
    """
    assert wish.anew is None or wish.windows is None
    stage = stage_of(table, staged)
    return table.landed(stage, _Refilling(table, stage, wish).plan)


def columns_anew(state: TableState, arrow: pa.Schema, time_column: str) -> Schema:
    """Return columns with new ids, which no column of the table has ever had."""
    fresh = adopt(arrow, time_column)
    shift = max(schema.next_id for schema in state.schemas.values()) - 1
    columns = tuple(replace(column, id=column.id + shift) for column in fresh.columns)
    return Schema(columns, fresh.next_id + shift)


class _Refilling:
    """Plans a refill onto any state of the table."""

    def __init__(self, table: Table, stage: Stage, wish: Refill) -> None:
        self._table = table
        self._stage = stage
        self._wish = wish

    def plan(self, state: TableState) -> Plan | None:
        wish = self._wish
        if self._is_there(state):
            return None
        columns = self._columns(state)
        taken = self._taken(state)
        segments = [self._segment(state, staged, columns) for staged in self._stage.staged]
        actions: list[Action] = []
        if columns.is_new:
            actions.append(SetTable(columns.spec, columns.schema_id, columns.schema))
        actions += [*taken, *(AddSegment(segment) for segment in segments)]
        actions += [SetTxn(name, number) for name, number in wish.remembered.items()]
        if not actions:
            return None
        rows = sum(segment.row_count for segment in segments)
        metrics = {"segments": len(segments), "rows": rows, "replaced": len(taken)}
        return Plan("refill", tuple(actions), self._looked_at(state.spec.bucket), metrics)

    def _is_there(self, state: TableState) -> bool:
        remembered, seen = self._wish.remembered, self._wish.seen
        if all(state.txns.get(name) == seen.txns.get(name) for name in remembered):
            return False
        if all(state.txns.get(name) == number for name, number in remembered.items()):
            return True
        raise Overtaken(
            "another refill was first",
            hint="begin again from the newest version",
            remembered=dict(remembered),
            found={name: state.txns.get(name) for name in remembered},
        )

    def _columns(self, state: TableState) -> Columns:
        if self._wish.anew is None:
            return columns_after(state, [s.arrow for s in self._stage.staged], evolve=True)
        spec, arrow = self._wish.anew
        schema = columns_anew(state, arrow, spec.time_column)
        return Columns(spec, max(state.schemas) + 1, schema, is_new=True)

    def _taken(self, state: TableState) -> list[Action]:
        windows = self._wish.windows
        if windows is None:
            return [removal(segment) for segment in state.segments]
        whole = _whole(windows)
        if not whole:
            return []
        has_entities = bool(state.spec.entity_columns)

        def meant(held: Coverage) -> dict[str, Buckets]:
            if not has_entities:
                both = {"": held.whole & whole}
            elif isinstance(windows, Buckets):
                both = {key: buckets & windows for key, buckets in held.entities.items()}
            else:
                both = {k: held.entities[k] & b for k, b in windows.items() if k in held.entities}
            return {key: buckets for key, buckets in both.items() if buckets}

        bucket = state.spec.bucket
        stretch = Window(bucket.start(whole.first()), bucket.start(whole.last() + 1))
        hollowing = Hollowing(self._table.storage, self._table.index, self._stage)
        return hollowing.actions(state, meant, stretch)

    def _segment(self, state: TableState, staged: Staged, columns: Columns) -> Segment:
        self._check_inside(state, staged.measured.coverage)
        found = fit(staged.arrow, columns.schema, columns.spec.time_column)
        if found.must_rewrite or found.unknown or found.wider:
            raise Conflict(
                "the table's columns changed during the refill",
                hint="begin again from the newest version",
                column_names=[f.name for f in (*found.unknown, *found.wider)],
            )
        segment = staged.segment(columns.schema_id, columns.schema, found, columns.spec)
        self._table.index.remember(segment, staged.measured.coverage)
        return segment

    def _check_inside(self, state: TableState, coverage: Coverage) -> None:
        windows = self._wish.windows
        if windows is None:
            return
        outside: Buckets | None = coverage.whole - _whole(windows)
        if not isinstance(windows, Buckets) and state.spec.entity_columns:
            held = coverage.entities.items()
            strays = (b - windows[k] if k in windows else b for k, b in held)
            outside = next((stray for stray in strays if stray), None)
        if outside:
            raise Invalid(
                "rows lie outside the windows to refill",
                hint="add their windows to the refill",
                bucket=outside.first(),
            )

    def _looked_at(self, bucket: Bucket) -> tuple[Window, ...]:
        if self._wish.windows is None:
            return (EVERYTHING,)
        runs = _whole(self._wish.windows).runs()
        if len(runs) > WINDOWS_TOLD_APART_MAX:
            return (Window(bucket.start(runs[0].first), bucket.start(runs[-1].end)),)
        return tuple(Window(bucket.start(run.first), bucket.start(run.end)) for run in runs)


def _whole(windows: Buckets | Mapping[str, Buckets]) -> Buckets:
    if isinstance(windows, Buckets):
        return windows
    whole = Buckets()
    for buckets in windows.values():
        whole |= buckets
    return whole
