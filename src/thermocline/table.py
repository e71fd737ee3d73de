"""`TimeSeriesTable`: the public interface to a table.

In:   paths, Arrow data, times as datetimes or text, conditions as SQL
Out:  versions, Arrow tables and streams, small results with a readable form

- Every method that changes the table returns the new version, or the present one when there was
  nothing to do; when it returns, the change is durable and visible to every reader.
- Times without a zone are UTC. A range of time is half-open: its end is not part of it.
- Data comes in from anything with `__arrow_c_stream__`: pyarrow, polars, pandas, DuckDB.
"""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from thermocline.cold import coverage_report
from thermocline.cold.care.fsck import FsckReport, fsck
from thermocline.cold.care.pin import pin_version
from thermocline.cold.care.repair import LogLoss, RepairReport, repair, survey
from thermocline.cold.care.vacuum import GRACE_S_DEFAULT, VacuumReport, vacuum
from thermocline.cold.change.append import AppendOptions, AppendReport, create_columns
from thermocline.cold.change.delete import match_every_row
from thermocline.cold.change.export_plan import check_not_entities
from thermocline.cold.change.update import (
    UpdateOptions,
    UpdateReport,
    check_key,
    key_columns,
)
from thermocline.cold.compact.rewrite import CompactionReport, compact_here
from thermocline.cold.segment.measure import check_entity_count
from thermocline.cold.segment.parquet import filter_rows
from thermocline.cold.segment.row_reader import RowReader
from thermocline.cold.segment.stage import open_row_stream, read_row_stream
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Corruption, Invalid, NotFound
from thermocline.format.argument import (
    check_count,
    check_flag,
    check_function,
    check_text,
    check_type,
    list_names,
    list_paths,
    wrong_kind,
)
from thermocline.format.bucket import TIME, parse_bucket, parse_duration_s, write_duration
from thermocline.format.instant import to_datetime
from thermocline.format.layout import Version
from thermocline.format.log.action import Mark, SetTable, TableSpec
from thermocline.format.log.conflict import TimeWindow, parse_window
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema, check_names
from thermocline.format.types import parse_type
from thermocline.format.writer_settings import parse_writer
from thermocline.hot.wal.retired_marks import retired_marks_above
from thermocline.snapshot import TableView, measure_coverage, read_hot_window

ColumnTypes: TypeAlias = pa.Schema | Mapping[str, pa.DataType | str]
"""Columns as an Arrow schema, or as types by name: Arrow types or texts such as `int64`."""

At = object
"""A version (int), an instant (datetime or ISO text), or None for the newest."""


class RowCondition(Protocol):
    """A compiled condition on rows: which columns it reads, and which rows of a batch match."""

    columns: tuple[str, ...]

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it matches."""
        ...

    def window(self, time_column: str) -> tuple[int | None, int | None]:
        """Return the half-open time range outside which no row matches."""
        ...


class TimeSeriesTable:
    """A table of rows with a time, which knows which ranges of time it holds.

    >>> table = TimeSeriesTable.create("prices", time_column="ts", bucket="1h",
    ...                                entity_columns=["symbol"])
    >>> table.append_parquet("incoming.parquet")
    >>> table.gaps("2024-06-01", "2024-06-08")
    """

    def __init__(self, cold: ColdTable) -> None:
        self._cold = cold

    @property
    def cold(self) -> ColdTable:
        """The table's files and log; `Unavailable` when its lake is closed."""
        return self._cold

    @classmethod
    def create(
        cls,
        table_root: str | os.PathLike[str],
        *,
        time_column: str | None = None,
        bucket: str | timedelta | int | None = None,
        entity_columns: str | Sequence[str] | None = (),
        timezone: str | None = None,
        overlap: str = "reject",
        retention: str | timedelta | None = None,
        entities_max: int | None = None,
        schema: ColumnTypes | None = None,
        unique: bool = False,
        writer: Mapping[str, Any] | None = None,
        token_columns: str | Sequence[str] | None = (),
        index_column: str | None = None,
        index_type: str | None = None,
        index_granularity: str | timedelta | int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "TimeSeriesTable":
        """Create a table in a folder or under an object store's URL.

        `bucket` and `retention` are texts such as `1h`, `15min` and `30d`, or a `timedelta`; a
        bucket may also be weeks or calendar months, such as `1w` and `1mo`. A table of block
        heights or sequence numbers has an `index_column` and a whole number as its bucket;
        `index_type` is then `int64` (the default) or `uint64`. `index_granularity` is another word
        for `bucket`. `schema` declares the columns: an Arrow schema, or types by name; without it,
        the first append gives the table its columns. A `unique` table keeps at most one row for
        each entity and bucket: an append that would add a second is refused. `writer` says how
        segments are written, such as `{"compression": "zstd", "level": 9, "dictionary": False}`.
        `token_columns` are columns of texts whose tokens are indexed, for `has_token` and LIKE.
        `timezone` is the zone of times that come without one; None means UTC. `overlap` says what
        an append into buckets already held does: `reject` raises an error, `allow` adds the rows,
        `replace` replaces whole buckets. `Conflict` when there is a table.
        """
        cold = ColdTable(open_storage(table_root, storage_options))
        spec = new_spec(
            time_column,
            bucket,
            entity_columns,
            entities_max,
            overlap=overlap,
            timezone=timezone,
            retention=retention,
            index_column=index_column,
            index_type=index_type,
            index_granularity=index_granularity,
            unique=unique,
            writer=writer,
            token_columns=token_columns,
        )
        cold.create(spec, declare_columns(schema, spec))
        return TimeSeriesTable(cold)

    @classmethod
    def open(
        cls,
        table_root: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> "TimeSeriesTable":
        """Open a table; `NotFound` when there is none."""
        cold = ColdTable(open_storage(table_root, storage_options))
        cold.state()
        return TimeSeriesTable(cold)

    def root(self) -> str:
        """Return the path or URL of the table."""
        return self._cold.storage.root

    def version(self) -> Version:
        """Return the newest version."""
        return self.cold.state().version

    def schema(self, at: At = None) -> pa.Schema:
        """Return the columns, now or at a version or instant."""
        return self.cold.state(at).schema.arrow

    def index_spec(self) -> dict[str, Any]:
        """Return the index: its column, type and granularity, the entity columns, the zone."""
        spec = self.spec()
        found: dict[str, Any] = {
            "index_column": spec.time_column,
            "entity_columns": list(spec.entity_columns),
            "index_type": spec.bucket.index_type,
        }
        if not spec.bucket.is_time:
            return found | {"index_granularity": spec.bucket.count}
        return found | {"index_granularity": str(spec.bucket), "timezone": spec.timezone}

    def spec(self) -> TableSpec:
        """Return what the table is: time column, bucket, entities, policies."""
        return self.cold.state().spec

    # Writing

    def append_parquet(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        link: bool = False,
        overlap: str | None = None,
        evolve: bool = False,
        txn: tuple[str, int] | None = None,
    ) -> AppendReport:
        """Append one Parquet file, or many in one commit, each byte for byte if its columns fit.

        The file is copied; `link=True` shares its bytes instead, for a file that will never be
        written again. `evolve=True` adds columns that the table lacks and widens types.
        `txn=("job", 7)` makes a repeated append of the same number a no-op.
        `CoverageOverlapError` names the buckets that the table already holds.
        """
        options = AppendOptions(overlap, evolve, txn)
        paths = _expand_folders(list_paths(source, "source"))
        return self.cold.append_files(paths, options, link=check_flag(link, "link"))[1]

    def append_csv(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        types: Mapping[str, pa.DataType | str] | None = None,
        overlap: str | None = None,
        evolve: bool = False,
        txn: tuple[str, int] | None = None,
    ) -> AppendReport:
        """Append CSV files, folders of them, or patterns, in one commit.

        Each value is stored exactly, or the error names file, line, column and reason and no row is
        appended. A file may be compressed with gzip; `.tsv` files have tabs. `types` declares the
        types of columns that the table does not have yet (with `evolve`, or at the first append);
        without it all cells of a column decide. Times are read as everywhere.
        """
        return self._append_texts("csv", source, types, AppendOptions(overlap, evolve, txn))

    def append_json(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        types: Mapping[str, pa.DataType | str] | None = None,
        overlap: str | None = None,
        evolve: bool = False,
        txn: tuple[str, int] | None = None,
    ) -> AppendReport:
        """Append files with a JSON object on each line, or one array of objects; as `append_csv`.

        Every digit of a number is kept.
        """
        return self._append_texts("json", source, types, AppendOptions(overlap, evolve, txn))

    def _append_texts(
        self, file_format: str, source: Any, types: Any, options: AppendOptions
    ) -> AppendReport:
        from thermocline.ingest.files.input_files import find_input_files
        from thermocline.ingest.files.open_rows import open_file_rows

        if types is not None and not isinstance(types, Mapping):
            hint = "pass a dict of types by name, such as {'close': 'float64'}"
            raise wrong_kind("not the types of columns", hint, "types", types)
        files = find_input_files(list_paths(source, "source"), file_format)
        rows = open_file_rows(files, self.cold.state(), types=types, evolve=options.evolve)
        return self.cold.append_batches(rows.schema, rows.batches, options)[1]

    def append(
        self,
        data: Any,
        *,
        overlap: str | None = None,
        evolve: bool = False,
        txn: tuple[str, int] | None = None,
        compression: str | None = None,
        max_rows_per_row_group: int | None = None,
        max_bytes_per_row_group: int | None = None,
    ) -> AppendReport:
        """Append anything with an Arrow stream, in one commit; see `append_parquet`.

        The last three say how this append is written; else the table's writer settings do. The
        report is the new version, an int, with attributes such as `row_count`.
        """
        given = {
            "compression": compression.lower() if isinstance(compression, str) else compression,
            "rows_per_group": max_rows_per_row_group,
            "bytes_per_group": max_bytes_per_row_group,
        }
        writer = {name: value for name, value in given.items() if value is not None}
        options = AppendOptions(overlap, evolve, txn, writer=writer)
        return self.cold.append_stream(self._open_rows(data), options)[1]

    def _open_rows(self, data: Any) -> pa.RecordBatchReader:
        """Return a caller's rows as a stream, with a pandas index as the time column."""
        return open_row_stream(data, self.cold.state().spec.time_column)

    def delete(
        self, where: str | None = None, *, start: object = None, end: object = None
    ) -> Version:
        """Delete the rows that match the SQL condition, within a range of time if given."""
        if where is None and start is None and end is None:
            raise Invalid(
                "a delete needs a condition or a range of time",
                hint="pass where='true' to delete every row",
            )
        bucket = self.cold.state().spec.bucket
        window = parse_window(start, end, bucket)
        if where is None:
            return self.cold.delete(match_every_row, (), window)[0].version
        state = self.cold.state()
        with self._open_condition(where, state.schema.arrow) as condition:
            window = window.intersect(*condition.window(state.spec.time_column))
            return self.cold.delete(condition.mask, condition.columns, window)[0].version

    def _open_condition(
        self, where: str, schema: pa.Schema
    ) -> AbstractContextManager[RowCondition]:
        """Return a compiled condition; here the process of the caller evaluates it."""
        from thermocline.query.sql.predicate import compile_predicate

        return nullcontext(compile_predicate(where, schema))

    def update_rows(
        self,
        rows: Any,
        *,
        columns: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        expected_version: int | None = None,
    ) -> UpdateReport:
        """Give rows new values by their key, in one commit; every key must exist.

        `rows` have the entity columns, the index and the columns to set: `columns`, or all that
        they have. Other columns keep their values. `key` may repeat the key columns; they cannot
        be others. With an `expected_version`, `Conflict` if another commit was made since.
        """
        return self._update(rows, columns, key, expected_version, inserts=False)

    def upsert(
        self,
        rows: Any,
        *,
        columns: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        expected_version: int | None = None,
    ) -> UpdateReport:
        """Do what `update_rows` does, and insert the rows whose key does not exist."""
        return self._update(rows, columns, key, expected_version, inserts=True)

    def _update(
        self, rows: Any, columns: Any, key: Any, expected_version: Any, *, inserts: bool
    ) -> UpdateReport:
        state = self.cold.state()
        check_not_entities(state.spec, "update rows")
        check_key(key, key_columns(state.spec))
        chosen = None if columns is None else list_names(columns, "columns")
        if expected_version is not None:
            check_count(expected_version, "expected_version", 1)
        data = self._open_rows(rows)
        table = pa.Table.from_batches(read_row_stream(data), data.schema)
        return self.cold.update(table, UpdateOptions(chosen, inserts, expected_version))

    def retain(self, *, yes: bool = False) -> Version:
        """Delete the rows past the table's retention; `yes` allows deleting every row."""
        return self.cold.retain(yes=check_flag(yes, "yes"))[0].version

    def restore(self, at: At) -> Version:
        """Restore the table to a version or instant, as a new version."""
        return self.cold.restore(at).version

    def add_column(self, name: str, kind: pa.DataType) -> Version:
        """Add a column; it is null in all existing rows."""
        check_names([name])
        check_type(kind, "kind")
        return self._change("add column", lambda s, c: (s, c.add_columns([pa.field(name, kind)])))

    def add_columns(self, columns: pa.Schema) -> Version:
        """Add the columns of an Arrow schema, with their metadata; null in all existing rows."""
        if not isinstance(columns, pa.Schema):
            hint = "pass a pyarrow.Schema"
            raise wrong_kind("not the columns to add", hint, "columns", columns)
        check_names(columns.names)
        fixed = [field.name for field in columns if not field.nullable]
        if fixed or columns.metadata:
            raise Invalid(
                "an added column is nullable, and the schema it comes in has no metadata",
                hint="make the fields nullable, and use remove_metadata()",
                not_nullable=fixed,
            )
        return self._change("add columns", lambda s, c: (s, c.add_columns(columns)))

    def drop_column(self, name: str) -> Version:
        """Drop a column that is not part of the key; older versions still have it."""

        def drop(spec: TableSpec, schema: Schema) -> tuple[TableSpec, Schema]:
            if check_text(name, "name") in key_columns(spec):
                raise Invalid(
                    "the column is part of the key",
                    hint="the index and the entity columns cannot be dropped",
                    column=name,
                )
            kept = tuple(one for one in spec.token_columns if one != name)
            return replace(spec, token_columns=kept), schema.drop_column(name)

        return self._change("drop column", drop)

    def set_writer(self, **settings: Any) -> Version:
        """Set how segments are written: compression, level, rows_per_group, dictionary."""

        def change(spec: TableSpec, schema: Schema) -> tuple[TableSpec, Schema]:
            return replace(spec, writer=parse_writer(settings, spec.writer)), schema

        return self._change("set writer", change)

    def set_token_columns(self, columns: str | Sequence[str]) -> Version:
        """Set the columns of texts whose tokens new segments index; none ends the index.

        Segments that exist get their index when a compaction writes them again.
        """
        names = list_names(columns, "columns")

        def change(spec: TableSpec, schema: Schema) -> tuple[TableSpec, Schema]:
            return replace(spec, token_columns=names), schema

        return self._change("set token columns", change)

    def set_entities_max(self, entities_max: int) -> Version:
        """Set how many entities the table may hold; not below what it holds."""
        entities_max = check_count(entities_max, "entities_max", 1)

        def change(spec: TableSpec, schema: Schema) -> tuple[TableSpec, Schema]:
            check_entity_count(
                len(self.cold.coverage()[1].entities), replace(spec, entities_max=entities_max)
            )
            return replace(spec, entities_max=entities_max), schema

        return self._change("set entities_max", change)

    def widen_column(self, name: str, kind: pa.DataType) -> Version:
        """Widen the type of a column; the new type must hold all its values.

        Integers become doubles only if no stored one is larger than 2**53; the table's files are
        read to check that.
        """
        check_type(kind, "kind")
        check_not_entities(self.cold.state().spec, "widen column")
        return self.cold.widen_column(name, kind).version

    def rename_column(self, old: str, new: str) -> Version:
        """Rename a column; its values stay."""
        check_text(old, "old")
        check_names([new])

        def rename(spec: TableSpec, schema: Schema) -> tuple[TableSpec, Schema]:
            entities = tuple(new if name == old else name for name in spec.entity_columns)
            time_column = new if spec.time_column == old else spec.time_column
            indexed = tuple(new if name == old else name for name in spec.token_columns)
            changed = replace(
                spec, entity_columns=entities, time_column=time_column, token_columns=indexed
            )
            return changed, schema.rename_column(old, new)

        return self._change("rename column", rename)

    def set_retention(self, retention: str | timedelta | None) -> Version:
        """Set how long rows are kept, such as `90d` or a `timedelta`; None keeps all rows."""
        kept = None if retention is None else write_duration(retention, "retention")
        return self._change("set retention", lambda s, c: (replace(s, retention=kept), c))

    def set_overlap(self, overlap: str) -> Version:
        """Set what an append into buckets already held does."""
        return self._change("set overlap", lambda s, c: (replace(s, overlap=overlap), c))

    def _change(
        self,
        operation: str,
        changed: Callable[[TableSpec, Schema], tuple[TableSpec, Schema]],
    ) -> Version:
        check_not_entities(self.cold.state().spec, operation)
        return self.cold.alter(operation, changed).version

    # Reading

    def scan(
        self,
        columns: str | Sequence[str] | None = None,
        where: str | None = None,
        *,
        start: object = None,
        end: object = None,
        at: At = None,
    ) -> RowReader:
        """Return the rows of one version as a stream with the table's exact types.

        `where` is a SQL condition over the table's columns. The version stays pinned until the
        stream is read to its end, fails, is closed or is garbage-collected.
        """
        view = self._view(at)
        state = view.state
        every = [c.name for c in state.schema.columns]
        wanted = every if columns is None else list(list_names(columns, "columns"))
        schema = pa.schema(
            [state.schema.column(c).field for c in wanted], state.schema.arrow.metadata
        )
        window, predicate = parse_window(start, end, state.spec.bucket), None
        if where is not None:
            predicate, window = _compile_where(where, state, window)
        loaded = list(dict.fromkeys([*wanted, *(predicate.columns if predicate else ())]))

        cold = self.cold

        def batches() -> Generator[pa.RecordBatch, None, None]:
            with pin_version(cold, state.version):
                yield None  # the pin is held from here on, before the first read
                for batch in chain(
                    cold.read(state, loaded, window), read_hot_window(view, loaded, window)
                ):
                    kept = batch
                    if predicate is not None:
                        mask = predicate.mask(batch.select(list(predicate.columns)))
                        kept = filter_rows(batch, mask)
                    if kept.num_rows:
                        yield kept.select(wanted)

        stream = batches()
        next(stream)
        return RowReader(schema, stream)

    def _view(self, at: At = None) -> TableView:
        """Return the view to read now, or at a version or instant."""
        return TableView(self.cold.state(at))

    def held(self, at: At = None) -> coverage_report.CoverageReport:
        """Return a report of what is held, now or at a version or instant."""
        return self._report_coverage(self._view(at))

    def _report_coverage(self, view: TableView) -> coverage_report.CoverageReport:
        is_verified = self.cold.index.is_verified(view.state)
        return coverage_report.CoverageReport(
            view.state, measure_coverage(view, self.cold), is_verified
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

    def to_arrow(self, **which: Any) -> pa.Table:
        """Return the rows as one Arrow table; takes the arguments of `scan`."""
        return self.scan(**which).read_all()

    def head(self, rows: int = 10, **which: Any) -> pa.Table:
        """Return some rows of the newest version, without reading the others; takes `scan`'s."""
        with self.scan(**which) as reader:
            return reader.head(rows)

    def to_pandas(self, **which: Any) -> Any:
        """Return the rows as a pandas data frame; takes the arguments of `scan`."""
        return self.scan(**which).to_pandas()

    def to_polars(self, **which: Any) -> Any:
        """Return the rows as a polars data frame; takes the arguments of `scan`."""
        return self.scan(**which).to_polars()

    def to_duckdb(self, connection: Any = None, **which: Any) -> Any:
        """Return the rows as a DuckDB relation, on a connection or on DuckDB's default one."""
        from thermocline.query.hand_over import open_relation

        return open_relation(self.to_arrow(**which), connection)

    def pin(self, at: At = None) -> AbstractContextManager[Version]:
        """Keep a version's files from being vacuumed while the `with` block runs."""
        return pin_version(self.cold, self.cold.state(at).version)

    def history(self, limit: int = coverage_report.HISTORY_ROWS_MAX) -> pa.Table:
        """Return the commits, newest first, as an Arrow table."""
        return coverage_report.history(self.cold, limit)

    def diff(self, old: At, new: At = None) -> coverage_report.VersionDiff:
        """Return what changed from one version or instant to another, or to the newest."""
        return coverage_report.diff(self.cold, old, new)

    # Coverage, from metadata alone

    def coverage(self, at: At = None, *, per_entity: bool = True) -> pa.Table:
        """Return the ranges that are held: entity columns, start, end, buckets."""
        return self.held(at).runs(per_entity=per_entity)

    def gaps(
        self,
        start: object = None,
        end: object = None,
        *,
        entity: object = None,
        per_entity: bool = True,
        at: At = None,
    ) -> pa.Table:
        """Return the ranges that are missing: entity columns, start, end, buckets.

        If the table has entity columns, the gaps are those of each entity. `entity` selects one;
        `per_entity=False` returns the buckets that no entity has.
        """
        held = self.held(at)
        return held.gaps(start, end, entity, per_entity=per_entity)

    def coverage_ratio(
        self, start: object = None, end: object = None, *, entity: object = None, at: At = None
    ) -> float:
        """Return the share of buckets that are held, from 0.0 to 1.0."""
        return self.held(at).ratio(start, end, entity)

    def is_covered(
        self, start: object, end: object, *, entity: object = None, at: At = None
    ) -> bool:
        """Tell whether every bucket is held, by every entity if none is named."""
        return self.held(at).is_covered(start, end, entity)

    def last_fully_covered_window(
        self,
        length: str | timedelta | int,
        *,
        before: object = None,
        entity: object = None,
        at: At = None,
    ) -> tuple[Any, Any] | None:
        """Return the newest window of this length (`6h`) that is held in full, or None.

        For an integer index the length is a whole number of its steps.
        """
        held = self.held(at)
        bucket = held.state.spec.bucket
        found = held.last_full(length, before, entity)
        if found is None:
            return None
        edges = bucket.start(found[0]), bucket.start(found[1])
        return (to_datetime(edges[0]), to_datetime(edges[1])) if bucket.is_time else edges

    def silent_entities(self, start: object, end: object = None, *, at: At = None) -> pa.Table:
        """Return the entities without a row in the range, and before when each was last seen."""
        return self.held(at).silent_entities(start, end)

    def holes(self) -> pa.Table:
        """Return the writes that were lost before they were flushed: source, numbers, when."""
        return coverage_report.holes(self.cold.state())

    # Care

    def compact(
        self, progress: Callable[[str, int, int], None] = lambda what, done, total: None
    ) -> CompactionReport:
        """Rewrite small segments as few large ones, in this process and within bounded memory.

        The rows stay the same; rows that were deleted are purged. Each group of segments is one
        commit. `Conflict` if other writers change the segments first in every try. Older versions
        stay readable until a vacuum expires them.
        """
        return compact_here(self.cold, tell=check_function(progress, "progress"))

    def vacuum(
        self,
        *,
        dry_run: bool = True,
        grace: str | timedelta | None = None,
        allow_short_grace: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> VacuumReport:
        """Remove files that no kept version names; by default only return which they are."""
        return vacuum(
            self.cold,
            grace_s=GRACE_S_DEFAULT if grace is None else parse_duration_s(grace, "grace"),
            dry_run=check_flag(dry_run, "dry_run"),
            allow_short_grace=check_flag(allow_short_grace, "allow_short_grace"),
            progress=check_function(progress, "progress"),
        )

    def fsck(self, progress: Callable[[int, int], None] = lambda done, total: None) -> FsckReport:
        """Check every commit, checksum, file and coverage bitmap; change nothing."""
        return fsck(self.cold, check_function(progress, "progress"))

    def checkpoint(self) -> Version:
        """Write a checkpoint of the newest version, so that opening the table is faster."""
        version = self.version()
        self.cold.log.write_checkpoint(version)
        return version

    def __repr__(self) -> str:
        state = self._cold.state()
        rows, segments = state.totals.rows, state.totals.segments
        return (
            f"TimeSeriesTable({self.root()!r}, version={state.version}, rows={rows:,}, "
            f"segments={segments:,}, bucket={state.spec.bucket})"
        )

    def _repr_html_(self) -> str | None:
        from thermocline.show import table_html

        return table_html(self.held(), self.root())


def _expand_folders(paths: Sequence[str]) -> list[str]:
    """Return the paths, with the Parquet files of each folder in its place."""
    if not any(os.path.isdir(path) for path in paths):
        return list(paths)
    from thermocline.ingest.files.input_files import find_input_files

    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            found += [file.path for file in find_input_files([path], "parquet")]
        else:
            found.append(path)
    return found


def survey_loss(
    table_root: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
) -> LogLoss:
    """Return which commits the table in a folder has lost, even if it does not open."""
    return survey(*_open_for_repair(table_root, storage_options))


def repair_table(
    table_root: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
) -> RepairReport | None:
    """Accept the loss of a table's newest commits; None when the log is intact.

    The table opens again, at its newest intact version plus a commit that records the repair.
    """
    return repair(*_open_for_repair(table_root, storage_options))


def _open_for_repair(
    table_root: str | os.PathLike[str], storage_options: Mapping[str, str] | None
) -> tuple[ColdTable, Mapping[str, Mark]]:
    cold = ColdTable(open_storage(table_root, storage_options))
    if not cold.log.exists():
        raise NotFound("no table here", hint="name the table's folder", root=cold.storage.root)
    try:
        base = cold.log.base()
        actions = cold.log.commit(1).actions if base is None else ()
    except (NotFound, Corruption):
        return cold, {}
    ids = [action.spec.table_id for action in actions if isinstance(action, SetTable)]
    ids += [] if base is None else [base.spec.table_id]
    root = cold.storage.root
    is_local = isinstance(cold.storage, LocalStorage)
    return cold, retired_marks_above(root, ids[0]) if ids and is_local else {}


def new_spec(
    time_column: str | None = None,
    bucket: str | timedelta | int | None = None,
    entity_columns: str | Sequence[str] | None = (),
    entities_max: int | None = None,
    *,
    overlap: str = "reject",
    timezone: str | None = None,
    retention: str | timedelta | None = None,
    index_column: str | None = None,
    index_type: str | None = None,
    index_granularity: str | timedelta | int | None = None,
    unique: bool = False,
    writer: Mapping[str, Any] | None = None,
    token_columns: str | Sequence[str] | None = (),
) -> TableSpec:
    """Return the spec of a new table from the caller's arguments."""
    is_unique = check_flag(unique, "unique")
    column = _choose_one("index_column", index_column, "time_column", time_column)
    if index_column is None and index_type is None:
        index_type = TIME  # a bare number is not the width of a bucket of time
    width = _choose_one("index_granularity", index_granularity, "bucket", bucket)
    entities = list_names(entity_columns, "entity_columns")
    kept = None if retention is None else write_duration(retention, "retention")
    parsed = parse_bucket(width, index_type=index_type)
    spec = TableSpec(
        "",
        column,
        parsed,
        entities,
        overlap,
        timezone,
        kept,
        is_unique=is_unique,
        writer=parse_writer(writer),
        token_columns=list_names(token_columns, "token_columns"),
    )
    if entities_max is None:
        return spec
    return replace(spec, entities_max=check_count(entities_max, "entities_max"))


def _choose_one(first: str, one: Any, second: str, other: Any) -> Any:
    """Return the value of two arguments of which exactly one must be given."""
    if (one is None) == (other is None):
        raise Invalid(
            f"a table needs exactly one of {second} and {first}",
            hint=f"pass {second}, or {first} instead",
        )
    return other if one is None else one


def declare_columns(columns: ColumnTypes | None, spec: TableSpec) -> Schema:
    """Return the columns that a new table declares; none if the first append adds them."""
    if columns is None:
        return Schema()
    if isinstance(columns, Mapping):
        fields = [pa.field(check_text(n, "schema"), parse_type(t)) for n, t in columns.items()]
        columns = pa.schema(fields)
    if not isinstance(columns, pa.Schema):
        hint = "pass a pyarrow.Schema, or a dict of types by name"
        raise wrong_kind("not the columns of a table", hint, "schema", columns)
    return create_columns(columns, spec)


def _compile_where(where: str, state: TableState, window: TimeWindow) -> tuple[Any, TimeWindow]:
    """Return the condition, and the window narrowed to the times at which it can be true."""
    from thermocline.query.sql.predicate import compile_predicate

    predicate = compile_predicate(where, state.schema.arrow)
    return predicate, window.intersect(*predicate.window(state.spec.time_column))
