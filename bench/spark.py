"""Times the source and the sink on Spark beside Spark's own Parquet and Delta Lake.

In:   how many rows; Delta Lake's jars, which Maven fetches
Out:  the section "spark" of the results: append, read, compaction, streaming sink

- All contenders run in one Spark session, on the same rows, in turns.
- The read through Spark's own reader is to take at most 1.1 times what Spark takes for the same
  files when it is handed their paths and their schema. Both are planned anew for each turn.
- A compaction is of a table of small files, made anew for each turn. Ours is the job: sorted, its
  rows compared before and after. Delta Lake's is `OPTIMIZE`, which only joins files; Spark's own is
  a read, a sort and a write. `compact.py` has DuckDB to compare with.
- A streaming sink takes files of a folder, one a batch; its query is started anew for each turn.
- What each contender holds in the end is counted: who lost a row is not timed, but stopped.
- Delta Lake needs jars made for one release of Spark, and there are none for ours. With `--delta`
  all contenders run on the newest Spark that it has jars for, which is installed beside ours.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

import measure
import peers
import thermocline as tc
from thermocline.cold.compact.plan import CompactionLimits
from thermocline.cold.compact.rewrite import compact
from thermocline.pipeline.compact.job import spark_kernel
from thermocline.pipeline.run.job import ignore_progress

READ_MAX = 1.1
FETCH_LIMIT_S = 300
DELTA = "delta-spark_4.2_2.13:4.4.0"
DELTA_PEER = "spark-4.2"
DELTA_SPARK = peers.PEERS[DELTA_PEER][0].rpartition("=")[2]
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId>
<artifactId>bench</artifactId><version>1</version><dependencies><dependency>
<groupId>io.delta</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
<exclusions><exclusion><groupId>org.apache.spark</groupId><artifactId>*</artifactId></exclusion>
<exclusion><groupId>org.scala-lang</groupId><artifactId>*</artifactId></exclusion>
</exclusions></dependency></dependencies></project>"""
TASKS_ASKED = ("narrow", "wide")
NARROW = "sum(price)"
WIDE = "sum(price), max(symbol), min(venue), sum(size), max(bid), min(ask), max(ts)"
SYMBOLS = 64
FIRST_US = 1_717_200_000_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """How large the bench is."""

    rows: int
    files: int
    appended: int
    batches: int
    small: int
    turns: int


def main() -> None:
    """Time all contenders and write the section; Delta Lake's is of a Spark that it is made for."""
    parser = measure.options(__doc__ or "")
    parser.add_argument("--delta", action="store_true", help="beside Delta Lake, on its Spark")
    given = parser.parse_args()
    if given.delta and pyspark.__version__ != DELTA_SPARK:
        peers.install(DELTA_PEER)
        again = [sys.executable, *sys.argv]
        sys.exit(subprocess.run(again, env=peers.environment(DELTA_PEER), check=False).returncode)
    options = Options(4_000_000, 16, 1_000_000, 5, 100, turns=5)
    if given.quick:
        options = Options(100_000, 4, 20_000, 2, 8, turns=2)
    with tempfile.TemporaryDirectory(prefix="thermocline-bench-") as folder:
        bench = Bench(Path(folder), options, is_beside_delta=given.delta)
        settings = {}
        if given.delta:
            settings = {"spark.jars": fetched(Path(folder) / "jars"), **DELTA_SETTINGS}
        spark = tc.spark.session("local[2]", memory="3g", settings=settings)
        bench.begin(spark)
        with measure.Noise() as noise:
            samples = bench.measured(given.patience)
        tc.spark.stop(spark)
    place = f"Spark {pyspark.__version__}"
    told = f"On {place}, the newest that Delta Lake ({DELTA}) is made for." if given.delta else ""
    body = section(samples, options, noise, told)
    print(body)
    measure.write_section(given.results, "spark_delta" if given.delta else "spark", body)


def fetched(folder: Path) -> str:
    """Return the paths of Delta Lake's jars."""
    artifact, version = DELTA.split(":")
    folder.mkdir(exist_ok=True)
    (folder / "pom.xml").write_text(POM.format(artifact=artifact, version=version))
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    measure.progress(f"fetching {DELTA}")
    subprocess.run(command, cwd=folder, check=True, timeout=FETCH_LIMIT_S)
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def prices(first: int, count: int) -> pa.Table:
    """Return rows, each a millisecond after the one before it."""
    numbers = np.arange(first, first + count)
    draw = np.random.default_rng(first)
    price = 100 + draw.standard_normal(count).cumsum() / 100
    return pa.table(
        {
            "ts": pa.array(FIRST_US + numbers * 1_000, pa.timestamp("us", tz="UTC")),
            "symbol": pa.array(np.char.add("S", (numbers % SYMBOLS).astype(str))),
            "venue": pa.array(np.char.add("V", (numbers % 7).astype(str))),
            "price": pa.array(price.round(2)),
            "bid": pa.array((price - 0.01).round(2)),
            "ask": pa.array((price + 0.01).round(2)),
            "size": pa.array(draw.integers(1, 1_000, count)),
        }
    )


class Bench:
    """The rows of all contenders, and what each does with them."""

    def __init__(self, folder: Path, options: Options, *, is_beside_delta: bool) -> None:
        self.folder = folder
        self.options = options
        self.is_beside_delta = is_beside_delta
        self.samples: list[measure.Sample] = []

    def begin(self, spark: Any) -> None:
        """Make the tables and the files that are read."""
        self.spark = spark
        measure.progress("making rows")
        each = self.options.rows // self.options.files
        self.table = self.made("read")
        for number in range(self.options.files):
            self.table.append(prices(number * each, each))
        self.paths = [
            self.table.cold.storage.locate(one.path, one.file_size, one.checksum)
            for one in self.table.cold.state().segments
        ]
        self.schema = spark.read.parquet(self.paths[0]).schema
        if self.is_beside_delta:
            frame = spark.read.schema(self.schema).parquet(*self.paths)
            frame.write.format("delta").save(f"{self.folder}/delta-read")
        pq.write_table(prices(0, self.options.appended), f"{self.folder}/input.parquet")
        self.small = self.made("small")
        for number in range(self.options.small):
            self.small.append(prices(number * self.each(), self.each()))
        (self.folder / "incoming").mkdir()
        for number in range(self.options.batches):
            some = prices(number * 100_000, self.options.appended // 10)
            pq.write_table(some, self.folder / "incoming" / f"{number}.parquet")

    def each(self) -> int:
        """Return the rows of a small file."""
        return self.options.appended // self.options.small

    def made(self, name: str) -> tc.TimeSeriesTable:
        """Return a new table."""
        return tc.TimeSeriesTable.create(
            self.folder / name, time_column="ts", bucket="1h", overlap="allow"
        )

    def measured(self, patience_s: float) -> list[measure.Sample]:
        """Let all contenders take turns; the first turn warms up and is not counted."""
        for turn in range(-1, self.options.turns):
            measure.await_quiet(patience_s)
            measure.progress(f"round {turn + 1} of {self.options.turns}")
            for name in self.turns_of(["spark.read.parquet", "fast", "format"], turn):
                for task, columns in (("narrow", NARROW), ("wide", WIDE)):
                    self.timed(name, task, turn, lambda n=name, c=columns: self.read(n, c))
            works = {"append": self.append, "compact": self.compact, "stream": self.stream}
            for task, work in works.items():
                for name in self.turns_of(["thermocline", "parquet"], turn):
                    if task == "compact":
                        self.scatter(name, turn)
                    measure.settle()
                    self.timed(name, task, turn, lambda n=name, t=turn, w=work: w(n, t))
                    self.check(name, task, turn)
        return self.samples

    def turns_of(self, names: list[str], turn: int) -> list[str]:
        """Return who does a task, beginning with another one each turn."""
        names = [*names, *(["delta"] if self.is_beside_delta else [])]
        step = turn % len(names)
        return [*names[step:], *names[:step]]

    def timed(self, name: str, task: str, turn: int, work: Callable[[], object]) -> None:
        """Time one contender's go at a task."""
        cpu_s, started_s = measure.tree_cpu_s(), time.perf_counter()
        work()
        wall_s = time.perf_counter() - started_s
        if turn >= 0:
            took_s = measure.tree_cpu_s() - cpu_s
            self.samples.append(measure.Sample(name, task, turn, wall_s, took_s))

    def read(self, name: str, columns: str) -> object:
        """Ask for sums over all rows."""
        if name == "fast":
            frame = tc.spark.read(self.spark, self.table)
        elif name == "format":
            frame = self.spark.read.format("thermocline").load(self.table.root())
        elif name == "delta":
            frame = self.spark.read.format("delta").load(f"{self.folder}/delta-read")
        else:
            frame = self.spark.read.schema(self.schema).parquet(*self.paths)
        found = frame.selectExpr("count(*)", *(part.strip() for part in columns.split(", ")))
        rows = found.collect()[0]
        assert rows[0] == self.options.rows // self.options.files * self.options.files
        return rows

    def append(self, name: str, turn: int) -> None:
        """Write a frame into a new table."""
        place = f"{self.folder}/{name}-append-{turn}"
        made = {"timeColumn": "ts", "bucket": "1h"} if name == "thermocline" else {}
        frame = self.spark.read.schema(self.schema).parquet(f"{self.folder}/input.parquet")
        frame.write.format(name).mode("append").options(**made).save(place)

    def scatter(self, name: str, turn: int) -> None:
        """Make a table of small files, for a compaction to be timed."""
        place = self.folder / f"{name}-compact-{turn}"
        if name == "thermocline":
            shutil.copytree(self.small.root(), place)
        elif name == "delta":
            frame = self.spark.read.schema(self.schema).parquet(*self.small_paths())
            frame.repartition(self.options.small).write.format("delta").save(str(place))

    def small_paths(self) -> list[str]:
        """Return the small files that are to be made few."""
        storage, state = self.small.cold.storage, self.small.cold.state()
        return [storage.locate(one.path, one.file_size, one.checksum) for one in state.segments]

    def compact(self, name: str, turn: int) -> None:
        """Make few files of many."""
        place = f"{self.folder}/{name}-compact-{turn}"
        if name == "thermocline":
            table = tc.TimeSeriesTable.open(place).cold
            wanted = [segment.segment_id for segment in table.state().segments]
            compact(
                table, wanted, spark_kernel(lambda: self.spark), CompactionLimits(), ignore_progress
            )
        elif name == "delta":
            self.spark.sql(f"optimize delta.`{place}`").collect()
        else:
            frame = self.spark.read.schema(self.schema).parquet(*self.small_paths())
            frame.orderBy("ts").write.parquet(place)

    def stream(self, name: str, turn: int) -> None:
        """Let a query write each file of a folder as one batch."""
        place = f"{self.folder}/{name}-stream-{turn}"
        made = {"timeColumn": "ts", "bucket": "1h", "overlap": "allow"}
        reading = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", "1")
        writing = (
            reading.parquet(f"{self.folder}/incoming")
            .writeStream.format(name)
            .options(checkpointLocation=f"{place}-checkpoint")
        )
        if name == "thermocline":
            writing = writing.options(**made)
        writing.trigger(availableNow=True).start(place).awaitTermination()

    def check(self, name: str, task: str, turn: int) -> None:
        """Count what was written, and remove it."""
        wanted = self.options.appended
        if task == "stream":
            wanted = self.options.batches * (self.options.appended // 10)
        elif task == "compact":
            wanted = self.each() * self.options.small
        place = f"{self.folder}/{name}-{task}-{turn}"
        # What was only ever appended to is all in its files.
        kind = name if name == "thermocline" or task == "compact" else "parquet"
        found = self.spark.read.format(kind).load(place).count()
        if found != wanted:
            sys.exit(f"{name} has {found:,} rows of {wanted:,} after {task}")
        shutil.rmtree(place)


def section(
    samples: list[measure.Sample], options: Options, noise: measure.Noise, delta: str
) -> str:
    """Return the section of the results."""
    rows = []
    for task, base in (
        ("narrow", "spark.read.parquet"),
        ("wide", "spark.read.parquet"),
        ("append", "parquet"),
        ("compact", "parquet"),
        ("stream", "parquet"),
    ):
        for name in dict.fromkeys(s.contender for s in samples if s.task == task):
            ratio = measure.ratio(samples, name, base, task)
            is_asked = name == "fast" and task in TASKS_ASKED
            rows.append(
                [
                    f"{task}, {name}",
                    measure.milliseconds(measure.median_s(samples, name, task)),
                    measure.milliseconds(measure.median_cpu_s(samples, name, task)),
                    f"{ratio:.2f}",
                    measure.verdict(ratio, READ_MAX, at_most=True) if is_asked else "",
                ]
            )
    fast = {
        task: measure.ratio(samples, "fast", "spark.read.parquet", task) for task in TASKS_ASKED
    }
    verdicts = [
        f"{task} {ratio:.2f}, {measure.verdict(ratio, READ_MAX, at_most=True)}"
        for task, ratio in fast.items()
    ]
    return "\n\n".join(
        [
            "## Spark beside Delta Lake" if delta else "## Spark",
            measure.provenance("spark.py", {"pyspark": pyspark.__version__}),
            noise.line(),
            *([delta] if delta else []),
            described(options),
            measure.markdown_table(["task, contender", "ms", "CPU ms", "ratio", ""], rows),
            f"At most {READ_MAX} times Spark's own read: {'; '.join(verdicts)}.",
        ]
    )


def described(options: Options) -> str:
    """Return what was timed."""
    return (
        f"Reads of {options.rows:,} rows in {options.files} files, sums of one column (narrow) and "
        "of all (wide): `fast` is `tc.spark.read`, `format` is `format('thermocline')`; of `fast`, "
        f"at most {READ_MAX} times Spark's own read of the same files is asked. Appends of "
        f"{options.appended:,} rows; compactions of as many in {options.small} files, sorted by "
        f"time but for Delta Lake's; streams of {options.batches} batches of "
        f"{options.appended // 10:,}. Medians of {options.turns}; ratios to Spark's own Parquet, "
        "which has no log and syncs nothing."
    )


if __name__ == "__main__":
    main()
