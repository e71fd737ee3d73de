"""Whether the node is alive, has started and can take requests; and if not, why.

In:   the node while it starts, runs and stops
Out:  `HealthReport`s for `/health/live`, `/health/startup` and `/health/ready`

- Live means that the process answers, and nothing else. A node that replays its journal or has a
  full disk is alive, and must not be killed for it.
- Ready reports the present state. The node is not ready while it replays the journal, after the
  journal's writer ended, while the disk refuses writes, while flushes keep failing, and while the
  node stops.
- Files in the journal's quarantine are a warning of a ready node, until an operator removes them.
- Each check probes the journal on the path of the next write, unless a write is in progress, whose
  result counts instead. So the check notices a failed or recovered disk without a write.
- A failing export of entities, or a failing task of care, is a warning: the node still takes
  requests.
"""

import threading
import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from thermocline.care.keeper import CareStatus
from thermocline.errors import ThermoclineError
from thermocline.node import Node

FLUSH_FAILING_S = 30.0
RETRY_AFTER_S = 2
CARE_MAX = 10
"""How many failing tasks of care a report names."""
ALERTS_MAX = 5
"""How many failing rules of alerts a report names."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The answer of one health route: yes or no, the reasons and facts."""

    is_ok: bool
    status: str
    reasons: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def status_code(self) -> int:
        """The HTTP status: 200 or 503."""
        return 200 if self.is_ok else 503

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON object."""
        fields: dict[str, Any] = {"status": self.status, **self.facts}
        return {**fields, "reasons": list(self.reasons)} if self.reasons else fields


class Health:
    """The state of a node's health. Reading it never blocks; `look`, which a thread calls, may."""

    def __init__(
        self,
        *,
        flush_failing_s: float = FLUSH_FAILING_S,
        now_s: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._now_s = now_s
        self._flush_failing_s = flush_failing_s
        self._began_s = now_s()
        self._started_s: float | None = None
        self._lock = threading.Lock()
        self._node: Node | None = None
        self._phase = "starting"
        self._facts: dict[str, Any] = {}
        self._is_stopping = False
        self._failure: ThermoclineError | None = None
        self._flush_failed_s: float | None = None
        self._journal_reason = ""
        self._flush_reason = ""
        self._quarantine_warning = ""
        self._export_reason = ""
        self._care: Callable[[], CareStatus] = CareStatus
        self._alerts: Callable[[], list[str]] = list

    def watch_care(self, status: Callable[[], CareStatus]) -> None:
        """Report failing tasks of care as warnings from now on."""
        self._care = status

    def watch_alerts(self, troubles: Callable[[], list[str]]) -> None:
        """Report rules and webhooks that fail as warnings from now on."""
        self._alerts = troubles

    def report_phase(self, phase: str, **facts: Any) -> None:
        """Set the current phase of the start."""
        self._phase, self._facts = phase, facts

    def report_failure(self, error: ThermoclineError) -> None:
        """Record that the start failed; this is final."""
        self._failure = error

    def report_started(self, node: Node) -> None:
        """Record that the node is open, and check it."""
        self._node = node
        self._started_s = self._now_s()
        self.check()

    def report_stopping(self) -> None:
        """Record that the node takes no more requests."""
        self._is_stopping = True

    @property
    def is_stopping(self) -> bool:
        """Whether the node is shutting down."""
        return self._is_stopping

    def live(self) -> HealthReport:
        """Report that the process answers."""
        return HealthReport(is_ok=True, status="live", facts={"up_s": self._age_s(self._began_s)})

    def startup(self) -> HealthReport:
        """Report whether the start is complete, and if not, its phase."""
        if self._failure is not None:
            return HealthReport(is_ok=False, status="failed", reasons=(self._failure.message,))
        if self._started_s is None:
            took_s = self._age_s(self._began_s)
            facts = {"phase": self._phase, "took_s": took_s, **self._facts}
            return HealthReport(is_ok=False, status="starting", facts=facts)
        facts = {"took_s": round(self._started_s - self._began_s, 3)}
        return HealthReport(is_ok=True, status="started", facts=facts)

    def ready(self) -> HealthReport:
        """Report whether the node takes requests, and if not, why."""
        if not self.startup().is_ok:
            return HealthReport(is_ok=False, status="not ready", reasons=(self._phase_reason(),))
        reasons = [
            *(["the node is stopping"] if self._is_stopping else []),
            *([self._journal_reason] if self._journal_reason else []),
            *([self._flush_reason] if self._flush_reason else []),
        ]
        status = "not ready" if reasons else "ready"
        warnings = [one for one in (self._quarantine_warning, self._export_reason) if one]
        warnings += [f"care for tables fails: {one}" for one in self._care().failing[:CARE_MAX]]
        warnings += [f"alerts: {one}" for one in self._alerts()[:ALERTS_MAX]]
        facts = {"warnings": warnings} if warnings else {}
        return HealthReport(is_ok=not reasons, status=status, reasons=tuple(reasons), facts=facts)

    def check(self) -> HealthReport:
        """Check the node and report whether it is ready; may block on the disk."""
        with self._lock:
            node = self._node
            if node is not None and not self._is_stopping:
                self._journal_reason = self._check_journal(node)
                self._flush_reason = self._check_flushes(node)
                self._quarantine_warning = self._check_quarantine(node)
                self._export_reason = self._check_exports(node)
        return self.ready()

    def _phase_reason(self) -> str:
        if self._failure is not None:
            return f"the start failed: {self._failure.message}"
        return f"the node is {self._phase}"

    def _check_journal(self, node: Node) -> str:
        group = node.tier.group
        group.probe()
        trouble = group.last_error
        return "" if trouble is None else f"the journal cannot be written: {trouble.message}"

    def _check_exports(self, node: Node) -> str:
        error = node.export_error
        return "" if error is None else f"exports of entities fail: {error.message}"

    def _check_flushes(self, node: Node) -> str:
        error = node.flush_error
        if error is None:
            self._flush_failed_s = None
            return ""
        if self._flush_failed_s is None:
            self._flush_failed_s = self._now_s()
        if self._now_s() - self._flush_failed_s < self._flush_failing_s:
            return ""
        return f"flushes keep failing: {error.message}"

    def _check_quarantine(self, node: Node) -> str:
        """Return a warning if acknowledged rows are quarantined; the node serves all other rows."""
        held = node.tier.count_quarantined()
        if not held:
            return ""
        return f"the journal's quarantine holds {held} files: see `thermocline journal inspect`"

    def _age_s(self, since_s: float) -> float:
        return round(self._now_s() - since_s, 3)
