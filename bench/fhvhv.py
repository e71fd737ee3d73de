"""Makes synthetic days of New York's high-volume for-hire trips, the same bytes every time.

In:   a day, a seed, a number of rows
Out:  one Parquet file a day, 24 columns named and typed as the city's own files, kept in a
      folder so that it is made once

- The same day, seed, row count and library versions give the same file.
- Every `pickup_datetime` lies inside its day and has whole seconds, as in the city's files, so
  about nine trips share a second. Rows are nearly in the order of pickup: off by up to a minute.
- Cardinalities and shapes follow the city's files: two companies, 263 zones with a few busy
  ones, money in cents, a rush hour, nulls where one company reports nothing.
- Timestamps are microseconds without a zone.

It does not imitate one real trip, nor how trips depend on weather or holidays.
"""

import argparse
import os
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_A_DAY = 800_000
FIRST_DAY = date(2024, 6, 1)
SEED = 20240601
ZONES = 263
DISORDER_S = 60
DAY_S = 86_400
DATA_VARIABLE = "THERMOCLINE_BENCH_DATA"

# Trips by hour of the day, in relative numbers: a night low, two rush hours, a long evening.
NIGHT = [30, 21, 15, 11, 11, 15, 24, 36]
MIDDAY = [43, 40, 38, 38, 40, 41, 44, 46]
EVENING = [49, 55, 59, 57, 53, 51, 48, 40]
HOURLY_DEMAND = np.array([*NIGHT, *MIDDAY, *EVENING], dtype=np.float64)

Column: TypeAlias = "pa.Array[Any]"
Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Day:
    """One day's file and what is in it."""

    day: date
    path: Path
    rows: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self.path.stat().st_size


def data_folder() -> Path:
    """Return the folder for everything the benches make, creating it when it is missing."""
    named = os.environ.get(DATA_VARIABLE)
    folder = Path(named) if named else Path(__file__).parent / ".data"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    return folder


def days(count: int, *, rows: int = ROWS_A_DAY, seed: int = SEED) -> list[Day]:
    """Return `count` consecutive days, making those that the data folder does not hold yet."""
    folder = data_folder() / "fhvhv" / f"rows-{rows}-seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    return [_day(folder, FIRST_DAY + timedelta(days=n), rows, seed) for n in range(count)]


def table(day: date, *, rows: int = ROWS_A_DAY, seed: int = SEED) -> pa.Table:
    """Return one day's trips as an Arrow table."""
    rng = np.random.default_rng([seed, day.toordinal()])
    pickup_s = _pickup_seconds(rng, rows)
    is_first = rng.random(rows) < 0.73
    pickup_zone, dropoff_zone = _zones(rng, rows)
    miles = np.round(rng.lognormal(1.05, 0.85, rows).clip(0.01, 120.0), 2)
    pace = rng.normal(215.0, 55.0, rows).clip(80.0, 600.0)
    trip_s = (120 + miles * pace).astype(np.int64)
    return pa.table(
        _companies(rng, is_first)
        | _instants(rng, day, pickup_s, trip_s, is_first)
        | {"PULocationID": pa.array(pickup_zone), "DOLocationID": pa.array(dropoff_zone)}
        | {"trip_miles": pa.array(miles), "trip_time": pa.array(trip_s)}
        | _money(rng, miles, trip_s, pickup_zone, dropoff_zone)
        | _flags(rng, rows, is_first)
    )


def _day(folder: Path, day: date, rows: int, seed: int) -> Day:
    path = folder / f"fhvhv_tripdata_{day.isoformat()}.parquet"
    if not path.exists():
        partial = path.with_suffix(f".{os.getpid()}.partial")
        pq.write_table(table(day, rows=rows, seed=seed), partial, compression="zstd")
        partial.rename(path)
    return Day(day, path, rows)


def _pickup_seconds(rng: np.random.Generator, rows: int) -> Numbers:
    """Return seconds of the day by demand, nearly sorted."""
    edges = np.concatenate([[0.0], np.cumsum(HOURLY_DEMAND) / HOURLY_DEMAND.sum()])
    seconds = np.interp(rng.random(rows), edges, np.arange(25) * 3600.0).astype(np.int64)
    seconds = seconds.clip(0, DAY_S - 1)
    order = np.argsort(seconds + rng.uniform(0.0, DISORDER_S, rows), kind="stable")
    nearly_sorted: Numbers = seconds[order]
    return nearly_sorted


def _zones(rng: np.random.Generator, rows: int) -> tuple[Numbers, Numbers]:
    """Return pickup and dropoff zones: a few busy ones, and a quarter of trips stay near."""
    weight = 1.0 / (np.arange(ZONES) + 12.0) ** 0.9
    edges = np.cumsum(weight) / weight.sum()
    label = np.random.default_rng(ZONES).permutation(ZONES).astype(np.int32) + 1
    start = np.searchsorted(edges, rng.random(rows)).clip(0, ZONES - 1)
    end = np.searchsorted(edges, rng.random(rows)).clip(0, ZONES - 1)
    near = rng.random(rows) < 0.25
    end[near] = (start[near] + rng.integers(-4, 5, near.sum())) % ZONES
    return label[start], label[end]


def _companies(rng: np.random.Generator, is_first: Numbers) -> dict[str, Column]:
    rare = rng.random(len(is_first)) < 0.002
    base = np.where(is_first, 0, 1) + np.where(rare, 2, 0)
    bases = ["B03404", "B03406", "B02764", "B02510"]
    originating = pa.array(base.astype(np.int32), mask=~is_first & ~rare)
    return {
        "hvfhs_license_num": _words(np.where(is_first, 0, 1), ["HV0003", "HV0005"]),
        "dispatching_base_num": _words(base, bases),
        "originating_base_num": _decoded(originating, bases),
    }


def _instants(
    rng: np.random.Generator,
    day: date,
    pickup_s: Numbers,
    trip_s: Numbers,
    is_first: Numbers,
) -> dict[str, Column]:
    pickup = pickup_s + (day - date(1970, 1, 1)).days * DAY_S
    waited = rng.gamma(2.2, 110.0, len(pickup)).astype(np.int64)
    on_scene = pickup - rng.gamma(1.6, 40.0, len(pickup)).astype(np.int64)
    return {
        "request_datetime": _timestamps(pickup - waited - 20),
        "on_scene_datetime": _timestamps(on_scene, mask=~is_first),
        "pickup_datetime": _timestamps(pickup),
        "dropoff_datetime": _timestamps(pickup + trip_s),
    }


def _money(
    rng: np.random.Generator,
    miles: Numbers,
    trip_s: Numbers,
    pickup_zone: Numbers,
    dropoff_zone: Numbers,
) -> dict[str, Column]:
    rows = len(miles)
    surge = rng.lognormal(0.0, 0.22, rows)
    fare = np.round((2.9 + miles * 1.95 + trip_s * 0.0095) * surge, 2)
    tolls = np.where(rng.random(rows) < 0.07, rng.choice([6.94, 11.19, 14.06, 3.18], rows), 0.0)
    central = (pickup_zone % 5 == 0) | (dropoff_zone % 5 == 0)
    airport = (pickup_zone <= 2).astype(np.int64) + (dropoff_zone <= 2)
    tip_rate = np.where(rng.random(rows) < 0.18, rng.choice([0.1, 0.15, 0.2, 0.25], rows), 0.0)
    columns = {
        "base_passenger_fare": fare,
        "tolls": tolls,
        "bcf": np.round((fare + tolls) * 0.0275, 2),
        "sales_tax": np.round((fare + tolls) * 0.08875, 2),
        "congestion_surcharge": np.where(central, 2.75, 0.0),
        "airport_fee": airport * 2.5,
        "tips": np.round(fare * tip_rate, 2),
        "driver_pay": np.round((miles * 1.4 + trip_s * 0.0108) * rng.normal(1.08, 0.1, rows), 2),
    }
    return {name: pa.array(values) for name, values in columns.items()}


def _flags(rng: np.random.Generator, rows: int, is_first: Numbers) -> dict[str, Column]:
    shared = rng.random(rows) < 0.025
    matched = shared & (rng.random(rows) < 0.35)
    wheelchair = rng.random(rows) < 0.0025
    served = wheelchair | (rng.random(rows) < 0.07)
    return {
        "shared_request_flag": _yes_no(shared),
        "shared_match_flag": _yes_no(matched),
        "access_a_ride_flag": _words(np.where(is_first, 0, 1), [" ", "N"]),
        "wav_request_flag": _yes_no(wheelchair),
        "wav_match_flag": _yes_no(served),
    }


def _yes_no(claims: Numbers) -> Column:
    return _words(claims.astype(np.int32), ["N", "Y"])


def _words(codes: Numbers, words: list[str]) -> Column:
    return _decoded(pa.array(codes.astype(np.int32)), words)


def _decoded(codes: Column, words: list[str]) -> Column:
    return pa.DictionaryArray.from_arrays(codes, pa.array(words)).cast(pa.string())


def _timestamps(seconds: Numbers, mask: Numbers | None = None) -> Column:
    column: Column = pa.array(seconds * 1_000_000, mask=mask).cast(pa.timestamp("us"))
    return column


def main() -> None:
    """Make the days asked for and print where they are."""
    parser = argparse.ArgumentParser(description="Make synthetic days of trips.")
    parser.add_argument("--days", type=int, default=10, help="how many consecutive days")
    parser.add_argument("--rows", type=int, default=ROWS_A_DAY, help="rows in each day")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--quick", action="store_true", help="two days of 20,000 rows")
    options = parser.parse_args()
    if options.quick:
        options.days, options.rows = 2, 20_000
    for made in days(options.days, rows=options.rows, seed=options.seed):
        print(f"{made.day} {made.rows} rows {made.size_bytes} bytes {made.path}")


if __name__ == "__main__":
    main()
