# ruff: noqa: INP001, T201  # a script for people, run by its path
"""dlt extracts and normalises; a Thermocline lake is its destination, each load exactly once.

.venv/bin/python examples/dlt_load.py ./lake
"""

import sys
from collections.abc import Iterator
from typing import Any

import dlt

import thermocline as tc
from thermocline.dlt_destination import destination, time_series


@dlt.resource(name="readings")
def readings() -> Iterator[list[dict[str, Any]]]:
    """Yield pages of records, as a source of dlt does."""
    for page in range(3):
        yield [
            {"ts": f"2024-06-01T{page:02d}:{minute:02d}:00Z", "sensor": "attic", "celsius": minute}
            for minute in range(60)
        ]


def main() -> None:
    """Load, and query; a file that dlt hands over again changes nothing."""
    root = sys.argv[1]
    pipeline = dlt.pipeline("weather", destination=destination(root), pipelines_dir=f"{root}-dlt")
    print(pipeline.run(time_series(readings(), time_column="ts", entity_columns="sensor")))
    with tc.connect(root) as lake:
        print(
            lake.sql(
                "select sensor, count(*) as n, max(celsius) as high from readings group by all"
            )
        )


if __name__ == "__main__":
    main()
