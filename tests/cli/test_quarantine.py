"""What the command line, health and metrics tell of rows that a person set aside."""

import subprocess
import sys
from datetime import UTC, datetime

import orjson
import pytest

from thermocline.cli.main import run
from thermocline.node import Node
from thermocline.server.observe.health import Health
from thermocline.server.observe.metrics import node_numbers


@pytest.fixture
def nameless(tmp_path):
    """A lake whose journal has rows of a table that is gone, name and folder."""
    root = tmp_path / "lake"
    with Node(str(root)) as node:
        table = node.lake().create_table("a", time_column="ts", bucket="1h")
        table.write([{"ts": datetime(2024, 6, 1, tzinfo=UTC), "n": 1}])
        node.close(flush=False)
    (root / "names" / "a.json").rename(tmp_path / "a.json")
    (root / "tables").rename(tmp_path / "tables")
    return root


def test_D11_rows_set_aside_are_told_by_repair_inspect_health_and_metrics(nameless, capsys):
    assert run(["journal", "repair", str(nameless), "--set-aside"]) == 8
    assert not (nameless / "journal" / "quarantine").exists(), "it was a dry run"
    assert run(["journal", "repair", str(nameless), "--set-aside", "--yes"]) == 0
    capsys.readouterr()
    assert run(["journal", "inspect", str(nameless), "--json"]) == 0
    (held,) = orjson.loads(capsys.readouterr().out)["quarantined"]
    assert held["name"].endswith(".frame")
    with Node(str(nameless)) as node:
        health = Health()
        health.report_started(node)
        assert health.ready().is_ok
        assert "quarantine" in health.ready().body()["warnings"][0]
        told = {name: value for name, _, value in node_numbers(node)}
        assert told["journal_quarantined_files"] == 1
        for path in (nameless / "journal" / "quarantine").iterdir():
            path.unlink()
        assert "warnings" not in health.check().body()


def test_D05_a_start_that_fails_prints_its_error_and_nothing_of_the_engine(nameless):
    names = ("http", "grpc", "api", "flight")
    addresses = [word for name in names for word in (f"--{name}", "127.0.0.1:0")]
    command = [sys.executable, "-m", "thermocline.cli.main", "serve", "--data", str(nameless)]
    done = subprocess.run(command + addresses, capture_output=True, text=True, check=False)
    assert done.returncode == 8
    assert "no table can take" in done.stderr
    assert "leaked" not in done.stderr
    assert done.stderr.rstrip().splitlines()[-1].startswith("   do: ")
