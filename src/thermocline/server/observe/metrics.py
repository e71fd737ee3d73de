"""The node's metrics for Prometheus.

In:   requests, rows, queries as they end; the node itself, read at each scrape
Out:  the text of `/metrics`

- Each node has its own registry: two nodes in one process do not share counters.
- This package chooses the labels, never the client: listener, route, status, signal, job, outcome.
  No label has a tenant, table or key, and the number of label values is bounded.
- A scrape reads numbers in memory; it never waits for the disk or for a writer's lock.
"""

import os
import resource
import threading
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from thermocline import __version__
from thermocline.alert.alerter import AlertStatus
from thermocline.alert.state import FIRING, PENDING
from thermocline.care.keeper import CareStatus
from thermocline.errors import ThermoclineError
from thermocline.node import Node
from thermocline.server.access.fair_share import Share
from thermocline.server.observe.jobs import JobWatch, job_families

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS_MAX = 500
OTHER = "other"
_SUMS = {
    "tables": "Tables of all tenants.",
    "segments": "Live segments of all tables.",
    "rows": "Rows in live segments.",
    "size_bytes": "Bytes of live segments.",
    "versions": "Versions that can be read.",
}
_REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_QUERY_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The counters of one node. Safe to use from any thread."""

    def __init__(self, keep_s: float = 0.0, now_s: Callable[[], float] = clock.monotonic) -> None:
        """`keep_s` is how long a scrape's answer is reused for later scrapes."""
        self.registry = CollectorRegistry()
        self._keep_s = keep_s
        self._now_s = now_s
        self._rendered = b""
        self._rendered_s = -1e9
        self._lock = threading.Lock()
        self._children: dict[tuple[Any, ...], Any] = {}
        labels = ["listener", "route", "status"]
        made: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("thermocline_requests", "Requests answered.", labels, **made)
        self._request_seconds = Histogram(
            "thermocline_request_seconds",
            "Time to answer a request.",
            ["listener"],
            buckets=_REQUEST_SECONDS,
            **made,
        )
        self._rows = Counter("thermocline_ingested_rows", "Rows made durable.", ["signal"], **made)
        self._bytes = Counter(
            "thermocline_ingested_bytes", "Bytes of requests made durable.", ["signal"], **made
        )
        self._rejected = Counter("thermocline_rejected_rows", "Rows refused.", ["signal"], **made)
        self._queries = Counter("thermocline_queries", "Queries ended.", ["outcome"], **made)
        self._query_seconds = Histogram(
            "thermocline_query_seconds", "Time of a query.", buckets=_QUERY_SECONDS, **made
        )
        self._node = _NodeCollector()
        self.registry.register(self._node)

    def count_request(self, listener: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; `route` is a path template, never the client's path."""
        self._child(self._requests, listener, route, str(status)).inc()
        self._child(self._request_seconds, listener).observe(seconds)

    def count_ingested(self, signal: str, rows: int, size_bytes: int) -> None:
        """Count rows that are durable."""
        self._child(self._rows, signal).inc(rows)
        self._child(self._bytes, signal).inc(size_bytes)

    def count_rejected(self, signal: str, rows: int) -> None:
        """Count refused rows."""
        self._child(self._rejected, signal).inc(rows)

    def count_query(self, outcome: str, seconds: float) -> None:
        """Count a query that ended, by outcome: `ok`, `cancelled`, `timeout`, `error`, ..."""
        self._child(self._queries, outcome).inc()
        self._query_seconds.observe(seconds)

    def watch(
        self,
        node: Node,
        is_ready: Callable[[], bool] = lambda: True,
        care: Callable[[], CareStatus] = CareStatus,
    ) -> None:
        """Report this node's numbers, whether it is ready, and its care, at each scrape."""
        self._node.node, self._node.is_ready, self._node.care = node, is_ready, care
        self._node.jobs = JobWatch(node)

    def watch_alerts(self, statuses: Callable[[], Mapping[str, AlertStatus]]) -> None:
        """Report the alerts of every tenant at each scrape."""
        self._node.alerts = statuses

    def watch_shares(self, shares: Mapping[str, Share]) -> None:
        """Report what tenants share, by class of cost, at each scrape."""
        self._node.shares = shares

    def watch_refusals(self, refusals: Callable[[], Mapping[str, int]]) -> None:
        """Report how often a quota refused something, by its name, at each scrape."""
        self._node.refusals = refusals

    def render(self) -> bytes:
        """Return the text of a scrape; its type is `CONTENT_TYPE`."""
        with self._lock:
            if self._now_s() - self._rendered_s >= self._keep_s:
                self._rendered = generate_latest(self.registry)
                self._rendered_s = self._now_s()
            return self._rendered

    def _child(self, metric: Any, *labels: str) -> Any:
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            if len(self._children) >= LABELS_MAX:
                return metric.labels(*[OTHER] * len(labels))
            child = self._children[key] = metric.labels(*labels)
        return child


class _NodeCollector(Collector):
    """The node's own numbers, read at each scrape."""

    def __init__(self) -> None:
        self.node: Node | None = None
        self.is_ready: Callable[[], bool] = lambda: False
        self.jobs: JobWatch | None = None
        self.care: Callable[[], CareStatus] = CareStatus
        self.shares: Mapping[str, Share] = {}
        self.refusals: Callable[[], Mapping[str, int]] = dict
        self.alerts: Callable[[], Mapping[str, AlertStatus]] = dict
        self._started_s = clock.time()

    def collect(self) -> Iterator[Any]:
        yield _gauge("process_resident_memory_bytes", "Memory of the process.", resident_bytes())
        yield _gauge("process_start_time_seconds", "When the process began.", self._started_s)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = CounterMetricFamily("process_cpu_seconds", "Time of the processors.")
        cpu.add_metric([], usage.ru_utime + usage.ru_stime)
        yield cpu
        info = GaugeMetricFamily("thermocline_info", "Which version runs.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        yield _gauge("thermocline_ready", "Whether requests are taken.", float(self.is_ready()))
        yield from share_families(self.shares, self.refusals())
        node = self.node
        if node is None:
            return
        try:
            numbers = list(node_numbers(node))
        except ThermoclineError:
            return  # the node was closed meanwhile; `thermocline_ready` tells it
        for name, text, value in numbers:
            yield _gauge(f"thermocline_{name}", text, value)
        if self.jobs is not None:
            yield from job_families(self.jobs.newest_runs())
        yield from care_families(self.care())
        yield from alert_families(self.alerts().values())


def share_families(shares: Mapping[str, Share], refusals: Mapping[str, int]) -> Iterator[Any]:
    """Yield what tenants share and what was refused, by class of cost; never by tenant."""
    held = GaugeMetricFamily("thermocline_share_held", "What tenants hold now.", labels=["class"])
    total = GaugeMetricFamily("thermocline_share_total", "What they share.", labels=["class"])
    refused = CounterMetricFamily(
        "thermocline_refused", "Requests beyond a share or a quota.", labels=["class"]
    )
    for name, share in list(shares.items()):
        held.add_metric([name], share.held)
        total.add_metric([name], share.total)
        refused.add_metric([name], share.refused_count)
    for name, count in refusals.items():
        refused.add_metric([name], count)
    yield from (held, total, refused)


def care_families(status: CareStatus) -> Iterator[Any]:
    """Yield the metrics of the care process and the sums over all tables; none if care is off."""
    if not status.is_on:
        return
    yield _gauge("thermocline_care_up", "Whether the care process runs.", status.is_running)
    failing = len(status.failing)
    yield _gauge("thermocline_care_failing", "Tasks of care whose last run failed.", failing)
    starts = CounterMetricFamily("thermocline_care_starts", "Starts of the care process.")
    starts.add_metric([], status.starts)
    yield starts
    tasks = CounterMetricFamily(
        "thermocline_care_tasks", "Tasks of care that ended.", labels=["job", "outcome"]
    )
    for job, outcome, count in status.tasks:
        tasks.add_metric([job, outcome], count)
    yield tasks
    for name, value in status.sums:
        meaning = _SUMS.get(name)
        if meaning is not None:
            yield _gauge(f"thermocline_cold_{name}", meaning, value)


def alert_families(statuses: Iterable[AlertStatus]) -> Iterator[Any]:
    """Yield sums over the alerts of all tenants; none if no tenant has rules."""
    found = list(statuses)
    if not found:
        return
    rules = [one for status in found for one in status.rules]
    active = [alert.state for one in rules for alert in one.active]
    failing = sum(bool(one.error) for one in rules)
    yield _gauge("thermocline_alert_rules", "Rules of alerts that are evaluated.", len(rules))
    yield _gauge("thermocline_alert_rules_failing", "Rules whose evaluation fails.", failing)
    yield _gauge("thermocline_alerts_firing", "Alerts that fire.", active.count(FIRING))
    yield _gauge("thermocline_alerts_pending", "Alerts that are pending.", active.count(PENDING))
    waiting = sum(status.outstanding for status in found)
    yield _gauge("thermocline_alert_deliveries_outstanding", "Webhooks to be sent.", waiting)
    counts = (
        ("evaluations", "Evaluations of rules.", sum(one.evaluations for one in rules)),
        ("evaluation_errors", "Evaluations that failed.", sum(one.errors for one in rules)),
        ("deliveries", "Webhooks that were accepted.", sum(one.delivered for one in found)),
        (
            "deliveries_dropped",
            "Webhooks that are not tried any more.",
            sum(one.dropped for one in found),
        ),
        (
            "attempts_failed",
            "Attempts to send that failed.",
            sum(one.failed_attempts for one in found),
        ),
    )
    for name, meaning, value in counts:
        counter = CounterMetricFamily(f"thermocline_alert_{name}", meaning)
        counter.add_metric([], value)
        yield counter


def node_numbers(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the node's numbers: name, meaning, value."""
    tier = node.tier
    now_s = clock.monotonic()
    since = [one.hot_since_s for one in tier.tables() if one.hot_since_s is not None]
    yield "journal_next_lsn", "The number of the journal's next write.", tier.next_lsn
    yield "journal_failed", "Whether the journal's last write failed.", _flag(tier.group.last_error)
    quarantined = "Files in the journal's quarantine: rows set aside that a person must look at."
    yield "journal_quarantined_files", quarantined, tier.quarantined_count
    yield "hot_bytes", "Memory of rows that are not flushed.", tier.hot_bytes
    yield "hot_bytes_max", "The ceiling of hot_bytes.", tier.hot_bytes_max
    oldest_s = now_s - min(since) if since else 0.0
    yield "flush_age_seconds", "How long the oldest row has been hot.", oldest_s
    yield "flush_failing", "Whether the last flush failed.", _flag(node.flush_error)
    yield "export_failing", "Whether the last export failed.", _flag(node.export_error)
    if node.pool is not None:
        workers = len(node.pool.worker_ids())
        yield "query_workers", "Processes that run queries now.", workers


def _flag(trouble: object) -> float:
    return float(trouble is not None)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))


def resident_bytes() -> int:
    """Return the resident memory of this process, 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
