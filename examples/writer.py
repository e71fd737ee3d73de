# ruff: noqa: INP001, T201  # a script for people, run by its path
"""Writes readings into a lake, one at a time, until it is killed; prints each acknowledged one.

.venv/bin/python examples/writer.py ./lake
"""

import itertools
import sys
from datetime import UTC, datetime, timedelta

import thermocline as tc

FIRST = datetime(2024, 6, 8, tzinfo=UTC)


def main() -> None:
    """Write without end: each line on standard output means one durable row."""
    lake = tc.connect(sys.argv[1], flush_age_s=0.2, flush_look_s=0.05)
    readings = lake.create_table("readings", time_column="ts", bucket="1h", entity_columns="sensor")
    for number in itertools.count():
        sensor = f"sensor-{number % 3}"
        ts = FIRST + timedelta(seconds=number)
        readings.write([{"ts": ts, "sensor": sensor, "number": number, "value": number / 7}])
        print(number, flush=True)


if __name__ == "__main__":
    main()
