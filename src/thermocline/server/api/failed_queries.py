"""The errors of queries that failed recently, by tenant and id.

A client that has read half of an answer can ask for the error. The running queries are in the
query pool.
"""

import threading
from collections import OrderedDict

from thermocline.server.api.types.response_types import QueryState

FAILURES_KEPT_MAX = 1_000


class FailedQueries:
    """A bounded number of failures. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: OrderedDict[tuple[str, str], QueryState] = OrderedDict()

    def record_end(self, tenant: str, query_id: str, failed: QueryState | None) -> None:
        """Keep the state of a query that failed; drop the state of an earlier one of its id."""
        with self._lock:
            self._failed.pop((tenant, query_id), None)
            if failed is not None:
                self._failed[tenant, query_id] = failed
                while len(self._failed) > FAILURES_KEPT_MAX:
                    self._failed.popitem(last=False)

    def find(self, tenant: str, query_id: str) -> QueryState | None:
        """Return the state of a tenant's failed query, or None."""
        return self._failed.get((tenant, query_id))
