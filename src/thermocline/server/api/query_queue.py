"""The queue of SQL queries: as many run as there are query workers, the others wait.

In:   queries, as they come
Out:  a turn for each, in that order; `Overloaded` when too many wait already

- A waiting query holds no thread: all threads are left to the running queries.
- Both the number of waiting queries and the time one waits are limited.
- Only the event loop's thread uses it; there is no lock.
"""

import asyncio
from collections import deque

from thermocline.errors import Overloaded

QUERIES_WAITING_MAX = 64
QUERY_WAIT_S = 10.0
RETRY_AFTER_S = 2

QueryTurn = asyncio.Future[None]


class QueryQueue:
    """The free turns, and the queries that wait for one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._waiting: deque[QueryTurn] = deque()

    @property
    def waiting(self) -> int:
        """The number of waiting queries."""
        return len(self._waiting)

    def request_turn(self) -> QueryTurn:
        """Return a future that is done when the query may run; `Overloaded` if too many wait.

        The caller must call `leave` with it, also after an error.
        """
        turn: QueryTurn = asyncio.get_running_loop().create_future()
        if self._free:
            self._free -= 1
            turn.set_result(None)
        elif len(self._waiting) >= QUERIES_WAITING_MAX:
            raise self.busy_error()
        else:
            self._waiting.append(turn)
        return turn

    def release_turn(self, turn: QueryTurn) -> None:
        """Pass the turn to the next query, or stop waiting for a turn."""
        if not turn.done():
            turn.cancel()
            self._waiting.remove(turn)
        elif self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._free += 1

    def busy_error(self) -> Overloaded:
        """Return the error of a query that cannot get a turn."""
        return Overloaded(
            "all query workers are busy",
            hint="try again in a moment",
            workers=self._count,
            waiting=len(self._waiting),
            waiting_max=QUERIES_WAITING_MAX,
            wait_s=QUERY_WAIT_S,
            retry_after_s=RETRY_AFTER_S,
        )
