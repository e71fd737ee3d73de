"""Decodes the rows of a request's body: JSON lines, a JSON array, an Arrow stream.

In:   untrusted bytes
Out:  rows for `LakeTable.write`; `Invalid` with the line of an error

- JSON is read strictly. Values that JSON lacks are read in the form that answers have: binary as
  hexadecimal, `NaN` and the infinities as text, decimals as numbers or text, to the last digit.
- JSON with more values than one write accepts is refused before it is decoded: a value takes many
  times its size on the wire.
- An Arrow stream is validated before its values are used. It must not expand in memory: compressed
  buffers, views and runs are refused, and dictionaries count as their decoded values, over all
  batches. Compress the body instead.
"""

import io
import struct
import time as clock
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from thermocline.errors import BodyTooLarge, Invalid, ThermoclineError
from thermocline.ingest.exact_values import has_decimals, json_conversion, short_text
from thermocline.ingest.json_text import restore_negative_zeros
from thermocline.ingest.rows import ROWS_MAX, fit_rows, rows_table
from thermocline.lake_table import LakeTable

LOOKS_S = 1.0
"""How long a node looks for the row that an error is about."""
JSON_VALUES_MAX = 4_000_000
VALUE_BYTES = 64  # the least memory of a decoded JSON value
DECODED_BYTES_MAX = 256 << 20  # of all batches of a body together
FIXED_BYTES_MAX = 32  # the widest fixed-width value is a decimal
OFFSET_BYTES = 8
_CONTINUATION = b"\xff\xff\xff\xff"

Row = dict[str, Any]


class JsonRows(NamedTuple):
    """Rows, and the position of each in the body: its line, or its number in the array."""

    rows: list[Row]
    positions: list[int]
    word: str

    def position_fact(self, index: int) -> dict[str, int]:
        """Return a row's position as a fact of an error."""
        return {self.word: self.positions[index]}


def check_values(values: int) -> None:
    """Refuse JSON with more values than one write accepts, before it is decoded."""
    if values > JSON_VALUES_MAX:
        raise BodyTooLarge(
            "the rows have more values than one write accepts",
            hint="send the rows in smaller parts, or as an Arrow stream",
            values=values,
            values_max=JSON_VALUES_MAX,
        )


def json_rows(data: bytes, schema: pa.Schema, *, is_list: bool) -> JsonRows:
    """Return the rows of a JSON array (or one object), or of JSON lines."""
    exact = {field.name for field in schema if has_decimals(field.type)}
    decoder = msgspec.json.Decoder(float_hook=Decimal) if exact else msgspec.json.Decoder()
    parse_float = Decimal if exact else float

    def parse(text: bytes) -> Any:
        return restore_negative_zeros(text, decoder.decode(text), parse_float)

    found = _array(data, parse) if is_list else _lines(data, parse)
    if len(found.rows) > ROWS_MAX:
        hint = "send the rows in smaller parts"
        raise Invalid("more rows than one write accepts", hint=hint, rows_max=ROWS_MAX)
    for field in schema:
        convert = json_conversion(field.type)
        if convert is not None:
            _convert(found, field.name, convert)
    if exact:
        for row in found.rows:
            row |= {
                name: _without_decimals(value) for name, value in row.items() if name not in exact
            }
    return found


def _lines(data: bytes, parse: Callable[[bytes], Any]) -> JsonRows:
    rows, places = [], []
    for number, line in enumerate(io.BytesIO(data), start=1):
        if line.strip():
            rows.append(_row(_value(line, parse, {"line": number}), {"line": number}))
            places.append(number)
    return JsonRows(rows, places, "line")


def _array(data: bytes, parse: Callable[[bytes], Any]) -> JsonRows:
    found = _value(data, parse, {})
    given = found if isinstance(found, list) else [found]
    rows = [_row(row, {"row": number}) for number, row in enumerate(given, start=1)]
    return JsonRows(rows, list(range(1, len(rows) + 1)), "row")


def _value(data: bytes, parse: Callable[[bytes], Any], place: dict[str, int]) -> Any:
    try:
        return parse(data)
    except (msgspec.MsgspecError, RecursionError, ValueError, InvalidOperation) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Invalid(
            "the rows are not valid JSON",
            hint="send one object a line, or an array of objects",
            why=why.splitlines()[0] if why else "",
            **place,
        ) from error


def _row(value: Any, place: dict[str, int]) -> Row:
    if not isinstance(value, dict):
        hint = "send one object for each row"
        raise Invalid("a row is not an object", hint=hint, type=type(value).__name__, **place)
    return value


def _convert(found: JsonRows, name: str, convert: Callable[[Any], Any]) -> None:
    for index, row in enumerate(found.rows):
        value = row.get(name)
        if isinstance(value, str | list | dict):
            try:
                row[name] = convert(value)
            except ValueError as error:
                raise Invalid(
                    "a value does not fit its column",
                    hint="see docs/api.md for how values are written",
                    column=name,
                    value=short_text(value),
                    why=str(error),
                    **found.position_fact(index),
                ) from error


def _without_decimals(value: Any) -> Any:
    """Return a value with decimals as doubles: only decimal columns need decimals."""
    if isinstance(value, Decimal):
        found = float(value)
        if found in (float("inf"), float("-inf")):
            raise Invalid("a number is out of range", hint="write it as text", number=str(value))
        return found
    if isinstance(value, list):
        return [_without_decimals(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_decimals(one) for key, one in value.items()}
    return value


def locate_refused_row(found: JsonRows, table: LakeTable) -> dict[str, int]:
    """Return the position of the first row that is refused alone; empty if none is found soon."""
    end_s = clock.monotonic() + LOOKS_S
    state = table.cold.state()
    for index, row in enumerate(found.rows):
        if clock.monotonic() > end_s:
            break
        if row.get(state.spec.time_column) is None:
            return found.position_fact(index)
        try:
            given = rows_table([row], state.schema, state.spec)
            known = [name for name in given.column_names if name in state.schema.by_name]
            if state.schema.columns:
                fit_rows(given.select(known), state.schema, state.spec)
        except ThermoclineError:
            return found.position_fact(index)
    return {}


# Arrow


def arrow_rows(data: bytes) -> pa.Table:
    """Return the rows of an Arrow stream after full validation; `Invalid` if it fails."""
    try:
        _check_messages(data)
        with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
            for field in reader.schema:
                _check_type(field.type, field.name)
            batches = []
            rows = size_bytes = 0
            for batch in reader:
                rows += batch.num_rows
                if rows > ROWS_MAX:
                    hint = "send the rows in smaller parts"
                    raise Invalid("more rows than one write accepts", hint=hint, rows_max=ROWS_MAX)
                batch.validate(full=True)
                size_bytes += _size_bytes(batch)
                if size_bytes > DECODED_BYTES_MAX:
                    raise BodyTooLarge(
                        "the rows are larger than the limit",
                        hint="send the rows in smaller parts",
                        limit_bytes=DECODED_BYTES_MAX,
                    )
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)
    except ThermoclineError:
        raise
    except (pa.ArrowException, ValueError, OSError, struct.error, IndexError) as error:
        raise Invalid(
            "the rows are not a valid Arrow stream",
            hint="send a complete stream in Arrow's stream format",
            why=str(error).splitlines()[0][:200] if str(error) else "",
        ) from error


def join_messages(parts: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the Arrow stream of messages that came as header and body; `Invalid` if one is cut."""
    joined = []
    try:
        for header, body in parts:
            if _message_body_bytes(header) != len(body):
                raise Invalid("an Arrow message has no whole body", hint="send it completely")
            padded = header + b"\0" * (-len(header) % 8)
            joined += [_CONTINUATION, len(padded).to_bytes(4, "little"), padded, body]
    except (struct.error, IndexError) as error:
        hint = "send the messages of Arrow's stream format"
        raise Invalid("a message is not one of Arrow", hint=hint) from error
    return b"".join([*joined, _CONTINUATION, bytes(4)])


def _check_type(kind: pa.DataType, column: str, *, is_inside: bool = False) -> None:
    views = kinds.is_string_view(kind) or kinds.is_binary_view(kind)
    lists = kinds.is_list_view(kind) or kinds.is_large_list_view(kind)
    is_loose = views or lists or kinds.is_run_end_encoded(kind)
    if is_loose or (is_inside and kinds.is_dictionary(kind)):
        hint = "cast it to a plain type first"
        message = "the type of a column is not supported"
        raise Invalid(message, hint=hint, column=column, type=str(kind)[:200])
    if kinds.is_dictionary(kind):
        _check_type(kind.value_type, column, is_inside=True)
    for place in range(kind.num_fields):
        _check_type(kind.field(place).type, column, is_inside=True)


def _size_bytes(batch: pa.RecordBatch) -> int:
    """Return the size of a batch's rows, with dictionaries counted as their decoded values."""
    size_bytes = 0
    for column in batch.columns:
        if not kinds.is_dictionary(column.type):
            size_bytes += column.nbytes
            continue
        values = column.dictionary
        if kinds.is_nested(values.type):
            hint = "cast it to a plain type first"
            message = "the type of a column is not supported"
            raise Invalid(message, hint=hint, type=str(values.type))
        if not _has_bytes(values.type):
            size_bytes += FIXED_BYTES_MAX * len(column)
            continue
        lengths = pc.binary_length(values).cast(pa.int64())
        size_bytes += pc.sum(lengths.take(column.indices)).as_py() or 0
        size_bytes += OFFSET_BYTES * len(column)
    return size_bytes


def _has_bytes(kind: pa.DataType) -> bool:
    """Tell whether a type is text or bytes, so that its values have no fixed size."""
    tests = (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)
    return any(test(kind) for test in tests) or kinds.is_fixed_size_binary(kind)


def _check_messages(data: bytes) -> None:
    """Refuse a truncated stream, and refuse compressed buffers before they are inflated."""
    place, size = 0, len(data)
    while True:
        if place + 4 > size:
            raise Invalid("the Arrow stream has no end", hint="send the complete stream")
        (length,) = struct.unpack_from("<i", data, place)
        place += 4
        if length == -1:
            (length,) = struct.unpack_from("<i", data, place)
            place += 4
        if length == 0:
            return
        if length < 8 or place + length > size:
            raise Invalid("the Arrow stream is truncated", hint="send the complete stream")
        body_bytes = _message_body_bytes(data[place : place + length])
        place += length + body_bytes
        if body_bytes < 0 or place > size:
            raise Invalid("the Arrow stream is truncated", hint="send the complete stream")


def _message_body_bytes(message: bytes) -> int:
    """Return the length of a message's body; `Invalid` when its buffers are compressed."""
    (root,) = struct.unpack_from("<I", message, 0)
    kind_at, header_at, length_at = (_field(message, root, slot) for slot in (1, 2, 3))
    kind = message[kind_at] if kind_at else 0
    if kind in (2, 3) and header_at:  # a dictionary batch, a record batch
        header = header_at + struct.unpack_from("<I", message, header_at)[0]
        if kind == 2:
            inner = _field(message, header, 1)
            header = inner + struct.unpack_from("<I", message, inner)[0] if inner else 0
        if header and _field(message, header, 3):
            hint = "compress the body instead, with Content-Encoding"
            raise Invalid("compressed Arrow buffers are not supported", hint=hint)
    return int(struct.unpack_from("<q", message, length_at)[0]) if length_at else 0


def _field(message: bytes, table: int, slot: int) -> int:
    """Return the offset of a field of a flatbuffers table, or 0 when it is absent."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if vtable < 0:
        hint = "send a complete stream in Arrow's stream format"
        raise Invalid("the rows are not a valid Arrow stream", hint=hint)
    (size,) = struct.unpack_from("<H", message, vtable)
    if 4 + 2 * slot + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", message, vtable + 4 + 2 * slot)
    return int(table + offset) if offset else 0
