"""The examples run as they stand: a newcomer's first minutes must never fail."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.served import ServedNode

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 300
TOUR_CPU_S_MAX = 10


def run(script, *words, folder, **environment):
    """Run an example as its first lines say."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_tour_runs_to_its_end_by_itself(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = run("tour.py", folder=tmp_path)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < TOUR_CPU_S_MAX
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


def test_the_tour_keeps_its_table_in_a_folder_that_is_given(tmp_path):
    run("tour.py", "kept", folder=tmp_path)
    assert (tmp_path / "kept" / "prices" / "_log").is_dir()


def test_frames_of_pandas_and_polars_go_in_and_come_out(tmp_path):
    told = run("frames.py", "frames", folder=tmp_path).stdout
    assert "attic" in told
    assert "11.5" in told
    assert "21.5" in told


def test_spark_reads_writes_and_rolls_up_a_table_of_a_lake(tmp_path):
    told = run("spark_frames.py", "lake", folder=tmp_path).stdout
    for seen in (
        "rows after the first day: 144",
        "mean from the second day on: 22.5",
        "rolled up: readings_1h done {'windows': 72,",
        "rows written: 432\n",  # once, though it was sent twice
        "attic  6  22.5  25.0",
    ):
        assert seen in told
    assert (tmp_path / "lake" / "tables").is_dir()


def test_a_load_of_dlt_is_in_the_table(tmp_path):
    told = run("dlt_load.py", "lake", folder=tmp_path, RUNTIME__DLTHUB_TELEMETRY="false").stdout
    assert "no failed jobs" in told
    assert "[[180]]" in told


def test_what_the_sdk_sends_is_asked_for_at_once(tmp_path):
    node = ServedNode(str(tmp_path / "data")).ready()
    try:
        addresses = [f"http://127.0.0.1:{node.port(name)}" for name in ("http", "api")]
        told = run("telemetry.py", *addresses, folder=tmp_path).stdout
    finally:
        node.stop()
    assert '[["/","/basket","/pay"]]' in told
    assert "[[2,1,1]]" in told


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_every_example_says_how_it_is_run_and_is_run_here(script):
    text = (EXAMPLES / script).read_text()
    assert f"examples/{script}" in text.split('"""')[1]
    if script != "writer.py":  # the tour's second process
        here = Path(__file__)
        tests = (here, here.parents[1] / "spark" / "test_stream.py")
        assert any(f'"{script}"' in path.read_text() for path in tests)
