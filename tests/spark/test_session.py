"""A session works from the packages alone, says what is wrong, and is one a process."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import thermocline as tc
from fixtures.pipeline import JOBS, make_lake
from thermocline.errors import Invalid, Unavailable, Unsupported
from thermocline.pipeline.spark.java_gateway import java_home
from thermocline.pipeline.spark.session import session
from thermocline.pipeline.spark.spark_errors import translate_error


def test_there_is_one_session_a_process(spark):
    assert tc.spark.session("local[2]") is spark
    assert spark.range(10).count() == 10


def test_times_are_utc_whatever_the_machine_says(spark):
    assert spark.sql("select string(timestamp_micros(0))").collect()[0][0] == "1970-01-01 00:00:00"


def test_a_place_where_no_spark_runs_is_refused():
    with pytest.raises(Invalid, match="unknown Spark master"):
        session("mesos://host")


# Java, for a process that only wants to know what Spark is asked for.
RECORDER = """#!/bin/sh
for word in "$@"; do echo "$word"; done > "$ASKED"
exit 1
"""
ASKING = """
import json, sys
from thermocline.errors import Unavailable
from thermocline.pipeline.spark.session import session
try:
    session(sys.argv[1], memory="3g", settings=json.loads(sys.argv[2]))
except Unavailable:
    pass
"""
LOCAL_ONLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


def asked_for(master, folder, **settings):
    """Return the settings and the other words that Spark would be started with."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(RECORDER)
    java.chmod(0o700)
    environment = os.environ | {"JAVA_HOME": str(folder), "ASKED": str(folder / "asked")}
    command = [sys.executable, "-c", ASKING, master, json.dumps(settings)]
    subprocess.run(command, env=environment, check=True)
    words = (folder / "asked").read_text().splitlines()
    given = [after for word, after in pairwise(words) if word == "--conf"]
    return dict(one.split("=", 1) for one in given), words


@pytest.mark.parametrize("master", ["local[2]", "spark://h:7077", "yarn", "k8s://https://h:6443"])
def test_every_master_is_asked_for_with_what_is_right_for_it(tmp_path, master):
    image = {"spark.kubernetes.container.image": "lake/spark:4.3", "spark.ui.enabled": "true"}
    found, words = asked_for(master, tmp_path, **image)
    assert found["spark.master"] == master
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.sql.parquet.outputTimestampType"] == "TIMESTAMP_MICROS"
    assert image.items() <= found.items()  # what is given wins
    # Workers elsewhere reach no loopback, and a cluster knows best how much it can do at once.
    here = {name: value for name, value in found.items() if name in LOCAL_ONLY}
    assert here == (LOCAL_ONLY if master == "local[2]" else {})
    # The driver is this process, whatever the master.
    assert "spark.submit.deployMode" not in found
    assert (words[-1], "-Xmx3g" in words) == ("pyspark-shell", True)


def ended_and_begun(spark):
    """End a session, fail to begin one, and begin another, all in the same process."""
    first = spark.range(3).count()
    tc.spark.stop(spark)
    with pytest.raises(Unavailable, match="Could not parse Master URL") as refused:
        tc.spark.session("local[none]")
    assert refused.value.message == "Spark did not start"
    again = tc.spark.session("local[1]")
    return first, again.range(4).count(), again.sparkContext.master


def test_a_session_may_end_one_may_fail_to_start_and_another_begin(elsewhere):
    assert elsewhere(ended_and_begun, "local[1]") == (3, 4, "local[1]")


def test_a_package_that_workers_lack_is_not_taken_for_a_machine_that_is_too_small():
    error = RuntimeError("Traceback ...\nModuleNotFoundError: No module named 'pyroaring'\n")
    told = translate_error(error)
    assert isinstance(told, Unsupported)
    assert "pyroaring" in str(told.facts["why"])


# Real Java, which is killed as soon as PySpark can reach it, as by a machine without memory.
KILLED = """#!/bin/sh
"{java}" "$@" &
child=$!
while [ ! -s "$_PYSPARK_DRIVER_CONN_INFO_PATH" ]; do sleep 0.02; done
kill -9 $child
exit 137
"""
NO_HEAP = """#!/bin/sh
echo "Could not reserve enough space for object heap" >&2
exit 1
"""


def java_that(folder, text):
    """Make a JAVA_HOME whose Java is a script."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(text)
    java.chmod(0o700)
    return folder


def run_jobs(folder, home, *more):
    """Run jobs of a lake with some Java; return the exit code, and what was said and answered."""
    make_lake(folder / "lake")
    (folder / "node.toml").write_text('data = "lake"\n' + JOBS)
    command = [sys.executable, "-c", COMMAND, "pipeline", "run", "compact", "rollup", "retain"]
    environment = os.environ | {"JAVA_HOME": str(home)}
    done = subprocess.run(
        [*command, "--config", "node.toml", *more],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr, done.stdout


COMMAND = "import sys; from thermocline.cli.main import run; sys.exit(run(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("java", "reason"),
    [
        (None, "No such file or directory"),
        (NO_HEAP, "Could not reserve enough space for object heap"),
        (KILLED, "Java was killed"),
    ],
)
def test_why_spark_does_not_start_is_said_once_and_what_needs_it_is_not_run(tmp_path, java, reason):
    home = tmp_path / "nowhere"
    if java is not None:
        real = Path(java_home()) / "bin" / "java"
        java_that(home, java.replace("{java}", str(real)))
    code, err, out = run_jobs(tmp_path, home, "--json")
    assert code == 6
    ran = json.loads(out)["ran"]
    first, *others, last = ran
    assert (first["job"], first["state"]) == ("compact", "failed")
    assert reason in first["error_message"]
    assert others[-1]["table_name"] == "metrics_1h"
    for one in others:
        assert one["state"] == "not run"
        assert one["error_message"] == "not run, because Spark did not start"
    assert (last["job"], last["state"], last["error_message"]) == ("retain", "done", None)
    assert reason in str(json.loads(err.splitlines()[-1])["error"]["facts"])
    assert "AssertionError" not in out + err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("master", "reason"),
    [
        ("spark://127.0.0.1:1", "All masters are unresponsive"),
        ("sc://127.0.0.1:1", "Connection refused"),
    ],
)
def test_a_cluster_where_nothing_listens_is_the_reason_in_good_time(tmp_path, master, reason):
    code, err, out = run_jobs(tmp_path, java_home(), "--json", "--master", master)
    assert code == 6
    first, *others, last = json.loads(out)["ran"]
    assert reason in first["error_message"]
    assert {one["state"] for one in others} == {"not run"}
    assert last["state"] == "done"
    assert reason in str(json.loads(err.splitlines()[-1])["error"]["facts"])
    assert first["took_ms"] < 200_000


def test_the_reason_why_spark_does_not_start_is_the_commands_error(tmp_path):
    home = java_that(tmp_path / "java", NO_HEAP)
    code, err, out = run_jobs(tmp_path, home)
    assert code == 6
    assert "rollup metrics_1h not run: not run, because Spark did not start" in err
    # A line of the task, and the error of the command.
    assert err.count("Could not reserve enough space") == 2
    assert out.count("Could not reserve enough space") == 1


KILL_AND_BEGIN = """
from thermocline.pipeline.spark import session as sessions
sessions.session("local[1]")
(gateway,) = sessions._gateways.values()
gateway.process.kill()
gateway.process.wait()
again = sessions.session("local[1]")
print(again.range(4).count())
sessions.stop(again)
"""


def test_a_session_whose_java_was_killed_is_followed_by_a_new_one():
    done = subprocess.run(
        [sys.executable, "-c", KILL_AND_BEGIN], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


def test_an_error_without_a_text_is_named_once():
    assert translate_error(AssertionError()).facts["why"] == "AssertionError"
