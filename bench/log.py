"""Times opening a table by the length of its log, and asking ten years of minutes for gaps.

In:   tables of `histories`
Out:  the section "log" of the results

- Every length is measured twice: exactly at a checkpoint, and one commit short of the next one,
  where the most commits have to be replayed.
- `first call` is in a fresh process right after `import thermocline`: it pays for everything the
  library imports late. `cold` is a fresh process that has opened another, tiny table before: its
  imports are done, and it has never seen this table. `warm` is the same call again.
- Each answer is checked: the version that was written, the number of gaps that were made.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fhvhv
import measure
from histories import Decade, LongLog, make_decade
from measure import Sample, milliseconds
from worker import Worker

LENGTHS = (100, 1_000, 10_000, 100_000)
BEFORE_NEXT_CHECKPOINT = 99
OPEN_MAX_S = 0.050
GAPS_MAX_S = 0.050
FLAT_MAX_S = 0.010
STATES = ("first call", "cold", "warm")


@dataclass(frozen=True, slots=True)
class Question:
    """One call to time, its right answer, and a call that makes ready for it without the clock."""

    task: str
    method: str
    arguments: dict[str, str]
    answer: int
    ready: dict[str, str] | None = None


def opening(root: Path, version: int) -> Question:
    """Return the question that opens a table which must be at this version."""
    return Question(str(version), "open", {"root": str(root)}, version)


def gap_questions(decade: Decade) -> list[Question]:
    """Return the questions for all gaps of a table: with opening it, and of an open one."""
    place = {"root": str(decade.root)}
    stretch = {"start": decade.start.isoformat(), "end": decade.end.isoformat()}
    return [
        Question("open and gaps", "open_and_gaps", {**place, **stretch}, decade.gaps),
        Question("gaps alone", "gaps", stretch, decade.gaps, ready=place),
    ]


def ask(question: Question, tiny: Decade, turns: int, patience_s: float) -> list[Sample]:
    """Return samples of the first call of a process, of a cold one and of a warm one."""
    samples = []
    for turn in range(turns):
        measure.await_quiet(patience_s)
        with Worker("openers", "thermocline") as fresh:
            samples.append(_call(fresh, question, "first call", turn))
        with Worker("openers", "thermocline") as worker:
            worker.call(
                "open_and_gaps",
                root=str(tiny.root),
                start=tiny.start.isoformat(),
                end=tiny.end.isoformat(),
            )
            worker.call("forget")
            samples.append(_call(worker, question, "cold", turn))
            samples.append(_call(worker, question, "warm", turn))
    return samples


def report_open(samples: Sequence[Sample], lengths: Sequence[int]) -> str:
    """Return the table of openings and whether they are quick and flat."""
    rows = []
    for length in lengths:
        for version in (length, length + BEFORE_NEXT_CHECKPOINT):
            of = [measure.median_s(samples, state, str(version)) for state in STATES]
            cpu_s = measure.median_cpu_s(samples, "cold", str(version))
            met = measure.verdict(of[1], OPEN_MAX_S, at_most=True)
            replayed = f"{version - length}"
            rows.append(
                [f"{version:,}", replayed, *map(milliseconds, of), milliseconds(cpu_s), met]
            )
    headers = ["commits", "after the checkpoint", *(f"{s} ms" for s in STATES), "cold CPU ms"]
    target = f"at most {OPEN_MAX_S * 1000:.0f} ms cold"
    return measure.markdown_table([*headers, target], rows) + "\n\n" + _flat(samples, lengths)


def report_gaps(samples: Sequence[Sample]) -> str:
    """Return the table of gap questions."""
    rows = []
    for task in dict.fromkeys(sample.task for sample in samples):
        of = [measure.median_s(samples, state, task) for state in STATES]
        cpu_s = measure.median_cpu_s(samples, "cold", task)
        cold, warm = (measure.verdict(each, GAPS_MAX_S, at_most=True) for each in of[1:])
        shown = [*map(milliseconds, of), milliseconds(cpu_s)]
        rows.append([task, *shown, f"cold {cold}, warm {warm}"])
    headers = ["question", *(f"{s} ms" for s in STATES), "cold CPU ms"]
    return measure.markdown_table([*headers, f"at most {GAPS_MAX_S * 1000:.0f} ms"], rows)


def _call(worker: Worker, question: Question, state: str, turn: int) -> Sample:
    if question.ready is not None and state != "warm":
        worker.call("open", **question.ready)
    done = worker.call(question.method, **question.arguments)
    if done.value != question.answer:
        sys.exit(f"{question.task}: answered {done.value}, expected was {question.answer}")
    return Sample(state, question.task, turn, done.wall_s, done.cpu_s)


def _flat(samples: Sequence[Sample], lengths: Sequence[int]) -> str:
    short, long = (str(n + BEFORE_NEXT_CHECKPOINT) for n in (lengths[0], lengths[-1]))
    grown_s = measure.median_s(samples, "cold", long) - measure.median_s(samples, "cold", short)
    met = measure.verdict(grown_s, FLAT_MAX_S, at_most=True)
    return (
        f"From {int(short):,} to {int(long):,} commits a cold open grows by "
        f"{grown_s * 1000:.1f} ms; flat means at most {FLAT_MAX_S * 1000:.0f} ms: {met}."
    )


def _section(options: argparse.Namespace, lengths: Sequence[int]) -> str:
    scratch = fhvhv.data_folder() / "scratch"
    scratch.mkdir(exist_ok=True)
    opened: list[Sample] = []
    asked: list[Sample] = []
    with tempfile.TemporaryDirectory(dir=scratch) as name, measure.Noise() as noise:
        folder = Path(name)
        tiny = make_decade(folder / "tiny", entities=2, years=1)
        long_log = LongLog(folder / "long")
        for length in lengths:
            for version in (length, length + BEFORE_NEXT_CHECKPOINT):
                long_log.reach(version)
                question = opening(folder / "long", version)
                opened += ask(question, tiny, options.turns, options.patience)
            measure.progress(f"opened at {length} commits")
        decade = make_decade(folder / "decade", entities=options.entities, years=options.years)
        for question in gap_questions(decade):
            asked += ask(question, tiny, options.turns, options.patience)
    minutes = (decade.end - decade.start).total_seconds() / 60
    how = (
        f"Medians of {options.turns} rounds, each in fresh processes. `first call` pays for late "
        "imports; `cold` has its imports done but has never seen this table; `warm` asks again."
    )
    held = (
        f"Gaps over {options.years} years of minutes for {options.entities:,} entities "
        f"({minutes:,.0f} buckets each, appended month by month, {decade.gaps:,} gaps to find):"
    )
    opens = "Opening, one segment a commit, until the version is known:"
    parts = ["## Log", measure.provenance("log.py", {}), how, opens]
    parts += [report_open(opened, lengths), held, report_gaps(asked), noise.line()]
    return "\n\n".join(parts)


def main() -> None:
    """Run the bench and write its section."""
    parser = measure.options("Time opening by the length of the log, and gaps of ten years.")
    parser.add_argument("--commits", type=int, default=LENGTHS[-1], help="the longest log")
    parser.add_argument("--entities", type=int, default=1_000, help="entities with minutes")
    parser.add_argument("--years", type=int, default=10, help="years of minutes")
    parser.add_argument("--turns", type=int, default=5, help="how many rounds")
    options = parser.parse_args()
    if options.quick:
        options.commits, options.entities, options.years, options.turns = 1_000, 10, 1, 2
    lengths = [length for length in LENGTHS if length <= options.commits]
    if not lengths:
        parser.error(f"--commits must be at least {LENGTHS[0]}")
    body = _section(options, lengths)
    measure.write_section(options.results, "log", body)
    print(body)


if __name__ == "__main__":
    main()
