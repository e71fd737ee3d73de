"""The page about SQL clients: its programs run against a node, in the order of the page."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.served import ServedNode

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SAID = [
    """[{'symbol': 'AMD', 'high': 168.0}, {'symbol': 'NVDA', 'high': 122.5}]
['ts', 'symbol', 'close']
""",
    """[('NVDA', 121.0), ('NVDA', 122.5), ('AMD', 168.0)]
""",
]


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """Serve a node with four rows, all of them hot; yield the port of Flight SQL."""
    with ServedNode(str(tmp_path_factory.mktemp("clients") / "data")).ready() as node:
        spec = {"name": "prices", "time_column": "ts", "bucket": "1h"}
        assert node.ask("/api/v1/tables", {**spec, "entity_columns": ["symbol"]})[0] == 201
        pairs = [("NVDA", 99.0), ("NVDA", 121.0), ("NVDA", 122.5), ("AMD", 168.0)]
        rows = [
            {"ts": f"2024-06-01T{hour:02d}:00:00", "symbol": symbol, "close": close}
            for hour, (symbol, close) in enumerate(pairs)
        ]
        status, body, _ = node.ask("/api/v1/tables/prices/rows", rows)
        assert status < 300, json.dumps(body)
        yield node.port("flight")


@pytest.mark.parametrize("number", range(len(SAID)))
def test_a_program_of_the_page_prints_the_rows_of_a_node(number, port, tmp_path):
    assert len(PROGRAMS) == len(SAID)
    assert "localhost:4322" in PROGRAMS[number]
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[number].replace("localhost:4322", f"127.0.0.1:{port}"))
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == SAID[number]
