"""The long fault runs: more states, more seeds, more kills than `make test` has time for.

In:   a number of minutes
Out:  one ledger line a run in `evidence/ledger.jsonl`, and a sum that must be all zeros

Each line counts the states or kills that were tried, what was answered, and what was lost, read
twice, or read short; it ends with the commit it was run on. The runs use the same operations and
checks as the tests, so that a fault found here becomes a test there.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
LEDGER = Path(__file__).parent / "ledger.jsonl"
MINUTES_DEFAULT = 30
STATES_PER_CUT = 200


def power_cuts(until: float, seed: int) -> dict[str, int]:
    """Cut the power at random calls of random operations, and look at many outcomes of each."""
    from crash.operations import OPERATIONS, base_disk, check_whole, contents, opened, seen
    from fixtures.sim_fault import Died

    rng, counts = random.Random(seed), {"states": 0, "acked": 0, "lost": 0, "dup": 0, "dirty": 0}
    changing = [o for o in OPERATIONS if o.name != "read"]
    while time.monotonic() < until:
        operation = rng.choice(changing)
        before, after = contents(operation.name)
        disk = base_disk()
        table = opened(disk)
        disk.die(rng.randrange(1, 90), mutating_only=True)
        answered = True
        try:
            operation.act(table)
        except Died:
            answered = False
        for left in disk.crash_states(STATES_PER_CUT, seed=rng.randrange(1 << 30)):
            counts["states"] += 1
            counts["acked"] += answered
            found = seen(left)
            counts["lost"] += answered and found != after
            counts["dirty"] += not answered and found not in (before, after)
            if rng.random() < 0.02:
                check_whole(left)
    return counts


def kills(until: float, seed: int) -> dict[str, int]:
    """Kill real writers with -9 again and again; every answered append must be there once."""
    import os
    import signal

    from fixtures.lake import closes, spec
    from lake.test_processes import lines_of, spawn, wait_for_more, write_for_ever
    from thermocline.lake.fsck import fsck
    from thermocline.lake.local import LocalStorage
    from thermocline.lake.table import Table

    rng, counts = random.Random(seed), {"kills": 0, "acked": 0, "lost": 0, "dup": 0, "unsound": 0}
    with tempfile.TemporaryDirectory() as folder:
        root, ledger = f"{folder}/prices", f"{folder}/answered"
        Table(LocalStorage(root)).create(spec(overlap="allow"))
        while time.monotonic() < until:
            writer = spawn.Process(target=write_for_ever, args=(root, counts["kills"], ledger))
            writer.start()
            wait_for_more([ledger])
            time.sleep(rng.uniform(0, 1))
            assert writer.pid is not None
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
            counts["kills"] += 1
            found = closes(Table(LocalStorage(root)))
            counts["dup"] += len(found) - len(set(found))
            answered = {float(line) for line in lines_of(ledger)}
            counts["lost"] += len(answered - set(found))
            counts["acked"] = len(answered)
        findings = fsck(Table(LocalStorage(root))).findings
        counts["unsound"] = sum(not finding.is_harmless for finding in findings)
    return counts


RUNS: dict[str, tuple[str, Callable[[float, int], dict[str, int]]]] = {
    "power cuts": ("T03 T09 F15", power_cuts),
    "kills": ("T01 T02", kills),
}
BAD = ("lost", "dup", "dirty", "unsound")


def main() -> int:
    """Run everything for its share of the time; return 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=MINUTES_DEFAULT)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    bad = 0
    for name, (faults, run) in RUNS.items():
        print(f"{name} ({faults}) for {asked.minutes / len(RUNS):.1f} minutes ...", flush=True)
        counts = run(time.monotonic() + asked.minutes * 60 / len(RUNS), asked.seed)
        line = {"fault": faults, "run": name, "seed": asked.seed, **counts, "commit": commit}
        with LEDGER.open("a") as ledger:
            ledger.write(json.dumps(line) + "\n")
        print("  " + ", ".join(f"{key} {value:,}" for key, value in counts.items()), flush=True)
        bad += sum(counts.get(key, 0) for key in BAD)
    print("nothing lost, nothing twice" if not bad else f"{bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
