"""The long fault runs: more states, more seeds, more kills than `make test` has time for.

In:   a number of minutes
Out:  one ledger line a run in `evidence/ledger.jsonl`, and a sum that must be all zeros

A run of the full length goes on until it has the states or kills that are promised, however slow
the machine; with `--least`, it ends as soon as it has them. Each line counts the states or kills
that were tried, what was answered, and what was lost, read twice, or read short; it ends with the
commit it was run on. The runs use the same operations and checks as the tests, so that a fault
found here becomes a test there.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
LEDGER = Path(__file__).parent / "ledger.jsonl"
MINUTES_DEFAULT = 60
STATES_PER_CUT = 200
STATES_PER_CALL = 80
PROVEN_PER_STORY = 6
DRY_SAMPLES_MAX = 12
CYCLES_PER_LAKE = 25
MIXED_S = 120.0
NEIGHBOUR_S = 10.0

More = Callable[[int], bool]
"""Tells whether a run goes on after so many states or kills."""


def power_cuts(more: More, seed: int) -> dict[str, Any]:
    """Cut the power at random calls of random operations, and look at many outcomes of each."""
    from crash.operations import OPERATIONS, base_disk, check_whole, contents, opened, seen
    from fixtures.sim_fault import Died

    rng, counts = random.Random(seed), {"states": 0, "acked": 0, "lost": 0, "dup": 0, "dirty": 0}
    changing = [o for o in OPERATIONS if o.name != "read"]
    while more(counts["states"]):
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


def kills(more: More, seed: int) -> dict[str, Any]:
    """Kill real writers with -9 again and again; every answered append must be there once."""
    import os
    import signal

    from cold.test_processes import lines_of, spawn, wait_for_more, write_for_ever
    from fixtures.lake import closes, spec
    from thermocline.cold.care.fsck import fsck
    from thermocline.cold.storage.local import LocalStorage
    from thermocline.cold.table import ColdTable

    rng, counts = random.Random(seed), {"kills": 0, "acked": 0, "lost": 0, "dup": 0, "unsound": 0}
    with tempfile.TemporaryDirectory() as folder:
        root, ledger = f"{folder}/prices", f"{folder}/answered"
        ColdTable(LocalStorage(root)).create(spec(overlap="allow"))
        while more(counts["kills"]):
            writer = spawn.Process(target=write_for_ever, args=(root, counts["kills"], ledger))
            writer.start()
            wait_for_more([ledger])
            time.sleep(rng.uniform(0, 1))
            assert writer.pid is not None
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
            counts["kills"] += 1
            found = closes(ColdTable(LocalStorage(root)))
            counts["dup"] += len(found) - len(set(found))
            answered = {float(line) for line in lines_of(ledger)}
            counts["lost"] += len(answered - set(found))
            counts["acked"] = len(answered)
        findings = fsck(ColdTable(LocalStorage(root))).findings
        counts["unsound"] = sum(not finding.is_harmless for finding in findings)
    return counts


def lake_power_cuts(more: More, seed: int) -> dict[str, Any]:
    """Play random stories on a lake; kill it and cut its power before each call, and look."""
    from crash.lake_operations import Life, Looker, made_disk, proven, random_story
    from fixtures import sim_states

    # Few things are pending at a time: what chance has not found soon, it does not find.
    sim_states.DRY_SAMPLES_MAX = DRY_SAMPLES_MAX
    names = ("stories", "states", "readings", "proven", "acked", "lost", "dup", "dirty")
    counts: dict[str, Any] = dict.fromkeys((*names, "short_reads"), 0)
    while more(counts["states"]):
        story_seed = seed * 10_000 + counts["stories"]
        rng = random.Random(story_seed)
        life = Life(made_disk())
        life.play(random_story(rng), rng)
        looker, found, outcomes = Looker(made_disk()), {}, {}
        for place, moment in enumerate(life.end()):
            cuts = moment.cuts(STATES_PER_CALL, story_seed * 1_000 + place)
            for disk in (moment.disk(), *cuts):
                look, parts = looker.looks(disk)
                if look not in found:
                    found[look] = looker.found(disk, parts)
                counts["readings"] += 1
                counts["acked"] += len(moment.promise.must)
                _count_broken(counts, moment.promise.broken_by(found[look].numbers))
                outcome = (str(found[look].numbers), found[look].outline)
                outcomes.setdefault(outcome, (disk.clone(), moment.promise))
        for disk, promise in rng.sample(
            list(outcomes.values()), min(PROVEN_PER_STORY, len(outcomes))
        ):
            proven(disk, promise)
            counts["proven"] += 1
        counts["states"] += len(found)
        counts["stories"] += 1
    return counts


def _count_broken(counts: dict[str, Any], broken: str | None) -> None:
    if broken is not None:
        kinds = {"lost": "lost", "twice": "dup"}
        counts[kinds.get(broken.split(":")[0], "dirty")] += 1
        print(f"  {broken}", flush=True)


def lake_kills(more: More, seed: int) -> dict[str, Any]:
    """Kill a real process with -9 that writes, flushes and reads, and compare with its ledger."""
    from hot.killing import kill_cycles

    counts: Counter[str] = Counter()
    recovery_s: list[float] = []
    while more(counts["kills"]):
        with tempfile.TemporaryDirectory() as folder:
            found = kill_cycles(folder, CYCLES_PER_LAKE, seed * 1_000 + counts["lakes"])
        recovery_s += found.pop("recovery_s")
        counts.update(found)
        counts["lakes"] += 1
    return {
        **counts,
        "dirty": counts["dirty"] + counts["halves"] + counts["strange"],
        "recovery_s": [round(statistics.median(recovery_s), 3), max(recovery_s)],
    }


def mixed(more: More, seed: int) -> dict[str, Any]:
    """Load a real node with writers and readers; its disk fills and slows, and it is killed."""
    from server.mixed import mixed_load

    counts: Counter[str] = Counter()
    while more(counts["nodes"]):
        with tempfile.TemporaryDirectory() as folder:
            counts.update(mixed_load(Path(folder), MIXED_S, seed + counts["nodes"]))
        counts["nodes"] += 1
    return dict(counts)


def neighbours(more: More, seed: int) -> dict[str, Any]:
    """Attack a node as one tenant, in a random order, and time the requests of another tenant."""
    from fixtures.served import ServedNode
    from server.neighbours import ATTACKS, Neighbours, broken_limits, figures, raise_file_limit
    from thermocline.server.access.keys import KeyStore

    rng, slow, counts = random.Random(seed), {}, Counter({"attacks": 0, "stopped": 0, "late": 0})
    raise_file_limit()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        with ServedNode(str(data), "--set", "connections_max=300") as node:
            node.ready()
            pair = Neighbours(node, KeyStore(str(data)).create_first().text)
            while more(counts["attacks"]):
                act = rng.choice(ATTACKS)
                quiet = pair.watch(NEIGHBOUR_S)
                beside = pair.attack(act, NEIGHBOUR_S)
                complaints = broken_limits(quiet, beside)
                counts["attacks"] += 1
                counts["stopped"] += bool(beside.refused)
                counts["late"] += bool(complaints)
                slow[act.__name__] = {"quiet": figures(quiet), "beside": figures(beside)}
            counts["memory_mib"] = pair.memory_bytes() >> 20
            counts["trouble"] = node.stop() != 0
    print(json.dumps(slow, indent=1), flush=True)
    return dict(counts)


def damages(more: More, seed: int) -> dict[str, Any]:
    """Damage random files of a lake at random places, and ask a random question each time."""
    from crash.damage import MEMORY_FOLDER, QUESTIONS, build_world, outcome, random_damage

    rng = random.Random(seed)
    counts: dict[str, Any] = dict.fromkeys(("damages", "right", "refused", "wrong"), 0)
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as folder:
        world = build_world(Path(folder))
        while more(counts["damages"]):
            damage, question = random_damage(world, rng), rng.choice(list(QUESTIONS))
            found = outcome(world, damage, question)
            counts["damages"] += 1
            counts["right"] += found == "right"
            counts["refused"] += found == "refused"
            if found not in ("right", "refused"):
                counts["wrong"] += 1
                print(f"  {damage}: {found}", flush=True)
    return counts


def schedules(more: More, seed: int) -> dict[str, Any]:
    """Search every order of the steps of writers, exporters, a compactor and a reader, once."""
    from model.export_model import full_search

    del more, seed  # it is all of them, however long that takes
    found = full_search()
    return {"schedules": found.schedules, "dirty": found.wrong}


@dataclass(frozen=True, slots=True)
class Run:
    """One run: the faults it stands for, its rung, its share of the time, the least it does."""

    faults: str
    layer: str
    act: Callable[[More, int], dict[str, Any]]
    share: float
    least: int


RUNS = {
    "power cuts": Run("T03 T09 F15", "L3", power_cuts, 0.1, 0),
    "kills": Run("T01 T02", "L6", kills, 0.1, 0),
    "lake power cuts": Run(
        "W01 W02 W04 W05 W06 W12 W19 W22 F01 F02 F03 F05 F15", "L3", lake_power_cuts, 0.4, 1_000_000
    ),
    "lake kills": Run("W01 W02 W03 W16 W22 F01 F02 F03 F06 F08 Q10", "L6", lake_kills, 0.4, 500),
    "damages": Run("D01 D02 D03 D04 D05 D06 D07 D08", "L3", damages, 0.4, 10_000),
    "export schedules": Run("P01 P02 P03 P11 P15", "L2", schedules, 0.01, 0),
    "neighbours": Run("A12 I06 I20", "L6", neighbours, 0.2, 0),
    "mixed load": Run("W10 W18 I08 I10 I21 O02 Q10", "L6", mixed, 1.0, 0),
}
BAD = ("lost", "dup", "dirty", "short_reads", "trouble", "unsound", "hung", "wrong", "stopped")


def main() -> int:
    """Run everything for its share of the time; return 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=MINUTES_DEFAULT)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=list(RUNS), action="append", help="only this run")
    parser.add_argument("--least", action="store_true", help="stop at what each run promises")
    asked = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    chosen = {name: run for name, run in RUNS.items() if name in (asked.only or RUNS)}
    whole = sum(run.share for run in chosen.values())
    bad = 0
    for name, run in chosen.items():
        minutes = 0.0 if asked.least else asked.minutes * run.share / whole
        least = run.least if asked.minutes >= MINUTES_DEFAULT else 0
        end_s = time.monotonic() + minutes * 60
        print(f"{name} ({run.faults}) for {minutes:.1f} minutes ...", flush=True)

        def more(done: int, end_s: float = end_s, least: int = least) -> bool:
            return time.monotonic() < end_s or done < least

        counts = run.act(more, asked.seed)
        line = {"fault": run.faults, "layer": run.layer, "run": name, "seed": asked.seed}
        with LEDGER.open("a") as ledger:
            ledger.write(json.dumps({**line, **counts, "commit": commit}) + "\n")
        print("  " + ", ".join(f"{key} {value}" for key, value in counts.items()), flush=True)
        bad += sum(counts.get(key, 0) for key in BAD)
    print("nothing lost, nothing twice" if not bad else f"{bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
