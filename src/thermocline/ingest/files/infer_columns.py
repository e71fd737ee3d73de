"""Finds the columns of files: Parquet files contain their types, CSV and JSON cells are counted.

In:   files
Out:  for Parquet an Arrow schema; for CSV and JSON the kinds of all cells, counted by column, and
      the types that follow from the counts of all files

- Parquet says what it is. Of CSV and JSON every cell of every file is counted, not the first rows:
  what stands last may be another kind.
- A column has the kind that more than half of its cells have; empty ones and nulls do not count.
  Rows whose cell is of another kind are refused when they are read. Without such a majority the
  column is a text, which holds every cell of CSV as it is.
- Whole and broken numbers together are broken ones, unless a whole number is larger than 2**53: a
  double would round it. Then the column is the one of the two that refuses fewer cells.
- Days and moments together are moments, of which a day is one.
- A whole number with zeros in front (`00501`) makes its column a text: a number would lose them.
- The time column is a time, in microseconds, or in nanoseconds where a text has that many digits or
  a time is a whole number.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from thermocline.errors import Invalid
from thermocline.format.index_column import default_index_type
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import Schema
from thermocline.ingest.files.csv_records import read_records
from thermocline.ingest.files.input_files import InputFile
from thermocline.ingest.files.parse import (
    READ_ERRORS,
    open_bytes,
    read_csv_names,
    read_csv_texts,
    read_json_rows,
)

ROWS_AT_ONCE = 16_384
WHOLE_MAX = 1 << 53
_FINE = r"[.]\d{7,9}"
_ZONED = r"\d\d:\d\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$"
_LONG = r"^[+-]?\d{16,}$"
# Order matters: the first pattern that matches gives a cell's kind.
_PATTERNS = {
    "padded": r"^[+-]?0\d+$",
    "whole": r"^-?\d{1,15}$",
    "broken": r"^[+-]?(?:\d+[.]?\d*|[.]\d+)(?:[eE][+-]?\d+)?$|(?i)^[+-]?(?:nan|inf|infinity)$",
    "truth": r"(?i)^(?:true|false)$",
    "day": r"^\d{4}-\d\d-\d\d$",
    "moment": (
        r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.]\d{1,9})?)?"
        r"(?:Z|[+-]\d\d(?::?\d\d)?)?$"
    ),
}


@dataclass(slots=True)
class CellCounts:
    """The number of cells of each kind in a column; a cell is counted once."""

    whole: int = 0
    large: int = 0
    broken: int = 0
    padded: int = 0
    truth: int = 0
    day: int = 0
    moment: int = 0
    nested: int = 0
    text: int = 0
    is_fine: bool = False
    has_zone: bool = False
    nested_type: pa.DataType | None = field(default=None, compare=False)

    @property
    def cells(self) -> int:
        """The number of cells with a value."""
        return sum(getattr(self, one.name) for one in fields(self) if one.type is int)

    def add(self, other: "CellCounts") -> None:
        """Add the counts of `other`."""
        for one in fields(self):
            if one.type is int:
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        self.is_fine |= other.is_fine
        self.has_zone |= other.has_zone
        if other.nested_type is not None:
            self.nested_type = unite_types(self.nested_type, other.nested_type)

    def column_type(self) -> pa.DataType:
        """Return the type that the column gets."""
        if not self.cells:
            return pa.string()
        numbers = None if self.padded else self._number_type()
        if numbers is not None:
            return numbers
        if self._is_majority(self.truth):
            return pa.bool_()
        if self._is_majority(self.day + self.moment):
            return self.time_type() if self.moment else pa.date32()
        if self._is_majority(self.nested) and self.nested_type is not None:
            return self.nested_type
        return pa.string()

    def time_type(self, *, in_zone: bool = False) -> pa.DataType:
        """Return the type that the column gets if it contains times."""
        is_counted = bool(self.whole or self.large)
        unit = "ns" if self.is_fine or is_counted else "us"
        return pa.timestamp(unit, tz="UTC" if self.has_zone or in_zone or is_counted else None)

    def _number_type(self) -> pa.DataType | None:
        is_broken = self.broken > self.large if self.large else self.broken > 0
        if not self._is_majority(self.whole + (self.broken if is_broken else self.large)):
            return None
        return pa.float64() if is_broken else pa.int64()

    def _is_majority(self, count: int) -> bool:
        return 2 * count > self.cells


CountsByColumn = dict[str, CellCounts]
"""The counts of a file's cells by column, in the order of the columns' first cells."""


def parquet_columns(file: InputFile) -> pa.Schema:
    """Return the columns of a Parquet file."""
    with pq.ParquetFile(file.path) as opened:
        return opened.schema_arrow.remove_metadata()


def count_cells(file: InputFile, spec: TableSpec) -> CountsByColumn:
    """Return the cell counts of a CSV or JSON file, as far as it can be read."""
    found: CountsByColumn = {}
    parts = _count_csv(file) if file.format == "csv" else _count_json(file, spec)
    try:
        for part in parts:
            add_counts(found, part)
    except READ_ERRORS:
        if not found:
            raise
    return found


def add_counts(found: CountsByColumn, more: CountsByColumn) -> None:
    """Add the counts `more` to the counts `found`."""
    for name, census in more.items():
        found.setdefault(name, CellCounts()).add(census)


def infer_columns(
    counts: CountsByColumn, spec: TableSpec, known: Schema, declared: Mapping[str, pa.DataType]
) -> pa.Schema:
    """Return the columns that follow from counts; known and declared types are kept."""
    given = {column.name: column.type for column in known.columns} | dict(declared)
    found = []
    for name, census in counts.items():
        if name in given:
            kind = given[name]
        elif name == spec.time_column:
            has_zone = spec.timezone is not None
            is_time = spec.bucket.is_time
            kind = (
                census.time_type(in_zone=has_zone)
                if is_time
                else default_index_type(spec.bucket, has_zone=has_zone)
            )
        else:
            kind = census.column_type()
        found.append(pa.field(name, kind))
    return pa.schema(found)


def unite_types(one: pa.DataType | None, other: pa.DataType) -> pa.DataType:
    """Return the nested type with the fields of both; string if no type has them."""
    if one is None or one == other:
        return other
    try:
        parts = [pa.schema([("x", one)]), pa.schema([("x", other)])]
        return pa.unify_schemas(parts, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()


def count_texts(cells: pa.Array) -> CellCounts:
    """Return the counts of a CSV column's cells."""
    left = pc.utf8_trim_whitespace(cells.drop_null())
    left = left.filter(pc.not_equal(left, ""))
    found = CellCounts()
    for kind, pattern in _PATTERNS.items():
        if not len(left):
            return found
        if kind == "broken":
            left = _count_long(left, found)
        is_kind = pc.match_substring_regex(left, pattern)
        count = pc.sum(is_kind).as_py() or 0
        setattr(found, kind, getattr(found, kind) + count)
        if kind == "moment" and count:
            times = left.filter(is_kind)
            found.is_fine = pc.any(pc.match_substring_regex(times, _FINE)).as_py()
            found.has_zone = pc.any(pc.match_substring_regex(times, _ZONED)).as_py()
        if count:
            left = left.filter(pc.invert(is_kind))
    found.text += len(left)
    return found


def _count_long(cells: pa.Array, found: CellCounts) -> pa.Array:
    """Count integers with many digits; return the other cells."""
    is_long = pc.match_substring_regex(cells, _LONG)
    for text in cells.filter(is_long).to_pylist():
        _count_whole(int(text), found)
    return cells.filter(pc.invert(is_long))


def _count_whole(value: int, found: CellCounts) -> None:
    if abs(value) <= WHOLE_MAX:
        found.whole += 1
    elif -(1 << 63) <= value < 1 << 63:
        found.large += 1
    else:
        found.text += 1  # no integer type holds it


def _count_csv(file: InputFile) -> Iterator[CountsByColumn]:
    names = read_csv_names(file)
    yield {name: CellCounts() for name in names}
    done = 0
    try:
        for texts in read_csv_texts(file, names):
            yield {name: count_texts(texts.column(place)) for place, name in enumerate(names)}
            done += texts.num_rows
    except (Invalid, pa.ArrowException):
        # Order matters: as when rows are read, counted rows are skipped, so none counts twice.
        yield from _count_csv_by_line(file, names, done)


def _count_csv_by_line(file: InputFile, names: list[str], skipped: int) -> Iterator[CountsByColumn]:
    held: list[list[str]] = []

    def part() -> CountsByColumn:
        columns = zip(*held, strict=True) if held else [()] * len(names)
        return {
            name: count_texts(pa.array([_replace_invalid(text) for text in texts], pa.string()))
            for name, texts in zip(names, columns, strict=True)
        }

    with open_bytes(file) as data:
        for number, record in enumerate(read_records(data, file.delimiter)):
            if number <= skipped or record.fields is None or len(record.fields) != len(names):
                continue
            held.append(record.fields)
            if len(held) >= ROWS_AT_ONCE:
                yield part()
                held.clear()
    yield part()


def _replace_invalid(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _count_json(file: InputFile, spec: TableSpec) -> Iterator[CountsByColumn]:
    for held in read_json_rows(file):
        values: dict[str, list[Any]] = {}
        for _, _, row in held:
            for name, value in row.items():
                values.setdefault(name, []).append(value)
        yield {
            name: _count_values(seen, is_time=name == spec.time_column)
            for name, seen in values.items()
        }


def _count_values(values: Iterable[Any], *, is_time: bool) -> CellCounts:
    """Return the counts of a JSON column's values; a string is text, even if it has digits."""
    found, nested, texts = CellCounts(), [], []
    for value in values:
        if isinstance(value, bool):
            found.truth += 1
        elif isinstance(value, int):
            _count_whole(value, found)
        elif isinstance(value, float):
            found.broken += 1
        elif isinstance(value, str):
            texts.append(value)
        elif value is not None:
            nested.append(value)
    if is_time:
        found.add(count_texts(pa.array(texts, pa.string())))
    else:
        found.text += len(texts)
    if nested:
        found.nested = len(nested)
        found.nested_type = _nested_type(nested)
    return found


def _nested_type(values: list[Any]) -> pa.DataType:
    try:
        kind = pa.array(values).type
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.string()
    return kind if kinds.is_nested(kind) else pa.string()
