"""Decompresses a request's body, within a size limit.

In:   the bytes of a body and the name of its coding (`Content-Encoding`)
Out:  the bytes inflated

- The limit holds while inflating: a decompression bomb uses no more memory than the limit and one
  step, in every coding. The limit also holds for bodies that are not compressed.
- A body past the limit raises `BodyTooLarge`, with the limit as a fact. A body that is truncated,
  damaged or followed by other bytes raises `Invalid`. There is no partial result.
- A body has one coding; several gzip members or zstd frames in a row are one body.
"""

import zlib
from collections.abc import Callable
from typing import TypeAlias

from thermocline.errors import BodyTooLarge, Invalid
from thermocline.format.sealed_json import crc32c

BODY_BYTES_MAX = 64 << 20
MEMBERS_MAX = 4_096
STEP_BYTES = 256 << 10
INFLATED_STEP_BYTES = 1 << 20

Data: TypeAlias = bytes | bytearray | memoryview
"""A request's body, in the type in which the server received it."""

_GZIP, _ZLIB, _RAW = 31, 15, -15
_SNAPPY_MAGIC = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_SIZE_BYTES_MAX = 5
_SNAPPY_CRC_BYTES = 4


def inflate(data: bytes, coding: str = "identity", *, limit_bytes: int = BODY_BYTES_MAX) -> bytes:
    """Return a body inflated; `BodyTooLarge` past the limit, `Invalid` when it is damaged.

    `coding` is one of `CODINGS`, in upper or lower case; an empty one is identity.
    """
    name = coding.strip().lower() or "identity"
    if name not in _INFLATERS:
        raise Invalid(
            "unknown content encoding",
            hint=f"use one of {', '.join(CODINGS)}",
            encoding=coding[:100],
        )
    if len(data) > limit_bytes:
        raise _too_large_error(limit_bytes)
    if not data and name != "identity":
        raise _damaged_error("it is empty")
    return _INFLATERS[name](data, limit_bytes)


def _inflate_identity(data: bytes, limit_bytes: int) -> bytes:
    return data[:limit_bytes]


def _inflate_gzip(data: bytes, limit_bytes: int) -> bytes:
    return _inflate_members(data, limit_bytes, _GZIP)


def _inflate_deflate(data: bytes, limit_bytes: int) -> bytes:
    # The standard requires zlib's format; some clients omit its two-byte header.
    has_header = len(data) >= 2 and data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
    return _inflate_members(data, limit_bytes, _ZLIB if has_header else _RAW, members_max=1)


def _inflate_members(
    data: bytes, limit_bytes: int, window_bits: int, members_max: int = MEMBERS_MAX
) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = []
    room = limit_bytes + 1
    place = members = 0
    while place < len(view):
        if members == members_max:
            raise _damaged_error("bytes follow the end")
        members += 1
        room, place = _inflate_member(view, place, parts, room, window_bits)
        if not room:
            raise _too_large_error(limit_bytes)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _inflate_member(
    view: memoryview, place: int, parts: list[bytes], room: int, window_bits: int
) -> tuple[int, int]:
    """Inflate one member from `place` into `parts`; return the room left and its end."""
    inflater = zlib.decompressobj(window_bits)
    pending = b""
    while not inflater.eof and room:
        if not pending:
            # Read in steps, so that the bytes after a member's end are not copied for each member.
            pending = bytes(view[place : place + STEP_BYTES])
            place += len(pending)
        is_at_end = not pending
        try:
            part = inflater.decompress(pending, min(room, INFLATED_STEP_BYTES))
        except zlib.error as error:
            raise _damaged_error(str(error)) from error
        pending = inflater.unconsumed_tail
        if part:
            parts.append(part)
            room -= len(part)
        elif is_at_end and not inflater.eof:
            raise _damaged_error("it ends too early")
    return room, place - len(inflater.unused_data)


def _inflate_zstd(data: bytes, limit_bytes: int) -> bytes:
    import pyarrow as pa

    parts: list[bytes] = []
    room = limit_bytes + 1
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            while room and (part := stream.read(min(room, INFLATED_STEP_BYTES))):
                parts.append(part)
                room -= len(part)
    except (pa.ArrowException, OSError) as error:
        raise _damaged_error(str(error).splitlines()[0]) from error
    if not room:
        raise _too_large_error(limit_bytes)
    return b"".join(parts)


def _inflate_zlib(data: bytes, limit_bytes: int) -> bytes:
    return _inflate_members(data, limit_bytes, _ZLIB, members_max=1)


def _inflate_snappy(data: bytes, limit_bytes: int) -> bytes:
    """Inflate snappy's block format, or its framed format, which begins with a magic chunk."""
    framed = bytes(data[: len(_SNAPPY_MAGIC)]) == _SNAPPY_MAGIC
    return (_inflate_frames if framed else _inflate_block)(data, limit_bytes)


def _inflate_block(data: bytes | memoryview, limit_bytes: int) -> bytes:
    import pyarrow as pa

    # A block begins with its inflated size, so that a bomb is refused before it is inflated.
    size_bytes = shift = 0
    for place in range(_SNAPPY_SIZE_BYTES_MAX):
        if place >= len(data):
            raise _damaged_error("it ends too early")
        size_bytes |= (data[place] & 0x7F) << shift
        shift += 7
        if data[place] < 0x80:
            break
    if size_bytes > limit_bytes:
        raise _too_large_error(limit_bytes)
    try:
        return pa.decompress(data, size_bytes, codec="snappy", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise _damaged_error(str(error).splitlines()[0]) from error


def _inflate_frames(data: bytes, limit_bytes: int) -> bytes:
    view = memoryview(data)
    place, parts, room = len(_SNAPPY_MAGIC), [], limit_bytes
    while place < len(view):
        kind = view[place]
        end = place + 4 + int.from_bytes(view[place + 1 : place + 4], "little")
        body = view[place + 4 : end]
        if end > len(view) or (kind <= 1 and len(body) < _SNAPPY_CRC_BYTES):
            raise _damaged_error("it ends too early")
        if 2 <= kind < 0x80:
            raise _damaged_error("it has a chunk of an unknown kind")
        if kind <= 1:
            rest = body[_SNAPPY_CRC_BYTES:]
            part = bytes(rest) if kind else _inflate_block(rest, room)
            if len(part) > room:
                raise _too_large_error(limit_bytes)
            if int.from_bytes(body[:_SNAPPY_CRC_BYTES], "little") != _mask_crc(part):
                raise _damaged_error("the checksum of a chunk differs")
            parts.append(part)
            room -= len(part)
        place = end
    if not parts:
        raise _damaged_error("it ends too early")
    return b"".join(parts)


def _mask_crc(data: bytes) -> int:
    """Return the CRC32C of some bytes, masked as snappy's framed format has it."""
    plain = int(crc32c(data).rpartition(":")[2], 16)
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


_INFLATERS: dict[str, Callable[[bytes, int], bytes]] = {
    "identity": _inflate_identity,
    "gzip": _inflate_gzip,
    "deflate": _inflate_deflate,
    "zlib": _inflate_zlib,
    "zstd": _inflate_zstd,
    "snappy": _inflate_snappy,
    "x-snappy-framed": _inflate_snappy,
}
CODINGS = tuple(_INFLATERS)


def _too_large_error(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        "the body is larger than the limit",
        hint="send smaller batches, or raise the limit",
        limit_bytes=limit_bytes,
    )


def _damaged_error(why: str) -> Invalid:
    return Invalid(
        "the body cannot be inflated",
        hint="check the content encoding, and send the complete body",
        why=why,
    )
