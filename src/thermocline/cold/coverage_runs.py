"""Reads the stretches that a report lists back as a coverage.

In:   a table of stretches: entity columns, start, end, buckets; the table's spec
Out:  the `Coverage` that gives this table
"""

from typing import Any

import numpy as np
import pyarrow as pa

from thermocline.format.bitmap_runs import BitmapRuns
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import (
    BIAS,
    Buckets,
    Coverage,
    empty_coverage,
    entity_key,
    unite_whole,
)
from thermocline.format.instant import NS_PER_US
from thermocline.format.log.action import TableSpec


def read_coverage(runs: pa.Table, spec: TableSpec) -> Coverage:
    """Return the coverage that a table of stretches describes."""
    if not runs.num_rows:
        return empty_coverage(spec.bucket.code)
    first = _read_numbers(runs.column(runs.num_columns - 3), spec.bucket) + BIAS
    end = first + runs.column(runs.num_columns - 1).to_numpy()
    if not spec.entity_columns:
        return Coverage(spec.bucket.code, _make_buckets(first, end), {})
    names = runs.column_names[: len(spec.entity_columns)]
    rows = zip(*(runs.column(name).to_pylist() for name in names), strict=True)
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(entity_key(row), []).append(place)
    entities = {key: _make_buckets(first[rows], end[rows]) for key, rows in sorted(places.items())}
    return Coverage(spec.bucket.code, unite_whole(entities), entities)


def _make_buckets(first: Any, end: Any) -> Buckets:
    return Buckets.from_runs(BitmapRuns(np.zeros(len(first), dtype=np.int64), first, end))


def _read_numbers(starts: pa.ChunkedArray, bucket: Bucket) -> Any:
    """Return the numbers of the buckets that begin at these times, or index values."""
    if not bucket.is_time:
        return np.array([bucket.number_of(int(one)) for one in starts.to_pylist()], dtype=np.int64)
    micros = starts.cast(pa.timestamp("us", tz=starts.type.tz)).cast(pa.int64()).to_pylist()
    return np.array([bucket.number_of(one * NS_PER_US) for one in micros], dtype=np.int64)
