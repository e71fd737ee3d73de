"""A lake in this process: its journal, its tables, and the clock that flushes them.

In:   a folder, settings; rows to write, SQL to answer
Out:  `Lake` and `LakeTable`, the same surface whether rows are hot or cold

- The only place that names concrete tiers. What it opens it closes in the reverse order.
- A write returns when its rows are durable, and every query that starts after it sees them once.
- Flushes run beside writers and readers: when much is hot, when something has been hot for long,
  on demand and at `close`. One that fails is tried again; its rows stay hot and durable.
- A lake opened for reading follows the journal of whoever owns it. It writes no rows; what it reads
  it pins, as every reader does.
"""

import atexit
import os
import threading
import time as clock
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pyarrow as pa

from thermocline.config import LakeSettings, WalSettings, settings_of
from thermocline.disk import Disk, OsDisk
from thermocline.errors import (
    Conflict,
    Corruption,
    Invalid,
    NotFound,
    Overloaded,
    ThermoclineError,
    Unavailable,
)
from thermocline.flush import flush
from thermocline.format.action import Mark, NoteHole
from thermocline.format.instant import NS_PER_US, TimeNs
from thermocline.hot.tier import HotSnapshot
from thermocline.hot.wal.follow import Follower
from thermocline.hot.wal.tier import WalTable, WalTier
from thermocline.lake.catalog import Catalog, Named
from thermocline.lake.table import Table
from thermocline.live import LakeTable
from thermocline.query.pool import QueryPool, TableRef
from thermocline.query.session import Params, Session
from thermocline.query.source import checked_name
from thermocline.table import new_spec


class Lake:
    """Tables under one folder, with one journal; `connect` opens one."""

    def __init__(
        self,
        root: str,
        settings: LakeSettings | None = None,
        *,
        is_read_only: bool = False,
        disk: Disk | None = None,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        self._settings = settings or LakeSettings()
        self._disk = disk or OsDisk()
        self._catalog = Catalog(root, self._disk, is_read_only=is_read_only, now_ns=now_ns)
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._tables: dict[str, LakeTable] = {}
        self._session = Session()
        self._registered: set[str] = set()
        self._pool = _pool(self._settings, self._references)
        self._is_closing = self._is_closed = False
        self._tier: WalTier | None = None
        self._follower: Follower | None = None
        self.flush_error: ThermoclineError | None = None
        if is_read_only:
            if self._catalog.identity() is None:
                raise NotFound("there is no lake here", hint="check the path", folder=root)
            self._follower = Follower(self._disk, self._catalog.journal_folder)
        else:
            self._tier = _opened(self._catalog, self._disk, self._settings.wal, now_ns)
        self._wake = threading.Event()
        self._clock: threading.Thread | None = None
        if self._tier is not None:
            self._tier.on_pressure = self._wake.set
            self._clock = threading.Thread(
                target=self._run_clock, name="thermocline-flush", daemon=True
            )
            self._clock.start()
        # A lake that nobody closes is closed with the process. Its hot rows stay in the journal.
        atexit.register(self.close, is_flushed=False)

    @property
    def tier(self) -> WalTier:
        """The journal and the hot rows; `Invalid` where the lake is open for reading only."""
        self._check_open()
        if self._tier is None:
            hint = "connect without read_only, where no other process writes"
            raise Invalid("the lake is open for reading only", hint=hint)
        return self._tier

    def root(self) -> str:
        """Return the lake's folder."""
        return self._catalog.root

    def create_table(
        self,
        name: str,
        *,
        time_column: str,
        bucket: str,
        entity_columns: str | Sequence[str] = (),
        overlap: str = "allow",
        **more: Any,
    ) -> LakeTable:
        """Make a table; takes what `TimeSeriesTable.create` takes.

        `Conflict` when there is one of this name.
        """
        _ = self.tier
        checked_name(name)
        spec = new_spec(time_column, bucket, entity_columns, overlap=overlap, **more)
        self._catalog.create(name, spec)
        return self.table(name)

    def table(self, name: str) -> LakeTable:
        """Return a table; `NotFound` when there is none of this name."""
        key = name.lower()
        with self._lock:
            if key not in self._tables:
                named = self._catalog.named(name)
                self._tables[key] = LakeTable(self, named.name, self._catalog.table(named.name))
            return self._tables[key]

    def tables(self) -> list[str]:
        """Return the names of the tables, in order."""
        return [named.name for named in self._catalog]

    def hot(self, table_id: bytes) -> WalTable:
        """Return the hot half of a table, to write to."""
        return self.tier.table(table_id)

    def snapshot(self, table_id: bytes) -> HotSnapshot:
        """Return the hot rows of a table, from memory or from the journal of another process."""
        if self._follower is not None:
            return self._follower.snapshot(table_id)
        return self.tier.table(table_id).snapshot()

    def sql(self, query: str, params: Params = None) -> pa.Table:
        """Return the answer of one SELECT over the lake's tables, hot and cold rows alike."""
        return (self._pool or self._ready()).sql(query, params)

    def sql_reader(self, query: str, params: Params = None) -> pa.RecordBatchReader:
        """Return the answer of one SELECT as a stream of batches."""
        return (self._pool or self._ready()).sql_reader(query, params)

    def _references(self) -> dict[str, TableRef]:
        """Return every table of the lake, as a worker process finds it."""
        self._check_open()
        tables = [self.table(name) for name in self.tables()]
        return {one.name: TableRef(one.name, one.root(), hot=one.snapshot) for one in tables}

    def _check_open(self) -> None:
        if self._is_closed:
            raise Invalid("the lake is closed", hint="connect again")
        if os.getpid() != self._process:
            # Its hot rows here are those of the moment of the fork, and nobody adds to them.
            hint = "connect again in this process, with read_only"
            raise Invalid("the lake was opened by the process that forked this one", hint=hint)

    def _ready(self) -> Session:
        """Return the session with every table of the lake in it."""
        self._check_open()
        with self._lock:
            for name in self.tables():
                if name not in self._registered:
                    table = self.table(name)
                    self._session.register_view(name, table.lake, table.snapshot)
                    self._registered.add(name)
        return self._session

    def flush(self, name: str | None = None) -> dict[str, Mark]:
        """Carry hot rows into the lake, of one table or of all; return the marks reached.

        When this returns, all rows that were hot when it was called are in committed versions.
        A table that fails keeps no other from being flushed; its error is raised at the end.
        """
        return self._flush_each([name] if name else self.tables())

    def _flush_each(self, names: Iterable[str]) -> dict[str, Mark]:
        reached: dict[str, Mark] = {}
        trouble: ThermoclineError | None = None
        for name in names:
            try:
                table = self.table(name)
                mark = self._flush(table)
            except ThermoclineError as error:
                trouble = error  # one table's trouble is not another's
                continue
            if mark is not None:
                reached[table.name] = mark
        if trouble is not None:
            raise trouble
        return reached

    def _flush(self, table: LakeTable) -> Mark | None:
        hot = self.hot(table.table_id)
        with table.flushing:
            last = hot.snapshot().parts[-1:]
            mark = flush(hot, table.lake)
            # An earlier flush may have been frozen before rows that the caller means.
            while last and mark is not None and mark < last[0].mark:
                mark = flush(hot, table.lake)
        return mark

    def _run_clock(self) -> None:
        while True:
            self._wake.wait(self._settings.flush_look_s)
            self._wake.clear()
            if self._is_closed:
                return
            try:
                self._flush_what_is_due()
                self.flush_error = None
            except ThermoclineError as error:
                self.flush_error = error  # the rows stay hot and durable; the next look tries again
            except Exception as error:  # noqa: BLE001  a clock that stopped would flush nothing more
                self.flush_error = Unavailable("a flush failed", why=repr(error))

    def _flush_what_is_due(self) -> None:
        tier = self.tier
        now_s = clock.monotonic()
        due = []
        for hot in sorted(tier.tables(), key=lambda one: -one.buffer.size_bytes):
            is_old = hot.hot_since_s is not None and (
                now_s - hot.hot_since_s >= self._settings.flush_age_s
            )
            is_much = tier.hot_bytes * 2 > tier.hot_bytes_max and hot.buffer.size_bytes
            if is_old or is_much:
                due.append(self._by_id(hot.table_id).name)
        self._flush_each(due)

    def _by_id(self, table_id: bytes) -> LakeTable:
        for name in self.tables():
            table = self.table(name)
            if table.table_id == table_id:
                return table
        raise NotFound("no table has these rows", hint="look at the journal", id=table_id.hex())

    def close(self, *, is_flushed: bool = True) -> None:
        """Flush, and let go of the journal. Rows that cannot be flushed stay in the journal.

        In a forked process this does nothing: the journal is still that of the other one.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        atexit.unregister(self.close)
        try:
            if self._tier is not None and is_flushed:
                with suppress(Unavailable, Overloaded, Conflict):
                    self.flush()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """End what runs and release what is held, in the reverse order of opening."""
        self._is_closed = True
        self._wake.set()
        if self._clock is not None:
            self._clock.join()
        with ExitStack() as held:
            if self._tier is not None:
                held.callback(self._tier.close)
            if self._pool is not None:
                held.callback(self._pool.close)
            held.callback(self._session.close)

    def __enter__(self) -> "Lake":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(root: str | os.PathLike[str], *, read_only: bool = False, **settings: Any) -> Lake:
    """Open the lake in a folder, or make one in an empty folder.

    `read_only` reads beside the process that writes. Settings are those of `config.py`, such as
    `sync` ("always", "interval", "os"), `hot_bytes_max`, `flush_age_s`, `query_workers`.
    """
    return Lake(os.fspath(root), settings_of(settings), is_read_only=read_only)


def _pool(settings: LakeSettings, tables: Callable[[], dict[str, TableRef]]) -> QueryPool | None:
    if not settings.query_workers:
        return None
    return QueryPool(
        tables,
        workers=settings.query_workers,
        memory_bytes=settings.query_memory_bytes,
        timeout_s=settings.query_timeout_s,
    )


def _opened(
    catalog: Catalog, disk: Disk, settings: WalSettings, now_ns: Callable[[], int] | None
) -> WalTier:
    """Open the journal of a lake; of a folder that is none yet, make one."""

    def mark_of(table_id: bytes, source: str) -> Mark | None:
        table = catalog.by_id(table_id.hex())
        return None if table is None else table.state().marks.get(source, Mark(0))

    identity = catalog.identity()
    if identity is None:
        catalog.make_folder()
    tier = WalTier(
        disk,
        catalog.journal_folder,
        mark_of,
        settings,
        expected=None if identity is None else identity.journal_id,
        **({} if now_ns is None else {"now_ns": now_ns}),
    )
    try:
        if identity is None:
            catalog.found(tier.source)
        for named in catalog:
            _check_journal(tier, named, catalog.table(named.name))
    except BaseException:
        tier.close()
        raise
    return tier


def _check_journal(tier: WalTier, named: Named, table: Table) -> None:
    """Refuse a journal that lacks what a table took from it; note the holes a repair left."""
    mark = table.state().marks.get(tier.source, Mark(0))
    if mark >= tier.next_lsn:
        raise Corruption(
            "the journal ends before what was flushed from it",
            hint="its last file was cut or replaced; restore it from a copy",
            table=named.name,
            flushed=mark,
            next_lsn=tier.next_lsn,
        )
    table.note_holes(
        [
            NoteHole(tier.source, hole.first_lsn, hole.last_lsn, *map(_time, hole.written))
            for hole in tier.recovered.holes
            if hole.last_lsn > mark and (hole.tables is None or named.table_id in hole.tables)
        ]
    )


def _time(time_ns: int | None) -> TimeNs | None:
    return None if time_ns is None else TimeNs(time_ns // NS_PER_US * NS_PER_US)
