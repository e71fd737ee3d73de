"""The index column of rows: times or whole numbers, as arrays of numbers and back.

In:   Arrow arrays of the index column, without nulls
Out:  numbers with the unit that they count; Arrow arrays of positions

- The numbers of a time column count its unit since 1970; those of an integer index are positions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kinds

from thermocline.format.bucket import INT64, UINT64, Bucket
from thermocline.format.instant import NS_PER_S, NS_PER_UNIT, NS_PER_US

REPORTED_TIME = pa.timestamp("us", tz="UTC")
POSITION = "position"
"""The unit of an integer index: a number is a position."""

INTEGER_TYPES = {INT64: pa.int64(), UINT64: pa.uint64()}


def index_numbers(column: pa.Array) -> tuple[npt.NDArray[Any], str]:
    """Return the values of an index column as numbers, and the unit that they count."""
    if kinds.is_timestamp(column.type):
        return column.cast(pa.int64()).to_numpy(), column.type.unit
    wide = pa.uint64() if kinds.is_uint64(column.type) else pa.int64()
    return column.cast(wide).to_numpy(), POSITION


def unit_size(unit: str) -> int:
    """Return how many positions one step of a unit is."""
    return NS_PER_UNIT.get(unit, 1)


def fits_index(kind: pa.DataType, index_type: str) -> bool:
    """Tell whether a column of this type can be the index of a table."""
    if index_type in INTEGER_TYPES:
        return bool(kind == INTEGER_TYPES[index_type])
    return bool(kinds.is_timestamp(kind))


def default_index_type(bucket: Bucket, *, has_zone: bool) -> pa.DataType:
    """Return the type that an index column gets if its values do not decide it."""
    if bucket.is_time:
        return pa.timestamp("us", "UTC" if has_zone else None)
    return INTEGER_TYPES[bucket.unit]


def window_starts(numbers: npt.NDArray[np.int64], bucket: Bucket, kind: pa.DataType) -> pa.Array:
    """Return the first position of each bucket in the type of an index column."""
    if not bucket.is_time:
        return pa.array([bucket.start(int(number)) for number in numbers.tolist()], kind)
    counts = bucket.starts_s(numbers) * (NS_PER_S // NS_PER_UNIT[kind.unit])
    return pa.array(counts, pa.int64()).cast(kind)


def bucket_starts(numbers: npt.NDArray[np.int64], bucket: Bucket) -> pa.Array:
    """Return the first position of each bucket as reports write it.

    A position past the end of an integer's type is null: no value is past it.
    """
    if bucket.is_time:
        seconds = bucket.starts_s(numbers)
        return pa.array(seconds * (NS_PER_S // NS_PER_US)).cast(REPORTED_TIME)
    return position_array([bucket.start(int(number)) for number in numbers.tolist()], bucket)


def position_array(positions: Sequence[int | None], bucket: Bucket) -> pa.Array:
    """Return positions as reports write them: microseconds in UTC, or whole numbers."""
    if bucket.is_time:
        counts = [None if one is None else one // NS_PER_US for one in positions]
        return pa.array(counts, pa.int64()).cast(REPORTED_TIME)
    low, high = bucket.domain
    kept = [None if one is None or one > high else max(one, low) for one in positions]
    return pa.array(kept, INTEGER_TYPES[bucket.unit])
