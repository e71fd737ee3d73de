"""The commands of the pipeline with a real Spark: run, backfill, erase, as a person meets them."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.pipeline import JOBS, make_lake
from thermocline import connect
from thermocline.cli.main import run
from thermocline.pipeline.run import runner as running


@pytest.fixture
def folder(tmp_path, monkeypatch, spark):
    """A lake with work for the jobs; the session is the one of all tests."""
    make_lake(tmp_path / "lake")
    (tmp_path / "node.toml").write_text('data = "lake"\n' + JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "session", lambda *_, **__: spark)
    monkeypatch.setattr(running, "stop", lambda spark: None)
    return tmp_path


@pytest.fixture
def command(folder, capfd):
    """Run a command in this process; return what it answered, and what it said meanwhile."""

    def ran(*words):
        capfd.readouterr()
        code = run(["pipeline", *words, "--config", "node.toml", "--json"])
        out, err = capfd.readouterr()
        assert code == 0, err
        return json.loads(out), err

    return ran


def test_jobs_run_with_a_summary_and_are_listed_afterwards(command, folder):
    found, said = command("run", "--table", "metrics")
    assert [(one["job"], one["table_name"]) for one in found["ran"]] == [("compact", "metrics")]
    more, _ = command("run", "rollup", "retain")
    assert [(one["job"], one["table_name"], one["state"]) for one in more["ran"]] == [
        ("rollup", "metrics_1h", "done"),
        ("retain", "events", "done"),
    ]
    assert "compact metrics: 2 segments can be merged\n" in said
    assert "compact metrics done, version" in said
    listed = command("jobs")[0]["jobs"]
    assert [one["job"] for one in listed] == ["retain", "rollup", "compact"]
    assert listed[0]["started_at"].endswith("Z")
    assert listed[1]["numbers"]["windows"] == 1
    (rollup,) = command("rollups")[0]["rollups"]
    assert (rollup["source"], rollup["aggregates"], rollup["due"]) == (
        "metrics",
        {"n": "count(*)"},
        None,
    )
    assert command("run", "compact", "rollup", "--table", "metrics")[0] == {"ran": []}
    with connect(folder / "lake") as lake:
        assert lake.sql("select n from metrics_1h").to_pylist() == [{"n": 2}]
        query = "select count(*) as n from pipeline_jobs where state = 'done'"
        assert lake.sql(query).to_pylist() == [{"n": 3}]


def test_a_backfill_takes_a_batch_in_once(command, folder):
    times = pa.array([datetime(2024, 7, 1, hour=h, tzinfo=UTC) for h in range(3)])
    pq.write_table(pa.table({"ts": times, "host": ["b"] * 3}), folder / "july.parquet")
    make = ("--time-column", "ts", "--bucket", "1d", "--batch", "july")
    words = ("backfill", "july", "july.parquet", *make)
    assert command(*words, "--dry-run")[0]["backfill"]["is_in"] is False
    (ran,) = command(*words)[0]["ran"]
    assert (ran["state"], ran["rows"]) == ("done", 3)
    (again,) = command(*words)[0]["ran"]
    assert again["state"] == "nothing"
    assert command(*words, "--dry-run")[0]["backfill"]["is_in"] is True


def test_a_backfill_that_sets_rows_aside_says_how_many_and_ends_with_code_2(folder, capfd):
    lines = "".join(f"2024-07-01T{hour:02}:00:00Z,{hour}\n" for hour in range(20))
    (folder / "july.csv").write_text("ts,close\n" + lines + "2024-07-02T00:00:00Z,oops\n")
    words = ["pipeline", "backfill", "july", "july.csv", "--time-column", "ts"]
    capfd.readouterr()
    code = run([*words, "--column-type", "close=double", "--config", "node.toml", "--json"])
    out, err = capfd.readouterr()
    assert code == 2
    (ran,) = json.loads(out)["ran"]
    assert (ran["state"], ran["rows"], ran["numbers"]["bad_rows"]) == ("done", 20, 1)
    told = json.loads(err.splitlines()[-1])["error"]
    assert told["facts"]["rows_set_aside"] == 1
    with connect(folder / "lake") as lake:
        found = lake.sql("select line, column_name, raw from july_quarantine").to_pylist()
        assert found == [{"line": 22, "column_name": "close", "raw": "2024-07-02T00:00:00Z,oops"}]
        assert lake.sql("select sum(close) as s from july").to_pylist() == [{"s": 190.0}]


def test_an_erasure_ends_with_a_certificate(command):
    words = ("erase", "--subject", "host=host-of-ada")
    found = command(*words, "--dry-run")[0]["found"]
    assert {one["table"] for one in found} == {"metrics", "events"}
    certificate, _ = command(*words, "--yes", "--by", "the tests")
    assert certificate["is_complete"] is True
    assert certificate["by"] == "the tests"
    assert command(*words, "--dry-run")[0]["found"] == []
    (ran,) = command("jobs")[0]["jobs"]
    assert (ran["job"], ran["table_name"], ran["rows"]) == ("erase", "_all", 4)
