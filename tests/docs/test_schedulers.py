"""The gates of the examples for schedulers, as their files write them, on a real table.

tests/interop/schedulers.py runs the same files with Airflow, Dagster and dbt themselves.
"""

import ast
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import thermocline as tc

SCHEDULERS = Path(__file__).parents[2] / "examples" / "schedulers"
COMMANDS = str(Path(sys.executable).parent)
WITHOUT_GAP, WITH_GAP = ("2024-06-01", "2024-06-02"), ("2024-06-02", "2024-06-03")
EXIT_GATE = 10


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Return a lake whose table of prices has one whole day."""
    folder = tmp_path_factory.mktemp("lake")
    with tc.connect(folder) as opened:
        table = opened.create_table(
            "prices", time_column="ts", bucket="1h", entity_columns=["symbol"]
        )
        hours = [datetime(2024, 6, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(24)]
        rows = [{"ts": ts, "symbol": "NVDA", "close": float(n)} for n, ts in enumerate(hours)]
        table.append(pa.Table.from_pylist(rows))
    return folder


def constant(script, name):
    """Return a constant of a script, which needs packages that are not installed here."""
    for node in ast.parse((SCHEDULERS / script).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{script} has no {name}")


def run(words, **environment):
    path = (
        f"{environment.pop('path', COMMANDS)}{os.pathsep}{COMMANDS}{os.pathsep}{os.environ['PATH']}"
    )
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PATH": path, **environment},
    )


@pytest.mark.parametrize("script", sorted(path.name for path in SCHEDULERS.glob("*.py")))
def test_an_example_for_a_scheduler_is_python(script):
    compile((SCHEDULERS / script).read_text(), script, "exec")


@pytest.mark.parametrize(("days", "code"), [(WITHOUT_GAP, 0), (WITH_GAP, EXIT_GATE)])
def test_the_sensor_of_airflow_asks_for_the_day_before(lake, days, code):
    template = constant("airflow_dag.py", "GATE")
    values = {"macros.ds_add(ds, -1)": days[0], "ds": days[1]}
    command = re.sub(r"{{ (.+?) }}", lambda found: values[found[1]], template)
    done = run(["bash", "-c", command], THERMOCLINE_TABLE=f"{lake}/prices")
    assert done.returncode == code, done.stderr
    assert f"retry_exit_code={EXIT_GATE}" in (SCHEDULERS / "airflow_dag.py").read_text()


@pytest.mark.parametrize(("days", "code"), [(WITHOUT_GAP, 0), (WITH_GAP, EXIT_GATE)])
def test_the_check_of_dagster_reads_the_verdict(lake, days, code):
    gate = constant("dagster_checks.py", "GATE")
    done = run(gate.format(table=f"{lake}/prices", start=days[0], end=days[1]).split())
    assert done.returncode == code, done.stderr
    facts = json.loads(done.stdout)
    assert facts["passed"] is (code == 0)
    assert {"missing", "buckets", "ratio", "version", "reason"} <= set(facts)
    assert constant("dagster_checks.py", "EXIT_GATE") == EXIT_GATE


@pytest.mark.parametrize(("days", "code"), [(WITHOUT_GAP, 0), (WITH_GAP, EXIT_GATE)])
def test_the_script_for_dbt_builds_only_a_complete_day(lake, tmp_path, days, code):
    stand_in = tmp_path / "dbt"
    stand_in.write_text('#!/bin/sh\necho "$@" > "$WORK/called"\n')
    stand_in.chmod(0o755)
    words = [str(SCHEDULERS / "dbt" / "run.sh"), str(lake), *days]
    done = run(words, path=str(tmp_path), WORK=str(tmp_path))
    assert done.returncode == code, done.stderr
    assert (tmp_path / "called").exists() is (code == 0)
    if not code:
        import pyarrow.parquet as pq

        assert pq.read_table(tmp_path / "prices.parquet").num_rows == 24
