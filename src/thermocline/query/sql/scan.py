"""A table at one version as one relation: SQL text that reads exactly its live rows.

In:   a state, the segments of it that a query needs, a function that locates their files
Out:  the text of a SELECT over Parquet files, and the bit strings it uses by name

- The columns are those of the table, in its order, matched by id: a renamed column is read under
  its old name, an absent one is a typed null, a narrower one is cast. The types of the relation do
  not depend on the segments; without segments it is empty and has the same columns.
- Files of one physical shape share one leg of a UNION ALL. Each file with deleted rows is a
  separate leg, with a bit for each row.
- Hot rows are a separate leg: an Arrow table registered under a name.
- A query that names no column, such as a plain `count(*)`, reads no row: the log and the hot tier
  say how many there are. So no file is opened, and none is checked; `fsck` checks files.
- Every file is located, which checks that it exists and is complete, before the engine reads it.
- A path is always one literal file name, never a pattern, and gives no partition columns.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from thermocline.cold.segment.parquet import decode_deletes, find_stored_name
from thermocline.format.index_column import default_index_type
from thermocline.format.log.action import Segment
from thermocline.format.log.state import TableState
from thermocline.format.schema import TableColumn
from thermocline.format.types import decode_type, plain_type
from thermocline.query.sql.engine_types import (
    check_engine_holds,
    engine_arrow_type,
    engine_type,
    is_read_as_is,
    quote_identifier,
    quote_text,
)

ROW_NUMBER = "file_row_number"
_PATTERN = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})
_IS_SPECIAL = re.compile(r"[*?\[]").search

_Physical = tuple[tuple[str | None, pa.DataType | None], ...]
LocateFile = Callable[[Segment], str]
ReadSegment = Callable[[Segment], pa.Table]


@dataclass(frozen=True, slots=True)
class ScanRelation:
    """A SELECT, its files by the path that the engine reads, and its variables and rows by name.

    Before the SELECT can run, the variables in `bits` must be set and the Arrow tables in `rows`
    registered. `item` goes into a FROM clause: `sql` in brackets, or a shorter equivalent.
    """

    sql: str
    item: str
    files: Mapping[str, str] = field(default_factory=dict)
    bits: Mapping[str, bytes] = field(default_factory=dict)
    rows: Mapping[str, pa.Table] = field(default_factory=dict)


def build_relation(
    state: TableState,
    segments: Sequence[Segment],
    locate: LocateFile,
    read: ReadSegment,
    prefix: str,
    needed: frozenset[str] | None = None,
    hot: pa.Table | None = None,
) -> ScanRelation:
    """Return the relation of these segments, and of hot rows with the state's columns.

    `prefix` begins every name it uses. With `needed`, columns of other names may be omitted; at
    least one column remains.

    Errors of `locate` for a missing or incomplete file pass through. `read` returns the live rows
    of a segment, for the rare file with a column named like the engine's row number.
    """
    columns = _needed_columns(columns_of(state), needed)
    for column in columns:
        check_engine_holds(column.name, column.type)
    if not segments and hot is None:
        return _bracket_relation(_empty_select(columns))
    files = {locate(segment): segment.path for segment in segments}
    legs: list[str] = []
    bits: dict[str, bytes] = {}
    rows: dict[str, pa.Table] = {}
    shapes: dict[_Physical, list[str]] = {}
    known: dict[tuple[Any, ...], tuple[_Physical, list[str]]] = {}
    for segment, file in zip(segments, files, strict=True):
        # A nested type is an object of JSON, which has no hash; its text has one.
        stored = repr(segment.stored) if segment.stored else ""
        kind = (segment.schema_id, segment.absent, stored)
        if kind not in known:
            physical = _physical_columns(state, segment, columns)
            known[kind] = physical, shapes.setdefault(physical, [])
        physical, alike = known[kind]
        if not segment.deletes:
            alike.append(file)
        elif _has_row_number(state, segment):
            legs.append(_register_rows(read(segment), columns, prefix, rows))
        else:
            name = f"{prefix}bits_{len(bits)}"
            bits[name] = deleted_bits(segment)
            test = f"get_bit(getvariable({quote_text(name)}), {ROW_NUMBER}::INTEGER) = 0"
            chosen = _select_list(tuple(columns), physical)
            legs.append(f"{_select(chosen, _parquet_source([file], ROW_NUMBER))} WHERE {test}")
    if hot is not None:
        legs.append(_register_rows(hot, columns, prefix, rows))
    plain_legs = [(physical, some) for physical, some in shapes.items() if some]
    if not legs and len(plain_legs) == 1 and _names_only_columns(state, needed):
        physical, some = plain_legs[0]
        if _select_list(tuple(columns), physical) == _column_list(columns):
            # The query can read the files directly: one nesting level less saves a binder pass.
            sql = _select(_column_list(columns), _parquet_source(some))
            return ScanRelation(sql, _parquet_source(some), files)
    legs += [
        _select(_select_list(tuple(columns), physical), _parquet_source(some))
        for physical, some in plain_legs
    ]
    return _bracket_relation(" UNION ALL ".join(legs), files, bits, rows)


def count_relation(state: TableState, rows: int) -> ScanRelation:
    """Return a relation of so many rows that reads no file, for a query that names no column."""
    columns = _counting_columns(columns_of(state))
    nulls = _select_list(tuple(columns), ((None, None),) * len(columns))
    return _bracket_relation(_select(nulls, f"range({rows})"))


def _register_rows(
    found: pa.Table, columns: Sequence[TableColumn], prefix: str, rows: dict[str, pa.Table]
) -> str:
    """Return the SELECT of rows that are registered under a name."""
    name = f"{prefix}rows_{len(rows)}"
    rows[name] = _convert_for_engine(found.select([column.name for column in columns]))
    present = tuple((column.name, None) for column in columns)
    return _select(_select_list(tuple(columns), present), quote_identifier(name))


def _convert_for_engine(found: pa.Table) -> pa.Table:
    """Return rows in types that the engine reads like the same columns of a Parquet file."""
    for place, old in enumerate(found.schema):
        kind = engine_arrow_type(old.type)
        if kind != old.type:
            column = found.column(place)
            if kinds.is_date64(old.type):
                column = column.cast(pa.timestamp("ms"))
            found = found.set_column(place, old.with_type(kind), column.cast(kind, safe=False))
    return found


def _bracket_relation(
    sql: str,
    files: Mapping[str, str] | None = None,
    bits: Mapping[str, bytes] | None = None,
    rows: Mapping[str, pa.Table] | None = None,
) -> ScanRelation:
    return ScanRelation(sql, f"({sql})", files or {}, bits or {}, rows or {})


def _names_only_columns(state: TableState, needed: frozenset[str] | None) -> bool:
    """Tell whether every name that a query mentions is a column of the table.

    Any other name could be a virtual column of files, such as their path.
    """
    known = {column.name.lower() for column in columns_of(state)}
    return needed is not None and bool(needed) and needed <= known


def _column_list(columns: Sequence[TableColumn]) -> str:
    return ", ".join(quote_identifier(column.name) for column in columns)


def names_needed(state: TableState, needed: frozenset[str] | None) -> list[str] | None:
    """Return the columns that hot rows must have for a relation of this state; None for all."""
    if needed is None:
        return None
    return [column.name for column in _needed_columns(columns_of(state), needed)]


def _needed_columns(
    columns: Sequence[TableColumn], needed: frozenset[str] | None
) -> Sequence[TableColumn]:
    if needed is None:
        return columns
    kept = [column for column in columns if column.name.lower() in needed]
    # Without a match the query counts rows, or it has a wrong name: with all columns in the
    # relation, the engine's error can list them.
    return kept or (columns if needed else _counting_columns(columns))


def _counting_columns(columns: Sequence[TableColumn]) -> Sequence[TableColumn]:
    """Return one column to count rows by: the first that is never null, such as the time column."""
    return [column for column in columns if not column.nullable][:1] or columns[:1]


def _has_row_number(state: TableState, segment: Segment) -> bool:
    stored = state.schemas[segment.schema_id].columns
    return any(column.name.lower() == ROW_NUMBER for column in stored)


def file_relation(paths: Sequence[str]) -> ScanRelation:
    """Return the relation of plain Parquet files, with the columns of all of them, by name."""
    source = _parquet_source(list(paths), by_name=len(paths) > 1)
    return _bracket_relation(_select("*", source), dict(zip(paths, paths, strict=True)))


def file_pattern(path: str) -> str:
    """Return the engine's pattern that matches exactly this path."""
    return path.translate(_PATTERN) if _IS_SPECIAL(path) else path


def deleted_bits(segment: Segment) -> bytes:
    """Return one bit for each row of a segment, set where the row is deleted."""
    gone = np.zeros(segment.row_count, dtype=bool)
    gone[np.asarray(decode_deletes(segment.deletes).to_array(), dtype=np.int64)] = True
    return np.packbits(gone).tobytes()


def columns_of(state: TableState) -> Sequence[TableColumn]:
    """Return the columns of a relation of this state.

    A table without any append has no columns yet. The names of its time column and entity columns
    are known, so a query on them returns no rows instead of an error.
    """
    if state.schema.columns:
        return state.schema.columns
    kind = default_index_type(state.spec.bucket, has_zone=False)
    time = TableColumn(0, state.spec.time_column, kind, nullable=False)
    return [time, *(TableColumn(0, name, pa.string()) for name in state.spec.entity_columns)]


_plain = lru_cache(maxsize=1024)(plain_type)


def _physical_columns(
    state: TableState, segment: Segment, columns: Sequence[TableColumn]
) -> _Physical:
    """Return the name and type of each column in a segment's file."""
    then = state.schemas[segment.schema_id]
    found: list[tuple[str | None, pa.DataType | None]] = []
    for column in columns:
        name = find_stored_name(state, segment, column)
        stored = segment.stored.get(str(column.id))
        if name is None:
            found.append((None, None))
        else:
            kind = then.by_id[column.id].type if stored is None else decode_type(stored)
            found.append((name, _plain(kind)))
    return tuple(found)


@lru_cache(maxsize=256)
def _select_list(columns: tuple[TableColumn, ...], physical: _Physical) -> str:
    """Return the SELECT list for files that have the columns under these names and types.

    Casts without effect are omitted: each costs the engine's parser and binder 50 microseconds a
    query.
    """
    found = []
    for column, (name, kind) in zip(columns, physical, strict=True):
        if name is not None and kind == plain_type(column.type) and is_read_as_is(column.type):
            value = quote_identifier(name)
        else:
            value = (
                f"CAST({quote_identifier(name) if name else 'NULL'} AS {engine_type(column.type)})"
            )
        found.append(
            value
            if value == quote_identifier(column.name)
            else f"{value} AS {quote_identifier(column.name)}"
        )
    return ", ".join(found)


def _select(chosen: str, source: str) -> str:
    return f"SELECT {chosen} FROM {source}"  # noqa: S608  # names and paths are quoted


def _parquet_source(files: Iterable[str], numbered_as: str = "", *, by_name: bool = False) -> str:
    """Return the source of these files; with `numbered_as`, it has the rows' numbers, too.

    With `by_name` the files may have different columns.
    """
    listed = ", ".join(quote_text(file_pattern(file)) for file in files)
    # Asked for as an option: the engine (2.0.0) fails on `order by x limit 1` over a virtual one.
    option = f", {numbered_as} = true" if numbered_as else ""
    option += ", union_by_name = true" if by_name else ""
    return f"read_parquet([{listed}], hive_partitioning = false{option})"


def _empty_select(columns: Sequence[TableColumn]) -> str:
    nothing = ((None, None),) * len(columns)
    return f"SELECT {_select_list(tuple(columns), nothing)} WHERE false"
