"""Times decoding OTLP metrics: the compiled scanner against the official protobuf library.

In:   requests made here: points with 6 attributes of a resource with 8
Out:  a table on stdout: points a CPU second, by way and by size of the request

- `official` parses with the protobuf library and makes the same batches from its messages;
  `parse alone` stops after parsing. `compiled` is what a node uses; `compiled, new sets` has seen
  none of the attribute sets before.
- All ways take turns on the same requests, and the batches of both must be equal.
- One thread. CPU time, so that neighbours count less; the machine's load is printed.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

import measure
from thermocline.ingest.otlp.compiled import metrics
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.protobuf import decode_official, warm_up

NOW_NS = 1_763_200_000_000_000_000
METRICS = 20
SIZES = (50, 1_000, 5_000)


def attributes(values: dict[str, str | int]) -> list[KeyValue]:
    """Return attributes as messages."""
    return [
        KeyValue(key=key, value=AnyValue(string_value=value))
        if isinstance(value, str)
        else KeyValue(key=key, value=AnyValue(int_value=value))
        for key, value in values.items()
    ]


def request(points: int, turn: int) -> bytes:
    """Return a request of this many points; those of one turn have the same series."""
    made = ExportMetricsServiceRequest()
    group = made.resource_metrics.add()
    resource: dict[str, str | int] = {f"resource.key.{n}": f"value-{n}" for n in range(7)}
    group.resource.attributes.extend(attributes({"service.name": "shop", **resource}))
    scope = group.scope_metrics.add()
    for number in range(min(METRICS, points)):
        metric = scope.metrics.add(name=f"shop.metric.{number}", unit="1")
        metric.sum.aggregation_temporality = 2  # type: ignore[assignment]
        metric.sum.is_monotonic = True
        for place in range(points // min(METRICS, points)):
            point = metric.sum.data_points.add(
                start_time_unix_nano=NOW_NS - 1, time_unix_nano=NOW_NS + place, as_double=place / 3
            )
            series: dict[str, str | int] = {
                "http.method": "GET",
                "http.route": f"/api/v{turn}/{place}",
                "http.status_code": 200,
                "host": f"host-{number}",
                "zone": "eu-1",
                "pod": f"pod-{place % 7}",
            }
            point.attributes.extend(attributes(series))
    return made.SerializeToString()


def rate(work: Callable[[], object], points: int, seconds: float) -> float:
    """Return the points a CPU second of some work that is done again and again."""
    rates = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or not rates:
        start = time.process_time()
        rounds = 0
        while (spent := time.process_time() - start) < 0.02:
            work()
            rounds += 1
        rates.append(points * rounds / spent)
    return statistics.median(rates)


def compared(points: int, seconds: float) -> list[str]:
    """Return one line of the table."""
    limits = DecodeLimits()
    data = request(points, 0)
    taken = metrics.decode_metrics(data, limits)
    official = decode_official("metrics", data, arrived_ns=NOW_NS, limits=limits)
    if taken is None or not taken.batches["metric_points"].equals(
        official.batches["metric_points"]
    ):
        raise SystemExit("the two ways differ")
    fresh = [request(points, turn) for turn in range(1, 4)]
    start = time.process_time()
    for one in fresh:
        metrics.decode_metrics(one, limits)
    new_sets = points * len(fresh) / (time.process_time() - start)
    rates = [
        rate(lambda: metrics.decode_metrics(data, limits), points, seconds),
        new_sets,
        rate(
            lambda: decode_official("metrics", data, arrived_ns=NOW_NS, limits=limits),
            points,
            seconds,
        ),
        rate(lambda: ExportMetricsServiceRequest.FromString(data), points, seconds),
    ]
    return [f"{points:,}", *(f"{one:,.0f}" for one in rates), f"{rates[0] / rates[2]:.0f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round of each")
    options = parser.parse_args()
    warm_up()
    lines = [compared(points, 0.2 if options.quick else 3.0) for points in SIZES]
    headers = ["points", "compiled", "compiled, new sets", "official", "parse alone", "times"]
    print(measure.markdown_table(headers, lines))
    print(f"\nload of the machine: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
