"""Rows as they stand in a frame, and back.

In:   a batch that already has the table's columns and types
Out:  Arrow's stream format, compressed; the batch as replay will give it

- What is applied in memory is read from the very bytes that are written, so that replay gives
  byte for byte what was live, and nothing that the caller can still change.
"""

from dataclasses import dataclass

import pyarrow as pa

from thermocline.errors import Corruption, Overloaded, Unsupported
from thermocline.hot.wal.frame import CODEC_NONE, CODEC_ZSTD, PAYLOAD_BYTES_MAX, FrameHeader

ZSTD_LEVEL = 1
COMPRESS_BYTES_MIN = 256
SCHEMAS_KEPT_MAX = 256

_schemas: dict[bytes, pa.Schema] = {}


@dataclass(frozen=True, slots=True)
class Payload:
    """The bytes of one write, and the rows in them."""

    data: bytes
    codec: int
    raw_length: int
    batch: pa.RecordBatch


def encode_rows(batch: pa.RecordBatch) -> Payload:
    """Return a batch as a payload; `Overloaded` when it is larger than a frame may be."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    raw = sink.getvalue()
    if raw.size > PAYLOAD_BYTES_MAX:
        raise Overloaded(
            "a write is larger than the journal takes at once",
            hint="write fewer rows at once, or append them to the table directly",
            size_bytes=raw.size,
            size_bytes_max=PAYLOAD_BYTES_MAX,
        )
    live = _rows(raw)
    if raw.size >= COMPRESS_BYTES_MIN:
        packed = pa.Codec("zstd", compression_level=ZSTD_LEVEL).compress(raw, asbytes=True)
        if len(packed) < raw.size:
            return Payload(packed, CODEC_ZSTD, raw.size, live)
    return Payload(raw.to_pybytes(), CODEC_NONE, raw.size, live)


def decode_rows(header: FrameHeader, payload: bytes) -> pa.RecordBatch:
    """Return the batch of a frame; `Corruption` when its bytes are no rows.

    `Unsupported` for a codec that this version does not know.
    """
    if header.codec not in (CODEC_NONE, CODEC_ZSTD):
        hint = "open it with a newer Thermocline"
        raise Unsupported("a frame of an unknown codec", hint=hint, codec=header.codec)
    try:
        raw = pa.py_buffer(payload)
        if header.codec == CODEC_ZSTD:
            raw = pa.Codec("zstd").decompress(payload, header.raw_length)
        if raw.size != header.raw_length:
            raise pa.ArrowInvalid("the payload has another length than its frame says")
        return _rows(raw)
    except (pa.ArrowException, OSError, ValueError, EOFError, StopIteration) as error:
        raise Corruption(
            "a frame holds no rows that can be read",
            hint="it is set aside in the journal's quarantine",
            lsn=header.lsn,
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
        ) from error


def _rows(raw: pa.Buffer) -> pa.RecordBatch:
    """Return the one batch of a stream.

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
    if second.type != "record batch":  # dictionaries come first, and only the stream knows them
        with pa.ipc.open_stream(raw) as stream:
            return stream.read_next_batch()
    return pa.ipc.read_record_batch(second, schema)
