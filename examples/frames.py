# ruff: noqa: INP001, T201  # a script for people, run by its path
"""pandas and polars frames go into a table and come out of it, as Arrow.

.venv/bin/python examples/frames.py ./frames
"""

import sys

import pandas as pd
import polars as pl

import thermocline as tc


def main() -> None:
    """Append a frame of each kind, and read both back as either."""
    table = tc.TimeSeriesTable.create(
        table_root=sys.argv[1], time_column="ts", bucket="1h", entity_columns=["sensor"]
    )
    hours = pd.date_range("2024-06-01", periods=24, freq="h", tz="UTC")
    table.append(pd.DataFrame({"ts": hours, "sensor": "attic", "celsius": range(24)}))
    cellar = pl.DataFrame({"ts": hours.to_list(), "sensor": "cellar", "celsius": range(24)})
    table.append(cellar.with_columns(pl.col("ts").dt.cast_time_unit("ns")))
    as_polars = pl.from_arrow(table.to_arrow(where="celsius >= 20"))
    print(as_polars.group_by("sensor").agg(pl.col("celsius").mean()).sort("sensor"))

    session = tc.Session()
    session.register_tstable("readings", sys.argv[1])
    answer = session.sql(
        "select sensor, avg(celsius) as mean from readings group by all order by 1"
    )
    print(answer.to_pandas())


if __name__ == "__main__":
    main()
