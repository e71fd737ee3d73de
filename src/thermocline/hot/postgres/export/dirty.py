"""Reads the changes of one type that the lake does not have, with the lake version they extend.

In:   a store; the lake version that PostgreSQL points to
Out:  a `DirtySnapshot`: that version, the dirty keys and their rows, all in one snapshot

- One transaction, REPEATABLE READ and READ ONLY, reads all of it. Under a weaker isolation, two
  statements would have two snapshots, and could see half of a transaction between them.
- Reads of one statement (one key; whether anything has changed) have one snapshot anyway, and take
  one round trip.
- A key is dirty if and only if a row in `change` says so: state decides, never a clock.
- The last result is cached. While the head does not move, changes are only added: the next read
  fetches those that the last snapshot did not see, by PostgreSQL's own visibility rule. If the
  snapshot is identical to the last one, it fetches nothing.
- An exporter copies its rows and ends the transaction before it encodes them: an open transaction
  keeps dead rows from being vacuumed.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from thermocline.errors import Corruption, NotFound, Overloaded
from thermocline.format.layout import Version
from thermocline.hot.postgres.export.arrow_rows import (
    ID,
    cold_rows,
    cold_schema,
    concat_rows,
)
from thermocline.hot.postgres.page.condition import ROW
from thermocline.hot.postgres.page.page_query import entities_of, row_text
from thermocline.hot.postgres.schema.layout import Layout, StaleLayout
from thermocline.hot.postgres.session.connect import Connection, Row
from thermocline.hot.postgres.session.transaction import CHECKPOINT, Isolation
from thermocline.hot.postgres.store.operation import StoredEntity
from thermocline.hot.postgres.store.store import EntityStore, array_text

DIRTY_KEYS_MAX = 1_000_000
READ_LIMIT_S = 120.0
FETCH_ROWS = 10_000

T = TypeVar("T")
_HEAD_COLUMNS = (
    *("version", "as_of", "epoch", "cluster_id::text", "now()"),
    "(select max(schema_version) from type_version where type_id = %(type)s)",
)
_SNAPSHOT_QUERY = (
    f"select {', '.join(_HEAD_COLUMNS)}, pg_postmaster_start_time()::text, {CHECKPOINT}, "  # noqa: S608
    "pg_current_snapshot()::text from lake_head where type_id = %(type)s"
)


@dataclass(frozen=True, slots=True)
class LakeHead:
    """The lake version that PostgreSQL goes with; `as_of` is the time of its export.

    `epoch` counts the export attempts; `store_id` identifies this PostgreSQL permanently.
    """

    version: Version
    as_of: datetime | None
    epoch: int
    store_id: str


@dataclass(frozen=True, slots=True)
class DirtySnapshot:
    """One snapshot of one type: its head, the dirty keys, and the rows of those not deleted.

    `keys` are sorted and distinct; `rows` have the columns of `schema`. `token` identifies the
    PostgreSQL snapshot: two snapshots with the same token are equal.
    """

    head: LakeHead
    taken_at: datetime
    token: tuple[str, ...]
    layout: Layout
    keys: pa.Array
    rows: pa.Table

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows: the lake table's, for the newest contract."""
        return cold_schema(self.layout.contract)


@dataclass(frozen=True, slots=True)
class FrozenChanges:
    """What one export carries: all change ids of a snapshot, its keys and their rows.

    If `shared_id` is set, other sessions can import the snapshot by it, and read the rows in it.
    """

    snapshot: DirtySnapshot
    changes: npt.NDArray[np.int64]
    shared_id: str = ""


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """PostgreSQL's state of one key: its entity; whether it is dirty, or only in the lake."""

    head: LakeHead
    taken_at: datetime
    layout: Layout
    entity: StoredEntity | None
    is_dirty: bool
    is_moved: bool


@dataclass(frozen=True, slots=True)
class Pressure:
    """How much is dirty: changes, and seconds since the last export began."""

    changes: int
    age_s: float


class DirtySet:
    """Reads the dirty keys of one type; it fetches only what changed since its last read."""

    def __init__(self, store: EntityStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._last: DirtySnapshot | None = None

    def head(self) -> LakeHead:
        """Return the lake version that PostgreSQL goes with now."""
        return self._run_in_snapshot(
            lambda layout, connection: _read_identity(connection, layout)[0]
        )

    def snapshot(self) -> DirtySnapshot:
        """Return the dirty keys and their rows, with the lake version they go with.

        `Overloaded` when more than `DIRTY_KEYS_MAX` keys are dirty.
        """
        with self._lock:
            last = self._last
        made = None
        if last is not None:
            made = self._store.run_with_layout(
                lambda layout: self._reuse_if_unchanged(layout, last)
            )
        if made is None:
            made = self._run_in_snapshot(
                lambda layout, connection: _take_snapshot(
                    connection, layout, last, keys_max=DIRTY_KEYS_MAX
                )
            )
        with self._lock:
            self._last = made
        return made

    def _reuse_if_unchanged(self, layout: Layout, last: DirtySnapshot) -> DirtySnapshot | None:
        """Return the last snapshot with the current time, if nothing changed; one round trip."""
        rows = self._store.run_query(_SNAPSHOT_QUERY, {"type": layout.type_id}, lambda rows: rows)
        head, taken_at, token = _parse_identity(layout, rows[0] if rows else ())
        is_same = token == last.token and _is_continuation(last, layout, head, token)
        return replace(last, taken_at=taken_at) if is_same else None

    def freeze(self) -> FrozenChanges | None:
        """Return what an export has to carry, or None when nothing is dirty.

        When this returns, its transaction has ended. It ignores the cache and reads everything: a
        key missing here would be lost when the export drops its change.
        """

        return self._run_in_snapshot(lambda layout, connection: freeze_in(connection, layout))

    def pressure(self) -> Pressure:
        """Return the number of changes, counted up to `DIRTY_KEYS_MAX` + 1, and their age."""
        limit = DIRTY_KEYS_MAX + 1

        def look(layout: Layout, connection: Connection) -> Pressure:
            row = connection.execute(
                "select (select count(*) from (select from change where type_id = %(type)s "
                "limit %(limit)s) as counted), "
                "coalesce(extract(epoch from clock_timestamp() - coalesce(as_of, created_at)), 0) "
                "from lake_head join type using (type_id) where type_id = %(type)s",
                {"type": layout.type_id, "limit": limit},
            ).fetchone()
            assert row is not None
            return Pressure(int(row[0]), float(row[1]))

        return self._run_in_snapshot(look)

    def find(self, key: str) -> KeyLookup:
        """Return PostgreSQL's state of one key, in one snapshot."""
        return self._store.run_with_layout(lambda layout: self._find(layout, key))

    def _find(self, layout: Layout, key: str) -> KeyLookup:
        # One statement has one snapshot, and takes one round trip.
        query = (
            f"select {row_text(layout)}, {', '.join(_HEAD_COLUMNS)}, "  # noqa: S608
            "exists (select from change where type_id = %(type)s and id = %(id)s), "
            "(select why::text from gone where type_id = %(type)s and id = %(id)s) "
            f"from lake_head left join {layout.table} as {ROW} on {ROW}.id = %(id)s "
            "where lake_head.type_id = %(type)s"
        )
        values = {"type": layout.type_id, "id": key}
        rows = self._store.run_query(query, values, lambda rows: rows)
        *own, is_dirty, why = rows[0] if rows else (None, None)
        head, taken_at = _parse_head(layout, own[-len(_HEAD_COLUMNS) :])
        entity = None if own[0] is None else entities_of(layout, [tuple(own)])[0]
        return KeyLookup(head, taken_at, layout, entity, is_dirty=is_dirty, is_moved=why == "e")

    def read_all(self) -> tuple[LakeHead, datetime, pa.Table]:
        """Return every row in PostgreSQL, dirty or not: used when the lake is unavailable."""

        def read(layout: Layout, connection: Connection) -> tuple[LakeHead, datetime, pa.Table]:
            head, taken_at, _ = _read_identity(connection, layout)
            return head, taken_at, _read_live_rows(connection, layout, None, is_all=True)

        return self._run_in_snapshot(read)

    def _run_in_snapshot(self, work: Callable[[Layout, Connection], T]) -> T:
        """Run in one snapshot."""
        return self._store.run_with_layout(
            lambda layout: self._store.pool.run(
                self._store.tenant,
                lambda connection: work(layout, connection),
                isolation=Isolation.REPEATABLE_READ,
                is_read_only=True,
                limit_s=READ_LIMIT_S,
            )
        )


def freeze_in(
    connection: Connection, layout: Layout, *, has_rows: bool = True
) -> FrozenChanges | None:
    """Return what an export has to carry, as the running transaction sees it; None if nothing.

    Without `has_rows` the rows are omitted, for exporters that read them in key ranges.
    """
    row = connection.execute(
        "select array_agg(cid), count(distinct id) from change where type_id = %s",
        [layout.type_id],
        binary=True,
    ).fetchone()
    assert row is not None
    if row[0] is None:
        return None
    changes = np.sort(np.array(row[0], dtype=np.int64))
    if has_rows:
        # The limit of reads does not apply: only an export makes the dirty set smaller.
        snapshot = _take_snapshot(connection, layout, None, keys_max=None)
    else:
        head, taken_at, token = _read_identity(connection, layout)
        keys, none = _changed_keys(connection, layout, None), concat_rows(layout, [])
        snapshot = DirtySnapshot(head, taken_at, token, layout, keys, none)
    if len(snapshot.keys) != row[1]:
        raise Corruption(
            "the keys to export differ from the changed keys",
            hint="check PostgreSQL's indexes for damage; nothing was exported",
            type=layout.name,
            keys=len(snapshot.keys),
            changed=row[1],
        )
    return FrozenChanges(snapshot, changes)


def _read_identity(
    connection: Connection, layout: Layout
) -> tuple[LakeHead, datetime, tuple[str, ...]]:
    """Return the head, the time up to which the snapshot has every commit, and its token.

    The token says which transactions the snapshot sees. It contains the server's start time and
    last checkpoint, because transaction ids are used again after a restore from a backup, and after
    a recovery from a backend's crash, which does not restart the server but ends with a checkpoint.
    `StaleLayout` when the type has a newer contract than the layout.
    """
    row = connection.execute(_SNAPSHOT_QUERY, {"type": layout.type_id}).fetchone()
    return _parse_identity(layout, row or ())


def _parse_identity(layout: Layout, row: Row) -> tuple[LakeHead, datetime, tuple[str, ...]]:
    head, taken_at = _parse_head(layout, row[: len(_HEAD_COLUMNS)])
    return head, taken_at, (head.store_id, *row[len(_HEAD_COLUMNS) :])


def _parse_head(layout: Layout, row: Sequence[Any]) -> tuple[LakeHead, datetime]:
    """Return the head in a row of `_HEAD`, and the time of the read."""
    if not row:
        raise NotFound("no such type", hint="register it first", type=layout.name)
    version, as_of, epoch, store_id, taken_at, newest = row
    if newest > max(layout.contracts):
        raise StaleLayout
    return LakeHead(Version(version), _utc(as_of), epoch, store_id), taken_at.astimezone(UTC)


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)


def _take_snapshot(
    connection: Connection, layout: Layout, last: DirtySnapshot | None, *, keys_max: int | None
) -> DirtySnapshot:
    head, taken_at, token = _read_identity(connection, layout)
    if last is None or not _is_continuation(last, layout, head, token):
        found = _check_key_count(_changed_keys(connection, layout, None), keys_max)
        rows = _read_live_rows(connection, layout, None)
        return DirtySnapshot(head, taken_at, token, layout, found, rows)
    found = _changed_keys(connection, layout, last.token[-1])
    if not len(found):
        return replace(last, taken_at=taken_at, token=token)
    # Without newly dirty keys the array stays the same object, so that caches by identity hold.
    new = found.filter(pc.invert(pc.is_in(found, value_set=last.keys)))
    keys = last.keys
    if len(new):
        keys = _check_key_count(pa.concat_arrays([keys, new]), keys_max)
        keys = keys.take(pc.sort_indices(keys))
    kept = last.rows.filter(pc.invert(pc.is_in(last.rows.column(ID), value_set=found)))
    rows = concat_rows(layout, [kept, _read_live_rows(connection, layout, found.to_pylist())])
    return DirtySnapshot(head, taken_at, token, layout, keys, rows)


def _is_continuation(
    last: DirtySnapshot, layout: Layout, head: LakeHead, token: tuple[str, ...]
) -> bool:
    """Tell whether the dirty set is the last one plus the changes made since.

    Changes are removed only when the head moves. On the same server, without a recovery since,
    transaction ids are not reused, so a query can find the changes that the last snapshot missed.
    """
    is_same_type = last.layout.contracts.keys() == layout.contracts.keys()
    return is_same_type and last.head.version == head.version and last.token[:-1] == token[:-1]


def _changed_keys(connection: Connection, layout: Layout, since: str | None) -> pa.Array:
    """Return the sorted keys of all changes, or of those that a snapshot did not see."""
    # One value instead of a row per key: 50,000 rows take the driver ten times as long. Keys have
    # no line breaks, and their number is compared.
    text = (
        "select count(*), string_agg(id, e'\\n' order by id) from "
        "(select distinct id from change where type_id = %(type)s{}) as dirty"
    )
    unseen = " and not pg_visible_in_snapshot(xid, %(since)s::pg_snapshot)"
    query = sql.SQL(text).format(sql.SQL("" if since is None else unseen))
    row = connection.execute(query, {"type": layout.type_id, "since": since}).fetchone()
    assert row is not None
    keys = row[1].split("\n") if row[0] else []
    if len(keys) != row[0]:
        raise Corruption(
            "PostgreSQL has a key that Thermocline never writes",
            hint="look for keys with line breaks, which another program has inserted",
            type=layout.name,
        )
    return pa.array(keys, pa.string())


def _check_key_count(keys: pa.Array, keys_max: int | None) -> pa.Array:
    if keys_max is not None and len(keys) > keys_max:
        raise Overloaded(
            "more keys are dirty than one read may hold",
            hint="export now, and more often",
            keys=len(keys),
            dirty_keys_max=keys_max,
        )
    return keys


def _read_live_rows(
    connection: Connection, layout: Layout, keys: Sequence[str] | None, *, is_all: bool = False
) -> pa.Table:
    """Return the rows of these keys, or of all dirty keys if None, or with `is_all` all rows."""
    text = "select id, ver, schema_version, written_at, rest::text{} from {}"
    values: dict[str, Any] = {"type": layout.type_id}
    if keys is not None:
        text += " where id = any(%(keys)s::text[])"
        values["keys"] = array_text(keys)
    elif not is_all:
        text += " where id in (select id from change where type_id = %(type)s)"
    query = sql.SQL(text).format(layout.names, sql.Identifier(layout.table))
    parts = []
    # A server-side cursor: a client-side one would hold every row as Python objects.
    with connection.cursor("dirty_rows", binary=True) as cursor:
        cursor.execute(query, values)
        while rows := cursor.fetchmany(FETCH_ROWS):
            parts.append(cold_rows(layout, rows))
    return concat_rows(layout, parts)
