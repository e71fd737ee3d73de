"""Queries over a real socket: every format, to the last digit, and every way they can end badly."""

import io
import json
import socket
import threading
import time
import uuid
from decimal import Decimal

import httpx2
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from fixtures.api import ENDLESS, FAILS_LATE, ask, make_prices, price, serving
from fixtures.timing import at_best, soonest, wait_until
from thermocline.config import QuotaSettings
from thermocline.query.worker import query_queue as queue_room

WAIT_S = 40  # far more than a busy machine takes to notice, and less than a query may take
FORMATS = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    # The clock carries nothing to Parquet: tests tell how many rows are hot.
    with serving(tmp_path_factory.mktemp("node"), flush_age_s=3_600.0) as served:
        yield served


@pytest.fixture
def client(node):
    with node.client() as client:
        yield client


@pytest.fixture(scope="module")
def prices(node):
    with node.client() as client:
        make_prices(client)
        table = node.node.lake().table("prices")
        table.write([price(0), price(1)])
        table.flush()
        table.write([price(2)])
    return "prices"


def body_of(client, sql, accept=None, **more):
    headers = {"Accept": accept} if accept else {}
    answer = client.post("/api/v1/query", json={"sql": sql, **more}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def table_of(form, data):
    """Return the rows that a body has, read by an independent reader."""
    if form == "json":
        return pa.Table.from_pylist(json.loads(data)["rows"])
    if form == "ndjson":
        return pa.Table.from_pylist([json.loads(line) for line in data.splitlines()])
    if form == "csv":
        return pa_csv.read_csv(io.BytesIO(data))
    if form == "arrow":
        return pa.ipc.open_stream(data).read_all()
    return pq.read_table(io.BytesIO(data))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_holds_the_same_rows(client, form):
    sql = "select i::bigint as i, 'é,\"' || i as s, i * 0.5::double as f from range(40000) t(i)"
    by_name = body_of(client, sql, format=form)
    by_accept = body_of(client, sql, accept=FORMATS[form])
    assert by_name.content == by_accept.content or form == "json"  # whose ids differ
    assert by_name.headers["content-type"].startswith(FORMATS[form])
    found = table_of(form, by_name.content)
    assert found.num_rows == 40_000
    assert found.column("i").to_pylist() == list(range(40_000))
    assert found.column("s")[7].as_py() == 'é,"7'
    assert found.column("f")[3].as_py() == 1.5


@pytest.mark.parametrize("form", FORMATS)
def test_an_answer_without_rows_is_whole_in_every_format(client, form):
    data = body_of(client, "select 1 as a where false", format=form).content
    if form == "ndjson":
        assert data == b""
    else:
        assert table_of(form, data).num_rows == 0


def test_json_keeps_what_doubles_lose(client):
    sql = """select 9007199254740993::bigint as big, 18446744073709551615::ubigint as unsigned,
        170141183460469231731687303715884105727::hugeint as huge,
        12345678901234567890.123456789::decimal(38, 9) as money,
        '2024-06-01 00:00:00.123456789'::timestamp_ns as ns, 'NaN'::double as nan,
        '-infinity'::double as low, '\\xAB\\x00'::blob as bytes, 0.1::float as small"""
    answer = body_of(client, sql)
    row = json.loads(answer.content, parse_float=Decimal)["rows"][0]
    assert row == {
        "big": 9007199254740993,
        "unsigned": 18446744073709551615,
        "huge": 170141183460469231731687303715884105727,
        "money": Decimal("12345678901234567890.123456789"),
        "ns": "2024-06-01T00:00:00.123456789",
        "nan": "NaN",
        "low": "-Infinity",
        "bytes": "ab00",
        "small": Decimal("0.1"),
    }


def test_a_query_id_has_no_line_end(client):
    asked = {"sql": "select 1", "query_id": "my-query-0002\n"}
    assert client.post("/api/v1/query", json=asked).status_code == 400


def test_an_answer_says_its_versions_its_freshness_and_rows_of_each_tier(client, prices):
    # A plain count(*) would open no file: the log knows how many rows each file has.
    sql = "select count(symbol) as n from prices"
    answer = body_of(client, sql, query_id="my-query-0001")
    told = answer.json()
    read = told["report"]["tables"]["prices"]
    assert told["query_id"] == answer.headers["x-query-id"] == "my-query-0001"
    assert (read["hot_rows"], read["cold_rows"], read["files_pruned"]) == (1, 2, 0)
    assert read["version"] >= 2
    assert read["as_of"].endswith("Z")
    assert json.loads(answer.headers["x-thermocline-report"]) == told["report"]
    assert told["rows"] == [{"n": 3}]


def test_parameters_are_bound_by_place_and_by_name_and_keep_their_types(client, prices):
    sql = "select count(*) as n from prices where ts >= ? and symbol = ?"
    when = {"type": "timestamp", "value": "2024-06-01T01:00:00"}
    assert ask(client, sql, params=[when, "NVDA"])["rows"] == [{"n": 2}]
    named = "select $a + 1 as n, typeof($d) as kind, $b as bytes"
    params = {
        "a": 9007199254740992,
        "d": {"type": "decimal", "value": "1.50"},
        "b": {"type": "binary", "value": "00ff"},
    }
    row = ask(client, named, params=params)["rows"][0]
    assert row["n"] == 9007199254740993
    assert row["kind"].startswith("DECIMAL")
    assert row["bytes"] == "00ff"
    hostile = "'; drop table prices; --"
    assert ask(client, "select ? as s", params=[hostile])["rows"] == [{"s": hostile}]


def test_nanoseconds_of_a_parameter_are_kept_by_the_api(client):
    text = "2024-06-01T01:02:03.123456789"
    for zone in ("", "Z"):
        when = {"type": "timestamp", "value": text + zone}
        assert ask(client, "select ? as t", params=[when])["rows"] == [{"t": text + zone}]


@pytest.mark.parametrize(
    "one",
    [
        {"type": "time", "value": "01:02:03.123456789"},
        {"type": "timestamp", "value": "20240601T010203"},
        {"type": "timestamp", "value": "2024-06-01T01:02:03.1234567891"},
        {"type": "decimal", "value": "1_0"},
    ],
)
def test_a_parameter_that_would_change_on_its_way_is_refused(client, one):
    answer = client.post("/api/v1/query", json={"sql": "select ? as x", "params": [one]})
    assert answer.status_code == 400
    assert answer.json()["facts"]["parameter"] == "1"


@pytest.mark.parametrize(
    "params",
    [[{"type": "nothing", "value": 1}], [{"a": 1}], [{"type": "decimal", "value": "x"}], "text"],
)
def test_a_parameter_that_is_none_is_refused(client, params):
    answer = client.post("/api/v1/query", json={"sql": "select ?", "params": params})
    assert answer.status_code == 400


@pytest.mark.parametrize("form", FORMATS)
def test_the_first_rows_are_told_from_all_rows_in_every_format(client, form):
    sql = "select i from range(10) t(i)"
    for rows_max, rows, word in ((4, 4, "true"), (10, 10, "false"), (11, 10, "false")):
        answer = body_of(client, sql, format=form, rows_max=rows_max)
        assert answer.headers["x-thermocline-truncated"] == word
        assert table_of(form, answer.content).num_rows == rows
    assert ask(client, sql, rows_max=0)["is_truncated"] is True
    assert ask(client, sql)["is_truncated"] is False


def test_rows_past_the_tenants_limit_are_an_error_and_never_a_shorter_answer(tmp_path):
    with serving(tmp_path, quota=QuotaSettings(rows_max=5)) as served, served.client() as client:
        assert len(ask(client, "select i from range(5) t(i)")["rows"]) == 5
        answer = client.post("/api/v1/query", json={"sql": "select i from range(6) t(i)"})
        assert answer.status_code == 429
        assert answer.json()["facts"]["rows_max"] == 5
        first = ask(client, "select i from range(600) t(i)", rows_max=5)
        assert (len(first["rows"]), first["is_truncated"]) == (5, True)


def test_an_accept_header_that_names_nothing_we_have_is_406(client):
    headers = {"Accept": "image/png, application/pdf;q=0.5"}
    answer = client.post("/api/v1/query", json={"sql": "select 1"}, headers=headers)
    assert answer.status_code == 406
    headers = {"Accept": "image/png, text/csv;q=0.5, application/json;q=0.1"}
    answer = client.post("/api/v1/query", json={"sql": "select 1 as a"}, headers=headers)
    assert answer.content == b"a\n1\n"


def test_Q03_an_error_before_the_first_byte_is_an_ordinary_problem(client):
    answer = client.post("/api/v1/query", json={"sql": "select nothing from nowhere"})
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    answer = client.post("/api/v1/query", json={"sql": "select cast('x' as int)"})
    assert answer.status_code == 400


def read_into(got, answer):
    for part in answer.iter_raw():
        got += part


@pytest.mark.parametrize("form", FORMATS)
def test_Q03_an_error_after_the_first_byte_cannot_be_taken_for_an_answer(client, form):
    got = bytearray()
    sent = {"sql": FAILS_LATE, "format": form, "query_id": f"fails-late-{form}"}
    with client.stream("POST", "/api/v1/query", json=sent) as answer:
        assert answer.status_code == 200
        with pytest.raises(httpx2.RemoteProtocolError):
            read_into(got, answer)
    assert len(got) > 1_000
    if form in ("json", "parquet"):
        with pytest.raises((ValueError, pa.ArrowInvalid)):
            table_of(form, bytes(got))
    if form == "ndjson":
        assert json.loads(got.splitlines()[-1])["error"]["code"] == "invalid"
        assert not got.endswith(b"\n")
    if form == "json":
        assert b'"error":{"type":"urn:thermocline:error:invalid"' in got
    if form == "arrow":
        assert not bytes(got).endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    told = client.get(f"/api/v1/queries/fails-late-{form}").json()
    assert told["state"] == "failed"
    assert told["error"]["code"] == "invalid"


def test_Q03_http_1_0_has_no_way_to_tell_a_cut_answer_and_is_refused(node):
    host, port = node.url.removeprefix("http://").split(":")
    body = b'{"sql": "select 1"}'
    with socket.create_connection((host, int(port)), WAIT_S) as raw:
        raw.sendall(
            b"POST /api/v1/query HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        answer = raw.makefile("rb").read()
    assert b" 400 " in answer.splitlines()[0]


def raw_query(url, sql, **more):
    """Send a query on a new connection, and read nothing."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"sql": sql, **more}).encode()
    raw = socket.create_connection((host, int(port)), WAIT_S)
    raw.sendall(
        b"POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return raw


@pytest.mark.parametrize("moment", ["before the answer", "in the answer"])
def test_Q04_a_client_that_leaves_ends_its_query_within_a_second(node, client, moment):
    sql = ENDLESS if moment == "before the answer" else "select i from range(4000000000) t(i)"
    running = node.node.pool.queue

    def act():
        ask(client, "select 1")  # a worker is there: its start cannot be cancelled
        raw = raw_query(node.url, sql, query_id="left-alone")
        wait_until(lambda: running.of_tenant("default"), WAIT_S)
        if moment == "in the answer":
            assert raw.recv(1_000)
        time.sleep(0.3)
        raw.close()
        took_s = wait_until(lambda: not running.of_tenant("default"), WAIT_S)
        assert ask(client, "select 1 as a")["rows"] == [{"a": 1}]  # the one worker is free again
        return took_s

    assert at_best(act, lambda took_s: took_s < 1) < 1


def test_Q04_a_query_is_cancelled_by_its_id_within_a_second(node, client):
    def act():
        ask(client, "select 1")
        answers, query_id = [], uuid.uuid4().hex

        def run():
            with node.client() as other:
                body = {"sql": ENDLESS, "query_id": query_id}
                answers.append(other.post("/api/v1/query", json=body))

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: client.get(f"/api/v1/queries/{query_id}").status_code == 200, WAIT_S)
        listed = client.get("/api/v1/queries").json()["queries"]
        assert [(one["query_id"], one["state"]) for one in listed] == [(query_id, "running")]
        twin = client.post("/api/v1/query", json={"sql": "select 1", "query_id": query_id})
        assert twin.status_code == 409
        time.sleep(0.2)
        began_s = time.monotonic()
        assert client.delete(f"/api/v1/queries/{query_id}").status_code == 204
        thread.join(WAIT_S)
        took_s = time.monotonic() - began_s
        assert answers[0].status_code == 503
        assert answers[0].json()["detail"] == "the query was cancelled"
        assert answers[0].json()["facts"]["query_id"] == query_id
        return took_s

    assert at_best(act, lambda took_s: took_s < 1) < 1
    assert client.delete("/api/v1/queries/never-was-one").status_code == 404


def test_Q05_a_query_past_its_time_is_504_with_its_id(client):
    def act():
        sent = {"sql": ENDLESS, "timeout_s": 0.5, "query_id": "too-long-1"}
        answer = client.post("/api/v1/query", json=sent)
        assert answer.status_code == 504
        assert answer.json()["facts"] == {"timeout_s": 0.5, "query_id": "too-long-1"}
        assert "retry-after" not in answer.headers

    assert 0.5 <= soonest(act, 3) < 3
    assert ask(client, "select 1 as a")["rows"] == [{"a": 1}]


def test_A13_one_tenant_runs_no_more_queries_at_once_than_it_may(tmp_path):
    quota = QuotaSettings(queries_max=1)
    with serving(tmp_path, quota=quota, workers=2) as served, served.client() as client:

        def run():
            with served.client() as other:
                body = {"sql": ENDLESS, "query_id": "the-one-query"}
                other.post("/api/v1/query", json=body)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: served.node.pool.queue.of_tenant("default"), WAIT_S)
        answer = client.post("/api/v1/query", json={"sql": "select 1"})
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 5
        client.delete("/api/v1/queries/the-one-query")  # perhaps before it has a worker
        thread.join(WAIT_S)
        assert ask(client, "select 1 as a")["row_count"] == 1


@pytest.fixture
def busy(tmp_path):
    """A node whose one worker streams an answer; queries wait for it as long as it takes."""
    quota = QuotaSettings(queries_max=0)
    with serving(tmp_path, quota=quota, query_timeout_s=600.0) as served:
        served.node.pool.queue.wait_s = 10 * WAIT_S
        stream = raw_query(
            served.url, "select i from range(4000000000) t(i)", query_id="the-one-stream"
        )
        assert stream.recv(1_000)
        held = [stream]
        yield served, stream, held
        for one in held:
            one.close()


def test_A13_queries_that_wait_keep_neither_one_that_runs_nor_other_routes_from_going_on(busy):
    served, stream, held = busy
    running = served.node.pool.queue
    held += [raw_query(served.url, "select 1", query_id=f"waiting-{n:02}") for n in range(60)]
    wait_until(lambda: len(running.of_tenant("default")) == 61, WAIT_S)
    read_bytes = 0
    while read_bytes < 64 << 20:
        part = stream.recv(1 << 20)
        assert part
        read_bytes += len(part)
    assert running.waiting == 60
    with served.client() as client:
        assert client.get("/health/ready").status_code == 200
        assert client.get("/api/v1/tables").json() == {"tables": []}
        assert client.delete("/api/v1/queries/waiting-07").status_code == 204
    told = held[8].recv(65_536)
    assert b" 503 " in told.splitlines()[0]
    held.pop().close()
    wait_until(lambda: running.waiting == 58, WAIT_S)
    stream.close()
    assert all(b" 200 " in one.recv(65_536).splitlines()[0] for one in held[1:8])
    wait_until(lambda: not running.of_tenant("default"), WAIT_S)
    assert running.waiting == 0


def test_A13_more_queries_than_may_wait_are_told_when_to_come_again(busy, monkeypatch):
    served, _, held = busy
    monkeypatch.setattr(queue_room, "WAITING_MAX", 2)
    held += [raw_query(served.url, "select 1") for n in range(2)]
    wait_until(lambda: served.node.pool.queue.waiting == 2, WAIT_S)
    with served.client() as client:
        answer = client.post("/api/v1/query", json={"sql": "select 1", "query_id": "one-too-many"})
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 5
        monkeypatch.setattr(queue_room, "WAITING_MAX", 3)
        served.node.pool.queue.wait_s = 0.1
        answer = client.post("/api/v1/query", json={"sql": "select 1"})
        assert answer.status_code == 429
        assert answer.json()["facts"]["waiting_max"] == 3


@pytest.mark.parametrize("sql", [ENDLESS, "select i from range(4000000000) t(i)"])
def test_I21_a_server_that_stops_ends_queries_and_answers_nothing_by_halves(tmp_path, sql):
    ends = []

    def run(served):
        with served.client() as other:
            try:
                answer = other.post("/api/v1/query", json={"sql": sql, "format": "arrow"})
                ends.append(answer.status_code)
            except httpx2.TransportError as error:
                ends.append(error)

    with serving(tmp_path) as served:
        thread = threading.Thread(target=run, args=[served])
        thread.start()
        wait_until(lambda: served.node.pool.queue.of_tenant("default"), WAIT_S)
        time.sleep(1)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < WAIT_S
    thread.join(WAIT_S)
    assert len(ends) == 1
    assert ends[0] != 200


def test_A05_a_query_tells_no_path_of_the_machine(client, node, prices):
    root = node.node.lake().root()
    for sql in (
        "select * from read_csv('/etc/passwd')",
        f"select * from '{root}/lake.json'",
        "select current_setting('temp_directory')",
        "select * from duckdb_settings()",
    ):
        answer = client.post("/api/v1/query", json={"sql": sql})
        assert 400 <= answer.status_code < 500
        assert root not in answer.text
