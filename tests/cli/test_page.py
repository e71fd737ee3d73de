"""The page about the command line names every command and option, and its examples run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.conftest import ticks
from cli.test_main import leaves
from fixtures.entities import entity_node
from fixtures.postgres import postgres_run, postgres_server
from hot.repairing import put_journal, written
from thermocline.cli.table.coverage import EXIT_GATE
from thermocline.cli.terminal.report_error import EXIT_INTERRUPTED, EXIT_PIPE_CLOSED
from thermocline.error_table import ERROR_TABLE
from thermocline.node import Node
from thermocline.server.access.keys import KeyStore

__all__ = ["entity_node", "postgres_run", "postgres_server"]

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SECTION = re.compile(r"^### `([^`]+)`\n(.*?)(?=^##|\Z)", flags=re.MULTILINE | re.DOTALL)
SECTIONS = dict(SECTION.findall(PAGE))
COMMANDS = {" ".join(path): command for path, command in leaves()}
NODE_OPTIONS = {"--url", "--context", "--key-file"}
EXAMPLES = re.findall(r"^\$ thermocline (.*)$", PAGE, flags=re.MULTILINE)


def first_cells(body):
    """Return what the first column of a section's table names."""
    return re.findall(r"^\| (`.*?) \| ", body, flags=re.MULTILINE)


def test_every_command_has_a_section_and_every_section_a_command():
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_its_commands_section_and_no_other(name):
    documented = set(
        re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(first_cells(SECTIONS[name])))
    )
    real = {
        option
        for parameter in COMMANDS[name].params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-")
    }
    if real >= NODE_OPTIONS:  # the page describes them once, for all commands
        documented |= NODE_OPTIONS
    assert documented == real - {"--help", "-h"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_is_in_its_commands_section(name):
    for parameter in COMMANDS[name].params:
        if not parameter.opts[0].startswith("-"):
            written = parameter.metavar.replace("|", r"\|")
            assert f"| `{written}` |" in SECTIONS[name]


def test_the_options_of_the_command_itself_are_on_the_page():
    import typer

    from thermocline.cli.main import app

    for parameter in typer.main.get_command(app).params:
        for option in parameter.opts:
            assert option in PAGE


def test_every_command_has_an_example():
    for name in COMMANDS:
        assert any(f"thermocline {line}".startswith(name) for line in EXAMPLES), name


def test_every_exit_code_is_on_the_page():
    codes = {0, EXIT_INTERRUPTED, EXIT_PIPE_CLOSED, EXIT_GATE}
    codes |= {row.exit_code for row in ERROR_TABLE.values()}
    assert codes == {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, flags=re.MULTILINE)}


RUN_ALL = """
import shlex, sys
from thermocline.cli.main import run
for line in sys.stdin.read().splitlines():
    code = run(shlex.split(line))
    if code:
        sys.exit(f"{line}: exit code {code}")
"""


RULES = """
[[rules]]
name = "missing-hours"
kind = "gap"
table = "quotes_again"
within = "6h"
every = "1h"
"""
ORDER = {
    "type": "object",
    "properties": {
        "number": {"type": "string"},
        "status": {"type": "string", "x-hot": True},
        "quantity": {"type": "integer", "x-hot": True},
    },
    "required": ["status"],
}


def put_lost_keys(folder):
    """Make a data folder that has had keys and lost them."""
    Node(str(folder)).close()
    keys = KeyStore(str(folder))
    keys.create_first()
    Path(keys.path).unlink()


def put_orders(folder):
    """Put the files in a folder that the examples about entities name."""
    wider = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}
    order = {"number": "o-1", "status": "open", "quantity": 2}
    lines = [{**order, "number": f"o-{number}", "quantity": number} for number in range(2, 6)]
    for name, values in (
        ("order-1.json", [ORDER]),
        ("order-2.json", [wider]),
        ("order.json", [order]),
        ("patch.json", [{"note": "x"}]),
        ("operations.json", [[{"type": "order", "op": "patch", "id": "o-1", "document": {}}]]),
        ("orders.ndjson", lines),
    ):
        (folder / name).write_text("\n".join(json.dumps(value) for value in values))


def test_the_examples_run_in_their_order(tmp_path, entity_node):
    put_orders(tmp_path)
    for day in (1, 2, 4):
        pq.write_table(ticks(day), tmp_path / f"june-{day:02d}.parquet")
    names = pa.table({"symbol": ["AMD", "NVDA"], "name": ["Advanced Micro Devices", "Nvidia"]})
    pq.write_table(names, tmp_path / "companies.parquet")
    put_journal(tmp_path / "lake", written((3, 2)))
    put_lost_keys(tmp_path / "damaged-node")
    (tmp_path / "rules.toml").write_text(RULES)
    entity_node.node.lake().create_table(
        "logs",
        time_column="ts",
        bucket="1h",
        schema={"ts": "timestamp[us, tz=UTC]", "body": "string"},
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        cwd=tmp_path,
        input="\n".join(EXAMPLES),
        env={
            **os.environ,
            "THERMOCLINE_URL": entity_node.url,
            "THERMOCLINE_API_KEY": entity_node.key,
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    # A page of the feed ends with the words that read the next one.
    said = [one for one in done.stderr.splitlines() if not one.startswith("go on with: --after ")]
    assert (said, done.returncode) == ([], 0), done.stderr
    assert pq.read_table(tmp_path / "nvda.parquet").num_rows == 48
