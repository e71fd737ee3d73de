# ruff: noqa: INP001, T201  # a script for people, run by its path
"""dlt extracts and normalises; a Thermocline table is its destination, each load exactly once.

.venv/bin/python examples/dlt_load.py ./lake
"""

import sys
from collections.abc import Iterator
from typing import Any

import dlt
import pyarrow.parquet as pq

import thermocline as tc


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

    @dlt.destination(batch_size=0, loader_file_format="parquet", name="thermocline")
    def thermocline(path: str, table: dict[str, Any]) -> None:
        """Append one file of a load."""
        rows = pq.read_table(path)
        with tc.connect(root) as lake:
            name = table["name"]
            if name not in lake.tables():
                lake.create_table(name, time_column="ts", bucket="1h", entity_columns=["sensor"])
            # The file's name is the idempotency key: a load that dlt repeats adds no row.
            lake.table(name).write(rows, evolve=True, request_id=path.rpartition("/")[2])

    pipeline = dlt.pipeline("weather", destination=thermocline, pipelines_dir=f"{root}-dlt")
    print(pipeline.run(readings()))
    with tc.connect(root) as lake:
        print(
            lake.sql(
                "select sensor, count(*) as n, max(celsius) as high from readings group by all"
            )
        )


if __name__ == "__main__":
    main()
