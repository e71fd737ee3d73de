"""The queries of a pool: those that wait for a turn, those that run, and when each must end.

In:   queries with an id and a tenant; ids to cancel
Out:  a turn for as many queries as there are workers; stopped queries

- Each query is registered from its admission to its end. An id belongs to one query of a tenant at
  a time, and a tenant finds and cancels only its queries.
- Tenants take turns: a tenant with many waiting queries does not delay the first one of another.
  The queries of one tenant run in the order in which they came.
- While several tenants share the pool, its last free worker is not given to a tenant that has a
  worker already: another tenant's first query never waits for the end of a long one.
- The number of waiting queries is limited, and so is the time that each waits. A waiting query
  needs no thread.
- The watchdog thread ends a query at its deadline, even if no thread waits for its answer. It runs
  while there are queries and for `LINGER_S` more, so that an idle pool has no thread and can be
  garbage collected.
- Stopping never waits for the query, so any code may call it, even a destructor.
"""

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable

from thermocline.errors import Conflict, Overloaded, QueryCancelled, ThermoclineError, Unavailable
from thermocline.format.argument import check_text
from thermocline.query.worker.running_query import RunningQuery

WAITING_MAX = 64
WAIT_S_DEFAULT = 10.0
RETRY_AFTER_S = 2
LINGER_S = 2.0


class QueryQueue:
    """Waiting and running queries by tenant and id. Thread-safe."""

    def __init__(self, turns: int, wait_s: float = WAIT_S_DEFAULT) -> None:
        self.wait_s = wait_s
        self.is_shared: Callable[[], bool] = lambda: False
        """Whether several tenants use the pool."""
        self._turns = turns
        self._free = turns
        self._changed = threading.Condition()  # its lock is re-entrant
        self._queries: dict[tuple[str, str], RunningQuery] = {}
        self._waiting: dict[str, deque[RunningQuery]] = {}  # by tenant, the next tenant first
        self._abandoned: list[RunningQuery] = []
        self._watchdog: threading.Thread | None = None
        self._wakes_at_s = 0.0

    def admit(self, query_id: str | None = None, tenant: str = "") -> RunningQuery:
        """Register a query; the caller must run it in the pool, or `leave`.

        Its `turn` is done when it may run. The turn raises `Overloaded` when too many queries wait
        or it waits too long, and `QueryCancelled`. `Conflict` when the tenant has a query of this
        id.
        """
        query_id = uuid.uuid4().hex if query_id is None else check_text(query_id, "query_id")
        with self._changed:
            if (tenant, query_id) in self._queries:
                hint = "choose another id, or wait until that query ends"
                raise Conflict("a query of this id is running", hint=hint, query_id=query_id)
            query = RunningQuery(query_id, tenant, time.monotonic() + self.wait_s)
            may_start = self._may_start(tenant)
            # A tenant without a waiting query always finds a place: others cannot fill the queue.
            if not may_start and self.waiting >= WAITING_MAX and tenant in self._waiting:
                query.turn.set_exception(self._busy_error())
                return query
            self._queries[tenant, query_id] = query
            if may_start:
                self._free -= 1
                query.turn.set_result(None)
            else:
                self._waiting.setdefault(tenant, deque()).append(query)
                self.watch(query)
            return query

    def _may_start(self, tenant: str) -> bool:
        """Tell whether a query of a tenant may have a turn now."""
        if self._free != 1 or self._turns == 1:
            return self._free > 0
        has_one = any(one.tenant == tenant and one.turn.done() for one in self._queries.values())
        return not (has_one and self.is_shared())

    @property
    def waiting(self) -> int:
        """The number of waiting queries."""
        return sum(map(len, self._waiting.values()))

    def find(self, query_id: str, tenant: str = "") -> RunningQuery | None:
        """Return a tenant's query, or None when none of this id waits or runs."""
        return self._queries.get((tenant, query_id))

    def of_tenant(self, tenant: str) -> list[RunningQuery]:
        """Return the queries of a tenant that wait or run."""
        with self._changed:
            return [one for one in self._queries.values() if one.tenant == tenant]

    def cancel(self, query_id: str, tenant: str = "") -> bool:
        """End a query within a second; False when none of this id waits or runs.

        A thread that waits for its turn or reads its answer gets `QueryCancelled`.
        """
        with self._changed:
            query = self.find(check_text(query_id, "query_id"), tenant)
            if query is None or query.is_over:
                return False
            hint = "a client cancelled it by its id; run it again if its answer is needed"
            reason = QueryCancelled("the query was cancelled", hint=hint, query_id=query_id)
            self._stop(query, reason)
            return True

    def leave(self, query: RunningQuery) -> None:
        """End a query whose client has gone, at any stage; no thread may read its answer now."""
        with self._changed:
            if self.find(query.query_id, query.tenant) is not query or query.is_abandoned:
                return
            if self._stop_waiting(query):
                return
            query.is_abandoned = True
            if query.worker is None:
                self.end(query)
                return
            hint = "run the query again and read its answer to the end"
            query.stop(Unavailable("the client stopped reading the answer", hint=hint))
            self._abandoned.append(query)
            self._changed.notify_all()

    def end(self, query: RunningQuery) -> None:
        """Free the id and the turn of a query: the first one of the next tenant gets the turn."""
        with self._changed:
            del self._queries[query.tenant, query.query_id]
            self._free += 1
            for tenant in [one for one in self._waiting if self._may_start(one)][: self._free]:
                queries = self._waiting.pop(tenant)
                waiting = queries.popleft()
                if queries:
                    self._waiting[tenant] = queries  # behind the other tenants
                self._free -= 1
                waiting.turn.set_result(None)

    def stop_all(self, reason: ThermoclineError) -> None:
        """Stop every query for this reason."""
        with self._changed:
            for query in list(self._queries.values()):
                self._stop(query, reason)

    def _stop(self, query: RunningQuery, reason: ThermoclineError) -> None:
        if self._stop_waiting(query):
            query.turn.set_exception(reason)
        else:
            query.stop(reason)
            self._changed.notify_all()

    def _stop_waiting(self, query: RunningQuery) -> bool:
        """Remove a query that waits for its turn; False when it waits no more."""
        queries = self._waiting.get(query.tenant)
        if queries is None or query not in queries:
            return False
        queries.remove(query)
        if not queries:
            del self._waiting[query.tenant]
        del self._queries[query.tenant, query.query_id]
        return True

    def watch(self, query: RunningQuery) -> None:
        """End this query at its deadline."""
        with self._changed:
            if self._watchdog is None:
                self._watchdog = threading.Thread(
                    target=self._watch_queries, name="watch", daemon=True
                )
                self._watchdog.start()
            elif query.deadline_s < self._wakes_at_s:
                self._changed.notify_all()

    def _watch_queries(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                unread, self._abandoned = self._abandoned, []
                for query in unread:
                    threading.Thread(target=query.drain, name="settle", daemon=True).start()
                for queries in list(self._waiting.values()):
                    for query in [one for one in queries if now_s >= one.deadline_s]:
                        self._stop(query, self._busy_error())
                had_queries = bool(self._queries)
                times = [query.check_deadline(now_s) for query in list(self._queries.values())]
                # It is set while lingering too, so that an earlier deadline wakes the thread.
                self._wakes_at_s = min(
                    (at for at in times if at is not None), default=now_s + LINGER_S
                )
                is_notified = self._changed.wait(max(0.0, self._wakes_at_s - now_s))
                if not (is_notified or had_queries or self._queries):
                    self._watchdog = None
                    return

    def _busy_error(self) -> Overloaded:
        return Overloaded(
            "all query workers are busy",
            hint="try again in a moment",
            workers=self._turns,
            waiting=self.waiting,
            waiting_max=WAITING_MAX,
            wait_s=self.wait_s,
            retry_after_s=RETRY_AFTER_S,
        )
