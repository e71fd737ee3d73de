"""Appends: plans the one commit that adds staged data to a table.

In:   staged segments, and the caller's options for overlap and new columns
Out:  a plan for the transaction

- The plan includes the overlap check, so the check runs again whenever another writer commits
  first.
- `replace` removes exactly the buckets (of the entities) that the new data holds, in the commit
  that adds the new data: repeating a run gives the same table.
- The first append gives the table its columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.cold.change.remove_buckets import BucketRemoval
from thermocline.cold.coverage import CoverageIndex
from thermocline.cold.log.transaction import CommitPlan
from thermocline.cold.segment.measure import (
    check_entity_count,
    encode_entities,
    entity_type_error,
    list_cells,
)
from thermocline.cold.segment.stage import Stage, StagedSegment, check_writable
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Conflict, CoverageOverlapError, Invalid
from thermocline.format.argument import check_flag
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import Buckets, Coverage, empty_coverage, entity_values
from thermocline.format.log.action import (
    OVERLAP_POLICIES,
    Action,
    AddSegment,
    Segment,
    SetTable,
    SetTxn,
    TableSpec,
    require_types,
)
from thermocline.format.log.commit_note import NoteRequests
from thermocline.format.log.conflict import TimeWindow
from thermocline.format.log.state import TableState
from thermocline.format.schema import ColumnFit, Schema, create_schema, fit_columns
from thermocline.format.writer_settings import WriterSettings, parse_writer

BUCKETS_NAMED_MAX = 5
DUPLICATE_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class AppendOptions:
    """The options of an append."""

    overlap: str | None = None
    evolve: bool = False
    txn: tuple[str, int] | None = None
    requests: Mapping[str, int] = field(default_factory=dict)
    writer: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.overlap is not None:
            check_policy(self.overlap)
        if self.txn is not None:
            _check_txn(self.txn)
        check_flag(self.evolve, "evolve")
        parse_writer(self.writer)


class AppendReport(int):
    """The version after an append, and what the append wrote: an int with attributes."""

    starting_version: int
    segment_paths: tuple[str, ...]
    row_count: int
    row_group_count: int
    file_size_bytes: int
    compression: str
    max_rows_per_row_group: int
    max_bytes_per_row_group: int

    @property
    def committed_version(self) -> int:
        """The version that has the rows."""
        return int(self)

    @property
    def segment_path(self) -> str:
        """The path of the first segment, relative to the table; empty if no row was appended."""
        return self.segment_paths[0] if self.segment_paths else ""

    def __repr__(self) -> str:
        return f"AppendReport(version={int(self)}, rows={self.row_count:,})"

    __str__ = int.__repr__

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a report is not writable: {name}")


def report_append(version: int, stage: Stage, writer: WriterSettings) -> AppendReport:
    """Return what a finished append wrote; nothing if the table had the rows already."""
    staged = stage.staged if stage.is_committed else []
    report = AppendReport(version)
    vars(report).update(
        starting_version=version - stage.is_committed,
        segment_paths=tuple(one.path for one in staged),
        row_count=sum(one.measured.row_count for one in staged),
        row_group_count=sum(one.groups for one in staged),
        file_size_bytes=sum(one.checksum.size_bytes for one in staged),
        compression=writer.compression,
        max_rows_per_row_group=writer.rows_per_group,
        max_bytes_per_row_group=writer.bytes_per_group,
    )
    return report


def check_policy(policy: str) -> str:
    """Return the policy if it is one; `Invalid` otherwise."""
    if not isinstance(policy, str) or policy not in OVERLAP_POLICIES:
        raise Invalid(
            "unknown overlap policy", hint=f"use one of {', '.join(OVERLAP_POLICIES)}", got=policy
        )
    return policy


def _check_txn(txn: Any) -> None:
    match txn:
        case (str(application), int(sequence)) if application and sequence >= 0:
            return
    raise Invalid(
        "txn must be a writer's name and a number",
        hint="pass a name and a number that increases from 0, such as ('nightly', 7)",
        got=txn,
    )


@dataclass(frozen=True, slots=True)
class AppendColumns:
    """The table's columns after an append, and whether that changes the table."""

    spec: TableSpec
    schema_id: int
    schema: Schema
    is_new: bool


class AppendPlanner:
    """Plans the append of staged data onto whatever state the table has."""

    def __init__(
        self, storage: Storage, index: CoverageIndex, stage: Stage, options: AppendOptions
    ) -> None:
        self._storage = storage
        self._index = index
        self._stage = stage
        self._options = options

    def plan(self, state: TableState) -> CommitPlan | None:
        """Return the commit that appends the staged data; None when the table has it already."""
        options = self._options
        if options.txn and state.txns.get(options.txn[0], -1) >= options.txn[1]:
            return None
        if options.requests and options.requests.keys() <= state.requests.keys():
            return None
        columns = plan_columns(state, self._list_schemas(state), evolve=options.evolve)
        actions: list[Action] = []
        if columns.is_new:
            check_writable(columns.schema)
            actions.append(SetTable(columns.spec, columns.schema_id, columns.schema))
        segments = [fit_segment(one, columns, self._index) for one in self._stage.staged]
        policy = options.overlap or state.spec.overlap
        coverage = self._unite_staged(state)
        self._check_entities(state, coverage)
        removed = self._resolve_overlap(state, policy, coverage)
        actions += [*removed, *(AddSegment(segment) for segment in segments)]
        if options.txn:
            actions.append(SetTxn(*options.txn))
        if options.requests:
            actions.append(NoteRequests(options.requests))
        if not actions:
            return None
        looked_at = () if policy == "allow" else _list_windows(state.spec.bucket, segments)
        rows = sum(segment.row_count for segment in segments)
        metrics = {"segments": len(segments), "rows": rows, "replaced": len(removed)}
        return CommitPlan("append", tuple(actions), looked_at, metrics)

    def _resolve_overlap(
        self, state: TableState, policy: str, coverage: Coverage
    ) -> Sequence[Action]:
        """Return the actions that make room for the new rows; raise if there is none."""
        if state.spec.is_unique:
            self._check_unique(state, coverage)
            if policy == "allow":
                raise unique_policy_error()
        if policy != "allow":
            self._check_files_apart(state)
        if policy == "reject":
            self._check_overlap(state, coverage)
        return self._replace_buckets(state, coverage) if policy == "replace" else ()

    def _check_unique(self, state: TableState, coverage: Coverage) -> None:
        """Raise `Invalid` that names the first bucket with two of the new rows."""
        staged = self._stage.staged
        try:
            check_unique(state, coverage, sum(one.measured.row_count for one in staged))
        except Invalid as error:
            error.facts |= self._find_duplicate(state)
            raise

    def _find_duplicate(self, state: TableState) -> dict[str, Any]:
        """Return the interval, and entity, of the first new row that is not alone in its bucket."""
        spec, seen = state.spec, set[tuple[str, int]]()
        columns = [spec.time_column, *spec.entity_columns]
        for staged in self._stage.staged:
            with pq.ParquetFile(self._storage.open_input(staged.path)) as file:
                for batch in file.iter_batches(DUPLICATE_ROWS_AT_ONCE, columns=columns):
                    for key, number in list_cells(batch, spec):
                        if (key, number) in seen:
                            interval = _interval_text(spec.bucket, number)
                            return {"interval": interval, **_entity_fact(spec, key)}
                        seen.add((key, number))
        return {}

    def _unite_staged(self, state: TableState) -> Coverage:
        total = empty_coverage(state.spec.bucket.code)
        for staged in self._stage.staged:
            total = total.union(staged.measured.coverage)
        return total

    def _check_entities(self, state: TableState, new: Coverage) -> None:
        if not state.spec.entity_columns:
            return
        known = self._index.at(state).entities.keys()
        count = len(known) + sum(key not in known for key in new.entities)
        check_entity_count(count, state.spec)

    def _list_schemas(self, state: TableState) -> list[pa.Schema]:
        """Return the schemas of the staged data, or, without rows, those that add first columns."""
        if self._stage.staged:
            return [staged.arrow for staged in self._stage.staged]
        return [schema for schema in self._stage.schemas if brings_columns(schema, state)]

    def _find_overlap(self, state: TableState, new: Coverage) -> dict[str, Buckets]:
        has_entities = bool(state.spec.entity_columns)
        return self._index.at(state).overlap(new, has_entities=has_entities)

    def _check_files_apart(self, state: TableState) -> None:
        """Raise when two files of one call hold rows of the same bucket.

        In two calls, the second file would be rejected or would replace the first. Within one call
        the files have no order that could decide.
        """
        total = empty_coverage(state.spec.bucket.code)
        has_entities = bool(state.spec.entity_columns)
        for source, parts in self._stage.files:
            here = empty_coverage(state.spec.bucket.code)
            for staged in parts:
                here = here.union(staged.measured.coverage)
            found = total.overlap(here, has_entities=has_entities)
            if found:
                files = [
                    name
                    for name, others in self._stage.files
                    if any(
                        one.measured.coverage.overlap(here, has_entities=has_entities)
                        for one in others
                    )
                ]
                raise overlap_error(state, found, files or [source])
            total = total.union(here)

    def _check_overlap(self, state: TableState, new: Coverage) -> None:
        found = self._find_overlap(state, new)
        if found:
            raise overlap_error(state, found)

    def _replace_buckets(self, state: TableState, new: Coverage) -> list[Action]:
        if not self._find_overlap(state, new):
            return []
        bucket, has_entities = state.spec.bucket, bool(state.spec.entity_columns)
        window = TimeWindow(bucket.start(new.whole.first()), bucket.start(new.whole.last() + 1))
        removal = BucketRemoval(self._storage, self._index, self._stage)
        return removal.plan_actions(
            state, lambda held: held.overlap(new, has_entities=has_entities), window
        )


def check_unique(state: TableState, coverage: Coverage, rows: int) -> None:
    """Raise `Invalid` if rows with this coverage have two in one bucket of one entity."""
    parts = coverage.entities.values() if state.spec.entity_columns else [coverage.whole]
    buckets = sum(len(held) for held in parts)
    if rows != buckets:
        raise Invalid(
            "two rows of one entity are in the same bucket, and the table keeps one",
            hint="append one row for each entity and bucket",
            bucket=str(state.spec.bucket),
            rows=rows,
            buckets=buckets,
        )


def unique_policy_error() -> Invalid:
    """Return the error for a table that keeps one row a bucket and would allow a second."""
    return Invalid(
        "a unique table does not allow overlapping appends",
        hint="use overlap='reject' or 'replace', or upsert the rows",
    )


def plan_columns(
    state: TableState, incoming: Sequence[pa.Schema], *, evolve: bool
) -> AppendColumns:
    """Return the columns after data of these schemas is added; `Invalid` where it does not fit."""
    schema, spec, is_new = state.schema, state.spec, False
    for arrow in incoming:
        if schema.columns and schema.matches_arrow(arrow):
            continue
        missing = [name for name in spec.entity_columns if name not in arrow.names]
        if missing:
            raise Invalid(
                "the data lacks columns that the table needs",
                hint="append data with the table's time and entity columns",
                missing=missing,
                columns=arrow.names,
            )
        if not schema.columns:
            schema, is_new = create_columns(arrow, spec), True
            continue
        found = fit_columns(arrow, schema, spec.time_column)
        if (found.unknown or found.wider) and not evolve:
            raise _evolve_error(found, schema)
        if found.unknown:
            schema, is_new = schema.add_columns(found.unknown), True
        for wider in found.wider:
            schema, is_new = schema.widen_column(wider.name, wider.type), True
            check_entities(schema, spec)
    return AppendColumns(require_types(spec, schema), state.schema_id + is_new, schema, is_new)


def fit_segment(staged: StagedSegment, columns: AppendColumns, index: CoverageIndex) -> Segment:
    """Return a staged segment as a commit describes it; `Conflict` if its columns fit no more."""
    found = fit_columns(staged.arrow, columns.schema, columns.spec.time_column)
    if found.must_rewrite or found.unknown or found.wider:
        raise Conflict(
            "the table's columns changed while the data was being written",
            hint="write it again",
            column_names=[f.name for f in (*found.unknown, *found.wider)],
        )
    segment = staged.segment(columns.schema_id, columns.schema, found, columns.spec)
    index.remember(segment, staged.measured.coverage)
    return segment


def brings_columns(arrow: pa.Schema, state: TableState) -> bool:
    """Tell whether data without rows gives a table its first columns.

    Only if every column has a type: a column of type null does not tell the type of later values.
    """
    needed = {state.spec.time_column, *state.spec.entity_columns}
    is_typed = not any(pa.types.is_null(field.type) for field in arrow)
    return is_typed and not state.schema.columns and needed <= set(arrow.names)


def check_entities(schema: Schema, spec: TableSpec) -> None:
    """Raise unless every entity column exists and has a type that can identify an entity."""
    if not schema.columns:
        return
    for name in spec.entity_columns:
        schema.column(name)
    try:
        # Not `empty_table`, which imports pandas if it is installed: 0.3 s at the first append.
        nothing = [pa.nulls(0, schema.column(name).type) for name in spec.entity_columns]
        encode_entities(pa.RecordBatch.from_arrays(nothing, list(spec.entity_columns)), spec)
    except pa.ArrowException as error:
        columns = list(spec.entity_columns)
        raise entity_type_error(entity_columns=columns, why=str(error)) from error


def apply_zone(arrow: pa.Schema, spec: TableSpec) -> pa.Schema:
    """Return the schema with its time column as stored: in UTC when the table declares a zone."""
    place = arrow.get_field_index(spec.time_column)
    if spec.timezone is None or place < 0 or not pa.types.is_timestamp(arrow.field(place).type):
        return arrow
    kind = pa.timestamp(arrow.field(place).type.unit, tz="UTC")
    return arrow.set(place, arrow.field(place).with_type(kind))


def create_columns(arrow: pa.Schema, spec: TableSpec) -> Schema:
    """Return the first columns of a table; `Invalid` if one cannot have its role."""
    schema = create_schema(apply_zone(arrow, spec), spec.time_column, spec.bucket.index_type)
    check_entities(schema, spec)
    return schema


def _evolve_error(found: ColumnFit, schema: Schema) -> Invalid:
    fields = [*found.unknown, *found.wider]
    return Invalid(
        "the data has columns, or wider types, that the table does not have",
        hint="append with evolve=True (--evolve) to add or widen them, or drop them first",
        columns=[f"{field.name}: {field.type}" for field in fields],
        table_columns=list(schema.by_name)[:20],
    )


def _list_windows(bucket: Bucket, segments: Sequence[Segment]) -> tuple[TimeWindow, ...]:
    return tuple(
        TimeWindow(
            bucket.start(bucket.number_of(s.ts_min)), bucket.start(bucket.number_of(s.ts_max) + 1)
        )
        for s in segments
    )


def _interval_text(bucket: Bucket, number: int) -> str:
    """Return a bucket as an interval: half-open, or up to the last value of an integer's type."""
    low, high = bucket.start(number), bucket.start(number + 1)
    if bucket.is_time:
        return f"[{bucket.format_position(low)}, {bucket.format_position(high)})"
    least, greatest = bucket.domain
    end = f"{greatest}]" if high > greatest else f"{high})"
    return f"[{max(low, least)}, {end}"


def _entity_fact(spec: TableSpec, key: str) -> dict[str, Any]:
    """Return the entity of a key as a fact; nothing for a table without entity columns."""
    if not key:
        return {}
    return {"entity": dict(zip(spec.entity_columns, entity_values(key), strict=True))}


def overlap_error(
    state: TableState, found: dict[str, Buckets], files: Sequence[str] = ()
) -> CoverageOverlapError:
    """Return the error that names the buckets, and entities, that the table already holds.

    `files` are the files of one call that hold the same buckets.
    """
    bucket = state.spec.bucket
    key, buckets = next(iter(sorted(found.items())))
    first = buckets.numbers()[:BUCKETS_NAMED_MAX].tolist()
    facts: dict[str, Any] = {
        "buckets": [bucket.format_position(bucket.start(number)) for number in first],
        "bucket": str(bucket),
        "interval": _interval_text(bucket, int(first[0])),
        "overlapping": sum(len(held) for held in found.values()),
    }
    if key:
        facts |= _entity_fact(state.spec, key)
        facts["entities_overlapping"] = len(found)
    if files:
        return CoverageOverlapError(
            "files of one append hold rows in the same buckets",
            hint="append each file once, or all of them with overlap='allow'",
            files=list(files)[:BUCKETS_NAMED_MAX],
            **facts,
        )
    return CoverageOverlapError(
        "the table already holds rows in these buckets",
        hint="drop the overlapping rows, or append with overlap='replace' or overlap='allow'",
        **facts,
    )
