"""The queries of this node by tenant and id: those that run, and errors of some that failed.

In:   ids that clients choose or that are made here
Out:  ids that no other tenant can name; states

- A query is known to the engine by its tenant and its id together, so one tenant's id is never
  another's: neither to cancel, nor to collide with.
- Failures are remembered, a bounded number: whoever read half of an answer can ask what happened.
"""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from thermocline.server.api.shape import Problem, QueryState

FAILURES_KEPT_MAX = 1_000


@dataclass(slots=True)
class RunningQuery:
    """One query from its request to its end."""

    tenant: str
    query_id: str
    started_s: float = field(default_factory=time.monotonic)
    error: Problem | None = None
    is_cancelled: bool = False  # whoever runs it has to end it as soon as it can be

    @property
    def engine_id(self) -> str:
        """The id under which the engine knows it."""
        return f"{self.tenant}.{self.query_id}"

    def state(self) -> QueryState:
        """Return what may be told of it."""
        seconds = round(time.monotonic() - self.started_s, 3)
        is_failed = self.error is not None
        return QueryState(self.query_id, "failed" if is_failed else "running", seconds, self.error)


class Running:
    """What runs and what failed. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, RunningQuery] = {}
        self._failed: OrderedDict[str, RunningQuery] = OrderedDict()

    def add(self, query: RunningQuery) -> bool:
        """Note that a query runs; False when one of its id runs already."""
        with self._lock:
            if query.engine_id in self._running:
                return False
            self._running[query.engine_id] = query
            return True

    def remove(self, query: RunningQuery, error: Problem | None) -> None:
        """Note that a query is over, and with which error."""
        with self._lock:
            self._running.pop(query.engine_id, None)
            self._failed.pop(query.engine_id, None)
            if error is not None:
                query.error = error
                self._failed[query.engine_id] = query
                while len(self._failed) > FAILURES_KEPT_MAX:
                    self._failed.popitem(last=False)

    def find(self, tenant: str, query_id: str) -> RunningQuery | None:
        """Return a tenant's query, or None when it has none of this id."""
        key = RunningQuery(tenant, query_id).engine_id
        with self._lock:
            return self._running.get(key) or self._failed.get(key)

    def all(self, tenant: str) -> list[RunningQuery]:
        """Return a tenant's queries that run."""
        with self._lock:
            return [one for one in self._running.values() if one.tenant == tenant]
