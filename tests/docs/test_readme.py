"""The README's examples run as they stand, in the reader's order, from an empty folder."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

import thermocline as tc

README = (Path(__file__).parents[2] / "README.md").read_text()
ROOT = Path(__file__).parents[2]
LIMIT_S = 600


def blocks(language):
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def run(command, folder):
    """Run a command as a reader would, in the folder with the files."""
    return subprocess.run(
        command,
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=empty_home(folder),
    )


def empty_home(folder):
    """Return an environment without any set-up, in which this tree is the package."""
    home = Path(folder) / "home"
    home.mkdir(exist_ok=True)
    tree = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    return {"HOME": str(home), "LANG": "C.UTF-8", **tree}


def run_block(number, folder):
    """Run one of the Python blocks as a program, without a warning; return what it printed."""
    ran = run([sys.executable, "-W", "error", "-c", blocks("python")[number]], folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


PRICES, COVERAGE, LAKE, ENTITIES = range(4)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """What the first three blocks printed, run in the reader's order in one empty folder.

    The block of the lake runs twice, because the page says that rows are kept.
    """
    folder = tmp_path_factory.mktemp("reader")
    printed = [run_block(number, folder) for number in (PRICES, COVERAGE, LAKE, LAKE)]
    return folder, printed


def test_the_page_has_the_blocks_that_are_run_here():
    assert len(blocks("python")) == 4
    assert len(blocks("console")) == 2


def test_the_first_example_runs_and_shows_the_missing_day(read):
    printed = read[1][PRICES]
    assert "2024-06-04" in printed, "the gap between June 3 and 5 is shown"
    assert "2024-06-05" in printed
    assert "NVDA" in printed
    assert "AMD" in printed
    assert "buckets: [[24,24]]" in printed, "24 hours are missing for each of two symbols"
    highest = printed.rpartition("highest:")[2]
    assert re.findall(r"\d+", highest) == ["5", "5"], "the highest close of each symbol"


def test_the_first_example_can_be_pasted_into_a_prompt(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=blocks("python")[PRICES],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=empty_home(tmp_path),
    )
    assert "Error" not in ran.stderr, ran.stderr
    assert "2024-06-04" in ran.stdout
    assert "NVDA" in ran.stdout


def test_the_second_example_refuses_replaces_and_restores(read):
    folder, printed = read
    hint, ratio, window = printed[COVERAGE].splitlines()
    assert "overlap='replace'" in hint
    assert float(ratio) == pytest.approx(2 / 3), "two days of three"
    assert "datetime.datetime(2024, 6, 5, 18, 0" in window
    table = tc.TimeSeriesTable.open(folder / "prices")
    days = table.scan(columns=["ts"]).read_all()["ts"].to_pylist()
    assert {day.date().isoformat() for day in days} == {"2024-06-03"}, "version 2 had June 3 alone"


def test_the_lake_example_runs_twice_and_keeps_its_rows(read):
    once, again = read[1][LAKE:]
    assert "n: [[1]]" in once
    assert "n: [[2]]" in again
    assert "00:05" in again


def test_the_entity_example_runs_twice_with_an_embedded_postgres():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # as root, PostgreSQL runs as another user, who must get there
        for _ in range(2):
            assert "a-1" in run_block(ENTITIES, folder)


def test_the_served_example_answers_what_an_exporter_sent(tmp_path):
    serve, ask = [line[2:] for line in blocks("console")[0].splitlines()]
    words = shlex.split(serve, comments=True)
    names = ("http", "grpc", "api", "flight")
    ports = [word for name in names for word in (f"--{name}", "127.0.0.1:0")]
    command = [sys.executable, "-m", "thermocline.cli.main", *words[1:], *ports]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as node:
        started = [json.loads(node.stderr.readline()) for _ in ("listening", "ready")]
        record = {"timeUnixNano": "1717200000000000000", "body": {"stringValue": "hello"}}
        logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
        assert post(started[0]["http"], "/v1/logs", json.dumps(logs)) == {}
        body = shlex.split(ask)[-1]
        assert f"localhost:4320{(path := '/api/v1/query')}" in ask
        assert post(started[0]["api"], path, body)["rows"] == [{"count_star()": 1}]
        node.terminate()
        node.stderr.read()
    assert node.returncode == 0


def post(port, path, body):
    """Send JSON to a port of this machine; return the response."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_the_console_example_runs(read):
    folder, _ = read
    lines = [line[2:] for line in blocks("console")[1].splitlines() if line.startswith("$ ")]
    assert len(lines) >= 5
    for line in lines:
        command = [sys.executable, "-m", "thermocline.cli.main", *shlex.split(line)[1:]]
        ran = run(command, folder)
        assert ran.returncode == 0, (line, ran.stderr)


def test_the_demo_runs_from_an_empty_home_and_ends_by_itself(tmp_path):
    done = run(["make", "--directory", str(ROOT), "demo"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for seen in (
        "0 lost, 0 twice",
        "rows from Parquet, 4 hot",
        "refused: the document does not fit its contract",
        "████",
        "Done.",
    ):
        assert seen in done.stdout, done.stdout


def test_the_two_commands_and_every_linked_page_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    linked = re.findall(r"\]\(([^)]+)\)", README)
    assert [link for link in linked if not (ROOT / link).exists()] == []
