"""Gives each trip of a day a lane, so that no two trips of one lane share a second.

In:   days as `fhvhv` made them, many trips to a second
Out:  the same files with one more column, `lane` (int32): 0 for the first trip of a second, 1 for
      the second one, and so on; about 30 lanes in all

Some formats take at most one row for each entity and interval, and no interval under a second.
With `lane` as the entity these files are the nearest they accept: the same rows in the same
order, all 24 columns untouched.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fhvhv

COLUMN = "lane"
TIME_COLUMN = "pickup_datetime"


def laned(day_path: Path) -> Path:
    """Return the day's file with lanes, making it beside the original when it is missing."""
    path = day_path.with_name(day_path.name.replace("fhvhv_", "laned_"))
    if not path.exists():
        trips = pq.read_table(day_path)
        seconds = trips.column(TIME_COLUMN).cast(pa.int64()).to_numpy() // 1_000_000
        with_lane = trips.append_column(COLUMN, pa.array(lanes(seconds)))
        partial = path.with_suffix(f".{os.getpid()}.partial")
        pq.write_table(with_lane, partial, compression="zstd")
        partial.rename(path)
    return path


def lanes(seconds: fhvhv.Numbers) -> fhvhv.Numbers:
    """Return for each row how many earlier rows have the same second."""
    order = np.argsort(seconds, kind="stable")
    ordered = seconds[order]
    position = np.arange(len(ordered))
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    start = np.maximum.accumulate(np.where(is_first, position, 0))
    lane = np.empty(len(ordered), dtype=np.int32)
    lane[order] = position - start
    return lane
