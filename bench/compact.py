"""Times the compaction of 200 small segments against DuckDB and against Spark's own sort.

In:   ten million readings of a thousand devices, in 200 files as flushes leave them
Out:  the section "compact" of the results

- `thermocline` is the job as it runs: chosen from the log, merged, sorted, written and read back in
  Spark's workers, its rows compared before and after, and committed. `one process` is the same
  without Spark.
- `duckdb` reads the same files in one process, sorts by device and time and writes one Parquet
  file; `duckdb, sliced` sorts within the stretches of time that the job cuts, too. Neither measures
  coverage, compares rows or syncs.
- `spark` reads, sorts and writes by Spark's own operators.
- One session on all cores of this machine, warm. Contenders take turns, and the table is restored
  before each of them.
- The rows must say the same after every run, or the bench fails.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyspark

import measure
from measure import Sample, milliseconds
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.compact.plan import CompactionGroup, CompactionLimits, plan_slices
from thermocline.cold.compact.rewrite import MergeKernel, compact, merge_here
from thermocline.cold.segment.row_digest import digest_rows
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.format.bucket import Bucket
from thermocline.format.log.action import TableSpec
from thermocline.pipeline.compact.job import spark_kernel
from thermocline.pipeline.run.job import ignore_progress
from thermocline.pipeline.spark.session import session, stop

JUNE_US = 1_717_200_000_000_000
FLUSH_US = 300_000_000
DEVICES, MESSAGES = 1_000, 50
JOB, HERE, DUCK, SLICED, SPARK = "thermocline", "one process", "duckdb", "duckdb, sliced", "spark"
TIMES_MAX = 1.5


def flushed(rng: np.random.Generator, number: int, rows: int) -> pa.Table:
    """Return what one flush leaves: some minutes of all devices, sorted by device and time."""
    devices = rng.integers(0, DEVICES, rows)
    times = JUNE_US + number * FLUSH_US + rng.integers(0, FLUSH_US, rows)
    order = np.lexsort((times, devices))
    names = np.array([f"device-{device:05}" for device in range(DEVICES)])
    messages = np.array([f"state changed to {message}" for message in range(MESSAGES)])
    return pa.table(
        {
            "ts": pa.array(times[order], pa.timestamp("us", tz="UTC")),
            "device": names[devices[order]],
            "value": np.round(rng.normal(20, 5, rows), 2),
            "status": rng.integers(0, 5, rows).astype(np.int32),
            "message": messages[rng.integers(0, MESSAGES, rows)],
        }
    )


def made(folder: Path, files: int, rows: int) -> ColdTable:
    """Return a table of small segments."""
    table = ColdTable(LocalStorage(str(folder)))
    table.create(TableSpec("", "ts", Bucket(60), ("device",), "allow"))
    rng = np.random.default_rng(7)
    for number in range(files):
        table.append(flushed(rng, number, rows).to_reader(), AppendOptions())
    return table


def compacted(table: ColdTable, kernel: MergeKernel) -> None:
    """Compact all of a table."""
    wanted = [segment.segment_id for segment in table.state().segments]
    done = compact(table, wanted, kernel, CompactionLimits(), ignore_progress)
    if done.version is None:
        raise SystemExit("nothing was compacted")


def sorted_by_duckdb(table: ColdTable, target: Path, *, is_sliced: bool) -> None:
    """Merge and sort the files of a table in this process."""
    state = table.state()
    files = [f"{table.storage.root}/{segment.path}" for segment in state.segments]
    order = "device, ts"
    if is_sliced:
        ordered = sorted(state.segments, key=lambda segment: segment.ts_min)
        cuts = plan_slices(table, state, CompactionGroup(tuple(ordered)), CompactionLimits())
        ends = [piece.window.end for piece in cuts if piece.window.end is not None]
        order = (
            " + ".join(["0::int", *(f"(epoch_ns(ts) >= {end})::int" for end in ends)])
            + f", {order}"
        )
    with duckdb.connect() as engine:
        engine.execute(
            f"copy (select * from read_parquet({files}) order by {order}) "
            f"to '{target}' (format parquet, compression zstd)"
        )


def sorted_by_spark(spark, table: ColdTable, target: Path) -> None:
    """Merge and sort the files of a table by Spark's own operators."""
    files = [f"{table.storage.root}/{segment.path}" for segment in table.state().segments]
    spark.read.parquet(*files).orderBy("device", "ts").write.parquet(str(target))


def timed(contender: str, turn: int, work: Callable[[], object]) -> Sample:
    """Return one timed run."""
    measure.settle()
    # A worker of Spark that ends takes its time with it: what runs here is counted here.
    spent_s = measure.tree_cpu_s if contender in (JOB, SPARK) else time.process_time
    cpu_s, start_s = spent_s(), time.monotonic()
    work()
    wall_s = time.monotonic() - start_s
    sample = Sample(contender, "compact", turn, wall_s, spent_s() - cpu_s)
    measure.progress(f"{contender}, round {turn + 1}: {wall_s:.2f} s, CPU {sample.cpu_s:.2f} s")
    return sample


def compare(table: ColdTable, spark, scratch: Path, turns: int, patience_s: float) -> list[Sample]:
    """Time all contenders in turn, on the table as it was at first."""
    first = table.state().version
    before = digest_rows(table.read(table.state(), None))
    works: dict[str, Callable[[Path], object]] = {
        JOB: lambda _: compacted(table, spark_kernel(lambda: spark)),
        HERE: lambda _: compacted(table, merge_here),
        DUCK: lambda target: sorted_by_duckdb(table, target, is_sliced=False),
        SLICED: lambda target: sorted_by_duckdb(table, target, is_sliced=True),
        SPARK: lambda target: sorted_by_spark(spark, table, target),
    }
    compacted(table, spark_kernel(lambda: spark))  # workers are up and have imported all they need
    samples = []
    for turn, order in measure.orders(tuple(works), turns):
        for name in order:
            table.restore(first)
            measure.await_quiet(patience_s)
            target = scratch / f"{name}-{turn}"
            samples.append(timed(name, turn, lambda name=name, target=target: works[name](target)))
            if digest_rows(table.read(table.state(), None)) != before:
                raise SystemExit(f"the rows say something else after {name}")
            shutil.rmtree(target, ignore_errors=True)
            target.unlink(missing_ok=True)
    return samples


def main() -> None:
    """Run the comparison and write the section."""
    parser = measure.options(__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="rounds")
    options = parser.parse_args()
    files, rows = (20, 5_000) if options.quick else (200, 50_000)
    scratch = Path(tempfile.mkdtemp(prefix="thermocline-bench-"))
    spark = session("local[*]", memory="2g")
    try:
        table = made(scratch / "table", files, rows)
        size_bytes = table.state().totals.size_bytes
        with measure.Noise() as noise:
            samples = compare(table, spark, scratch, options.turns, options.patience)
    finally:
        stop(spark)
        shutil.rmtree(scratch)
    lines = [
        [
            name,
            milliseconds(measure.median_s(samples, name)),
            milliseconds(measure.median_cpu_s(samples, name)),
            f"{measure.ratio(samples, name, DUCK):.2f}",
        ]
        for name in (JOB, HERE, DUCK, SLICED, SPARK)
    ]
    times = measure.ratio(samples, JOB, DUCK)
    verdict = measure.verdict(times, TIMES_MAX, at_most=True)
    body = [
        "## Compaction",
        "",
        measure.provenance("compact.py", {"pyspark": pyspark.__version__}),
        noise.line(),
        "",
        f"{files} files, {files * rows:,} rows, {size_bytes / 1e6:,.0f} MB.",
        f"`times` is as many times as long as `{DUCK}`:",
        "",
        measure.markdown_table(["contender", "ms", "CPU ms", "times"], lines),
        "",
        f"At most {TIMES_MAX} times DuckDB: {times:.2f}, {verdict}.",
    ]
    measure.write_section(options.results, "compact", "\n".join(body))
    print("\n".join(body))


if __name__ == "__main__":
    main()
