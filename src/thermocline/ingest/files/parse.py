"""Reads CSV, JSON and Parquet files as batches of a table's rows; collects the bad rows.

In:   a file, the table's columns
Out:  batches with these columns and types, checked; bad rows with their line and reason

- Arrow reads a CSV file while every row fits and is one line. From the first batch with another row
  the file is read line by line, so that the line and the text of each bad row are exact.
- Lines are counted from 1 as in an editor; rows of Parquet, and of a JSON array, from 1.
- JSON numbers keep every digit: integers of any size, decimals if the column is decimal.
- If a file breaks off, the error has the number of rows before that; these rows are loaded.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from thermocline.errors import Invalid, Unavailable
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import ColumnFit, Schema, fit_columns
from thermocline.ingest.exact_values import column_from_texts, fit_batch, from_json, has_decimals
from thermocline.ingest.files.bad_rows import BadRowCollector, convert_good_rows
from thermocline.ingest.files.csv_records import CsvRecord, read_records
from thermocline.ingest.files.input_files import InputFile
from thermocline.ingest.json_text import restore_negative_zeros

ROWS_AT_ONCE = 65_536
BLOCK_BYTES = 4 << 20
ARRAY_BYTES_MAX = 1 << 30
# A number with this many digits may not fit into a double or 64 bits.
_LONG_NUMBER = re.compile(rb"\d{17}")
READ_ERRORS = (OSError, EOFError, zlib.error, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """The table that a file is read into. `is_strict` refuses columns that the table lacks."""

    schema: Schema
    spec: TableSpec
    sieve: BadRowCollector
    is_strict: bool

    def check_columns(self, file: InputFile, names: Sequence[str], line: int | None = None) -> None:
        """Raise `SchemaDrift` for columns that the table lacks, if `is_strict`."""
        unknown = [name for name in names if name not in self.schema.by_name]
        if unknown and self.is_strict:
            raise SchemaDrift(
                "a file has columns that the table does not have",
                hint="add them with evolve (in a backfill --drift add), or remove them",
                file=file.path,
                line=line,
                columns=unknown[:20],
            )


class SchemaDrift(Invalid):
    """A file has other columns than the table, which the policy forbids: the job stops."""


class UnreadableFile(Invalid):
    """A whole file cannot be loaded."""


def read_file(file: InputFile, reading: ReadTarget) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that fit; collect the other rows, or the file, as bad."""
    taken = 0
    try:
        reads = {"csv": _read_csv, "json": _read_json, "parquet": _read_parquet}[file.format]
        for batch in reads(file, reading):
            taken += batch.num_rows
            yield batch
    except READ_ERRORS as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        if getattr(error, "errno", None):
            # The machine failed, not the file: a batch must not be committed without this file.
            raise Unavailable(
                "a worker cannot read a file",
                hint="put the files where every worker can read them, then run it again",
                file=file.path,
                why=why,
            ) from error
        reading.sieve.refuse(file.path, taken or None, f"the file cannot be read further: {why}")
    except UnreadableFile as error:
        reading.sieve.refuse(file.path, None, f"{error.message}: {error.facts}")


def open_bytes(file: InputFile) -> BinaryIO:
    """Open the bytes of a file, decompressed if it is compressed."""
    opened: Any = gzip.open if file.is_gzip else open
    return opened(file.path, "rb")


def check_required(names: Sequence[str], spec: TableSpec) -> None:
    """Raise `UnreadableFile` for a file without the time column or an entity column."""
    missing = [name for name in (spec.time_column, *spec.entity_columns) if name not in names]
    if missing:
        raise UnreadableFile("the file lacks columns that the table needs", missing=missing)
    if len(set(names)) != len(names):
        raise UnreadableFile("a column's name occurs twice in the file", columns=list(names)[:20])


def read_csv_names(file: InputFile) -> list[str]:
    """Return the names in the first row of a CSV file."""
    with open_bytes(file) as data:
        first = next(read_records(data, file.delimiter), None)
    if first is None or first.fields is None:
        raise UnreadableFile("the file has no header row", format="csv")
    try:
        "".join(first.fields).encode()
    except UnicodeEncodeError as error:
        raise UnreadableFile("the names of the columns are not UTF-8", format="csv") from error
    return first.fields


def _read_csv(file: InputFile, reading: ReadTarget) -> Iterator[pa.RecordBatch]:
    names = read_csv_names(file)
    check_required(names, reading.spec)
    reading.check_columns(file, names, 1)
    done = 0
    try:
        for texts in read_csv_texts(file, names):
            rows = _convert_texts(texts, names, reading)
            done += texts.num_rows
            yield rows
    except (Invalid, pa.ArrowException):
        # Order matters: the first `done` rows fitted and are skipped, so no row is loaded twice.
        yield from _read_csv_by_line(file, names, reading, done)


def read_csv_texts(file: InputFile, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the fields of a CSV file as texts, while every row is one valid line."""
    data: Any = open_bytes(file) if file.is_gzip else file.path
    reader = arrow_csv.open_csv(
        data,
        arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
        arrow_csv.ParseOptions(delimiter=file.delimiter, newlines_in_values=True),
        arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    with reader:
        for batch in reader:
            if any(pc.any(pc.match_substring(column, "\n")).as_py() for column in batch.columns):
                raise Invalid("a value has several lines, or a quote is not closed")
            if batch.num_rows:
                yield batch


def _convert_texts(texts: pa.RecordBatch, names: list[str], reading: ReadTarget) -> pa.RecordBatch:
    wanted = [name for name in names if name in reading.schema.by_name]
    arrays = [
        column_from_texts(
            name, texts.column(names.index(name)), reading.schema.column(name).type, reading.spec
        )
        for name in wanted
    ]
    rows = pa.RecordBatch.from_arrays(arrays, wanted)
    return fit_batch(rows, reading.schema, reading.spec)


def _read_csv_by_line(
    file: InputFile, names: list[str], reading: ReadTarget, skipped: int
) -> Iterator[pa.RecordBatch]:
    def refuse(record: CsvRecord, reason: str, column: str | None = None) -> None:
        reading.sieve.refuse(file.path, record.line, reason, _decode_raw(record.raw), column)

    def convert(held: list[CsvRecord]) -> Iterator[pa.RecordBatch]:
        def make_batch(first: int, end: int) -> pa.RecordBatch:
            rows = [record.fields or [] for record in held[first:end]]
            try:
                columns = [pa.array(texts, pa.string()) for texts in zip(*rows, strict=True)]
            except UnicodeEncodeError as error:
                raise Invalid("a text is not UTF-8") from error
            return _convert_texts(pa.RecordBatch.from_arrays(columns, names), names, reading)

        return convert_good_rows(
            0, len(held), make_batch, lambda place, *reasons: refuse(held[place], *reasons)
        )

    held: list[CsvRecord] = []
    with open_bytes(file) as data:
        for number, record in enumerate(read_records(data, file.delimiter)):
            if number <= skipped:  # the header row, and the rows that are loaded already
                continue
            if record.fields is None:
                refuse(record, record.reason)
            elif len(record.fields) != len(names):
                refuse(record, f"{len(record.fields)} fields where {len(names)} are expected")
            else:
                held.append(record)
            if len(held) >= ROWS_AT_ONCE:
                yield from convert(held)
                held = []
    yield from convert(held)


def _read_json(file: InputFile, reading: ReadTarget) -> Iterator[pa.RecordBatch]:
    known, needed = reading.schema.by_name, reading.spec.time_column
    is_exact = any(has_decimals(column.type) for column in reading.schema.columns)
    for held in read_json_rows(file, reading.sieve, is_exact=is_exact):
        names = list(dict.fromkeys(name for _, _, row in held for name in row))
        if reading.is_strict and any(name not in known for name in names):
            for line, _, row in held:
                reading.check_columns(file, list(row), line)

        def make_batch(first: int, end: int, held: list[JsonRow] = held) -> pa.RecordBatch:
            rows = [row for _, _, row in held[first:end]]
            present = {name for row in rows for name in row}
            wanted = [c for c in reading.schema.columns if c.name in present or c.name == needed]
            arrays = [
                from_json(c.name, [row.get(c.name) for row in rows], c.type, reading.spec)
                for c in wanted
            ]
            batch = pa.RecordBatch.from_arrays(arrays, [c.name for c in wanted])
            return fit_batch(batch, reading.schema, reading.spec)

        def refuse(place: int, why: str, column: str | None, held: list[JsonRow] = held) -> None:
            line, raw, _ = held[place]
            reading.sieve.refuse(file.path, line, why, _decode_raw(raw), column)

        yield from convert_good_rows(0, len(held), make_batch, refuse)


JsonRow = tuple[int, bytes, dict[str, Any]]


def read_json_rows(
    file: InputFile, sieve: BadRowCollector | None = None, *, is_exact: bool = False
) -> Iterator[list[JsonRow]]:
    """Yield the objects of a JSON file in lists, each object with its line number and text.

    A line that is not an object is collected as bad, or skipped without a `sieve`. With `is_exact`,
    numbers with a fraction are decimals.
    """
    held: list[JsonRow] = []
    with open_bytes(file) as data:
        lines = _read_array(data) or enumerate(data, start=1)
        for number, raw in lines:
            if not raw.strip():
                continue
            row, why = _parse_object(raw.removeprefix(b"\xef\xbb\xbf"), is_exact=is_exact)
            if row is not None:
                held.append((number, raw, row))
            elif sieve is not None:
                sieve.refuse(file.path, number, why, _decode_raw(raw))
            if len(held) >= ROWS_AT_ONCE:
                yield held
                held = []
    if held:
        yield held


def _parse_object(raw: bytes, *, is_exact: bool) -> tuple[dict[str, Any] | None, str]:
    try:
        found = orjson.loads(raw)
        if is_exact or _LONG_NUMBER.search(raw):
            # The fast parser makes a double of an integer that does not fit into 64 bits.
            found = json.loads(raw, parse_float=Decimal if is_exact else float)
        found = restore_negative_zeros(raw, found, Decimal if is_exact else float)
    except ValueError as error:
        return None, f"not JSON: {error}"
    return (found, "") if isinstance(found, dict) else (None, "not a JSON object")


def _read_array(data: BinaryIO) -> Iterator[tuple[int, bytes]] | None:
    """Return the elements of a file that is one JSON array; None if it has lines."""
    start = data.read(64)
    data.seek(0)
    if not start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        return None
    text = data.read(ARRAY_BYTES_MAX + 1)
    if len(text) > ARRAY_BYTES_MAX:
        raise UnreadableFile("the array is too long", hint="write one object a line")
    try:
        orjson.loads(text.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        raise UnreadableFile("the file is not JSON", why=str(error)) from error
    return enumerate(_split_array(text.decode("utf-8-sig")), start=1)


def _split_array(text: str) -> Iterator[bytes]:
    """Yield the unchanged texts of the elements of a valid JSON array."""
    decoder, place = json.JSONDecoder(), text.index("[") + 1
    while True:
        while text[place] in " \t\r\n,":
            place += 1
        if text[place] == "]":
            return
        _, end = decoder.raw_decode(text, place)
        yield text[place:end].encode()
        place = end


def check_types(file: InputFile, arrow: pa.Schema, reading: ReadTarget) -> ColumnFit:
    """Return how a Parquet file's columns fit; `SchemaDrift` or `UnreadableFile` if they do not."""
    check_required(arrow.names, reading.spec)
    reading.check_columns(file, arrow.names)
    try:
        found = fit_columns(arrow, reading.schema, reading.spec.time_column)
    except Invalid as error:
        if reading.is_strict:
            raise SchemaDrift(
                error.message, hint=error.hint, file=file.path, **error.facts
            ) from error
        raise UnreadableFile(error.message, **error.facts) from error
    if found.wider and reading.is_strict:
        raise SchemaDrift(
            "a file has wider types than the table",
            hint="allow wider types with evolve (in a backfill --drift add)",
            file=file.path,
            columns=[f"{field.name}: {field.type}" for field in found.wider],
        )
    return found


def _read_parquet(file: InputFile, reading: ReadTarget) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file.path) as opened:
        check_types(file, opened.schema_arrow, reading)
        first = 1
        for batch in opened.iter_batches(ROWS_AT_ONCE):

            def make_batch(start: int, end: int, batch: pa.RecordBatch = batch) -> pa.RecordBatch:
                return fit_batch(batch.slice(start, end - start), reading.schema, reading.spec)

            def refuse(
                place: int,
                why: str,
                column: str | None,
                batch: pa.RecordBatch = batch,
                first: int = first,
            ) -> None:
                raw = orjson.dumps(_plain_values(batch.slice(place, 1)), default=str)
                reading.sieve.refuse(file.path, first + place, why, _decode_raw(raw), column)

            yield from convert_good_rows(0, batch.num_rows, make_batch, refuse)
            first += batch.num_rows


def _plain_values(row: pa.RecordBatch) -> dict[str, Any]:
    found = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            found[name] = column.to_pylist()[0]
        except (ValueError, OverflowError):  # invalid UTF-8, or a year outside of datetime's range
            found[name] = str(column.cast(pa.binary()) if column.type == pa.string() else column)
    return found


def _decode_raw(raw: str | bytes) -> str:
    data = raw.encode("utf-8", "surrogateescape") if isinstance(raw, str) else raw
    return data.decode("utf-8", "replace")
