"""What a segment holds, measured from its time and entity columns alone.

In:   record batches of the time column and the entity columns
Out:  a `Measured`: rows, first and last time, coverage, bounds of the entity columns

- A null time is refused with the number of rows that have one.
- The same rows give the same coverage bytes, whatever batches they come in: a lost sidecar can
  be made again and compared.
- No other column is decoded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from thermocline.errors import Invalid, Overloaded
from thermocline.format import instant
from thermocline.format.action import TableSpec
from thermocline.format.coverage import Buckets, Coverage, entity_key, entity_values, united
from thermocline.format.instant import NS_PER_UNIT, TimeNs

GRID_CELLS_MAX = 64 << 20
STAT_LENGTH_MAX = 128


@dataclass(frozen=True, slots=True)
class Measured:
    """What a segment holds; times are None when it holds no row."""

    row_count: int
    ts_min: TimeNs | None
    ts_max: TimeNs | None
    coverage: Coverage
    stats: Mapping[str, tuple[Any, Any]]


class Measuring:
    """Measures batches one after another; `done` gives the sum."""

    def __init__(self, spec: TableSpec) -> None:
        self._spec = spec
        self._rows = 0
        self._first: int | None = None
        self._last: int | None = None
        self._whole: list[Buckets] = []
        self._entities: dict[str, list[Buckets]] = {}

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take in one batch with at least the time column and the entity columns."""
        if not batch.num_rows:
            return
        times = _one_chunk(batch.column(self._spec.time_column))
        if times.null_count:
            raise Invalid(
                "the time column has nulls",
                hint="drop or mend the rows that have no time",
                time_column=self._spec.time_column,
                rows=times.null_count,
            )
        self._rows += batch.num_rows
        values = times.cast(pa.int64()).to_numpy()
        self._bound(int(values.min()), int(values.max()), times.type.unit)
        buckets = self._spec.bucket.of_values(values, times.type.unit)
        if self._spec.entity_columns:
            self._add_entities(batch, buckets)
        else:
            self._whole.append(_distinct(buckets))

    def _bound(self, low: int, high: int, unit: str) -> None:
        first = instant.checked(low * NS_PER_UNIT[unit])
        last = instant.checked(high * NS_PER_UNIT[unit])
        self._first = first if self._first is None else min(self._first, first)
        self._last = last if self._last is None else max(self._last, last)

    def _add_entities(
        self, batch: pa.RecordBatch | pa.Table, buckets: npt.NDArray[np.int64]
    ) -> None:
        codes, keys = row_entities(batch, self._spec)
        if len(keys) > self._spec.entities_max:
            raise self._too_many(len(keys))
        for code, held in _distinct_by_code(codes, buckets, len(keys)):
            self._entities.setdefault(keys[code], []).append(held)
        if len(self._entities) > self._spec.entities_max:
            raise self._too_many(len(self._entities))

    def _too_many(self, count: int) -> Overloaded:
        return Overloaded(
            "more entities than the table's limit",
            hint="raise entities_max, or declare fewer or coarser entity columns",
            entities=count,
            entities_max=self._spec.entities_max,
        )

    def done(self) -> Measured:
        """Return the sum of all batches."""
        entities = {key: united(parts) for key, parts in self._entities.items()}
        whole = united(entities.values() if entities else self._whole)
        coverage = Coverage(self._spec.bucket.width_s, whole, entities)
        first = None if self._first is None else TimeNs(self._first)
        last = None if self._last is None else TimeNs(self._last)
        return Measured(self._rows, first, last, coverage, {})


def measure(batches: Iterable[pa.RecordBatch | pa.Table], spec: TableSpec) -> Measured:
    """Return what these batches hold."""
    measuring = Measuring(spec)
    for batch in batches:
        measuring.add(batch)
    return measuring.done()


def entity_stats(spec: TableSpec, coverage: Coverage, ids: list[int]) -> dict[str, tuple[Any, Any]]:
    """Return the least and greatest value of each entity column, by its column id."""
    rows = [entity_values(key) for key in coverage.entities]
    stats = {}
    for place, column_id in zip(range(len(spec.entity_columns)), ids, strict=True):
        values = [row[place] for row in rows]
        if values and all(_is_bounded(value) for value in values):
            stats[str(column_id)] = (min(values), max(values))
    return stats


def _is_bounded(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= STAT_LENGTH_MAX
    return isinstance(value, int) and not isinstance(value, bool)


def _one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _distinct(buckets: npt.NDArray[np.int64]) -> Buckets:
    low, high = int(buckets.min()), int(buckets.max())
    if high - low >= max(len(buckets) * 8, 1 << 16):
        return Buckets.of(np.unique(buckets))
    seen = np.zeros(high - low + 1, dtype=bool)
    seen[buckets - low] = True
    return Buckets.of(np.flatnonzero(seen) + low)


def _distinct_by_code(
    codes: npt.NDArray[np.int64], buckets: npt.NDArray[np.int64], count: int
) -> Iterable[tuple[int, Buckets]]:
    """Yield the buckets of each entity: by marking a grid where it is small, else by sorting."""
    low = int(buckets.min())
    span = int(buckets.max()) - low + 1
    cells = codes * span + (buckets - low)
    if count * span <= min(GRID_CELLS_MAX, max(16 * len(cells), 1 << 20)):
        grid = np.zeros(count * span, dtype=bool)
        grid[cells] = True
        held = np.flatnonzero(grid)
    else:
        held = np.unique(cells)
    owners = held // span
    starts = np.searchsorted(owners, np.arange(count + 1))
    for code in range(count):
        part = held[starts[code] : starts[code + 1]]
        if len(part):
            yield code, Buckets.of(part - code * span + low)


def row_entities(
    batch: pa.RecordBatch | pa.Table, spec: TableSpec
) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the entity of each row as a number, and the key of each number.

    Without entity columns every row belongs to the one entity whose key is empty.
    """
    if not spec.entity_columns:
        return np.zeros(batch.num_rows, dtype=np.int64), [""]
    codes: npt.NDArray[np.int64] | None = None
    values: list[list[Any]] = [[]]
    for column in (_one_chunk(batch.column(name)) for name in spec.entity_columns):
        encoded = column if kinds.is_dictionary(column.type) else pc.dictionary_encode(column)
        distinct = [*_key_values(encoded.dictionary), None]
        mine = encoded.indices.fill_null(len(distinct) - 1).to_numpy().astype(np.int64)
        mine = np.where(mine < 0, len(distinct) - 1, mine)
        if codes is None:
            codes, values = mine, [[value] for value in distinct]
            continue
        pairs, codes = np.unique(codes * len(distinct) + mine, return_inverse=True)
        values = [
            values[pair // len(distinct)] + [distinct[pair % len(distinct)]] for pair in pairs
        ]
    assert codes is not None
    return _merged(codes, [entity_key(row) for row in values])


def _merged(
    codes: npt.NDArray[np.int64], keys: list[str]
) -> tuple[npt.NDArray[np.int64], list[str]]:
    # A dictionary may hold a value twice or hold null: rows with equal keys are one entity.
    distinct = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    if len(distinct) == len(keys):
        return codes, keys
    mapping = np.array([distinct[key] for key in keys], dtype=np.int64)
    return mapping[codes], list(distinct)


def _key_values(values: pa.Array) -> list[Any]:
    """Return values as JSON can hold them, exactly: numbers and texts as they are."""
    kind = values.type
    if kinds.is_integer(kind) or kinds.is_boolean(kind) or kinds.is_null(kind):
        return list(values.to_pylist())
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return list(values.to_pylist())
    if kinds.is_temporal(kind) or kinds.is_decimal(kind):
        return list(pc.cast(values, pa.string()).to_pylist())
    raise Invalid(
        "an entity column has a type that cannot name an entity",
        hint="use texts, whole numbers, decimals, dates, times or booleans",
        type=str(kind),
    )
