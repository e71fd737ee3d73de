"""A node answers Prometheus' own requests: a counter sent over OTLP is a rate over HTTP."""

import struct
import time
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus

import orjson
import pyarrow as pa
import pytest

from fixtures.served import ServedNode
from thermocline.ingest.otlp.varint import encode_bytes, encode_varint

BASE = "/api/v1/prom/api/v1"
STEP_S = 15


@pytest.fixture(scope="module")
def began_s():
    return int(time.time()) // 60 * 60 - 600


@pytest.fixture(scope="module")
def node(tmp_path_factory, began_s):
    with ServedNode(str(tmp_path_factory.mktemp("prometheus"))).ready() as served:
        points = [
            {
                "timeUnixNano": str((began_s + second) * 10**9),
                "startTimeUnixNano": str((began_s - 60) * 10**9),
                "asInt": str(2 * second),
                "attributes": [{"key": "http.route", "value": {"stringValue": route}}],
            }
            for route in ("/a", "/b")
            for second in range(0, 601, STEP_S)
        ]
        metric = {
            "name": "shop.visits",
            "unit": "{visit}",
            "sum": {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": points},
        }
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
        body = {
            "resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]
        }
        assert served.ask("/v1/metrics", body, listener="http")[0] == HTTPStatus.OK
        yield served


def ask(node, route, *, form=False, **given):
    """Return the status and the document of a request."""
    fields = [(key.replace("match", "match[]"), value) for key, value in given.items()]
    text = urllib.parse.urlencode(fields, doseq=True)
    url = f"http://127.0.0.1:{node.port('api')}{BASE}/{route}"
    request = urllib.request.Request(url, text.encode()) if form else f"{url}?{text}"
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, orjson.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, orjson.loads(error.read())


@pytest.mark.parametrize("form", [False, True])
def test_an_instant_and_a_range_are_answered(node, began_s, form):
    at = {"time": began_s + 600, "query": "sum(round(rate(shop_visits_total[5m])))", "form": form}
    status, found = ask(node, "query", **at)
    assert status == HTTPStatus.OK
    assert found == {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [{"metric": {}, "value": [began_s + 600.0, "4"]}],
        },
    }
    status, found = ask(
        node, "query_range", query='shop_visits_total{http_route="/a"}', start=began_s,
        end=began_s + 120, step="1m", form=form,
    )  # fmt: skip
    (series,) = found["data"]["result"]
    assert series["metric"] == {
        "__name__": "shop_visits_total", "http_route": "/a", "job": "shop",
    }  # fmt: skip
    assert series["values"] == [[began_s, "0"], [began_s + 60, "120"], [began_s + 120, "240"]]


def test_series_labels_values_and_metadata_are_listed(node, began_s):
    match = {"match": ['shop_visits_total{http_route=~"/[ab]"}', "nothing"]}
    _, found = ask(node, "series", **match)
    assert [one["http_route"] for one in found["data"]] == ["/a", "/b"]
    names = ask(node, "labels", form=True, match="shop_visits_total")[1]["data"]
    assert names == ["__name__", "http_route", "job"]
    assert ask(node, "label/http_route/values")[1]["data"] == ["/a", "/b"]
    assert "shop_visits_total" in ask(node, "label/__name__/values")[1]["data"]
    assert ask(node, "series", limit=1, **match)[1]["warnings"] == [
        "results truncated due to limit"
    ]
    assert ask(node, "metadata", metric="shop_visits_total")[1]["data"] == {
        "shop_visits_total": [{"type": "counter", "unit": "{visit}", "help": ""}]
    }
    assert ask(node, "status/buildinfo")[1]["data"]["version"].startswith("2.")


@pytest.mark.parametrize(
    ("route", "given", "status", "words"),
    [
        ("query", {"query": "rate(x)"}, 400, "not valid PromQL"),
        ("query", {}, 400, 'invalid parameter "query"'),
        ("query", {"query": "1", "time": "noon"}, 400, 'invalid parameter "time"'),
        ("query_range", {"query": "1", "start": 0, "end": 1e7, "step": 1}, 400, "11,000 points"),
        ("query", {"query": "info(x)"}, 501, "the function info is not supported"),
        ("series", {}, 400, "no match[] parameter provided"),
        ("query", {"query": "1", "limit": "x"}, 400, "the parameters do not match"),
    ],
)
def test_errors_have_the_form_of_prometheus(node, route, given, status, words):
    found_status, found = ask(node, route, **given)
    assert (found_status, found["status"], found["errorType"]) == (status, "error", "bad_data")
    assert words in found["error"]


def send(node, path, data, **headers):
    """Return the status, text and headers of a request to the port that takes OTLP."""
    url = f"http://127.0.0.1:{node.port('http')}{path}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, named)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


def sample(value, time_ms):
    return b"\x09" + struct.pack("<d", value) + b"\x10" + encode_varint(time_ms)


def request_1(name, values, end_ms):
    """Return a request of remote write 1.0 with a sample for each value, a second apart."""
    labels = {"__name__": name, "job": "raw", "path": "/x"}
    series = b"".join(
        encode_bytes(1, encode_bytes(1, key.encode()) + encode_bytes(2, text.encode()))
        for key, text in labels.items()
    )
    for place, value in enumerate(values):
        series += encode_bytes(2, sample(value, end_ms - 1000 * (len(values) - place - 1)))
    return compress(encode_bytes(1, series))


def compress(data):
    return pa.compress(data, codec="snappy", asbytes=True)


REMOTE = {"Content_Type": "application/x-protobuf", "Content_Encoding": "snappy"}


def test_remote_write_is_readable_when_it_is_answered(node, began_s):
    end_ms = (began_s + 600) * 1000
    body = request_1("raw.requests", [1.0, 2.0, 3.0], end_ms)
    for _ in range(2):  # a resend
        assert send(node, "/api/v1/write", body, **REMOTE, Idempotency_Key="one")[0] == 204
    query = 'count_over_time({__name__="raw.requests", path="/x"}[1m])'
    result = ask(node, "query", query=query, time=began_s + 600)[1]["data"]["result"]
    assert [one["value"][1] for one in result] == ["3"]
    sql = "select count(*) n from metric_points where metric = 'raw.requests'"
    rows = node.ask("/api/v1/query", {"sql": sql})
    assert rows[1]["rows"] == [{"n": 3}]


def test_remote_write_2_says_how_much_was_written(node, began_s):
    symbols = ["", "__name__", "two_total", "job", "raw"]
    series = encode_bytes(1, bytes([1, 2, 3, 4]))
    series += encode_bytes(2, sample(5.0, (began_s + 600) * 1000))
    series += encode_bytes(3, b"")  # a native histogram
    whole = b"".join(encode_bytes(4, text.encode()) for text in symbols) + encode_bytes(5, series)
    kind = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
    status, text, headers = send(
        node, "/api/v1/write", compress(whole), Content_Encoding="snappy", Content_Type=kind
    )
    assert (status, headers["X-Prometheus-Remote-Write-Samples-Written"]) == (400, "1")
    assert "native histograms, which are not supported" in text
    result = ask(node, "query", query="two_total", time=began_s + 600)[1]["data"]["result"]
    assert result[0]["metric"] == {"__name__": "two_total", "job": "raw"}


@pytest.mark.parametrize("path", ["/api/v2/write?precision=s&bucket=b&org=o", "/write?precision=s"])
def test_line_protocol_is_readable_when_it_is_answered(node, began_s, path):
    name = "v2" if "v2" in path else "v1"
    lines = f"{name},host=h1 idle=98.5,cores=8i {began_s + 600}".encode()
    assert send(node, path, lines)[0] == 204
    result = ask(node, "query", query=f"{name}_idle", time=began_s + 600)[1]["data"]["result"]
    assert [(one["metric"]["host"], one["value"][1]) for one in result] == [("h1", "98.5")]
    status, text, _ = send(node, path, b'm note="x",n=1 5')
    assert status == 400
    assert "a field that is a text (1)" in text


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/v1/write", {"Content_Type": "application/x-protobuf"}, 415),
        ("/api/v1/write", REMOTE | {"Content_Type": "application/x-protobuf;proto=x"}, 415),
        ("/api/v1/write", REMOTE, 400),
        ("/write?precision=fortnight", {}, 400),
    ],
)
def test_what_is_no_request_of_a_writer_is_refused_as_text(node, path, headers, status):
    found, text, _ = send(node, path, b"\x00\x00 not snappy", **headers)
    assert found == status
    assert text.strip()
    assert not text.startswith("{")
