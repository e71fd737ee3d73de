"""Times the Iceberg metadata of a table with many segments: rendered, kept up to date, loaded.

In:   a table of many small segments, made by links to one file
Out:  the section "iceberg" of the results

- `the whole table` renders the metadata with nothing to build on: each footer is read.
- `an append` publishes one more version, in a process that published the version before.
- `a load` is the metadata of a table that did not change, as the catalogue answers it, encoded; the
  time on the network is not in it.
- `an append, by a new process` publishes one append with nothing in memory.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fastavro
import orjson
import pyarrow as pa

import measure
from measure import milliseconds
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.log.transaction import CommitPlan, transact
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.format.bucket import Bucket
from thermocline.format.log.action import AddSegment, TableSpec
from thermocline.iceberg.publish import open_published

JUNE_US = 1_717_200_000_000_000
HOUR_US = 3_600_000_000
LEASE_S = 3_600
APPEND_MS_MAX, LOAD_MS_MAX = 20, 50
WHOLE, APPEND, LOAD = "the whole table", "an append", "a load"
RESUMED = "an append, by a new process"


def readings(hour: int) -> pa.Table:
    """Return the readings of one hour."""
    times = [JUNE_US + hour * HOUR_US + second * 1_000_000 for second in range(100)]
    names = [f"device-{number % 10}" for number in range(100)]
    values = [float(number) for number in range(100)]
    return pa.table(
        {"ts": pa.array(times, pa.timestamp("us", tz="UTC")), "device": names, "value": values}
    )


def append(table: ColdTable, hour: int) -> None:
    """Append one hour."""
    table.append(readings(hour).to_reader(), AppendOptions())


def made(folder: Path, count: int) -> ColdTable:
    """Return a table of so many segments, which all share the bytes of the first."""
    table = ColdTable(LocalStorage(str(folder)))
    table.create(TableSpec("", "ts", Bucket(3_600), ("device",), "allow"))
    append(table, 0)
    (first,) = table.state().segments
    source = folder / first.path
    added = []
    for number in range(1, count):
        name = f"{number:032x}"
        path = f"{first.path.rpartition('/')[0]}/{name}.parquet"
        os.link(source, folder / path)
        added.append(AddSegment(replace(first, segment_id=name, path=path)))
    transact(table.log, lambda state: CommitPlan("append", tuple(added)))
    return table


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that some work takes, and those of this process's threads."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began_s, time.process_time() - began_cpu_s


def middle(times: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians."""
    walls, works = zip(*times, strict=True)
    return statistics.median(walls), statistics.median(works)


def results(table: ColdTable, count: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the seconds of every way."""
    kept = open_published(table)
    found = {WHOLE: timed(lambda: kept.publish(LEASE_S))}
    appends, loads = [], []
    for number in range(rounds):
        append(table, count + number)
        appends.append(timed(lambda: kept.publish(LEASE_S)))
        loads.append(timed(lambda: orjson.dumps(kept.publish(LEASE_S).metadata)))
    found[APPEND], found[LOAD] = middle(appends), middle(loads)
    append(table, count + rounds)
    found[RESUMED] = timed(lambda: open_published(table).publish(LEASE_S))
    return found


def main() -> None:
    """Measure and write the section."""
    parser = measure.options(__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=10_000, help="segments of the table")
    options = parser.parse_args()
    rounds, count = (3, 200) if options.quick else (31, options.segments)
    scratch = Path(tempfile.mkdtemp(prefix="thermocline-bench-"))
    try:
        table = made(scratch / "table", count)
        measure.await_quiet(options.patience)
        with measure.Noise() as noise:
            found = results(table, count, rounds)
    finally:
        shutil.rmtree(scratch)
    append = measure.verdict(found[APPEND][0] * 1_000, APPEND_MS_MAX, at_most=True)
    load = measure.verdict(found[LOAD][0] * 1_000, LOAD_MS_MAX, at_most=True)
    body = [
        "## Iceberg metadata",
        "",
        measure.provenance("iceberg.py", {"fastavro": fastavro.__version__}),
        noise.line(),
        "",
        f"{count:,} segments; medians of {rounds} rounds, but for the first and the last line:",
        "",
        measure.markdown_table(
            ["what", "ms", "CPU ms"],
            [[name, *map(milliseconds, seconds)] for name, seconds in found.items()],
        ),
        "",
        f"An append at most {APPEND_MS_MAX} ms: {append}. A load at most {LOAD_MS_MAX} ms: {load}.",
    ]
    measure.write_section(options.results, "iceberg", "\n".join(body))
    print("\n".join(body))


if __name__ == "__main__":
    main()
