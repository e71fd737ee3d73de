"""A served node looks after its tables in a process of its own, and says how it goes."""

import os
import signal
import time

import pytest

from fixtures.served import ServedNode
from fixtures.year import YearOfCare
from thermocline.care.keeper import CareKeeper
from thermocline.config import CareSettings

WAIT_S = 120


def wait_until(check, what):
    end_s = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end_s, what
        time.sleep(0.1)


@pytest.fixture
def keeper(tmp_path):
    year = YearOfCare(tmp_path / "lake", retention="400d")
    for _ in year.live(1, flushes=12, rounds=12):
        pass
    year.close()
    made = CareKeeper(str(tmp_path / "lake"), CareSettings(care_every_s=0.2))
    made.start()
    yield made
    made.stop()
    assert not made.status().is_running


def test_a_process_that_is_killed_is_started_again(keeper):
    wait_until(lambda: keeper.status().rounds >= 1, "no round")
    os.kill(keeper._process.pid, signal.SIGKILL)
    wait_until(lambda: keeper.status().starts >= 2, "not started again")
    rounds = keeper.status().rounds
    wait_until(lambda: keeper.status().rounds > rounds, "no round after the kill")
    assert keeper.status().failing == ()
    assert dict(keeper.status().sums)["rows"] >= 240


def test_a_node_compacts_what_it_flushes_without_being_asked(tmp_path):
    words = ("--set", "care_every_s=0.5", "--set", "logs_retention_s=0", "--grpc", "off")
    with ServedNode(tmp_path / "data", *words) as node:
        node.ready()
        for number in range(9):
            assert node.send_log(number)[0] == 200
            assert node.ask("/api/v1/flush", {})[0] == 200
        end_s = time.monotonic() + WAIT_S
        while not any(one["job"] == "compact" for one in node.events("care")):
            assert time.monotonic() < end_s, node.lines
            time.sleep(0.2)
        asked = {"sql": "select count(*) as n from logs"}
        assert node.ask("/api/v1/query", asked)[1]["rows"] == [{"n": 9}]
        wait_until(lambda: "thermocline_cold_segments" in node.ask("/metrics")[1], "no sums")
        text = node.ask("/metrics")[1]
        assert "thermocline_care_up 1.0" in text
        assert "thermocline_care_failing 0.0" in text
        assert "warnings" not in node.ask("/health/ready")[1]
        assert node.ask("/api/v1/tables/logs")[1]["retention"] is None
