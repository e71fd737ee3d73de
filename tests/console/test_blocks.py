"""Coverage as blocks and freshness as stages, over HTTP: exact, bounded, of one reading."""

import json

import pytest

from console.filled import MARKUP
from fixtures.api import make_prices, price, serving

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A node with cold hours 0-5 of A (3 missing), cold 0 of B, and hot 6-7 of A and 1 of B."""
    with (
        serving(tmp_path_factory.mktemp("node"), flush_age_s=3_600.0) as served,
        served.client() as client,
    ):
        make_prices(client)
        make_prices(client, "empty")
        cold = [price(hour, "A") for hour in (0, 1, 2, 4, 5)]
        write(client, [*cold, price(0, "B"), price(0, MARKUP)])
        client.post("/api/v1/tables/prices/flush")
        write(client, [price(6, "A"), price(7, "A"), price(1, "B")])
        yield client


def write(client, rows):
    answer = client.post("/api/v1/tables/prices/rows", content=json.dumps(rows), headers=JSON)
    assert answer.status_code == 200, answer.text


def blocks(client, name="prices", **params):
    answer = client.get(f"/api/v1/tables/{name}/blocks", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def lane(found, symbol):
    (one,) = [lane for lane in found["lanes"] if lane["entity"] == {"symbol": symbol}]
    return one


def test_a_block_is_held_missing_or_unflushed_bucket_by_bucket(client):
    found = blocks(client)
    assert (found["buckets"], found["blocks"], found["bucket_s"]) == (8, 8, 3_600)
    assert (found["start"], found["end"]) == ("2024-06-01T00:00:00Z", "2024-06-01T08:00:00Z")
    assert lane(found, "A")["held"] == [1, 1, 1, 0, 1, 1, 1, 1]
    assert lane(found, "A")["unflushed"] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert lane(found, "B")["held"] == [1, 1, 0, 0, 0, 0, 0, 0]
    assert lane(found, "B")["unflushed"] == [0, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 8, 500])
def test_every_bucket_is_in_exactly_one_block(client, cut):
    found = blocks(client, blocks=cut)
    assert found["blocks"] == min(cut, 8)
    for one in found["lanes"]:
        assert sum(one["held"]) == one["buckets_held"]
        assert len(one["held"]) == len(one["unflushed"]) == found["blocks"]
    assert lane(found, "A")["buckets_held"] == 7
    assert sum(lane(found, "A")["unflushed"]) == 2


def test_the_worst_come_first_and_pages_follow_each_other(client):
    whole = [one["entity"]["symbol"] for one in blocks(client)["lanes"]]
    assert whole == [MARKUP, "B", "A"]
    named = [one["entity"]["symbol"] for one in blocks(client, order="name")["lanes"]]
    assert named == sorted(named)
    paged = [blocks(client, limit=1, offset=offset) for offset in range(4)]
    assert [one["entities"] for one in paged] == [3] * 4
    assert [lane["entity"]["symbol"] for page in paged for lane in page["lanes"]] == whole
    assert [one["entity"]["symbol"] for one in blocks(client, contains="ONERROR")["lanes"]] == [
        MARKUP
    ]


def test_a_version_of_the_past_has_nothing_unflushed(client):
    version = client.get("/api/v1/tables/prices").json()["version"]
    found = blocks(client, at=version, start="2024-06-01", end="2024-06-02")
    assert found["buckets"] == 24
    assert lane(found, "A")["buckets_held"] == 5
    assert not any(sum(one["unflushed"]) for one in found["lanes"])


def test_a_table_without_rows_has_no_lanes_and_one_without_entities_has_one(client):
    assert blocks(client, "empty")["lanes"] == []
    body = {"name": "plain", "time_column": "ts", "bucket": "1h"}
    client.post("/api/v1/tables", json=body)
    client.post("/api/v1/tables/plain/rows", json={"ts": "2024-06-01T05:00:00", "x": 1})
    found = blocks(client, "plain")
    assert found["lanes"] == [{"entity": {}, "held": [1], "unflushed": [1], "buckets_held": 1}]


def test_what_cannot_be_asked_is_refused(client):
    for params in ({"blocks": 0}, {"blocks": 501}, {"limit": 201}, {"order": "best"}):
        answer = client.get("/api/v1/tables/prices/blocks", params=params)
        assert answer.status_code == 400, params
    assert client.get("/api/v1/tables/nothing/blocks").status_code == 404


def test_freshness_tells_each_half_and_the_last_flush(client):
    found = client.get("/api/v1/freshness").json()
    assert found["sync"] == "always"
    tables = {one["table"]: one for one in found["tables"]}
    prices = tables["prices"]
    assert (prices["hot_rows"], prices["cold_rows"]) == (3, 7)
    assert prices["newest"] == "2024-06-01T07:00:00Z"
    assert prices["newest_cold"] == "2024-06-01T05:00:00Z"
    assert prices["hot_s"] >= 0
    assert prices["flushed"]["version"] == prices["version"]
    assert prices["compacted"] is None
    empty = tables["empty"]
    assert (empty["newest"], empty["flushed"], empty["hot_s"]) == (None, None, None)
