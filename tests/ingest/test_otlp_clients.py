"""SQL returns every value that OpenTelemetry's SDK sends."""

import logging

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import thermocline as tc
from ingest.otlp_requests import NOW_NS
from thermocline.ingest.otlp.protobuf import decode_protobuf
from thermocline.ingest.otlp.tables import TABLES

RESOURCE = Resource({"service.name": "shop", "host.name": "h1", "cores": 8})


@pytest.fixture
def lake(tmp_path):
    """Open a lake with OpenTelemetry's tables."""
    with tc.connect(tmp_path / "lake") as opened:
        for table in TABLES.values():
            opened.create_table(table.name, **table.creation_options())
        yield opened


def write(lake, signal, message):
    """Decode what an exporter would send, and write it."""
    outcome = decode_protobuf(signal, message.SerializeToString(), arrived_ns=NOW_NS)
    assert (outcome.rejected, outcome.message) == (0, "")
    for name, batch in outcome.batches.items():
        lake.table(name).write(batch, evolve=True)
    return outcome.accepted


def both_tiers(lake, query):
    """Return the answer with hot rows, after a check that it is the same with cold rows."""
    hot = lake.sql(query).to_pylist()
    lake.flush()
    assert lake.sql(query).to_pylist() == hot
    return hot


def test_metrics_of_the_sdk_come_back_by_sql(lake):
    reader = InMemoryMetricReader()
    exponential = View(instrument_name="sizes", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider(metric_readers=[reader], resource=RESOURCE, views=[exponential])
    meter = provider.get_meter("till", "1.2")
    counter = meter.create_counter("sold", unit="1", description="things sold")
    counter.add((1 << 53) + 1, {"kind": "apple", "fresh": True})
    counter.add(2, {"kind": "pear", "size": 3})
    meter.create_histogram("latency").record(7.5, {"route": "/pay"})
    meter.create_histogram("sizes").record(100)
    message = encode_metrics(reader.get_metrics_data())
    provider.shutdown()
    assert write(lake, "metrics", message) == 4
    assert both_tiers(
        lake,
        """select service_name, host_name, metric, unit, type, temporality, is_monotonic, value_int,
        attributes->>'kind' as kind, attributes as text, scope_name, scope_version,
        resource->'cores' as cores from metric_points order by kind""",
    ) == [
        {
            "service_name": "shop",
            "host_name": "h1",
            "metric": "sold",
            "unit": "1",
            "type": "sum",
            "temporality": "cumulative",
            "is_monotonic": True,
            "value_int": value,
            "kind": kind,
            "text": text,
            "scope_name": "till",
            "scope_version": "1.2",
            "cores": "8",
        }
        for value, kind, text in [
            ((1 << 53) + 1, "apple", '{"fresh":true,"kind":"apple"}'),
            (2, "pear", '{"kind":"pear","size":3}'),
        ]
    ]
    assert both_tiers(
        lake,
        """select metric, type, count, sum, min, max, list_sum(bucket_counts) as counted,
        positive_counts from metric_histograms order by metric""",
    ) == [
        {
            "metric": "latency",
            "type": "histogram",
            "count": 1,
            "sum": 7.5,
            "min": 7.5,
            "max": 7.5,
            "counted": 1,
            "positive_counts": None,
        },
        {
            "metric": "sizes",
            "type": "exponential_histogram",
            "count": 1,
            "sum": 100.0,
            "min": 100.0,
            "max": 100.0,
            "counted": None,
            "positive_counts": [1],
        },
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_logs_of_the_sdk_come_back_by_sql(lake):
    exporter = InMemoryLogRecordExporter()
    provider = LoggerProvider(resource=RESOURCE)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    logger = logging.getLogger("till.of.the.test")
    logger.propagate = False
    logger.addHandler(LoggingHandler(logger_provider=provider))
    logger.warning("paid %s", "twice", extra={"amount": 3, "ok": False})
    message = encode_logs(exporter.get_finished_logs())
    provider.shutdown()
    assert write(lake, "logs", message) == 1
    [row] = both_tiers(
        lake,
        """select service_name, severity_number, severity_text, body, body_json,
        (attributes->'amount')::int as amount, attributes->>'ok' as ok, ts_ns = time_ns as same
        from logs""",
    )
    assert row == {
        "service_name": "shop",
        "severity_number": 13,
        "severity_text": "WARN",
        "body": "paid twice",
        "body_json": None,
        "amount": 3,
        "ok": "false",
        "same": True,
    }


def test_spans_of_the_sdk_come_back_by_sql(lake):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("till")
    with tracer.start_as_current_span("order", kind=trace.SpanKind.SERVER) as parent:
        link = trace.Link(parent.get_span_context(), {"why": "retry"})
        with tracer.start_as_current_span("pay", links=[link], attributes={"n": 1}) as child:
            child.add_event("declined", {"code": 51})
            child.set_status(trace.StatusCode.ERROR, "no money")
    spans = exporter.get_finished_spans()
    assert write(lake, "traces", encode_spans(spans)) == 2
    provider.shutdown()
    found = both_tiers(
        lake,
        """select name, kind, status_code, status_message, trace_id, span_id, parent_span_id, ts_ns,
        end_ns, duration_ns, events[1].name as event, events[1].attributes as event_attributes,
        links[1].span_id as linked, links[1].attributes as link_attributes
        from spans order by name""",
    )
    sent = {span.name: span for span in spans}
    order, pay = sent["order"], sent["pay"]
    ids = [one.context.span_id.to_bytes(8, "big") for one in (order, pay)]
    assert [(row["name"], row["kind"], row["status_code"]) for row in found] == [
        ("order", "server", "unset"),
        ("pay", "internal", "error"),
    ]
    assert [row["trace_id"] for row in found] == [order.context.trace_id.to_bytes(16, "big")] * 2
    assert [row["span_id"] for row in found] == ids
    assert [row["parent_span_id"] for row in found] == [None, ids[0]]
    assert [(row["ts_ns"], row["end_ns"]) for row in found] == [
        (one.start_time, one.end_time) for one in (order, pay)
    ]
    assert found[1]["duration_ns"] == pay.end_time - pay.start_time
    assert (found[1]["event"], found[1]["event_attributes"]) == ("declined", '{"code":51}')
    assert (found[1]["linked"], found[1]["link_attributes"]) == (ids[0], '{"why":"retry"}')
    assert found[1]["status_message"] == "no money"
