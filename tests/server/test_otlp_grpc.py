"""OTLP over gRPC: codes, details, compression, limits, and what is stored."""

import gzip
import threading
import time

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from ingest.otlp_requests import gauge_request, log_request, nested_log_bytes, span_request
from server.otlp_node import Keys, connected, is_closed, post, served, status_of
from thermocline.errors import Conflict
from thermocline.server.otlp import grpc as module
from thermocline.server.otlp.grpc import OtlpGrpc
from thermocline.server.otlp.http1.route import HttpLimits
from thermocline.server.otlp.memory_budget import MemoryBudget

SERVICES = {
    "metrics": ("metrics.v1.MetricsService", gauge_request, "metric_points"),
    "logs": ("logs.v1.LogsService", log_request, "logs"),
    "traces": ("trace.v1.TraceService", span_request, "spans"),
}


@pytest.fixture
def node(tmp_path):
    """Serve a node."""
    with served(tmp_path / "node") as made:
        yield made


def export(node, signal, message, *, compression=None, metadata=(), method="Export"):
    """Call a service with the bytes of a message; return the bytes of its answer."""
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{node.grpc.port}", options) as channel:
        name = f"/opentelemetry.proto.collector.{SERVICES[signal][0]}/{method}"
        call = channel.unary_unary(name)
        return call(message, compression=compression, metadata=metadata, timeout=90)


def refused(node, signal, message, **options):
    """Call a service that refuses; return the code, the trailer's code, and when to come again."""
    with pytest.raises(grpc.RpcError) as caught:
        export(node, signal, message, **options)
    error = caught.value
    trailers = dict(error.trailing_metadata() or ())
    details = trailers.get("grpc-status-details-bin")
    code, _, waits = status_of(details) if details else (None, None, [])
    return error.code(), code, waits


@pytest.mark.parametrize("signal", SERVICES)
@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_a_request_is_stored_and_answered_with_an_empty_response(node, signal, compression):
    _, make, table = SERVICES[signal]
    assert export(node, signal, make().SerializeToString(), compression=compression) == b""
    assert node.count(table) == 1


def test_an_empty_request_is_a_success(node):
    assert export(node, "traces", b"") == b""


def test_I09_a_partial_success_has_its_count(node):
    request = gauge_request(10)
    points = request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    points[4].time_unix_nano = 0
    answer = ExportMetricsServiceResponse.FromString(
        export(node, "metrics", request.SerializeToString())
    )
    assert answer.partial_success.rejected_data_points == 1
    assert node.count("metric_points") == 9


@pytest.mark.parametrize(
    "message",
    [b"\xff\xff", nested_log_bytes(200), gzip.compress(b"\xff", mtime=0)],
    ids=["no message", "deep", "no message, compressed"],
)
def test_I03_i04_what_cannot_be_decoded_is_invalid_argument(node, message):
    assert refused(node, "logs", message) == (grpc.StatusCode.INVALID_ARGUMENT, 3, [])
    assert node.node.lake().tables() == []


def test_I11_a_message_over_the_limit_is_exhausted_without_retry_info(tmp_path):
    with served(tmp_path / "node", http=HttpLimits(body_bytes_max=10_000)) as node:
        code, _, waits = refused(node, "logs", bytes(10_001))
        assert (code, waits) == (grpc.StatusCode.RESOURCE_EXHAUSTED, [])
        assert export(node, "logs", b"") == b""


def test_I01_a_bomb_is_stopped_at_the_limit_and_final(tmp_path):
    with served(tmp_path / "node", body_bytes_max=1 << 20) as node:
        exhausted = (grpc.StatusCode.RESOURCE_EXHAUSTED, 8, [])
        compressed = {"compression": grpc.Compression.Gzip}
        assert refused(node, "logs", bytes(64 << 20), **compressed) == exhausted
        assert node.budget.held_bytes == 0


def test_I10_i11_without_room_it_is_unavailable_with_retry_info(tmp_path):
    with served(tmp_path / "node", budget=MemoryBudget(100_000)) as node:
        reservation = node.budget.reserve(90_000)
        data = gauge_request(200).SerializeToString()
        code, inner, waits = refused(node, "metrics", data)
        assert (code, inner) == (grpc.StatusCode.UNAVAILABLE, 14)
        assert 1 <= waits[0] <= 5
        reservation.release()
        assert export(node, "metrics", data) == b""
        assert node.count("metric_points") == 200


def test_I08_with_an_idempotency_key_a_resend_is_a_success_without_new_rows(node):
    data = gauge_request(4).SerializeToString()
    for _ in range(3):
        assert export(node, "metrics", data, metadata=[("idempotency-key", "a")]) == b""
    assert node.count("metric_points") == 4


def test_a_key_decides_whose_rows_they_are(tmp_path):
    keys = Keys("acme", readers=("reader",))
    with served(tmp_path / "node", keys=keys) as node:
        node.node.create_tenant("acme")
        data = gauge_request(2).SerializeToString()
        assert export(node, "metrics", data, metadata=[("authorization", "Bearer acme")]) == b""
        assert node.count("metric_points", "acme") == 2
        assert refused(node, "metrics", data)[:2] == (grpc.StatusCode.UNAUTHENTICATED, 16)
        denied = refused(node, "metrics", data, metadata=[("authorization", "Bearer reader")])
        assert denied[:2] == (grpc.StatusCode.PERMISSION_DENIED, 7)
        assert node.count("metric_points", "acme") == 2


def test_A02_a_call_without_a_key_is_refused_before_its_message_is_asked_for(tmp_path):
    is_answered = threading.Event()

    def never():
        assert is_answered.wait(60)
        return iter(())

    with served(tmp_path / "node", keys=Keys("acme")) as node:
        with grpc.insecure_channel(f"127.0.0.1:{node.grpc.port}") as channel:
            name = f"/opentelemetry.proto.collector.{SERVICES['logs'][0]}/Export"
            call = channel.stream_unary(name)
            answer = call.future(lazily(never), timeout=30)
            code = answer.code()
            is_answered.set()
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert node.budget.held_bytes == 0


def lazily(make):
    """Yield what `make` returns, asked for when the first one is."""
    yield from make()


def settings_of(sock):
    """Return the settings in the first frame that a server of HTTP/2 sends."""
    sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
    data = b""
    while len(data) < 9 or len(data) < 9 + int.from_bytes(data[:3]):
        part = sock.recv(65_536)
        assert part
        data += part
    body = data[9 : 9 + int.from_bytes(data[:3])]
    pairs = [body[at : at + 6] for at in range(0, len(body), 6)]
    return {int.from_bytes(one[:2]): int.from_bytes(one[2:]) for one in pairs}


def test_I20_what_a_stranger_may_send_unasked_is_little(node):
    with connected(node.grpc.port) as sock:
        found = settings_of(sock)
    window, streams = 4, 3
    assert found.get(window, 65_535) <= module.WINDOW_BYTES
    assert found[streams] == module.STREAMS_MAX


def test_I20_connections_past_the_limit_are_closed_and_the_others_served(node):
    async def started():
        limited = OtlpGrpc(node.http._receiver, port=0, connections_max=2)
        await limited.start()
        return limited

    limited = node.call(started())
    try:
        held = [connected(limited.port) for _ in range(2)]
        assert all(settings_of(sock) for sock in held)
        with connected(limited.port) as late:
            assert is_closed(late)
        for sock in held:
            sock.close()
        end_s = time.monotonic() + 60
        while True:  # until the library has seen them go
            with connected(limited.port) as again:
                if not is_closed_at_once(again):
                    break
            assert time.monotonic() < end_s
    finally:
        node.call(limited.stop(5))


def is_closed_at_once(sock):
    """Tell whether a server closes a connection instead of sending its first frame."""
    try:
        return sock.recv(9) == b""
    except ConnectionResetError:
        return True


def test_a_call_without_a_message_is_invalid_and_one_that_comes_too_slowly_is_told_so(
    node, monkeypatch
):
    name = f"/opentelemetry.proto.collector.{SERVICES['logs'][0]}/Export"
    is_over = threading.Event()

    def never():
        is_over.wait(60)
        return iter(())

    with grpc.insecure_channel(f"127.0.0.1:{node.grpc.port}") as channel:
        call = channel.stream_unary(name)
        assert call.future(iter(()), timeout=90).code() == grpc.StatusCode.INVALID_ARGUMENT
        monkeypatch.setattr(module, "READ_WAIT_S", 0.2)
        assert call.future(lazily(never), timeout=90).code() == grpc.StatusCode.UNAVAILABLE
        is_over.set()
    assert node.budget.held_bytes == 0


def test_a_bug_is_told_as_passing_so_that_nobody_drops_rows_for_it(tmp_path):
    class Broken(Keys):
        def caller(self, authorization, scope, *, peer=""):
            raise ZeroDivisionError

    with served(tmp_path / "node", keys=Broken()) as node:
        code, _, waits = refused(node, "logs", b"")
        assert (code, waits) == (grpc.StatusCode.UNAVAILABLE, [1])
        status, headers, _ = post(node, "/v1/logs", b"")
        assert (status, headers["retry-after"]) == (503, "1")


def test_another_method_is_unimplemented(node):
    code, _, _ = refused(node, "logs", b"", method="Import")
    assert code == grpc.StatusCode.UNIMPLEMENTED


def test_an_address_that_is_taken_is_told(node):
    with pytest.raises(Conflict, match="cannot be listened on"):
        node.call(OtlpGrpc(None, port=node.grpc.port).start())


def test_both_protocols_store_the_same_rows(node):
    data = gauge_request(3, attributes={"a": 1, "b": [1, "x"]}).SerializeToString()
    export(node, "metrics", data)
    assert post(node, "/v1/metrics", data)[0] == 200
    rows = node.sql("select * from metric_points order by ts_ns")
    assert rows[0::2] == rows[1::2]
    assert len(rows) == 6


def test_calls_are_counted_by_name_and_code(node):
    export(node, "logs", b"")
    refused(node, "logs", b"\xff")
    name = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
    assert node.counts.requests == [("otlp_grpc", name, 0), ("otlp_grpc", name, 3)]


def test_I16_a_request_that_begins_like_zlib_is_taken_as_it_is(node):
    message = b"\x78\x01" + log_request().SerializeToString()  # field 15, which no version has yet
    assert export(node, "logs", message) == b""
    assert node.count("logs") == 1


def test_I16_deflate_is_refused_by_its_header(node):
    options = {"compression": grpc.Compression.Deflate}
    code, _, _ = refused(
        node, "logs", log_request(severity_text="x" * 2_000).SerializeToString(), **options
    )
    assert code == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("service", ["", "opentelemetry.proto.collector.logs.v1.LogsService"])
def test_a_health_probe_needs_no_key_and_is_told_that_the_node_serves(tmp_path, service):
    asked = b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
    with (
        served(tmp_path, keys=Keys("acme")) as node,
        grpc.insecure_channel(f"127.0.0.1:{node.grpc.port}") as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(asked, timeout=60) == b"\x08\x01"
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(asked, timeout=60)
        assert next(watch) == b"\x08\x01"
        watch.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x04none", timeout=60)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
