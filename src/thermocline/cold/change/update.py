"""Updates: gives rows new values by their keys, and inserts rows whose key the table lacks.

In:   rows with the key of the table (its entity columns and its index) and new values
Out:  a plan for the transaction; a report of what was matched, inserted and left alone

- A row is replaced by hiding it with a deletion vector and adding its new form to a new segment,
  in one commit: no reader sees the row twice or not at all.
- Columns that the rows do not have keep their values. A null that the rows have is a new value.
- A matched row that already has the new values is left alone; an update that changes no row makes
  no commit, so a repeated update is a no-op.
- The plan records the stretch from the first to the last key. If another writer adds or removes
  rows there meanwhile, or compacts these segments, the rows are searched again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from thermocline.cold.change.append import check_unique, overlap_error
from thermocline.cold.change.delete import DeletePlanner, RowSearch
from thermocline.cold.coverage import CoverageIndex
from thermocline.cold.log.transaction import CommitPlan
from thermocline.cold.segment.measure import check_entity_count, encode_entities, measure
from thermocline.cold.segment.parquet import coerce_batch
from thermocline.cold.segment.row_digest import hash_rows
from thermocline.cold.segment.stage import Stage
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Conflict, Invalid, NotFound, Unsupported
from thermocline.format.argument import list_names
from thermocline.format.index_column import index_numbers
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    Action,
    AddSegment,
    RemoveSegment,
    Segment,
    SetDeletes,
    TableSpec,
)
from thermocline.format.log.conflict import TimeWindow
from thermocline.format.log.state import TableState
from thermocline.format.schema import ColumnFit, Schema, fit_columns

UPDATE_ROWS_MAX = 4_000_000
UNMATCHED, DUPLICATE, NULL = "unmatched_source_key", "duplicate_source_key", "null_identity"


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What an update did: `matched` rows of the table, of which `unchanged` were left alone."""

    starting_version: Version
    committed_version: Version
    matched: int
    inserted: int
    unchanged: int
    segments_rewritten: int = 0
    source_file_bytes: int = 0
    replacement_file_bytes: int = 0

    @property
    def rows_updated(self) -> int:
        """The rows that the keys matched, including those that had the values already."""
        return self.matched

    @property
    def no_op(self) -> bool:
        """Whether nothing was changed and no commit was made."""
        return self.committed_version == self.starting_version


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """Which columns are set, whether unknown keys are inserted, and the version it must follow."""

    columns: tuple[str, ...] | None = None
    inserts: bool = False
    expected_version: int | None = None


def key_columns(spec: TableSpec) -> tuple[str, ...]:
    """Return the columns that name a row: the entity columns and the index."""
    return (*spec.entity_columns, spec.time_column)


def check_key(key: object, wanted: Sequence[str]) -> None:
    """Raise `Invalid` unless a caller's key is that of the table, or None."""
    if key is not None and set(list_names(key, "key")) != set(wanted):
        raise Invalid(
            "the key of a table is its entity columns and its index",
            hint="omit key",
            key=list(list_names(key, "key")),
            key_columns=list(wanted),
        )


class UpdatePlanner:
    """Plans an update onto any state of the table."""

    def __init__(
        self,
        storage: Storage,
        index: CoverageIndex,
        stage: Stage,
        rows: pa.Table,
        options: UpdateOptions,
    ) -> None:
        self._storage = storage
        self._index = index
        self._stage = stage
        self._rows = rows
        self._options = options
        self.report = UpdateReport(Version(0), Version(0), 0, 0, 0)

    def plan(self, state: TableState) -> CommitPlan | None:
        """Return the commit that updates the rows; None when every row has its values already."""
        options = self._options
        check_version(state, options.expected_version)
        self._stage.staged.clear()
        self.report = UpdateReport(state.version, state.version, 0, 0, 0)
        if not self._rows.num_rows:
            _check_columns(self._rows.schema, state, options)
            return None
        source = _SourceRows(self._rows, state, options)
        replacing = _RowReplacement(source, state)
        search = RowSearch(replacing.match, state.schema.arrow.names, source.window)
        deleting = DeletePlanner(self._storage, self._stage, search, "update")
        found = deleting.plan(state, self._choose_segments(state, source))
        unmatched = np.flatnonzero(~source.is_matched)
        if len(unmatched) and not options.inserts:
            raise source.key_error(UNMATCHED, unmatched)
        inserted = source.new_rows(unmatched)
        self._check_inserted(state, inserted)
        changed = [*replacing.rows, *([inserted] if inserted.num_rows else [])]
        self.report = UpdateReport(
            state.version,
            Version(state.version + bool(changed)),
            replacing.matched,
            inserted.num_rows,
            replacing.matched - deleting.rows_deleted,
            0 if found is None else len(found.actions),
            0 if found is None else sum(map(_file_size, found.actions)),
        )
        if not changed:
            return None
        self._stage.write_batches(changed, state.schema, state.spec)
        added = tuple(AddSegment(self._segment(state, staged)) for staged in self._stage.staged)
        taken = () if found is None else found.actions
        metrics = {"rows": deleting.rows_deleted, "inserted": inserted.num_rows}
        verb = "upsert" if options.inserts else "update"
        return CommitPlan(verb, (*taken, *added), (source.window,), metrics)

    def _choose_segments(self, state: TableState, source: "_SourceRows") -> Sequence[Segment]:
        """Return the segments that hold a bucket of a key, by their coverage."""
        held = source.coverage
        has_entities = bool(state.spec.entity_columns)
        window = source.window
        return [
            segment
            for segment in state.segments.overlapping(window.start, window.end)
            if self._index.of_segment(state, segment).overlap(held, has_entities=has_entities)
        ]

    def _check_inserted(self, state: TableState, inserted: pa.RecordBatch) -> None:
        """Raise if the inserted rows break a limit of the table."""
        if not inserted.num_rows:
            return
        new, known = measure([inserted], state.spec), self._index.at(state)
        if state.spec.entity_columns:
            keys = new.coverage.entities
            count = len(known.entities) + sum(key not in known.entities for key in keys)
            check_entity_count(count, state.spec)
        if state.spec.is_unique:
            check_unique(state, new.coverage, new.row_count)
            has_entities = bool(state.spec.entity_columns)
            found = known.overlap(new.coverage, has_entities=has_entities)
            if found:
                raise overlap_error(state, found)

    def _segment(self, state: TableState, staged: Any) -> Segment:
        segment: Segment = staged.segment(state.schema_id, state.schema, ColumnFit(), state.spec)
        self._index.remember(segment, staged.measured.coverage)
        return segment


def check_version(state: TableState, expected: int | None) -> None:
    """Raise `Conflict` unless the table is at the version that the caller expects."""
    if expected is not None and expected != state.version:
        raise Conflict(
            "the table is not at the expected version",
            hint="read the table again, then decide",
            expected=expected,
            found=state.version,
        )


class _SourceRows:
    """The caller's rows, found by key; `is_matched` tells which keys the table has."""

    def __init__(self, rows: pa.Table, state: TableState, options: UpdateOptions) -> None:
        self.assigned = _check_columns(rows.schema, state, options)
        self._state = state
        names = [*key_columns(state.spec), *self.assigned]
        self._check_keys(rows)
        batches = rows.combine_chunks().to_batches()
        fitted = coerce_batch(batches[0].select(names), _only(state.schema, names), state.spec)
        self.rows = fitted
        self.coverage = measure([fitted], state.spec).coverage
        values, _ = index_numbers(fitted.column(state.spec.time_column))
        codes, self._keys = encode_entities(fitted, state.spec)
        self._code_of = {key: code for code, key in enumerate(self._keys)}
        self._distinct = np.unique(values)
        cells = self._cells(codes, values)[0]
        self._order = np.argsort(cells, kind="stable")
        self._sorted = cells[self._order]
        repeated = np.flatnonzero(np.diff(self._sorted) == 0)
        if len(repeated):
            raise self.key_error(DUPLICATE, self._order[repeated + 1])
        self.is_matched = np.zeros(len(cells), dtype=bool)
        bucket = state.spec.bucket
        low, high = bucket.bounds_of(*index_numbers(fitted.column(state.spec.time_column)))
        self.window = TimeWindow(low, high + 1)

    def _check_keys(self, rows: pa.Table) -> None:
        is_null = pc.is_null(rows.column(self._state.spec.time_column)).to_numpy()
        if is_null.any():
            places = np.flatnonzero(is_null)
            example = {name: rows.column(name)[int(places[0])].as_py() for name in self._names}
            raise _key_error(NULL, rows.num_rows, len(places), example)

    @property
    def _names(self) -> tuple[str, ...]:
        return key_columns(self._state.spec)

    def _cells(
        self, codes: npt.NDArray[np.int64], values: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return a number for each key, and whether the source has its index at all."""
        places = np.searchsorted(self._distinct, values)
        places[places == len(self._distinct)] = 0
        return codes * len(self._distinct) + places, self._distinct[places] == values

    def find(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return for each row of the table the source row with its key, or -1."""
        values, _ = index_numbers(batch.column(self._state.spec.time_column))
        codes, keys = encode_entities(batch, self._state.spec)
        mine = np.array([self._code_of.get(key, -1) for key in keys], dtype=np.int64)[codes]
        cells, is_known = self._cells(np.maximum(mine, 0), values)
        places = np.searchsorted(self._sorted, cells)
        places[places == len(self._sorted)] = 0
        hit = is_known & (mine >= 0) & (self._sorted[places] == cells)
        found = np.where(hit, self._order[places], -1)
        self.is_matched[found[hit]] = True
        return found

    def new_rows(self, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return source rows as rows of the table; columns that they lack are null."""
        chosen = self.rows.take(pa.array(places))
        return coerce_batch(chosen, self._state.schema, self._state.spec)

    def key_error(self, reason: str, places: npt.NDArray[np.int64]) -> Invalid:
        """Return the error for the keys of these source rows."""
        row = self.rows.slice(int(places[0]), 1)
        example = {name: row.column(name)[0].as_py() for name in self._names}
        return _key_error(reason, self.rows.num_rows, len(places), example)


class _RowReplacement:
    """Matches rows of the table with source rows; collects the new form of those that differ."""

    def __init__(self, source: _SourceRows, state: TableState) -> None:
        self._source = source
        self._arrow = state.schema.arrow
        self.rows: list[pa.RecordBatch] = []
        self.matched = 0

    def match(self, batch: pa.RecordBatch) -> pa.Array:
        """Return which rows of the table get another value; their new form is collected."""
        found = self._source.find(batch)
        places = np.flatnonzero(found >= 0)
        self.matched += len(places)
        is_changed = np.zeros(batch.num_rows, dtype=bool)
        if len(places):
            old = batch.take(pa.array(places))
            new = self._assign(old, self._source.rows.take(pa.array(found[places])))
            differs = _find_changes(old, new, self._source.assigned)
            is_changed[places[differs]] = True
            if differs.any():
                self.rows.append(new.filter(pa.array(differs)))
        return pa.array(is_changed)

    def _assign(self, old: pa.RecordBatch, values: pa.RecordBatch) -> pa.RecordBatch:
        assigned = set(self._source.assigned)
        arrays = [
            values.column(name) if name in assigned else old.column(name)
            for name in self._arrow.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _find_changes(
    old: pa.RecordBatch, new: pa.RecordBatch, names: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Return for each row whether one of the columns has another value, bit by bit."""
    one, other = old.select(list(names)), new.select(list(names))
    try:
        # The hash tells 0.0 from -0.0, and the comparison below rows of the same hash.
        differs = hash_rows(one) != hash_rows(other)
    except Unsupported:
        return np.ones(old.num_rows, dtype=bool)
    for before, after in zip(one.columns, other.columns, strict=True):
        try:
            same = pc.fill_null(pc.equal(before, after), fill_value=False)
            both_null = pc.and_(pc.is_null(before), pc.is_null(after))
            differs |= ~pc.or_(same, both_null).to_numpy(zero_copy_only=False)
        except pa.ArrowNotImplementedError:  # nested values, and dictionaries
            pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
            differs |= np.fromiter((a != b for a, b in pairs), dtype=bool, count=old.num_rows)
    return differs


def _check_columns(arrow: pa.Schema, state: TableState, options: UpdateOptions) -> tuple[str, ...]:
    """Return the columns that rows of this schema set; `Invalid` if one cannot be set."""
    spec, schema = state.spec, state.schema
    keys = key_columns(spec)
    if not schema.columns:
        raise Invalid("the table has no columns yet", hint="append its first rows")
    missing = [name for name in (*keys, *(options.columns or ())) if name not in arrow.names]
    unknown = [name for name in (options.columns or ()) if name not in schema.by_name]
    if unknown:
        raise NotFound("no such column", hint="name columns of the table", columns=unknown)
    if missing:
        raise Invalid(
            "the rows lack columns that the update needs",
            hint="give the entity columns, the index, and every column to set",
            missing=missing,
            columns=arrow.names,
        )
    found = fit_columns(arrow, schema, spec.time_column)
    if found.unknown or found.wider:
        raise Invalid(
            "the rows have columns, or wider types, that the table does not have",
            hint="drop them, or add or widen the columns first",
            columns=[f"{field.name}: {field.type}" for field in (*found.unknown, *found.wider)],
        )
    given = [name for name in arrow.names if name not in keys]
    assigned = tuple(given) if options.columns is None else options.columns
    extra = [name for name in given if name not in assigned]
    if extra:
        hint = "name them in columns, or drop them from the rows"
        raise Invalid("the rows have columns that are not to be set", hint=hint, columns=extra)
    if len(set(assigned)) != len(assigned) or set(assigned) & set(keys):
        raise Invalid(
            "a column is named twice, or is part of the key",
            hint="name columns other than the entity columns and the index, each once",
            columns=list(assigned),
        )
    if not assigned and not options.inserts:
        raise Invalid("no column is to be set", hint="give the rows a column besides their key")
    return assigned


def _file_size(action: Action) -> int:
    match action:
        case RemoveSegment():
            return action.file_size
        case SetDeletes(segment):
            return segment.file_size
    return 0


def _only(schema: Schema, names: Sequence[str]) -> Schema:
    return Schema(tuple(schema.column(name) for name in names), schema.next_id)


def _key_error(reason: str, rows: int, count: int, example: Mapping[str, Any]) -> Invalid:
    messages = {
        UNMATCHED: ("the table has no row with a key", "use upsert to insert such rows"),
        DUPLICATE: ("two rows have the same key", "give each key once"),
        NULL: ("a key has a null", "give every row its index"),
    }
    message, hint = messages[reason]
    return Invalid(
        message,
        hint=hint,
        reason=reason,
        input_rows_seen=rows,
        observed_violations=count,
        example_key=dict(example),
    )
