"""Whether the node lives, has started and can take requests; and if not, why.

In:   the node as it starts, runs and stops
Out:  `Report`s for `/health/live`, `/health/startup` and `/health/ready`

- Live says that the process answers, and nothing else: a node that replays or whose disk is full
  is alive, and must not be killed for it.
- Ready is told from what is, not from what was: while the journal is replayed, after its writer
  ended, while its disk takes no bytes, while flushes keep failing, while it stops, it is not.
- What is in the journal's quarantine is a warning of a node that is ready, until a person has
  removed it.
- Each look tries the journal in the way that its next write would take, unless a write is under
  way, which tells by itself. So a disk that fails or works again is noticed without a write.
- A failing export of entities is told as a warning: the node still takes requests.
"""

import threading
import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from thermocline.errors import ThermoclineError

FLUSH_FAILING_S = 30.0
RETRY_AFTER_S = 2


@dataclass(frozen=True, slots=True)
class Report:
    """One answer of health: whether it is so, and what there is to know."""

    is_ok: bool
    status: str
    reasons: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def status_code(self) -> int:
        """The HTTP status: 200 or 503."""
        return 200 if self.is_ok else 503

    def body(self) -> dict[str, Any]:
        """Return what is answered."""
        told: dict[str, Any] = {"status": self.status, **self.facts}
        return {**told, "reasons": list(self.reasons)} if self.reasons else told


class Health:
    """What is known of a node's health. Asking never waits: `look` does, in a thread."""

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
        self._node: Any = None
        self._phase = "starting"
        self._facts: dict[str, Any] = {}
        self._is_stopping = False
        self._failure: ThermoclineError | None = None
        self._flush_failed_s: float | None = None
        self._journal_reason = ""
        self._flush_reason = ""
        self._quarantine_warning = ""
        self._export_reason = ""

    def starting(self, phase: str, **facts: Any) -> None:
        """Say what the start is busy with."""
        self._phase, self._facts = phase, facts

    def failed(self, error: ThermoclineError) -> None:
        """Say that the start failed; it stays so."""
        self._failure = error

    def started(self, node: Any) -> None:
        """Say that the node is open."""
        self._node = node
        self._started_s = self._now_s()
        self.look()

    def stopping(self) -> None:
        """Say that the node takes nothing more."""
        self._is_stopping = True

    @property
    def is_stopping(self) -> bool:
        """Whether the node is on its way down."""
        return self._is_stopping

    def live(self) -> Report:
        """Tell that the process answers."""
        return Report(is_ok=True, status="live", facts={"up_s": self._age_s(self._began_s)})

    def startup(self) -> Report:
        """Tell whether the start is over, and how far it is."""
        if self._failure is not None:
            return Report(is_ok=False, status="failed", reasons=(self._failure.message,))
        if self._started_s is None:
            took_s = self._age_s(self._began_s)
            facts = {"phase": self._phase, "took_s": took_s, **self._facts}
            return Report(is_ok=False, status="starting", facts=facts)
        facts = {"took_s": round(self._started_s - self._began_s, 3)}
        return Report(is_ok=True, status="started", facts=facts)

    def ready(self) -> Report:
        """Tell whether requests are taken, and if not, why."""
        if not self.startup().is_ok:
            return Report(is_ok=False, status="not ready", reasons=(self._phase_reason(),))
        reasons = [
            *(["the node is stopping"] if self._is_stopping else []),
            *([self._journal_reason] if self._journal_reason else []),
            *([self._flush_reason] if self._flush_reason else []),
        ]
        status = "not ready" if reasons else "ready"
        warnings = [one for one in (self._quarantine_warning, self._export_reason) if one]
        facts = {"warnings": warnings} if warnings else {}
        return Report(is_ok=not reasons, status=status, reasons=tuple(reasons), facts=facts)

    def look(self) -> Report:
        """Look at the node and return whether it is ready; may wait for the disk."""
        with self._lock:
            if self._node is not None and not self._is_stopping:
                self._journal_reason = self._journal()
                self._flush_reason = self._flushes()
                self._quarantine_warning = self._quarantine()
                self._export_reason = self._exports()
        return self.ready()

    def _phase_reason(self) -> str:
        if self._failure is not None:
            return f"the start failed: {self._failure.message}"
        return f"the node is {self._phase}"

    def _journal(self) -> str:
        group = self._node.tier.group
        group.probe()
        trouble = group.trouble
        return "" if trouble is None else f"the journal cannot be written: {trouble.message}"

    def _exports(self) -> str:
        error = self._node.export_error
        return "" if error is None else f"exports of entities fail: {error.message}"

    def _flushes(self) -> str:
        error = self._node.flush_error
        if error is None:
            self._flush_failed_s = None
            return ""
        if self._flush_failed_s is None:
            self._flush_failed_s = self._now_s()
        if self._now_s() - self._flush_failed_s < self._flush_failing_s:
            return ""
        return f"flushes keep failing: {error.message}"

    def _quarantine(self) -> str:
        """Say that acknowledged rows are set aside; the node serves all others meanwhile."""
        held = self._node.tier.count_quarantined()
        if not held:
            return ""
        return f"the journal's quarantine holds {held} files: see `thermocline journal inspect`"

    def _age_s(self, since_s: float) -> float:
        return round(self._now_s() - since_s, 3)
