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

from thermocline.cold.change.append import AppendColumns, fit_segment, plan_columns
from thermocline.cold.change.commit_staged import adopt_staged
from thermocline.cold.change.remove_buckets import BucketRemoval
from thermocline.cold.log.transaction import CommitPlan
from thermocline.cold.segment.stage import Stage, StagedSegment
from thermocline.cold.table import ColdTable
from thermocline.errors import Conflict, Invalid
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import Buckets, Coverage
from thermocline.format.log.action import (
    Action,
    AddSegment,
    SetTable,
    SetTxn,
    TableSpec,
    removal,
)
from thermocline.format.log.conflict import ALL_TIME, TimeWindow
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema, create_schema

WINDOWS_TOLD_APART_MAX = 1_000
"""Past this many windows, a refill counts as having read everything from the first to the last."""


class RefillOvertaken(Conflict):
    """Another refill of the same writer committed first; this one was not committed."""


@dataclass(frozen=True, slots=True)
class WindowReplacement:
    """What to replace, and the numbers to store with it.

    `windows` are buckets of the table: of all entities, or of the entities with the given keys;
    None means all rows. `remembered` are the writer's numbers after the commit, `seen` the state
    they were last read from. `definition` gives the table a new spec and new columns; then
    `windows` is None.
    """

    windows: Buckets | Mapping[str, Buckets] | None
    seen: TableState
    remembered: Mapping[str, int] = field(default_factory=dict)
    definition: tuple[TableSpec, pa.Schema] | None = None


def replace_windows(
    table: ColdTable, staged: Sequence[StagedSegment], replacement: WindowReplacement
) -> TableState:
    """Commit the refill and return the state after it, also if an equal refill is there already.

    `RefillOvertaken` when another refill of this writer committed first: nothing is changed, and
    the staged files are removed.
    """
    assert replacement.definition is None or replacement.windows is None
    stage = adopt_staged(table, staged)
    return table.run_transaction(stage, _ReplacementPlanner(table, stage, replacement).plan)


def create_fresh_columns(state: TableState, arrow: pa.Schema, spec: TableSpec) -> Schema:
    """Return columns with new ids, which no column of the table has ever had."""
    fresh = create_schema(arrow, spec.time_column, spec.bucket.index_type)
    shift = max(schema.next_id for schema in state.schemas.values()) - 1
    columns = tuple(replace(column, id=column.id + shift) for column in fresh.columns)
    return replace(fresh, columns=columns, next_id=fresh.next_id + shift)


class _ReplacementPlanner:
    """Plans a refill onto any state of the table."""

    def __init__(self, table: ColdTable, stage: Stage, replacement: WindowReplacement) -> None:
        self._table = table
        self._stage = stage
        self._replacement = replacement

    def plan(self, state: TableState) -> CommitPlan | None:
        replacement = self._replacement
        if self._is_committed(state):
            return None
        columns = self._plan_columns(state)
        taken = self._plan_removals(state)
        for one in self._stage.staged:
            self._check_inside(state, one.measured.coverage)
        segments = [fit_segment(one, columns, self._table.index) for one in self._stage.staged]
        actions: list[Action] = []
        if columns.is_new:
            actions.append(SetTable(columns.spec, columns.schema_id, columns.schema))
        actions += [*taken, *(AddSegment(segment) for segment in segments)]
        actions += [SetTxn(name, number) for name, number in replacement.remembered.items()]
        if not actions:
            return None
        rows = sum(segment.row_count for segment in segments)
        metrics = {"segments": len(segments), "rows": rows, "replaced": len(taken)}
        return CommitPlan(
            "refill", tuple(actions), self._list_windows_read(state.spec.bucket), metrics
        )

    def _is_committed(self, state: TableState) -> bool:
        remembered, seen = self._replacement.remembered, self._replacement.seen
        if all(state.txns.get(name) == seen.txns.get(name) for name in remembered):
            return False
        if all(state.txns.get(name) == number for name, number in remembered.items()):
            return True
        raise RefillOvertaken(
            "another refill committed first",
            hint="begin again from the newest version",
            remembered=dict(remembered),
            found={name: state.txns.get(name) for name in remembered},
        )

    def _plan_columns(self, state: TableState) -> AppendColumns:
        if self._replacement.definition is None:
            return plan_columns(state, [s.arrow for s in self._stage.staged], evolve=True)
        spec, arrow = self._replacement.definition
        schema = create_fresh_columns(state, arrow, spec)
        return AppendColumns(spec, max(state.schemas) + 1, schema, is_new=True)

    def _plan_removals(self, state: TableState) -> list[Action]:
        windows = self._replacement.windows
        if windows is None:
            return [removal(segment) for segment in state.segments]
        whole = _unite_windows(windows)
        if not whole:
            return []
        has_entities = bool(state.spec.entity_columns)

        def find_windows(held: Coverage) -> dict[str, Buckets]:
            if not has_entities:
                both = {"": held.whole & whole}
            elif isinstance(windows, Buckets):
                both = {key: buckets & windows for key, buckets in held.entities.items()}
            else:
                both = {k: held.entities[k] & b for k, b in windows.items() if k in held.entities}
            return {key: buckets for key, buckets in both.items() if buckets}

        bucket = state.spec.bucket
        stretch = TimeWindow(bucket.start(whole.first()), bucket.start(whole.last() + 1))
        buckets = BucketRemoval(self._table.storage, self._table.index, self._stage)
        return buckets.plan_actions(state, find_windows, stretch)

    def _check_inside(self, state: TableState, coverage: Coverage) -> None:
        windows = self._replacement.windows
        if windows is None:
            return
        outside: Buckets | None = coverage.whole - _unite_windows(windows)
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

    def _list_windows_read(self, bucket: Bucket) -> tuple[TimeWindow, ...]:
        if self._replacement.windows is None:
            return (ALL_TIME,)
        runs = _unite_windows(self._replacement.windows).runs()
        if len(runs) > WINDOWS_TOLD_APART_MAX:
            return (TimeWindow(bucket.start(runs[0].first), bucket.start(runs[-1].end)),)
        return tuple(TimeWindow(bucket.start(run.first), bucket.start(run.end)) for run in runs)


def _unite_windows(windows: Buckets | Mapping[str, Buckets]) -> Buckets:
    if isinstance(windows, Buckets):
        return windows
    whole = Buckets()
    for buckets in windows.values():
        whole |= buckets
    return whole
