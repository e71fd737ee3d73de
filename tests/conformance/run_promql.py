"""Runs Prometheus' own PromQL cases: `python -m tests.conformance.run_promql DIR [FILE]`.

In:   the folder `promql/promqltest/testdata` of Prometheus' module
Out:  a table by file; with FILE, every failure of it. Fails below 95 % of the stable language.
"""

import sys
from collections import Counter
from pathlib import Path

from tests.conformance.promql_cases import CaseResult, run_script

SHARE_MIN = 0.95


def main(folder: Path, only: str | None) -> int:
    """Run all scripts, print the table, and return the exit code."""
    unsupported: Counter[str] = Counter()
    total = [0, 0, 0, 0]
    print(f"{'file':<28}{'stable':>8}{'passed':>8}{'other':>8}{'passed':>8}")
    for path in sorted(folder.glob("*.test")):
        if only and path.name != only:
            continue
        results = list(run_script(path.name, path.read_text("utf-8", "replace")))
        stable = [one for one in results if one.needs is None]
        other = [one for one in results if one.needs is not None]
        counts = [len(stable), _passed(stable), len(other), _passed(other)]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        unsupported.update(one.needs for one in other if one.failure and one.needs)
        print(f"{path.name:<28}{counts[0]:>8}{counts[1]:>8}{counts[2]:>8}{counts[3]:>8}")
        for one in stable if only else ():
            if one.failure:
                print(f"  line {one.case.line}: {one.case.query}\n      {one.failure}")
    share = total[1] / max(1, total[0])
    print(f"{'all':<28}{total[0]:>8}{total[1]:>8}{total[2]:>8}{total[3]:>8}")
    print(f"stable language: {share:.1%}; all cases: {(total[1] + total[3]) / sum(total[::2]):.1%}")
    for needs, count in unsupported.most_common():
        print(f"not passed because of {needs}: {count}")
    return 0 if share >= SHARE_MIN else 1


def _passed(results: list[CaseResult]) -> int:
    return sum(one.failure is None for one in results)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
