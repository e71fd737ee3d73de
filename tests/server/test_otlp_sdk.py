"""OpenTelemetry's own SDK, by its own exporters, over the wire: everything comes back by SQL."""

import grpc
import pytest
from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcMetrics,
)
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpMetrics,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from server.otlp_node import Keys, served

RESOURCE = Resource({"service.name": "shop", "host.name": "h1", "cores": 8})
KEY = {"authorization": "Bearer acme"}
WAIT_S = 60  # the SDK's own 10 are little on a busy machine
WAYS = ["http", "http gzip", "grpc", "grpc gzip"]


@pytest.fixture
def node(tmp_path):
    """Serve a node that asks for a key; rows are of the tenant acme."""
    with served(tmp_path / "node", keys=Keys("acme"), is_compiled=True) as made:
        made.node.create_tenant("acme")
        yield made


def exporter(node, way, signal, by_http, by_grpc):
    """Return an exporter of the SDK's, as a user would set it up."""
    if way.startswith("http"):
        packed = Compression.Gzip if "gzip" in way else Compression.NoCompression
        return by_http(endpoint=node.url(signal), headers=KEY, compression=packed, timeout=WAIT_S)
    packed = grpc.Compression.Gzip if "gzip" in way else grpc.Compression.NoCompression
    address = f"http://127.0.0.1:{node.grpc.port}"
    options = {"headers": KEY, "compression": packed, "timeout": WAIT_S}
    return by_grpc(endpoint=address, insecure=True, **options)


def both_tiers(node, query):
    """Return the answer while rows are hot; the same must come when they are cold."""
    hot = node.sql(query, "acme")
    node.node.flush()
    assert node.sql(query, "acme") == hot
    return hot


@pytest.mark.parametrize("way", WAYS)
def test_metrics_of_every_kind_come_back(node, way):
    made = exporter(node, way, "metrics", HttpMetrics, GrpcMetrics)
    reader = PeriodicExportingMetricReader(
        made, export_interval_millis=600_000, export_timeout_millis=60_000
    )
    exponential = View(instrument_name="sizes", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider(metric_readers=[reader], resource=RESOURCE, views=[exponential])
    meter = provider.get_meter("till", "1.2", attributes={"scope.kind": "test"})

    def temperatures(options: CallbackOptions):
        return [Observation(21.5, {"room": "a"}), Observation(-3, {"room": "b"})]

    meter.create_observable_gauge("temperature", [temperatures], unit="Cel")
    counter = meter.create_counter("sold", unit="1", description="things sold")
    counter.add((1 << 53) + 1, {"kind": "apple", "fresh": True, "sizes": [1, 2]})
    counter.add(2, {"kind": "pear", "weight": 1.5})
    meter.create_up_down_counter("open").add(-7)
    for value in (1, 7.5, 9_000):
        meter.create_histogram("latency", unit="ms").record(value, {"route": "/pay"})
    for value in (100, 0, 2):
        meter.create_histogram("sizes").record(value)
    provider.shutdown()  # exports what there is, once
    points = both_tiers(
        node,
        """select metric, type, unit, is_monotonic, temporality, value, value_int, attributes,
        service_name, host_name, scope_name, scope_version, scope_attributes, resource->'cores' c,
        start_ns is not null and start_ns <= ts_ns as is_started
        from metric_points order by metric, attributes""",
    )
    scope = ("shop", "h1", "till", "1.2", '{"scope.kind":"test"}', "8")
    big = (1 << 53) + 1
    assert [tuple(row.values()) for row in points] == [
        ("open", "sum", None, False, "cumulative", -7.0, -7, "{}", *scope, True),
        *[
            ("sold", "sum", "1", True, "cumulative", float(value), value, text, *scope, True)
            for value, text in [
                (big, '{"fresh":true,"kind":"apple","sizes":[1,2]}'),
                (2, '{"kind":"pear","weight":1.5}'),
            ]
        ],
        ("temperature", "gauge", "Cel", None, None, 21.5, None, '{"room":"a"}', *scope, False),
        ("temperature", "gauge", "Cel", None, None, -3.0, -3, '{"room":"b"}', *scope, False),
    ]
    histograms = both_tiers(
        node,
        """select metric, type, count, sum, min, max, list_sum(bucket_counts) as counted,
        list_sum(positive_counts) as above, zero_count, scale is not null as is_scaled,
        attributes
        from metric_histograms order by metric""",
    )
    assert [tuple(row.values()) for row in histograms] == [
        (
            "latency",
            "histogram",
            3,
            9_008.5,
            1.0,
            9_000.0,
            3,
            None,
            None,
            False,
            '{"route":"/pay"}',
        ),
        ("sizes", "exponential_histogram", *(3, 102.0, 0.0, 100.0, None, 2, 1, True), "{}"),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_log_records_come_back(node, way):
    made = exporter(node, way, "logs", HttpLogs, GrpcLogs)
    provider = LoggerProvider(resource=RESOURCE)
    provider.add_log_record_processor(BatchLogRecordProcessor(made))
    logger = provider.get_logger("till", "2")
    bodies = ["paid", {"a": [1, None, True], "b": {"c": 2.5}}, 7, None, "naïve ☃"]
    for place, body in enumerate(bodies):
        logger.emit(
            LogRecord(
                timestamp=1_763_200_000_123_456_789 + place,
                observed_timestamp=1_763_200_000_123_456_999,
                severity_number=SeverityNumber.WARN,
                severity_text="WARN",
                body=body,
                attributes={"n": place, "ok": False, "ratio": 0.1},
            )
        )
    assert provider.force_flush()
    provider.shutdown()
    found = both_tiers(
        node,
        """select ts_ns, observed_ns, severity_number, severity_text, body, body_json, attributes
        from logs order by ts_ns""",
    )
    assert [row["ts_ns"] for row in found] == [1_763_200_000_123_456_789 + n for n in range(5)]
    assert {row["observed_ns"] for row in found} == {1_763_200_000_123_456_999}
    assert {(row["severity_number"], row["severity_text"]) for row in found} == {(13, "WARN")}
    texts = [(row["body"], row["body_json"]) for row in found]
    assert texts[0] == ("paid", None)
    assert texts[1][1] == '{"a":[1,null,true],"b":{"c":2.5}}'
    assert texts[2][1] == "7"
    assert texts[4] == ("naïve ☃", None)
    assert [row["attributes"] for row in found] == [
        f'{{"n":{n},"ok":false,"ratio":0.1}}' for n in range(5)
    ]


@pytest.mark.parametrize("way", WAYS)
def test_spans_come_back(node, way):
    provider = TracerProvider(resource=RESOURCE)
    made = exporter(node, way, "traces", HttpSpans, GrpcSpans)
    provider.add_span_processor(BatchSpanProcessor(made))
    tracer = provider.get_tracer("till")
    with tracer.start_as_current_span("order", kind=trace.SpanKind.SERVER) as parent:
        link = trace.Link(parent.get_span_context(), {"why": "retry"})
        with tracer.start_as_current_span("pay", links=[link], attributes={"n": 1}) as child:
            child.add_event("declined", {"code": 51})
            child.set_status(trace.StatusCode.ERROR, "no money")
    assert provider.force_flush()
    provider.shutdown()
    found = both_tiers(
        node,
        """select name, kind, status_code, status_message, hex(trace_id) as trace,
        hex(span_id) as id,
        hex(parent_span_id) as parent, ts_ns, end_ns, duration_ns, events[1].name as event,
        events[1].attributes as event_attributes, hex(links[1].span_id) as linked,
        links[1].attributes as link_attributes, attributes from spans order by name""",
    )
    order, pay = found
    trace_id = f"{parent.get_span_context().trace_id:032X}"
    parent_id = f"{parent.get_span_context().span_id:016X}"
    assert (order["trace"], pay["trace"]) == (trace_id, trace_id)
    assert (order["id"], order["parent"], pay["parent"]) == (parent_id, None, parent_id)
    assert pay["id"] == f"{child.get_span_context().span_id:016X}"
    assert (order["ts_ns"], order["end_ns"]) == (parent.start_time, parent.end_time)
    assert pay["duration_ns"] == child.end_time - child.start_time
    assert (order["kind"], pay["kind"], pay["status_code"]) == ("server", "internal", "error")
    assert (pay["status_message"], pay["attributes"]) == ("no money", '{"n":1}')
    assert (pay["event"], pay["event_attributes"]) == ("declined", '{"code":51}')
    assert (pay["linked"], pay["link_attributes"]) == (parent_id, '{"why":"retry"}')
