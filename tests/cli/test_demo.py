"""The demo: a newcomer's first minute must never fail."""

import resource
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
DEMO_CPU_S_MAX = 10


def test_the_demo_runs_to_its_end_by_itself(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < DEMO_CPU_S_MAX
    assert done.stderr.splitlines()[0] == "error: the table already holds rows in these buckets"
    assert len(done.stderr.splitlines()) == 3
    for seen in (
        "████",
        "2 versions",
        "4 gaps",
        "(exit code 4)",
        "sound: 5 commits",
        "each once",
        "docs/cli.md",
    ):
        assert seen in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_keeps_its_table_in_a_folder_that_is_given(tmp_path):
    done = subprocess.run(
        [sys.executable, str(DEMO), "kept"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "kept" / "prices" / "_log").is_dir()
