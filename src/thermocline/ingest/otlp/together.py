"""Several requests of one signal decoded as one, as far as nobody can tell.

In:   bodies as they came: encoding, coding, bytes
Out:  `Share`s, in rounds: rows, and which of the bodies they are of; or the error of one body

- Protobuf's requests one after the other are one request, if each of them is whole: decoding many
  small ones costs little more than decoding one.
- What is decoded together has nothing to refuse and nothing to tell. Where there is anything, each
  body is decoded alone, so that every sender gets its own counts and its own message.
- A body that cannot be inflated or decoded is refused alone, and nothing of it is taken.
- A round is of bodies that are `ROUND_BYTES_MAX` together when they are inflated, or of one body:
  however many bombs wait, one round and the next body are in memory, and no more is inflated
  before whoever asked has taken the round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from thermocline.errors import Invalid, ThermoclineError
from thermocline.ingest.inflate import BODY_BYTES_MAX, Data, inflate
from thermocline.ingest.otlp.json import decode_json
from thermocline.ingest.otlp.outcome import Decoded, Limits
from thermocline.ingest.otlp.protobuf import decode_fast, decode_protobuf

TOGETHER_BYTES_MAX = 4 << 20
ROUND_BYTES_MAX = 16 << 20
TOP_FIELDS_MAX = 64
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class Body:
    """The body of one request: how it is encoded (`answer.ENCODINGS`), and compressed."""

    encoding: str
    coding: str
    data: Data


@dataclass(frozen=True, slots=True)
class Share:
    """What some bodies came to, named by their places: rows, or why there are none."""

    places: tuple[int, ...]
    outcome: Decoded | ThermoclineError


@dataclass(frozen=True, slots=True)
class Way:
    """How bodies are decoded: limits of what they hold, and the time of records without one."""

    arrived_ns: int
    limits: Limits
    body_bytes_max: int = BODY_BYTES_MAX
    is_together: bool = True


def decode_bodies(signal: str, bodies: Sequence[Body], way: Way) -> Iterator[list[Share]]:
    """Yield what these bodies came to, a round at a time; each of them is in exactly one share."""
    decoding = _Round(signal, way)
    for place, body in enumerate(bodies):
        try:
            data = _inflated(body, way)
        except ThermoclineError as error:
            decoding.shares.append(Share((place,), error))
            continue
        if decoding.size_bytes and decoding.size_bytes + len(data) > ROUND_BYTES_MAX:
            yield decoding.ended()
            decoding = _Round(signal, way)
        decoding.add(place, body.encoding, data)
    yield decoding.ended()


class _Round:
    """Bodies that are inflated at the same time, and what they came to so far."""

    def __init__(self, signal: str, way: Way) -> None:
        self._signal, self._way = signal, way
        self._waiting: list[tuple[int, Data]] = []
        self._waiting_bytes = 0
        self.shares: list[Share] = []
        self.size_bytes = 0

    def add(self, place: int, encoding: str, data: Data) -> None:
        """Decode a body, or let it wait for others to be decoded with."""
        way = self._way
        self.size_bytes += len(data)
        if encoding != "protobuf" or not way.is_together or not is_whole(data):
            self.shares.append(_alone(self._signal, place, encoding, data, way))
            return
        if self._waiting and self._waiting_bytes + len(data) > TOGETHER_BYTES_MAX:
            self._decode_waiting()
        self._waiting.append((place, data))
        self._waiting_bytes += len(data)

    def ended(self) -> list[Share]:
        """Return what all bodies of the round came to."""
        self._decode_waiting()
        return self.shares

    def _decode_waiting(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self.shares += _together(self._signal, waiting, self._way)


def _inflated(body: Body, way: Way) -> Data:
    if body.coding == "identity" and len(body.data) <= way.body_bytes_max:
        return body.data  # it is copied once, when it is joined with others
    return inflate(bytes(body.data), body.coding, limit_bytes=way.body_bytes_max)


def _together(signal: str, waiting: list[tuple[int, Data]], way: Way) -> list[Share]:
    if len(waiting) > 1:
        # As `join` would do it, without holding on to the interpreter for a megabyte.
        joined = np.concatenate([np.frombuffer(data, np.uint8) for _, data in waiting]).data
        decoded = decode_fast(signal, joined, arrived_ns=way.arrived_ns, limits=way.limits)
        if decoded is not None:
            return [Share(tuple(place for place, _ in waiting), decoded)]
    return [_alone(signal, place, "protobuf", data, way) for place, data in waiting]


def _alone(signal: str, place: int, encoding: str, data: Data, way: Way) -> Share:
    try:
        return Share((place,), _decoded(signal, encoding, data, way))
    except ThermoclineError as error:
        return Share((place,), error)


def _decoded(signal: str, encoding: str, data: Data, way: Way) -> Decoded:
    decode = decode_protobuf if encoding == "protobuf" else decode_json
    try:
        return decode(signal, bytes(data), arrived_ns=way.arrived_ns, limits=way.limits)
    except RecursionError as error:
        raise Invalid("the body is nested too deep", hint="flatten the values") from error


def is_whole(data: Data) -> bool:
    """Tell whether a message's fields end where its bytes do, so that another may follow it.

    A message of more than `TOP_FIELDS_MAX` fields counts as not whole: a request has few, and
    looking at each must not cost what decoding it does.
    """
    place, size = 0, len(data)
    for _ in range(TOP_FIELDS_MAX):
        if place == size:
            return True
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            _, place = _varint(data, place)
        elif kind == _LENGTH:
            length, place = _varint(data, place)
            place += length
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            return False
        if key < 8 or place > size:
            return False
    return place == size


def _varint(data: Data, place: int) -> tuple[int, int]:
    """Return a number and the place after it; a place past the end when it is cut or too long."""
    value = shift = 0
    for at in range(place, min(place + 10, len(data))):
        value |= (data[at] & 127) << shift
        if data[at] < 128:
            return value, at + 1
        shift += 7
    return value, len(data) + 1
