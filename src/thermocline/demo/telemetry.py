"""A simulated shop that sends metrics, logs and traces with OpenTelemetry's SDK alone.

In:   the address of an OTLP receiver
Out:  the number of metric points, log records and spans that the SDK has sent
"""

import logging
import random
from typing import TYPE_CHECKING, Any

from thermocline.extras import require_extra

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

ROUTES = ("/", "/basket", "/pay", "/search")
VISITS = 400
SEED = 7
WAIT_MS = 60_000


def send_telemetry(endpoint: str) -> dict[str, int]:
    """Simulate visits to the shop; return what the node has acknowledged, by kind."""
    with require_extra("demo", feature="the demonstration's OpenTelemetry SDK"):
        from opentelemetry.sdk._logs import LoggingHandler

        metrics, logs, traces = _providers(endpoint)

    meter, tracer = metrics.get_meter("shop"), traces.get_tracer("shop")
    served = meter.create_counter("shop.visits", unit="1", description="pages that were served")
    latency = meter.create_histogram("shop.latency", unit="ms")
    log = logging.Logger("shop")  # not below the root logger, so no other handler gets its records
    log.addHandler(LoggingHandler(logger_provider=logs))
    spans = 0
    visitor = random.Random(SEED)  # noqa: S311  the same visitors each time
    for number in range(VISITS):
        route = visitor.choice(ROUTES)
        took_ms = visitor.lognormvariate(3, 0.6)
        served.add(1, {"route": route})
        latency.record(took_ms, {"route": route})
        spans += _record_visit(tracer, log, route, took_ms, number)
    for provider in (metrics, logs, traces):
        provider.shutdown()  # sends the remaining records, and waits for the answer
    return {"logs": VISITS, "spans": spans, "visits": VISITS}


def _record_visit(
    tracer: "Tracer", log: logging.Logger, route: str, took_ms: float, number: int
) -> int:
    """Record a visit: a span, a span of the database in it, and a log record."""
    visit = tracer.start_as_current_span(f"GET {route}", attributes={"http.route": route})
    with visit, tracer.start_as_current_span("select orders"):
        level = logging.WARNING if took_ms > 40 else logging.INFO
        log.log(level, "served %s in %.0f ms", route, took_ms, extra={"visit": number})
    return 2


def _providers(endpoint: str) -> tuple[Any, Any, Any]:
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    shop = Resource({"service.name": "shop", "host.name": "till-1"})
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(f"{endpoint}/v1/metrics"), export_interval_millis=WAIT_MS
    )
    metrics = MeterProvider(metric_readers=[reader], resource=shop)
    logs = LoggerProvider(resource=shop)
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{endpoint}/v1/logs")))
    traces = TracerProvider(resource=shop)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    return metrics, logs, traces
