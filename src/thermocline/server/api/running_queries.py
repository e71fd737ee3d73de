"""The node's running queries by tenant and id, and the errors of recently failed ones.

In:   ids that clients choose or the node generates
Out:  ids for the engine, unique over tenants; states

- The engine knows a query by its tenant and id together, so a tenant can neither cancel another
  tenant's query nor collide with its id.
- A bounded number of failures is kept: a client that read half of an answer can ask for the error.
"""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from thermocline.server.api.types.response_types import ProblemResponse, QueryState

FAILURES_KEPT_MAX = 1_000


@dataclass(slots=True)
class RunningQuery:
    """One query from its request to its end."""

    tenant: str
    query_id: str
    started_s: float = field(default_factory=time.monotonic)
    error: ProblemResponse | None = None
    is_cancelled: bool = False  # the task that runs it checks this and ends the query

    @property
    def engine_id(self) -> str:
        """The engine's id of this query."""
        return f"{self.tenant}.{self.query_id}"

    def state(self) -> QueryState:
        """Return the query's state for its tenant."""
        seconds = round(time.monotonic() - self.started_s, 3)
        is_failed = self.error is not None
        return QueryState(self.query_id, "failed" if is_failed else "running", seconds, self.error)


class RunningQueries:
    """Running and recently failed queries. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, RunningQuery] = {}
        self._failed: OrderedDict[str, RunningQuery] = OrderedDict()

    def add(self, query: RunningQuery) -> bool:
        """Add a running query; return False when its id is running already."""
        with self._lock:
            if query.engine_id in self._running:
                return False
            self._running[query.engine_id] = query
            return True

    def remove(self, query: RunningQuery, error: ProblemResponse | None) -> None:
        """Remove a query that has ended, and keep its error if it failed."""
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
        """Return a tenant's running queries."""
        with self._lock:
            return [one for one in self._running.values() if one.tenant == tenant]
