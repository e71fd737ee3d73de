"""The information schema: the session's tables, views and columns, as tables for SQL.

In:   the registered sources and the session's views
Out:  Arrow tables with the columns of the SQL standard that clients read

- Only what the session's queries may name is in it: no settings, no files, no other tenant.
- A table that cannot be opened is an error, never a missing row.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.errors import Corruption, Invalid, Unavailable
from thermocline.query.source import QuerySnapshot, Source
from thermocline.query.sql.engine_types import engine_type
from thermocline.query.sql.gate import CATALOG_SCHEMA, MAIN_SCHEMA
from thermocline.query.sql.scan import columns_of

CATALOG_NAME = "thermocline"

_TABLES = pa.schema(
    [(name, pa.string()) for name in ("table_catalog", "table_schema", "table_name", "table_type")]
)
_SCHEMATA = pa.schema([(name, pa.string()) for name in ("catalog_name", "schema_name")])
_COLUMNS = pa.schema(
    [
        ("table_catalog", pa.string()),
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("column_name", pa.string()),
        ("ordinal_position", pa.int32()),
        ("column_default", pa.string()),
        ("is_nullable", pa.string()),
        ("data_type", pa.string()),
    ]
)


def answer_catalog(
    table: str, sources: Mapping[str, Source], views: Iterable[str], snapshot: QuerySnapshot
) -> pa.Table:
    """Return the rows of one table of the information schema."""
    ordered = [sources[name] for name in sorted(sources)]
    for source in ordered:
        if source.error is not None:
            raise source.error
    if table == "schemata":
        names = [{"catalog_name": CATALOG_NAME, "schema_name": MAIN_SCHEMA}]
        names.append({"catalog_name": CATALOG_NAME, "schema_name": CATALOG_SCHEMA})
        return pa.Table.from_pylist(names, _SCHEMATA)
    place = {"table_catalog": CATALOG_NAME, "table_schema": MAIN_SCHEMA}
    if table == "tables":
        kinds = [(source.name, "BASE TABLE") for source in ordered]
        kinds += [(name, "VIEW") for name in sorted(views)]
        rows = [{**place, "table_name": name, "table_type": kind} for name, kind in kinds]
        return pa.Table.from_pylist(rows, _TABLES)
    columns = [
        {
            **place,
            "table_name": source.name,
            "column_name": name,
            "ordinal_position": number,
            "is_nullable": "YES" if nullable else "NO",
            "data_type": engine_type(kind),
        }
        for source in ordered
        for number, (name, kind, nullable) in enumerate(_columns(source, snapshot), 1)
    ]
    return pa.Table.from_pylist(columns, _COLUMNS)


def _columns(source: Source, snapshot: QuerySnapshot) -> list[tuple[str, pa.DataType, bool]]:
    if source.table is not None:
        state = snapshot.newest(source).state
        return [(one.name, one.type, one.nullable) for one in columns_of(state)]
    try:
        schemas = [pq.read_schema(path) for path in source.paths]
    except pa.ArrowException as error:
        raise Corruption(
            "a registered file cannot be read as Parquet",
            hint="check the file",
            table=source.name,
            error=str(error),
        ) from error
    except OSError as error:
        raise Unavailable(
            "a registered file cannot be read", hint="check the file", table=source.name
        ) from error
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise Invalid(
            "the registered files have columns of types that do not go together",
            hint="register files with the same columns under one name",
            table=source.name,
            error=str(error),
        ) from error
    return [(field.name, field.type, field.nullable) for field in schema]
