"""Whose turn it is to ask the engine: as many queries run as there are workers, the others wait.

In:   queries, as they come
Out:  a turn for each, in that order; `Overloaded` when too many wait already

- A query that waits holds no thread: those that run have all of them, however many wait.
- Both have limits: how many wait, and how long one does.
- One thread, that of the event loop; nothing is locked.
"""

import asyncio
from collections import deque

from thermocline.errors import Overloaded

QUERIES_WAITING_MAX = 64
QUERY_WAIT_S = 10.0
RETRY_AFTER_S = 2

Turn = asyncio.Future[None]


class Turns:
    """The turns there are, and who waits for one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._waiting: deque[Turn] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def ask(self) -> Turn:
        """Return a future that is done when it is one's turn; `Overloaded` when too many wait.

        Whoever asks calls `leave` in any case.
        """
        turn: Turn = asyncio.get_running_loop().create_future()
        if self._free:
            self._free -= 1
            turn.set_result(None)
        elif len(self._waiting) >= QUERIES_WAITING_MAX:
            raise self.busy()
        else:
            self._waiting.append(turn)
        return turn

    def leave(self, turn: Turn) -> None:
        """Let the next one have the turn, or wait no longer for it."""
        if not turn.done():
            turn.cancel()
            self._waiting.remove(turn)
        elif self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self._free += 1

    def busy(self) -> Overloaded:
        """Return the error of a query whose turn does not come."""
        return Overloaded(
            "all query workers are busy",
            hint="try again in a moment",
            workers=self._count,
            waiting=len(self._waiting),
            waiting_max=QUERIES_WAITING_MAX,
            wait_s=QUERY_WAIT_S,
            retry_after_s=RETRY_AFTER_S,
        )
