"""The messages of Arrow Flight and Flight SQL, as protobuf descriptors made from one table.

In:   bytes of a message
Out:  a message with its fields; `Invalid` for bytes that are no message

- Only the messages that the node reads or writes are here, each with the fields of the protocol.
- A command is wrapped in protobuf's `Any`; `unpack` returns its name and its message.
- `encode_flight_data` writes the one large message itself: its body is copied once.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message, message_factory

from thermocline.errors import Invalid
from thermocline.ingest.otlp.varint import LENGTH, encode_bytes, encode_varint

FLIGHT, SQL = "arrow.flight.protocol", "arrow.flight.protocol.sql"
TYPE_URL = f"type.googleapis.com/{SQL}."
_HEADER_FIELD = 2
_BODY_TAG = encode_varint(1000 << 3 | LENGTH)

_FLIGHT_FIELDS: Mapping[str, str] = {
    "BasicAuth": "username:string=2 password:string=3",
    "Action": "type:string=1 body:bytes=2",
    "ActionType": "type:string=1 description:string=2",
    "Result": "body:bytes=1",
    "FlightDescriptor": "type:int32=1 cmd:bytes=2 path:string[]=3",
    "Ticket": "ticket:bytes=1",
    "FlightEndpoint": "ticket:Ticket=1",
    "FlightInfo": (
        "schema:bytes=1 flight_descriptor:FlightDescriptor=2 endpoint:FlightEndpoint[]=3"
        " total_records:int64=4 total_bytes:int64=5 ordered:bool=6"
    ),
    "SchemaResult": "schema:bytes=1",
    "PutResult": "app_metadata:bytes=1",
    "FlightData": "flight_descriptor:FlightDescriptor=1 data_header:bytes=2 data_body:bytes=1000",
    "CancelFlightInfoRequest": "info:FlightInfo=1",
    "CancelFlightInfoResult": "status:int32=1",
    "CloseSessionResult": "status:int32=1",
}
_SQL_FIELDS: Mapping[str, str] = {
    "CommandGetSqlInfo": "info:uint32[]=1",
    "CommandGetXdbcTypeInfo": "data_type:int32?=1",
    "CommandGetCatalogs": "",
    "CommandGetDbSchemas": "catalog:string?=1 db_schema_filter_pattern:string?=2",
    "CommandGetTables": (
        "catalog:string?=1 db_schema_filter_pattern:string?=2 table_name_filter_pattern:string?=3"
        " table_types:string[]=4 include_schema:bool=5"
    ),
    "CommandGetTableTypes": "",
    "CommandGetPrimaryKeys": "catalog:string?=1 db_schema:string?=2 table:string=3",
    "CommandGetExportedKeys": "catalog:string?=1 db_schema:string?=2 table:string=3",
    "CommandGetImportedKeys": "catalog:string?=1 db_schema:string?=2 table:string=3",
    "CommandGetCrossReference": "pk_table:string=3 fk_table:string=6",
    "CommandStatementQuery": "query:string=1 transaction_id:bytes?=2",
    "TicketStatementQuery": "statement_handle:bytes=1",
    "CommandPreparedStatementQuery": "prepared_statement_handle:bytes=1",
    "CommandStatementUpdate": "query:string=1",
    "CommandPreparedStatementUpdate": "prepared_statement_handle:bytes=1",
    "CommandStatementIngest": "table:string=2",
    "CommandStatementSubstraitPlan": "",
    "ActionCreatePreparedStatementRequest": "query:string=1 transaction_id:bytes?=2",
    "ActionCreatePreparedStatementResult": (
        "prepared_statement_handle:bytes=1 dataset_schema:bytes=2 parameter_schema:bytes=3"
    ),
    "ActionClosePreparedStatementRequest": "prepared_statement_handle:bytes=1",
    "DoPutPreparedStatementResult": "prepared_statement_handle:bytes?=1",
    "ActionCancelQueryRequest": "info:bytes=1",
    "ActionCancelQueryResult": "result:int32=1",
}
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "uint32": _Field.TYPE_UINT32,
    "int64": _Field.TYPE_INT64,
}


def _describe_file(package: str, fields: Mapping[str, str]) -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of messages; `name:type=number`, `[]` repeated, `?` optional."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, text in fields.items():
        made = file.message_type.add(name=name)
        for word in text.split():
            label, _, rest = word.partition(":")
            kind, _, number = rest.partition("=")
            field = made.field.add(name=label, number=int(number))
            field.label = _Field.LABEL_OPTIONAL
            if kind.endswith("[]"):
                field.label = _Field.LABEL_REPEATED
            elif kind.endswith("?"):
                field.proto3_optional = True
                field.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{label}")
            plain = kind.rstrip("[]?")
            if plain in _SCALARS:
                field.type = _SCALARS[plain]
            else:
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{package}.{plain}"
    return file


def _make_classes() -> dict[str, type[message.Message]]:
    # A separate pool: another package of this process may have generated the same messages.
    pool = descriptor_pool.DescriptorPool()
    found = {}
    for package, fields in ((FLIGHT, _FLIGHT_FIELDS), (SQL, _SQL_FIELDS)):
        pool.Add(_describe_file(package, fields))
        for name in fields:
            described = pool.FindMessageTypeByName(f"{package}.{name}")
            found[name] = message_factory.GetMessageClass(described)
    return found


_CLASSES = _make_classes()


def make(name: str, **fields: Any) -> Any:
    """Return a message with these fields."""
    return _CLASSES[name](**fields)


def encode(name: str, **fields: Any) -> bytes:
    """Return the bytes of a message with these fields."""
    return _CLASSES[name](**fields).SerializeToString()


def decode(name: str, data: bytes) -> Any:
    """Return the message of these bytes; `Invalid` if they are none."""
    try:
        found = _CLASSES[name]()
        found.ParseFromString(data)
    except (message.DecodeError, ValueError) as error:
        hint = "use a client of Arrow Flight SQL"
        raise Invalid("a message cannot be read", hint=hint, kind=name) from error
    return found


def pack(name: str, **fields: Any) -> bytes:
    """Return the bytes of a message of Flight SQL, wrapped with its name."""
    wrapped = any_pb2.Any(type_url=TYPE_URL + name, value=encode(name, **fields))
    return bytes(wrapped.SerializeToString())


def unpack(data: bytes) -> tuple[str, Any]:
    """Return the name and the message of a command; `Invalid` if the node does not know it."""
    wrapped = any_pb2.Any()
    try:
        wrapped.ParseFromString(data)
    except message.DecodeError as error:
        hint = "use a client of Arrow Flight SQL, such as ADBC or its JDBC driver"
        raise Invalid("the command is not one of Flight SQL", hint=hint) from error
    name = wrapped.type_url.rpartition(".")[2]
    if not wrapped.type_url.endswith(f"{SQL}.{name}") or name not in _SQL_FIELDS:
        hint = "use a client of Arrow Flight SQL, such as ADBC or its JDBC driver"
        raise Invalid("the node does not know this command", hint=hint, command=name[:100])
    return name, decode(name, wrapped.value)


def encode_flight_data(header: Any, body: Any) -> bytes:
    """Return a message of a stream of rows: Arrow's message and its body."""
    parts = [encode_bytes(_HEADER_FIELD, bytes(header))]
    if body is not None and len(body):
        parts += [_BODY_TAG, encode_varint(len(body)), body]
    return b"".join(parts)
