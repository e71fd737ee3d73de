"""The statements that write rows of one type, each with its note in `change`.

In:   a layout, records as JSON text
Out:  rows written and noted, in one statement each; keys locked

- Many rows are one parameter: a JSON array that PostgreSQL reads as records. Measured, batches of
  1,000 rows of 20 attributes: 26,000-37,000 rows/s; an array a column 6,000-10,000 (the driver
  writes it out value by value); a statement a row, pipelined, 24,000-26,000.
- A present key is locked by its row. An absent key is locked by inserting its row: the unique
  index lets nobody else insert it until this transaction ends. An advisory lock for each would
  fill the server's lock table (64 a connection) with one large batch.
- Rows are locked and inserted in the order of their keys.
"""

from collections.abc import Iterable, Mapping, Sequence

from thermocline.contract.text import encode_text
from thermocline.errors import BodyTooLarge
from thermocline.hot.postgres.connect import Connection, Row
from thermocline.hot.postgres.layout import Json, Layout
from thermocline.hot.postgres.operation import RECORDS_BYTES_MAX


def lock_rows(
    connection: Connection, layout: Layout, keys: Iterable[str], *, with_documents: bool
) -> dict[str, Row]:
    """Lock the rows that are there, in the order of their keys, and return them by key.

    A row is (ver, schema_version), and with documents its rest as text and its columns' values.
    """
    more = f", rest::text{layout.names_text}" if with_documents else ""
    found = connection.execute(
        f"select id, ver, schema_version{more} from {layout.table} "  # noqa: S608
        "where id = any(%s::text[]) order by id for update",
        [array_of(keys)],
    )
    return {row[0]: row[1:] for row in found.fetchall()}


def insert_rows(connection: Connection, layout: Layout, records: Sequence[Json]) -> dict[str, int]:
    """Insert rows and note them; return the versions of keys that were absent, now locked.

    A row goes on from the version its key had reached when it was deleted, as far as seen; a key
    that is not remembered had reached no more than the floor. Both are seen by one statement: what
    is forgotten between two would be in neither. Waits for whoever has one of the keys in an open
    transaction.
    """
    ver = (
        "1 + coalesce((select ver from gone where type_id = %(type_id)s and id = given.id), "
        "(select ver_floor from type where type_id = %(type_id)s))"
    )
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        f"as r({layout.record})), "
        f"new as (insert into {layout.table} (id, ver, schema_version, rest{layout.names_text}) "
        f"select id, {ver}, schema_version, rest{layout.names_text} from given "
        'order by id collate "C" on conflict (id) do nothing returning id, ver) '
        "insert into change (type_id, id, ver, op) select %(type_id)s, id, ver, 'u' from new "
        "returning id, ver"
    )
    return dict(_written(connection, layout, query, records))


def update_rows(connection: Connection, layout: Layout, records: Sequence[Json]) -> None:
    """Write rows that are locked over, and note them."""
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        f"as r({layout.record})), "
        f"new as (update {layout.table} as old set ver = given.ver, "
        "schema_version = given.schema_version, written_at = clock_timestamp(), "
        f"rest = given.rest{layout.changes} from given where old.id = given.id "
        "returning old.id, old.ver) "
        "insert into change (type_id, id, ver, op) select %(type_id)s, id, ver, 'u' from new "
        "returning id"
    )
    _written(connection, layout, query, records)


def delete_rows(connection: Connection, layout: Layout, records: Sequence[Json]) -> None:
    """Remove rows that are locked, keep the versions their keys have reached, and note them."""
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        "as r(id text, ver bigint)), "
        f"old as (delete from {layout.table} as old using given where old.id = given.id), "
        "kept as (insert into gone (type_id, id, ver, why) "
        "select %(type_id)s, id, ver, 'd' from given) "
        "insert into change (type_id, id, ver, op) select %(type_id)s, id, ver, 'd' from given "
        "returning id"
    )
    _written(connection, layout, query, records)


def take_over_versions(
    connection: Connection, layout: Layout, inserted: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Let rows just inserted go on from the versions their keys had reached when deleted.

    Returns the versions that are not those inserted, and keys that were not deleted but moved to
    the lake.

    Order matters: only after the insert. A delete that the insert waited for is seen by this
    statement and was not before.
    """
    found = connection.execute(
        "delete from gone where type_id = %s and id = any(%s::text[]) returning id, ver, why::text",
        [layout.type_id, array_of(inserted)],
    ).fetchall()
    late = {key: ver + 1 for key, ver, why in found if why == "d" and inserted[key] != ver + 1}
    for key, ver in late.items():
        connection.execute(
            f"update {layout.table} set ver = %s where id = %s",  # noqa: S608
            [ver, key],
        )
        connection.execute(
            "update change set ver = %s where type_id = %s and id = %s "
            "and xid = pg_current_xact_id() and ver = %s",
            [ver, layout.type_id, key, inserted[key]],
        )
    return late, [key for key, _, why in found if why == "e"]


def moved_keys(connection: Connection, layout: Layout, keys: Iterable[str]) -> set[str]:
    """Return which of these absent keys have their rows in the lake alone."""
    return {key for key, is_moved in whereabouts(connection, layout, keys).items() if is_moved}


def whereabouts(connection: Connection, layout: Layout, keys: Iterable[str]) -> dict[str, bool]:
    """Return those of some keys that are entities: whether their rows are in the lake alone.

    One statement: a row that comes back between two would be seen by neither.
    """
    found = connection.execute(
        "select id, true from gone where type_id = %(type)s and id = any(%(keys)s::text[]) "  # noqa: S608
        f"and why = 'e' union all select id, false from {layout.table} "
        "where id = any(%(keys)s::text[])",
        {"type": layout.type_id, "keys": array_of(keys)},
    )
    return dict(found.fetchall())


def hold_moved(connection: Connection, layout: Layout, keys: Sequence[str]) -> dict[str, int]:
    """Lock keys whose rows are in the lake alone, by empty rows; return those and their versions.

    Order matters: first the lock, then the look. A key that somebody else brought back meanwhile
    is left alone.
    """
    listed = array_of(keys)
    connection.execute(
        f"insert into {layout.table} (id, ver, schema_version, rest) "  # noqa: S608
        "select id, 0, 0, '{}' from unnest(%s::text[]) as id on conflict (id) do nothing",
        [listed],
    )
    held = connection.execute(
        f"delete from gone using {layout.table} as empty where type_id = %s "  # noqa: S608
        "and gone.id = any(%s::text[]) and why = 'e' and empty.id = gone.id and empty.ver = 0 "
        "returning gone.id, gone.ver",
        [layout.type_id, listed],
    ).fetchall()
    connection.execute(
        f"delete from {layout.table} where id = any(%s::text[]) and ver = 0 "  # noqa: S608
        "and id <> all(%s::text[])",
        [listed, array_of(key for key, _ in held)],
    )
    return dict(held)


def fill_held(connection: Connection, layout: Layout, records: Sequence[Json]) -> None:
    """Write rows that came back from the lake into their empty ones; nothing becomes dirty."""
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        f"as r({layout.record})) update {layout.table} as old set ver = given.ver, "
        f"schema_version = given.schema_version, rest = given.rest{layout.changes} "
        "from given where old.id = given.id returning old.id"
    )
    _written(connection, layout, query, records)


def array_of(values: Iterable[str]) -> str:
    """Return PostgreSQL's text of an array of texts; far quicker than the driver's own."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def _written(
    connection: Connection, layout: Layout, query: str, records: Sequence[Json]
) -> list[Row]:
    text = encode_text(records)
    if len(text) > RECORDS_BYTES_MAX:
        raise BodyTooLarge(
            "the documents are larger than one transaction takes",
            hint="send them in smaller parts",
            size_bytes_max=RECORDS_BYTES_MAX,
        )
    values = {"records": text, "type_id": layout.type_id}
    return connection.execute(query, values).fetchall()
