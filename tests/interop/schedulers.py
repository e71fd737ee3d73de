"""Runs the examples for schedulers with Airflow, Dagster and dbt: python schedulers.py FOLDER.

FOLDER has an environment for each, made by `make schedulers`. A day that is complete is built, and
a day with a gap is not.
"""

import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

import thermocline as tc

EXAMPLES = Path(__file__).parents[2] / "examples" / "schedulers"
HERE = Path(__file__).parent


def make_lake(folder: Path) -> None:
    """Make a lake whose table of prices has the first of June."""
    with tc.connect(folder) as lake:
        table = lake.create_table("prices", time_column="ts", bucket="1h", entity_columns="symbol")
        hours = [datetime(2024, 6, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(24)]
        rows = [{"ts": ts, "symbol": "NVDA", "close": float(n)} for n, ts in enumerate(hours)]
        table.append(pa.Table.from_pylist(rows))


def run(
    words: list[str], *, tools: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command that finds `thermocline`, and its own tools, on its path."""
    path = f"{tools or Path(words[0]).parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {**os.environ, **environment, "PATH": path}
    return subprocess.run(words, env=given, capture_output=True, text=True, check=False)


def check(is_right: bool, what: str, done: "subprocess.CompletedProcess[str]") -> None:
    """Print a result; end the program if it is wrong."""
    print("ok   " if is_right else "WRONG", what)
    if not is_right:
        sys.exit(done.stdout[-4000:] + done.stderr[-4000:])


def main() -> None:
    """Run each scheduler on a day that is complete, and on one that is not."""
    made = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_lake(folder / "lake")
        table = {"THERMOCLINE_TABLE": str(folder / "lake" / "prices")}
        for day, is_built in (("2024-06-01", True), ("2024-06-02", False)):
            script = str(EXAMPLES / "dagster_checks.py")
            words = [str(made / "dagster/bin/python"), str(HERE / "run_dagster.py"), script]
            done = run(words, DAY=day, **table)
            found = done.stdout.split()
            check(("daily_means" in found) is is_built, f"dagster {day}", done)
        for days, is_built in (
            (("2024-06-01", "2024-06-02"), True),
            (("2024-06-02", "2024-06-03"), False),
        ):
            words = [str(EXAMPLES / "dbt/run.sh"), str(folder / "lake"), *days]
            done = run(words, tools=made / "dbt/bin", WORK=str(folder))
            check(done.returncode == (0 if is_built else 10), f"dbt {days[0]}", done)
        home = folder / "airflow"
        (home / "dags").mkdir(parents=True)
        (home / "dags" / "airflow_dag.py").write_text((EXAMPLES / "airflow_dag.py").read_text())
        more = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", **table}
        airflow = str(made / "airflow/bin/airflow")
        done = run([airflow, "db", "migrate"], **more)
        check(done.returncode == 0, "airflow db migrate", done)
        done = run([airflow, "dags", "test", "prices_daily", "2024-06-02"], **more)
        check(
            done.returncode == 0 and "state=success" in done.stdout + done.stderr, "airflow", done
        )


if __name__ == "__main__":
    main()
