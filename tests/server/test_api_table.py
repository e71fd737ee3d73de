"""Tables and rows over HTTP: what is taken, what is refused and where, and nothing by halves."""

import contextlib
import gzip
import json
import socket
import struct
import time
import uuid

import pyarrow as pa
import pytest

import thermocline as tc
from fixtures.api import ask, make_prices, price, serving
from fixtures.timing import wait_until
from thermocline.config import QuotaSettings
from thermocline.disk import OsDisk
from thermocline.hot.wal.repair.survey import inspect
from thermocline.server.api.handle.table import _table_brief, _table_info

LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("node")) as served:
        yield served


@pytest.fixture
def client(node):
    with node.client() as client:
        yield client


@pytest.fixture
def table(client):
    """A fresh table of prices, and its name."""
    name = f"t{uuid.uuid4().hex[:12]}"
    make_prices(client, name)
    return name


def post(client, table, content, media=LINES, **headers):
    headers = {"Content-Type": media, **{k.replace("_", "-"): v for k, v in headers.items()}}
    route = table if "/" in table else f"{table}/rows"
    return client.post(f"/api/v1/tables/{route}", content=content, headers=headers)


def lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def stream(rows, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, **options) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def count(client, table):
    return ask(client, f"select count(*) as n from {table}")["rows"][0]["n"]


def arrow_prices(*hours):
    times = [1_717_200_000_000_000 + hour * 3_600_000_000 for hour in hours]
    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us")),
            "symbol": pa.array(["NVDA"] * len(times)),
            "close": pa.array([float(hour) for hour in hours]),
        }
    )


def test_rows_come_in_as_lines_as_an_array_and_as_arrow(client, table):
    assert post(client, table, lines(price(0), price(1))).json() == {"rows": 2}
    array = json.dumps([price(2), price(3)]).encode()
    assert post(client, table, array, "application/json").json() == {"rows": 2}
    assert post(client, table, json.dumps(price(4)).encode(), "application/json").json() == {
        "rows": 1
    }
    assert post(client, table, stream(arrow_prices(5, 6)), ARROW).json() == {"rows": 2}
    found = ask(client, f"select hour(ts) as h from {table} order by h")["rows"]
    assert [row["h"] for row in found] == list(range(7))


def test_a_json_value_that_would_change_is_refused_by_line_and_column(client, table):
    evolving = f"{table}/rows?evolve=true"
    assert post(client, evolving, lines({**price(0), "n": 1})).status_code == 200
    for bad, column in (({"n": 2.7}, "n"), ({"ts": 1717200000}, "ts"), ({"n": True}, "n")):
        answer = post(client, table, lines(price(1), {**price(2), **bad}))
        assert answer.status_code == 400
        facts = answer.json()["facts"]
        assert (facts["column"], facts["line"], facts["value"]) == (column, 2, repr(bad[column]))
    assert count(client, table) == 1
    assert post(client, evolving, lines({**price(3), "n": 2.7})).status_code == 200
    found = ask(client, f"select n from {table} order by n")["rows"]
    assert [row["n"] for row in found] == [1.0, 2.7]


def test_a_negative_zero_of_json_keeps_its_sign(client, table):
    rows = b'{"ts":"2024-06-01T01:00:00","symbol":" -0","close":-0}\n'
    rows += b'{"ts":"2024-06-01T02:00:00","symbol":"b","close": -0.0}\n'
    rows += b'{"ts":"2024-06-01T03:00:00","symbol":"c","close":0}\n'
    assert post(client, table, rows).status_code == 200
    found = ask(client, f"select symbol, close::varchar as c from {table} order by ts")["rows"]
    assert [row["c"] for row in found] == ["-0.0", "-0.0", "0.0"]
    assert found[0]["symbol"] == " -0"


def test_a_json_time_is_read_with_a_zone_without_one_and_as_nanoseconds(client, table):
    june_ns = 1_717_200_000 * 10**9
    times = ["2024-06-01T01:00:00Z", "2024-06-01T02:00:00", "2024-06-01 05:00+02:00", june_ns]
    rows = [{**price(0), "ts": time} for time in times]
    assert post(client, table, lines(*rows)).status_code == 200
    found = ask(client, f"select hour(ts) as h from {table} order by h")["rows"]
    assert [row["h"] for row in found] == [0, 1, 2, 3]


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_bodies_may_be_compressed(client, table, coding):
    data = lines(*(price(hour) for hour in range(24)))
    packed = gzip.compress(data) if coding == "gzip" else pa.compress(data, "zstd", asbytes=True)
    assert post(client, table, packed, Content_Encoding=coding).json() == {"rows": 24}
    assert count(client, table) == 24


def test_I08_the_same_request_twice_is_written_once_with_a_key(client, table):
    data = lines(price(0), price(1))
    for _ in range(3):
        assert post(client, table, data, Idempotency_Key="one").json() == {"rows": 2}
    assert count(client, table) == 2
    client.post(f"/api/v1/tables/{table}/flush", json={})
    assert post(client, table, data, Idempotency_Key="one").status_code == 200
    assert count(client, table) == 2
    assert post(client, table, data, Idempotency_Key="two").json() == {"rows": 2}
    assert post(client, table, data).json() == {"rows": 2}
    assert count(client, table) == 6


@pytest.mark.parametrize("key", ["", "x" * 201, "tab\tinside"])
def test_I08_what_is_no_idempotency_key_is_refused(client, table, key):
    assert post(client, table, lines(price(0)), Idempotency_Key=key).status_code == 400
    assert count(client, table) == 0


BAD_LINES = {
    "not JSON": b'{"ts": ',
    "not an object": b"[1, 2]",
    "I15 NaN": b'{"ts":"2024-06-01T05:00:00","symbol":"A","close":NaN}',
    "I15 Infinity": b'{"ts":"2024-06-01T05:00:00","symbol":"A","close":-Infinity}',
    "I15 1e400": b'{"ts":"2024-06-01T05:00:00","symbol":"A","close":1e400}',
    "I15 an integer that no double holds": (
        b'{"ts":"2024-06-01T05:00:00","symbol":"A","close":9007199254740993}'
    ),
    "I17 a lone surrogate": b'{"ts":"2024-06-01T05:00:00","symbol":"\\ud800","close":1}',
    "I17 not UTF-8": b'{"ts":"2024-06-01T05:00:00","symbol":"\xff","close":1}',
    "I04 nesting": b'{"ts":' + b"[" * 100_000,
    "a text for a number": b'{"ts":"2024-06-01T05:00:00","symbol":"A","close":"much"}',
    "I14 no time": b'{"symbol":"A","close":1}',
    "I14 null as time": b'{"ts":null,"symbol":"A","close":1}',
    "I14 a time that is none": b'{"ts":"yesterday","symbol":"A","close":1}',
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_one_bad_line_refuses_the_whole_write_and_is_named(client, table, what):
    assert post(client, table, lines(price(0))).status_code == 200
    data = lines(price(1)) + b"\n" + BAD_LINES[what] + b"\n" + lines(price(2))
    answer = post(client, table, data)
    assert answer.status_code == 400, answer.text
    assert answer.json()["facts"]["line"] == 3
    assert count(client, table) == 1


def test_I17_of_duplicate_keys_the_last_one_counts(client, table):
    row = b'{"ts":"2024-06-01T00:00:00","symbol":"A","symbol":"B","close":1}'
    assert post(client, table, row).status_code == 200
    assert ask(client, f"select symbol from {table}")["rows"] == [{"symbol": "B"}]


def test_columns_that_the_table_does_not_have_are_refused_unless_it_may_evolve(client, table):
    post(client, table, lines(price(0)))
    data = lines({**price(1), "volume": 7})
    assert post(client, table, data).status_code == 400
    path = f"/api/v1/tables/{table}/rows?evolve=true"
    answer = client.post(path, content=data, headers={"Content-Type": LINES})
    assert answer.json() == {"rows": 1}
    found = ask(client, f"select volume from {table} order by ts")["rows"]
    assert found == [{"volume": None}, {"volume": 7}]


def test_values_that_json_has_no_word_for_come_in_as_they_go_out(client, table):
    exact = pa.table(
        {
            "ts": pa.array([1_717_200_000_123_456_789], pa.timestamp("ns")),
            "symbol": ["A"],
            "money": pa.array([1], pa.decimal128(38, 9)),
            "bytes": pa.array([b"\x00\xff"], pa.binary()),
            "f": pa.array([float("nan")]),
            "big": pa.array([9007199254740993], pa.int64()),
        }
    )
    assert post(client, table, stream(exact), ARROW).status_code == 200
    row = {
        "ts": "2024-06-01T01:00:00.000000001",
        "symbol": "B",
        "money": "12345678901234567890.123456789",
        "bytes": "00ff",
        "f": "-Infinity",
        "big": 9007199254740993,
    }
    text = json.dumps(row).replace(
        '"12345678901234567890.123456789"', "12345678901234567890.123456789"
    )
    for data in (json.dumps(row), text):
        assert post(client, table, data.encode()).status_code == 200
    sql = f"select * from {table} where symbol = 'B'"
    for found in ask(client, sql)["rows"]:
        assert found["ts"] == row["ts"]
        assert found["bytes"] == "00ff"
        assert found["f"] == "-Infinity"
        assert found["big"] == 9007199254740993
    raw = client.post("/api/v1/query", json={"sql": sql, "format": "ndjson"}).text
    assert raw.count('"money":12345678901234567890.123456789') == 2


def test_values_inside_of_others_come_in_as_they_go_out(client, table):
    digits = "0.12345678901234567890"
    inner = pa.struct([("d", pa.decimal128(38, 20)), ("b", pa.binary()), ("f", pa.float64())])
    exact = pa.table(
        {
            "ts": pa.array([1_717_200_000_000_000], pa.timestamp("us")),
            "symbol": ["A"],
            "s": pa.array([None], inner),
            "l": pa.array([None], pa.list_(inner)),
        }
    )
    assert post(client, table, stream(exact), ARROW).status_code == 200
    one = f'{{"d": {digits}, "b": "00ff", "f": "NaN"}}'
    row = f'{{"ts": "2024-06-01T01:00:00", "symbol": "B", "s": {one}, "l": [{one}]}}'
    assert post(client, table, row.encode()).status_code == 200
    sql = f"select s, l from {table} where symbol = 'B'"
    raw = client.post("/api/v1/query", json={"sql": sql, "format": "ndjson"}).text
    assert raw.count(digits) == 2
    assert raw.count('"00ff"') == 2
    assert raw.count('"NaN"') == 2


@pytest.mark.parametrize(
    ("column", "text"),
    [("big", "9007199254740993.0"), ("money", '"1_0"'), ("bytes", '"xy"'), ("f", '"much"')],
)
def test_a_value_of_json_that_would_change_is_refused_by_line_and_value(
    client, table, column, text
):
    kinds = {"money": pa.decimal128(9, 2), "bytes": pa.binary(), "f": pa.float64()}
    known = {"ts": pa.array([0], pa.timestamp("us")), "symbol": ["A"]}
    known[column] = pa.array([None], kinds.get(column, pa.int64()))
    assert post(client, table, stream(pa.table(known)), ARROW).status_code == 200
    row = f'{{"ts": "2024-06-01T01:00:00", "symbol": "B", "{column}": {text}}}'
    answer = post(client, table, row.encode())
    assert answer.status_code == 400
    facts = answer.json()["facts"]
    assert (facts["column"], facts["line"]) == (column, 1)
    assert facts["value"]


# What a body may be


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({}, 415),
        ({"Content-Type": LINES + "; charset=latin-1"}, 415),
        ([("Content-Type", LINES), ("Content-Type", ARROW)], 400),
        ({"Content-Type": LINES, "Content-Encoding": "br"}, 400),
        ({"Content-Type": LINES, "Content-Encoding": "gzip"}, 400),
        (
            [("Content-Type", LINES), ("Content-Encoding", "gzip"), ("Content-Encoding", "gzip")],
            400,
        ),
    ],
)
def test_I05_types_and_codings_that_are_wrong_missing_or_twice(client, table, headers, status):
    path = f"/api/v1/tables/{table}/rows"
    answer = client.post(path, content=lines(price(0)), headers=headers)
    assert answer.status_code == status
    assert count(client, table) == 0


def test_I01_a_bomb_stops_at_the_limit(client, table):
    bomb = gzip.compress(b" " * (65 << 20))
    answer = post(client, table, bomb, Content_Encoding="gzip")
    assert answer.status_code == 413
    assert answer.json()["code"] == "body_too_large"
    assert post(client, table, b" " * (65 << 20)).status_code == 413
    assert (
        client.post(
            "/api/v1/query", json={"sql": "select 1", "params": ["x" * (5 << 20)]}
        ).status_code
        == 413
    )


@pytest.mark.parametrize("is_list", [True, False])
def test_I01_values_of_json_are_counted_before_they_are_made(client, table, monkeypatch, is_list):
    from thermocline.server.api.http import rows

    kind = "application/json" if is_list else LINES
    given = [price(hour, symbol="a,b,{[" * 20) for hour in range(3)]
    data = json.dumps(given).encode() if is_list else lines(*given)
    monkeypatch.setattr(rows, "JSON_VALUES_MAX", 14)
    assert post(client, table, data, Content_Type=kind).status_code == 200
    monkeypatch.setattr(rows, "JSON_VALUES_MAX", 8)
    monkeypatch.setattr(rows.msgspec.json, "Decoder", None)  # nothing is decoded any more
    answer = post(client, table, data, Content_Type=kind)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert count(client, table) == 3


def test_I10_what_json_becomes_has_its_room_too(node, client, table):
    budget = node.app.state.parts.budget
    data = lines(*[price(hour % 24, symbol=f"s{hour}") for hour in range(500)])
    budget.share.total, before = len(data) + 20_000, budget.bytes_max
    reservation = budget.reserve()
    try:
        answer = post(client, table, data)
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 5
    finally:
        reservation.release()
        budget.share.total = before
    assert post(client, table, data).status_code == 200
    wait_until(lambda: budget.held_bytes == 0)  # given back once the answer is on its way


def test_I07_a_body_that_is_cut_writes_nothing(node, client, table):
    host, port = node.url.removeprefix("http://").split(":")
    data = lines(price(0), price(1))
    with socket.create_connection((host, int(port)), 60) as raw:
        raw.sendall(
            f"POST /api/v1/tables/{table}/rows HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: {LINES}\r\nContent-Length: {len(data) + 10}\r\n\r\n".encode()
            + data
        )
        time.sleep(0.2)
    time.sleep(0.2)
    assert count(client, table) == 0


def test_I06_a_body_that_comes_too_slowly_is_given_up(node, client, table, monkeypatch):
    from thermocline.server.api.http import incoming

    monkeypatch.setattr(incoming.read_body, "__kwdefaults__", {"reservation": None, "wait_s": 0.5})
    host, port = node.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 60) as raw:
        raw.sendall(
            f"POST /api/v1/tables/{table}/rows HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: {LINES}\r\nContent-Length: 100\r\n\r\n{{".encode()
        )
        raw.settimeout(60)
        assert b" 408 " in raw.recv(10_000).splitlines()[0]


def test_I04_a_request_nested_without_end_is_refused(client):
    body = b'{"sql": "select 1", "params": ' + b"[" * 100_000
    headers = {"Content-Type": "application/json"}
    assert client.post("/api/v1/query", content=body, headers=headers).status_code == 400
    params = []
    for _ in range(200):
        params = [params]
    answer = client.post("/api/v1/query", json={"sql": "select ?", "params": params})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 50\r\n",
        b"Transfer-Encoding: xchunked\r\n",
    ],
)
def test_I18_a_request_of_two_lengths_is_one_request_or_none(node, head):
    host, port = node.url.removeprefix("http://").split(":")
    hidden = b"GET /api/v1/tables HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection((host, int(port)), 60) as raw:
        raw.sendall(
            b"POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n" + head + b"\r\n0\r\n\r\n" + hidden
        )
        raw.settimeout(2)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while part := raw.recv(1 << 16):
                answer += part
    assert b'"tables"' not in answer


def test_I19_a_range_header_is_ignored(client):
    ranges = ",".join(f"{n}-{n + 1}" for n in range(500))
    answer = client.get("/api/docs.js", headers={"Range": f"bytes={ranges}"})
    assert answer.status_code == 200
    assert answer.text == client.get("/api/docs.js").text


def test_I10_a_tenant_that_sends_too_much_is_told_when_to_come_back(tmp_path):
    quota = QuotaSettings(ingest_bytes_per_s=1, ingest_burst_bytes=10)
    with serving(tmp_path, quota=quota) as served, served.client() as client:
        make_prices(client)
        assert post(client, "prices", lines(price(0))).status_code == 200
        answer = post(client, "prices", lines(price(1)))
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 5
        assert count(client, "prices") == 1


# Arrow from strangers


def cut(data):
    return data[: len(data) - 8]


def with_bad_offsets(data):
    place = data.index(b"NVDANVDA") - 64
    return data[:place] + struct.pack("<i", 2**31 - 1) * 4 + data[place + 16 :]


def dictionary_bomb():
    values = pa.array(["x" * 1_000_000])
    indices = pa.array([0] * 100_000, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, values)
    times = pa.array(range(100_000), pa.int64()).cast(pa.timestamp("us"))
    return stream(pa.table({"ts": times, "symbol": column}))


def dictionary_bomb_in_small_batches():
    values = pa.array(["x" * (1 << 20)])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), values)
    times = pa.array(range(100), pa.int64()).cast(pa.timestamp("us"))
    batch = pa.record_batch({"ts": times, "symbol": column})
    return stream(pa.Table.from_batches([batch] * 20))


HOSTILE = {
    "nothing": lambda: b"",
    "text": lambda: b"hello",
    "cut": lambda: cut(stream(arrow_prices(0, 1))),
    "cut in a batch": lambda: stream(arrow_prices(0, 1))[:-60],
    "a huge length": lambda: b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\0" * 64,
    "a negative length": lambda: b"\xff\xff\xff\xff\x00\x00\x00\x80" + b"\0" * 64,
    "bad offsets": lambda: with_bad_offsets(stream(arrow_prices(0, 1))),
    "compressed inside": lambda: stream(
        arrow_prices(*range(24)), options=pa.ipc.IpcWriteOptions(compression="zstd")
    ),
    "views": lambda: stream(
        pa.table({"ts": arrow_prices(0)["ts"], "symbol": pa.array(["x" * 50], pa.string_view())})
    ),
    "a dictionary that grows": dictionary_bomb,
    "a dictionary that grows in small batches": dictionary_bomb_in_small_batches,
    "null rows without end": lambda: stream(pa.table({"n": pa.nulls(5_000_000)})),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_A19_hostile_arrow_is_refused_and_writes_nothing(client, table, what):
    post(client, table, lines(price(0)))
    answer = post(client, table, HOSTILE[what](), ARROW)
    assert answer.status_code in (400, 413), answer.text
    assert count(client, table) == 1


def test_A19_no_flipped_byte_of_a_stream_ends_the_node(client, table):
    good = stream(arrow_prices(0, 1))
    from thermocline.errors import ThermoclineError
    from thermocline.server.api.http.rows import arrow_rows

    for place in range(0, len(good), 3):
        for bit in (0x01, 0x80, 0xFF):
            data = bytearray(good)
            data[place] ^= bit
            try:
                rows = arrow_rows(bytes(data))
            except ThermoclineError:
                continue
            rows.validate(full=True)


# Tables


HOSTILE_NAMES = (
    "../x", "..", ".", "*", "%2e%2e", "%2e%2e%2fx", "a%00b", "\u202eabc", "x" * 300, "CON.",
    "a b", "a/b", "1a", "", "a;drop", "<img onerror=x>", "a'", 'a"', "é",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_A06_a_hostile_name_is_refused_wherever_it_stands(client, node, name):
    before = client.get("/api/v1/tables").json()
    body = {"name": name, "time_column": "ts", "bucket": "1h"}
    assert client.post("/api/v1/tables", json=body).status_code == 400
    quoted = name if "%" in name else "".join(f"%{byte:02x}" for byte in name.encode())
    for path in ("", "/schema", "/history"):
        answer = client.get(f"/api/v1/tables/{quoted}{path}")
        is_the_list = answer.status_code == 200 and not name.strip("./") and path == ""
        assert answer.status_code in (400, 404) or is_the_list, (answer.url, answer.text)
    assert client.get("/api/v1/tables").json() == before


def test_A06_names_that_differ_by_case_alone_are_one(client):
    make_prices(client, "Twins")
    body = {"name": "tWINS", "time_column": "ts", "bucket": "1h"}
    assert client.post("/api/v1/tables", json=body).status_code == 409
    assert client.get("/api/v1/tables/TWINS").json()["name"] == "Twins"


def test_a_table_tells_what_it_is_what_it_holds_and_what_is_missing(client, table):
    post(client, table, lines(price(0), price(1), price(4)))
    path = f"/api/v1/tables/{table}"
    info = client.get(path).json()
    assert (info["rows"], info["hot_rows"], info["buckets_held"], info["buckets"]) == (0, 3, 3, 5)
    assert client.post(f"{path}/flush", json={}).json()["version"] > info["version"]
    info = client.get(path).json()
    assert (info["rows"], info["hot_rows"], info["entities"]) == (3, 0, 1)
    assert [one["name"] for one in info["columns"]] == ["ts", "symbol", "close"]
    gaps = client.get(f"{path}/gaps").json()
    assert gaps["rows"] == [
        {
            "symbol": "NVDA",
            "start": "2024-06-01T02:00:00Z",
            "end": "2024-06-01T04:00:00Z",
            "buckets": 2,
        }
    ]
    assert gaps["metadata"]["verified"] == "true"
    one = client.get(f"{path}/gaps", params={"entity": '{"symbol":"AMD"}'})
    assert one.status_code == 404
    csv = client.get(f"{path}/coverage", headers={"Accept": "text/csv"}).text
    assert csv.splitlines()[0] == "symbol,start,end,buckets"
    assert client.get(f"{path}/ratio").json() == {"ratio": 0.6, "is_covered": None}
    window = client.get(f"{path}/window", params={"length": "2h"}).json()
    assert window["end"] == "2024-06-01T02:00:00Z"
    silent = client.get(f"{path}/silent", params={"start": "2024-06-01T06:00:00Z"}).json()
    assert silent["rows"] == [] or silent["rows"][0]["symbol"] == "NVDA"
    history = client.get(f"{path}/history", params={"limit": 1}).json()
    assert (history["row_count"], history["is_truncated"]) == (1, True)
    whole = client.get(f"{path}/history")
    assert whole.headers["x-thermocline-truncated"] == "false"
    versions = {"old": 1, "new": history["rows"][0]["version"]}
    assert client.get(f"{path}/diff", params=versions).json()["rows"] == 3


def test_a_table_is_changed_and_changed_back(client, table):
    post(client, table, lines(price(0), price(1), price(2, "AMD")))
    path = f"/api/v1/tables/{table}"
    before = client.post(f"{path}/flush", json={}).json()["version"]
    answer = client.post(f"{path}/delete", json={"where": "symbol = 'NVDA'"})
    assert answer.json()["version"] == before + 1
    assert count(client, table) == 1
    assert client.post(f"{path}/delete", json={}).status_code == 400
    assert client.post(f"{path}/restore", json={"at": before}).status_code == 200
    assert count(client, table) == 3
    assert client.post(f"{path}/restore", json={"at": 10_000}).status_code == 404
    assert client.post(f"{path}/retain", json={"yes": True}).status_code == 400
    assert client.post(f"{path}/vacuum", json={}).json()["is_dry_run"] is True
    assert client.post(f"{path}/vacuum", json={"dry_run": False, "grace": "1s"}).status_code == 400


def test_jobs_tell_what_is_hot_and_that_there_is_no_pipeline(client, table):
    post(client, table, lines(price(0), price(1)))
    jobs = client.get("/api/v1/jobs").json()
    mine = next(one for one in jobs["flushes"] if one["table"] == table)
    assert mine["hot_rows"] == 2
    assert mine["hot_bytes"] > 0
    assert mine["hot_s"] >= 0
    assert jobs["flush_error"] is None
    assert "pipeline" in jobs["notes"][0]


@pytest.mark.parametrize("route", ["/api/v1/tables/prices/flush", "/api/v1/flush"])
def test_a_flush_that_is_asked_for_leaves_none_of_the_rows_in_the_journal(tmp_path, route):
    with serving(tmp_path, workers=0) as served, served.client() as client:
        make_prices(client)
        post(client, "prices", lines(price(0), price(1)))
        journal = tmp_path / "lake" / "journal"
        assert [one.rows for one in inspect(OsDisk(), str(journal)).tables.values()] == [2]
        assert client.post(route, json={}).status_code == 200
        assert not inspect(OsDisk(), str(journal)).tables


def test_a_tenant_makes_no_more_tables_than_it_may(tmp_path):
    with serving(tmp_path, quota=QuotaSettings(tables_max=1)) as served, served.client() as client:
        make_prices(client, "one")
        body = {"name": "two", "time_column": "ts", "bucket": "1h"}
        assert client.post("/api/v1/tables", json=body).status_code == 429


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("told", [_table_brief, _table_info])
def test_Q10_a_flush_in_between_counts_no_row_twice_and_none_not_at_all(
    tmp_path, monkeypatch, told, when
):
    with tc.connect(tmp_path / "lake") as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        table.write([price(0), price(1)])
        snapshot = table.snapshot

        def with_a_flush(**how):
            taken = snapshot(**how) if when == "after" else None
            table.flush()
            return taken or snapshot(**how)

        monkeypatch.setattr(table, "snapshot", with_a_flush)
        found = told(table)
        assert found.rows + found.hot_rows == 2


def test_a_table_of_whole_numbers_is_made_written_updated_and_asked_over_http(client):
    name = f"blocks{uuid.uuid4().hex[:8]}"
    columns = [{"name": "height", "type": "int64"}, {"name": "gas", "type": "double"}]
    made = client.post(
        "/api/v1/tables",
        json={"name": name, "index_column": "height", "bucket": 100, "schema": columns},
    )
    assert made.status_code == 201, made.text
    info = made.json()
    assert (info["index_type"], info["bucket"]) == ("int64", "100")
    assert [column["type"] for column in info["columns"]] == ["int64", "double"]
    assert post(client, name, lines({"height": 7, "gas": 1}, {"height": 250})).json() == {"rows": 2}
    gaps = client.get(f"/api/v1/tables/{name}/gaps?start=0&end=400").json()["rows"]
    assert [(gap["start"], gap["end"]) for gap in gaps] == [(100, 200), (300, 400)]
    told = post(client, f"{name}/upsert", lines({"height": 7, "gas": 5}, {"height": 8, "gas": 6}))
    assert told.json() == {"version": 3, "matched": 1, "inserted": 1, "unchanged": 0}
    missing = post(client, f"{name}/update", lines({"height": 9, "gas": 5}))
    assert (missing.status_code, missing.json()["facts"]["reason"]) == (400, "unmatched_source_key")
    late = post(client, f"{name}/update?expected_version=2", lines({"height": 7, "gas": 9}))
    assert late.status_code == 409
    rows = ask(client, f"select height, gas from {name} where height < 100 order by height")["rows"]
    assert rows == [{"height": 7, "gas": 5.0}, {"height": 8, "gas": 6.0}]
    window = client.get(f"/api/v1/tables/{name}/window?length=100").json()
    assert window == {"start": "200", "end": "300"}
    blocks = client.get(f"/api/v1/tables/{name}/blocks?start=0&end=300&blocks=3").json()
    assert (blocks["start"], blocks["bucket_s"]) == ("0", None)
    assert blocks["lanes"][0]["held"] == [1, 0, 1]


def test_I01_rows_whose_keys_all_differ_are_refused_before_they_become_columns(client, table):
    hour = "2024-01-01T00:00:00Z"
    more = [{"ts": hour, "symbol": "a", f"k{n}": 1} for n in range(2_100)]
    answer = client.post(
        f"/api/v1/tables/{table}/rows?evolve=true",
        content=lines(*more),
        headers={"Content-Type": LINES},
    )
    assert (answer.status_code, answer.json()["facts"]["columns_max"]) == (429, 2_000)
    wide = [{"ts": hour, "symbol": "a", f"k{n % 1_900}": 1} for n in range(8_000)]
    answer = client.post(
        f"/api/v1/tables/{table}/rows?evolve=true",
        content=lines(*wide),
        headers={"Content-Type": LINES},
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert "cells_max" in answer.json()["facts"]
