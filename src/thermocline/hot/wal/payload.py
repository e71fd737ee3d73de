"""Encodes rows as the payload of a frame, and decodes them.

In:   a batch that already has the table's columns and types; the requests that sent it
Out:  Arrow's stream format and the requests, compressed; the batch as replay will decode it

- The batch in memory is decoded from the bytes that are written. So replay returns byte for byte
  what was live, and the caller can no longer change it.
- A column without any value in a large write is omitted, and reads as null.
- Rows and requests are in one frame, so that a crash cannot separate them.
- Many frames of one table are decoded as one stream, because opening a stream costs more than
  decoding a small write. If that fails, each frame is decoded alone, which finds the bad one.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import orjson
import pyarrow as pa

from thermocline.errors import Corruption, Overloaded, Unsupported
from thermocline.format.null_columns import drop_null_columns
from thermocline.hot.wal.frame import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    PAYLOAD_BYTES_MAX,
    FrameHeader,
)

COMPRESS_BYTES_MIN = 4096
SCHEMAS_KEPT_MAX = 256
DECODE_RUN_BYTES = 1 << 20

_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MESSAGE = struct.Struct("<4xI")  # a marker, and the length of the message's metadata
_CODECS = {
    CODEC_ZSTD: pa.Codec("zstd"),  # read only: older versions wrote it
    CODEC_LZ4: pa.Codec("lz4_raw"),
}
_NO_REQUESTS: Mapping[str, int] = MappingProxyType({})
_schemas: dict[bytes, pa.Schema] = {}


class FrameRows(NamedTuple):
    """The decoded payload of a frame."""

    batch: pa.RecordBatch
    requests: Mapping[str, int] = _NO_REQUESTS


@dataclass(frozen=True, slots=True)
class Payload:
    """The bytes of one write, and the rows in them."""

    data: bytes
    codec: int
    raw_length: int
    batch: pa.RecordBatch
    requests: Mapping[str, int]


def encode_rows(batch: pa.RecordBatch, requests: Mapping[str, int] = _NO_REQUESTS) -> Payload:
    """Return a batch as a payload; `Overloaded` when it is larger than a frame may be."""
    batch = drop_null_columns(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    if requests:
        sink.write(orjson.dumps(dict(requests)))
    raw = sink.getvalue()
    if raw.size > PAYLOAD_BYTES_MAX:
        raise Overloaded(
            "the write is larger than one journal frame may be",
            hint="write fewer rows at once, or append them to the table directly",
            size_bytes=raw.size,
            size_bytes_max=PAYLOAD_BYTES_MAX,
        )
    live = _read_stream(raw).batch
    if raw.size >= COMPRESS_BYTES_MIN:
        # A journal lives for minutes: time matters more than space. Ten rows: zstd 1.6 kB in 45 us,
        # LZ4 2.2 kB in 10 us; 6,000 points: zstd 98 kB in 570 us, LZ4 157 kB in 280 us.
        packed = _CODECS[CODEC_LZ4].compress(raw, asbytes=True)
        if len(packed) < raw.size:
            return Payload(packed, CODEC_LZ4, raw.size, live, requests)
    return Payload(raw.to_pybytes(), CODEC_NONE, raw.size, live, requests)


def decode_rows(header: FrameHeader, payload: bytes) -> FrameRows:
    """Return the rows and requests of a frame; `Corruption` when they cannot be decoded.

    `Unsupported` for a codec that this version does not know.
    """
    try:
        return _read_stream(pa.py_buffer(_decompress(header, payload)))
    except (pa.ArrowException, OSError, ValueError, EOFError, StopIteration) as error:
        raise Corruption(
            "the rows of a frame cannot be decoded",
            hint="it is set aside in the journal's quarantine",
            lsn=header.lsn,
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
        ) from error


def decode_frames(frames: Sequence[tuple[FrameHeader, bytes]]) -> Iterator[FrameRows | Corruption]:
    """Yield for each frame of one table what `decode_rows` returns, or the error it raises."""
    start = size_bytes = 0
    for place, (header, _) in enumerate(frames):
        size_bytes += header.raw_length
        if size_bytes >= DECODE_RUN_BYTES or place == len(frames) - 1:
            yield from _decode_run(frames[start : place + 1])
            start, size_bytes = place + 1, 0


def _decode_run(frames: Sequence[tuple[FrameHeader, bytes]]) -> Iterator[FrameRows | Corruption]:
    if len(frames) > 1:
        with suppress(pa.ArrowException, OSError, ValueError, EOFError, struct.error):
            together = _decode_together(frames)
            yield from together
            return
    for header, payload in frames:
        try:
            yield decode_rows(header, payload)
        except Corruption as error:
            yield error


def _decode_together(frames: Sequence[tuple[FrameHeader, bytes]]) -> list[FrameRows]:
    """Decode frames whose streams have the same schema; `ValueError` when schemas differ."""
    raws = [_decompress(header, payload) for header, payload in frames]
    beginning = raws[0][: _MESSAGE.size + _MESSAGE.unpack_from(raws[0])[0]]
    pieces, requests = [beginning], []
    for raw in raws:
        # The requests are JSON, which has no byte 255: the last end mark is the stream's.
        end = raw.rindex(_STREAM_END)
        if end <= len(beginning) or not raw.startswith(beginning):
            raise ValueError("a stream that has another schema, or no rows")
        pieces.append(raw[len(beginning) : end])
        after = raw[end + len(_STREAM_END) :]
        requests.append(dict(orjson.loads(after)) if after else _NO_REQUESTS)
    with pa.ipc.open_stream(pa.py_buffer(b"".join([*pieces, _STREAM_END]))) as stream:
        return [FrameRows(*each) for each in zip(stream, requests, strict=True)]


def _decompress(header: FrameHeader, payload: bytes) -> bytes:
    """Return a payload decompressed; `ValueError` when its length differs from the frame's.

    `Unsupported` for a codec that this version does not know.
    """
    raw = payload
    if header.codec != CODEC_NONE:
        if header.codec not in _CODECS:
            hint = "open it with a newer Thermocline"
            raise Unsupported("the frame's codec is unknown", hint=hint, codec=header.codec)
        raw = _CODECS[header.codec].decompress(payload, header.raw_length, asbytes=True)
    if len(raw) != header.raw_length:
        raise ValueError("the payload's length differs from the frame's")
    return raw


def _read_stream(raw: pa.Buffer) -> FrameRows:
    """Return the one batch of a stream, and the requests that follow it.

    A schema is parsed once for all streams that begin with it: for small writes, parsing would
    take half of a replay's time.
    """
    source = pa.BufferReader(raw)
    first = pa.ipc.read_message(source)
    beginning = first.metadata.to_pybytes()
    schema = _schemas.get(beginning)
    if schema is None:
        schema = pa.ipc.read_schema(first)
        if len(_schemas) >= SCHEMAS_KEPT_MAX:
            _schemas.clear()
        _schemas[beginning] = schema
    second = pa.ipc.read_message(source)
    if second.type == "record batch":
        batch = pa.ipc.read_record_batch(second, schema)
    else:  # dictionaries come first, and only the stream knows them
        source.seek(0)
        with pa.ipc.open_stream(source) as stream:
            batch = stream.read_next_batch()
    after = source.tell() + len(_STREAM_END)
    if after >= raw.size:
        return FrameRows(batch)
    return FrameRows(batch, dict(orjson.loads(raw.slice(after).to_pybytes())))
