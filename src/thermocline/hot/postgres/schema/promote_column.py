"""Gives a property a column while the type is being read and written.

In:   a type and the column to add
Out:  the column, filled and indexed, marked ready

    1  one transaction adds the column and renames the table
    2  the values of existing rows move from `rest` to the column, one batch per transaction
    3  the index is built concurrently with writes, and the column is marked ready

- From step 1 on, only readers and writers that know the column can use the table: the old table
  name does not exist, so a process with an old layout fails, reloads it and retries. With an old
  layout, it would read documents without the moved property.
- No value changes, so no version changes and no key becomes dirty.
- After a kill at any step it continues from there: each step checks whether it is done.
- Only step 1 takes a lock that blocks others, for the time of a catalogue update; it times
  out and retries rather than make others queue.
"""

from psycopg import sql

from thermocline.hot.postgres.schema.layout import HotColumn
from thermocline.hot.postgres.schema.migrate import LOCK_SPACE, execute_patiently
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.session.pool import Pool

BATCH_ROWS = 1_000


def promote(pool: Pool, tenant: Tenant, type_id: int, column: HotColumn) -> None:
    """Give a property a column; when this returns, the column holds every row's value."""
    with pool.session() as connection:
        key = f"{tenant.schema}.{type_id}"
        connection.execute("select pg_advisory_lock(%s, hashtext(%s))", [LOCK_SPACE, key])
        table, state = _column_state(connection, tenant, type_id, column.column_id)
        if state == "r":
            return
        if state is None:
            table = _add_column(connection, tenant, type_id, table, column)
        _fill_column(pool, tenant, table, column)
        _finish_column(connection, tenant, type_id, table, column)


def index_text(type_id: int, table: str, column_id: int, *, is_online: bool) -> sql.Composed:
    """Return the statement that creates a column's index: by value, then key, like pages sort."""
    text = "create index {} {} on {} ({}, id)"
    return sql.SQL(text).format(
        sql.SQL("concurrently if not exists" if is_online else "if not exists"),
        sql.Identifier(_index_name(type_id, column_id)),
        sql.Identifier(table),
        sql.Identifier(f"h_{column_id}"),
    )


def _index_name(type_id: int, column_id: int) -> str:
    return f"e_{type_id}_h_{column_id}"


def _column_state(
    connection: Connection, tenant: Tenant, type_id: int, column_id: int
) -> tuple[str, str | None]:
    """Return the table's current name, and the column's state; None before it is added."""
    with connection.transaction():
        for words in tenant.role_statements():
            connection.execute(words, prepare=False)
        row = connection.execute(
            "select table_name, state::text from type left join type_column "
            "on type_column.type_id = type.type_id and column_id = %s where type.type_id = %s",
            [column_id, type_id],
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def _add_column(
    connection: Connection, tenant: Tenant, type_id: int, table: str, column: HotColumn
) -> str:
    collation = ' collate "C"' if column.pg_type == "text" else ""
    renamed = f"e_{type_id}_{column.column_id}"
    text = sql.SQL(
        "set local search_path to {schema}, pg_catalog; "
        "alter table {table} add column {column} {pg_type_text}; "
        "alter table {table} rename to {renamed}; "
        "update type set table_name = {new_name} where type_id = {type_id}; "
        "insert into type_column values ({type_id}, {column_id}, {name}, {pg_type}, true, 'a')"
    ).format(
        schema=sql.Identifier(tenant.schema),
        table=sql.Identifier(table),
        renamed=sql.Identifier(renamed),
        new_name=sql.Literal(renamed),
        column=sql.Identifier(column.sql_name),
        name=sql.Literal(column.name),
        type_id=type_id,
        column_id=column.column_id,
        pg_type=column.pg_type,
        pg_type_text=sql.SQL(column.pg_type + collation),
    )
    execute_patiently(connection, text, tenant.role)
    return renamed


def _fill_column(pool: Pool, tenant: Tenant, table: str, column: HotColumn) -> None:
    names: dict[str, sql.Composable] = {
        "table": sql.Identifier(table),
        "column": sql.Identifier(column.sql_name),
        "pg_type": sql.SQL(column.pg_type),
    }
    ends = sql.SQL(
        "select max(id) from (select id from {table} where id > %s order by id limit %s) as batch"
    ).format(**names)
    move = sql.SQL(
        "update {table} set {column} = (rest ->> %(name)s)::{pg_type}, "
        "rest = rest - %(name)s where id > %(after)s and id <= %(last)s "
        "and coalesce(rest -> %(name)s, 'null') <> 'null'"
    ).format(**names)
    after = ""

    def batch(connection: Connection) -> str | None:
        row = connection.execute(ends, [after, BATCH_ROWS]).fetchone()
        last: str | None = row[0] if row else None
        if last is not None:
            connection.execute(move, {"name": column.name, "after": after, "last": last})
        return last

    while (last := pool.run(tenant, batch)) is not None:
        after = last


def _finish_column(
    connection: Connection, tenant: Tenant, type_id: int, table: str, column: HotColumn
) -> None:
    index = _index_name(type_id, column.column_id)
    names = {
        "schema": sql.Identifier(tenant.schema),
        "index": sql.Identifier(index),
        "role": sql.Identifier(tenant.role),
    }
    connection.execute(
        sql.SQL("set role {role}; set search_path to {schema}, pg_catalog").format(**names),
        prepare=False,
    )
    # A killed build leaves an invalid index, which no query uses and every write updates.
    broken = connection.execute(
        "select from pg_index where indexrelid = to_regclass(%s) and not indisvalid",
        [f'"{tenant.schema}"."{index}"'],
    )
    if broken.rowcount:
        connection.execute(sql.SQL("drop index concurrently {index}").format(**names))
    connection.execute(index_text(type_id, table, column.column_id, is_online=True))
    connection.execute(
        "update type_column set state = 'r' where type_id = %s and column_id = %s",
        [type_id, column.column_id],
    )
    connection.execute("reset role; reset search_path", prepare=False)
