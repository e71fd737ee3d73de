"""Rows as they stand in a frame, and back.

In:   a batch that already has the table's columns and types; the request that it came by
Out:  Arrow's stream format and the request, compressed; the batch as replay will give it

- What is applied in memory is read from the very bytes that are written, so that replay gives
  byte for byte what was live, and nothing that the caller can still change.
- Rows and request are in one frame, so that no crash can part them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import orjson
import pyarrow as pa

from thermocline.errors import Corruption, Overloaded, Unsupported
from thermocline.hot.wal.frame import CODEC_NONE, CODEC_ZSTD, PAYLOAD_BYTES_MAX, FrameHeader

ZSTD_LEVEL = 1
COMPRESS_BYTES_MIN = 4096
SCHEMAS_KEPT_MAX = 256

_STREAM_END_BYTES = 8
_PACKING = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
_UNPACKING = pa.Codec("zstd")
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
        packed = _PACKING.compress(raw, asbytes=True)
        if len(packed) < raw.size:
            return Payload(packed, CODEC_ZSTD, raw.size, live, requests)
    return Payload(raw.to_pybytes(), CODEC_NONE, raw.size, live, requests)


def decode_rows(header: FrameHeader, payload: bytes) -> Stored:
    """Return what a frame holds; `Corruption` when its bytes are no rows.

    `Unsupported` for a codec that this version does not know.
    """
    if header.codec not in (CODEC_NONE, CODEC_ZSTD):
        hint = "open it with a newer Thermocline"
        raise Unsupported("a frame of an unknown codec", hint=hint, codec=header.codec)
    try:
        raw = pa.py_buffer(payload)
        if header.codec == CODEC_ZSTD:
            raw = _UNPACKING.decompress(payload, header.raw_length)
        if raw.size != header.raw_length:
            raise pa.ArrowInvalid("the payload has another length than its frame says")
        return _stored(raw)
    except (pa.ArrowException, OSError, ValueError, EOFError, StopIteration) as error:
        raise Corruption(
            "a frame holds no rows that can be read",
            hint="it is set aside in the journal's quarantine",
            lsn=header.lsn,
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
        ) from error


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
    after = source.tell() + _STREAM_END_BYTES
    if after >= raw.size:
        return Stored(batch)
    return Stored(batch, dict(orjson.loads(raw.slice(after).to_pybytes())))
