"""Writes rows as CSV, JSON, JSON lines, Arrow or Parquet, as a stream.

In:   a stream of Arrow batches
Out:  bytes, batch by batch: the result may be larger than memory

- CSV: a header, `\\n` at the end of a line, UTF-8. Null is an empty field, an empty text is `""`.
- JSON: `{"columns":[{"name","type"}],"rows":[{...}]}`, one row a line.
- JSON lines: one object a line.
- Arrow: the stream format to a pipe, the file format to a file. Parquet: zstd.
"""

from collections.abc import Callable, Mapping
from typing import BinaryIO

import pyarrow as pa

from thermocline.cli.argument import Format
from thermocline.errors import Invalid
from thermocline.show.lines import csv_header, csv_records, distinct_names, json_objects
from thermocline.show.value import as_json


def write_rows(rows: pa.RecordBatchReader, form: Format, sink: BinaryIO, *, is_file: bool) -> None:
    """Write every batch to the sink; errors of the stream are raised unchanged."""
    if form is Format.ARROW:
        _write_arrow(rows, sink, is_file=is_file)
    else:
        _WRITERS[form](rows, sink)


def _write_csv(rows: pa.RecordBatchReader, sink: BinaryIO) -> None:
    sink.write(csv_header(rows.schema.names))
    for batch in rows:
        sink.write(csv_records(batch))


def _write_json(rows: pa.RecordBatchReader, sink: BinaryIO) -> None:
    names = distinct_names(rows.schema.names)
    types = [str(field.type) for field in rows.schema]
    columns = [{"name": name, "type": kind} for name, kind in zip(names, types, strict=True)]
    sink.write(b'{"columns":' + as_json(columns) + b',"rows":[')
    is_first = True
    for batch in rows:
        lines = b",\n".join(json_objects(batch, names))
        if lines:
            sink.write((b"\n" if is_first else b",\n") + lines)
            is_first = False
    sink.write(b"\n]}\n")


def _write_ndjson(rows: pa.RecordBatchReader, sink: BinaryIO) -> None:
    names = distinct_names(rows.schema.names)
    for batch in rows:
        sink.write(b"".join(line + b"\n" for line in json_objects(batch, names)))


def _write_arrow(rows: pa.RecordBatchReader, sink: BinaryIO, *, is_file: bool) -> None:
    open_writer = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with open_writer(sink, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)


def _write_parquet(rows: pa.RecordBatchReader, sink: BinaryIO) -> None:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetWriter(sink, rows.schema, compression="zstd") as writer:
            for batch in rows:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError as error:
        raise Invalid(
            "Parquet has no type for a column of this answer",
            hint="cast the column, or use --format csv or --format arrow",
            why=str(error).splitlines()[0],
        ) from error


_WRITERS: Mapping[Format, Callable[[pa.RecordBatchReader, BinaryIO], None]] = {
    Format.CSV: _write_csv,
    Format.JSON: _write_json,
    Format.NDJSON: _write_ndjson,
    Format.PARQUET: _write_parquet,
}
