"""Forgets keys that were deleted long ago, without ever reusing one of their versions.

In:   a store, the number of deleted keys to keep
Out:  the number of forgotten keys; a version floor, below which no new key starts

- A key that is deleted and created again continues from its last version, so a client that saw the
  old entity cannot mistake the new one for it. `gone` has a row per key with that version.
- Forgetting a key raises the type's floor to at least its version. A key without a row in `gone`
  starts above the floor, and so above every version it had. This needs bounded space; the price is
  that new keys start above 1 from then on. The lowest versions are forgotten first.
- Only a clean key is forgotten: an export has carried its delete. Keys whose rows are only in the
  lake stay.
- Order matters: `gone` is locked exclusively. A writer that read it has ended before, and a writer
  that reads it later sees the floor.
"""

from psycopg import sql

from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.store.store import EntityStore

FORGET_ROWS_MAX = 10_000
LOCK_TIMEOUT_MS = 200


def forget(store: EntityStore, kept_max: int, rows_max: int = FORGET_ROWS_MAX) -> int:
    """Forget the deleted keys above `kept_max`, at most `rows_max`; return how many.

    All of them or none. `Overloaded`, and none, if writers hold the table for too long.
    """
    type_id = store.layout.type_id
    # A separate transaction: two that both read and then lock the table would deadlock.
    held = store.pool.run(
        store.tenant, lambda connection: _count_deleted(connection, type_id), is_read_only=True
    )
    wanted = min(held - kept_max, rows_max)
    if wanted <= 0:
        return 0
    return store.pool.run(
        store.tenant, lambda connection: _forget_keys(connection, type_id, wanted)
    )


def _count_deleted(connection: Connection, type_id: int) -> int:
    row = connection.execute(
        "select count(*) from gone where type_id = %s and why = 'd'", [type_id]
    ).fetchone()
    assert row is not None
    return int(row[0])


def _forget_keys(connection: Connection, type_id: int, wanted: int) -> int:
    connection.execute(
        sql.SQL("set local lock_timeout = {}").format(LOCK_TIMEOUT_MS), prepare=False
    )
    connection.execute("lock table gone in access exclusive mode")
    row = connection.execute(
        "with old as (select id from gone where type_id = %(type)s and why = 'd' "
        "and not exists (select from change where type_id = %(type)s and change.id = gone.id) "
        "order by ver limit %(wanted)s), "
        "dropped as (delete from gone using old where type_id = %(type)s and gone.id = old.id "
        "returning ver) select count(*), max(ver) from dropped",
        {"type": type_id, "wanted": wanted},
    ).fetchone()
    assert row is not None
    if row[0]:
        connection.execute(
            "update type set ver_floor = greatest(ver_floor, %s) where type_id = %s",
            [row[1], type_id],
        )
    return int(row[0])
