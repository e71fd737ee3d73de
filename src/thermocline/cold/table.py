"""A table of the cold tier: its log, its segments and its coverage behind one object.

In:   data to append, rows to delete, versions to read
Out:  new versions; states; rows of exactly one version

- When a call that changes the table returns a version, that version is durable and visible.
- When it raises any error but `OutcomeUnknown`, the table is unchanged, and the staged files are
  removed.
- Safe to use from many threads and processes at once; the log decides which writer was first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from thermocline.cold.change.append import (
    AppendOptions,
    AppendPlanner,
    AppendReport,
    check_entities,
    check_policy,
    plan_columns,
    report_append,
    unique_policy_error,
)
from thermocline.cold.change.delete import DeletePlanner, Matcher, RowSearch, search_expired
from thermocline.cold.change.export_plan import (
    ExportBatch,
    ExportPlanner,
    check_not_entities,
    moves_rows,
)
from thermocline.cold.change.flush_plan import FlushPlanner, contains_flush, stage_rows
from thermocline.cold.change.update import (
    UPDATE_ROWS_MAX,
    UpdateOptions,
    UpdatePlanner,
    UpdateReport,
)
from thermocline.cold.coverage import CoverageIndex
from thermocline.cold.log.commit_log import CHECKPOINT_EVERY, CommitLog
from thermocline.cold.log.transaction import CommitPlan, Planner, transact
from thermocline.cold.segment.parquet import filter_rows, match_window, read_rows
from thermocline.cold.segment.stage import (
    Stage,
    check_writable,
    new_id,
    open_parquet,
    read_parquet,
    read_row_stream,
)
from thermocline.cold.storage.storage import Storage
from thermocline.errors import Conflict, Invalid, OutcomeUnknown, ThermoclineError
from thermocline.format.argument import check_count, check_text, plain_scalar
from thermocline.format.coverage import Coverage
from thermocline.format.index_column import fits_index
from thermocline.format.instant import to_instant
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    UNIQUE_FEATURE,
    Action,
    AddSegment,
    Mark,
    SetTable,
    TableSpec,
    removal,
    require_types,
)
from thermocline.format.log.commit import Commit
from thermocline.format.log.commit_note import NoteFlush, NoteHole
from thermocline.format.log.conflict import ALL_TIME, TimeWindow
from thermocline.format.log.state import TableState
from thermocline.format.schema import (
    NO_COLUMNS,
    Schema,
    check_names,
    fit_columns,
    may_become_double,
)
from thermocline.format.tokens import COLUMNS_MAX, can_hold_tokens
from thermocline.format.writer_settings import parse_writer

FILES_PER_APPEND_MAX = 10_000


DOUBLE_EXACT_MAX = 2**53
"""Up to here a double holds every whole number."""


class ColdTable:
    """One table, on a file system or in an object store."""

    def __init__(
        self,
        storage: Storage,
        *,
        now_ns: Callable[[], int] | None = None,
        checkpoint_every: int = CHECKPOINT_EVERY,
        workers: int = 2,
    ) -> None:
        clock: dict[str, Any] = {} if now_ns is None else {"now_ns": now_ns}
        self.storage = storage
        self.log = CommitLog(storage, checkpoint_every=checkpoint_every, **clock)
        self.index = CoverageIndex(storage, self.log)
        self._workers = workers
        self.check_before_commit: Callable[[], None] = lambda: None
        """Called before every attempt to commit; if it raises, the commit is not made."""

    def create(self, spec: TableSpec, schema: Schema = NO_COLUMNS) -> TableState:
        """Create the table, with declared columns if any; `Conflict` when there is one already."""
        _check_spec(spec)
        if schema.columns:
            _check_new_schema(spec, schema)
            _check_token_types(spec, schema)
        if self.log.exists():
            raise self._exists_error()
        self.storage.probe()
        unique = (UNIQUE_FEATURE,) if spec.is_unique else ()
        features = dict.fromkeys((*spec.features, *spec.bucket.features, *unique))
        spec = require_types(replace(spec, table_id=new_id(), features=tuple(features)), schema)
        first = Commit(
            Version(1),
            Version(0),
            new_id(),
            self.log.now(),
            "create",
            (SetTable(spec, 0, schema),),
        )
        landed = self.log.try_commit(first)
        if landed is None:
            raise self._exists_error()
        return self.log.advance_head(None, landed)

    def _exists_error(self) -> Conflict:
        error = Conflict(
            "there is a table here already",
            hint="open it, or choose another folder",
            root=self.storage.root,
        )
        error.table_root = self.storage.root
        return error

    def state(self, at: object = None) -> TableState:
        """Return the newest state, or that of a version (int) or an instant (datetime, text)."""
        if at is None:
            return self.log.head()
        at = plain_scalar(at)
        if isinstance(at, int) and not isinstance(at, bool):
            return self.log.state(at)
        return self.log.state(self.log.version_at(to_instant(at)))

    def append_parquet(
        self, sources: Sequence[str], options: AppendOptions, *, link: bool = False
    ) -> TableState:
        """Append Parquet files in one commit, each byte for byte if its columns fit."""
        return self.append_files(sources, options, link=link)[0]

    def append_files(
        self, sources: Sequence[str], options: AppendOptions, *, link: bool = False
    ) -> tuple[TableState, AppendReport]:
        """Do what `append_parquet` does; return what was written, too."""
        if not sources or len(sources) > FILES_PER_APPEND_MAX:
            raise Invalid(
                "an append needs at least one file and at most the limit",
                hint="append in several steps",
                files=len(sources),
                files_max=FILES_PER_APPEND_MAX,
            )

        def fill(stage: Stage, state: TableState) -> None:
            for source in sources:
                before = len(stage.staged)
                self._stage_file(stage, state, source, options, link=link)
                stage.files.append((source, stage.staged[before:]))

        return self._append(fill, options)

    def _stage_file(
        self, stage: Stage, state: TableState, source: str, options: AppendOptions, *, link: bool
    ) -> None:
        with open_parquet(self.storage, source) as file:
            arrow = file.schema_arrow
            columns = plan_columns(state, [*stage.schemas, arrow], evolve=options.evolve)
            found = fit_columns(arrow, columns.schema, state.spec.time_column)
            in_zone = state.spec.timezone is None or arrow.field(state.spec.time_column).type.tz
            stage.schemas.append(arrow)
            if found.must_rewrite or not in_zone:
                spec = _writing_spec(state, options)
                stage.write_batches(read_parquet(file, source), columns.schema, spec)
                return
        stage.import_parquet(source, state.spec, link=link)

    def append(self, data: pa.RecordBatchReader, options: AppendOptions) -> TableState:
        """Append a stream of Arrow batches in one commit."""
        return self.append_stream(data, options)[0]

    def append_stream(
        self, data: pa.RecordBatchReader, options: AppendOptions
    ) -> tuple[TableState, AppendReport]:
        """Do what `append` does; return what was written, too."""
        return self.append_batches(data.schema, read_row_stream(data), options)

    def append_batches(
        self, arrow: pa.Schema, batches: Iterable[pa.RecordBatch], options: AppendOptions
    ) -> tuple[TableState, AppendReport]:
        """Append batches of these columns in one commit; an error of the batches appends none."""

        def fill(stage: Stage, state: TableState) -> None:
            columns = plan_columns(state, [arrow], evolve=options.evolve)
            stage.schemas.append(arrow)
            stage.write_batches(batches, columns.schema, _writing_spec(state, options))

        return self._append(fill, options)

    def _append(
        self, fill: Callable[[Stage, TableState], None], options: AppendOptions
    ) -> tuple[TableState, AppendReport]:
        state = self.log.head()
        stage = Stage(self.storage, workers=self._workers)
        writer = _writing_spec(state, options).writer
        if not (options.txn and state.txns.get(options.txn[0], -1) >= options.txn[1]):
            appending = AppendPlanner(self.storage, self.index, stage, options)
            begun = state
            state = self.run_transaction(stage, appending.plan, before=lambda: fill(stage, begun))
        return state, report_append(state.version, stage, writer)

    def adopt_columns(self, arrow: pa.Schema, *, evolve: bool) -> TableState:
        """Give the table the columns that rows of this schema need, and return the state.

        The first rows of a table add all columns. Later rows need `evolve`, otherwise `Invalid`.
        """

        def plan(state: TableState) -> CommitPlan | None:
            columns = plan_columns(state, [arrow], evolve=evolve)
            if not columns.is_new:
                return None
            check_writable(columns.schema)
            return CommitPlan(
                "set columns", (SetTable(columns.spec, columns.schema_id, columns.schema),)
            )

        return self.run_transaction(Stage(self.storage), plan)

    def widen_column(self, name: str, kind: pa.DataType) -> TableState:
        """Give a column a wider type; integers become doubles only if none of them is rounded.

        Each attempt checks the values again, because a commit in between may add some.
        """

        def plan(state: TableState) -> CommitPlan | None:
            schema = state.schema
            is_checked = may_become_double(schema.column(name).type, kind)
            if is_checked:
                self._check_doubles(state, name)
            schema = schema.widen_column(name, kind, are_values_checked=is_checked)
            if schema == state.schema:
                return None
            check_writable(schema)
            check_entities(schema, state.spec)
            schema_id = max(state.schemas) + 1
            return CommitPlan("widen column", (SetTable(state.spec, schema_id, schema),))

        return self.run_transaction(Stage(self.storage), plan)

    def _check_doubles(self, state: TableState, name: str) -> None:
        """Raise `Invalid` when an integer of a column is larger than doubles hold exactly.

        Deleted rows count too: readers convert a file's column before they drop deleted rows.
        """
        for segment in state.segments:
            whole = replace(segment, deletes="", deleted_count=0)
            for rows in read_rows(self.storage, state, whole, [name]):
                bounds = pc.min_max(rows.batch.column(name)).as_py()
                largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
                if largest > DOUBLE_EXACT_MAX:
                    raise Invalid(
                        "a whole number of this column would be rounded",
                        hint="write numbers with a fraction to another column",
                        column=name,
                        value=largest,
                        largest_exact=DOUBLE_EXACT_MAX,
                        path=segment.path,
                    )

    def commit_flush(
        self,
        rows: pa.Table,
        read_at: TableState,
        source: str,
        mark: Mark,
        requests: Mapping[str, int] = MappingProxyType({}),
    ) -> TableState:
        """Add rows of a hot source in one commit that also moves the source's mark.

        The rows have the columns of `read_at`. When this returns, a durable version has them, added
        by this call or by an earlier one.
        """
        state = self.log.head()
        if contains_flush(state, source, mark):
            self.log.sync_commit(state.version)
            return state
        stage = Stage(self.storage, workers=self._workers)
        carrying = FlushPlanner(self.index, stage, source, mark, read_at, requests)

        def fill() -> None:
            stage_rows(stage, rows, read_at.schema, read_at.spec)

        return self.run_transaction(stage, carrying.plan, before=fill)

    def commit_export(self, batch: ExportBatch) -> TableState:
        """Commit an export of entities; return the state that has it.

        `ExportFenced` when another export committed on the version that this one is based on.
        """
        stage = Stage(self.storage, workers=self._workers)
        planner = ExportPlanner(self.storage, self.log, self.index, stage, batch)
        return self.run_transaction(stage, planner.plan, before=planner.stage_rows)

    def note_holes(self, holes: Sequence[NoteHole]) -> TableState:
        """Record that writes of a hot source were lost, unless that is recorded already."""

        def plan(state: TableState) -> CommitPlan | None:
            new = tuple(hole for hole in holes if hole not in state.holes)
            return CommitPlan("note hole", new) if new else None

        return self.run_transaction(Stage(self.storage), plan)

    def delete(
        self, matcher: Matcher, columns: Sequence[str], window: TimeWindow = ALL_TIME
    ) -> tuple[TableState, int]:
        """Delete the matching rows in the window; return the state and the number of rows."""
        return self._delete(RowSearch(matcher, columns, window), "delete")

    def update(self, rows: pa.Table, options: UpdateOptions) -> UpdateReport:
        """Give rows new values by their keys, and insert those that are new if allowed."""
        if rows.num_rows > UPDATE_ROWS_MAX:
            raise Invalid(
                "more rows than one update takes",
                hint="update them in several steps",
                rows=rows.num_rows,
                rows_max=UPDATE_ROWS_MAX,
            )
        stage = Stage(self.storage, workers=self._workers)
        updating = UpdatePlanner(self.storage, self.index, stage, rows, options)
        state = self.run_transaction(stage, updating.plan)
        if updating.report.no_op:
            return updating.report
        size_bytes = sum(staged.checksum.size_bytes for staged in stage.staged)
        return replace(
            updating.report,
            committed_version=state.version,
            starting_version=Version(state.version - 1),
            replacement_file_bytes=size_bytes,
        )

    def retain(self, *, yes: bool = False) -> tuple[TableState, int]:
        """Delete the rows past the table's retention; return the state and the number of rows."""
        search = search_expired(self.log.head(), self.log.now(), yes=yes)
        return self._delete(search, "retain")

    def _delete(self, search: RowSearch, operation: str) -> tuple[TableState, int]:
        for name in search.columns:
            self.log.head().schema.column(name)
        stage = Stage(self.storage, workers=self._workers)
        deleting = DeletePlanner(self.storage, stage, search, operation)
        state = self.run_transaction(stage, deleting.plan)
        return state, deleting.rows_deleted

    def restore(self, at: object) -> TableState:
        """Make the table what it was at a version or instant, in a new version."""
        version = self.state(at).version

        def plan(state: TableState) -> CommitPlan | None:
            # Read in each attempt: a vacuum may have expired the version since the last one.
            wanted = self.log.state(version)
            now = {segment.segment_id: segment for segment in state.segments}
            then = {segment.segment_id: segment for segment in wanted.segments}
            actions: list[Action] = []
            if (wanted.spec, wanted.schema.columns) != (state.spec, state.schema.columns):
                schema_id = max(state.schemas) + 1
                # The largest of all schemas: the table may have been redefined in between.
                next_id = max(schema.next_id for schema in state.schemas.values())
                schema = replace(wanted.schema, next_id=next_id)
                actions.append(SetTable(wanted.spec, schema_id, schema))
            actions += [removal(s) for key, s in now.items() if then.get(key) != s]
            actions += [AddSegment(s) for key, s in then.items() if now.get(key) != s]
            if not actions:
                return None
            metrics = {"restored": wanted.version}
            return CommitPlan("restore", tuple(actions), (ALL_TIME,), metrics)

        return self.run_transaction(Stage(self.storage), plan)

    def alter(
        self, operation: str, changed: Callable[[TableSpec, Schema], tuple[TableSpec, Schema]]
    ) -> TableState:
        """Change the table's spec or its columns, in one commit."""

        def plan(state: TableState) -> CommitPlan | None:
            spec, schema = changed(state.spec, state.schema)
            _check_spec(spec)
            if schema != state.schema:
                _check_new_schema(spec, schema)
            check_entities(schema, spec)
            if spec.token_columns != state.spec.token_columns:
                _check_token_types(spec, schema)
            if (spec, schema) == (state.spec, state.schema):
                return None
            schema_id = state.schema_id if schema == state.schema else max(state.schemas) + 1
            return CommitPlan(
                operation, (SetTable(require_types(spec, schema), schema_id, schema),)
            )

        return self.run_transaction(Stage(self.storage), plan)

    def run_transaction(
        self, stage: Stage, planner: Planner, before: Callable[[], None] | None = None
    ) -> TableState:
        """Run `before`, then a transaction; remove the staged files unless it committed them."""
        is_tried = False

        def plan_change(state: TableState) -> CommitPlan | None:
            nonlocal is_tried
            is_tried = False  # no attempt to commit is running while the plan is made
            self.check_before_commit()
            plan = planner(state)
            if plan is not None:
                _check_entities(state.spec, plan)
            is_tried = plan is not None
            return plan

        try:
            self.storage.probe()
            if before:
                before()
            outcome = transact(self.log, plan_change)
        except OutcomeUnknown:
            raise  # the log may yet name what was staged
        except BaseException as error:
            # Crash here: an interrupt may arrive after the commit was made. Once an attempt has
            # begun, only an error of this package proves that the commit was not made.
            if isinstance(error, ThermoclineError) or not is_tried:
                stage.discard()
            if isinstance(error, ThermoclineError):
                error.table_root = self.storage.root
            raise
        stage.is_committed = outcome.is_committed
        if outcome.is_committed:
            self.index.write_shortcut(outcome.state)
        else:
            stage.discard()
        return outcome.state

    def read(
        self, state: TableState, names: Sequence[str] | None, window: TimeWindow = ALL_TIME
    ) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of a state whose times lie in the window."""
        time_column = state.spec.time_column
        wanted = [c.name for c in state.schema.columns] if names is None else list(names)
        loaded = list(dict.fromkeys([*wanted, time_column]))
        for segment in state.segments.overlapping(window.start, window.end):
            for rows in read_rows(self.storage, state, segment, loaded):
                batch = rows.batch
                inside = match_window(batch.column(time_column), window)
                if not inside.all():
                    batch = filter_rows(batch, inside)
                if batch.num_rows:
                    yield batch.select(wanted)

    def coverage(self, at: object = None) -> tuple[TableState, Coverage]:
        """Return a state and its coverage."""
        state = self.state(at)
        return state, self.index.at(state)

    def commits(self, newest: int | None = None) -> Iterator[Commit]:
        """Yield the commits, newest first; raise when a damaged one is reached."""
        head = self.log.head().version
        for version in range(min(newest or head, head), self.log.first_version() - 1, -1):
            yield self.log.commit(version)


def _writing_spec(state: TableState, options: AppendOptions) -> TableSpec:
    """Return the spec with the writer settings of one append."""
    return replace(state.spec, writer=parse_writer(options.writer, state.spec.writer))


def _check_spec(spec: TableSpec) -> None:
    """Raise `Invalid` for an impossible spec."""
    check_policy(spec.overlap)
    _ = spec.retention_s  # raises for an invalid retention
    check_text(spec.time_column, "time_column")
    names = (spec.time_column, *spec.entity_columns)
    if len({name.lower() for name in names}) != len(names) or not all(names):
        raise Invalid(
            "entity columns must be different from each other and from the time column",
            hint="name each column once; names that differ only in case are the same",
            time_column=spec.time_column,
            entity_columns=list(spec.entity_columns),
        )
    check_names(names)
    _check_token_columns(spec)
    if check_count(spec.entities_max, "entities_max") < 1:
        raise Invalid(
            "entities_max must be at least 1",
            hint="omit entities_max, or raise it",
            entities_max=spec.entities_max,
        )
    if spec.timezone is not None:
        _check_zone(spec.timezone)
    if spec.is_unique and spec.overlap == "allow":
        raise unique_policy_error()
    if not spec.bucket.is_time and (spec.timezone is not None or spec.retention is not None):
        raise Invalid(
            "an integer index has no clock",
            hint="omit timezone and retention; delete old rows with a condition",
            timezone=spec.timezone,
            retention=spec.retention,
        )


def _check_token_columns(spec: TableSpec) -> None:
    names = spec.token_columns
    if not names:
        return
    check_names(names)
    if len(set(names)) != len(names) or len(names) > COLUMNS_MAX:
        raise Invalid(
            "token columns must be different columns, and not too many",
            hint="name each column of texts once",
            token_columns=list(names)[:COLUMNS_MAX],
            columns_max=COLUMNS_MAX,
        )


def _check_token_types(spec: TableSpec, schema: Schema) -> None:
    """Raise `Invalid` for a token column that the table lacks or that holds no texts."""
    for name in spec.token_columns if schema.columns else ():
        column = schema.by_name.get(name)
        if column is None or not can_hold_tokens(column.type):
            raise Invalid(
                "only a column of texts can be indexed by its tokens",
                hint="name columns of the table that hold texts",
                column=name,
                type=None if column is None else str(column.type),
            )


def _check_new_schema(spec: TableSpec, schema: Schema) -> None:
    """Raise `Invalid` for columns that would make every later append fail."""
    time_column = schema.by_name.get(spec.time_column)
    # A time column that may be null was added as a column like any other, as the table's first.
    if (
        time_column is None
        or time_column.nullable
        or not fits_index(time_column.type, spec.bucket.index_type)
    ):
        raise Invalid(
            "the table has no columns yet",
            hint="append its first rows, or data without a row, then change the columns",
            time_column=spec.time_column,
        )
    check_writable(schema)


def _check_entities(spec: TableSpec, plan: CommitPlan) -> None:
    """Raise `Invalid` if a plan that is not an export changes rows of an entity table."""
    is_flush = any(isinstance(action, NoteFlush) for action in plan.actions)
    if moves_rows(plan.actions) and not is_flush:
        check_not_entities(spec, plan.operation)


def _check_zone(timezone: str) -> None:
    try:
        ZoneInfo(check_text(timezone, "timezone"))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid(
            "no such time zone", hint="use a name like Europe/Berlin", timezone=timezone
        ) from error
