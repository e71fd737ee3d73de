"""Times a rollup of one changed hour against a full recompute, and a backfill against plain Spark.

In:   ten million readings of a hundred hosts in 240 hours; a thousand Parquet files of them
Out:  the section "rollup" of the results

- `one hour` is a run of the job after a thousand late rows came into one hour; `everything` is its
  first run, over all hours. `plain spark` groups the same files by Spark's own functions and writes
  Parquet: no version, no coverage, nothing remembered.
- `backfill` takes the files into a table: checked, measured, synced, in one commit. `plain spark`
  reads the folder and writes another one.
- One session on all cores of this machine, warm. Contenders take turns.
- The counts of a rollup must add up to the rows there are, or the bench fails.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import measure
from measure import Sample, milliseconds
from thermocline.cold.catalog import Catalog
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.table import ColdTable
from thermocline.format.bucket import Bucket
from thermocline.format.log.action import TableSpec
from thermocline.pipeline.backfill.job import backfill
from thermocline.pipeline.rollup.job import RollupJob
from thermocline.pipeline.rollup.spec import Rollup, rollup
from thermocline.pipeline.run.job import ignore_progress
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.session import session, stop

HOUR_US = 3_600_000_000
JUNE_US = 1_717_200_000_000_000
HOSTS = 100
LATE_ROWS = 1_000
TIMES_MAX = 1.0
"""One changed hour is to cost no more than everything; how much less, the ratio says."""

ONE_HOUR, EVERYTHING, PLAIN = "one hour", "everything", "plain spark"
BACKFILL = "backfill"
AGGREGATES = {
    "n": "count(*)",
    "mean": "avg(value)",
    "low": "min(value)",
    "high": "max(value)",
    "p95": "percentile(value, 0.95)",
}
SPEC = TableSpec("", "ts", Bucket(3600), ("host",), "allow")


def readings(rng: np.random.Generator, first_us: int, length_us: int, count: int) -> pa.Table:
    """Return readings of all hosts in a stretch of time, sorted by host and time."""
    hosts = np.sort(rng.integers(0, HOSTS, count))
    times = first_us + rng.integers(0, length_us, count)
    order = np.lexsort((times, hosts))
    names = pa.array([f"host-{number:03}" for number in range(HOSTS)])
    return pa.table(
        {
            "ts": pa.array(times[order], pa.timestamp("us", tz="UTC")),
            "host": pa.DictionaryArray.from_arrays(pa.array(hosts, pa.int32()), names).cast(
                pa.string()
            ),
            "value": rng.normal(50, 10, count).round(3),
        }
    )


def declaration(name: str) -> Rollup:
    """Return the rollup that is timed, under a name."""
    return rollup(name, "metrics", "1h", by=["host"], aggregates=AGGREGATES)


def run(site: JobWorkspace, one: Rollup, spark) -> None:
    """Run the job of a rollup, which must be due."""
    job = RollupJob([one])
    (task,) = job.due(site)
    job.run(site, task, lambda: spark, ignore_progress)


def counted(table: ColdTable) -> int:
    """Return how many rows of its source a rollup counts."""
    return sum(sum(batch.column(0).to_pylist()) for batch in table.read(table.state(), ["n"]))


def plain_rollup(spark, source: ColdTable, folder: Path) -> None:
    """Group the source's files by Spark alone, and write Parquet."""
    from pyspark.sql import functions as f

    files = [f"{source.storage.root}/{segment.path}" for segment in source.state().segments]
    hour = f.date_trunc("hour", "ts").alias("ts")
    value = f.col("value")
    aggregates = [
        f.count(f.lit(1)).alias("n"),
        f.avg(value).alias("mean"),
        f.min(value).alias("low"),
        f.max(value).alias("high"),
        f.percentile(value, 0.95).alias("p95"),
    ]
    frame = spark.read.parquet(*files).groupBy(hour, "host").agg(*aggregates)
    frame.write.parquet(str(folder))


def timed(contender: str, task: str, turn: int, work: Callable[[], object]) -> Sample:
    """Return one timed run."""
    measure.settle()
    cpu_s, start_s = measure.tree_cpu_s(), time.monotonic()
    work()
    wall_s = time.monotonic() - start_s
    measure.progress(f"{task}, {contender}, round {turn + 1}: {wall_s:.2f} s")
    return Sample(contender, task, turn, wall_s, measure.tree_cpu_s() - cpu_s)


def rollups(
    site: JobWorkspace, spark, scratch: Path, *, hours: int, rows: int, turns: int
) -> list[Sample]:
    """Time the three ways of a rollup."""
    rng = np.random.default_rng(7)
    source = site.ensure_table("metrics", SPEC)
    for hour in range(hours):
        made = readings(rng, JUNE_US + hour * HOUR_US, HOUR_US, rows // hours)
        source.append(made.to_reader(), AppendOptions())
    run(site, declaration("kept"), spark)
    samples = []

    def late(turn: int) -> None:
        first_us = JUNE_US + (turn * 37 % hours) * HOUR_US
        source.append(readings(rng, first_us, HOUR_US, LATE_ROWS).to_reader(), AppendOptions())

    for turn, order in measure.orders((ONE_HOUR, EVERYTHING, PLAIN), turns):
        works = {
            ONE_HOUR: lambda: run(site, declaration("kept"), spark),
            EVERYTHING: lambda turn=turn: run(site, declaration(f"anew_{turn}"), spark),
            PLAIN: lambda turn=turn: plain_rollup(spark, source, scratch / f"plain-{turn}"),
        }
        late(turn)
        samples += [timed(name, "rollup", turn, works[name]) for name in order]
    total = source.state().totals.rows
    for name in ("kept", f"anew_{turns - 1}"):
        if counted(site.table(name)) != total:
            raise SystemExit(f"{name} does not count the rows of its source")
    return samples


def backfills(
    site: JobWorkspace, spark, scratch: Path, *, files: int, rows: int, turns: int
) -> list[Sample]:
    """Time taking a folder of files in, and copying it by Spark alone."""
    rng = np.random.default_rng(8)
    folder = scratch / "incoming"
    folder.mkdir()
    for number in range(files):
        made = readings(rng, JUNE_US + number * HOUR_US // 4, HOUR_US // 4, rows)
        pq.write_table(made, folder / f"{number:05}.parquet", compression="zstd")
    samples = []
    for turn, order in measure.orders((BACKFILL, PLAIN), turns):
        name = f"taken_{turn}"
        table = site.ensure_table(name, SPEC)
        works = {
            BACKFILL: lambda name=name: backfill(site, name, [folder], spark=lambda: spark),
            PLAIN: lambda turn=turn: spark.read.parquet(str(folder)).write.parquet(
                str(scratch / f"copied-{turn}")
            ),
        }
        samples += [timed(contender, "backfill", turn, works[contender]) for contender in order]
        if table.state().totals.rows != files * rows:
            raise SystemExit("the backfill has lost rows, or has some twice")
    return samples


def lines(samples: list[Sample], task: str, base: str) -> list[list[str]]:
    """Return a task's part of the table."""
    mine = [sample for sample in samples if sample.task == task]
    return [
        [
            task,
            name,
            milliseconds(measure.median_s(mine, name)),
            milliseconds(measure.median_cpu_s(mine, name)),
            f"{measure.ratio(mine, name, base):.2f}",
        ]
        for name in dict.fromkeys(sample.contender for sample in mine)
    ]


def main() -> None:
    """Run both parts and write the section."""
    parser = measure.options(__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=6, help="how many rounds are taken")
    options = parser.parse_args()
    hours, rows, files = (6, 60_000, 12) if options.quick else (240, 10_000_000, 1_000)
    turns = 2 if options.quick else options.turns
    file_rows = 1_000 if options.quick else 10_000
    scratch = Path(tempfile.mkdtemp(prefix="thermocline-bench-"))
    spark = session("local[*]", memory="2g")
    try:
        catalog = Catalog(str(scratch / "lake"))
        catalog.make_folder()
        catalog.create_lake("a journal")
        with JobWorkspace(scratch / "lake") as site, measure.Noise() as noise:
            samples = rollups(site, spark, scratch, hours=hours, rows=rows, turns=turns)
            measure.await_quiet(options.patience)
            samples += backfills(site, spark, scratch, files=files, rows=file_rows, turns=turns)
    finally:
        stop(spark)
        shutil.rmtree(scratch)
    import pyspark

    headers = ["task", "contender", "ms", "CPU ms", "times"]
    table = measure.markdown_table(
        headers, [*lines(samples, "rollup", EVERYTHING), *lines(samples, "backfill", PLAIN)]
    )
    times = measure.ratio(samples, ONE_HOUR, EVERYTHING, "rollup")
    verdict = measure.verdict(times, TIMES_MAX, at_most=True)
    body = [
        "## Rollup and backfill",
        "",
        measure.provenance("rollup.py", {"pyspark": pyspark.__version__}),
        noise.line(),
        f"Rollup: {rows:,} rows in {hours:,} hours, {LATE_ROWS:,} late ones in one of them.",
        f"Backfill: {files:,} Parquet files of {file_rows:,} rows.",
        f"`times` is as many times as long as `{EVERYTHING}`, and as `{PLAIN}`.",
        "",
        table,
        "",
        f"At most {TIMES_MAX} times a full recompute: {times:.2f}, {verdict}.",
    ]
    measure.write_section(options.results, "rollup", "\n".join(body))
    print("\n".join(body))


if __name__ == "__main__":
    main()
