"""Removes and counts the items of a request with texts that are not Unicode.

In:   a request that protobuf's parser refused, or a JSON document with lone surrogates
Out:  the request without those items; the tally has their number and the reason

- A bad text in a resource or scope removes all items below it; in the fields of a metric, all its
  points; in an exemplar, event or link, its point or span.
- Bytes that are malformed in another way raise `MalformedMessage`: the whole request is refused.
- An item with a field of a wrong wire type is of another signal, and is counted as such.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from thermocline.ingest.otlp.outcome import FOREIGN, Tally
from thermocline.ingest.otlp.part_count import too_many_error
from thermocline.ingest.otlp.varint import (
    FIXED32,
    FIXED64,
    GROUP,
    GROUP_END,
    LENGTH,
    VARINT,
    encode_bytes,
    read_varint,
)

NOT_UNICODE = "a text is not valid UTF-8"
NO_ITEMS = "a text is not valid UTF-8, in a resource, scope or metric without items"
MESSAGES_DEEP_MAX = 100
ITEM_DEPTH = 3
_KINDS = frozenset({5, 7, 9, 10, 11})  # the fields of a metric's data
_WIRE_LEVELS: dict[str, tuple[frozenset[int], ...]] = {
    "metrics": (*map(frozenset, ({1}, {2}, {2})), _KINDS, frozenset({1})),
    "logs": tuple(map(frozenset, ({1}, {2}, {2}))),
    "traces": tuple(map(frozenset, ({1}, {2}, {2}))),
}
_Levels = tuple[frozenset[Any], ...]


class MalformedMessage(Exception):
    """The bytes are not a message, regardless of their texts."""


class _Field(NamedTuple):
    """A field on the wire: from its tag to its end, and where its value begins."""

    number: int
    wire: int
    start: int
    value: int
    end: int


def remove_bad_texts(signal: str, request: Any, data: bytes, tally: Tally) -> bytes:
    """Return a request without the items that have a bad text, or raise `MalformedMessage`."""
    kept = _prune_message(request.DESCRIPTOR, data, _WIRE_LEVELS[signal], 0, tally)
    return b"" if kept is None else kept


def _prune_message(
    kind: Any, data: bytes, levels: _Levels, depth: int, tally: Tally
) -> bytes | None:
    """Return a message without the bad items below it; None when the caller must omit it."""
    fields = list(_split_fields(data))
    if depth == ITEM_DEPTH and _is_foreign(kind, fields):
        tally.reject(FOREIGN, "")
        return None
    below = levels[0] if levels else frozenset()
    others = [field for field in fields if not _is_below(field, below)]
    if _has_bad_text(kind, b"".join([data[field.start : field.end] for field in others])):
        count = _count_items(data, levels)
        if count:
            tally.reject(NOT_UNICODE, "", count)
        else:
            tally.note(NO_ITEMS)
        return None
    if len(others) == len(fields):
        return data
    parts = []
    for field in fields:
        part = data[field.start : field.end]
        if _is_below(field, below):
            inner = kind.fields_by_number[field.number].message_type
            kept = _prune_message(
                inner, data[field.value : field.end], levels[1:], depth + 1, tally
            )
            if kept is None:
                continue
            part = encode_bytes(field.number, kept)
        parts.append(part)
    return b"".join(parts)


def _is_below(field: _Field, numbers: frozenset[int]) -> bool:
    return field.wire == LENGTH and field.number in numbers


def _count_items(data: bytes, levels: _Levels) -> int:
    """Return how many items a message with these levels has."""
    if not levels:
        return 1
    return sum(
        _count_items(data[field.value : field.end], levels[1:])
        for field in _split_fields(data)
        if _is_below(field, levels[0])
    )


def _has_bad_text(kind: Any, data: bytes) -> bool:
    """Tell whether a message has a bad text; `MalformedMessage` if it has another fault."""
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    try:
        GetMessageClass(kind).FromString(data)
    except DecodeError:
        if _find_bad_text(kind, data, 0):
            return True
        raise MalformedMessage from None
    return False


def _find_bad_text(kind: Any, data: bytes, depth: int) -> bool:
    if depth > MESSAGES_DEEP_MAX:
        raise MalformedMessage
    is_bad = False
    for field in _split_fields(data):
        known = kind.fields_by_number.get(field.number)
        if known is None or field.wire != LENGTH:
            continue
        value = data[field.value : field.end]
        if known.message_type is not None:
            is_bad |= _find_bad_text(known.message_type, value, depth + 1)
        elif known.type == known.TYPE_STRING:
            try:
                value.decode()
            except UnicodeDecodeError:
                is_bad = True
    return is_bad


def _is_foreign(kind: Any, fields: list[_Field]) -> bool:
    wires = _wire_types(kind)
    return any(wires.get(field.number, field.wire) != field.wire for field in fields)


@functools.cache
def _wire_types(kind: Any) -> dict[int, int]:
    """Return the wire type by field number, without repeated numbers, which may be packed."""
    found = {}
    for field in kind.fields:
        if field.type in (field.TYPE_DOUBLE, field.TYPE_FIXED64, field.TYPE_SFIXED64):
            found[field.number] = FIXED64
        elif field.type in (field.TYPE_FLOAT, field.TYPE_FIXED32, field.TYPE_SFIXED32):
            found[field.number] = FIXED32
        elif field.message_type is not None or field.cpp_type == field.CPPTYPE_STRING:
            found[field.number] = LENGTH
        elif not field.is_repeated:
            found[field.number] = VARINT
    return found


def _split_fields(data: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(data):
        start = at
        tag, value = read_varint(data, at)
        at = _skip_value(data, value, tag, 0)
        if tag & 7 == LENGTH:
            value = at - read_varint(data, value)[0]
        yield _Field(tag >> 3, tag & 7, start, value, at)


def _skip_value(data: bytes, at: int, tag: int, depth: int) -> int:
    """Return the position after a field's value."""
    wire = tag & 7
    if tag < 8 or depth > MESSAGES_DEEP_MAX:
        raise MalformedMessage
    if wire == VARINT:
        at = read_varint(data, at)[1]
    elif wire == LENGTH:
        length, at = read_varint(data, at)
        at += length
    elif wire in (FIXED64, FIXED32):
        at += 8 if wire == FIXED64 else 4
    elif wire == GROUP:
        inner, at = read_varint(data, at)
        while inner != tag - GROUP + GROUP_END:
            at = _skip_value(data, at, inner, depth + 1)
            inner, at = read_varint(data, at)
    else:
        raise MalformedMessage
    if at > len(data):
        raise MalformedMessage
    return at


def json_names(*fields: str) -> frozenset[str]:
    """Return names of the JSON mapping: as they are, and in lowerCamelCase."""
    camel = [one[0] + one.title().replace("_", "")[1:] for one in fields]
    return frozenset([*fields, *camel])


DATA = json_names("gauge", "sum", "histogram", "exponential_histogram", "summary")
_JSON_LEVELS: dict[str, tuple[frozenset[str], ...]] = {
    "metrics": (
        *(json_names(one) for one in ("resource_metrics", "scope_metrics", "metrics")),
        DATA,
        json_names("data_points"),
    ),
    "logs": tuple(json_names(one) for one in ("resource_logs", "scope_logs", "log_records")),
    "traces": tuple(json_names(one) for one in ("resource_spans", "scope_spans", "spans")),
}
_JSON_PARTS = json_names("events", "links", "exemplars")


def remove_lone_surrogates(signal: str, document: Any, tally: Tally) -> Any:
    """Return a JSON document without the items that have a lone surrogate."""
    kept = _prune_document(document, _JSON_LEVELS[signal], tally)
    return {} if kept is None else kept


def check_document(signal: str, document: Any, items_max: int) -> None:
    """Raise `BodyTooLarge` for a JSON document with more items than the limit."""
    count, holders = 0, [document]
    for names in (*_JSON_LEVELS[signal], _JSON_PARTS):
        below: list[Any] = []
        for holder in holders:
            for name in names & holder.keys() if isinstance(holder, dict) else ():
                held = holder[name]
                below += held if isinstance(held, list) else [held]
        count += len(below)
        if count > items_max:
            raise too_many_error("items", items_max)
        holders = below


def _prune_document(value: Any, levels: _Levels, tally: Tally) -> Any:
    if not isinstance(value, dict):
        return None if levels == () and _has_surrogate(value) else value
    below = levels[0] if levels else frozenset()
    made = {key: held for key, held in value.items() if key not in below}
    if _has_surrogate(made):
        count = _count_document(value, levels)
        if count:
            tally.reject(NOT_UNICODE, "", count)
        else:
            tally.note(NO_ITEMS)
        return None
    for key in value.keys() & below:
        held = value[key]
        if isinstance(held, list):
            found = [_prune_document(one, levels[1:], tally) for one in held]
            made[key] = [one for one in found if one is not None]
        else:
            made[key] = _prune_document(held, levels[1:], tally)
            if made[key] is None and held is not None:
                return None
    return made


def _count_document(value: Any, levels: _Levels) -> int:
    if not levels:
        return 1
    if not isinstance(value, dict):
        return 0
    found = [held for key, held in value.items() if key in levels[0]]
    ones = [one for held in found for one in (held if isinstance(held, list) else [held])]
    return sum(_count_document(one, levels[1:]) for one in ones)


def _has_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(value, dict):
        return any(_has_surrogate(key) or _has_surrogate(one) for key, one in value.items())
    return isinstance(value, list) and any(map(_has_surrogate, value))
