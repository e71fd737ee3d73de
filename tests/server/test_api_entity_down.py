"""Entities over HTTP while PostgreSQL is down: refused, or marked with what an answer is worth."""

import time

import pytest

from fixtures.entities import ORDER, serving_entities
from fixtures.postgres import own_postgres, postgres_run, postgres_template
from fixtures.timing import wait_until
from thermocline.entity.degraded_read import LAKE_ALONE, OLD_ANSWER

__all__ = ["own_postgres", "postgres_run", "postgres_template"]

PATH = "/api/v1/entities/order"


@pytest.fixture
def stopped(tmp_path, own_postgres):
    """A client of a node whose PostgreSQL went away after an export and another write."""
    with (
        serving_entities(tmp_path, own_postgres.dsn) as served,
        served.client() as client,
    ):
        client.post(f"{PATH}/schema", json=ORDER)
        client.put(f"{PATH}/a", json={"status": "exported"})
        served.exported = client.post(f"{PATH}/export").json()["exported"]
        client.put(f"{PATH}/a", json={"status": "newer"})
        client.put(f"{PATH}/hot", json={"status": "hot"})
        served.seen = client.get(f"{PATH}/a", params={"mode": "cached"})
        served.scanned = client.post(f"{PATH}/scan", json={"columns": ["_id"]})
        own_postgres.stop()
        yield served, client, own_postgres


def test_without_postgres_each_mode_answers_as_it_says(stopped):
    served, client, postgres = stopped
    began_s = time.monotonic()
    for answer in (
        client.get(f"{PATH}/a"),
        client.get(f"{PATH}/a", params={"mode": "strict"}),
        client.get(f"{PATH}/hot", params={"mode": "cached"}),
        client.put(f"{PATH}/a", json={"status": "x"}),
        client.post(f"{PATH}/search", json={}),
        client.get(f"{PATH}/a/history"),
        client.post(f"{PATH}/scan", json={}),
        client.get("/api/v1/entities"),
        client.post(f"{PATH}/export"),
        client.post("/api/v1/query", json={"sql": 'select * from "order"'}),
    ):
        assert answer.status_code == 503, answer.text
        assert answer.json()["code"] == "unavailable"
        assert 1 <= int(answer.headers["retry-after"]) <= 5
    assert time.monotonic() - began_s < 120

    marked = client.get(f"{PATH}/a", params={"mode": "best_effort"})
    assert (marked.status_code, marked.json()["document"]) == (200, {"status": "exported"})
    assert marked.headers["thermocline-warning"] == marked.json()["warning"] == LAKE_ALONE
    told = marked.json()["as_of"]
    assert marked.headers["thermocline-as-of"] == told == served.exported["as_of"]
    known = client.get(
        f"{PATH}/a", params={"mode": "best_effort"}, headers={"If-None-Match": '"1"'}
    )
    assert known.status_code == 200  # what is not exact is told in full

    absent = client.get(f"{PATH}/hot", params={"mode": "best_effort"})
    assert absent.status_code == 404
    assert absent.headers["thermocline-warning"] == LAKE_ALONE
    assert absent.json()["facts"]["as_of"] == served.exported["as_of"]

    cached = client.get(f"{PATH}/a", params={"mode": "cached"})
    assert cached.json()["document"] == {"status": "newer"}
    assert cached.json()["warning"] == cached.headers["thermocline-warning"] == OLD_ANSWER
    assert cached.headers["thermocline-as-of"] == served.seen.headers["thermocline-as-of"]

    rows = client.post(f"{PATH}/scan", json={"mode": "best_effort", "columns": ["_id"]})
    assert rows.json()["rows"] == [{"_id": "a"}]
    assert rows.headers["thermocline-warning"] == LAKE_ALONE
    rows = client.post(f"{PATH}/scan", json={"mode": "cached", "columns": ["_id"]})
    assert rows.headers["thermocline-as-of"] == served.scanned.headers["thermocline-as-of"]
    then = client.get(f"{PATH}/a", params={"at": served.exported["version"]})
    assert then.json()["document"] == {"status": "exported"}
    assert client.get(f"{PATH}/a", params={"mode": "perhaps"}).status_code == 400

    postgres.start()
    until_s = time.monotonic() + 120
    while (found := client.get(f"{PATH}/a")).status_code == 503 and time.monotonic() < until_s:
        time.sleep(0.2)
    assert found.json()["document"] == {"status": "newer"}
    assert "thermocline-warning" not in found.headers


def test_exports_that_fail_are_in_health_metrics_and_the_list_of_jobs(tmp_path, own_postgres):
    busy = {"export_changes": 1, "flush_look_s": 0.05}
    with (
        serving_entities(tmp_path, own_postgres.dsn, **busy) as served,
        served.client() as client,
    ):
        client.post(f"{PATH}/schema", json=ORDER)
        assert client.get("/api/v1/jobs").json()["export_error"] is None
        own_postgres.stop()
        wait_until(lambda: client.get("/api/v1/jobs").json()["export_error"] is not None)
        assert client.get("/api/v1/jobs").json()["export_error"]["code"] == "unavailable"
        ready = client.get("/health/ready")
        assert ready.status_code == 200
        assert "exports of entities fail" in ready.json()["warnings"][0]
        assert "thermocline_export_failing 1.0" in client.get("/metrics").text


def test_a_node_started_without_its_postgres_answers_best_effort_from_the_lake(
    tmp_path, own_postgres
):
    with serving_entities(tmp_path, own_postgres.dsn) as served, served.client() as client:
        client.post(f"{PATH}/schema", json=ORDER)
        client.put(f"{PATH}/a", json={"status": "exported"})
        client.post(f"{PATH}/export")
    own_postgres.stop()
    with serving_entities(tmp_path, own_postgres.dsn) as served, served.client() as client:
        assert client.get(f"{PATH}/a").status_code == 503
        assert client.put(f"{PATH}/a", json={"status": "x"}).status_code == 503
        found = client.get(f"{PATH}/a", params={"mode": "best_effort"})
        assert (found.status_code, found.json()["document"]) == (200, {"status": "exported"})
        assert found.headers["thermocline-warning"] == LAKE_ALONE
