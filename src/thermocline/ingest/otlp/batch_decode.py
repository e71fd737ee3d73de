"""Decodes several requests of one signal as one, with the same outcome as one by one.

In:   received bodies: encoding, coding, bytes
Out:  `DecodedGroup`s, in rounds: rows and the positions of their bodies; or the error of one body

- Concatenated protobuf requests are one request if each is complete: decoding many small ones
  together costs little more than decoding one.
- Bodies decoded together have nothing to refuse and nothing to note. Otherwise each body is decoded
  alone, so that every client gets the counts and the message of its request.
- A body that cannot be inflated or decoded is refused alone, and none of its items is accepted.
- A round has bodies of at most `ROUND_BYTES_MAX` inflated bytes, or one larger body. However many
  decompression bombs wait, only one round and the next body are in memory: no more is inflated
  before the caller has consumed the round.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from thermocline.errors import Invalid, ThermoclineError
from thermocline.ingest.inflate import BODY_BYTES_MAX, Data, inflate
from thermocline.ingest.line_protocol import UNITS_NS, decode_lines
from thermocline.ingest.otlp.json import decode_json
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import DecodedRequest
from thermocline.ingest.otlp.protobuf import decode_fast, decode_protobuf
from thermocline.ingest.otlp.varint import FIXED32, FIXED64, LENGTH, VARINT, read_varint
from thermocline.ingest.prometheus.remote_write import decode_remote_write

TOGETHER_BYTES_MAX = 4 << 20
ROUND_BYTES_MAX = 16 << 20
TOP_FIELDS_MAX = 64


@dataclass(frozen=True, slots=True)
class RequestBody:
    """The body of one request, its encoding (`answer.ENCODINGS`) and its compression."""

    encoding: str
    coding: str
    data: Data


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """The outcome of the bodies at these positions: their rows, or the error of the one body."""

    positions: tuple[int, ...]
    outcome: DecodedRequest | ThermoclineError


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """How to decode bodies: their limits, and the time of log records without a time."""

    arrived_ns: int
    limits: DecodeLimits
    body_bytes_max: int = BODY_BYTES_MAX
    is_together: bool = True


def decode_bodies(
    signal: str, bodies: Sequence[RequestBody], options: DecodeOptions
) -> Iterator[list[DecodedGroup]]:
    """Yield the outcomes of these bodies, a round at a time; each body is in exactly one group."""
    decoding = _Round(signal, options)
    for place, body in enumerate(bodies):
        try:
            data = _inflate_body(body, options)
        except ThermoclineError as error:
            decoding.groups.append(DecodedGroup((place,), error))
            continue
        if decoding.size_bytes and decoding.size_bytes + len(data) > ROUND_BYTES_MAX:
            yield decoding.finish()
            decoding = _Round(signal, options)
        decoding.add(place, body.encoding, data)
    yield decoding.finish()


class _Round:
    """Bodies that are in memory at the same time, and their outcomes so far."""

    def __init__(self, signal: str, options: DecodeOptions) -> None:
        self._signal, self._options = signal, options
        self._waiting: list[tuple[int, Data]] = []
        self._waiting_bytes = 0
        self.groups: list[DecodedGroup] = []
        self.size_bytes = 0

    def add(self, place: int, encoding: str, data: Data) -> None:
        """Decode a body, or queue it to be decoded together with others."""
        options = self._options
        self.size_bytes += len(data)
        if encoding != "protobuf" or not options.is_together:
            self.groups.append(_decode_alone(self._signal, place, encoding, data, options))
            return
        if self._waiting and self._waiting_bytes + len(data) > TOGETHER_BYTES_MAX:
            self._decode_waiting()
        self._waiting.append((place, data))
        self._waiting_bytes += len(data)

    def finish(self) -> list[DecodedGroup]:
        """Decode the queued bodies; return the outcomes of all bodies of the round."""
        self._decode_waiting()
        return self.groups

    def _decode_waiting(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self.groups += _decode_together(self._signal, waiting, self._options)


def _inflate_body(body: RequestBody, options: DecodeOptions) -> Data:
    if body.coding == "identity" and len(body.data) <= options.body_bytes_max:
        return body.data  # copied once, when it is concatenated with others
    return inflate(bytes(body.data), body.coding, limit_bytes=options.body_bytes_max)


def _decode_together(
    signal: str, waiting: list[tuple[int, Data]], options: DecodeOptions
) -> list[DecodedGroup]:
    groups: list[DecodedGroup] = []
    whole = [one for one in waiting if is_whole(one[1])] if len(waiting) > 1 else []
    if len(whole) > 1:
        # Unlike `bytes.join`, this releases the interpreter's lock while it copies.
        joined = np.concatenate([np.frombuffer(data, np.uint8) for _, data in whole]).data
        decoded = decode_fast(signal, joined, arrived_ns=options.arrived_ns, limits=options.limits)
        if decoded is not None:
            together = dict(whole)
            groups.append(DecodedGroup(tuple(together), decoded))
            waiting = [one for one in waiting if one[0] not in together]
    groups += [_decode_alone(signal, place, "protobuf", data, options) for place, data in waiting]
    return groups


def _decode_alone(
    signal: str, place: int, encoding: str, data: Data, options: DecodeOptions
) -> DecodedGroup:
    try:
        return DecodedGroup((place,), _decode_body(signal, encoding, data, options))
    except ThermoclineError as error:
        return DecodedGroup((place,), error)


def _decode_body(signal: str, encoding: str, data: Data, options: DecodeOptions) -> DecodedRequest:
    if encoding in FOREIGN_ENCODINGS:
        return FOREIGN_ENCODINGS[encoding](data, options)
    decode = decode_protobuf if encoding == "protobuf" else decode_json
    try:
        return decode(signal, bytes(data), arrived_ns=options.arrived_ns, limits=options.limits)
    except RecursionError as error:
        raise Invalid("the body is nested too deep", hint="flatten the values") from error


def _decode_remote_write(version: int) -> Callable[[Data, DecodeOptions], DecodedRequest]:
    return lambda data, options: decode_remote_write(data, version, options.limits)


def _decode_lines(unit_ns: int) -> Callable[[Data, DecodeOptions], DecodedRequest]:
    return lambda data, options: decode_lines(data, unit_ns, options.arrived_ns, options.limits)


REMOTE_WRITE = {1: "remote-write-1", 2: "remote-write-2"}
LINES = {unit: f"lines-{unit}" for unit in UNITS_NS}
FOREIGN_ENCODINGS = {
    **{name: _decode_remote_write(version) for version, name in REMOTE_WRITE.items()},
    **{name: _decode_lines(UNITS_NS[unit]) for unit, name in LINES.items()},
}
"""Encodings of metrics that are not OpenTelemetry's."""


def is_whole(data: Data) -> bool:
    """Tell whether a message's last field ends at its last byte, so that another may follow.

    A message of more than `TOP_FIELDS_MAX` fields counts as incomplete: a request has few, and this
    check must be cheaper than decoding.
    """
    place, size = 0, len(data)
    for _ in range(TOP_FIELDS_MAX):
        if place == size:
            return True
        key, place = read_varint(data, place)
        kind = key & 7
        if kind == VARINT:
            _, place = read_varint(data, place)
        elif kind == LENGTH:
            length, place = read_varint(data, place)
            place += length
        elif kind in (FIXED64, FIXED32):
            place += 8 if kind == FIXED64 else 4
        else:
            return False
        if key < 8 or place > size:
            return False
    return place == size
