"""Opens the rows of files as one stream that fits a table; the first row that does not fit ends it.

In:   files; the table's state; the types that the user declares
Out:  the columns of the stream, and its checked batches

- The rows of all files are one stream, in the order of the files' paths.
- A stream that fails appends no row: the error names file, line, column and reason.
- Every cell is read twice if a column's type has to be found, once otherwise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from thermocline.cold.change.append import plan_columns
from thermocline.cold.change.export_plan import check_not_entities
from thermocline.errors import Invalid
from thermocline.format.log.state import TableState
from thermocline.ingest.files.bad_rows import BadRowCollector
from thermocline.ingest.files.file_columns import (
    FileColumns,
    check_declared,
    declare_types,
    read_file_columns,
    unite_columns,
)
from thermocline.ingest.files.input_files import InputFile
from thermocline.ingest.files.parse import READ_ERRORS, ReadTarget, UnreadableFile, read_file


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of files: the table's columns, and batches of them."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def open_file_rows(
    files: Sequence[InputFile],
    state: TableState,
    *,
    types: Mapping[str, object] | None = None,
    evolve: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FileRows:
    """Return the rows of files as a stream with the columns that the table has after the append.

    `types` declares the types of columns that the table does not have yet; without it, more than
    half of a column's cells decide.
    """
    check_not_entities(state.spec, "append files")
    may_add = evolve or not state.schema.columns
    declared = declare_types(state, types or {}, may_add=may_add)
    schema = state.schema
    if may_add:
        looks = [_read_columns(file, state, declared) for file in files]
        check_declared(declared, looks)
        schema = unite_columns(state, looks, declared).schema
    reading = ReadTarget(schema, state.spec, BadRowCollector("fail", 0), is_strict=True)
    return FileRows(schema.arrow, _read_files(files, reading, progress))


def _read_files(
    files: Sequence[InputFile], reading: ReadTarget, progress: Callable[[int, int], None]
) -> Iterator[pa.RecordBatch]:
    for done, file in enumerate(files):
        progress(done, len(files))
        yield from read_file(file, reading)
    progress(len(files), len(files))


def _read_columns(
    file: InputFile, state: TableState, declared: Mapping[str, pa.DataType]
) -> FileColumns:
    try:
        found = read_file_columns(file, state.spec, state.schema, declared)
    except (UnreadableFile, *READ_ERRORS) as error:
        raise Invalid(
            "a file cannot be read",
            hint="check the file and its format",
            file=file.path,
            why=getattr(error, "message", None) or str(error).splitlines()[0],
        ) from error
    if not state.schema.columns:
        try:
            plan_columns(state, [found.arrow], evolve=True)
        except Invalid as error:
            error.facts.setdefault("file", file.path)
            raise
    return found
