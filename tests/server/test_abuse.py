"""A node under attack or on a faulty machine: no secret is disclosed, no row is lost."""

import errno
import os
import subprocess
from datetime import UTC, datetime
from itertools import count

import pytest

from fixtures.api import serving
from fixtures.wal import NEVER_S, numbers, opened, ticks
from thermocline.config import LakeSettings, WalSettings
from thermocline.errors import Unavailable
from thermocline.format.instant import to_instant
from thermocline.node import open_lake

# tests/query has them all; these show that nothing stands beside the gate.
HOSTILE = (
    "select * from '{secret}'",
    "select * from read_text('{secret}')",
    "select * from glob('{folder}/*')",
    "attach '{secret}' as other",
    "copy prices to '{secret}'",
    "copy (select 1) to '{secret}'",
    "install httpfs",
    "set threads = 1",
    "pragma database_list",
    "select current_setting('temp_directory')",
    "select * from duckdb_settings()",
    "select 1; drop table prices",
    "select 1; -- \n; select 2",
    "explain analyze insert into prices values (1)",
    "with x as (delete from prices returning *) select * from x",
    "create temp table x as select 1",
    "select * from information_schema.settings",
)
ADDRESSES = ("url", "uri", "href", "webhook", "callback", "endpoint", "host")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A node with a table of prices."""
    with serving(tmp_path_factory.mktemp("node")) as served:
        lake = served.node.lake()
        lake.create_table("prices", time_column="ts", bucket="1s").write(ticks(1, 2))
        lake.flush()
        yield served


@pytest.mark.parametrize("hostile", HOSTILE)
def test_A04_A05_A07_hostile_sql_over_http_is_refused_and_told_nothing(served, tmp_path, hostile):
    secret = tmp_path / "secret"
    secret.write_text("correct-horse-battery")
    query = {"sql": hostile.format(secret=secret, folder=tmp_path)}
    with served.client() as client:
        answer = client.post("/api/v1/query", json=query)
    assert 400 <= answer.status_code < 500, answer.text
    assert "correct-horse" not in answer.text
    assert served.node.lake().root() not in answer.text


def test_A12_a_question_about_all_of_time_costs_no_more_than_its_rows(served):
    wide = "where ts >= '0001-01-01' and ts < '9999-12-31'"
    asked = [
        f"select count(*) as n from prices {wide}",
        "select count(*) as n from gaps('prices', '1700-01-01', '2200-01-01')",
        " union all ".join(
            f"select count(*) as n from prices {wide} and n > {n}" for n in range(9)
        ),
    ]
    with served.client() as client:
        counts = [
            [row["n"] for row in client.post("/api/v1/query", json={"sql": one}).json()["rows"]]
            for one in asked
        ]
    assert counts[0] == [2]
    assert counts[1] == [2], "before and after the one second that is held"
    assert len(counts[2]) == 9


def test_A16_nothing_that_can_be_asked_makes_the_node_call_another_host(served):
    with served.client() as client:
        document = client.get("/api/v1/openapi.json").json()
    names = set(asked_names(document))
    assert {"sql", "params", "where"} <= names
    assert not [name for name in names if name.lower() in ADDRESSES]


def asked_names(part):
    """Yield the names of everything that a request may say."""
    if isinstance(part, list):
        for one in part:
            yield from asked_names(one)
    elif isinstance(part, dict):
        yield from part.get("properties", ())
        yield from [part["name"]] if "in" in part and "name" in part else []
        for one in part.values():
            yield from asked_names(one)


def test_O01_a_clock_that_jumps_back_stands_still_or_leaps_ahead_changes_no_order(tmp_path):
    hours = iter([0, -1, -1, 24 * 365, 24 * 365, 2])
    now = {"ns": 1_717_200_000 * 10**9}

    def clock_ns():
        return now["ns"]

    settings = LakeSettings(WalSettings(), flush_age_s=NEVER_S, flush_look_s=NEVER_S)
    with open_lake(tmp_path / "lake", settings, now_ns=clock_ns) as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        for number, hour in enumerate(hours):
            now["ns"] = 1_717_200_000 * 10**9 + hour * 3600 * 10**9
            table.write(ticks(number))
            table.flush()
        told = table.history().sort_by("version")
        times, notes = told.column("time").to_pylist(), told.column("note").to_pylist()
        # One jump into the next year does not stamp the commits after it: the last is of its hour.
        assert times[:-1] == sorted(times[:-1])
        assert times[-1] == datetime(2024, 6, 1, 2, tzinfo=UTC)
        assert "ahead of the clock" in notes[-1]
        by_then = [table.cold.log.newest_by(to_instant(time)) for time in sorted(times)]
        assert by_then == sorted(by_then)
        assert by_then[-1] == len(times)
    with opened(tmp_path / "lake") as lake:
        assert numbers(lake.table("m")) == list(range(6))


def test_O04_a_process_that_cannot_be_started_is_one_query_refused_and_no_row(
    tmp_path, monkeypatch
):
    settings = LakeSettings(query_workers=1)
    with open_lake(tmp_path / "lake", settings) as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        table.write(ticks(1))
        tries = count()

        def no_more_processes(*_, **__):
            next(tries)
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", no_more_processes)
            with pytest.raises(Unavailable, match="does not start"):
                lake.sql("select n from m")
            table.write(ticks(2))
        assert next(tries) >= 1
        assert lake.sql("select n from m order by n").column(0).to_pylist() == [1, 2]
