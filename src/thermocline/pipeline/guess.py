"""The columns that a file would bring: of Parquet as they are, of CSV and JSON by their values.

In:   a file
Out:  an Arrow schema

- Parquet says what it is. Of CSV the first rows are looked at, of JSON all of them: a key may come
  late.
- What is a number in one file and a text in another is a text; whole and broken numbers are broken
  ones. A column of nothing but nulls is a text.
- The time column is a time, in microseconds, or in nanoseconds where a text has that many digits.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pyarrow.types as kinds

from thermocline.format.action import TableSpec
from thermocline.format.schema import Schema
from thermocline.pipeline.incoming import Incoming
from thermocline.pipeline.parse import csv_names, json_rows, open_bytes

SAMPLE_BYTES = 1 << 20
_FINE = r"[.]\d{7,9}"
_ZONED = r"T?\d\d:\d\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$"


def columns_of(file: Incoming, spec: TableSpec, known: Schema) -> pa.Schema:
    """Return the columns of a file; those the table has in CSV and JSON are of its types."""
    if file.format == "parquet":
        with pq.ParquetFile(file.path) as opened:
            return opened.schema_arrow
    found = _of_csv(file, spec) if file.format == "csv" else _of_json(file, spec)
    fields = [
        pa.field(name, known.by_name[name].type if name in known.by_name else kind)
        for name, kind in found.items()
    ]
    return pa.schema(fields)


def united_columns(parts: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns of all, each in a type that holds what every part has in it."""
    found: dict[str, pa.DataType] = {}
    for part in parts:
        for field in part:
            found[field.name] = united(found.get(field.name), field.type)
    return pa.schema(list(found.items()))


def united(one: pa.DataType | None, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both; a text where no other does."""
    if one is None or one == other or kinds.is_null(one):
        return other
    if kinds.is_null(other):
        return one
    if kinds.is_timestamp(one) and kinds.is_timestamp(other):
        unit = "ns" if "ns" in (one.unit, other.unit) else "us"
        return pa.timestamp(unit, tz="UTC" if one.tz or other.tz else None)
    try:
        fields = [pa.schema([("x", one)]), pa.schema([("x", other)])]
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()


def _of_csv(file: Incoming, spec: TableSpec) -> Mapping[str, pa.DataType]:
    names = csv_names(file)
    with open_bytes(file) as data:
        sample = data.read(SAMPLE_BYTES)
    if len(sample) == SAMPLE_BYTES:
        sample = sample[: sample.rfind(b"\n") + 1]
    table = arrow_csv.read_csv(
        pa.BufferReader(sample),
        arrow_csv.ReadOptions(use_threads=False),
        arrow_csv.ParseOptions(
            delimiter=file.delimiter,
            newlines_in_values=True,
            invalid_row_handler=lambda row: "skip",
        ),
        # As a text: Arrow takes a time of a second for a day, and one with a zone for none.
        arrow_csv.ConvertOptions(column_types={spec.time_column: pa.string()}),
    )
    return {
        name: _guessed(name, table.column(place).combine_chunks(), spec)
        for place, name in enumerate(names)
    }


def _of_json(file: Incoming, spec: TableSpec) -> Mapping[str, pa.DataType]:
    found: dict[str, pa.DataType] = {}
    for held in json_rows(file):
        values: dict[str, list[Any]] = {}
        for _, _, row in held:
            for name, value in row.items():
                values.setdefault(name, []).append(value)
        for name, seen in values.items():
            try:
                array = pa.array(seen)
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                array = pa.array([], pa.string())
            found[name] = united(found.get(name), _guessed(name, array, spec))
    return {name: pa.string() if kinds.is_null(kind) else kind for name, kind in found.items()}


def _guessed(name: str, values: pa.Array, spec: TableSpec) -> pa.DataType:
    if name == spec.time_column and kinds.is_string(values.type):
        is_fine = pc.any(pc.match_substring_regex(values, _FINE)).as_py()
        has_zone = pc.any(pc.match_substring_regex(values, _ZONED)).as_py()
        zone = "UTC" if has_zone or spec.timezone else None
        return pa.timestamp("ns" if is_fine else "us", tz=zone)
    kind = values.type
    if kinds.is_timestamp(kind):
        return pa.timestamp("ns" if kind.unit == "ns" else "us", tz=kind.tz)
    return pa.string() if kinds.is_null(kind) else kind
