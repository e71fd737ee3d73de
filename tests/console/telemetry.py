"""Telemetry of a shop over the last hour: metrics, logs and traces, with labels that are markup."""

import time

from console.filled import MARKUP

TRACE = "0af7651916cd43dd8448eb211c80319c"
ORPHANS = "1bf7651916cd43dd8448eb211c80319c"
MS = 1_000_000
TICK_S = 30
TICKS = 100


def texts(**named):
    return [{"key": key, "value": {"stringValue": value}} for key, value in named.items()]


def send_telemetry(node):
    """Send what the screens show to a served node over OTLP."""
    now_ns = time.time_ns()
    for signal, body in (
        ("metrics", metrics(now_ns)),
        ("logs", logs(now_ns)),
        ("traces", traces(now_ns)),
    ):
        status, told, _ = node.ask(f"/v1/{signal}", body, listener="http")
        assert (status, told) == (200, {})


def metrics(now_ns):
    start_ns = now_ns - TICKS * TICK_S * 1000 * MS
    times = [start_ns + tick * TICK_S * 1000 * MS for tick in range(TICKS)]
    visits = [
        {
            "timeUnixNano": str(at),
            "startTimeUnixNano": str(start_ns - MS),
            "asInt": str(tick * (place + 1)),
            "attributes": texts(route=route),
        }
        for place, route in enumerate(("/", "/pay"))
        for tick, at in enumerate(times)
    ]
    latency = [
        {
            "timeUnixNano": str(at),
            "startTimeUnixNano": str(start_ns - MS),
            "count": str(3 * tick),
            "sum": 3.0 * tick,
            "explicitBounds": [10, 100],
            "bucketCounts": [str(tick), str(tick), str(tick)],
        }
        for tick, at in enumerate(times)
    ]
    found = [
        {
            "name": "shop.visits",
            "description": f"pages {MARKUP}",
            "sum": {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": visits},
        },
        {
            "name": "shop.latency",
            "unit": "ms",
            "histogram": {"aggregationTemporality": 2, "dataPoints": latency},
        },
    ]
    return resources("resourceMetrics", "scopeMetrics", {"shop": {"metrics": found}})


def logs(now_ns):
    records = [
        {
            "timeUnixNano": str(now_ns - number * 1000 * MS),
            "severityNumber": 17 if number % 10 == 0 else 9,
            "body": {"stringValue": f"order {number} {'refused' if number % 10 == 0 else 'paid'}"},
            "attributes": texts(markup=MARKUP),
            **({"traceId": TRACE} if number == 10 else {}),
        }
        for number in range(1, 61)
    ]
    return resources("resourceLogs", "scopeLogs", {"shop": {"logRecords": records}})


def traces(now_ns):
    start_ns = now_ns - 60_000 * MS

    def span(trace, number, parent, name, at_ms, ms, **more):
        return {
            "traceId": trace,
            "spanId": f"{number:016x}",
            **({"parentSpanId": f"{parent:016x}"} if parent else {}),
            "name": name,
            "startTimeUnixNano": str(start_ns + at_ms * MS),
            "endTimeUnixNano": str(start_ns + (at_ms + ms) * MS),
            **more,
        }

    shop = [
        span(TRACE, 1, 0, f"GET /pay {MARKUP}", 0, 120),
        span(TRACE, 2, 1, "check basket", 5, 30, attributes=texts(items="3")),
        # The parent of the second span has not arrived.
        span(ORPHANS, 1, 0, "GET /", 0, 10),
        span(ORPHANS, 3, 2, "orphan", 2, 3),
    ]
    event = {"timeUnixNano": str(start_ns), "name": "retry", "attributes": texts(why="timeout")}
    bank = [span(TRACE, 3, 1, "charge", 40, 70, status={"code": 2}, events=[event])]
    return resources(
        "resourceSpans", "scopeSpans", {"shop": {"spans": shop}, "bank": {"spans": bank}}
    )


def resources(outer, inner, by_service):
    return {
        outer: [
            {"resource": {"attributes": texts(**{"service.name": service})}, inner: [content]}
            for service, content in by_service.items()
        ]
    }
