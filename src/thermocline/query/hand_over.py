"""Hands rows to a user's DuckDB connection, which has nothing to do with the engine of sessions.

In:   an Arrow table, and a connection or None
Out:  a relation of that connection
"""

from typing import Any

import duckdb
import pyarrow as pa

from thermocline.errors import Invalid
from thermocline.format.argument import wrong_kind


def open_relation(rows: pa.Table, connection: Any = None) -> duckdb.DuckDBPyRelation:
    """Return rows as a relation of a connection, or of DuckDB's default one."""
    if not rows.num_columns:
        hint = "name one column at least"
        raise Invalid("a relation of DuckDB needs a column", hint=hint, columns=[])
    if connection is not None and not isinstance(connection, duckdb.DuckDBPyConnection):
        hint = "pass what duckdb.connect() returned, or omit it"
        raise wrong_kind("not a connection of DuckDB", hint, "connection", connection)
    try:
        return duckdb.from_arrow(rows) if connection is None else connection.from_arrow(rows)
    except duckdb.Error as error:
        raise Invalid(
            "DuckDB does not take these rows",
            hint="name columns of types that DuckDB has, and an open connection",
            error=str(error),
        ) from error
