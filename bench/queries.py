"""The six questions of the scan bench, and what it means that two answers are the same.

In:   how many days there are
Out:  queries q1 to q6, in the two dialects spoken here; a comparison of answers

- A query names the days it needs, so that an engine without a table format can be given exactly
  the right files.
- Two answers are the same when they have the same columns and the same rows in any order; floats
  may differ in the last digits, since engines add them up in different orders.
"""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

import fhvhv

FLOAT_TOLERANCE = 1e-9
FOUR_COLUMNS = 'pickup_datetime, "PULocationID", trip_miles, base_passenger_fare'


@dataclass(frozen=True, slots=True)
class Query:
    """One question; `{trips}` stands for the table, `{quarter_hour}` for a 15-minute bin."""

    name: str
    title: str
    text: str
    days: list[int]

    def duckdb_sql(self, trips: str) -> str:
        """Return the text for DuckDB, over this relation."""
        binned = "time_bucket(interval '15 minutes', pickup_datetime)"
        return self.text.format(trips=trips, quarter_hour=binned)

    def datafusion_sql(self, trips: str) -> str:
        """Return the text for DataFusion, over this relation."""
        binned = "date_bin(interval '15 minutes', pickup_datetime)"
        return self.text.format(trips=trips, quarter_hour=binned)

    def as_json(self) -> dict[str, Any]:
        """Return the fields for the way to a worker."""
        return asdict(self)


def queries(days: int) -> list[Query]:
    """Return q1 to q6 over so many days; at least three are needed."""
    middle = days // 2
    midnight = datetime.combine(fhvhv.FIRST_DAY + timedelta(days=middle), datetime.min.time())
    six_hours = _between(midnight + timedelta(hours=6), midnight + timedelta(hours=12))
    three_days = _between(midnight - timedelta(days=1), midnight + timedelta(days=2))
    every = list(range(days))
    return [
        Query("q1", "6 h range, 4 columns", _rows(six_hours), [middle]),
        Query("q2", "3 day range, 4 columns", _rows(three_days), [middle - 1, middle, middle + 1]),
        Query("q3", "global aggregates", _GLOBAL, every),
        Query("q4", "filter + aggregate", _FILTERED, every),
        Query("q5", "group by", _GROUPED, every),
        Query("q6", "15-minute bins", _BINNED, every),
    ]


def difference(left: pa.Table, right: pa.Table) -> str | None:
    """Return how two answers differ, or None when they are the same."""
    if left.column_names != right.column_names:
        return f"columns {left.column_names} and {right.column_names}"
    if len(left) != len(right):
        return f"{len(left)} and {len(right)} rows"
    first, second = _sorted(left), _sorted(right.cast(left.schema))
    for name in left.column_names:
        if not _same(first.column(name), second.column(name)):
            return f"values of {name}"
    return None


def _sorted(answer: pa.Table) -> pa.Table:
    return answer.sort_by([(name, "ascending") for name in answer.column_names])


def _same(left: "pa.ChunkedArray[Any]", right: "pa.ChunkedArray[Any]") -> bool:
    if pa.types.is_floating(left.type):
        close = np.isclose(left.to_numpy(), right.to_numpy(), rtol=FLOAT_TOLERANCE, equal_nan=True)
        return bool(close.all())
    return bool(left.combine_chunks().equals(right.combine_chunks()))


def _between(start: datetime, end: datetime) -> str:
    return f"pickup_datetime >= timestamp '{start}' and pickup_datetime < timestamp '{end}'"


def _rows(condition: str) -> str:
    return f"select {FOUR_COLUMNS} from {{trips}} where {condition}"


_GLOBAL = """
select count(*) as trips, sum(trip_miles) as miles, avg(base_passenger_fare) as fare,
       max(tips) as tip, min(pickup_datetime) as earliest, max(dropoff_datetime) as latest
from {trips}
"""
_FILTERED = """
select count(*) as trips, sum(base_passenger_fare) as fare, avg(driver_pay) as pay
from {trips}
where trip_miles > 2.0 and "PULocationID" between 50 and 150 and shared_request_flag = 'N'
"""
_GROUPED = """
select "PULocationID", count(*) as trips, sum(base_passenger_fare) as fare, avg(tips) as tip
from {trips}
group by "PULocationID"
"""
_BINNED = """
select {quarter_hour} as quarter_hour, count(*) as trips, sum(trip_miles) as miles
from {trips}
group by 1
"""
