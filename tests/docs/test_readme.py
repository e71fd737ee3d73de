"""The README's examples run as they stand, in an empty folder with the files they name."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fixtures.lake import rows

README = (Path(__file__).parents[2] / "README.md").read_text()
MONDAY, WEDNESDAY = range(48, 72), range(96, 120)


def blocks(language):
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def run(command, folder):
    """Run a command as a reader would, in the folder with the files."""
    return subprocess.run(
        command, check=False, cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def folder(tmp_path):
    """A folder with the two files of prices that the examples append."""
    for name, hours in (("monday", MONDAY), ("wednesday", WEDNESDAY)):
        pq.write_table(rows(hours), tmp_path / f"{name}.parquet")
    return tmp_path


def test_the_python_example_runs_and_shows_the_missing_day(folder):
    program, _ = blocks("python")
    ran = run([sys.executable, "-c", program], folder)
    assert ran.returncode == 0, ran.stderr
    assert "2024-06-04" in ran.stdout, "the gap between Monday and Wednesday is shown"
    assert "NVDA" in ran.stdout


def test_the_lake_example_runs_twice_and_keeps_its_rows(folder):
    _, program = blocks("python")
    for _ in range(2):
        ran = run([sys.executable, "-c", program], folder)
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr == ""
    assert "n: [[2]]" in ran.stdout
    assert "00:05" in ran.stdout


def test_the_console_example_runs(folder):
    (console,) = blocks("console")
    assert run([sys.executable, "-c", blocks("python")[1]], folder).returncode == 0
    lines = [line[2:] for line in console.splitlines() if line.startswith("$ ")]
    assert len(lines) >= 5
    for line in lines:
        command = [sys.executable, "-m", "thermocline.cli.main", *shlex.split(line)[1:]]
        ran = run(command, folder)
        assert ran.returncode == 0, (line, ran.stderr)


def test_the_two_commands_and_every_linked_page_exist():
    root = Path(__file__).parents[2]
    makefile = (root / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    linked = re.findall(r"\]\(([^)]+)\)", README)
    assert [link for link in linked if not (root / link).exists()] == []
