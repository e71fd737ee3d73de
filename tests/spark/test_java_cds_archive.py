"""What Java learned of one start of Spark is used by the next."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import thermocline as tc
from thermocline.errors import Invalid, Unavailable
from thermocline.pipeline.spark import java_cds_archive as room

LIMIT_S = 600
LEARN = """
import sys
from pathlib import Path
from thermocline.pipeline.spark import java_cds_archive, java_gateway, session
path = Path(sys.argv[1]) / "spark.aot"
java_gateway.java_cache_path = java_cds_archive.java_cache_path = lambda: path
"""
TWICE = """
# Every class more takes Java longer to write down.
java_cds_archive._run_sample_work = lambda spark, folder: None
print(java_cds_archive.learn(print))
spark = session.session("local[1]")
beans = spark.sparkContext._jvm.java.lang.management.ManagementFactory
print([flag for flag in beans.getRuntimeMXBean().getInputArguments() if "AOT" in flag])
print(spark.range(10).count())
"""
NOT_KEPT = """
java_gateway._cache_flags = lambda learned: []
java_cds_archive._run_sample_work = lambda spark, folder: None
java_cds_archive.learn()
"""


def run(program, *words):
    done = subprocess.run(
        [sys.executable, "-c", LEARN + program, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_what_java_learned_is_kept_and_the_next_start_uses_it(tmp_path):
    code, told, errors = run(TWICE, str(tmp_path / "kept"))
    path = tmp_path / "kept" / "spark.aot"
    assert (code, told[-3:]) == (0, [str(path), f"['-XX:AOTCache={path}']", "10"]), errors
    assert path.stat().st_size > 10_000_000
    assert list(path.parent.iterdir()) == [path], "nothing unfinished is left"


def test_what_java_is_shown_is_the_work_of_jobs(spark, tmp_path):
    room._run_sample_work(spark, tmp_path)
    assert spark.read.parquet(str(tmp_path / "sorted")).count() == room.ROWS
    assert tc.TimeSeriesTable.open(tmp_path / "table").to_arrow().num_rows == room.ROWS


def test_a_java_that_keeps_nothing_is_told_of(tmp_path):
    code, _, errors = run(NOT_KEPT, str(tmp_path))
    assert code == 1
    assert "this Java wrote no cache" in errors
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_once_it_is_old(tmp_path):
    old, new, kept = (tmp_path / name for name in (".1.aot", ".2.aot", "spark-1.aot"))
    for path in (old, new, kept):
        path.write_bytes(b"")
    for path in (old, kept):
        os.utime(path, (0, 0))
    room._remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == [new, kept]


def test_a_place_that_cannot_be_written_to_is_told_before_spark_is_started(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(room, "is_running", lambda: False)
    monkeypatch.setattr(room, "java_cache_path", lambda: tmp_path / "file" / "spark.aot")
    monkeypatch.setattr(room, "start_learning_session", None)
    with pytest.raises(Unavailable, match="cannot be written") as caught:
        room.learn()
    assert caught.value.facts["path"] == str(Path(tmp_path, "file", "spark.aot"))


def test_a_session_that_runs_is_left_alone(monkeypatch):
    monkeypatch.setattr(room, "is_running", lambda: True)
    with pytest.raises(Invalid, match="runs in this process"):
        room.learn()
