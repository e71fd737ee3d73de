"""Encodes rows as an answer's bytes, part by part: JSON, JSON lines, CSV, Arrow, Parquet.

In:   a schema, then batches as they come
Out:  bytes: a head, one part for each batch, an end

- Only the current batch is in memory, so an answer may be larger than memory.
- Only `end` completes a body: without it Arrow has no end-of-stream, Parquet no footer, JSON no
  closing brace. CSV and JSON lines have no end marker; there the HTTP body is cut instead.
- `encode_failure` is the last part of a body that failed after its first byte, if the format has a
  place for it; the body stays incomplete.
- A node encodes the answers of queries in its worker processes: the time and the memory of a large
  answer are those of the query.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from thermocline.errors import Invalid
from thermocline.show.lines import csv_header, csv_records, distinct_names, json_objects
from thermocline.show.value import as_json


@dataclass(frozen=True, slots=True)
class AnswerInfo:
    """Metadata sent with the rows, if the format has a place for it."""

    query_id: str | None = None
    report: Any = None


class Encoder(ABC):
    """Encodes one answer in one format."""

    def __init__(self, schema: pa.Schema, about: AnswerInfo) -> None:
        self.schema = schema
        self.about = about
        self.row_count = 0

    def head(self) -> bytes:
        """Return the bytes before the rows."""
        return b""

    @abstractmethod
    def rows(self, batch: pa.RecordBatch) -> bytes:
        """Return the bytes of a batch."""

    def end(self, *, is_truncated: bool = False) -> bytes:  # noqa: ARG002  not every format tells
        """Return the bytes that complete the body after the last row."""
        return b""


class _Json(Encoder):
    """One object: `columns`, `query_id`, `report`, `rows`, `row_count`, `is_truncated`."""

    def head(self) -> bytes:
        self._names = distinct_names(self.schema.names)
        columns = [
            {"name": name, "type": str(field.type), "nullable": field.nullable}
            for name, field in zip(self._names, self.schema, strict=True)
        ]
        metadata = {
            key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for key, value in (self.schema.metadata or {}).items()
            if not key.startswith(b"ARROW:")
        }
        head = {"query_id": self.about.query_id, "report": self.about.report}
        head |= {"metadata": metadata, "columns": columns}
        return as_json(head)[:-1] + b',"rows":['

    def rows(self, batch: pa.RecordBatch) -> bytes:
        lines = b",\n".join(json_objects(batch, self._names))
        is_first = not self.row_count
        self.row_count += batch.num_rows
        return (b"\n" if is_first else b",\n") + lines if lines else b""

    def end(self, *, is_truncated: bool = False) -> bytes:
        trailer = {"row_count": self.row_count, "is_truncated": is_truncated}
        return b"\n]," + as_json(trailer)[1:] + b"\n"


class _JsonLines(Encoder):
    def head(self) -> bytes:
        self._names = distinct_names(self.schema.names)
        return b""

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return b"".join(line + b"\n" for line in json_objects(batch, self._names))


class _Csv(Encoder):
    def head(self) -> bytes:
        return csv_header(self.schema.names)

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return csv_records(batch)


class _ByteSink:
    """A writable file whose bytes `taken` removes and returns."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._position = 0

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def drain(self) -> bytes:
        found, self._parts = b"".join(self._parts), []
        return found


class _Arrow(Encoder):
    """Arrow's stream; a subclass opens another writer of pyarrow."""

    def head(self) -> bytes:
        self._sink = _ByteSink()
        self._writer = self._open_writer(pa.PythonFile(self._sink, "w"))
        return self._sink.drain()

    def _open_writer(self, file: pa.PythonFile) -> Any:
        return pa.ipc.new_stream(file, self.schema)

    def rows(self, batch: pa.RecordBatch) -> bytes:
        self._writer.write_batch(batch)
        return self._sink.drain()

    def end(self, *, is_truncated: bool = False) -> bytes:  # noqa: ARG002
        self._writer.close()
        return self._sink.drain()


class _Parquet(_Arrow):
    def _open_writer(self, file: pa.PythonFile) -> Any:
        import pyarrow.parquet as pq

        try:
            return pq.ParquetWriter(file, self.schema, compression="zstd")
        except pa.ArrowNotImplementedError as error:
            raise Invalid(
                "Parquet cannot hold a type of this answer",
                hint="cast the column, or ask for Arrow or CSV",
                why=str(error).splitlines()[0],
            ) from error


ENCODERS: Mapping[str, Callable[[pa.Schema, AnswerInfo], Encoder]] = {
    "json": _Json,
    "ndjson": _JsonLines,
    "csv": _Csv,
    "arrow": _Arrow,
    "parquet": _Parquet,
}


def encode_failure(form: str, problem: bytes) -> bytes:
    """Return the last part of a body that failed after its first byte; it stays incomplete."""
    if form == "json":
        return b'\n],"error":' + problem  # no closing brace: a parser must refuse the body
    if form == "ndjson":
        return b'{"error":' + problem + b"}"  # without a line end it is not a record
    return b""
