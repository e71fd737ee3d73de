"""Renders attribute values as canonical JSON text that keeps their types, and reads it back.

In:   `AnyValue` and `KeyValue` messages
Out:  the text of `tables.py`; from a text, Python values again

- One set of attributes has one text: keys are in order, in nested lists too.
- A key given twice keeps its last value. The tally notes values that a limit truncates or drops,
  and `attributes_and_dropped` counts the attributes that a limit dropped.
- `read_attributes(text)` returns every value with its type: str, bool, int, float, bytes, list,
  dict, None. Only the payload bits of a NaN are lost.
"""

import base64
import math
from collections.abc import Iterable
from typing import Any

import orjson

from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import Tally

_TAGS = frozenset({"bytesValue", "doubleValue", "kvlistValue"})

CUT = "attribute value too long, cut"
TOO_LONG = "attribute value too long, dropped"
KEY_TOO_LONG = "attribute key too long, dropped"
TOO_MANY = "too many attributes, dropped"
TOO_DEEP = "value nested too deep, emptied"
BY_INDEX = "value or key by an index that only profiles have, emptied"
TWICE = "attribute key twice, the last kept"
TEXT_CUT = "text too long, cut"
BODY_CUT = "body too long, cut"


class ValueRenderer:
    """Renders the values of one request within its limits."""

    def __init__(self, limits: DecodeLimits, tally: Tally) -> None:
        self._limits = limits
        self._tally = tally
        # A character has at most four bytes: texts up to these lengths are within the limits.
        self._key_length_safe = limits.key_bytes_max // 4
        self._value_length_safe = limits.value_bytes_max // 4

    def attributes(self, pairs: Iterable[Any]) -> str:
        """Return a set of attributes as its text."""
        return self.attributes_and_dropped(pairs)[0]

    def attributes_and_dropped(self, pairs: Iterable[Any]) -> tuple[str, int]:
        """Return a set of attributes as its text, and how many of them a limit dropped."""
        found, dropped = self.attribute_values(pairs)
        return (dump(found) if found else "{}"), dropped

    def attribute_values(self, pairs: Iterable[Any]) -> tuple[dict[str, Any], int]:
        """Return a set of attributes as JSON values, and how many of them a limit dropped."""
        found: dict[str, Any] = {}
        dropped = 0
        for pair in pairs:
            key, value = pair.key, pair.value
            kind = value.WhichOneof("value")
            if kind == "string_value" and len(value.string_value) <= self._value_length_safe:
                plain = value.string_value
            elif kind == "int_value":
                plain = value.int_value
            else:
                plain = self._render_bounded(value, kind)
            if not key and pair.key_strindex:
                self._tally.note(BY_INDEX)
            if key in found:
                self._tally.note(TWICE)
            elif self._is_refused(key, len(found)):
                dropped += 1
                continue
            if plain is _DROPPED:
                dropped += 1
            else:
                found[key] = plain
        return found, dropped

    def _is_refused(self, key: str, count: int) -> bool:
        """Tell whether a key is too long, or past the limit of attributes."""
        if count >= self._limits.attributes_max:
            self._tally.note(TOO_MANY)
            return True
        is_long = len(key) > self._key_length_safe and _is_longer(key, self._limits.key_bytes_max)
        if is_long:
            self._tally.note(KEY_TOO_LONG)
        return is_long

    def note_unknown(self, names: str) -> None:
        """Note names or fields that are unknown in a place where items are expected, if any."""
        if names:
            self._tally.note_unknown(names)

    def text(self, value: str) -> str:
        """Return a text of an item, truncated to the limit of values."""
        return self._truncate(value, self._limits.value_bytes_max, TEXT_CUT)

    def optional_text(self, value: str) -> str | None:
        """Return a text of an item, None when it is absent."""
        return self.text(value) if value else None

    def body(self, value: Any) -> tuple[str | None, str | None]:
        """Return a log record's body as text, and as typed JSON where it is not a text."""
        limit = self._limits.body_bytes_max
        kind = value.WhichOneof("value")
        if kind == "string_value":
            return self._truncate(value.string_value, limit, BODY_CUT), None
        text = dump(self._plain_value(value, 0))
        if _is_longer(text, limit):
            return self._truncate(text, limit, BODY_CUT), None
        return (None if text == "null" else text), text

    def _render_bounded(self, value: Any, kind: str | None) -> Any:
        """Return an attribute's value, truncated or dropped past the limit of its length."""
        if kind == "string_value":
            return self._truncate(value.string_value, self._limits.value_bytes_max, CUT)
        plain = self._plain_value(value, 0)
        is_compound = kind in ("array_value", "kvlist_value", "bytes_value")
        if is_compound and _is_longer(dump(plain), self._limits.value_bytes_max):
            self._tally.note(TOO_LONG)
            return _DROPPED
        return plain

    def _plain_value(self, value: Any, depth: int) -> Any:
        kind = value.WhichOneof("value")
        if kind in ("string_value", "bool_value", "int_value"):
            return getattr(value, kind)
        if kind == "double_value":
            return _plain_double(value.double_value)
        if kind == "bytes_value":
            return {"bytesValue": base64.b64encode(value.bytes_value).decode()}
        if kind in ("array_value", "kvlist_value"):
            if depth >= self._limits.nesting_max:
                self._tally.note(TOO_DEEP)
                return None
            if kind == "array_value":
                return [self._plain_value(one, depth + 1) for one in value.array_value.values]
            return self._plain_pairs(value.kvlist_value.values, depth + 1)
        if kind == "string_value_strindex":
            self._tally.note(BY_INDEX)
        return None

    def _plain_pairs(self, pairs: Iterable[Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for pair in pairs:
            if not pair.key and pair.key_strindex:
                self._tally.note(BY_INDEX)
            if pair.key in found:
                self._tally.note(TWICE)
            found[pair.key] = self._plain_value(pair.value, depth)
        if len(found) == 1 and not _TAGS.isdisjoint(found):
            return {"kvlistValue": found}
        return found

    def _truncate(self, text: str, limit_bytes: int, note: str) -> str:
        if not _is_longer(text, limit_bytes):
            return text
        self._tally.note(note)
        return text.encode()[:limit_bytes].decode(errors="ignore")


_DROPPED = object()


def dump(value: Any) -> str:
    """Return the canonical text of a JSON value."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _plain_double(value: float) -> Any:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return {"doubleValue": "NaN"}
    return {"doubleValue": "Infinity" if value > 0 else "-Infinity"}


def _is_longer(text: str, limit_bytes: int) -> bool:
    # A character has at most four bytes, so only texts near the limit must be encoded.
    return len(text) * 4 > limit_bytes and len(text.encode()) > limit_bytes
