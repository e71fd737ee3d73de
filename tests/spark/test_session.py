"""A session works from the packages alone, says what is wrong, and is one a process."""

import pytest

import thermocline as tc
from thermocline.errors import Invalid, Unsupported
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


def ended_and_begun(spark):
    """End a session and begin another in the same process."""
    first = spark.range(3).count()
    tc.spark.stop(spark)
    again = tc.spark.session("local[1]")
    return first, again.range(4).count(), again.sparkContext.master


def test_a_session_may_end_and_another_begin(elsewhere):
    assert elsewhere(ended_and_begun, "local[1]") == (3, 4, "local[1]")


def test_a_package_that_workers_lack_is_not_taken_for_a_machine_that_is_too_small():
    error = RuntimeError("Traceback ...\nModuleNotFoundError: No module named 'pyroaring'\n")
    told = told_of(error)
    assert isinstance(told, Unsupported)
    assert "pyroaring" in str(told.facts["why"])
