"""The text of a set of attributes from the texts of its pairs, each of them rendered once.

In:   the bytes of a set: fields of one number, each a `KeyValue`
Out:  the same text that `Values.attributes` gives; or None, and the official way decides

- Sets are many where pairs are few: a new set of known pairs costs a tenth of decoding it.
- A pair with anything to note, a key that comes twice, too many pairs, bytes of another shape:
  None. Nothing is refused or changed here.
- What is remembered is bounded, and is forgotten as a whole when the bound is reached.
"""

from typing import Any

from thermocline.ingest.otlp.outcome import Limits, Tally
from thermocline.ingest.otlp.value import Values, dump

PAIRS_MAX = 1 << 16
PAIR_BYTES_MAX = 1 << 10

_Pair = tuple[str, str]


class Pairs:
    """What one thread remembers of the pairs it saw, under one set of limits."""

    def __init__(self, limits: Limits) -> None:
        from opentelemetry.proto.common.v1.common_pb2 import KeyValue

        self._key_value: Any = KeyValue
        self._limits = limits
        self._known: dict[bytes, _Pair] = {}

    def text(self, raw: bytes, tag: int) -> str | None:
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
            pair = known.get(data) or self._learned(data)
            if pair is None:
                return None
            found.append(pair)
        if len(found) > self._limits.attributes_max or len({key for key, _ in found}) < len(found):
            return None
        found.sort()
        return "{" + ",".join([text for _, text in found]) + "}"

    def _learned(self, data: bytes) -> _Pair | None:
        """Render a pair by the official way; None when that has anything to say."""
        tally = Tally("metrics")
        message = self._key_value.FromString(data)
        values, _ = Values(self._limits, tally).attribute_values([message])
        if tally.is_noted or len(values) != 1:
            return None
        pair = (next(iter(values)), dump(values)[1:-1])
        if len(data) <= PAIR_BYTES_MAX:
            if len(self._known) >= PAIRS_MAX:
                self._known.clear()
            self._known[data] = pair
        return pair
