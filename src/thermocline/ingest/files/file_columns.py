"""Finds the columns that a table has after files of rows were added to it.

In:   a table's state, files, the types that the user declares for new columns
Out:  the planned columns; `Invalid` names the file that conflicts

- The user declares the types of new columns, or every cell of every file is counted to find them.
  An existing column keeps its type.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from thermocline.cold.change.append import AppendColumns, plan_columns
from thermocline.errors import Invalid
from thermocline.format.log.action import TableSpec
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema
from thermocline.format.types import parse_type
from thermocline.ingest.files.infer_columns import (
    CountsByColumn,
    add_counts,
    count_cells,
    infer_columns,
    parquet_columns,
)
from thermocline.ingest.files.input_files import InputFile


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The columns of files that have the same columns, and the first of these files.

    A Parquet file contains its types. For other files `counts` counts their cells by kind, and
    `arrow` has the types that these counts would give without other files.
    """

    path: str
    arrow: pa.Schema
    counts: CountsByColumn | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the files contain their types."""
        return self.counts is None


def read_file_columns(
    file: InputFile, spec: TableSpec, schema: Schema, declared: Mapping[str, pa.DataType]
) -> FileColumns:
    """Return the columns of a file; of CSV and JSON with the counts of their cells."""
    if file.format == "parquet":
        return FileColumns(file.path, parquet_columns(file))
    counts = count_cells(file, spec)
    return FileColumns(file.path, infer_columns(counts, spec, schema, declared), counts)


def declare_types(
    state: TableState, types: Mapping[str, object], *, may_add: bool
) -> dict[str, pa.DataType]:
    """Return the declared types by column; `Invalid` for a type that the table cannot take."""
    found: dict[str, pa.DataType] = {}
    known = state.schema.by_name
    for name, written in types.items():
        try:
            kind = parse_type(written)
        except Invalid as error:
            error.facts["column"] = name
            raise
        if name in known and not known[name].type.equals(kind):
            hint = "omit the type: an existing column keeps its type"
            facts = {"expected": str(known[name].type), "got": str(written)}
            raise Invalid("the column has another type", hint=hint, column=name, **facts)
        if name not in known and known and not may_add:
            hint = "allow new columns with evolve (in a backfill --drift add), or omit the type"
            raise Invalid("the table does not have this column", hint=hint, column=name)
        found[name] = kind
    return found


def check_declared(declared: Mapping[str, pa.DataType], found: Sequence[FileColumns]) -> None:
    """Raise `Invalid` if a type is declared for a column that no file has."""
    absent = [name for name in declared if all(name not in look.arrow.names for look in found)]
    if absent:
        hint = "check the name: declare types only for columns that a file has"
        raise Invalid("no file has this column", hint=hint, column=absent[0])


def unite_columns(
    state: TableState, found: Sequence[FileColumns], declared: Mapping[str, pa.DataType]
) -> AppendColumns:
    """Return the table's columns and those of all files; `Invalid` names a file that conflicts."""
    exact = [look for look in found if look.is_exact]
    guessed = [look for look in found if not look.is_exact]
    parquet = [look.arrow for look in exact]

    def after(*more: pa.Schema, until: int | None = None) -> AppendColumns:
        return plan_columns(state, [*parquet[:until], *more], evolve=True)

    def is_refused(*more: pa.Schema, until: int | None = None) -> bool:
        try:
            after(*more, until=until)
        except Invalid:
            return True
        return False

    counts: CountsByColumn = {}
    for look in guessed:
        add_counts(counts, look.counts or {})
    columns = infer_columns(counts, state.spec, state.schema, declared)
    try:
        return after(*([columns] if guessed else []))
    except Invalid as error:
        if is_refused():
            # A conflict stays when more files are added, so bisection finds the first such file.
            place = bisect_left(range(len(exact)), True, key=lambda n: is_refused(until=n + 1))
            error.facts["file"] = exact[place].path
        else:
            alone = [look.path for look in guessed if is_refused(look.arrow)]
            named = [look.path for look in guessed if error.facts.get("column") in look.arrow.names]
            error.facts["file"] = (alone or named or [look.path for look in guessed])[0]
        raise
