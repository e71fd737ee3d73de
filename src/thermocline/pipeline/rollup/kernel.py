"""The kernel of a rollup: rows of a source in, one row for each window and group out.

In:   Arrow batches of the source's columns, the windows to compute
Out:  an Arrow table with the columns of the result, sorted by window and group

- A row counts in exactly one window: the one that contains its time, to the nanosecond.
- The engine gets instants, durations and dates as integers; the result has their types again.
- Spark's workers and tests run the same code on the same rows.
- Groups that do not fit into memory are spilled to a temporary folder of bounded size.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from thermocline.cold.segment.parquet import filter_rows
from thermocline.errors import Overloaded, ThermoclineError
from thermocline.format.coverage import Buckets
from thermocline.format.index_column import index_numbers, window_starts
from thermocline.format.schema import Schema
from thermocline.format.types import plain_type
from thermocline.pipeline.rollup.spec import Aggregate, Rollup, result_columns

if TYPE_CHECKING:
    from thermocline.query.sql.predicate import Predicate

Numbers: TypeAlias = npt.NDArray[np.int64]

MEMORY_BYTES_MAX = 768 << 20
SPILL_BYTES_MAX = 16 << 30

_ROWS = "__thermocline_rows"


@dataclass(frozen=True, slots=True)
class RollupKernel:
    """A rollup over a source with these columns."""

    rollup: Rollup
    schema: Schema
    time_column: str

    @property
    def result_schema(self) -> pa.Schema:
        """The columns of the result."""
        return result_columns(self.rollup, self.schema, self.time_column)

    @property
    def columns(self) -> list[str]:
        """The columns of the source that are read."""
        names = [self.time_column, *self.rollup.columns]
        if self.rollup.where is not None:
            names += self._predicate().columns
        return list(dict.fromkeys(names))

    def _predicate(self) -> "Predicate":
        from thermocline.query.sql.predicate import compile_predicate

        return compile_predicate(self.rollup.where or "true", self.schema.arrow)

    def aggregate(self, batches: Iterable[pa.RecordBatch], windows: Buckets) -> pa.Table:
        """Return the rows of these windows; a window without source rows has no row."""
        from thermocline.query.engine import Engine, EngineLimits, translate_errors

        result, trouble = self.result_schema, _ErrorKeeper()
        shaped = trouble.watch(self._shape_batches(batches, windows))
        rows = pa.RecordBatchReader.from_batches(self._input_schema(), shaped)
        limits = EngineLimits(threads=1, memory_bytes=MEMORY_BYTES_MAX, spill_bytes=SPILL_BYTES_MAX)
        engine = Engine((), (), limits)
        try:
            cursor = engine.cursor()
            with translate_errors():
                cursor.register(_ROWS, rows)
                found = cursor.sql(self._sql(result)).to_arrow_table()
                cursor.close()
        except ThermoclineError as error:
            raise trouble.error or _translate_overflow(self.rollup, error) from error
        finally:
            engine.close()
        return self._present(found, result)

    def _input_schema(self) -> pa.Schema:
        fields = [pa.field("w", pa.int64()), pa.field("t", pa.int64())]
        for place, name in enumerate(self.rollup.columns):
            fields.append(pa.field(f"c{place}", _engine_type(self.schema.column(name).type)))
        return pa.schema(fields)

    def _shape_batches(
        self, batches: Iterable[pa.RecordBatch], windows: Buckets
    ) -> Iterator[pa.RecordBatch]:
        predicate = None if self.rollup.where is None else self._predicate()
        wanted, shape = _WindowSet(windows), self._input_schema()
        for batch in batches:
            times = batch.column(self.time_column)
            values, unit = index_numbers(times)
            numbers = self.rollup.every.numbers_of(values, unit)
            keep = wanted.contains(numbers)
            if predicate is not None and keep.any():
                mask = predicate(batch.select(list(predicate.columns)))
                keep &= mask.to_numpy(zero_copy_only=False)
            if not keep.any():
                continue
            if values.dtype == np.uint64:  # only the order of the values matters
                values = (values ^ np.uint64(1 << 63)).view(np.int64)
            arrays = [pa.array(numbers), pa.array(values)]
            arrays += [_to_engine(batch.column(name)) for name in self.rollup.columns]
            shaped = pa.RecordBatch.from_arrays(arrays, schema=shape)
            yield shaped if keep.all() else filter_rows(shaped, keep)

    def _sql(self, result: pa.Schema) -> str:
        place = {name: f"c{at}" for at, name in enumerate(self.rollup.columns)}
        groups = ["w", *(place[name] for name in self.rollup.by)]
        first = 1 + len(self.rollup.by)
        chosen = [f"{group} AS g{at}" for at, group in enumerate(groups)]
        for at, one in enumerate(self.rollup.aggregates):
            column = "" if one.column is None else place[one.column]
            is_float = bool(column) and kinds.is_floating(self.schema.column(one.column or "").type)
            kind = result.field(first + at).type
            chosen.append(f"{_expression(one, column, kind, is_float=is_float)} AS a{at}")
        keys = ", ".join(groups)
        ordered = ", ".join(f"g{at}" for at in range(len(groups)))
        return f"SELECT {', '.join(chosen)} FROM {_ROWS} GROUP BY {keys} ORDER BY {ordered}"  # noqa: S608

    def _present(self, found: pa.Table, result: pa.Schema) -> pa.Table:
        kind = result.field(0).type
        starts = window_starts(found.column(0).to_numpy(), self.rollup.every, kind)
        others = [
            _from_engine(found.column(at), result.field(at).type) for at in range(1, len(result))
        ]
        return pa.Table.from_arrays([starts, *others], schema=result)


class _ErrorKeeper:
    """Keeps the error that ended a stream: the engine that reads it raises a different one."""

    def __init__(self) -> None:
        self.error: ThermoclineError | None = None

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except ThermoclineError as error:
            self.error = error
            raise


class _WindowSet:
    """Tells for many window numbers at once whether each is to be computed."""

    def __init__(self, windows: Buckets) -> None:
        runs = windows.runs()
        self._first = np.array([run.first for run in runs], dtype=np.int64)
        self._end = np.array([run.end for run in runs], dtype=np.int64)

    def contains(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        if not len(self._first):
            return np.zeros(len(numbers), dtype=bool)
        place = np.searchsorted(self._first, numbers, side="right") - 1
        return (place >= 0) & (numbers < self._end[np.maximum(place, 0)])


def _expression(one: Aggregate, column: str, kind: pa.DataType, *, is_float: bool) -> str:
    match one.function:
        case "count" if not column:
            return "count(*)"
        case "count":
            return f"count({'DISTINCT ' * one.is_distinct}{column})"
        case "sum" if is_float:
            return f"fsum({column})"  # compensated, because rows may come in any order
        case "sum":
            is_whole = kinds.is_integer(kind)
            return f"sum({column})::{'BIGINT' if is_whole else f'DECIMAL(38, {kind.scale})'}"
        case "avg":
            return f"favg({column}::DOUBLE)"
        case "stddev":
            return f"stddev_samp({column}::DOUBLE)"
        case "median" | "percentile":
            share = 0.5 if one.share is None else one.share
            return f"quantile_cont({column}::DOUBLE, {share!r})"
        case "first" | "last":
            # Equal times are ordered by value, so that the order of files does not matter.
            return f"{one.function}({column} ORDER BY t, {column}) FILTER ({column} IS NOT NULL)"
    return f"{one.function}({column})"


def _engine_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which the engine gets a column, so that no value changes."""
    kind = plain_type(kind)
    if kinds.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if kinds.is_float16(kind):
        return pa.float32()
    return pa.binary() if kinds.is_fixed_size_binary(kind) else kind


def _to_engine(column: pa.Array) -> pa.Array:
    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(plain_type(column.type)).cast(_engine_type(column.type))


def _from_engine(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kinds.is_temporal(kind):
        return column.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return column.cast(kind)


def _translate_overflow(rollup: Rollup, error: ThermoclineError) -> ThermoclineError:
    text = str(error.facts.get("error", ""))
    if "out of range" in text.lower() or "overflow" in text.lower():
        return Overloaded(
            "a sum of a rollup does not fit into its type",
            hint="sum a column of decimals or floats, or use smaller windows",
            rollup=rollup.name,
            error=text,
        )
    return error
