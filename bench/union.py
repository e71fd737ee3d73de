"""Times queries over rows that are hot, the snapshot they begin with, replay and group commit.

In:   days of `fhvhv`, lakes of `unions`
Out:  the section "union" of the results

- The same rows are asked twice: with the last 64 MB of them hot, written in small pieces, and with
  everything flushed. Both answers must be the same, or the bench fails.
- A snapshot is timed at several amounts of hot rows: its cost must not depend on them.
- Replay is timed in a fresh process that has its imports done; the number of rows that came back
  is compared with what was written. A killed process would leave the same files.
- Group commit is compared with the same threads let in one at a time, on the same journal.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

import fhvhv
import measure
from measure import Sample, milliseconds
from queries import difference, queries
from unions import TABLE
from worker import Worker

HOT, COLD = "cold + hot", "all cold"
UNION_MAX = 1.2
FLAT_MAX_S = 0.001
REPLAY_MAX_S = 2.0
MB = 1 << 20
SNAPSHOTS = 200
PREPARED = 5
THREADS = (1, 4, 16, 64)
TOGETHER, ALONE = "together", "one at a time"
REPLAY_TITLE = (
    "Opening a lake whose journal holds all the hot rows; `MB of files` is what the journal has "
    "on disk, compressed:"
)
GROUP_TITLE = (
    "Group commit, 10 rows a write, a sync before each answer; `one at a time` lets one caller "
    "in, so that each write has a sync of its own:"
)
WAYS = {"lake": "whole writes", "journal": "the journal alone"}


def asked(days: int) -> dict[str, str]:
    """Return the queries by name, over so many days and the one after them."""
    texts = {f"{q.name} {q.title}": q.duckdb_sql(TABLE) for q in queries(days + 1)[2:]}
    midnight = f"timestamp '{fhvhv.FIRST_DAY}' + interval {days} day"
    around = f"{midnight} - interval 1 hour and {midnight} + interval 1 hour"
    four = 'pickup_datetime, "PULocationID", trip_miles, base_passenger_fare'
    texts["2 h, half of them hot"] = (
        f"select {four} from {TABLE} where pickup_datetime between {around}"
    )
    return texts


def union(options: argparse.Namespace, days: list[fhvhv.Day], folder: Path) -> str:
    """Time the queries over both lakes and return the tables."""
    cold, last = [str(day.path) for day in days[:-1]], str(days[-1].path)
    samples: list[Sample] = []
    with Worker("unions", "thermocline") as hot, Worker("unions", "thermocline") as flushed:
        workers = {HOT: hot, COLD: flushed}
        for place, worker in enumerate(workers.values()):
            worker.call("make", root=str(folder / f"union-{place}"), cold=cold)
            made = worker.call(
                "grow", path=last, rows_a_write=100, hot_bytes=options.hot_mb * MB
            ).value
        flushed.call("flush")
        texts = asked(len(cold))
        for name, text in texts.items():
            _compare(workers, name, text, folder)
            for turn, order in measure.orders(list(workers), options.turns):
                measure.await_quiet(options.patience)
                for contender in order:
                    workers[contender].call("forget")
                    done = workers[contender].call("run", text=text)
                    samples.append(Sample(contender, name, turn, done.wall_s, done.cpu_s))
            measure.progress(f"{name} timed {options.turns} times")
    setup = (
        f"{sum(day.rows for day in days[:-1]):,} rows of 24 columns in {len(cold)} segments, and "
        f"{made['rows']:,} rows that came in {made['writes']:,} writes: hot they are "
        f"{made['hot_bytes'] / MB:.1f} MB of Arrow memory in {made['parts']} parts, flushed they "
        f"are segments by hour. {options.turns} rounds in turns."
    )
    return setup + "\n\n" + _union_table(samples, list(texts))


def _compare(workers: dict[str, Worker], name: str, text: str, folder: Path) -> None:
    """Warm both up with a query; their answers must be the same."""
    answers = []
    for place, worker in enumerate(workers.values()):
        path = folder / f"answer-{place}.arrow"
        worker.call("run", text=text)
        worker.call("keep", path=str(path))
        with pa.OSFile(str(path), "rb") as source:
            answers.append(pa.ipc.open_file(source).read_all())
    differs = difference(*answers)
    if differs:
        sys.exit(f"{name}: hot and cold differ in {differs}")


def _union_table(samples: Sequence[Sample], names: Sequence[str]) -> str:
    rows = []
    for name in names:
        times = measure.ratio(samples, HOT, COLD, name)
        of = [measure.median_s(samples, who, name) for who in (HOT, COLD)]
        cpus = [measure.median_cpu_s(samples, who, name) for who in (HOT, COLD)]
        met = measure.verdict(times, UNION_MAX, at_most=True)
        shown = [*map(milliseconds, of), f"{times:.3f}", met, f"{cpus[0] / cpus[1]:.3f}"]
        rows.append([name, *shown])
    headers = ["query", f"{HOT} ms", f"{COLD} ms", "ratio", f"at most {UNION_MAX}", "CPU ratio"]
    return measure.markdown_table(headers, rows)


def snapshots(options: argparse.Namespace, day: fhvhv.Day, folder: Path) -> str:
    """Time views and preparing at growing amounts of hot rows; return the table."""
    samples: list[Sample] = []
    sizes = sorted({1, max(1, options.hot_mb // 4), options.hot_mb})
    parts = {}
    with ExitStack() as stack:
        workers = {}
        for size in sizes:
            worker = stack.enter_context(Worker("unions", "thermocline"))
            worker.call("make", root=str(folder / f"snapshots-{size}"), cold=[])
            grown = {"rows_a_write": 100, "hot_bytes": size * MB}
            parts[size] = worker.call("grow", path=str(day.path), **grown).value["parts"]
            worker.call("prepare", count=PREPARED)
            workers[str(size)] = worker
        for turn, order in measure.orders(list(workers), options.turns):
            measure.await_quiet(options.patience)
            for name in order:
                for task, count in (("snapshots", SNAPSHOTS), ("prepare", PREPARED)):
                    done = workers[name].call(task, count=count)
                    cost = (done.wall_s / count, done.cpu_s / count)
                    samples.append(Sample(name, task, turn, *cost))
    rows = [
        [
            f"{size}",
            f"{parts[size]}",
            *(milliseconds(measure.median_s(samples, str(size), t)) for t in TASKS),
        ]
        for size in sizes
    ]
    headers = ["MB hot", "parts", *TASKS.values()]
    return measure.markdown_table(headers, rows) + "\n\n" + _flat(samples, sizes)


TASKS = {"snapshots": "an exact view, ms", "prepare": "preparing a query, ms"}


def _flat(samples: Sequence[Sample], sizes: Sequence[int]) -> str:
    said = []
    for task, title in TASKS.items():
        least, most = (measure.median_s(samples, str(size), task) for size in (sizes[0], sizes[-1]))
        met = measure.verdict(most - least, FLAT_MAX_S, at_most=True)
        said.append(f"{title.split(',')[0]} grows by {(most - least) * 1000:.3f} ms: {met}")
    flat = f"flat means at most {FLAT_MAX_S * 1000:.0f} ms more"
    return f"From {sizes[0]} to {sizes[-1]} MB {'; '.join(said)} ({flat})."


def replay(options: argparse.Namespace, day: fhvhv.Day, folder: Path) -> str:
    """Time opening a lake with a full journal, by the size of its writes; return the table."""
    rows = []
    for rows_a_write in (1_000, 100, 10):
        root = folder / f"replay-{rows_a_write}"
        with Worker("unions", "thermocline") as writer:
            writer.call("make", root=str(root), cold=[])
            grown = {"rows_a_write": rows_a_write, "hot_bytes": options.hot_mb * MB}
            made = writer.call("grow", path=str(day.path), **grown).value
            writer.call("leave")
        size_bytes = sum(path.stat().st_size for path in root.glob("journal/*.wal"))
        samples: list[Sample] = []
        for turn in range(options.replays):
            measure.await_quiet(options.patience)
            with Worker("unions", "thermocline") as worker:
                worker.call("make", root=str(folder / f"small-{rows_a_write}-{turn}"), cold=[])
                done = worker.call("open", root=str(root))
                if done.value != made["rows"]:
                    sys.exit(f"replay brought {done.value} rows back, of {made['rows']}")
                samples.append(Sample("open", str(rows_a_write), turn, done.wall_s, done.cpu_s))
                worker.call("leave")
        wall_s = measure.median_s(samples, "open")
        met = measure.verdict(wall_s, REPLAY_MAX_S, at_most=True)
        sizes = [f"{made['hot_bytes'] / MB:.1f}", f"{size_bytes / MB:.1f}"]
        cpu_s = measure.median_cpu_s(samples, "open")
        each = f"{wall_s / made['writes'] * 1e6:,.0f}"
        seconds = [f"{wall_s:.2f}", f"{cpu_s:.2f}", met, each]
        rows.append([f"{rows_a_write:,}", f"{made['writes']:,}", *sizes, *seconds])
        measure.progress(f"replay of {made['writes']:,} writes timed")
    headers = ["rows a write", "writes", "MB hot", "MB of files", "open s", "CPU s"]
    return measure.markdown_table([*headers, f"at most {REPLAY_MAX_S:.0f} s", "us a write"], rows)


def group_commit(options: argparse.Namespace, day: fhvhv.Day, folder: Path) -> str:
    """Count writes a second from many threads, together and one at a time; return the table."""
    found: dict[tuple[str, int, str], list[float]] = {}
    root = str(folder / "group")
    with Worker("unions", "thermocline") as worker:
        worker.call("make", root=root, cold=[])
        worker.call("grow", path=str(day.path), rows_a_write=100, hot_bytes=100_000)
        worker.call("leave")
        worker.call("open", root=root)
        for way, title in WAYS.items():
            for threads in THREADS:
                for _, order in measure.orders([TOGETHER, ALONE], options.rates):
                    measure.await_quiet(options.patience)
                    for name in order:
                        how = {"way": way, "alone": name == ALONE, "rows": 10}
                        timing = {"threads": threads, "seconds": options.seconds}
                        rate = worker.call("write", **how, **timing).value
                        found.setdefault((way, threads, name), []).append(rate)
            measure.progress(f"writes a second counted for {title}")
    rows = []
    for way, title in WAYS.items():
        for threads in THREADS:
            both = [found[way, threads, name] for name in (TOGETHER, ALONE)]
            samples = [
                Sample(name, "rate", turn, 1 / rate, 0.0)
                for name, rates in zip((TOGETHER, ALONE), both, strict=True)
                for turn, rate in enumerate(rates)
            ]
            shown = [f"{1 / measure.median_s(samples, name):,.0f}" for name in (TOGETHER, ALONE)]
            times = f"{measure.ratio(samples, ALONE, TOGETHER):.2f}"
            rows.append([title, f"{threads}", *shown, times])
    headers = ["what", "threads", f"{TOGETHER}, writes/s", f"{ALONE}, writes/s", "times"]
    return measure.markdown_table(headers, rows)


def _section(options: argparse.Namespace) -> str:
    days = fhvhv.days(options.days + 1, rows=options.rows)
    scratch = fhvhv.data_folder() / "scratch"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name, measure.Noise() as noise:
        folder = Path(name)
        united = union(options, days, folder)
        viewed = snapshots(options, days[-1], folder)
        replayed = replay(options, days[-1], folder)
        grouped = group_commit(options, days[-1], folder)
    parts = ["## Union", measure.provenance("union.py", {}), united]
    parts += ["What a query costs before it reads a row:", viewed]
    parts += [REPLAY_TITLE, replayed, GROUP_TITLE, grouped]
    return "\n\n".join([*parts, noise.line()])


def main() -> None:
    """Run the bench and write its section."""
    parser = measure.options(
        "Time queries over hot and cold rows, snapshots, replay, group commit."
    )
    parser.add_argument("--days", type=int, default=5, help="days that are cold in both lakes")
    parser.add_argument("--rows", type=int, default=fhvhv.ROWS_A_DAY, help="rows in each day")
    parser.add_argument("--hot-mb", type=int, default=64, help="megabytes that are hot")
    parser.add_argument("--turns", type=int, default=20, help="timed rounds")
    options = parser.parse_args()
    options.replays, options.rates, options.seconds = 5, 4, 1.0
    if options.quick:
        options.rows, options.hot_mb, options.turns = 20_000, 2, 3
        options.replays, options.rates, options.seconds = 1, 2, 0.1
    body = _section(options)
    measure.write_section(options.results, "union", body)
    print(body)


if __name__ == "__main__":
    main()
