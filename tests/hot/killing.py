"""Kills a process that owns a lake, again and again, and compares the lake with the ledger.

In:   a folder, a number of cycles, a seed
Out:  counts for the ledger of faults: kills, acknowledged rows, and what went wrong

- The moment is random: while the lake is opened and its journal replayed, or while four writers,
  a flusher and a reader work on it.
- After each kill the lake is checked, by turns by a reader in this process that stays open
  throughout, and by the next owner before it writes.
"""

import random
import time
from contextlib import suppress
from pathlib import Path

import thermocline as tc
from hot import processes
from hot.ledger import TABLES, Ledger
from thermocline.errors import NotFound

EARLY_SHARE = 0.25
EARLY_S_MAX = 0.15
LATE_S_MAX = 1.2
BAD = ("lost", "dup", "dirty", "halves", "strange", "short_reads", "trouble", "unsound")


def kill_cycles(folder, cycles, seed):
    """Run so many cycles on a new lake and return the counts."""
    root, notes = str(Path(folder) / "lake"), str(Path(folder) / "ledger")
    rng, ledger = random.Random(seed), Ledger(notes)
    counts = dict.fromkeys(("kills", "early_kills", "recovered", "reads", "acked", *BAD), 0)
    counts["recovery_s"] = []
    reader = None
    for cycle in range(cycles):
        is_early = cycle > 0 and rng.random() < EARLY_SHARE
        worker = processes.start(
            "work", root=root, ledger=notes, cycle=cycle, check=cycle % 2 == 0, seed=rng.random()
        )
        try:
            state = "opening" if is_early else "ready"
            processes.wait_for(lambda: state in ledger.lines(f"state-{cycle}"), process=worker)  # noqa: B023
            time.sleep(rng.uniform(0, EARLY_S_MAX if is_early else LATE_S_MAX))
        finally:
            worker.kill()
            worker.wait()
        counts["kills"] += 1
        counts["early_kills"] += is_early
        for line in ledger.lines(f"state-{cycle}"):
            if line.startswith("opened"):
                counts["recovered"] += int(line.split()[1])
                counts["recovery_s"].append(float(line.split()[2]))
        if is_early or cycle % 2:
            with suppress(NotFound):  # killed before there was a lake
                reader = reader or tc.connect(root, read_only=True)
                _add(counts, ledger.check(reader))
    if reader is not None:
        reader.close()
    _finish(root, ledger, counts)
    return counts


def _finish(root, ledger, counts):
    """Open the lake a last time, send again what is missing, and count everything."""
    with tc.connect(root, **processes.BUSY) as lake:
        verdict = ledger.check(lake)
        _add(counts, verdict)
        counts["acked"] = verdict.acked
        resend(lake, ledger)
        _add(counts, ledger.check(lake))
    with tc.connect(root, read_only=True) as lake:
        verdict = ledger.check(lake)
        _add(counts, verdict)
        counts["lost"] += (
            sum(
                last - first + 1
                for noted in ledger.requests().values()
                for first, last in noted.meant
            )
            - verdict.acked
        )
        for name in TABLES:
            findings = lake.table(name).fsck().findings
            counts["unsound"] += sum(not finding.is_harmless for finding in findings)
    for kind, key in (("short", "short_reads"), ("trouble", "trouble"), ("reads", "reads")):
        for path in ledger.folder.glob(f"{kind}-*"):
            counts[key] += len(ledger.lines(path.name))


def resend(lake, ledger):
    """Do what a client does that was cut off: look for the request, send it if it is not there."""
    for (cycle, writer), noted in ledger.requests().items():
        table = lake.table(TABLES[writer % 2])
        for first, last in noted.meant:
            if (first, last) in noted.acked:
                continue
            asked = (
                f"select count(*) n from {table.name} where cycle = ? and writer = ? and seq = ?"
            )
            # A lake killed before its first row has a table without columns.
            has_rows = "seq" in table.schema().names
            if not has_rows or not lake.sql(asked, [cycle, writer, first]).to_pylist()[0]["n"]:
                table.write(processes.rows_of(cycle, writer, first, last))
            ledger.acknowledge(cycle, writer, first, last)


def bad(counts):
    """Return what of the counts should be zero and is not."""
    return {name: counts[name] for name in BAD if counts[name]}


def _add(counts, verdict):
    for name in ("lost", "dup", "dirty", "halves", "strange"):
        counts[name] += getattr(verdict, name)
