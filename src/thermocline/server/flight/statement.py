"""Statements of clients: SQL with its parameters, as tickets, and as prepared statements.

In:   SQL, batches of parameters, tickets and handles of clients
Out:  a `FlightStatement`, which the query pool can run

    offset  size  ticket of a statement
    0       16    id of the query
    16      4     length of the SQL, little endian
    20      …     SQL in UTF-8
    …       …     one row of parameters as a stream of Arrow, or nothing

- A ticket has all that its query needs, so the node keeps nothing for it. A client may write a
  ticket by itself: its query passes the same gate as any other.
- A prepared statement belongs to a tenant; for another one it does not exist. Each tenant has a
  limited number, and a new one beyond it drops the one that was not used for the longest time.
"""

import struct
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.errors import Invalid, NotFound
from thermocline.format.instant import NS_PER_US, Nanoseconds
from thermocline.server.api.http.rows import arrow_rows

STATEMENT_BYTES_MAX = 2 << 20  # Go clients read messages of up to 4 MiB unless set otherwise
PREPARED_MAX = 1_000
PREPARED_BYTES_MAX = 32 << 20
_ID_BYTES = 16
_LENGTH = struct.Struct("<I")

Values = list[Any] | dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class FlightStatement:
    """SQL, the names of its parameters if they are known, and one row of their values."""

    sql: str
    names: tuple[str, ...] | None = None
    row: bytes = b""
    schema: bytes = b""
    """The schema of the answer, if it was asked for."""
    parameters: bytes = b""
    """The schema of the parameters, if there are any."""

    @property
    def size_bytes(self) -> int:
        """How much memory it occupies, roughly."""
        return len(self.sql) + len(self.row) + len(self.schema)

    @property
    def values(self) -> Values:
        """The values of the parameters, as the query pool takes them."""
        return _parse_values(self.row) if self.row else None


def check_size(statement: FlightStatement) -> FlightStatement:
    """Return the statement; `Invalid` if it is too long."""
    size_bytes = len(statement.sql.encode()) + len(statement.row)
    if size_bytes > STATEMENT_BYTES_MAX:
        raise Invalid(
            "the statement and its parameters are too long",
            hint="put long lists into a table, or use the HTTP API",
            bytes=size_bytes,
            bytes_max=STATEMENT_BYTES_MAX,
        )
    return statement


def encode_ticket(statement: FlightStatement) -> bytes:
    """Return a ticket that runs the statement, with a new id of the query."""
    text = check_size(statement).sql.encode()
    return b"".join((uuid.uuid4().bytes, _LENGTH.pack(len(text)), text, statement.row))


def decode_ticket(data: bytes) -> tuple[str, FlightStatement]:
    """Return the id of the query and its statement; `Invalid` for other bytes."""
    start = _ID_BYTES + _LENGTH.size
    try:
        (length,) = _LENGTH.unpack_from(data, _ID_BYTES)
        if start + length > len(data):
            raise ValueError(length)
        text = data[start : start + length].decode()
    except (struct.error, ValueError) as error:
        hint = "read the ticket of a FlightInfo of this node"
        raise Invalid("the ticket is not one of this node", hint=hint) from error
    query_id = uuid.UUID(bytes=data[:_ID_BYTES]).hex
    return query_id, check_size(FlightStatement(text, row=data[start + length :]))


def encode_row(table: pa.Table, names: tuple[str, ...] | None) -> bytes:
    """Return one row of parameters as a stream, its columns named as the parameters are.

    Clients number the columns as they like, so they are matched by place, and by name only if the
    statement has names and the columns have the same.
    """
    if table.num_rows != 1:
        hint = "run the query once for each row of parameters"
        raise Invalid("parameters are one row", hint=hint, rows=table.num_rows)
    found = table.column_names
    places = tuple(str(place) for place in range(1, len(found) + 1))
    if names is None or all(name.isdecimal() for name in names):
        named = table.rename_columns(list(places))
    elif sorted(name.lower() for name in found) == sorted(names):
        named = table
    elif len(names) == len(found) == 1:
        named = table.rename_columns(list(names))
    else:
        hint = "give the columns of the parameters the names of the query's, or use ?"
        raise Invalid(
            "the parameters do not match those of the query",
            hint=hint,
            expected=sorted(names),
            got=found,
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, named.schema) as writer:
        writer.write_table(named)
    return bytes(sink.getvalue())


def _parse_values(row: bytes) -> Values:
    table = arrow_rows(row)
    if table.num_rows != 1:
        raise Invalid("parameters are one row", hint="send one row", rows=table.num_rows)
    values = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            values[name] = _parse_value(column[0])
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise Invalid(
                "a parameter's value does not fit its type",
                hint="use numbers, texts, times and lists of them",
                parameter=name,
                type=str(column.type)[:200],
            ) from error
    return list(values.values()) if all(name.isdecimal() for name in values) else values


def _parse_value(scalar: Any) -> Any:
    """Return a value of Arrow as one of Python, to its last nanosecond."""
    kind = scalar.type
    if kinds.is_timestamp(kind) and kind.unit == "ns" and scalar.is_valid:
        if scalar.value % NS_PER_US:
            return Nanoseconds(scalar.value, kind.tz is not None)
        return scalar.cast(pa.timestamp("us", kind.tz)).as_py()
    return scalar.as_py()


class PreparedQueries:
    """The prepared statements of all tenants. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, OrderedDict[bytes, FlightStatement]] = {}

    def keep(self, tenant: str, statement: FlightStatement) -> bytes:
        """Keep a statement and return its handle."""
        handle = uuid.uuid4().bytes
        with self._lock:
            kept = self._kept.setdefault(tenant, OrderedDict())
            kept[handle] = check_size(statement)
            _drop_oldest(kept)
        return handle

    def find(self, tenant: str, handle: bytes) -> FlightStatement:
        """Return a tenant's statement; `NotFound` if there is none of this handle."""
        with self._lock:
            kept = self._kept.get(tenant, OrderedDict())
            found = kept.get(handle)
            if found is None:
                raise NotFound(
                    "there is no such prepared statement",
                    hint="prepare it again; the node may have restarted, or dropped it for others",
                    prepared_max=PREPARED_MAX,
                )
            kept.move_to_end(handle)
            return found

    def bind(self, tenant: str, handle: bytes, table: pa.Table) -> None:
        """Keep the row of parameters for the next runs of a statement."""
        statement = self.find(tenant, handle)
        bound = check_size(replace(statement, row=encode_row(table, statement.names)))
        with self._lock:
            kept = self._kept[tenant]
            if handle in kept:
                kept[handle] = bound
                _drop_oldest(kept)

    def drop(self, tenant: str, handle: bytes) -> None:
        """Forget a statement; nothing happens if there is none."""
        with self._lock:
            self._kept.get(tenant, OrderedDict()).pop(handle, None)


def _drop_oldest(kept: OrderedDict[bytes, FlightStatement]) -> None:
    size_bytes = sum(one.size_bytes for one in kept.values())
    while len(kept) > 1 and (len(kept) > PREPARED_MAX or size_bytes > PREPARED_BYTES_MAX):
        size_bytes -= kept.popitem(last=False)[1].size_bytes
