"""Arrow types as JSON, and which types hold the values of which others without loss.

In:   `pyarrow.DataType`
Out:  a text such as `"timestamp[us, tz=UTC]"`, or an object for a nested type

- `decode_type(encode_type(t)) == t` for every type a table can hold.
- Two types are *alike* when Parquet stores them the same way and their values are the same:
  string, large_string, string_view and a dictionary of strings are alike.
- A type *holds* another when every value of the other is a value of it, exactly. Timestamps
  are those of the years 1 to 9999: microseconds hold them all, nanoseconds do not.
- The limit for nesting is checked both when a type is written and when it is read.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.errors import Corruption, Invalid

TypeJson: TypeAlias = str | dict[str, Any]

NESTING_MAX = 32
NAME_LENGTH_MAX = 255

_PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    **{
        f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")()
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "uuid": pa.uuid(),
    "json": pa.json_(),
}
EXTENSIONS = frozenset({pa.uuid(), pa.json_()})
"""Types that Arrow and Parquet keep as another type with a meaning."""
_ALIASES = {
    "int": "int64",
    "float": "float64",
    "double": "float64",
    "text": "string",
    "date": "date32",
    "timestamp": "timestamp[us, tz=UTC]",
}
_WORD = {kind: word for word, kind in _PLAIN.items()}
_TEMPORAL = re.compile(r"^(timestamp|time32|time64|duration)\[(s|ms|us|ns)(?:, tz=(.+))?\]$")
_DECIMAL = re.compile(r"^decimal(32|64|128|256)\((\d+), (-?\d+)\)$")
_FIXED = re.compile(r"^fixed_binary\[(\d+)\]$")


def encode_type(kind: pa.DataType) -> TypeJson:
    """Return the JSON of a type; `Invalid` for one that Parquet cannot hold."""
    return _encode(kind, 0)


def _encode(kind: pa.DataType, depth: int) -> TypeJson:
    if depth > NESTING_MAX:
        raise Invalid(
            "a type is nested too deep",
            hint="flatten the column first",
            nesting_max=NESTING_MAX,
        )
    if kind in _WORD:
        return _WORD[kind]
    if kinds.is_timestamp(kind):
        return f"timestamp[{kind.unit}, tz={kind.tz}]" if kind.tz else f"timestamp[{kind.unit}]"
    if kinds.is_time(kind):
        return f"time{kind.bit_width}[{kind.unit}]"
    if kinds.is_duration(kind):
        return f"duration[{kind.unit}]"
    if kinds.is_decimal(kind):
        return f"decimal{kind.bit_width}({kind.precision}, {kind.scale})"
    if kinds.is_fixed_size_binary(kind):
        return f"fixed_binary[{kind.byte_width}]"
    if kinds.is_dictionary(kind):
        index, value = _encode(kind.index_type, depth + 1), _encode(kind.value_type, depth + 1)
        return {"dictionary": value, "index": index, "ordered": kind.ordered}
    return _encode_nested(kind, depth)


def _encode_nested(kind: pa.DataType, depth: int) -> TypeJson:
    if kinds.is_fixed_size_list(kind) and kind.list_size:  # size 0 makes an unreadable Parquet file
        return {"fixed_list": _encode_field(kind.value_field, depth), "size": kind.list_size}
    if kinds.is_large_list(kind):
        return {"large_list": _encode_field(kind.value_field, depth)}
    if kinds.is_list(kind):
        return {"list": _encode_field(kind.value_field, depth)}
    if kinds.is_struct(kind) and kind.num_fields:
        return {"struct": [_encode_field(kind.field(i), depth) for i in range(kind.num_fields)]}
    if kinds.is_map(kind):
        ends = [_encode_field(end, depth) for end in (kind.key_field, kind.item_field)]
        return {"map": ends, "sorted": kind.keys_sorted}
    raise Invalid(
        "a table cannot hold this type",
        hint="cast the column to an ordinary Arrow type first",
        type=str(kind),
    )


def _encode_field(field: pa.Field, depth: int) -> dict[str, Any]:
    kind = _encode(field.type, depth + 1)
    return {"name": field.name, "type": kind, "nullable": field.nullable}


def is_column_name(name: str) -> bool:
    """Tell whether a column, or a field inside of one, can have this name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return bool(name) and len(name) <= NAME_LENGTH_MAX and "\x00" not in name


def has_extension(kind: pa.DataType) -> bool:
    """Tell whether a type is a UUID or JSON, or has one inside."""
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return kind in EXTENSIONS or any(has_extension(one) for one in inner)


def check_inner_names(kind: pa.DataType, column: str) -> None:
    """Raise `Invalid` for nested fields that SQL cannot name or tell apart."""
    fields = [kind.field(place) for place in range(kind.num_fields)]
    if kinds.is_struct(kind):
        names = [field.name for field in fields]
        folded = {name.lower() for name in names}
        if len(folded) != len(names) or not all(is_column_name(name) for name in names):
            raise Invalid(
                "fields inside a column have the same name, or one that is empty or has a NUL",
                hint="rename them; names that differ only in case are the same",
                column=column,
                fields=names[:20],
            )
    for field in fields:
        check_inner_names(field.type, column)


def decode_type(json: TypeJson) -> pa.DataType:
    """Return the type of its JSON; `Corruption` when the JSON is not a type."""
    try:
        return _decode(json, 0)
    except (LookupError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        raise Corruption("not a type", hint="restore this commit from a copy", type=json) from error


def _decode(json: TypeJson, depth: int) -> pa.DataType:
    if depth > NESTING_MAX:
        raise ValueError("nested too deep")
    if isinstance(json, str):
        return _decode_word(json)
    makers: dict[str, Callable[[], pa.DataType]] = {
        "dictionary": lambda: pa.dictionary(
            _decode(json["index"], depth + 1),
            _decode(json["dictionary"], depth + 1),
            bool(json["ordered"]),
        ),
        "fixed_list": lambda: pa.list_(_decode_field(json["fixed_list"], depth), int(json["size"])),
        "large_list": lambda: pa.large_list(_decode_field(json["large_list"], depth)),
        "list": lambda: pa.list_(_decode_field(json["list"], depth)),
        "struct": lambda: pa.struct([_decode_field(field, depth) for field in json["struct"]]),
        "map": lambda: pa.map_(
            _decode_field(json["map"][0], depth),
            _decode_field(json["map"][1], depth),
            keys_sorted=bool(json["sorted"]),
        ),
    }
    for key, make in makers.items():
        if key in json:
            return make()
    raise ValueError("no type has such keys")


def parse_type(written: object) -> pa.DataType:
    """Return the type that a user names: an Arrow type, a text such as `int64`, or its JSON."""
    if isinstance(written, pa.DataType):
        return written
    if isinstance(written, str):
        word = re.sub(r",\s*", ", ", written.strip())
        written = _ALIASES.get(word, word)
    if isinstance(written, str | dict):
        with suppress(Corruption):
            return decode_type(written)
    raise Invalid(
        "unknown column type",
        hint="use a type such as bool, int64, float64, string, date32, timestamp[us, tz=UTC], "
        "decimal128(10, 2)",
        got=str(written)[:80],
    )


def _decode_word(word: str) -> pa.DataType:
    if word in _PLAIN:
        return _PLAIN[word]
    if found := _TEMPORAL.match(word):
        kind, unit, zone = found.groups()
        maker = getattr(pa, kind)
        made: pa.DataType = maker(unit, tz=zone) if kind == "timestamp" else maker(unit)
        return made
    if found := _DECIMAL.match(word):
        bits, precision, scale = (int(part) for part in found.groups())
        decimal: pa.DataType = getattr(pa, f"decimal{bits}")(precision, scale)
        return decimal
    if found := _FIXED.match(word):
        return pa.binary(int(found.group(1)))
    raise ValueError(word)


def _decode_field(json: dict[str, Any], depth: int) -> pa.Field:
    return pa.field(str(json["name"]), _decode(json["type"], depth + 1), bool(json["nullable"]))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the one type that represents all its alikes: the value's type, not Arrow's packing."""
    if kinds.is_dictionary(kind):
        return plain_type(kind.value_type)
    if kinds.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, tz="UTC")  # Parquet keeps the instant, not the zone's name
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    if kinds.is_decimal(kind):
        wide = kind.precision > 38
        return (pa.decimal256 if wide else pa.decimal128)(kind.precision, kind.scale)
    if kinds.is_fixed_size_list(kind):
        return pa.list_(_to_plain_field(kind.value_field, "item"), kind.list_size)
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return pa.list_(_to_plain_field(kind.value_field, "item"))
    if kinds.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([_to_plain_field(field, field.name) for field in fields])
    if kinds.is_map(kind):
        return pa.map_(plain_type(kind.key_type), _to_plain_field(kind.item_field, "value"))
    return kind


def _to_plain_field(field: pa.Field, name: str) -> pa.Field:
    kind = plain_type(field.type)
    return pa.field(name, kind, field.nullable or kinds.is_null(kind))


def is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Tell whether both types store the same values the same way in Parquet."""
    return bool(plain_type(one).equals(plain_type(other)))


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Tell whether every value of `narrow` is exactly a value of `wide`."""
    wide, narrow = plain_type(wide), plain_type(narrow)
    if wide.equals(narrow) or kinds.is_null(narrow):
        return True
    if kinds.is_integer(narrow):
        return _holds_integer(wide, narrow)
    if kinds.is_floating(narrow) and kinds.is_floating(wide):
        return bool(wide.bit_width >= narrow.bit_width)
    if kinds.is_decimal(narrow) and kinds.is_decimal(wide):
        digits = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(digits and wide.scale >= narrow.scale)
    if kinds.is_date32(narrow) and kinds.is_date64(wide):
        return True
    if kinds.is_timestamp(narrow) and kinds.is_timestamp(wide):
        return is_finer_timestamp(wide, narrow) and wide.unit != "ns"
    if kinds.is_time(narrow) and kinds.is_time(wide):
        return _is_finer_unit(wide.unit, narrow.unit)
    return _holds_nested(wide, narrow)


def is_finer_timestamp(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Tell whether both are timestamps and `wide` has the same or a smaller unit.

    `wide` need not hold them all: nanoseconds reach only from 1677 to 2262.
    """
    if not (kinds.is_timestamp(wide) and kinds.is_timestamp(narrow)):
        return False
    return bool(narrow.tz) == bool(wide.tz) and _is_finer_unit(wide.unit, narrow.unit)


def _holds_nested(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Tell whether plain nested types differ only where `wide` is less strict: nulls and sizes."""
    if kinds.is_list(wide) and (kinds.is_list(narrow) or kinds.is_fixed_size_list(narrow)):
        return _holds_field(wide.value_field, narrow.value_field)
    if kinds.is_fixed_size_list(wide) and kinds.is_fixed_size_list(narrow):
        same_size = wide.list_size == narrow.list_size
        return same_size and _holds_field(wide.value_field, narrow.value_field)
    if kinds.is_struct(wide) and kinds.is_struct(narrow):
        return _holds_struct(wide, narrow)
    if kinds.is_map(wide) and kinds.is_map(narrow):
        same_keys = bool(wide.key_type.equals(narrow.key_type))
        return same_keys and _holds_field(wide.item_field, narrow.item_field)
    return False


def _holds_struct(wide: pa.StructType, narrow: pa.StructType) -> bool:
    """Tell whether a struct has every field of another, and allows nulls in all that it adds."""
    inner = {field.name: field for field in wide}
    if not all(field.name in inner and _holds_field(inner[field.name], field) for field in narrow):
        return False
    known = {field.name for field in narrow}
    return all(field.nullable for field in wide if field.name not in known)


def unite_types(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds both: structs get the fields of both; None if there is none."""
    if holds(one, other):
        return one
    if holds(other, one):
        return other
    if kinds.is_struct(one) and kinds.is_struct(other):
        theirs = {field.name: field for field in other}
        fields = []
        for field in one:
            new = theirs.pop(field.name, None)
            kind = field.type if new is None else unite_types(field.type, new.type)
            if kind is None:
                return None
            fields.append(pa.field(field.name, kind))
        return pa.struct([*fields, *(pa.field(f.name, f.type) for f in theirs.values())])
    if kinds.is_list(one) and kinds.is_list(other):
        kind = unite_types(one.value_type, other.value_type)
        return None if kind is None else pa.list_(kind)
    return None


def _holds_field(wide: pa.Field, narrow: pa.Field) -> bool:
    same = wide.type.equals(narrow.type) or _holds_nested(wide.type, narrow.type)
    return bool(same and (wide.nullable or not narrow.nullable))


def _holds_integer(wide: pa.DataType, narrow: pa.DataType) -> bool:
    signed = kinds.is_signed_integer(narrow)
    if kinds.is_integer(wide):
        if kinds.is_signed_integer(wide) == signed:
            return bool(wide.bit_width >= narrow.bit_width)
        return kinds.is_signed_integer(wide) and bool(wide.bit_width > narrow.bit_width)
    exact_bits = {16: 8, 32: 16, 64: 32}
    return kinds.is_floating(wide) and bool(narrow.bit_width <= exact_bits[wide.bit_width])


def _is_finer_unit(wide: str, narrow: str) -> bool:
    order = ("s", "ms", "us", "ns")
    return order.index(wide) >= order.index(narrow)
