"""The SQL statements that write rows of one type, each with its row in `change`.

In:   a layout, records as JSON text
Out:  rows and their changes written by one statement; keys locked

- Many rows are one parameter: a JSON array that PostgreSQL reads as records. Measured with batches
  of 1,000 rows of 20 attributes: 26,000-37,000 rows/s; an array per column 6,000-10,000 (the driver
  writes it value by value); a statement per row, pipelined, 24,000-26,000.
- A present key is locked by its row. An absent key is locked by inserting its row: the unique index
  blocks other inserts of the key until this transaction ends. An advisory lock per key would fill
  the server's lock table (64 per connection) with one large batch.
- Rows are locked and inserted in the order of their keys.
"""

from collections.abc import Iterable, Mapping, Sequence

from thermocline.contract.document.text import encode_text
from thermocline.errors import BodyTooLarge
from thermocline.hot.postgres.schema.layout import Json, Layout
from thermocline.hot.postgres.session.connect import Connection, Row
from thermocline.hot.postgres.store.operation import RECORDS_BYTES_MAX


def lock_rows(
    connection: Connection, layout: Layout, keys: Iterable[str], *, with_documents: bool
) -> dict[str, Row]:
    """Lock the existing rows of these keys, in key order, and return them by key.

    A row is (ver, schema_version), and with documents also `rest` as text and the columns' values.
    """
    more = f", rest::text{layout.names_text}" if with_documents else ""
    found = connection.execute(
        f"select id, ver, schema_version{more} from {layout.table} "  # noqa: S608
        "where id = any(%s::text[]) order by id for update",
        [array_text(keys)],
    )
    return {row[0]: row[1:] for row in found.fetchall()}


def insert_rows(connection: Connection, layout: Layout, records: Sequence[Json]) -> dict[str, int]:
    """Insert rows and their changes; return the versions of the keys that were absent.

    These keys are now locked. A row continues from its key's version in `gone`, as far as this
    statement sees it, else from the floor: no forgotten key was above the floor. One statement
    reads both, because a key forgotten between two statements would be in neither. It waits for
    other open transactions that have written one of the keys.
    """
    ver = (
        "1 + coalesce((select ver from gone where type_id = %(type_id)s and id = given.id), "
        "(select ver_floor from type where type_id = %(type_id)s))"
    )
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        f"as r({layout.record_type})), "
        f"new as (insert into {layout.table} (id, ver, schema_version, rest{layout.names_text}) "
        f"select id, {ver}, schema_version, rest{layout.names_text} from given "
        'order by id collate "C" on conflict (id) do nothing returning id, ver) '
        "insert into change (type_id, id, ver, op) select %(type_id)s, id, ver, 'u' from new "
        "returning id, ver"
    )
    return dict(_write_records(connection, layout, query, records))


def update_rows(connection: Connection, layout: Layout, records: Sequence[Json]) -> None:
    """Overwrite locked rows, and insert their changes."""
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        f"as r({layout.record_type})), "
        f"new as (update {layout.table} as old set ver = given.ver, "
        "schema_version = given.schema_version, written_at = clock_timestamp(), "
        f"rest = given.rest{layout.assignments} from given where old.id = given.id "
        "returning old.id, old.ver) "
        "insert into change (type_id, id, ver, op) select %(type_id)s, id, ver, 'u' from new "
        "returning id"
    )
    _write_records(connection, layout, query, records)


def delete_rows(connection: Connection, layout: Layout, records: Sequence[Json]) -> None:
    """Delete locked rows, store their keys' versions in `gone`, and insert their changes."""
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        "as r(id text, ver bigint)), "
        f"old as (delete from {layout.table} as old using given where old.id = given.id), "
        "kept as (insert into gone (type_id, id, ver, why) "
        "select %(type_id)s, id, ver, 'd' from given) "
        "insert into change (type_id, id, ver, op) select %(type_id)s, id, ver, 'd' from given "
        "returning id"
    )
    _write_records(connection, layout, query, records)


def take_over_versions(
    connection: Connection, layout: Layout, inserted: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Let inserted rows continue from the versions at which their keys were deleted.

    Returns the corrected versions, and the keys that were not deleted but evicted to the lake.

    Order matters: this runs after the insert. It sees a delete that the insert waited for, which
    the insert itself did not see.
    """
    found = connection.execute(
        "delete from gone where type_id = %s and id = any(%s::text[]) returning id, ver, why::text",
        [layout.type_id, array_text(inserted)],
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
    """Return those of these keys whose rows are only in the lake."""
    return {key for key, is_moved in locate_keys(connection, layout, keys).items() if is_moved}


def locate_keys(connection: Connection, layout: Layout, keys: Iterable[str]) -> dict[str, bool]:
    """Return the keys that are entities; the value is whether the row is only in the lake.

    One statement: of two, neither would see a row that returns to PostgreSQL between them.
    """
    found = connection.execute(
        "select id, true from gone where type_id = %(type)s and id = any(%(keys)s::text[]) "  # noqa: S608
        f"and why = 'e' union all select id, false from {layout.table} "
        "where id = any(%(keys)s::text[])",
        {"type": layout.type_id, "keys": array_text(keys)},
    )
    return dict(found.fetchall())


def lock_moved(connection: Connection, layout: Layout, keys: Sequence[str]) -> dict[str, int]:
    """Lock keys whose rows are only in the lake, by empty rows; return them with their versions.

    Order matters: first the lock, then the check. A key that another transaction has loaded
    meanwhile is skipped.
    """
    listed = array_text(keys)
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
        [listed, array_text(key for key, _ in held)],
    )
    return dict(held)


def fill_locked(connection: Connection, layout: Layout, records: Sequence[Json]) -> None:
    """Fill the empty rows with the rows loaded from the lake; no key becomes dirty."""
    query = (
        "with given as (select * from jsonb_to_recordset(%(records)s::jsonb) "  # noqa: S608
        f"as r({layout.record_type})) update {layout.table} as old set ver = given.ver, "
        f"schema_version = given.schema_version, rest = given.rest{layout.assignments} "
        "from given where old.id = given.id returning old.id"
    )
    _write_records(connection, layout, query, records)


def array_text(values: Iterable[str]) -> str:
    """Return PostgreSQL's text form of a text array; much faster than the driver's."""
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"


def _write_records(
    connection: Connection, layout: Layout, query: str, records: Sequence[Json]
) -> list[Row]:
    text = encode_text(records)
    if len(text) > RECORDS_BYTES_MAX:
        raise BodyTooLarge(
            "the documents exceed the limit of one transaction",
            hint="send them in smaller parts",
            size_bytes_max=RECORDS_BYTES_MAX,
        )
    values = {"records": text, "type_id": layout.type_id}
    return connection.execute(query, values).fetchall()
