"""Times appending a day of trips, day after day, to each contender's table.

In:   days of `fhvhv`, contenders of `appenders`
Out:  the section "append" of the results

- Each contender runs in a fresh process; the contenders take turns day by day.
- Before each append the machine is settled (`measure.settle`), so that nobody pays for what a
  contender before it left in memory; the incoming file is in the page cache.
- At the end every contender must count the same number of rows, or the bench fails.
- Which bytes are durable when the call returns is observed with strace, in a run of its own.
"""

import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import appenders
import fhvhv
import measure
import peers
from measure import Sample, milliseconds
from worker import Worker

BASE = "thermocline"
CALLS = "fsync,fdatasync,sync_file_range,syncfs,sync"


def append_all(
    names: Sequence[str], days: Sequence[fhvhv.Day], folder: Path, patience_s: float
) -> tuple[list[Sample], dict[str, int]]:
    """Return the samples, one a contender and day, and the bytes each table has on disk."""
    samples: list[Sample] = []
    with ExitStack() as stack:
        workers = {name: stack.enter_context(_worker(name)) for name in names}
        for name, worker in workers.items():
            worker.call("create", root=str(folder / name))
        for turn, order in measure.orders(names, len(days)):
            measure.await_quiet(patience_s)
            for name in order:
                path = appenders.incoming(name, days[turn])
                samples.append(_append(workers[name], path, turn))
            measure.progress(f"day {turn + 1} of {len(days)} appended")
        expected = sum(day.rows for day in days)
        for name, worker in workers.items():
            counted = worker.call("rows").value
            if counted != expected:
                sys.exit(f"{name} counts {counted} rows, appended were {expected}")
    return samples, {name: _size_bytes(folder / name) for name in names}


def durability(name: str, day: fhvhv.Day, folder: Path) -> str:
    """Return what one append of this contender makes durable, as seen by strace."""
    if shutil.which("strace") is None:
        return "not observed"
    path, trace = appenders.incoming(name, day), folder / "trace"
    prefix = ["strace", "-f", "-y", "-qq", "-e", f"trace={CALLS}", "-o", str(trace)]
    with _worker(name, prefix) as worker:
        worker.call("create", root=str(folder / "table"))
        before = trace.stat().st_size
        worker.call("append", path=str(path))
        calls = trace.read_text()[before:]
    kinds = [_kind(Path(found)) for found in re.findall(r"sync\w*\(\d+<([^>]+)>", calls)]
    shutil.rmtree(folder / "table", ignore_errors=True)
    trace.unlink()
    return _claim(kinds)


def report(
    samples: Sequence[Sample], sizes: dict[str, int], durable: dict[str, str]
) -> tuple[str, str]:
    """Return the table of contenders and the table of targets."""
    rows = []
    for name, size_bytes in sizes.items():
        low, high = measure.quartiles_s(samples, name)
        compared = f"{measure.ratio(samples, name, BASE):.2f}" if BASE in sizes else "-"
        rows.append(
            [
                name,
                milliseconds(measure.median_s(samples, name)),
                f"{milliseconds(low)} - {milliseconds(high)}",
                milliseconds(measure.walls(samples, name)[0]),
                milliseconds(measure.median_cpu_s(samples, name)),
                compared,
                f"{size_bytes / 1e6:,.1f}",
                durable[name],
            ]
        )
    headers = ["contender", "ms a day", "quartiles", "first day", "CPU ms", f"times {BASE}"]
    table = measure.markdown_table([*headers, "MB on disk", "durable at return"], rows)
    return table, _targets(samples)


def _targets(samples: Sequence[Sample]) -> str:
    rows = []
    for peer, target in (("ttf-0.9.0", 8.0), ("ttf-0.4.0", 2.0)):
        if measure.has(samples, BASE, peer):
            times = measure.ratio(samples, peer, BASE)
            met = measure.verdict(times, target, at_most=False)
            rows.append([f"{peer} / {BASE}", f"at least {target:g}", f"{times:.2f}", met])
    if measure.has(samples, BASE, "floor"):
        times = measure.ratio(samples, BASE, "floor")
        met = measure.verdict(times, 1.5, at_most=True)
        rows.append([f"{BASE} / floor", "at most 1.5", f"{times:.2f}", met])
    return measure.markdown_table(["ratio", "target", "measured", ""], rows) if rows else ""


def _append(worker: Worker, path: Path, turn: int) -> Sample:
    path.read_bytes()
    measure.settle()
    done = worker.call("append", path=str(path))
    return Sample(worker.contender, "append", turn, done.wall_s, done.cpu_s)


def _worker(name: str, prefix: list[str] | None = None) -> Worker:
    peer = name if name in peers.PEERS else None
    return Worker("appenders", name, peer=peer, prefix=prefix)


def _kind(path: Path) -> str:
    if path.is_dir():
        return "folder"
    return "data" if re.search(r"parquet|duckdb", path.name) else "metadata"


def _claim(kinds: Sequence[str]) -> str:
    if not kinds:
        return "nothing (no fsync)"
    counts = {kind: kinds.count(kind) for kind in ("data", "metadata", "folder")}
    listed = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    if not counts["data"]:
        return f"not the data (fsync: {listed})"
    return f"{'yes' if counts['folder'] else 'bytes, not names'} (fsync: {listed})"


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _notes(days: Sequence[fhvhv.Day], names: Sequence[str]) -> str:
    size_bytes = sum(day.size_bytes for day in days)
    setup = (
        f"{len(days)} days of {days[0].rows:,} rows and 24 columns, {size_bytes:,} bytes of "
        "Parquet in all, appended one after another; contenders take turns, each in a fresh "
        "process. The table has hourly buckets, no entity columns, and refuses overlap. "
    )
    floors = (
        "`floor` copies the file, fsyncs it and its folder, and decodes the time column with "
        "pyarrow; `floor-volatile` does the same without fsync."
    )
    laned = (
        "`ttf-0.9.0` refuses these files: it takes one row for each entity and interval, and "
        "one second is its finest interval. It is given the same rows with a 25th column, "
        "`lane` (int32, the row's rank within its second), as the entity column, and "
        '`index_granularity="1s"`, as a stream of Arrow batches, since it takes no file.'
    )
    return "\n\n".join([setup, floors, *([laned] if "ttf-0.9.0" in names else [])])


def _section(names: list[str], days: list[fhvhv.Day], patience_s: float) -> str:
    scratch = fhvhv.data_folder() / "scratch"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        durable = {name: durability(name, days[0], Path(folder)) for name in names}
        with measure.Noise() as noise:
            samples, sizes = append_all(names, days, Path(folder), patience_s)
    table, targets = report(samples, sizes, durable)
    versions = {name: peers.version(name) for name in names if name in peers.PEERS}
    parts = ["## Append", measure.provenance("append.py", versions), _notes(days, names)]
    return "\n\n".join(part for part in [*parts, table, targets, noise.line()] if part)


def main() -> None:
    """Run the bench and write its section."""
    parser = measure.options("Time appending a day of trips to each contender's table.")
    parser.add_argument("--days", type=int, default=10, help="how many days to append")
    parser.add_argument("--rows", type=int, default=fhvhv.ROWS_A_DAY, help="rows in each day")
    parser.add_argument("--only", help=f"some of: {','.join(appenders.CONTENDERS)}")
    options = parser.parse_args()
    if options.quick:
        options.days, options.rows = 3, 20_000
    names = measure.chosen(list(appenders.CONTENDERS), options.only)
    for name in names:
        if name in peers.PEERS:
            peers.install(name)
    days = fhvhv.days(options.days, rows=options.rows)
    body = _section(names, days, options.patience)
    measure.write_section(options.results, "append", body)
    print(body)


if __name__ == "__main__":
    main()
