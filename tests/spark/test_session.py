"""A session works from the packages alone, says what is wrong, and is one a process."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import pytest

import thermocline as tc
from thermocline.errors import Invalid, Unavailable, Unsupported
from thermocline.pipeline.failure import told_of
from thermocline.pipeline.session import session


def test_there_is_one_session_a_process(spark):
    assert tc.spark.session("local[2]") is spark
    assert spark.range(10).count() == 10


def test_times_are_utc_whatever_the_machine_says(spark):
    assert spark.sql("select string(timestamp_micros(0))").collect()[0][0] == "1970-01-01 00:00:00"


def test_a_place_where_no_spark_runs_is_refused():
    with pytest.raises(Invalid, match="not a place where Spark runs"):
        session("mesos://host")


# Java, for a process that only wants to know what Spark is asked for.
RECORDER = """#!/bin/sh
for word in "$@"; do echo "$word"; done > "$ASKED"
exit 1
"""
ASKING = """
import json, sys
from thermocline.errors import Unavailable
from thermocline.pipeline.session import session
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
    told = told_of(error)
    assert isinstance(told, Unsupported)
    assert "pyroaring" in str(told.facts["why"])
