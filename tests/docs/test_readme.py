"""The README's examples run as they stand, in an empty folder with the files they name."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fixtures.lake import rows

README = (Path(__file__).parents[2] / "README.md").read_text()
ROOT = Path(__file__).parents[2]
LIMIT_S = 600
MONDAY, WEDNESDAY = range(48, 72), range(96, 120)


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
    """Return an environment in which nothing was ever set up."""
    home = Path(folder) / "home"
    home.mkdir(exist_ok=True)
    return {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@pytest.fixture
def folder(tmp_path):
    """A folder with the two files of prices that the examples append."""
    for name, hours in (("monday", MONDAY), ("wednesday", WEDNESDAY)):
        pq.write_table(rows(hours), tmp_path / f"{name}.parquet")
    return tmp_path


def test_the_python_example_runs_and_shows_the_missing_day(folder):
    program, _, _ = blocks("python")
    ran = run([sys.executable, "-c", program], folder)
    assert ran.returncode == 0, ran.stderr
    assert "2024-06-04" in ran.stdout, "the gap between Monday and Wednesday is shown"
    assert "NVDA" in ran.stdout


def test_the_lake_example_runs_twice_and_keeps_its_rows(folder):
    _, program, _ = blocks("python")
    for _ in range(2):
        ran = run([sys.executable, "-c", program], folder)
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr == ""
    assert "n: [[2]]" in ran.stdout
    assert "00:05" in ran.stdout


def test_the_entity_example_runs_twice_with_a_postgres_of_its_own():
    _, _, program = blocks("python")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # as root, PostgreSQL runs as another user, who must get there
        for _ in range(2):
            ran = run([sys.executable, "-c", program], folder)
            assert ran.returncode == 0, ran.stderr
            assert "a-1" in ran.stdout


def test_the_served_example_answers_what_an_exporter_sent(tmp_path):
    serve, ask = [line[2:] for line in blocks("console")[0].splitlines()]
    words = shlex.split(serve, comments=True)
    ports = [word for name in ("http", "grpc", "api") for word in (f"--{name}", "127.0.0.1:0")]
    command = [sys.executable, "-m", "thermocline.cli.main", *words[1:], *ports]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as node:
        told = [json.loads(node.stderr.readline()) for _ in ("listening", "ready")]
        record = {"timeUnixNano": "1717200000000000000", "body": {"stringValue": "hello"}}
        logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
        assert post(told[0]["http"], "/v1/logs", json.dumps(logs)) == {}
        body = shlex.split(ask)[-1]
        assert f"localhost:4320{(path := '/api/v1/query')}" in ask
        assert post(told[0]["api"], path, body)["rows"] == [{"count_star()": 1}]
        node.terminate()
        node.stderr.read()
    assert node.returncode == 0


def post(port, path, body):
    """Send JSON to a port of this machine; return what is answered."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_the_console_example_runs(folder):
    _, console = blocks("console")
    assert run([sys.executable, "-c", blocks("python")[1]], folder).returncode == 0
    lines = [line[2:] for line in console.splitlines() if line.startswith("$ ")]
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
