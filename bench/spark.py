"""Times the source and the sink on Spark beside Spark's own Parquet and Delta Lake.

In:   how many rows; Delta Lake's jars, which Maven fetches
Out:  the section "spark" of the results: append, read, streaming sink

- All contenders run in one Spark session, on the same rows, in turns.
- The read through Spark's own reader is to take at most 1.1 times what Spark takes for the same
  files when it is handed their paths and their schema. Both are planned anew for each turn.
- A streaming sink takes files of a folder, one a batch; its query is started anew for each turn.
- What each contender holds in the end is counted: who lost a row is not timed, but stopped.
- Delta Lake needs jars made for one release of Spark. Where none of them runs on this one, the
  section says so, and has Spark's own Parquet sink to compare with.
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

import measure
import thermocline as tc

READ_MAX = 1.1
FETCH_LIMIT_S = 300
DELTA = ("delta-spark_4.3_2.13:4.5.0", "delta-spark_4.3_2.13:4.4.0", "delta-spark_4.2_2.13:4.4.0")
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
DELTA_TASKS = ("append", "stream", "read")
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
    turns: int


def main() -> None:
    """Fetch Delta Lake, time all contenders and write the section."""
    parser = measure.options(__doc__ or "")
    parser.add_argument("--without-delta", action="store_true", help="leave Delta Lake out")
    given = parser.parse_args()
    options = Options(4_000_000, 16, 1_000_000, 5, turns=5)
    if given.quick:
        options = Options(100_000, 4, 20_000, 2, turns=2)
    with tempfile.TemporaryDirectory(prefix="thermocline-bench-") as folder:
        bench = Bench(Path(folder), options)
        jars, release = ("", "") if given.without_delta else fetched(Path(folder) / "jars")
        spark, trouble = started(jars)
        bench.begin(spark, {task for task in DELTA_TASKS if task not in trouble})
        with measure.Noise() as noise:
            samples = bench.measured(given.patience)
        tc.spark.stop(spark)
    body = section(samples, options, noise, told(release, trouble))
    print(body)
    measure.write_section(given.results, "spark", body)


def fetched(folder: Path) -> tuple[str, str]:
    """Return the paths of Delta Lake's jars and their release; empty where Maven has none."""
    for release in DELTA:
        artifact, version = release.split(":")
        folder.mkdir(exist_ok=True)
        (folder / "pom.xml").write_text(POM.format(artifact=artifact, version=version))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        measure.progress(f"fetching {release}")
        try:
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, timeout=FETCH_LIMIT_S
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return ",".join(str(jar) for jar in sorted(folder.glob("*.jar"))), release
    return "", ""


def started(jars: str) -> tuple[Any, dict[str, str]]:
    """Return a session, with Delta Lake where there is one, and what of it does not work here."""
    if not jars:
        absent = "Maven has no jars of it"
        return tc.spark.session("local[2]", memory="3g"), dict.fromkeys(DELTA_TASKS, absent)
    settings = {"spark.jars": jars, **DELTA_SETTINGS}
    spark = tc.spark.session("local[2]", memory="3g", settings=settings)
    trouble = {}
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/probe"
        tries: dict[str, Callable[[], object]] = {
            "append": lambda: spark.range(1).write.format("delta").save(place),
            "stream": lambda: spark.range(1).write.format("delta").mode("append").save(place),
            "read": lambda: spark.read.format("delta").load(place).count(),
        }
        for task, work in tries.items():
            try:
                work()
            except Exception as error:  # noqa: BLE001  whatever an unfit jar throws
                lines = [line.strip() for line in str(error).splitlines()]
                found = [line for line in lines if "Error" in line or "Exception" in line]
                trouble[task] = (found or lines)[0].removeprefix(": ")[:100]
    if "read" in trouble:  # a stream reads the table's log before each batch but the first
        trouble.setdefault("stream", trouble["read"])
    return spark, trouble


def told(release: str, trouble: dict[str, str]) -> str:
    """Return the sentence about Delta Lake's part."""
    if not release:
        return "Delta Lake takes no part: Maven has no jars of it."
    if not trouble:
        return f"Delta Lake is {release}, on this Spark."
    why = "; ".join(f"{task}: {line}" for task, line in trouble.items())
    return (
        f"No Delta Lake is made for this Spark; the nearest, {release}, is timed where it works, "
        f"into a new table each time. Where it does not: {why}."
    )


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

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        self.options = options
        self.samples: list[measure.Sample] = []

    def begin(self, spark: Any, delta: set[str]) -> None:
        """Make the tables and the files that are read; `delta` is what Delta Lake takes part in."""
        self.spark = spark
        self.delta = delta
        measure.progress("making rows")
        each = self.options.rows // self.options.files
        self.table = self.made("read")
        for number in range(self.options.files):
            self.table.append(prices(number * each, each))
        self.paths = [
            self.table.lake.storage.locate(one.path, one.file_size)
            for one in self.table.lake.state().segments
        ]
        self.schema = spark.read.parquet(self.paths[0]).schema
        if "read" in delta:
            frame = spark.read.schema(self.schema).parquet(*self.paths)
            frame.write.format("delta").save(f"{self.folder}/delta-read")
        pq.write_table(prices(0, self.options.appended), f"{self.folder}/input.parquet")
        (self.folder / "incoming").mkdir()
        for number in range(self.options.batches):
            some = prices(number * 100_000, self.options.appended // 10)
            pq.write_table(some, self.folder / "incoming" / f"{number}.parquet")

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
            for name in self.turns_of("read", ["spark.read.parquet", "fast", "format"], turn):
                for task, columns in (("narrow", NARROW), ("wide", WIDE)):
                    self.timed(name, task, turn, lambda n=name, c=columns: self.read(n, c))
            for task, work in (("append", self.append), ("stream", self.stream)):
                for name in self.turns_of(task, ["thermocline", "parquet"], turn):
                    measure.settle()
                    self.timed(name, task, turn, lambda n=name, t=turn, w=work: w(n, t))
                    self.check(name, task, turn)
        return self.samples

    def turns_of(self, task: str, names: list[str], turn: int) -> list[str]:
        """Return who does a task, beginning with another one each turn."""
        names = [*names, *(["delta"] if task in self.delta else [])]
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
        place = f"{self.folder}/{name}-{task}-{turn}"
        # What was only ever appended to is all in its files.
        kind = "thermocline" if name == "thermocline" else "parquet"
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
        ("stream", "parquet"),
    ):
        for name in dict.fromkeys(s.contender for s in samples if s.task == task):
            ratio = measure.ratio(samples, name, base, task)
            is_asked = name == "fast" and task in ("narrow", "wide")
            rows.append(
                [
                    f"{task}, {name}",
                    measure.milliseconds(measure.median_s(samples, name, task)),
                    measure.milliseconds(measure.median_cpu_s(samples, name, task)),
                    f"{ratio:.2f}",
                    measure.verdict(ratio, READ_MAX, at_most=True) if is_asked else "",
                ]
            )
    import pyspark

    return "\n\n".join(
        [
            "## Spark: append, read, streaming sink",
            measure.provenance("spark.py", {"pyspark": pyspark.__version__}),
            noise.line(),
            delta,
            described(options),
            measure.markdown_table(["task, contender", "ms", "CPU ms", "ratio", ""], rows),
        ]
    )


def described(options: Options) -> str:
    """Return what was timed."""
    return (
        f"Reads of {options.rows:,} rows in {options.files} files, sums of one column (narrow) and "
        "of all (wide): `fast` is `tc.spark.read`, `format` is `format('thermocline')`; of `fast`, "
        f"at most {READ_MAX} times Spark's own read of the same files is asked. Appends of "
        f"{options.appended:,} rows; streams of {options.batches} batches of "
        f"{options.appended // 10:,}. Medians of {options.turns}; ratios to Spark's own Parquet, "
        "which has no log and syncs nothing."
    )


if __name__ == "__main__":
    main()
