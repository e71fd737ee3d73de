"""What writers meant to write and what they were answered, kept outside the lake; the checker.

In:   a folder beside the lake; notes of writers and readers; a lake to compare with
Out:  `Verdict`: what was lost, read twice, read and gone, half there or never written

- An id is (cycle, writer, seq). A request is a stretch of one writer's seqs; its intent is noted
  before the write and its acknowledgement after the write returned.
- Notes are single appends to files of the operating system: a killed process loses none.
- A request without an acknowledgement may be there or not, whole or not at all. Once a reader has
  seen it, it has to stay.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

TABLES = ("logs", "metrics")
IDS = " union all ".join(f"select cycle, writer, seq from {name}" for name in TABLES)
TAIL_BYTES = 400


@dataclass(frozen=True)
class Requests:
    """The requests of one writer of one cycle, as (first seq, last seq)."""

    meant: list[tuple[int, int]] = field(default_factory=list)
    acked: set[tuple[int, int]] = field(default_factory=set)


@dataclass
class Verdict:
    """How a lake differs from the ledger; all zero when it does not."""

    acked: int = 0
    lost: int = 0
    dup: int = 0
    dirty: int = 0
    halves: int = 0
    strange: int = 0

    def bad(self):
        """Return how much is wrong."""
        return self.lost + self.dup + self.dirty + self.halves + self.strange


def has_columns(lake):
    """Tell whether the tables are there and something was written to each."""
    there = set(TABLES) <= set(lake.tables())
    return there and all("seq" in lake.table(name).schema().names for name in TABLES)


class Ledger:
    """The notes of one lake's users."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True, parents=True)
        self._open = {}

    def note(self, name, line):
        """Append a line to the notes of this name; each name belongs to one thread."""
        if name not in self._open:
            path = self.folder / name
            self._open[name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._open[name], f"{line}\n".encode())

    def lines(self, name):
        """Return the lines noted under a name."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def intend(self, cycle, writer, first, last):
        """Note that a request is about to be made."""
        self.note(f"requests-{cycle}-{writer}", f"i {first} {last}")

    def acknowledge(self, cycle, writer, first, last):
        """Note that a request was answered."""
        self.note(f"requests-{cycle}-{writer}", f"a {first} {last}")

    def last(self, cycle, kind):
        """Return for each writer of a cycle its last seq that was meant (i) or answered (a)."""
        found = {}
        for path in self.folder.glob(f"requests-{cycle}-*"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                tail = file.read().decode().split("\n")[:-1]
            marks = [int(line.split()[2]) for line in tail if line.startswith(f"{kind} ")]
            found[int(path.name.rsplit("-", 1)[1])] = max(marks, default=0)
        return found

    def requests(self):
        """Return the requests of every (cycle, writer)."""
        found = {}
        for path in self.folder.glob("requests-*"):
            _, cycle, writer = path.name.split("-")
            noted = found.setdefault((int(cycle), int(writer)), Requests())
            for line in self.lines(path.name):
                kind, first, last = line.split()
                if kind == "i":
                    noted.meant.append((int(first), int(last)))
                else:
                    noted.acked.add((int(first), int(last)))
        return found

    def seen(self):
        """Return for each (cycle, writer) up to which seq some reader has seen it."""
        found = Counter()
        for path in self.folder.glob("seen-*"):
            for line in self.lines(path.name):
                cycle, writer, seq = map(int, line.split())
                found[cycle, writer] = max(found[cycle, writer], seq)
        return found

    def check(self, lake):
        """Compare a lake with the notes; the rows that are found count as seen from now on."""
        rows = zip(*lake.sql(IDS).to_pydict().values(), strict=True) if has_columns(lake) else []
        there = {}
        for cycle, writer, seq in rows:
            there.setdefault((cycle, writer), []).append(seq)
        verdict, seen = Verdict(), self.seen()
        requests = self.requests()
        verdict.strange += sum(len(there[key]) for key in there.keys() - requests.keys())
        for key, noted in requests.items():
            self._check_writer(verdict, noted, Counter(there.get(key, ())), seen[key])
        for (cycle, writer), seqs in there.items():
            self.note(f"seen-check-{os.getpid()}", f"{cycle} {writer} {max(seqs)}")
        return verdict

    def _check_writer(self, verdict, noted, found, seen):
        meant = set()
        for first, last in noted.meant:
            stretch = range(first, last + 1)
            meant.update(stretch)
            present = sum(seq in found for seq in stretch)
            missing = len(stretch) - present
            if (first, last) in noted.acked:
                verdict.acked += len(stretch)
                verdict.lost += missing
            elif last <= seen and missing:
                verdict.dirty += missing
            else:
                verdict.halves += bool(present and missing)
        verdict.strange += sum(seq not in meant for seq in found)
        verdict.dup += sum(count - 1 for count in found.values())
