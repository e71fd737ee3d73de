"""A node: one journal for the tables of all its tenants, and the clock that flushes them.

In:   a data folder, settings; the place of the lake, if it is not the data folder
Out:  the lake of each tenant

- Only this module names concrete tiers. A node closes in the reverse order of opening.
- Flushes run concurrently with writers and readers: when much is hot, when rows have been hot for
  long, on demand and at `close`. A failed flush is retried; its rows stay hot and durable.
- The lake may be an object store, or a folder that is not the data folder. Names, tables and logs
  are there; the journal and the copies of segments stay in the data folder. Several nodes may serve
  such a lake, each with its journal. A node registers before it acknowledges a row, and
  leaves when no row is only in its journal.
- A read-only node follows the journal of the process that writes it. It writes no rows; it pins
  the versions it reads, as every reader does.
"""

import atexit
import hashlib
import os
import threading
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from thermocline.cold.catalog import (
    JOURNAL_FOLDER,
    LAKE_HINT,
    LAKE_PATH,
    TABLES_FOLDER,
    TENANTS_FOLDER,
    Catalog,
    CatalogEntry,
    LakeIdentity,
)
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.storage.open_storage import is_store_address, open_storage
from thermocline.cold.table import ColdTable
from thermocline.cold.tenants import TenantCatalog
from thermocline.config import LakeSettings
from thermocline.disk import Disk, OsDisk
from thermocline.errors import (
    Conflict,
    Corruption,
    Invalid,
    NotFound,
    Overloaded,
    TableNotFound,
    ThermoclineError,
    Unavailable,
)
from thermocline.extras import require_extra
from thermocline.format import layout
from thermocline.format.instant import NS_PER_US, TimeNs
from thermocline.format.log.action import Mark
from thermocline.format.log.commit_note import NoteHole
from thermocline.hot.tier import HotSnapshot
from thermocline.hot.wal.folder import read_identity
from thermocline.hot.wal.follower import FollowedTable, JournalFollower
from thermocline.hot.wal.recovery import RecoveryReport
from thermocline.hot.wal.repair.quarantine import RejectedFrame, set_aside
from thermocline.hot.wal.tier import WalTable, WalTier
from thermocline.lake import Lake
from thermocline.lake_table import LakeTable, NoJournal, OtherSources, read_only_error
from thermocline.names import DEFAULT_TENANT
from thermocline.peers.peers import Peers
from thermocline.peers.registry import SourceRegistry
from thermocline.query.worker.pool import QueryPool

if TYPE_CHECKING:
    from thermocline.entity.postgres_service import PostgresService
    from thermocline.entity.types import EntityCatalog

OWNED_CHECK_S = 5.0


class Node:
    """The tenants under one folder, with one journal."""

    def __init__(
        self,
        root: str,
        settings: LakeSettings | None = None,
        *,
        lake: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        is_read_only: bool = False,
        disk: Disk | None = None,
        now_ns: Callable[[], int] | None = None,
        closes_with_lake: bool = False,
        url: str = "",
    ) -> None:
        """`root` is the data folder; `lake` is where the tables are, by default the same folder.

        `url` is where other nodes of the lake can ask this process for its hot rows.
        With `closes_with_lake`, closing the default tenant's lake closes the node.
        """
        self._settings = settings or LakeSettings()
        self._disk = disk or OsDisk()
        self._is_read_only = is_read_only
        self._now_ns = now_ns
        self._data = os.path.abspath(root)
        self.storage_options = _add_cache(lake, storage_options, self._settings, self._data)
        place = root if lake is None else open_storage(lake, self.storage_options, "lake")
        self._tenants = TenantCatalog(place, self._disk)
        self._is_elsewhere = lake is not None
        self._url = url
        self.peers: Peers | None = None
        self._catalogs: dict[str, Catalog] = {}
        self._lakes: dict[str, Lake] = {}
        self._table_names: dict[bytes, tuple[str, str]] = {}  # tenant and name by id
        self._closes_with_lake = closes_with_lake
        self._process = os.getpid()
        self._lock = threading.RLock()
        # Tables in an object store need the network and its credentials.
        folders = [f"{self._data}/{TABLES_FOLDER}", f"{self._data}/{TENANTS_FOLDER}"]
        self.pool = _open_query_pool(self._settings, folders if lake is None else [])
        if self.pool is not None:
            self.pool.queue.is_shared = lambda: len(self.tenants()) > 1
        self._is_closing = self._is_closed = False
        self._fenced: Conflict | None = None
        self._owned_s = clock.monotonic()
        self._entities = _open_entity_half(self._settings, self._data, is_read_only=is_read_only)
        self._wake = threading.Event()
        self._tier: WalTier | None = None
        self._follower: JournalFollower | None = None
        self.flush_error: ThermoclineError | None = None
        # The last errors by tenant and table, because a tenant sees only its own.
        self._flush_errors: dict[tuple[str, str], ThermoclineError] = {}
        self._export_errors: dict[tuple[str, str], ThermoclineError] = {}
        if is_read_only:
            self._open_for_reading()
        else:
            self._tier = self._open_journal()
        self._clock: threading.Thread | None = None
        if self._tier is not None:
            self._clock = threading.Thread(
                target=self._run_clock, name="thermocline-flush", daemon=True
            )
            self._clock.start()
            if self._entities is not None:
                self._entities.start_exports(self._list_exports)
        # A node that is not closed closes with the process. Its hot rows stay in the journal.
        atexit.register(self.close, flush=False)

    def _open_for_reading(self) -> None:
        """Check the names, and follow the journal in the data folder if there is one."""
        catalog = self._catalog(DEFAULT_TENANT)
        identity = catalog.identity()
        if identity is None:
            raise NotFound("there is no lake here", hint="check the path", folder=catalog.root)
        self._check_names(catalog, identity)
        journal = read_identity(self._disk, self._journal_folder)
        self._find_peers(identity, None if journal is None else journal.journal_id.hex())
        if self.peers is None or journal is not None:
            self._follower = JournalFollower(self._disk, self._journal_folder)

    @property
    def others(self) -> OtherSources | None:
        """The other nodes of the lake; None for a lake with one journal."""
        return self.peers

    def _find_peers(self, identity: LakeIdentity, own_source: str | None) -> None:
        if identity.is_shared:
            registry = SourceRegistry(self._tenants.lake, identity.lake_id)
            self.peers = Peers(registry, own_source)

    def hot_rows_of(self, table_id: bytes) -> HotSnapshot:
        """Return the rows of a table that are only in this process's journal and memory."""
        for hot in self.tier.tables():
            if hot.table_id == table_id:
                return hot.snapshot()
        return HotSnapshot(self.tier.source, Mark(0))

    def flush_table(self, table_id: bytes) -> None:
        """Flush one table, if it has hot rows here."""
        if self.hot_rows_of(table_id).parts:
            self._find_table(table_id).flush_hot()

    @property
    def _journal_folder(self) -> str:
        return f"{self._data}/{JOURNAL_FOLDER}"

    @property
    def tier(self) -> WalTier:
        """The journal and the hot rows; `Invalid` if the node is open for reading only."""
        self.check_open()
        if self._tier is None:
            raise read_only_error()
        return self._tier

    @property
    def query_pool(self) -> QueryPool:
        """The workers that run queries; `Invalid` when queries run in this process."""
        self.check_open()
        if self.pool is None:
            hint = "connect with query_workers"
            raise Invalid("queries of this lake run in its own process", hint=hint)
        return self.pool

    @property
    def export_error(self) -> ThermoclineError | None:
        """The error of the last export of entities by the clock; None if it succeeded."""
        return None if self._entities is None else self._entities.error

    @property
    def recovered(self) -> RecoveryReport:
        """What the journal recovered when it was opened."""
        return self.tier.recovery_report

    def lake(self, tenant: str = DEFAULT_TENANT) -> Lake:
        """Return the lake of a tenant; `NotFound` for an unknown tenant."""
        with self._lock:
            if tenant not in self._lakes:
                self._lakes[tenant] = Lake(
                    self,
                    self._catalog(tenant),
                    tenant,
                    closes_node=self._closes_with_lake and tenant == DEFAULT_TENANT,
                )
            return self._lakes[tenant]

    def tenants(self) -> list[str]:
        """Return the names of the tenants."""
        return list(self._tenants)

    def create_tenant(self, name: str) -> Lake:
        """Create a tenant and return its lake; `Conflict` when there is one of this name."""
        _ = self.tier
        self._tenants.create(name)
        return self.lake(name)

    def hot_table(
        self, tenant: str, entry: CatalogEntry, cold: ColdTable
    ) -> WalTable | FollowedTable | NoJournal:
        """Return the hot half of a tenant's table, which a flush finds by its id from now on."""
        table_id = bytes.fromhex(entry.table_id)
        if self._follower is not None:
            return self._follower.table(table_id)
        if self._is_read_only:
            return NoJournal(table_id)
        tier = self.tier
        self._table_names[table_id] = tenant, entry.name
        return tier.table(table_id, cold.state().marks.get(tier.source, Mark(0)))

    def forget_table(self, table_id: str) -> None:
        """Forget the name of a table that was dropped."""
        self._table_names.pop(bytes.fromhex(table_id), None)

    def entity_types(self, tenant: str, catalog: Catalog) -> "EntityCatalog":
        """Return a tenant's entity types; `Invalid` if the node has no PostgreSQL."""
        self.check_open()
        if self._entities is None:
            hint = "set postgres to a DSN, or to embedded for a server that the lake starts"
            raise Invalid("this lake has no entities", hint=hint)
        if self.pool is None:
            return self._entities.types(tenant, catalog)
        from thermocline.query.worker.contract_proof import evolve_in_worker

        # Clients write contracts: what may take long is proved in a worker.
        return self._entities.types(tenant, catalog, partial(evolve_in_worker, self.pool, tenant))

    def check_open(self) -> None:
        """Raise `Unavailable` if the node is closed, `Invalid` if another process opened it."""
        if self._is_closed:
            raise Unavailable("the lake is closed", hint="connect again")
        if self._fenced is not None:
            raise self._fenced
        if os.getpid() != self._process:
            # The hot rows in this process are a copy from the time of the fork and never change.
            hint = "connect again in this process, with read_only"
            raise Invalid("the lake was opened by the process that forked this one", hint=hint)

    def _catalog(self, tenant: str) -> Catalog:
        with self._lock:
            if tenant not in self._catalogs:
                self._catalogs[tenant] = Catalog(
                    self._tenants.storage(tenant),
                    self._disk,
                    lake=self._tenants.lake,
                    is_read_only=self._is_read_only,
                    now_ns=self._now_ns,
                )
            return self._catalogs[tenant]

    def _check_names(self, catalog: Catalog, identity: LakeIdentity) -> None:
        _check_lake(self._disk, catalog, identity, self._journal_folder)
        self._tenants.check_names()
        for tenant in self._tenants:
            self._catalog(tenant).check_names()

    def _table_mark(self, table_id: bytes, source: str) -> Mark | None:
        return _find_mark(map(self._catalog, self._tenants), table_id, source)

    def _tables(self) -> Iterator[tuple[str, Catalog, CatalogEntry]]:
        for tenant in self._tenants:
            catalog = self._catalog(tenant)
            for entry in catalog:
                yield tenant, catalog, entry

    def flush(self) -> None:
        """Flush the hot rows of every table of every tenant.

        If one table fails, the others are still flushed; the error is raised at the end.
        """
        self._flush_each(self.tier.tables())

    def _flush_each(self, due: list[WalTable]) -> None:
        trouble: ThermoclineError | None = None
        for hot in due:
            if not hot.snapshot().parts:
                continue
            owner = self._table_names.get(hot.table_id, ("", ""))
            try:
                self._find_table(hot.table_id).flush_hot()
                self._flush_errors.pop(owner, None)
            except ThermoclineError as error:
                if isinstance(error, NotFound) and not hot.snapshot().parts:
                    continue  # the table was dropped meanwhile, after its rows were flushed
                trouble = error  # go on with the other tables
                self._flush_errors[owner] = error
        if trouble is not None:
            raise trouble

    def _run_clock(self) -> None:
        while True:
            self._wake.wait(self._settings.flush_look_s)
            self._wake.clear()
            if self._is_closed:
                return
            try:
                self._check_owned()
                self._flush_each(self._list_due())
                self.flush_error = None
            except ThermoclineError as error:
                self.flush_error = error  # the rows stay hot and durable; the next round retries
            except Exception as error:  # noqa: BLE001  the clock must not stop
                self.flush_error = Unavailable("a flush failed", why=repr(error))

    def _check_owned(self) -> None:
        """Stop serving when another process has taken over the journal."""
        if self.peers is None or clock.monotonic() - self._owned_s < OWNED_CHECK_S:
            return
        try:
            self.peers.check_owned()
            self._owned_s = clock.monotonic()
        except Conflict as error:
            self._fenced = error
            raise

    def _list_due(self) -> list[WalTable]:
        """Return the tables with rows that are old, or all tables if memory is short; by size."""
        tier = self.tier
        old_s = clock.monotonic() - self._settings.flush_age_s
        is_full = tier.hot_bytes * 2 > tier.hot_bytes_max
        return [
            hot
            for hot in sorted(tier.tables(), key=lambda one: -one.buffer.size_bytes)
            if (hot.hot_since_s is not None and hot.hot_since_s <= old_s)
            or (is_full and hot.buffer.size_bytes)
        ]

    def _list_exports(self) -> Iterator[Callable[[], object]]:
        """Yield the export task of every entity table, for the export clock."""
        for tenant in self._tenants:
            lake = self.lake(tenant)
            for name in lake.tables():
                if lake.table(name).is_keyed:
                    yield partial(self._export, tenant, name)

    def _export(self, tenant: str, name: str) -> None:
        try:
            self.lake(tenant).entity(name).export_if_due()
        except ThermoclineError as error:
            self._export_errors[tenant, name] = error
            raise
        self._export_errors.pop((tenant, name), None)

    def errors_of(self, tenant: str) -> tuple[ThermoclineError | None, ThermoclineError | None]:
        """Return the last error of flushing a tenant's tables, and of exporting its entities."""
        flushing, exporting = (
            [error for (owner, _), error in list(errors.items()) if owner == tenant]
            for errors in (self._flush_errors, self._export_errors)
        )
        return flushing[-1] if flushing else None, exporting[-1] if exporting else None

    def _find_table(self, table_id: bytes) -> LakeTable:
        named = None
        while self._table_names.get(table_id) != named:  # again, if it was renamed meanwhile
            named = self._table_names[table_id]
            with suppress(TableNotFound):
                table = self.lake(named[0]).table(named[1])
                if table.hot().table_id == table_id:
                    return table
        hint = "`thermocline journal inspect` shows the rows"
        raise NotFound("no table has the id of these hot rows", hint=hint, id=table_id.hex())

    def close(self, *, flush: bool = True) -> None:
        """Flush, and close the journal. Rows that cannot be flushed stay in the journal.

        In a forked process this does nothing: the journal belongs to the parent process.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        atexit.unregister(self.close)
        try:
            if self._tier is not None and flush:
                with suppress(Unavailable, Overloaded, Conflict):
                    self.flush()
        finally:
            self._release()

    def _release(self) -> None:
        """Stop the clock and release all resources, in the reverse order of opening."""
        self._is_closed = True
        self._wake.set()
        if self._clock is not None:
            self._clock.join()
        with ExitStack() as held:
            if self.peers is not None:
                held.callback(self.peers.close)
            if self._tier is not None:
                held.callback(self._leave)
                held.callback(self._tier.close)
            if self._entities is not None:
                held.callback(self._entities.close, stop_embedded=not self._is_read_only)
            if self.pool is not None:
                held.callback(self.pool.close)
            for lake in list(self._lakes.values()):
                held.callback(lake.close_session)

    def _leave(self) -> None:
        """Leave the list of sources if no row is only in the journal, which is closed now."""
        if self.peers is None or self._tier is None:
            return
        if not any(hot.snapshot().parts for hot in self._tier.tables()):
            with suppress(ThermoclineError):  # it stays listed: the next start leaves
                self.peers.leave()

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_journal(self) -> WalTier:
        """Open the journal; in a folder without a lake, create one."""
        catalog = self._catalog(DEFAULT_TENANT)
        identity = catalog.identity()
        LocalStorage(self._data, self._disk).make_root()
        if identity is None:
            catalog.make_folder()
        else:
            self._check_names(catalog, identity)
        tier = WalTier(
            self._disk,
            self._journal_folder,
            self._table_mark,
            self._settings.wal,
            expected=None if identity is None or identity.is_shared else identity.journal_id,
            on_pressure=self._wake.set,
            **({} if self._now_ns is None else {"now_ns": self._now_ns}),
        )
        try:
            if identity is None:
                identity = catalog.create_lake(tier.source, is_shared=self._is_elsewhere)
                if identity.journal_id != tier.source and not identity.is_shared:
                    raise _other_node_error(catalog)
            self._find_peers(identity, tier.source)
            if self.peers is not None:
                # Order matters: a source registers before its first row is acknowledged.
                has_rows = any(hot.snapshot().parts for hot in tier.tables())
                self.peers.register(self._url, has_rows=has_rows)
            for tenant in self._tenants:
                self._catalog(tenant).finish_renames()
            for tenant, owner, entry in self._tables():
                self._table_names[bytes.fromhex(entry.table_id)] = tenant, entry.name
                _check_journal(tier, entry, owner.table(entry.name))
        except BaseException:
            tier.close()
            raise
        return tier


def open_lake(
    root: str | os.PathLike[str], settings: LakeSettings | None = None, **how: Any
) -> Lake:
    """Open a node and return its default tenant's lake; closing the lake closes the node."""
    return Node(os.fspath(root), settings, closes_with_lake=True, **how).lake()


def default_data_folder(address: str) -> str:
    """Return the user's folder for the journal of a lake in an object store."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    name = hashlib.sha256(address.rstrip("/").encode()).hexdigest()[:32]
    return f"{home}/thermocline/nodes/{name}"


def set_aside_frames(root: str, *, dry_run: bool, disk: Disk | None = None) -> list[RejectedFrame]:
    """Move the frames that belong to no table of a lake into its journal's quarantine.

    Returns these frames. Raises while a name of the lake is damaged: restore the name instead, and
    the table gets its frames.
    """
    disk = disk or OsDisk()
    tenants = TenantCatalog(root, disk)
    tenants.check_names()
    catalogs = [
        Catalog("/".join(filter(None, (root, tenants.folder(one)))), disk, is_read_only=True)
        for one in tenants
    ]
    identity = catalogs[0].identity()
    if identity is None:
        raise NotFound("there is no lake here", hint="check the path", folder=root)
    _check_lake(disk, catalogs[0], identity, catalogs[0].journal_folder)
    for catalog in catalogs:
        catalog.check_names()

    def mark_of(table_id: bytes, source: str) -> Mark | None:
        return _find_mark(catalogs, table_id, source)

    return set_aside(disk, catalogs[0].journal_folder, mark_of, dry_run=dry_run)


def _find_mark(catalogs: Iterable[Catalog], table_id: bytes, source: str) -> Mark | None:
    """Return the mark of a source that a table has reached; None when no table has the id.

    A dropped table has its mark, too: its rows were flushed before it was dropped.
    """
    key = table_id.hex()
    searched = list(catalogs)
    for catalog in searched:
        for named in catalog:
            if named.table_id == key:
                return catalog.table(named.name).state().marks.get(source, Mark(0))
    for catalog in searched:
        mark = catalog.dropped_mark(key, source)
        if mark is not None:
            return mark
    return None


def _check_lake(disk: Disk, catalog: Catalog, identity: LakeIdentity, folder: str) -> None:
    """Raise if `lake.json` belongs to another journal than the one in the folder.

    `Corruption` where the journal is beside `lake.json`; `Conflict` where the lake is elsewhere:
    then it is the lake of another node.
    """
    if identity.is_shared:
        return
    journal = read_identity(disk, folder)
    if folder != catalog.journal_folder:
        if journal is None or journal.journal_id.hex() != identity.journal_id:
            raise _other_node_error(catalog)
    elif journal is not None and journal.journal_id.hex() != identity.journal_id:
        raise Corruption(
            "lake.json names another journal than the one beside it",
            hint=LAKE_HINT,
            path=f"{catalog.root}/{LAKE_PATH}",
            expected=identity.journal_id,
            found=journal.journal_id.hex(),
        )


def _other_node_error(catalog: Catalog) -> Conflict:
    """Return the error of a data folder whose journal is not the lake's."""
    return Conflict(
        "the lake belongs to the journal in another data folder",
        hint="start it with the data folder that it was created with: rows that were not flushed "
        "are only there",
        lake=catalog.root,
    )


def _add_cache(
    lake: str | None, options: Mapping[str, str] | None, settings: LakeSettings, data: str
) -> Mapping[str, str] | None:
    """Return the options of a lake's store, with a cache in the data folder."""
    if lake is None or not is_store_address(lake):
        if options:
            hint = "omit them, or name the address of an object store"
            raise Invalid("a folder takes no options", hint=hint, options=sorted(options))
        return None
    cache = {"cache_folder": f"{data}/cache", "cache_bytes_max": str(settings.cache_bytes_max)}
    return {**cache, **(options or {})}


def _open_entity_half(
    settings: LakeSettings, root: str, *, is_read_only: bool
) -> "PostgresService | None":
    if not settings.postgres:
        return None
    with require_extra("entities", feature="the setting postgres", instead="omit the setting"):
        from thermocline.entity.postgres_service import PostgresService
    return PostgresService(settings, root, is_read_only=is_read_only)


def _open_query_pool(settings: LakeSettings, folders: Sequence[str]) -> QueryPool | None:
    if not settings.query_workers:
        return None
    return QueryPool(
        workers=settings.query_workers,
        memory_bytes=settings.query_memory_bytes,
        timeout_s=settings.query_timeout_s,
        folders=folders,
    )


def _check_journal(tier: WalTier, named: CatalogEntry, table: ColdTable) -> None:
    """Raise if the journal or the table lacks flushed rows; record the holes of a repair."""
    mark = table.state().marks.get(tier.source, Mark(0))
    if mark >= tier.next_lsn:
        raise Corruption(
            "the journal ends before what was flushed from it",
            hint="its last file was cut or replaced; restore it from a copy",
            table=named.name,
            flushed=mark,
            next_lsn=tier.next_lsn,
        )
    retired = tier.retired_mark(bytes.fromhex(named.table_id))
    if mark < retired:
        raise Corruption(
            "the table's log is behind what the journal flushed to it: commits were lost",
            hint="restore the table's `_log` from a copy; `thermocline table repair` says what is "
            "lost without it",
            table=named.name,
            path=f"{table.storage.root}/{layout.commit_path(table.state().version + 1)}",
            handed_over=retired,
            found=mark,
        )
    table.note_holes(
        [
            NoteHole(
                tier.source,
                hole.first_lsn,
                hole.last_lsn,
                *map(_round_to_micros, hole.written_between_ns),
            )
            for hole in tier.recovery_report.holes
            if hole.last_lsn > mark and (hole.tables is None or named.table_id in hole.tables)
        ]
    )


def _round_to_micros(time_ns: int | None) -> TimeNs | None:
    return None if time_ns is None else TimeNs(time_ns // NS_PER_US * NS_PER_US)
