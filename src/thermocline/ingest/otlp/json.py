"""Decodes OTLP in JSON to the same batches as OTLP in protobuf.

In:   the bytes of an `Export{Metrics,Logs,Trace}ServiceRequest` as JSON, inflated
Out:  `DecodedRequest`, equal to that of the same request in protobuf

OTLP's JSON is protobuf's with exceptions, so protobuf's own JSON parser is not usable:

- Trace and span ids are hexadecimal, upper or lower case; other bytes are base64.
- Enumerations are integers only. Keys are in lowerCamelCase, or as the protocol's files name them;
  unknown ones are ignored. A document with none of a request's keys, but with others, is refused,
  and so is one whose items are all under unknown keys; beside other items, the answer reports them.
- 64-bit integers are numbers or texts, and exact: a number that a double cannot be trusted with is
  refused. NaN and the infinities are the texts "NaN", "Infinity", "-Infinity", never literals.
- If a key is given twice, the last one counts; two members of one `oneof` are refused.
- A double keeps its sign: `-0` is the negative zero, as `-0.0` is.
- An item with a text that is not Unicode (bytes that are not UTF-8, a lone surrogate such as
  `\\ud800`), or with a value that its field does not hold, is refused alone, and counted. When no
  item can be taken because of such values, the request is `Invalid`.
- A request with more values or items than the limits is refused before it is built.
- What is not JSON, and wrong values outside of items: `Invalid`.
"""

import base64
import binascii
import functools
import json
import math
import re
from typing import Any

import orjson

from thermocline.errors import Invalid
from thermocline.ingest.json_size import json_values_max
from thermocline.ingest.otlp.bad_text import (
    DATA,
    check_document,
    json_names,
    remove_lone_surrogates,
)
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import DecodedRequest, Tally
from thermocline.ingest.otlp.part_count import too_many_error
from thermocline.ingest.otlp.protobuf import empty_message, message_batches

MESSAGES_DEEP_MAX = 100  # protobuf's own limit, so that both encodings take the same requests
_HEX_IDS = frozenset({"trace_id", "span_id", "parent_span_id"})
_NEGATIVE_ZERO = re.compile(rb"-0(?![.0-9eE])")
_TEXT_OR_NEGATIVE_ZERO = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")|-0(?![.0-9eE])', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SAFE_INTEGER = 1 << 53
OTHERS = "a list of another signal, ignored"
_POINTS = ("NumberDataPoint", "HistogramDataPoint", "ExponentialHistogramDataPoint")
_ITEMS = frozenset({*_POINTS, "SummaryDataPoint", "LogRecord", "Span"})
_REQUESTS = frozenset(f"Export{kind}ServiceRequest" for kind in ("Metrics", "Logs", "Trace"))
_OF_SIGNALS = json_names("resource_metrics", "resource_logs", "resource_spans")
_DATA_KINDS = ("Gauge", "Sum", "Histogram", "ExponentialHistogram", "Summary")
# What holds items, directly or not, and under which names.
_BELOW = {
    "ResourceMetrics": json_names("scope_metrics"),
    "ScopeMetrics": json_names("metrics"),
    "Metric": DATA,
    **{kind: json_names("data_points") for kind in _DATA_KINDS},
    "ResourceLogs": json_names("scope_logs"),
    "ScopeLogs": json_names("log_records"),
    "ResourceSpans": json_names("scope_spans"),
    "ScopeSpans": json_names("spans"),
}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def decode_json(
    signal: str, data: bytes, *, arrived_ns: int, limits: DecodeLimits | None = None
) -> DecodedRequest:
    """Return the rows of a request; `Invalid` when the text is not a request of this signal.

    `signal` is one of `SIGNALS`. `arrived_ns` is the time of log records without a time.
    """
    limits = limits or DecodeLimits()
    if len(data) > limits.json_values_max and json_values_max(data) > limits.json_values_max:
        raise too_many_error("json_values", limits.json_values_max)
    message, tally = empty_message(signal), Tally(signal)
    document = _parse_document(signal, data, tally)
    if isinstance(document, dict) and document.keys().isdisjoint(_fields(message.DESCRIPTOR)):
        _check_empty(signal, document, message)
    check_document(signal, document, limits.items_max)
    filling = _Filling(tally)
    filling.fill(message, document, signal, 0)
    decoded = message_batches(signal, message, arrived_ns, limits, tally)
    if filling.failure is not None and not decoded.accepted:
        raise filling.failure
    return decoded


def _parse_document(signal: str, data: bytes, tally: Tally) -> Any:
    """Return the document of a body; items with a text that is not Unicode are left out."""
    if _NEGATIVE_ZERO.search(data):
        # The parser would read it as the integer 0, which has no sign.
        data = _TEXT_OR_NEGATIVE_ZERO.sub(lambda found: found[1] or b"-0.0", data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # A byte that is not UTF-8 becomes a lone surrogate, so both are looked for as one.
        text = data.decode(errors="surrogateescape")
        if text.isascii() and not _SURROGATE.search(data):
            raise _not_json_error(error) from error
    try:
        document = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_parse_finite,
            parse_int=_parse_integer,
        )
    except (ValueError, RecursionError) as error:
        raise _not_json_error(error) from error
    return remove_lone_surrogates(signal, document, tally)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number is beyond a double")
    return number


def _parse_integer(text: str) -> int | float:
    # As orjson does: an integer of more than 64 bits becomes a double.
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 64 else _parse_finite(text)


def _not_json_error(error: Exception) -> Invalid:
    return Invalid(
        "the body is not JSON",
        hint="send one JSON object in UTF-8; NaN and Infinity are texts in OTLP",
        why=str(error),
    )


def _check_empty(signal: str, document: dict[str, Any], message: Any) -> None:
    """Refuse a document that has keys, but none of those of a request of this signal."""
    if not document:
        return
    expected = message.DESCRIPTOR.fields[0].camelcase_name
    raise Invalid(
        "the body is not a request of this signal",
        hint=f"send an object with {expected}; check that the signal matches the path",
        signal=signal,
        expected=expected,
        got=_shorten(", ".join(document)),
    )


class _Filling:
    """Fills the message of a request, without the items that hold what their fields do not.

    `failure` is the error of the first such item.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.failure: Invalid | None = None

    def fill(self, message: Any, value: Any, path: str, depth: int) -> None:
        """Fill a message with the members of an object."""
        if not isinstance(value, dict):
            raise _wrong_value_error(path, "an object", value)
        if depth > MESSAGES_DEEP_MAX:
            raise Invalid(
                "the body is nested too deep",
                hint="flatten the values",
                nesting_max=MESSAGES_DEEP_MAX,
            )
        chosen: set[str] = set()
        seen: set[int] = set()
        fields = _fields(message.DESCRIPTOR)
        self._note_unknown(message.DESCRIPTOR.name, value, fields)
        for key, one in value.items():
            field = fields.get(key)
            if field is None or one is None:
                continue
            where = f"{path}.{key}"
            if field.number in seen:
                raise Invalid(
                    "a field is given under two names",
                    hint="send one of them",
                    path=_shorten(where),
                )
            seen.add(field.number)
            choice = field.containing_oneof
            if choice is not None:
                if choice.name in chosen:
                    raise Invalid(
                        "two members of one `oneof`", hint="send one of them", path=_shorten(where)
                    )
                chosen.add(choice.name)
            if field.is_repeated:
                self._fill_repeated(message, field, one, where, depth)
            elif field.message_type is not None:
                part = getattr(message, field.name)
                part.SetInParent()
                self.fill(part, one, where, depth + 1)
            else:
                setattr(message, field.name, _parse_scalar(field, one, where))

    def _fill_repeated(self, message: Any, field: Any, value: Any, path: str, depth: int) -> None:
        if not isinstance(value, list):
            raise _wrong_value_error(path, "an array", value)
        repeated = getattr(message, field.name)
        if field.message_type is None:
            repeated.extend(_parse_scalar(field, one, path) for one in value)
            return
        is_item = field.message_type.name in _ITEMS
        for one in value:
            try:
                self.fill(repeated.add(), one, path, depth + 1)
            except Invalid as error:
                if not is_item:
                    raise
                del repeated[-1]
                self.failure = self.failure or error
                self._tally.reject(error.message, str(error.facts.get("path", "")))

    def _note_unknown(self, kind: str, value: dict[str, Any], fields: dict[str, Any]) -> None:
        """Note an object where items are expected, and where only unknown names are."""
        expected = _BELOW.get(kind)
        if expected is not None and expected.isdisjoint(value):
            unknown = value.keys() - fields.keys()
            if unknown:
                self._tally.note_unknown(", ".join(sorted(unknown)))
        elif kind in _REQUESTS:
            for _ in value.keys() & (_OF_SIGNALS - fields.keys()):
                self._tally.note(OTHERS)


@functools.cache
def _fields(descriptor: Any) -> dict[str, Any]:
    """Return a message's fields by the names that protobuf's JSON mapping has for them."""
    camel = {field.camelcase_name: field for field in descriptor.fields}
    return camel | {field.name: field for field in descriptor.fields}


def _parse_scalar(field: Any, value: Any, path: str) -> Any:
    kind = field.cpp_type
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return _parse_double(value, path)
    if kind == field.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise _wrong_value_error(path, "true or false", value)
        return value
    if kind == field.CPPTYPE_STRING:
        if not isinstance(value, str):
            raise _wrong_value_error(path, "a text", value)
        if field.type != field.TYPE_BYTES:
            return value
        return (
            _parse_hexadecimal(value, path)
            if field.name in _HEX_IDS
            else _parse_base64(value, path)
        )
    if kind == field.CPPTYPE_ENUM and isinstance(value, str):
        raise _wrong_value_error(path, "an enumeration's integer", value)
    return _parse_integer_field(field, value, path)


def _parse_integer_field(field: Any, value: Any, path: str) -> int:
    number: int
    if isinstance(value, str):
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise _wrong_value_error(path, "an integer", value)
        number = int(value)
    elif isinstance(value, float):
        # The parser returns a double for an integer with an exponent or of more than 64 bits.
        # Within 53 bits the double is exact.
        if not value.is_integer() or abs(value) > _SAFE_INTEGER:
            raise _wrong_value_error(path, "an integer", value)
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        raise _wrong_value_error(path, "an integer", value)
    low, high = _RANGES[field.cpp_type]
    if not low <= number <= high:
        raise _wrong_value_error(path, f"an integer from {low} to {high}", value)
    return number


# By protobuf's numbers of kinds: int32, int64, uint32, uint64, enum.
_RANGES = {
    1: (-(1 << 31), (1 << 31) - 1),
    2: (-(1 << 63), (1 << 63) - 1),
    3: (0, (1 << 32) - 1),
    4: (0, (1 << 64) - 1),
    8: (-(1 << 31), (1 << 31) - 1),
}


def _parse_double(value: Any, path: str) -> float:
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        try:
            number = float(value)
        except ValueError:
            raise _wrong_value_error(path, "a number", value) from None
        if math.isfinite(number) and not set(value) - set("+-.0123456789eE"):
            return number
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise _wrong_value_error(path, "a number", value)


def _parse_hexadecimal(value: str, path: str) -> bytes:
    try:
        return binascii.unhexlify(value)
    except ValueError as error:
        raise _wrong_value_error(path, "hexadecimal digits", value) from error


def _parse_base64(value: str, path: str) -> bytes:
    text = value.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        raise _wrong_value_error(path, "base64", value) from error


def _wrong_value_error(path: str, expected: str, value: Any) -> Invalid:
    return Invalid(
        "a value does not have the type of its field",
        hint="send OTLP's JSON: ids in hexadecimal, enumerations as integers",
        path=_shorten(path),
        expected=expected,
        got=_shorten(str(value)) if isinstance(value, str | int | float) else type(value).__name__,
    )


def _shorten(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."
