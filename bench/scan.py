"""Times six queries over days of trips on each contender's table.

In:   days of `fhvhv`, contenders of `scanners`, queries of `queries`
Out:  the section "scan" of the results

- Tables are built by the append bench's contenders, in processes that end before the clock runs.
- Two contenders of one kind read the same files, ours as well as the yardstick's, so that neither
  finds its own in the processor's caches more often than the other.
- Each contender keeps one process and one session; contenders take turns, query by query, after
  one warm-up answer each.
- All contenders' warm-up answers to a query must be the same, or the bench fails.
- The page cache is warm for all: this compares engines and plans, not disks.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

import appenders
import fhvhv
import measure
import peers
import scanners
from measure import Sample, milliseconds
from queries import Query, difference, queries
from worker import Worker

BASE = "duckdb"
DEFAULT = "duckdb-default"
OURS = "thermocline"
NEW_TEXT = "thermocline-new-text"
BEFORE = "thermocline-before"
WRITTEN = "thermocline-written"
TARGET = 1.05
BEFORE_TARGET = 1.03
DAYS_MIN = 3
LONG_S = 0.1
ROUNDS_TIMES_MAX = 5


def build(name: str, days: Sequence[fhvhv.Day], root: Path) -> None:
    """Append the days to a new table of this maker, in a process that then ends."""
    measure.progress(f"building the table of {name}")
    with Worker("appenders", name, peer=_peer(name)) as worker:
        worker.call("create", root=str(root))
        for day in days:
            worker.call("append", path=str(appenders.incoming(name, day)))


def compare(workers: dict[str, Worker], query: Query, folder: Path) -> int:
    """Warm every contender up with the query, compare their answers, return the rows."""
    answers: dict[str, pa.Table] = {}
    for name, worker in workers.items():
        path = folder / f"{name}.arrow"
        worker.call("run", query=query.as_json())
        worker.call("keep", path=str(path))
        with pa.OSFile(str(path), "rb") as source:
            answers[name] = pa.ipc.open_file(source).read_all()
    first, *others = answers
    for name in others:
        differs = difference(answers[first], answers[name])
        if differs:
            sys.exit(f"{query.name}: {first} and {name} differ in {differs}")
    return len(answers[first])


def scan_all(
    workers: dict[str, Worker], asked: Sequence[Query], folder: Path, options: argparse.Namespace
) -> tuple[list[Sample], dict[str, int]]:
    """Return the samples and the rows of each answer."""
    samples: list[Sample] = []
    rows: dict[str, int] = {}
    for query in asked:
        rows[query.name] = compare(workers, query, folder)
        warm_s = workers[next(iter(workers))].call("run", query=query.as_json()).wall_s
        # A short query is as noisy in milliseconds as a long one: it gets more rounds.
        rounds = options.turns * max(1, min(ROUNDS_TIMES_MAX, int(LONG_S / warm_s)))
        for turn, order in measure.orders(list(workers), rounds):
            measure.await_quiet(options.patience)
            for name in order:
                workers[name].call("forget")
                done = workers[name].call("run", query=query.as_json())
                samples.append(Sample(name, query.name, turn, done.wall_s, done.cpu_s))
        measure.progress(f"{query.name} timed {rounds} times")
    return samples, rows


def report(samples: Sequence[Sample], asked: Sequence[Query], rows: dict[str, int]) -> str:
    """Return the tables: wall time, CPU time, and ours against the yardstick."""
    names = list(dict.fromkeys(s.contender for s in samples))
    headers = ["query", "rows out", *names]
    walls, cpus = [], []
    for query in asked:
        lead = [f"{query.name} {query.title}", f"{rows[query.name]:,}"]
        of = [(samples, name, query.name) for name in names]
        walls.append([*lead, *(milliseconds(measure.median_s(*each)) for each in of)])
        cpus.append([*lead, *(milliseconds(measure.median_cpu_s(*each)) for each in of)])
    parts = ["Wall ms, medians:", measure.markdown_table(headers, walls)]
    parts += ["CPU ms, medians:", measure.markdown_table(headers, cpus)]
    for ours in (OURS, NEW_TEXT):
        if measure.has(samples, ours, BASE):
            title = f"{ours} against {BASE}, wall at most {TARGET}:"
            parts += [title, _targets(samples, asked, ours, BASE, TARGET)]
    if measure.has(samples, OURS, BEFORE):
        title = f"{OURS} against {BEFORE}, wall at most {BEFORE_TARGET}:"
        parts += [title, _targets(samples, asked, OURS, BEFORE, BEFORE_TARGET)]
    return "\n\n".join(parts)


def _targets(
    samples: Sequence[Sample], asked: Sequence[Query], ours: str, base: str, target: float
) -> str:
    rows = []
    for query in asked:
        times = measure.ratio(samples, ours, base, query.name)
        cpus = [measure.median_cpu_s(samples, name, query.name) for name in (ours, base)]
        met = measure.verdict(times, target, at_most=True)
        spreads = [_spread(samples, name, query.name) for name in (ours, base)]
        beside = "-"
        if measure.has(samples, DEFAULT):
            beside = f"{measure.ratio(samples, ours, DEFAULT, query.name):.3f}"
        rows.append([query.name, f"{times:.3f}", met, f"{cpus[0] / cpus[1]:.3f}", beside, *spreads])
    headers = ["query", "wall", "", "CPU", f"wall against {DEFAULT}"]
    return measure.markdown_table([*headers, f"{ours} quartiles ms", f"{base} quartiles ms"], rows)


def _spread(samples: Sequence[Sample], contender: str, task: str) -> str:
    low, high = measure.quartiles_s(samples, contender, task)
    return f"{milliseconds(low)} - {milliseconds(high)}"


def _maker(name: str) -> str:
    """Return whose files a contender reads: those that differ in their words alone share them."""
    if name == WRITTEN:
        return name
    return next((maker for maker in (OURS, BASE) if name.startswith(maker)), name)


def _peer(name: str) -> str | None:
    return name if name in peers.PEERS else None


def _section(options: argparse.Namespace, names: list[str], days: list[fhvhv.Day]) -> str:
    asked = queries(len(days))
    scratch = fhvhv.data_folder() / "scratch"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder, ExitStack() as stack:
        workers = {}
        for name in names:
            root = Path(folder) / _maker(name)
            if _maker(name) != BASE and not root.exists():
                build(_maker(name), days, root)
            source = None
            if name == BEFORE:
                source = stack.enter_context(measure.earlier_tree(options.before)) / "src"
            worker = Worker("scanners", name, peer=_peer(name), source=source)
            workers[name] = stack.enter_context(worker)
            files = [str(day.path) for day in days]
            workers[name].call("open", place={"root": str(root), "files": files})
        with measure.Noise() as noise:
            samples, rows = scan_all(workers, asked, Path(folder), options)
    versions = {name: peers.version(name) for name in names if name in peers.PEERS}
    size_bytes = sum(day.size_bytes for day in days)
    setup = (
        f"{len(days)} days, {sum(day.rows for day in days):,} rows of 24 columns, {size_bytes:,} "
        f"bytes of Parquet; {options.turns} rounds in turns, up to {ROUNDS_TIMES_MAX} times as "
        "many for short queries; every engine on all cores, times as "
        f"UTC, page cache warm. `{BASE}` reads exactly the right files, named by hand, with every "
        f"setting for speed that our engine has; `{DEFAULT}` has its own defaults. The others find "
        f"their files. `{OURS}` repeats a text it has admitted before, `{NEW_TEXT}` never does. "
        "`ttf-0.9.0` and `deltalake` read files they wrote themselves. All answers were compared "
        "and are equal."
    )
    title = "## Scan beside an earlier commit" if options.before else "## Scan"
    head = [title, measure.provenance("scan.py", versions), setup]
    return "\n\n".join([*head, report(samples, asked, rows), noise.line()])


def main() -> None:
    """Run the bench and write its section."""
    parser = measure.options("Time six queries over days of trips on each contender's table.")
    parser.add_argument("--days", type=int, default=10, help="how many days (30 for the long run)")
    parser.add_argument("--rows", type=int, default=fhvhv.ROWS_A_DAY, help="rows in each day")
    parser.add_argument("--turns", type=int, default=28, help="timed rounds, at the least")
    parser.add_argument("--before", metavar="COMMIT", help=f"time {BEFORE}, the product then, too")
    parser.add_argument("--only", help=f"some of: {','.join(scanners.CONTENDERS)}")
    options = parser.parse_args()
    if options.quick:
        options.days, options.rows, options.turns = 3, 20_000, 3
    if options.days < DAYS_MIN:
        parser.error(f"--days must be at least {DAYS_MIN}: q2 reads three")
    all_names = [name for name in scanners.CONTENDERS if name != BEFORE or options.before]
    names = measure.chosen(all_names, options.only)
    if not options.quick:
        options.turns = measure.rounds_balanced(len(names), options.turns)
    for name in names:
        if name in peers.PEERS:
            peers.install(name)
    body = _section(options, names, fhvhv.days(options.days, rows=options.rows))
    section = "scan_before" if options.before else "scan"
    measure.write_section(options.results, section, body)
    print(body)


if __name__ == "__main__":
    main()
