"""Protobuf's wire format in plain Python: numbers and fields of bytes.

In:   bytes and a position in them; or a field's number and its value
Out:  a number and the position after it; or the bytes of a field

Compiled code has its own reader, `compiled/protobuf_wire.py`.
"""

from thermocline.ingest.inflate import Data

VARINT, FIXED64, LENGTH, GROUP, GROUP_END, FIXED32 = range(6)


def read_varint(data: Data, at: int) -> tuple[int, int]:
    """Return a number and the position after it; past the end if it is truncated or too long."""
    value = shift = 0
    for place in range(at, min(at + 10, len(data))):
        value |= (data[place] & 127) << shift
        if data[place] < 128:
            return value, place + 1
        shift += 7
    return value, len(data) + 1


def encode_varint(value: int) -> bytes:
    """Return the bytes of a number from 0."""
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def encode_bytes(field: int, value: bytes) -> bytes:
    """Return the field of a text, a message or bytes."""
    return encode_varint(field << 3 | LENGTH) + encode_varint(len(value)) + value
