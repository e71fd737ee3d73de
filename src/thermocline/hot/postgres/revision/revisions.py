"""The recorded changes of keys: read, expired after the type's retention, purged by an erasure.

In:   a store and keys
Out:  `RevisionRow`s of a key, oldest first; numbers of removed rows

- The statement that writes a row writes its revision, so one exists if and only if the other was
  committed, and versions of one key have no gap within the retention.
- The row of a revision is stored as JSON of the table's columns, and read back as a row of the
  table as it is now. Values of columns that were added later are in its `rest`.
- Expiry removes the oldest changes by their ids and records up to where, in one transaction: a
  consumer that has not read them gets an error, never a gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thermocline.hot.postgres.page.condition import ROW
from thermocline.hot.postgres.page.page_query import entities_of, row_text
from thermocline.hot.postgres.schema.layout import Layout
from thermocline.hot.postgres.session.connect import Connection, Row
from thermocline.hot.postgres.store.operation import StoredEntity
from thermocline.hot.postgres.store.store import EntityStore

KEPT_S_DEFAULT = 30 * 86_400.0
EXPIRED_ROWS_MAX = 50_000
REVISIONS_MAX = 10_000
_HEAD = (
    "revision.cid, revision.id, revision.ver, revision.op::text, revision.at, "
    "revision.author, revision.request"
)
_HEAD_COUNT = 7
_VER = 2


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """One recorded change of a key; the entity is what it left, None for a delete."""

    cid: int
    id: str
    ver: int
    op: str
    at: datetime
    author: str | None
    request_id: str | None
    entity: StoredEntity | None


def revision_text(layout: Layout) -> str:
    """Return the columns and the source of revisions, for `revision_rows`; add a condition."""
    return (
        f"select {_HEAD}, {row_text(layout)} "  # noqa: S608
        f"from revision left join lateral jsonb_populate_record(null::{layout.table}, image) "
        f"as {ROW} on image is not null where revision.type_id = %(type)s"
    )


def revision_rows(layout: Layout, rows: Sequence[Row]) -> list[RevisionRow]:
    """Return the revisions in rows of `revision_text`."""
    present = [row[_HEAD_COUNT:] for row in rows if row[_HEAD_COUNT] is not None]
    found = iter(entities_of(layout, present))
    made = []
    for row in rows:
        entity = None if row[_HEAD_COUNT] is None else next(found)
        if entity is not None and entity.ver != row[_VER]:
            entity = entity._replace(ver=row[_VER])  # the insert took over the version later
        cid, key, ver, op, at, author, request_id = row[:_HEAD_COUNT]
        made.append(RevisionRow(cid, key, ver, op, at, author, request_id, entity))
    return made


def read_revisions(store: EntityStore, key: str) -> list[RevisionRow]:
    """Return the newest `REVISIONS_MAX` recorded changes of a key, oldest first."""

    def look(layout: Layout) -> list[RevisionRow]:
        query = (
            f"{revision_text(layout)} and revision.id = %(id)s "
            "order by revision.ver desc limit %(limit)s"
        )
        values = {"type": layout.type_id, "id": key, "limit": REVISIONS_MAX}
        return revision_rows(layout, store.run_query(query, values, lambda rows: rows))[::-1]

    return store.run_with_layout(look)


def set_retention(store: EntityStore, kept_s: float | None) -> None:
    """Set for how long the changes of the type are kept; None for the default."""
    query = "update type set history_kept_s = %s where type_id = %s"
    store.pool.run(
        store.tenant, lambda c: c.execute(query, [kept_s, store.layout.type_id]).rowcount
    )


def read_retention(store: EntityStore) -> float:
    """Return for how many seconds the changes of the type are kept."""

    def look(connection: Connection) -> float:
        row = connection.execute(
            "select history_kept_s from type where type_id = %s", [store.layout.type_id]
        ).fetchone()
        return KEPT_S_DEFAULT if row is None or row[0] is None else float(row[0])

    return store.pool.run(store.tenant, look, is_read_only=True)


def expire_revisions(store: EntityStore, rows_max: int = EXPIRED_ROWS_MAX) -> int:
    """Remove changes older than the type's retention, at most `rows_max`; return how many."""
    values = {
        "type": store.layout.type_id,
        "kept": read_retention(store),
        "max": rows_max,
    }
    query = (
        "with candidate as (select cid, at from revision where type_id = %(type)s "
        "order by cid limit %(max)s), "
        "judged as (select cid, bool_or(at >= clock_timestamp() - "
        "make_interval(secs => %(kept)s)) over (order by cid) as is_kept from candidate), "
        "gone as (delete from revision using judged where revision.cid = judged.cid "
        "and not is_kept returning revision.xid, revision.cid, revision.at), "
        "noted as (insert into revision_floor (type_id, xid, cid, at) "
        "select %(type)s, (select xid from gone order by xid desc limit 1), max(cid), max(at) "
        "from gone having count(*) > 0 on conflict (type_id) do update "
        "set xid = greatest(revision_floor.xid, excluded.xid), "
        "cid = greatest(revision_floor.cid, excluded.cid), "
        "at = greatest(revision_floor.at, excluded.at)) select count(*) from gone"
    )

    def write(connection: Connection) -> int:
        row = connection.execute(query, values).fetchone()
        return 0 if row is None else int(row[0])

    return store.pool.run(store.tenant, write)


def history_floor(store: EntityStore) -> datetime | None:
    """Return the time of the last change of the type that is no longer kept, if there is one."""

    def look(connection: Connection) -> datetime | None:
        row = connection.execute(
            "select at from revision_floor where type_id = %s", [store.layout.type_id]
        ).fetchone()
        return None if row is None else row[0]

    return store.pool.run(store.tenant, look, is_read_only=True)


def purge_value(store: EntityStore, name: str, value: object) -> int:
    """Remove every recorded change that left a value in a property; return how many."""
    layout = store.layout
    column = layout.by_name.get(name)
    places = ["image->'rest'->>%(name)s"]
    if column is not None:
        places.append(f"image->>'{column.sql_name}'")
    matches = " or ".join(f"{place} = %(value)s" for place in places)
    query = f"delete from revision where type_id = %(type)s and ({matches})"  # noqa: S608
    values = {"type": layout.type_id, "name": name, "value": str(value)}
    return store.pool.run(store.tenant, lambda c: c.execute(query, values).rowcount)


def purge_revisions(connection: Connection, layout: Layout, keys: Sequence[str]) -> int:
    """Remove every recorded change of keys, and answers of writes that name them."""
    values: dict[str, Any] = {"type": layout.type_id, "keys": list(keys)}
    removed = connection.execute(
        "delete from revision where type_id = %(type)s and id = any(%(keys)s)", values
    ).rowcount
    connection.execute(
        "delete from write_request where exists (select from json_array_elements(results) as one "
        "where case json_typeof(one) when 'array' then one->>0 else one->'facts'->>'id' end "
        "= any(%(keys)s))",
        values,
    )
    return removed
