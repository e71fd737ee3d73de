"""Builds the text of a set of attributes from the cached texts of its pairs.

In:   the bytes of a set: fields of one number, each a `KeyValue`
Out:  the same text as `ValueRenderer.attributes`; or None, and the official decoder decides

- Exporters send many sets of few pairs: a new set of known pairs costs a tenth of decoding it.
- The result is None for a pair with anything to note, a key that is given twice, too many pairs, or
  bytes of another shape. This module refuses and changes nothing.
- The cache is bounded and is cleared completely when it is full.
"""

from typing import Any

from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import Tally
from thermocline.ingest.otlp.value import ValueRenderer, dump

PAIRS_MAX = 1 << 16
PAIR_BYTES_MAX = 1 << 10

_Pair = tuple[str, str]


class PairCache:
    """One thread's cache of rendered pairs, for one set of limits."""

    def __init__(self, limits: DecodeLimits) -> None:
        from opentelemetry.proto.common.v1.common_pb2 import KeyValue

        self._key_value: Any = KeyValue
        self._limits = limits
        self._known: dict[bytes, _Pair] = {}

    def attributes_text(self, raw: bytes, tag: int) -> str | None:
        """Return the text of a set whose fields have this tag, or None."""
        known, size, at = self._known, len(raw), 0
        found: list[_Pair] = []
        while at < size:
            if raw[at] != tag or at + 2 >= size:
                return None
            length, start = raw[at + 1], at + 2
            if length >= 128:
                if raw[start] >= 128:
                    return None
                length, start = length & 127 | raw[start] << 7, start + 1
            at = start + length
            if at > size:
                return None
            data = raw[start:at]
            pair = known.get(data) or self._render_pair(data)
            if pair is None:
                return None
            found.append(pair)
        if len(found) > self._limits.attributes_max or len({key for key, _ in found}) < len(found):
            return None
        found.sort()
        return "{" + ",".join([text for _, text in found]) + "}"

    def _render_pair(self, data: bytes) -> _Pair | None:
        """Render and cache a pair with the official library; None when it has anything to note."""
        tally = Tally("metrics")
        message = self._key_value.FromString(data)
        values, _ = ValueRenderer(self._limits, tally).attribute_values([message])
        if tally.has_notes or len(values) != 1:
            return None
        pair = (next(iter(values)), dump(values)[1:-1])
        if len(data) <= PAIR_BYTES_MAX:
            if len(self._known) >= PAIRS_MAX:
                self._known.clear()
            self._known[data] = pair
        return pair
