"""OTLP over HTTP, to the letter: statuses, bodies, codings, keys, and what is stored."""

import gzip
import json
import zlib

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from fixtures.timing import wait_until
from ingest.otlp_requests import (
    NOW_NS,
    gauge_request,
    log_request,
    nested_log_bytes,
    otlp_json,
    span_request,
)
from server.otlp_node import (
    Keys,
    answered,
    connected,
    head,
    post,
    preflight,
    sent,
    served,
    status_of,
)
from thermocline.server.otlp.http1.route import HttpLimits
from thermocline.server.otlp.memory_budget import MemoryBudget

RESPONSES = {
    "metrics": ExportMetricsServiceResponse,
    "logs": ExportLogsServiceResponse,
    "traces": ExportTraceServiceResponse,
}
MADE = {
    "metrics": (gauge_request, "metric_points"),
    "logs": (log_request, "logs"),
    "traces": (span_request, "spans"),
}
JSON = {"content_type": "application/json"}


@pytest.fixture
def node(tmp_path):
    """Serve a node."""
    with served(tmp_path / "node") as made:
        yield made


def body_of(points=1, **options):
    return gauge_request(points, **options).SerializeToString()


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


@pytest.mark.parametrize("signal", MADE)
def test_a_request_in_protobuf_is_answered_in_protobuf_and_stored(node, signal):
    make, table = MADE[signal]
    status, headers, body = post(node, f"/v1/{signal}", make().SerializeToString())
    assert (status, body) == (200, b"")
    assert headers["content-type"] == "application/x-protobuf"
    assert node.count(table) == 1


@pytest.mark.parametrize("signal", MADE)
def test_a_request_in_json_is_answered_in_json_and_stored(node, signal):
    make, table = MADE[signal]
    kind = "application/json; charset=utf-8"
    status, headers, body = post(node, f"/v1/{signal}", otlp_json(make()), content_type=kind)
    assert (status, body) == (200, b"{}")
    assert headers["content-type"] == "application/json"
    assert node.count(table) == 1


@pytest.mark.parametrize("signal", MADE)
def test_an_empty_request_is_a_success(node, signal):
    assert post(node, f"/v1/{signal}", b"")[0] == 200
    assert post(node, f"/v1/{signal}", b"{}", **JSON)[::2] == (200, b"{}")
    assert node.node.lake().tables() == []


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstd),
        ("zlib", zlib.compress),
        ("snappy", lambda data: pa.compress(data, codec="snappy", asbytes=True)),
        ("identity", bytes),
    ],
)
def test_a_compressed_body_is_stored_as_it_was_before(node, coding, pack):
    packed = pack(body_of(7))
    assert post(node, "/v1/metrics", packed, content_encoding=coding)[0] == 200
    assert node.count("metric_points") == 7


def test_rows_are_there_for_a_query_that_starts_after_the_answer(node):
    for turn in range(1, 6):
        assert post(node, "/v1/metrics", body_of(3))[0] == 200
        assert node.count("metric_points") == 3 * turn


def test_I09_one_bad_point_of_a_thousand_is_told_and_the_others_are_stored(node):
    request = gauge_request(1_000)
    points = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    points[500].time_unix_nano = 0
    status, _, body = post(node, "/v1/metrics", request.SerializeToString())
    partial = ExportMetricsServiceResponse.FromString(body).partial_success
    assert (status, partial.rejected_data_points) == (200, 1)
    assert "temperature" in partial.error_message
    assert node.count("metric_points") == 999
    assert (node.counts.rows, node.counts.refused) == ({"metrics": 999}, {"metrics": 1})


def test_I09_a_partial_success_in_json_has_its_count_as_text(node):
    status, _, body = post(node, "/v1/traces", otlp_json(span_request(span_id=b"x")), **JSON)
    assert status == 200
    assert json.loads(body)["partialSuccess"]["rejectedSpans"] == "1"
    assert node.count("spans") == 0


@pytest.mark.parametrize(
    "pack", [(gzip.compress, "gzip"), (zstd, "zstd"), (zlib.compress, "deflate")]
)
def test_I01_i02_a_bomb_is_stopped_at_the_limit(tmp_path, pack):
    compress, coding = pack
    with served(tmp_path / "node", body_bytes_max=1 << 20) as node:
        status, _, body = post(node, "/v1/logs", compress(bytes(64 << 20)), content_encoding=coding)
        assert status == 413
        assert status_of(body)[0::2] == (8, [])
        assert post(node, "/v1/logs", b"")[0] == 200


def test_I02_a_bomb_in_a_bomb_and_several_members_have_the_same_limit(tmp_path):
    with served(tmp_path / "node", body_bytes_max=1 << 20) as node:
        nested = gzip.compress(gzip.compress(bytes(1 << 26)))
        assert post(node, "/v1/logs", nested, content_encoding="gzip")[0] == 400
        members = gzip.compress(bytes(600_000)) * 2
        assert post(node, "/v1/logs", members, content_encoding="gzip")[0] == 413
        junk = gzip.compress(body_of()) + b"junk"
        assert post(node, "/v1/metrics", junk, content_encoding="gzip")[0] == 400


def test_I02_members_one_after_the_other_are_one_body(node):
    data = body_of(5)
    packed = gzip.compress(data[:40]) + gzip.compress(data[40:])
    assert post(node, "/v1/metrics", packed, content_encoding="gzip")[0] == 200
    assert node.count("metric_points") == 5


def test_I03_a_truncated_body_is_refused_and_nothing_is_stored(node):
    data = body_of(20)
    packed = gzip.compress(data)
    for cut in (1, 10, len(data) - 1):
        status, _, body = post(node, "/v1/metrics", data[:cut])
        assert (status, status_of(body)[0]) == (400, 3)
    for cut in (5, len(packed) // 2, len(packed) - 1):
        assert post(node, "/v1/metrics", packed[:cut], content_encoding="gzip")[0] == 400
    assert node.node.lake().tables() == []


def test_I04_deep_nesting_is_refused_and_the_node_lives(node):
    status, _, body = post(node, "/v1/logs", nested_log_bytes(200))
    assert (status, status_of(body)[0]) == (400, 3)
    for text in (b"[" * 100_000, b'{"a":' * 100_000):
        status, _, body = post(node, "/v1/logs", text, **JSON)
        assert (status, json.loads(body)["code"]) == (400, 3)
    assert post(node, "/v1/logs", log_request().SerializeToString())[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "", "application/protobuf", "application/jsonx"])
def test_I05_another_content_type_is_415(node, kind):
    status, headers, body = post(node, "/v1/metrics", body_of(), content_type=kind)
    assert status == 415
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["code"] == 3


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "gzip;q=1", "lz4"])
def test_I05_another_content_encoding_is_415(node, coding):
    status, _, body = post(node, "/v1/metrics", body_of(), content_encoding=coding)
    assert (status, status_of(body)[0]) == (415, 3)


@pytest.mark.parametrize("name", ["content-type", "content-encoding", "authorization"])
def test_I05_a_header_that_comes_twice_is_400(node, name):
    twice = f"{name}: gzip\r\n{name}: gzip\r\n\r\n".encode()
    request = head(content_type=None).removesuffix(b"\r\n") + twice
    assert sent(node.http.port, request)[0] == 400


def test_I05_no_content_type_at_all_is_415(node):
    assert sent(node.http.port, head(content_type=None))[0] == 415


def test_I05_a_coding_that_the_body_does_not_have_is_400(node):
    assert post(node, "/v1/metrics", body_of(), content_encoding="gzip")[0] == 400


def test_a_body_over_the_limit_is_413_in_the_requests_encoding(tmp_path):
    with served(tmp_path / "node", http=HttpLimits(body_bytes_max=1_000)) as node:
        status, headers, body = post(node, "/v1/metrics", bytes(1_001))
        assert (status, status_of(body)[0]) == (413, 8)
        assert "retry-after" not in headers
        status, _, body = post(node, "/v1/metrics", bytes(200_000), **JSON)
        assert (status, json.loads(body)["code"]) == (413, 8)
        assert post(node, "/v1/metrics", bytes(1_000))[0] == 400


def test_other_paths_and_methods_are_told_with_a_status_body(node):
    assert post(node, "/v1/metric", body_of())[0] == 404
    assert post(node, "/v1development/profiles", b"")[0] == 404
    status, headers, body = sent(node.http.port, head(method="GET", content_length=None))
    assert (status, headers["allow"], status_of(body)[0]) == (405, "POST", 12)
    assert post(node, "/v1/metrics?x=1", body_of())[0] == 200


def test_I08_the_same_request_twice_is_stored_twice_without_a_key(node):
    for _ in range(2):
        assert post(node, "/v1/metrics", body_of(4))[0] == 200
    assert node.count("metric_points") == 8


def test_I08_with_an_idempotency_key_a_resend_is_a_success_without_new_rows(node):
    for _ in range(3):
        assert post(node, "/v1/metrics", body_of(4), idempotency_key="a" * 36)[::2] == (200, b"")
    assert node.count("metric_points") == 4
    node.node.flush()
    assert post(node, "/v1/metrics", body_of(4), idempotency_key="a" * 36)[0] == 200
    assert post(node, "/v1/metrics", body_of(5), idempotency_key="b")[0] == 200
    assert node.count("metric_points") == 9


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_I08_an_idempotency_key_that_is_none_is_400(node, key):
    assert post(node, "/v1/metrics", body_of(), idempotency_key=key)[0] == 400
    assert node.node.lake().tables() == []


def test_a_key_decides_whose_rows_they_are(tmp_path):
    keys = Keys("acme", "default", readers=("reader",))
    with served(tmp_path / "node", keys=keys) as node:
        node.node.create_tenant("acme")
        assert post(node, "/v1/metrics", body_of(2), authorization="Bearer acme")[0] == 200
        assert post(node, "/v1/metrics", body_of(3), authorization="Bearer default")[0] == 200
        assert (node.count("metric_points", "acme"), node.count("metric_points")) == (2, 3)
        status, headers, body = post(node, "/v1/metrics", body_of())
        assert (status, headers["www-authenticate"], status_of(body)[0]) == (401, "Bearer", 16)
        status, _, body = post(node, "/v1/metrics", body_of(), authorization="Bearer reader")
        assert (status, status_of(body)[0]) == (403, 7)
        assert (node.count("metric_points", "acme"), node.count("metric_points")) == (2, 3)


@pytest.mark.parametrize("name", ["evil.example", "localhost.evil.example", "", "[", "10.0.0.1"])
def test_A17_without_keys_only_names_of_this_machine_are_answered(node, name):
    data = body_of()
    status, headers, body = sent(node.http.port, head(length=len(data), host=name), data)
    assert (status, headers["connection"]) == (421, "close")
    assert status_of(body)[0::2] == (3, [])
    for own in ("localhost", "LOCALHOST:4318", f"127.0.0.1:{node.http.port}", "[::1]:1"):
        assert sent(node.http.port, head(length=len(data), host=own), data)[0] == 200
    assert node.count("metric_points") == 4


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "http://["]
)
def test_A17_without_keys_a_page_from_elsewhere_sends_nothing(node, origin):
    data = body_of()
    pages = {"host": "localhost:80", "origin": origin}
    assert sent(node.http.port, head(length=len(data), **pages), data)[0] == 403
    assert node.node.lake().tables() == []
    pages["origin"] = "http://localhost:80"
    assert sent(node.http.port, head(length=len(data), **pages), data)[0] == 200


def test_A17_with_keys_any_name_will_do(tmp_path):
    with served(tmp_path / "node", keys=Keys("default")) as node:
        named = {"host": "telemetry.example", "authorization": "Bearer default"}
        assert sent(node.http.port, head(**named))[0] == 200


def test_a_wrong_key_is_refused_before_the_body_is_sent(tmp_path):
    with served(tmp_path / "node", keys=Keys("acme")) as node, connected(node.http.port) as sock:
        sock.sendall(head(length=60 << 20, expect="100-continue"))
        assert answered(sock)[0] == 401


def test_I10_without_room_a_request_is_told_to_come_again_soon(tmp_path):
    with (
        served(tmp_path / "node", budget=MemoryBudget(10_000)) as node,
        connected(node.http.port) as slow,
    ):
        slow.sendall(head(length=9_000) + b"x")
        wait_until(lambda: node.budget.held_bytes)
        # What has arrived is charged: the other's buffer leaves no room for this one.
        status, headers, body = post(node, "/v1/metrics", body_of(200))
        assert status == 429
        assert 1 <= int(headers["retry-after"]) <= 5
        assert status_of(body)[0::2] == (14, [int(headers["retry-after"])])
        slow.close()
        wait_until(lambda: not node.budget.held_bytes)
        assert post(node, "/v1/metrics", body_of(100))[0] == 200
        assert node.count("metric_points") == 100


def test_I13_what_is_too_large_is_cut_and_told(node):
    request = gauge_request(1, attributes={"big": "x" * 1_000_000})
    status, _, body = post(node, "/v1/metrics", request.SerializeToString())
    partial = ExportMetricsServiceResponse.FromString(body).partial_success
    assert (status, partial.rejected_data_points) == (200, 0)
    assert partial.error_message
    [row] = node.sql("select length(attributes) as n from metric_points")
    assert row["n"] < 70_000


def test_I14_old_and_future_times_are_taken_and_zero_is_refused(node):
    request = gauge_request(4)
    points = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    for point, time_ns in zip(points, (1, NOW_NS * 2, 0, (1 << 64) - 1), strict=True):
        point.time_unix_nano = time_ns
    status, _, body = post(node, "/v1/metrics", request.SerializeToString())
    assert status == 200
    assert ExportMetricsServiceResponse.FromString(body).partial_success.rejected_data_points == 2
    found = node.sql("select ts_ns from metric_points order by ts_ns")
    assert [row["ts_ns"] for row in found] == [1, NOW_NS * 2]


@pytest.mark.parametrize("number", ["9223372036854775808", "NaN", "1e400", '"1.5"'])
def test_I15_numbers_that_json_cannot_carry_are_400(node, number):
    point = f'{{"timeUnixNano":"5","asInt":{number}}}'
    metric = f'{{"name":"m","gauge":{{"dataPoints":[{point}]}}}}'
    text = f'{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{metric}]}}]}}]}}'
    assert post(node, "/v1/metrics", text.encode(), **JSON)[0] == 400
    assert node.node.lake().tables() == []


def test_I16_unknown_fields_are_ignored(node):
    data = body_of() + b"\xaa\x06\x03abc"
    assert post(node, "/v1/metrics", data)[0] == 200
    text = otlp_json(log_request())[:-1] + b',"newThing":{"a":[1]}}'
    assert post(node, "/v1/logs", text, **JSON)[0] == 200
    assert (node.count("metric_points"), node.count("logs")) == (1, 1)


def test_I17_duplicate_keys_surrogates_and_nul_are_safe(node):
    record = b'{"timeUnixNano":"5","body":{"stringValue":"a\\u0000b"}}'
    around = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[%s]}]}]}'
    assert post(node, "/v1/logs", around % record, **JSON)[0] == 200
    assert node.sql("select body from logs") == [{"body": "a\0b"}]
    lone = record.replace(b"a\\u0000b", b"\\ud800")
    status, _, answer = post(node, "/v1/logs", around % lone, **JSON)
    assert (status, json.loads(answer)["partialSuccess"]["rejectedLogRecords"]) == (200, "1")
    twice = b'{"resourceLogs":[],' + (around % record)[1:]
    assert post(node, "/v1/logs", twice, **JSON)[0] == 200
    assert node.count("logs") == 2


def test_requests_are_counted_by_path_and_status_and_unknown_paths_are_not_named(node):
    post(node, "/v1/metrics", body_of())
    post(node, "/v1/metrics", b"\xff")
    post(node, "/secret", b"")
    assert node.counts.requests == [
        ("otlp_http", "/v1/metrics", 200),
        ("otlp_http", "/v1/metrics", 400),
        ("otlp_http", "", 404),
    ]


def test_a_slash_at_the_end_of_a_path_changes_nothing(node):
    assert post(node, "/v1/metrics/", body_of(2))[0] == 200
    assert node.count("metric_points") == 2


def test_A17_a_page_of_a_configured_origin_sends_and_others_do_not(tmp_path):
    mine, other = "https://shop.example", "https://evil.example"
    with served(tmp_path, origins=[mine]) as node:
        asked = {"origin": mine, "access_control_request_headers": "content-type, x-id"}
        status, headers = preflight(node, "/v1/traces", **asked)
        assert (status, headers["access-control-allow-origin"]) == (204, mine)
        assert headers["access-control-allow-headers"] == "content-type, x-id"
        assert "access-control-allow-origin" not in preflight(node, "/v1/logs", origin=other)[1]
        status, headers, _ = post(node, "/v1/metrics", body_of(3), origin=mine)
        assert (status, headers["access-control-allow-origin"]) == (200, mine)
        status, headers, _ = post(node, "/v1/metrics", b"\xff", origin=mine)
        assert (status, headers["access-control-allow-origin"]) == (400, mine)
        status, headers, _ = post(node, "/v1/metrics", body_of(), origin=other)
        assert status == 403
        assert "access-control-allow-origin" not in headers
        assert node.count("metric_points") == 3


def test_without_configured_origins_a_preflight_is_405(node):
    assert preflight(node, "/v1/logs", origin="https://shop.example")[0] == 405
