# ruff: noqa: INP001, T201  # a script for people, run by its path
"""OpenTelemetry's SDK sends a counter to a node; SQL reads it back at once.

thermocline serve --data ./data &
.venv/bin/python examples/telemetry.py http://127.0.0.1:4318 http://127.0.0.1:4320
"""

import sys

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

import thermocline as tc


def main() -> None:
    """Count some visits, send them, query them."""
    otlp, api = sys.argv[1:3]
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{otlp}/v1/metrics"))
    provider = MeterProvider([reader], resource=Resource({"service.name": "shop"}))
    visits = provider.get_meter("shop").create_counter("shop.visits")
    for route in ("/", "/", "/basket", "/pay"):
        visits.add(1, {"route": route})
    provider.shutdown()  # sends the points; the node answers when they are durable

    with tc.connect(api) as lake:
        print(
            lake.sql(
                "select attributes->>'route' as route, max(value_int) as visits "
                "from metric_points where metric = 'shop.visits' group by all order by all"
            )
        )


if __name__ == "__main__":
    main()
