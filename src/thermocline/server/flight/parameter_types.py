"""The types of parameters that a prepared query announces: those of the columns beside them.

In:   the names of the parameters, what the query says about them, the tenant's lake
Out:  a schema with a field for each parameter

- JDBC converts the values of a program to these types, and refuses a value that does not fit; ADBC
  sends values with their own types.
- A parameter whose place tells no type is a text, which the engine reads as what it is compared
  with.
"""

from collections.abc import Mapping, Sequence

import orjson
import pyarrow as pa

from thermocline.errors import NotFound
from thermocline.lake import Lake
from thermocline.query.sql.scan import columns_of

HINT_TASK = "hint_parameters"
_CASTS: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}
_KNOWN = frozenset(_CASTS.values()) | {pa.binary()}


def parameter_schema(names: Sequence[str], answer: bytes, lake: Lake) -> pa.Schema:
    """Return the schema of parameters; `answer` is what the worker found in the query."""
    told = orjson.loads(answer)
    columns = _columns_of_tables(told["tables"], lake)
    types: dict[str, pa.DataType] = {}
    for name, column, cast in told["hints"]:
        found = {_CASTS[cast]} if cast in _CASTS else columns.get(column, set())
        if len(found) == 1 and found <= _KNOWN:
            (types[name.lower()],) = found
    return pa.schema([(name, types.get(name.lower(), pa.string())) for name in names])


def _columns_of_tables(tables: Sequence[str], lake: Lake) -> dict[str, set[pa.DataType]]:
    found: dict[str, set[pa.DataType]] = {}
    for name in tables:
        try:
            state = lake.table(name).cold.state()
        except NotFound:  # dropped since the query was read, or a table of the information schema
            continue
        for column in columns_of(state):
            found.setdefault(column.name.lower(), set()).add(column.type)
    return found
