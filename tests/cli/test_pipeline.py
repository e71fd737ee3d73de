"""The commands that run jobs: what is due, what became of it, and a worker that goes on."""

import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from fixtures.pipeline import JOBS, make_lake, write
from thermocline import connect

WAIT_LIMIT_S = 120.0
CONFIG = (
    """
data = "lake"

[pipeline]
master = "local[1]"
memory = "512m"
every = "100ms"

[pipeline.schedule]
retain = "200ms"
"""
    + JOBS
)


@pytest.fixture
def folder(shell):
    """A lake with work for the jobs, and the file of settings beside it."""
    make_lake(shell.folder / "lake")
    (shell.folder / "node.toml").write_text(CONFIG)
    return shell.folder


def test_a_dry_run_says_what_is_due_and_does_nothing(shell, folder):
    words = ("pipeline", "run", "--config", "node.toml", "--dry-run")
    due = shell.ok(*words, "--json").json()["due"]
    # Whether two days of events are worth a compaction depends on the month that they lie in.
    found = [(one["job"], one["table"]) for one in due]
    assert [one for one in found if one != ("compact", "events")] == [
        ("compact", "metrics"),
        ("rollup", "metrics_1h"),
        ("retain", "events"),
    ]
    assert shell.ok(*words, "--table", "metrics_1h").out.splitlines()[1:] == [
        "rollup,metrics_1h,every window: it was never computed"
    ]
    assert shell.ok("pipeline", "jobs", "--config", "node.toml", "--json").json() == {"jobs": []}


def test_a_job_that_fails_is_told_and_gives_its_exit_code(shell, folder):
    ran = shell.run("pipeline", "run", "rollup", "--data", "lake", "--config", "wrong.toml")
    assert ran.code == 3
    wrong = CONFIG.replace('"count(*)"', '"avg(nothing)"')
    (folder / "wrong.toml").write_text(wrong)
    ran = shell.run("pipeline", "run", "rollup", "retain", "--config", "wrong.toml")
    assert ran.code == 3
    assert "rollup,metrics_1h,failed" in ran.out
    assert "retain,events,done" in ran.out
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("run", "compct"), 2, "did you mean compact?"),
        (("run", "erase"), 2, "run it with `thermocline pipeline erase`"),
        (("run", "--table", "metrcs"), 3, "`tables` lists those that exist"),
        (("run", "--data", "nowhere"), 3, "check --data"),
        (("run", "--master", "nowhere://x", "compact"), 2, "use local[*], spark://host:7077"),
        (("backfill", "nothing", "x.csv"), 3, "`tables` lists those that exist"),
        (("erase", "--subject", "ada"), 2, "--subject COLUMN=VALUE"),
        (("erase", "--subject", "host=a"), 2, "add --yes"),
        (("erase", "--subject", "host=a", "--subject", "n>=3"), 2, "`thermocline table delete"),
        (("erase", "--subject", "hots=a", "--dry-run"), 3, "check the column"),
    ],
)
def test_what_is_wrong_is_told_in_three_lines(shell, folder, words, code, said):
    where = () if "--data" in words else ("--config", "node.toml")
    ran = shell.run("pipeline", *words, *where)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert "Traceback" not in ran.err


WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
from thermocline.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("words", [("pipeline", "run", "compact"), ("worker",)])
def test_without_spark_it_is_said_what_to_install(folder, words):
    command = [sys.executable, "-c", WITHOUT_SPARK, *words, "--data", "lake"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 7
    assert "pip install 'thermocline[spark]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_command_that_runs_spark_has_pandas_which_spark_asks_for(folder):
    program = (
        "import sys; sys.argv = ['thermocline', 'pipeline', 'jobs', '--data', 'lake']\n"
        "from thermocline.cli.main import run\n"
        "run()\n"
        "import pandas"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)


# The worker.


def lines_of(worker, count):
    """Return so many lines that a worker wrote."""
    return [json.loads(worker.stdout.readline()) for _ in range(count)]


def test_two_workers_beside_each_other_do_the_work_once_and_end_when_told(shell, folder):
    words = ("worker", "--config", "node.toml", "--job", "retain", "--json")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    workers = [shell.start(*words, **pipes) for _ in range(2)]
    try:
        end_s = time.monotonic() + WAIT_LIMIT_S
        done = ("pipeline", "jobs", "--config", "node.toml", "--json")
        while not shell.ok(*done).json()["jobs"]:
            assert time.monotonic() < end_s
        # They go on: what is past its retention later is found, too.
        with connect(folder / "lake") as lake:
            write(lake.table("events"), datetime.now(UTC) - timedelta(days=30))
            lake.flush()
        while len(shell.ok(*done).json()["jobs"]) < 2:
            assert time.monotonic() < end_s
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
    told = [worker.communicate(timeout=WAIT_LIMIT_S) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], told
    ran = [json.loads(line) for out, _ in told for line in out.splitlines()]
    assert sorted(one["rows"] for one in ran if one["state"] == "done") == [1, 1]
    assert {one["state"] for one in ran} <= {"done", "busy", "nothing"}


def test_a_worker_shows_how_jobs_would_run(shell, folder):
    told = shell.ok("worker", "--config", "node.toml", "--check", "--json").json()["settings"]
    assert told["pipeline.schedule.retain"] == 0.2
    assert told["pipeline.rollups"] == "metrics_1h"
    assert "pipeline.master" in shell.ok("worker", "--config", "node.toml", "--check").out


def test_a_file_that_is_wrong_about_jobs_is_refused_by_whoever_reads_it(shell, folder):
    (folder / "node.toml").write_text(CONFIG.replace("every =", "evry ="))
    for words in (("serve", "--check"), ("worker", "--check"), ("pipeline", "run")):
        ran = shell.run(*words, "--config", "node.toml")
        assert ran.code == 2
        assert "did you mean every?" in ran.told()[2]
