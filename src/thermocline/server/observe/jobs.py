"""The newest runs of pipeline jobs over all tenants of a node, for its metrics.

In:   the histories in the lakes of all tenants
Out:  the newest run of each job and outcome

- Reading never blocks: it returns the result of the last refresh, and starts the next refresh in a
  thread when the last one is older than `REFRESH_S`.
- A history is read again only when it has a new version.
- Labels are the jobs of this package: no name of a tenant or a table becomes a label.
"""

import threading
import time as clock
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily

from thermocline.cold.table import ColdTable
from thermocline.errors import ThermoclineError
from thermocline.node import Node
from thermocline.pipeline.run.history import FAILED, NAME, NOT_RUN, last_runs
from thermocline.pipeline.run.runner import JOB_ORDER, REQUESTED_JOBS

REFRESH_S = 15.0
CARE_JOBS = ("vacuum",)
"""Jobs that only the node's care runs."""
RUNS_READ_MAX = 200


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of a job with one outcome: when it began, and how long it took."""

    began_s: float
    took_s: float


class JobWatch:
    """The last runs of a node's jobs. Safe to use from any thread."""

    def __init__(self, node: Node, now_s: Callable[[], float] = clock.monotonic) -> None:
        self._node = node
        self._now_s = now_s
        self._lock = threading.Lock()
        self._looked_s: float | None = None
        self._seen: dict[str, tuple[int, dict[tuple[str, str], LastRun]]] = {}

    def newest_runs(self) -> dict[tuple[str, str], LastRun]:
        """Return the newest run of each job and outcome, as of the last refresh."""
        with self._lock:
            now_s = self._now_s()
            is_old = self._looked_s is None or now_s - self._looked_s >= REFRESH_S
            if is_old:
                self._looked_s = now_s
            seen = [runs for _, runs in self._seen.values()]
        if is_old:
            threading.Thread(target=self.refresh, name="thermocline-jobs", daemon=True).start()
        found: dict[tuple[str, str], LastRun] = {}
        for runs in seen:
            for key, run in runs.items():
                if key not in found or found[key].began_s < run.began_s:
                    found[key] = run
        return found

    def refresh(self) -> None:
        """Read the histories that have a new version."""
        try:
            for tenant in self._node.tenants():
                lake = self._node.lake(tenant)
                if NAME in lake.tables():
                    self._read_history(tenant, lake.table(NAME).cold)
        except ThermoclineError:
            return  # the next refresh tries again; until then the last result is served

    def _read_history(self, tenant: str, table: ColdTable) -> None:
        version = table.state().version
        if self._seen.get(tenant, (0, {}))[0] == version:
            return
        runs: dict[tuple[str, str], LastRun] = {}
        for row in last_runs(table, RUNS_READ_MAX):
            if row["job"] in (*JOB_ORDER, *REQUESTED_JOBS, *CARE_JOBS):
                run = LastRun(row["started_at"].timestamp(), (row["took_ms"] or 0) / 1000)
                runs.setdefault((row["job"], row["state"]), run)
        with self._lock:
            self._seen[tenant] = (version, runs)


def job_families(last: dict[tuple[str, str], LastRun]) -> Iterator[GaugeMetricFamily]:
    """Yield the metrics of jobs; none if no job has run."""
    if not last:
        return
    began = GaugeMetricFamily(
        "thermocline_job_last_run_timestamp_seconds",
        "When the newest run of a job with this outcome began.",
        labels=["job", "outcome"],
    )
    took = GaugeMetricFamily(
        "thermocline_job_last_run_seconds",
        "How long the newest run of a job with this outcome took.",
        labels=["job", "outcome"],
    )
    failing = GaugeMetricFamily(
        "thermocline_job_failing", "Whether the newest run of a job failed.", labels=["job"]
    )
    newest: dict[str, tuple[float, str]] = {}
    for (job, outcome), run in sorted(last.items()):
        began.add_metric([job, outcome], run.began_s)
        took.add_metric([job, outcome], run.took_s)
        newest[job] = max(newest.get(job, (0.0, "")), (run.began_s, outcome))
    for job, (_, outcome) in newest.items():
        failing.add_metric([job], float(outcome in (FAILED, NOT_RUN)))
    yield from (began, took, failing)
