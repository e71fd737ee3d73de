"""Times whole bench scripts beside those of an earlier commit.

In:   a commit, the scripts to compare
Out:  the section "before" of the results: each task then and now, in wall and in CPU time

- Each side runs its own script on its own source, because the interfaces of the two differ. The
  sides take turns; a ratio is the median over the turns.
- Contenders that are not ours are listed too: their ratios show what the machine did meanwhile.
- `scan.py --before` compares within one run, which is more exact.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import measure

SCRIPTS = ("spark", "compact")
HERE = Path(__file__).parents[1]
Times = dict[str, tuple[float, float]]
"""The wall and CPU milliseconds of each row of a script's table."""


def timed(tree: Path, script: str, arguments: list[str]) -> Times:
    """Run a script of a source tree; return what its table says."""
    with tempfile.TemporaryDirectory(prefix="thermocline-bench-") as folder:
        results = Path(folder) / "results.md"
        subprocess.run(
            [
                sys.executable,
                str(tree / "bench" / f"{script}.py"),
                "--results",
                results,
                *arguments,
            ],
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return dict(rows(results.read_text()))


def rows(text: str) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield name, wall and CPU milliseconds of the rows of tables that have both."""
    for name, wall, cpu in re.findall(r"^\| ([^|]+) \| ([\d,.]+) \| ([\d,.]+) \|", text, re.M):
        yield name, (float(wall.replace(",", "")), float(cpu.replace(",", "")))


def compare(tree: Path, script: str, turns: int, arguments: list[str]) -> list[list[str]]:
    """Run both sides in turns; return the rows of the report."""
    sides: dict[Path, list[Times]] = {tree: [], HERE: []}
    for turn in range(turns):
        order = [tree, HERE] if turn % 2 == 0 else [HERE, tree]
        for side in order:
            measure.progress(
                f"{script}, turn {turn + 1} of {turns}: {'now' if side == HERE else 'then'}"
            )
            sides[side].append(timed(side, script, arguments))
    found = []
    for name in sides[HERE][0]:
        if all(name in times for times in sides[tree]):
            cells = [f"{script}: {name}"]
            for which in (0, 1):
                then, now = ([times[name][which] for times in sides[side]] for side in (tree, HERE))
                ratio = statistics.median(b / a for a, b in zip(then, now, strict=True))
                medians = [
                    measure.milliseconds(statistics.median(one) / 1e3) for one in (then, now)
                ]
                cells += [*medians, f"{ratio:.2f}"]
            found.append(cells)
    return found


def main() -> None:
    """Compare the scripts and write the section."""
    parser = measure.options(__doc__.splitlines()[0])
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--turns", type=int, default=3, help="runs of each side")
    parser.add_argument("--only", help=f"some of: {','.join(SCRIPTS)}")
    options = parser.parse_args()
    arguments = ["--quick"] if options.quick else ["--patience", str(options.patience)]
    with measure.Noise() as noise, measure.earlier_tree(options.commit) as tree:
        found = [
            row
            for script in measure.chosen(SCRIPTS, options.only)
            for row in compare(tree, script, options.turns, arguments)
        ]
    sizes = "small sizes" if options.quick else "full sizes"
    headers = ["task, contender", "ms then", "ms now", "ratio", "CPU then", "CPU now", "CPU ratio"]
    body = "\n\n".join(
        [
            "## Beside an earlier commit",
            measure.provenance("before.py", {}),
            f"Then is {options.commit}; {options.turns} turns, {sizes}. {noise.line()}",
            measure.markdown_table(headers, found),
        ]
    )
    print(body)
    measure.write_section(options.results, "before", body)


if __name__ == "__main__":
    main()
