"""What a client may ask about a tenant's tables: catalogs, schemas, tables, keys, and the server.

In:   a command of Flight SQL and the tenant's lake
Out:  a table of Arrow with the columns that Flight SQL names

- There is one catalog and one schema, those of the information schema.
- A table that cannot be opened is an error, never a missing row.
- The primary key of a table of entities is its id; tables of a lake have none.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from thermocline import __version__
from thermocline.errors import TableNotFound, Unsupported
from thermocline.lake import Lake
from thermocline.lake_table import LakeTable
from thermocline.query.information_schema import CATALOG_NAME
from thermocline.query.sql.gate import MAIN_SCHEMA
from thermocline.query.sql.scan import columns_of

TABLE_TYPE = "TABLE"
_TEXT = pa.string()


def _not_null(name: str, kind: pa.DataType = _TEXT) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_CATALOGS = pa.schema([_not_null("catalog_name")])
_SCHEMAS = pa.schema([("catalog_name", _TEXT), _not_null("db_schema_name")])
_TABLE_TYPES = pa.schema([_not_null("table_type")])
_TABLES = pa.schema(
    [
        ("catalog_name", _TEXT),
        ("db_schema_name", _TEXT),
        _not_null("table_name"),
        _not_null("table_type"),
    ]
)
_TABLES_WITH_SCHEMA = _TABLES.append(_not_null("table_schema", pa.binary()))
_PRIMARY_KEYS = pa.schema(
    [
        ("catalog_name", _TEXT),
        ("db_schema_name", _TEXT),
        _not_null("table_name"),
        _not_null("column_name"),
        _not_null("key_sequence", pa.int32()),
        ("key_name", _TEXT),
    ]
)
_FOREIGN_KEYS = pa.schema(
    [
        ("pk_catalog_name", _TEXT),
        ("pk_db_schema_name", _TEXT),
        _not_null("pk_table_name"),
        _not_null("pk_column_name"),
        ("fk_catalog_name", _TEXT),
        ("fk_db_schema_name", _TEXT),
        _not_null("fk_table_name"),
        _not_null("fk_column_name"),
        _not_null("key_sequence", pa.int32()),
        ("fk_key_name", _TEXT),
        ("pk_key_name", _TEXT),
        _not_null("update_rule", pa.uint8()),
        _not_null("delete_rule", pa.uint8()),
    ]
)
_XDBC_TYPES = pa.schema(
    [
        _not_null("type_name"),
        _not_null("data_type", pa.int32()),
        ("column_size", pa.int32()),
        ("literal_prefix", _TEXT),
        ("literal_suffix", _TEXT),
        ("create_params", pa.list_(_not_null("item"))),
        _not_null("nullable", pa.int32()),
        _not_null("case_sensitive", pa.bool_()),
        _not_null("searchable", pa.int32()),
        ("unsigned_attribute", pa.bool_()),
        _not_null("fixed_prec_scale", pa.bool_()),
        ("auto_increment", pa.bool_()),
        ("local_type_name", _TEXT),
        ("minimum_scale", pa.int32()),
        ("maximum_scale", pa.int32()),
        _not_null("sql_data_type", pa.int32()),
        ("datetime_subcode", pa.int32()),
        ("num_prec_radix", pa.int32()),
        ("interval_precision", pa.int32()),
    ]
)
_INFO_KINDS = [
    pa.field("string_value", _TEXT),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.field("string_data", _TEXT))),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
]
_INFO = pa.schema([_not_null("info_name", pa.uint32()), ("value", pa.dense_union(_INFO_KINDS))])
_STRING, _BOOL, _BIGINT, _BITS, _STRINGS = range(5)
_INSENSITIVE, _NULLS_LAST = 1, 1  # as Flight SQL numbers them
# What a client may know of the server: Flight SQL's number, the kind of the value, the value.
_FACTS: tuple[tuple[int, int, Any], ...] = (
    (0, _STRING, "thermocline"),
    (1, _STRING, __version__),
    (2, _STRING, pa.__version__),
    (3, _BOOL, True),  # read only
    (4, _BOOL, True),  # SQL
    (5, _BOOL, False),  # Substrait
    (8, _BITS, 0),  # no transactions
    (9, _BOOL, True),  # cancels
    (10, _BOOL, False),  # bulk ingestion
    (500, _BOOL, False),  # CREATE CATALOG
    (501, _BOOL, False),  # CREATE SCHEMA
    (502, _BOOL, False),  # CREATE TABLE
    (503, _BIGINT, _INSENSITIVE),
    (504, _STRING, '"'),
    (505, _BIGINT, _INSENSITIVE),
    (506, _BOOL, True),  # every listed table can be selected from
    (507, _BIGINT, _NULLS_LAST),
    (508, _STRINGS, []),  # keywords beyond those of SQL
)


def matches(pattern: str, name: str) -> bool:
    """Tell whether a name matches a pattern of SQL, where % is any text and _ any character.

    The time is bounded by the product of both lengths, whatever the pattern is.
    """
    place = at = 0
    star, resume = -1, 0
    while at < len(name):
        one = pattern[place] if place < len(pattern) else ""
        if one == "%":
            star, resume = place, at
            place += 1
        elif one == "_" or (one and one == name[at]):
            place, at = place + 1, at + 1
        elif star >= 0:
            resume += 1
            place, at = star + 1, resume
        else:
            return False
    return all(one == "%" for one in pattern[place:])


def _is_wanted(command: Any, field: str, name: str, *, is_pattern: bool = True) -> bool:
    """Tell whether an optional filter of a command lets a name pass."""
    if not command.HasField(field):
        return True
    wish = getattr(command, field)
    return matches(wish, name) if is_pattern else wish == name


def _is_in_catalog(command: Any) -> bool:
    return _is_wanted(command, "catalog", CATALOG_NAME, is_pattern=False)


def _catalogs(command: Any, lake: Lake) -> pa.Table:
    del command, lake
    return pa.table([[CATALOG_NAME]], schema=_CATALOGS)


def _schemas(command: Any, lake: Lake) -> pa.Table:
    del lake
    is_there = _is_in_catalog(command)
    is_there = is_there and _is_wanted(command, "db_schema_filter_pattern", MAIN_SCHEMA)
    rows = [{"catalog_name": CATALOG_NAME, "db_schema_name": MAIN_SCHEMA}] if is_there else []
    return pa.Table.from_pylist(rows, _SCHEMAS)


def _table_types(command: Any, lake: Lake) -> pa.Table:
    del command, lake
    return pa.table([[TABLE_TYPE]], schema=_TABLE_TYPES)


def _tables(command: Any, lake: Lake) -> pa.Table:
    schema = _TABLES_WITH_SCHEMA if command.include_schema else _TABLES
    is_there = _is_in_catalog(command)
    is_there = is_there and _is_wanted(command, "db_schema_filter_pattern", MAIN_SCHEMA)
    is_there = is_there and (not command.table_types or TABLE_TYPE in command.table_types)
    rows = []
    for name in lake.tables() if is_there else ():
        if not _is_wanted(command, "table_name_filter_pattern", name):
            continue
        row: dict[str, Any] = {"catalog_name": CATALOG_NAME, "db_schema_name": MAIN_SCHEMA}
        row |= {"table_name": name, "table_type": TABLE_TYPE}
        if command.include_schema:
            try:
                table = lake.table(name)
            except TableNotFound:  # dropped since the names were read
                continue
            row["table_schema"] = encode_schema(_schema_of(table))
        rows.append(row)
    return pa.Table.from_pylist(rows, schema)


def _schema_of(table: LakeTable) -> pa.Schema:
    found = columns_of(table.cold.state())
    return pa.schema([pa.field(one.name, one.type, one.nullable) for one in found])


def _primary_keys(command: Any, lake: Lake) -> pa.Table:
    table = lake.table(command.table)
    if not table.is_keyed:
        return _PRIMARY_KEYS.empty_table()
    row: dict[str, Any] = {"catalog_name": CATALOG_NAME, "db_schema_name": MAIN_SCHEMA}
    row |= {"table_name": table.name, "column_name": "id", "key_sequence": 1}
    return pa.Table.from_pylist([row], _PRIMARY_KEYS)


def _foreign_keys(command: Any, lake: Lake) -> pa.Table:
    del command, lake
    return _FOREIGN_KEYS.empty_table()


def _xdbc_types(command: Any, lake: Lake) -> pa.Table:
    del command, lake
    return _XDBC_TYPES.empty_table()


def _sql_info(command: Any, lake: Lake) -> pa.Table:
    del lake
    wanted = set(command.info)
    facts = [one for one in _FACTS if not wanted or one[0] in wanted]
    children: list[list[Any]] = [[] for _ in _INFO_KINDS]
    offsets = []
    for _, kind, value in facts:
        offsets.append(len(children[kind]))
        children[kind].append(value)
    values = pa.UnionArray.from_dense(
        pa.array([kind for _, kind, _ in facts], pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(one, field.type) for one, field in zip(children, _INFO_KINDS, strict=True)],
        [field.name for field in _INFO_KINDS],
    )
    return pa.Table.from_arrays(
        [pa.array([number for number, _, _ in facts], pa.uint32()), values], schema=_INFO
    )


_ANSWERS: Mapping[str, tuple[pa.Schema, Callable[[Any, Lake], pa.Table]]] = {
    "CommandGetCatalogs": (_CATALOGS, _catalogs),
    "CommandGetDbSchemas": (_SCHEMAS, _schemas),
    "CommandGetTables": (_TABLES, _tables),
    "CommandGetTableTypes": (_TABLE_TYPES, _table_types),
    "CommandGetPrimaryKeys": (_PRIMARY_KEYS, _primary_keys),
    "CommandGetExportedKeys": (_FOREIGN_KEYS, _foreign_keys),
    "CommandGetImportedKeys": (_FOREIGN_KEYS, _foreign_keys),
    "CommandGetCrossReference": (_FOREIGN_KEYS, _foreign_keys),
    "CommandGetXdbcTypeInfo": (_XDBC_TYPES, _xdbc_types),
    "CommandGetSqlInfo": (_INFO, _sql_info),
}


def find_schema(name: str, command: Any) -> pa.Schema:
    """Return the schema of the answer to a command; `Unsupported` if the node has no answer."""
    if name not in _ANSWERS:
        raise Unsupported(
            "this node only answers queries and questions about its tables",
            hint="write through the HTTP API, the Python client or OTLP",
            command=name,
        )
    if name == "CommandGetTables" and command.include_schema:
        return _TABLES_WITH_SCHEMA
    return _ANSWERS[name][0]


def answer_command(name: str, command: Any, lake: Lake) -> pa.Table:
    """Return the answer to a command; `Unsupported` if the node has no answer."""
    find_schema(name, command)
    return _ANSWERS[name][1](command, lake)


def encode_schema(schema: pa.Schema) -> bytes:
    """Return a schema as Flight has it: one message of Arrow's stream."""
    return bytes(schema.serialize())
