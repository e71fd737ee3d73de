"""Times what must not grow with the work: wide rows, long decades, many entities, many segments.

In:   pieces of work of `growers`, days of `fhvhv` for appends and scans
Out:  the section "growth" of the results

- Each run is in a fresh process. What the call needs is made before the clock starts.
- `first` is the first call of a process, which also pays for late imports and cold caches;
  `again` is the same call repeated, where repeating it means something.
- A limit in seconds is for a quiet machine; CPU time tells more on a loaded one.
- A library that cannot do a piece of work has no figure.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import append
import fhvhv
import measure
import peers
import scan
from measure import Sample, milliseconds
from queries import queries
from worker import Worker

OURS, THEIRS = "thermocline", "ttf-0.9.0"
NAMES = (OURS, THEIRS)
AGAIN = ", again"
REPEATS = 3
MB_MAX = 400.0
COPY_TIMES_MAX = 1.3
THREADS_TIMES_MIN = 2.0
SCANNED = (scan.WRITTEN, "deltalake", THEIRS)
SCAN_DAYS_MIN = 3


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work: its size, its size when quick, and its limit in seconds, if it has one."""

    name: str
    title: str
    size: int
    quick: int
    limit_s: float | None = None
    repeats: bool = False


TASKS = (
    Task("wide append", "10 rows to {:,} columns", 10_000, 200, 0.5),
    Task("decade append", "{:,} rows, a minute apart, buckets of 1 s", 5_300_000, 20_000, 3.0),
    Task("last full window", "newest whole 6 h of {:,} lone seconds", 5_300_000, 20_000, 0.5),
    Task("entity append", "5 rows of each of {:,} entities", 200_000, 2_000, 1.5),
    Task("entity gaps", "first gaps of {:,} entities", 200_000, 2_000, 1.0),
    Task("delete where", "delete(where) in {:,} segments", 2_000, 20, 2.0),
    Task("count", "count(*) of {:,} segments", 2_000, 20, None, repeats=True),
    Task("sum", "sum(value) of {:,} segments", 2_000, 20, None, repeats=True),
    Task("count of many", "count(*) of {:,} segments", 10_000, 30, 0.1, repeats=True),
    Task("limit of many", "limit 10 of {:,} segments", 10_000, 30, 0.1, repeats=True),
    Task("one thread", "{:,} writes of 10 rows, 1 thread", 2_000, 32),
    Task("sixteen threads", "{:,} writes of 10 rows, 16 threads", 4_000, 64),
)


def grow_all(
    names: Sequence[str], turns: int, folder: Path, *, is_quick: bool, patience_s: float
) -> tuple[list[Sample], dict[str, list[float]]]:
    """Return the samples of every task, and figures beside time: memory and sidecars."""
    samples: list[Sample] = []
    beside: dict[str, list[float]] = {"mb": [], "sidecar": []}
    for task in TASKS:
        size = task.quick if is_quick else task.size
        for turn, order in measure.orders(names, turns):
            measure.await_quiet(patience_s)
            answers = {}
            for name in order:
                with tempfile.TemporaryDirectory(dir=folder) as place, _worker(name) as worker:
                    if task.name not in worker.call("tasks").value:
                        continue
                    worker.call("ready", task=task.name, folder=place, size=size)
                    answers[name] = _run(worker, task, turn, samples)
                    if name == OURS and task.name.startswith("entity"):
                        beside["mb"].append(worker.call("peak_mb").value)
                    if name == OURS and task.name == "entity append":
                        beside["sidecar"].append(worker.call("sidecar_share").value)
            if len(set(answers.values())) > 1:
                sys.exit(f"{task.name}: the answers differ: {answers}")
        measure.progress(f"{task.name} timed")
    return samples, beside


def report(samples: Sequence[Sample], beside: Mapping[str, list[float]], is_quick: bool) -> str:
    """Return the table of tasks, and the table of figures that are not seconds."""
    rows = []
    for task in TASKS:
        title = task.title.format(task.quick if is_quick else task.size)
        for kind, name in (("", task.name), (AGAIN, task.name + AGAIN)):
            if any(s.task == name and s.contender == OURS for s in samples):
                rows.append([title + kind, *_cells(samples, task, name)])
    headers = ["work", "ms", "quartiles", "CPU ms", f"{THEIRS} ms", "limit ms", ""]
    return "\n\n".join([measure.markdown_table(headers, rows), _targets(samples, beside, is_quick)])


def time_append(days: Sequence[fhvhv.Day], folder: Path, patience_s: float) -> str:
    """Return what appending a day costs against copying it and decoding its time column."""
    names = [OURS, "floor"]
    folders = append.durability(OURS, days[0], folder)
    samples, _ = append.append_all(names, days, folder, patience_s)
    times = measure.ratio(samples, OURS, "floor")
    met = measure.verdict(times, COPY_TIMES_MAX, at_most=True)
    walls = [milliseconds(measure.median_s(samples, name)) for name in names]
    row = [f"append of a day of {days[0].rows:,} rows", *walls, f"{times:.2f}"]
    headers = ["work", "ms", "copy and decode ms", "times", "limit", ""]
    table = measure.markdown_table(headers, [[*row, f"{COPY_TIMES_MAX}", met]])
    return f"{table}\n\nDurable when the append returns: {folders}."


def time_scans(days: Sequence[fhvhv.Day], folder: Path, options: argparse.Namespace) -> str:
    """Return q1 to q6 on files that each contender wrote itself."""
    asked = queries(len(days))
    with ExitStack() as stack:
        workers = {}
        for name in SCANNED:
            root = folder / f"scan-{name}"
            scan.build(name, days, root)
            peer = name if name in peers.PEERS else None
            workers[name] = stack.enter_context(Worker("scanners", name, peer=peer))
            workers[name].call("open", place={"root": str(root), "files": []})
        samples, rows = scan.scan_all(workers, asked, folder, options)
    lines = []
    for query in asked:
        walls = {name: measure.median_s(samples, name, query.name) for name in SCANNED}
        first = min(walls, key=lambda name: walls[name])
        met = "met" if first == SCANNED[0] else "missed"
        title = [f"{query.name} {query.title}", f"{rows[query.name]:,}"]
        ratios = [
            f"{measure.ratio(samples, name, SCANNED[0], query.name):.2f}" for name in SCANNED[1:]
        ]
        lines.append([*title, *map(milliseconds, walls.values()), *ratios, first, met])
    headers = ["query", "rows out", *(f"{name} ms" for name in SCANNED)]
    compared = [f"{name} / ours" for name in SCANNED[1:]]
    return measure.markdown_table([*headers, *compared, "first", ""], lines)


def _run(worker: Worker, task: Task, turn: int, samples: list[Sample]) -> Any:
    """Take the samples of one task of one contender, and return its answer."""
    done = worker.call("run")
    samples.append(Sample(worker.contender, task.name, turn, done.wall_s, done.cpu_s))
    if task.repeats:
        more = [worker.call("run") for _ in range(REPEATS)]
        wall_s, cpu_s = (
            statistics.median(each.wall_s for each in more),
            statistics.median(each.cpu_s for each in more),
        )
        samples.append(Sample(worker.contender, task.name + AGAIN, turn, wall_s, cpu_s))
    return done.value


def _cells(samples: Sequence[Sample], task: Task, name: str) -> list[str]:
    ours_s = measure.median_s(samples, OURS, name)
    low, high = measure.quartiles_s(samples, OURS, name)
    spread = f"{milliseconds(low)} - {milliseconds(high)}"
    cpu = milliseconds(measure.median_cpu_s(samples, OURS, name))
    has_theirs = any(s.task == name and s.contender == THEIRS for s in samples)
    theirs = milliseconds(measure.median_s(samples, THEIRS, name)) if has_theirs else "-"
    limit, met = "-", ""
    if task.limit_s is not None:
        limit = milliseconds(task.limit_s)
        met = measure.verdict(ours_s, task.limit_s, at_most=True)
    elif has_theirs:
        limit = f"{THEIRS}"
        met = measure.verdict(measure.ratio(samples, OURS, THEIRS, name), 1.0, at_most=True)
    return [milliseconds(ours_s), spread, cpu, theirs, limit, met]


def _targets(samples: Sequence[Sample], beside: Mapping[str, list[float]], is_quick: bool) -> str:
    sizes = {task.name: task.quick if is_quick else task.size for task in TASKS}
    rates = [
        sizes[name] / measure.median_s(samples, OURS, name)
        for name in ("one thread", "sixteen threads")
    ]
    times = rates[1] / rates[0]
    mb, share = (statistics.median(beside[name]) for name in ("mb", "sidecar"))
    rows = [
        [
            f"peak memory with {sizes['entity append']:,} entities, MB",
            f"{mb:,.0f}",
            f"at most {MB_MAX:,.0f}",
        ],
        ["their sidecar / their data", f"{share:.2f}", "under 1"],
        [
            f"writes/s of 16 threads ({rates[1]:,.0f}) / of one ({rates[0]:,.0f})",
            f"{times:.2f}",
            f"at least {THREADS_TIMES_MIN:g}",
        ],
    ]
    verdicts = (
        measure.verdict(mb, MB_MAX, at_most=True),
        measure.verdict(share, 1.0, at_most=True),
        measure.verdict(times, THREADS_TIMES_MIN, at_most=False),
    )
    lines = [[*row, met] for row, met in zip(rows, verdicts, strict=True)]
    return measure.markdown_table(["figure", "measured", "limit", ""], lines)


def _worker(name: str) -> Worker:
    return Worker("growers", name, peer=name if name in peers.PEERS else None)


def _section(options: argparse.Namespace, names: list[str]) -> str:
    scratch = fhvhv.data_folder() / "scratch"
    scratch.mkdir(exist_ok=True)
    days = fhvhv.days(options.days, rows=options.rows)
    parts = []
    with tempfile.TemporaryDirectory(dir=scratch) as place, measure.Noise() as noise:
        folder = Path(place)
        samples, beside = grow_all(
            names, options.turns, folder, is_quick=options.quick, patience_s=options.patience
        )
        parts.append(report(samples, beside, options.quick))
        if "append" in options.parts:
            parts.append(time_append(days, folder, options.patience))
        if "scans" in options.parts:
            parts.append(time_scans(days, folder, options))
    versions = {name: peers.version(name) for name in names if name in peers.PEERS}
    how = (
        f"Medians of {options.turns} rounds, each in a fresh process. Memory is the peak of the "
        "process, the rows to append included. The scans read files that each library wrote "
        f"itself from Arrow batches: {len(days)} days of {days[0].rows:,} rows."
    )
    head = ["## Growth", measure.provenance("growth.py", versions), how]
    return "\n\n".join([*head, *parts, noise.line()])


def main() -> None:
    """Run the bench and write its section."""
    parser = measure.options("Time what must not grow with the work.")
    parser.add_argument("--days", type=int, default=10, help="days to append and scan")
    parser.add_argument("--rows", type=int, default=fhvhv.ROWS_A_DAY, help="rows in each day")
    parser.add_argument("--turns", type=int, default=5, help="how many rounds")
    parser.add_argument("--only", help=f"some of: {','.join(NAMES)}")
    parser.add_argument(
        "--parts", default="append,scans", help="beside the growing work: append, scans or neither"
    )
    options = parser.parse_args()
    if options.quick:
        options.days, options.rows, options.turns = SCAN_DAYS_MIN, 20_000, 2
    names = measure.chosen(list(NAMES), options.only)
    wanted = [*names, *(SCANNED if "scans" in options.parts else ())]
    for name in dict.fromkeys(wanted):
        if name in peers.PEERS:
            peers.install(name)
    body = _section(options, names)
    measure.write_section(options.results, "growth", body)
    print(body)


if __name__ == "__main__":
    main()
