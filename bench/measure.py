"""Turns timed runs of several contenders into medians, ratios and a section of the results.

In:   samples (who, what, which round, wall and CPU seconds)
Out:  Markdown tables, and one section of `RESULTS.md` between its markers

- Contenders take turns inside a round, in an order where everyone follows everyone equally often:
  a slow minute of the machine falls on all of them, and so does a warm cache.
- A ratio is the median over rounds of (this contender / the base) in that same round, never a
  quotient of two medians, so that drift between rounds cancels.
- CPU is user and system time of the contender's process and all its descendants.
- What other processes of the machine burned meanwhile is measured and printed with the numbers.
- Writing one section leaves every other section of the file as it was, byte for byte.

It runs nothing itself: `worker.py` holds the processes, the bench scripts hold the questions.
"""

import argparse
import importlib.metadata
import io
import mmap
import os
import platform
import re
import resource
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

RESULTS = Path(__file__).parent / "RESULTS.md"
SECTIONS = (
    *("append", "scan", "log", "union", "ingest", "contract", "entities", "entities_read"),
    *("spark", "spark_delta", "compact", "rollup", "export", "growth", "metrics"),
    *("scan_before", "before"),
    "iceberg",
)
HEADER = """# Bench results

Each section is written by its script and names the command that made it. Times are medians;
trust the ratios more than the milliseconds.
"""
NOISY_SHARE = 0.15
USELESS_SHARE = 0.30
SETTLE_BYTES = 256 << 20
QUIET_SHARE = 0.10
QUIET_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed run: a contender doing one task in one round."""

    contender: str
    task: str
    turn: int
    wall_s: float
    cpu_s: float


def orders(names: Sequence[str], turns: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (round, names in the order of that round): all of them, balanced for what came before.

    Over `rounds_balanced` rounds everyone is equally often in every place and right after every
    other one (a Williams design): who runs after a contender with the same libraries finds them
    in the processor's caches, and a plain rotation would give that to the same one every time.
    """
    count = len(names)
    zigzag = [place // 2 + 1 if place % 2 else -place // 2 for place in range(count)]
    for turn in range(turns):
        order = [names[(step + turn) % count] for step in zigzag]
        yield turn, order[::-1] if count % 2 and turn // count % 2 else order


def rounds_balanced(count: int, turns_min: int) -> int:
    """Return the least number of rounds, at least `turns_min`, that is balanced."""
    cycle = count * (1 + count % 2)
    return -(-turns_min // cycle) * cycle


def walls(samples: Sequence[Sample], contender: str, task: str | None = None) -> list[float]:
    """Return the wall seconds of one contender, of one task or of all, in the order taken."""
    return [s.wall_s for s in _of(samples, contender, task)]


def median_s(samples: Sequence[Sample], contender: str, task: str | None = None) -> float:
    """Return the median wall seconds."""
    return statistics.median(walls(samples, contender, task))


def median_cpu_s(samples: Sequence[Sample], contender: str, task: str | None = None) -> float:
    """Return the median CPU seconds."""
    return statistics.median(s.cpu_s for s in _of(samples, contender, task))


def quartiles_s(
    samples: Sequence[Sample], contender: str, task: str | None = None
) -> tuple[float, float]:
    """Return the first and third quartile of the wall seconds (equal for a single sample)."""
    seconds = walls(samples, contender, task)
    if len(seconds) < 2:
        return seconds[0], seconds[0]
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return low, high


def ratio(samples: Sequence[Sample], contender: str, base: str, task: str | None = None) -> float:
    """Return how many times as long as `base` the contender took: the median over rounds."""
    base_s = {(s.task, s.turn): s.wall_s for s in _of(samples, base, task)}
    pairs = [(s.wall_s, base_s.get((s.task, s.turn))) for s in _of(samples, contender, task)]
    return statistics.median(wall / other for wall, other in pairs if other)


def has(samples: Sequence[Sample], *contenders: str) -> bool:
    """Tell whether each of the contenders has at least one sample."""
    present = {s.contender for s in samples}
    return all(name in present for name in contenders)


def verdict(measured: float, target: float, *, at_most: bool) -> str:
    """Return "met" or "missed"."""
    return "met" if (measured <= target if at_most else measured >= target) else "missed"


def milliseconds(seconds: float) -> str:
    """Return the time for a table: three digits that mean something."""
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table: the first column to the left, the others to the right."""
    rule = ["---", *["---:"] * (len(headers) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headers, rule, *rows])


class Noise:
    """Watches what the rest of the machine does while samples are taken.

    A context manager around the whole timed part; afterwards `share` is the part of the machine's
    cores that processes outside the bench used. A PostgreSQL that runs under `folder` is the
    bench's own, though it is nobody's child; it must still run when the timed part ends.
    """

    share = 0.0

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        self._before = (self._foreign_s(), time.monotonic())
        return self

    def __exit__(self, *_: object) -> None:
        foreign_s = self._foreign_s() - self._before[0]
        capacity_s = (time.monotonic() - self._before[1]) * (os.cpu_count() or 1)
        self.share = min(1.0, max(0.0, foreign_s / capacity_s))

    def _foreign_s(self) -> float:
        """Return the CPU seconds of all that is not the bench's, since some moment in the past."""
        servers_s = sum(map(_tree_s, _servers_under(self._folder))) if self._folder else 0.0
        return _machine_busy_s() - tree_cpu_s() - servers_s

    def line(self) -> str:
        """Return a sentence for the results."""
        used = f"Other processes used {self.share:.0%} of the cores meanwhile"
        if self.share > USELESS_SHARE:
            return f"**{used}: too noisy, neither times nor ratios count. Run this again.**"
        return (
            f"{used} ({'noisy, trust only the ratios' if self.share > NOISY_SHARE else 'quiet'})."
        )


def tree_cpu_s() -> float:
    """Return CPU seconds of this process, its ended children and its living descendants."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time() + ended.ru_utime + ended.ru_stime
    return own + sum(_cpu_s(pid) for pid in _descendants(os.getpid()))


def options(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every bench has.

    Also makes a request to end (SIGTERM) an ordinary exit, so that scratch folders are removed.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes, done in seconds")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="the Markdown file to write the section into"
    )
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds a round waits for an idle machine"
    )
    return parser


@contextmanager
def earlier_tree(commit: str) -> Iterator[Path]:
    """Yield a folder with `src` and `bench` as they were at a commit; it is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="thermocline-before-") as folder:
        packed = subprocess.run(
            ["git", "archive", commit, "src", "bench"],
            cwd=RESULTS.parents[1],
            check=True,
            capture_output=True,
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def chosen(names: Sequence[str], only: str | None) -> list[str]:
    """Return the contenders of a comma-separated `--only`, in the order of `names`."""
    if only is None:
        return list(names)
    wanted = only.split(",")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        sys.exit(f"no such contender: {', '.join(unknown)} (there are {', '.join(names)})")
    return [name for name in names if name in wanted]


def provenance(script: str, versions: dict[str, str]) -> str:
    """Return the lines that say how, when and with what a section was made."""
    command = " ".join(["python", f"bench/{script}", *sys.argv[1:]])
    own = {name: importlib.metadata.version(name) for name in ("thermocline", "pyarrow", "duckdb")}
    listed = ", ".join(f"{name} {version}" for name, version in {**own, **versions}.items())
    return (
        f"Made by `{command}` on {time.strftime('%Y-%m-%d')} with Python "
        f"{platform.python_version()} on {os.cpu_count()} cores ({platform.machine()}): {listed}."
    )


def write_section(path: Path, name: str, body: str) -> None:
    """Put a section into the results file, in the place it had or the place it belongs."""
    assert name in SECTIONS, "the next script to write would drop it"
    text = path.read_text() if path.exists() else HEADER
    sections = {kept: _section(text, kept) for kept in SECTIONS}
    sections[name] = f"<!-- begin {name} -->\n{body.strip()}\n<!-- end {name} -->"
    head = text.split("<!-- begin ", 1)[0].rstrip()
    parts = [head, *(section for section in sections.values() if section)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(parts) + "\n")


def await_quiet(patience_s: float) -> None:
    """Wait until the rest of the machine is idle, but no longer than the patience lasts."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        with Noise() as look:
            time.sleep(QUIET_LOOK_S)
        if look.share < QUIET_SHARE:
            return


def settle() -> None:
    """Bring the machine to the same state before a sample that writes.

    What earlier samples left dirty is written back, so that nobody's fsync pays for it. Then
    memory is touched and given back: a virtual machine may have lent its free pages to its host,
    and getting them again costs more than the copy of a file.
    """
    os.sync()
    with mmap.mmap(-1, SETTLE_BYTES) as pages:
        for offset in range(0, SETTLE_BYTES, mmap.PAGESIZE):
            pages[offset] = 1


def progress(line: str) -> None:
    """Say on standard error what is going on."""
    print(line, file=sys.stderr, flush=True)


def _section(text: str, name: str) -> str | None:
    found = re.search(rf"<!-- begin {name} -->.*?<!-- end {name} -->", text, re.DOTALL)
    return found.group(0) if found else None


def _of(samples: Sequence[Sample], contender: str, task: str | None) -> list[Sample]:
    return [s for s in samples if s.contender == contender and task in (None, s.task)]


def _machine_busy_s() -> float:
    """Return CPU seconds the whole machine has spent, time stolen by its host included."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(child) for child in children.read_text().split()]
        except OSError:
            continue  # the thread or process ended between the listing and the look
        for child in direct:
            found += [child, *_descendants(child)]
    return found


def _tree_s(pid: int) -> float:
    return sum(_cpu_s(one) for one in (pid, *_descendants(pid)))


def _servers_under(folder: Path) -> list[int]:
    """Return the PostgreSQL servers whose data lies under a folder, by their process ids."""
    found = folder.rglob("postmaster.pid")
    return [int(one.read_text().split("\n", 1)[0]) for one in found]


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    user, system, ended_user, ended_system = (int(field) for field in fields[11:15])
    return (user + system + ended_user + ended_system) / os.sysconf("SC_CLK_TCK")
