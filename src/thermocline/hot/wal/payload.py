"""Rows as they stand in a frame, and back.

In:   a batch that already has the table's columns and types; the request that it came by
Out:  Arrow's stream format and the request, compressed; the batch as replay will give it

- What is applied in memory is read from the very bytes that are written, so that replay gives
  byte for byte what was live, and nothing that the caller can still change.
- A column that no row of a large write has a value of is left out, and reads as null.
- Rows and request are in one frame, so that no crash can part them.
- Many frames of one table are read as one stream: beginning to read costs more than a small write
  has in it. Where that does not work, each is read by itself, and the bad one is found.
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
from thermocline.format.blank import without_blanks
from thermocline.hot.wal.frame import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    PAYLOAD_BYTES_MAX,
    FrameHeader,
)

COMPRESS_BYTES_MIN = 4096
SCHEMAS_KEPT_MAX = 256
TOGETHER_BYTES = 1 << 20

_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MESSAGE = struct.Struct("<4xI")  # a mark, and the length of what says what the message is
_CODECS = {
    CODEC_ZSTD: pa.Codec("zstd"),  # of journals that were written before there was another
    CODEC_LZ4: pa.Codec("lz4_raw"),
}
_NO_REQUESTS: Mapping[str, int] = MappingProxyType({})
_schemas: dict[bytes, pa.Schema] = {}


class Stored(NamedTuple):
    """What a frame holds."""

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
    batch = without_blanks(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    if requests:
        sink.write(orjson.dumps(dict(requests)))
    raw = sink.getvalue()
    if raw.size > PAYLOAD_BYTES_MAX:
        raise Overloaded(
            "a write is larger than the journal takes at once",
            hint="write fewer rows at once, or append them to the table directly",
            size_bytes=raw.size,
            size_bytes_max=PAYLOAD_BYTES_MAX,
        )
    live = _stored(raw).batch
    if raw.size >= COMPRESS_BYTES_MIN:
        # A journal lives for minutes: time counts more than room. Of ten rows zstd makes 1.6 kB in
        # 45 us, LZ4 2.2 kB in 10; of 6,000 points 98 kB in 570 us, LZ4 157 kB in 280.
        packed = _CODECS[CODEC_LZ4].compress(raw, asbytes=True)
        if len(packed) < raw.size:
            return Payload(packed, CODEC_LZ4, raw.size, live, requests)
    return Payload(raw.to_pybytes(), CODEC_NONE, raw.size, live, requests)


def decode_rows(header: FrameHeader, payload: bytes) -> Stored:
    """Return what a frame holds; `Corruption` when its bytes are no rows.

    `Unsupported` for a codec that this version does not know.
    """
    try:
        return _stored(pa.py_buffer(_unpacked(header, payload)))
    except (pa.ArrowException, OSError, ValueError, EOFError, StopIteration) as error:
        raise Corruption(
            "a frame holds no rows that can be read",
            hint="it is set aside in the journal's quarantine",
            lsn=header.lsn,
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
        ) from error


def decode_frames(frames: Sequence[tuple[FrameHeader, bytes]]) -> Iterator[Stored | Corruption]:
    """Yield of each frame of one table what `decode_rows` returns for it, or raises."""
    start = size_bytes = 0
    for place, (header, _) in enumerate(frames):
        size_bytes += header.raw_length
        if size_bytes >= TOGETHER_BYTES or place == len(frames) - 1:
            yield from _decode_run(frames[start : place + 1])
            start, size_bytes = place + 1, 0


def _decode_run(frames: Sequence[tuple[FrameHeader, bytes]]) -> Iterator[Stored | Corruption]:
    if len(frames) > 1:
        with suppress(pa.ArrowException, OSError, ValueError, EOFError):
            together = _decode_together(frames)
            yield from together
            return
    for header, payload in frames:
        try:
            yield decode_rows(header, payload)
        except Corruption as error:
            yield error


def _decode_together(frames: Sequence[tuple[FrameHeader, bytes]]) -> list[Stored]:
    """Return what frames hold whose streams begin alike; `ValueError` when they do not."""
    raws = [_unpacked(header, payload) for header, payload in frames]
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
        return [Stored(*each) for each in zip(stream, requests, strict=True)]


def _unpacked(header: FrameHeader, payload: bytes) -> bytes:
    """Return a payload without its codec; `ValueError` for a length that is not as its frame says.

    `Unsupported` for a codec that this version does not know.
    """
    raw = payload
    if header.codec != CODEC_NONE:
        if header.codec not in _CODECS:
            hint = "open it with a newer Thermocline"
            raise Unsupported("a frame of an unknown codec", hint=hint, codec=header.codec)
        raw = _CODECS[header.codec].decompress(payload, header.raw_length, asbytes=True)
    if len(raw) != header.raw_length:
        raise ValueError("the payload has another length than its frame says")
    return raw


def _stored(raw: pa.Buffer) -> Stored:
    """Return the one batch of a stream, and the requests that follow it.

    Its schema is parsed once for all streams that begin alike: for small writes that is half of
    the time a replay takes.
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
        return Stored(batch)
    return Stored(batch, dict(orjson.loads(raw.slice(after).to_pybytes())))
