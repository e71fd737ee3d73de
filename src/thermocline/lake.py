"""The lake of one tenant: its tables by name, with hot and cold rows, and SQL over them.

In:   names, rows, SQL; the node whose journal it shares
Out:  `Lake` and `LakeTable`, with one interface to hot and cold rows

- Each tenant has a separate folder and a separate engine session, without other tenants' tables.
- A write returns when its rows are durable, and every query that starts after it sees them once.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from thermocline.cold.care.pin import pin_version
from thermocline.cold.care.vacuum import GRACE_S_DEFAULT, check_grace
from thermocline.cold.catalog import Catalog, CatalogEntry
from thermocline.cold.change.export_plan import check_not_entities
from thermocline.cold.table import ColdTable
from thermocline.entity.model import ReadMode, mode_of
from thermocline.errors import NotFound, TableNotFound, ThermoclineError, Unavailable
from thermocline.format.argument import check_flag, check_renamed_flag, check_text
from thermocline.format.bucket import parse_duration_s
from thermocline.format.instant import to_datetime
from thermocline.format.log.action import ENTITIES_FEATURE, Mark
from thermocline.format.log.state import TableState
from thermocline.hot.tier import HotSnapshot
from thermocline.hot.wal.follower import FollowedTable
from thermocline.hot.wal.tier import WalTable, WalTier
from thermocline.lake_table import LakeTable, NoJournal, OpenReaders, OtherSources
from thermocline.query.session import Params, Session
from thermocline.query.source import check_table_name
from thermocline.query.worker.pool import QueryPool, TableRef
from thermocline.query.worker.running_query import ResultStream
from thermocline.table import At, ColumnTypes, declare_columns, new_spec

if TYPE_CHECKING:
    from thermocline.entity.table import EntityTable
    from thermocline.entity.types import EntityCatalog
    from thermocline.hot.postgres.revision.change import EntityChange, FeedPage
    from thermocline.hot.postgres.store.operation import WriteResult


class LakeHost(Protocol):
    """What a lake needs of its node."""

    pool: QueryPool | None
    flush_error: ThermoclineError | None
    storage_options: Mapping[str, str] | None

    @property
    def query_pool(self) -> QueryPool:
        """The workers that run queries; `Invalid` when queries run in this process."""
        ...

    @property
    def others(self) -> OtherSources | None:
        """The other nodes of the lake; None for a lake with one journal."""
        ...

    @property
    def tier(self) -> WalTier:
        """The journal and the hot rows."""
        ...

    def hot_table(
        self, tenant: str, entry: CatalogEntry, cold: ColdTable
    ) -> WalTable | FollowedTable | NoJournal:
        """Return the hot half of a tenant's table."""
        ...

    def forget_table(self, table_id: str) -> None:
        """Forget the name of a table that was dropped."""
        ...

    def check_open(self) -> None:
        """Raise when the node is closed, or was opened by another process."""
        ...

    def entity_types(self, tenant: str, catalog: Catalog) -> "EntityCatalog":
        """Return a tenant's entity types; `Invalid` if the node has no PostgreSQL."""
        ...

    def close(self, *, flush: bool = True) -> None:
        """Flush, and close the journal."""
        ...


class Lake:
    """Tables under one folder; `connect` opens one."""

    def __init__(
        self, node: LakeHost, catalog: Catalog, tenant: str, *, closes_node: bool = False
    ) -> None:
        self.node = node
        self.tenant = tenant
        self._closes_node = closes_node
        self._catalog = catalog
        self._lock = threading.RLock()
        self._tables: dict[str, LakeTable] = {}
        self._session = Session()
        self._registered: dict[str, LakeTable] = {}
        self._readers = OpenReaders(node.check_open)
        self._entities: EntityCatalog | None = None
        self._entities_lock = threading.Lock()  # separate: opening PostgreSQL must not block tables

    @property
    def tier(self) -> WalTier:
        """The journal and the hot rows; `Invalid` if the lake is open for reading only."""
        return self.node.tier

    @property
    def flush_error(self) -> ThermoclineError | None:
        """The error of the last flush by the clock; None if it succeeded."""
        return self.node.flush_error

    def root(self) -> str:
        """Return the lake's folder."""
        return self._catalog.root

    def create_table(
        self,
        name: str,
        *,
        time_column: str | None = None,
        bucket: str | timedelta | int | None = None,
        entity_columns: str | Sequence[str] | None = (),
        overlap: str = "allow",
        schema: ColumnTypes | None = None,
        **more: Any,
    ) -> LakeTable:
        """Create a table; takes the arguments of `TimeSeriesTable.create`.

        `Conflict` when there is one of this name.
        """
        _ = self.tier
        check_table_name(name)
        spec = new_spec(time_column, bucket, entity_columns, overlap=overlap, **more)
        self._catalog.create(name, spec, declare_columns(schema, spec))
        return self.table(name)

    def table(self, name: str) -> LakeTable:
        """Return a table; `NotFound` when there is none of this name."""
        key = check_text(name, "name").lower()
        self.check_open()
        with self._lock:
            known = self._tables.get(key)
            if known is None or (self._catalog.is_read_only and self._is_stale(known, name)):
                known = self._tables[key] = self._open_table(self._catalog.find_entry(name))
            return known

    def _is_stale(self, known: LakeTable, name: str) -> bool:
        """Tell whether the process that writes the lake gave a name to another table."""
        return self._catalog.find_entry(name).table_id != known.cold.state().spec.table_id

    def _open_table(self, entry: CatalogEntry) -> LakeTable:
        cold = self._catalog.table(entry.name)
        hot = self.node.hot_table(self.tenant, entry, cold)
        if ENTITIES_FEATURE in cold.state().spec.features:
            return EntityLakeTable(self, entry.name, cold, hot, self._readers)
        # A node's clients write conditions: those are parsed and evaluated in workers only.
        pool = self.node.pool
        opened = None if pool is None else partial(pool.open_condition, tenant=self.tenant)
        return LakeTable(entry.name, cold, hot, self._readers, opened, self.node.others)

    def tables(self) -> list[str]:
        """Return the names of the tables, in order."""
        self.check_open()
        return [named.name for named in self._catalog]

    def rename_table(self, name: str, to: str) -> LakeTable:
        """Give a table another name; its rows, hot ones too, and its history stay.

        When this returns, the new name is durable, and the old one leads nowhere. `Conflict` when
        there is a table of the new name.
        """
        _ = self.tier
        check_table_name(to)
        table = self.table(name)
        _check_renamable(table, "rename")
        with table.alone("rename a table"), self._lock:
            try:
                self._catalog.rename(table.name, to)
            finally:
                self._follow_name(table, to)
            return self.table(to)

    def _follow_name(self, table: LakeTable, to: str) -> None:
        """Know a table by its new name, if it has it: an error may have come after the change."""
        try:
            named = self._catalog.find_entry(to)
        except ThermoclineError:
            return
        if named.table_id == table.cold.state().spec.table_id:
            self._tables.pop(table.name.lower(), None)
            table.name = named.name
            self._tables[named.name.lower()] = table
            self.node.hot_table(self.tenant, named, table.cold)

    def drop_table(self, name: str) -> None:
        """Remove a table from the lake; `undrop_table` brings it back until a vacuum.

        Hot rows are flushed before, so that they come back, too. Queries that run read on. When
        this returns, the drop is durable, and no write to the table is accepted any more.
        """
        _ = self.tier
        table = self.table(name)
        _check_renamable(table, "drop")
        table_id = table.cold.state().spec.table_id
        # Order matters: writes are blocked until the name is gone, so that every acknowledged row
        # is in the version that an undo brings back.
        with table.alone("drop a table"), table.block_writes():
            table.flush_hot()
            with self._lock:
                try:
                    self._catalog.drop(table.name)
                finally:
                    self._follow_drop(table, table_id)

    def _follow_drop(self, table: LakeTable, table_id: str) -> None:
        """Forget a table that has no name any more."""
        try:
            if self._catalog.find_entry(table.name).table_id == table_id:
                return
        except NotFound:
            pass
        except ThermoclineError:
            return
        self._tables.pop(table.name.lower(), None)
        self.node.forget_table(table_id)
        table.mark_dropped()

    def dropped_tables(self) -> pa.Table:
        """Return the dropped tables that can be brought back: table, dropped; the newest first."""
        self.check_open()
        found = sorted(self._catalog.list_dropped(), key=lambda one: -one.dropped_ns)
        return pa.table(
            {
                "table": pa.array([one.name for one in found], pa.string()),
                "dropped": pa.array(
                    [to_datetime(one.dropped_ns) for one in found], pa.timestamp("us", "UTC")
                ),
            }
        )

    def undrop_table(self, name: str, to: str | None = None) -> LakeTable:
        """Bring back the table that was dropped last under a name, as `to` if that is given.

        `NotFound` when there is none, or a vacuum has removed it; `Conflict` when there is a table
        of the name.
        """
        _ = self.tier
        check_text(name, "name")
        if to is not None:
            check_table_name(to)
        with self._lock:
            return self.table(self._catalog.undrop(name, to).name)

    def copy_table(self, name: str, to: str, *, at: At = None) -> LakeTable:
        """Make a new table with the rows of another, now or at a version or instant.

        The files are shared where the file system can link them, so a copy costs little space. The
        copy has no history, and what is written to one is not in the other. Without `at`, hot rows
        are flushed before, so that the copy has them.
        """
        _ = self.tier
        check_table_name(to)
        source = self.table(name)
        _check_renamable(source, "copy")
        if at is None:
            source.flush_everywhere()
        with pin_version(source.cold, source.cold.state(at).version) as version:
            self._catalog.copy(source.cold, source.cold.state(version), to)
        return self.table(to)

    def vacuum_dropped(
        self,
        *,
        dry_run: bool = True,
        grace: str | timedelta | None = None,
        allow_short_grace: bool = False,
    ) -> list[str]:
        """Remove the files of tables that were dropped longer ago than the grace period.

        By default only return which they are. After this they cannot be brought back. A table that
        a reader reads stays until the reader ends.
        """
        _ = self.tier
        grace_s = GRACE_S_DEFAULT if grace is None else parse_duration_s(grace, "grace")
        check_grace(grace_s, allow_short_grace=check_flag(allow_short_grace, "allow_short_grace"))
        found = self._catalog.purge(grace_s, dry_run=check_flag(dry_run, "dry_run"))
        return [one.name for one in found]

    @property
    def entities(self) -> "EntityCatalog":
        """The entity types of the tenant; `Invalid` if the lake has no PostgreSQL."""
        self.check_open()
        with self._entities_lock:
            if self._entities is None:
                self._entities = self.node.entity_types(self.tenant, self._catalog)
            return self._entities

    def entity_types(self) -> list[str]:
        """Return the names of the entity types, in order."""
        return self.entities.names()

    def register(self, name: str, document: Any) -> "EntityTable":
        """Register a JSON Schema as a type of entities, or as its next version."""
        _ = self.tier
        return self.entities.register(name, document)

    def entity(self, name: str) -> "EntityTable":
        """Return the entities of a type; `NotFound` when none of this name is registered.

        If PostgreSQL was never available, the result reads from the lake alone, in mode
        `best_effort` only.
        """
        try:
            return self.entities.table(name)
        except Unavailable as error:
            from thermocline.entity.types import open_without_postgres

            return open_without_postgres(self._catalog, name, error)

    def transact(
        self, operations: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> "list[WriteResult]":
        """Write entities of several types in one transaction: all of them or none.

        An operation is a dict like in `bulk`, with the name of its `type`. A failure is raised with
        the operation's index as the fact `item`. If a transaction with the same `idempotency_key`
        has been committed, nothing is written again, and the answer is the one of that time.
        """
        return self.entities.transact(operations, idempotency_key=idempotency_key)

    def changes(
        self,
        types: str | Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
        *,
        wait_s: float = 0.0,
    ) -> "FeedPage":
        """Return the next committed changes of entities of some types, or of all, in feed order.

        Every change after the position `after` comes exactly once, in the same order for every
        reader. Without a position the page begins with the oldest change that is kept. If there is
        no change yet, wait for one up to `wait_s`. `FeedExpired` if changes after the position are
        no longer kept: start again from a snapshot.
        """
        from thermocline.entity.follow import parse_feed_arguments, wait_for_page

        asked = parse_feed_arguments(types, after, limit, wait_s)
        entities = self.entities
        return wait_for_page(
            lambda at: entities.changes(asked.types, at, asked.limit), asked.after, asked.wait_s
        )

    def feed_position(self) -> str:
        """Return the feed's position of now.

        To begin with a snapshot, take the position, read the entities, then follow the feed from
        the position; skip a change whose `ver` is not above the version that was read.
        """
        return self.entities.feed.position()

    def follow(
        self,
        types: str | Sequence[str] | None = None,
        after: str | None = None,
        *,
        idle_s: float | None = None,
    ) -> "Iterator[EntityChange]":
        """Yield committed changes of entities one by one, and wait for more.

        It ends when no change came for `idle_s`; without `idle_s` it never ends. To resume, store
        the `position` of the last change that was processed and pass it as `after`.
        """
        from thermocline.entity.follow import follow_pages

        return follow_pages(self.changes, types, after, idle_s)

    def sql(
        self, query: str, params: Params = None, *, mode: ReadMode | str | None = None
    ) -> pa.Table:
        """Return the answer of one SELECT over the hot and cold rows of the lake's tables.

        `mode` says how to answer queries of entities while PostgreSQL is down. The report of
        `answer` says how exact such an answer is.
        """
        if self.node.pool is not None:
            return self.node.pool.sql(
                query, params, tables=self.references(mode), tenant=self.tenant
            )
        with _use_mode(mode):
            return self._open_session().sql(query, params)

    def sql_reader(
        self, query: str, params: Params = None, *, mode: ReadMode | str | None = None
    ) -> pa.RecordBatchReader:
        """Return the answer of one SELECT as a stream of batches."""
        if self.node.pool is not None:
            return self.answer(query, params, mode=mode)
        with _use_mode(mode):
            reader = self._open_session().sql_reader(query, params)
        self._readers.keep(reader)
        return reader

    def answer(
        self,
        query: str,
        params: Params = None,
        *,
        timeout_s: float | None = None,
        query_id: str | None = None,
        mode: ReadMode | str | None = None,
    ) -> ResultStream:
        """Return the answer as a stream that can be cancelled and reports what it was read from.

        `mode` says how to answer queries of entities while PostgreSQL is down: for `best_effort`
        and `cached` answers the report of the table has a warning. `Invalid` in a lake without
        query workers.
        """
        return self.node.query_pool.sql_reader(
            query,
            params,
            tables=self.references(mode),
            timeout_s=timeout_s,
            query_id=query_id,
            tenant=self.tenant,
        )

    def cancel(self, query_id: str) -> bool:
        """Cancel a query within a second; False when none of this id waits or runs."""
        check_text(query_id, "query_id")
        self.check_open()
        pool = self.node.pool
        return pool is not None and pool.queue.cancel(query_id, self.tenant)

    def references(self, mode: ReadMode | str | None) -> list[TableRef]:
        """Return a reference to every table of the lake, for a worker process."""
        self.check_open()
        asked = _parse_mode(mode)
        tables = []
        for name in self.tables():
            with suppress(TableNotFound):  # dropped since the names were read
                tables.append(self.table(name))
        return [
            TableRef(
                one.name,
                one.root(),
                self.node.storage_options,
                hot=partial(_take_snapshot, one, asked),
            )
            for one in tables
        ]

    def _open_session(self) -> Session:
        """Return the session, after registering every table of the lake."""
        self.check_open()
        with self._lock:
            names = self.tables()
            for gone in self._registered.keys() - set(names):
                self._session.deregister(gone)
                del self._registered[gone]
            for name in names:
                try:
                    table = self.table(name)
                except TableNotFound:
                    continue  # dropped since the names were read
                if self._registered.get(name) is not table:
                    take = partial(_take_snapshot, table)
                    self._session.register_view(name, table.cold, take)
                    self._registered[name] = table
        return self._session

    def flush(self, name: str | None = None) -> dict[str, Mark]:
        """Flush hot rows into the lake, of one table or of all; return the marks reached.

        When this returns, all rows that were hot when it was called are in committed versions.
        If one table fails, the others are still flushed; the error is raised at the end.
        """
        reached: dict[str, Mark] = {}
        trouble: ThermoclineError | None = None
        for one in self.tables() if name is None else [name]:
            try:
                table = self.table(one)
                mark = table.flush_hot()
            except ThermoclineError as error:
                trouble = error  # go on with the other tables
                continue
            if mark is not None:
                reached[table.name] = mark
        if trouble is not None:
            raise trouble
        return reached

    def check_open(self) -> None:
        """Raise `Unavailable` when the lake is closed."""
        self.node.check_open()

    def close_session(self) -> None:
        """End the readers, release the pins and close the session; the node calls this."""
        self._readers.close()
        self._session.close()

    def close(self, *, flush: bool = True, is_flushed: bool | None = None) -> None:
        """Flush and close the journal, if this lake was opened by `connect`.

        Rows that are not flushed stay in the journal. `is_flushed` is the old name of `flush`.
        """
        flush = check_renamed_flag(flush, "flush", is_flushed, "is_flushed")
        if self._closes_node:
            self.node.close(flush=flush)

    def __repr__(self) -> str:
        return f"Lake({self.root()!r}, tables={[one.name for one in self._catalog]})"

    def _repr_html_(self) -> str:
        from thermocline.show import list_html

        found = [self.table(name).info() for name in self.tables()]
        lines = [
            (one["name"], f"{one['rows'] + one['hot_rows']:,} rows, version {one['version']:,}")
            for one in found
        ]
        return list_html("lake", self.root(), lines)

    def __enter__(self) -> "Lake":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_renamable(table: LakeTable, operation: str) -> None:
    """Raise `Invalid` for a table of entities, whose type has its name in PostgreSQL, too."""
    check_not_entities(table.cold.state().spec, operation)


_mode: ContextVar[ReadMode | None] = ContextVar("thermocline_mode", default=None)
"""The read mode of the query that this thread prepares."""


def _parse_mode(mode: ReadMode | str | None) -> ReadMode | None:
    return None if mode is None else mode_of(mode)


@contextmanager
def _use_mode(mode: ReadMode | str | None) -> Iterator[None]:
    """Set the read mode of the snapshots that this thread takes in the block."""
    token = _mode.set(_parse_mode(mode))
    try:
        yield
    finally:
        _mode.reset(token)


def _take_snapshot(table: LakeTable, mode: ReadMode | None = None) -> HotSnapshot:
    """Return a table's hot rows, as the mode of a query asks; without one, that of the thread."""
    asked = mode or _mode.get()
    if isinstance(table, EntityLakeTable):
        return table.snapshot(asked)
    return table.snapshot(is_strict=asked is not ReadMode.BEST_EFFORT)


class EntityLakeTable(LakeTable):
    """The rows of an entity type as a table: those that are not in the lake are in PostgreSQL."""

    is_keyed = True

    def __init__(
        self,
        lake: Lake,
        name: str,
        cold: ColdTable,
        hot: WalTable | FollowedTable | NoJournal,
        readers: OpenReaders,
    ) -> None:
        super().__init__(name, cold, hot, readers)
        self._lake = lake

    def snapshot(self, mode: ReadMode | None = None, *, is_strict: bool = True) -> HotSnapshot:
        """Return the hot rows from PostgreSQL; `mode` says what to do while it is down."""
        del is_strict  # the mode says it
        self._readers.check_open()
        return self._lake.entity(self.name).snapshot(mode=mode or _mode.get())

    def _check_accepts_rows(self, state: TableState) -> None:
        check_not_entities(state.spec, "write")

    def flush_hot(self) -> None:
        """Export the changes that are only in PostgreSQL."""
        self._lake.entity(self.name).export()
