"""Hot rows between nodes: a header and the rows of the parts that the reader does not have.

In:   the hot snapshot of one table; the parts that the other side knows
Out:  bytes; the same snapshot at the other end

    offset  size  what
    0       4     length of the header, little endian
    4       …     JSON: source, mark, and for each part its mark, schema, rows, size and idempotency
                  keys, and the length of its rows: 0 if the reader has them
    …       …     an Arrow stream for each part that has a length

- A part is known by its mark, its schema and its number of rows: rows are never changed, and of the
  parts that end at one mark, a longer one has more rows.
- A reader that gets other bytes than the header says raises `Corruption`.
"""

import struct
from collections.abc import Collection, Mapping

import orjson
import pyarrow as pa

from thermocline.errors import Corruption
from thermocline.format.log.action import Mark
from thermocline.hot.tier import HotPart, HotSnapshot

_LENGTH = struct.Struct("<I")
PartName = tuple[int, int, int]
"""The mark, the schema and the number of rows of a part."""


def name_part(part: HotPart) -> PartName:
    """Return what tells a part from all others of its table and source."""
    return int(part.mark), part.schema_id, part.batch.num_rows


def encode_snapshot(snapshot: HotSnapshot, known: Collection[PartName]) -> bytes:
    """Return the bytes of a snapshot, without the rows of parts that the reader knows."""
    parts, bodies = [], []
    for part in snapshot.parts:
        body = b"" if name_part(part) in known else _encode_rows(part.batch)
        bodies.append(body)
        named = {"mark": part.mark, "schema": part.schema_id, "rows": part.batch.num_rows}
        more = {"bytes": part.size_bytes, "requests": dict(part.requests), "length": len(body)}
        parts.append(named | more)
    header = orjson.dumps({"source": snapshot.source, "mark": snapshot.mark, "parts": parts})
    return b"".join([_LENGTH.pack(len(header)), header, *bodies])


def decode_snapshot(data: bytes, known: Mapping[PartName, HotPart]) -> HotSnapshot:
    """Return the snapshot in some bytes; `Corruption` for any other bytes."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        header = orjson.loads(data[_LENGTH.size : _LENGTH.size + length])
        at, parts = _LENGTH.size + length, []
        for one in header["parts"]:
            name = (int(one["mark"]), int(one["schema"]), int(one["rows"]))
            size = int(one["length"])
            part = known[name] if not size else _decode_part(one, data[at : at + size])
            if name_part(part) != name:
                raise ValueError(f"a part has {part.batch.num_rows} rows")
            parts.append(part)
            at += size
        if at != len(data):
            raise ValueError(f"{len(data)} bytes, not {at}")
        return HotSnapshot(str(header["source"]), Mark(int(header["mark"])), tuple(parts))
    except (LookupError, TypeError, ValueError, struct.error, pa.ArrowException) as error:
        hint = "run the same version of the program on every node of a lake"
        raise Corruption(
            "hot rows of another node cannot be read", hint=hint, why=str(error)[:200]
        ) from error


def _encode_rows(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _decode_part(one: Mapping[str, int], data: bytes) -> HotPart:
    batch = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
    requests: Mapping[str, int] = one["requests"]  # type: ignore[assignment]
    return HotPart(Mark(int(one["mark"])), int(one["schema"]), batch, int(one["bytes"]), requests)
