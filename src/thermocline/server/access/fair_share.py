"""Divides what a node has a fixed amount of among its tenants: memory, threads, slots, requests.

In:   an owner, usually a tenant, and the amount that it is about to use
Out:  whether it may use it now; for turns, who is next

Every cost has an owner, a limit and a deadline. This module is the limit: a cost is charged before
the work begins, in constant time, and its owner returns it when the work ends.

- While one owner is known, it may use everything.
- With several, an owner may hold at most `WEIGHT` times what is free. So one busy owner gets two
  thirds, two get two fifths each, three two sevenths, and an owner that holds little always finds
  some free: the more others hold, the less each of them may take.
- The first `FLOOR_PARTS`-th of the total always fits, for up to `FLOOR_PARTS` owners at once, so
  that no other owner can refuse a small request. The owners together hold twice the total at most.

Only one thread uses an object of this module, the event loop's, so there are no locks.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Protocol

WEIGHT = 2
FLOOR_PARTS = 32


class FairShare:
    """A fixed amount that owners share, and how much of it each one holds."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        self.held_by: dict[Hashable, int] = {}
        self.refused_count = 0
        self._known: set[Hashable] = set()

    def use_of(self, owner: Hashable) -> int:
        """Return how much an owner holds."""
        return self.held_by.get(owner, 0)

    def fits(self, owner: Hashable, amount: int) -> bool:
        """Tell whether an owner may hold so much more now; a refusal is counted."""
        self._known.add(owner)
        is_fit = self._is_within_share(owner, amount)
        self.refused_count += not is_fit
        return is_fit

    def _is_within_share(self, owner: Hashable, amount: int) -> bool:
        after = self.held + amount
        if len(self._known) == 1:
            return after <= self.total
        own = self.held_by.get(owner, 0) + amount
        if own * FLOOR_PARTS <= self.total and len(self.held_by) <= FLOOR_PARTS:
            return True
        return own <= WEIGHT * (self.total - after)

    def take(self, owner: Hashable, amount: int) -> None:
        """Charge an owner; the caller has asked whether it fits."""
        self._known.add(owner)
        self.held += amount
        self.held_by[owner] = self.held_by.get(owner, 0) + amount

    def give_back(self, owner: Hashable, amount: int) -> None:
        """Return what an owner took."""
        self.held -= amount
        left = self.held_by[owner] - amount
        if left:
            self.held_by[owner] = left
        else:
            del self.held_by[owner]


class Share(Protocol):
    """What a share says of its use, in one class of cost."""

    total: int
    refused_count: int

    @property
    def held(self) -> int:
        """How much all owners hold."""

    def use_of(self, owner: Hashable) -> int:
        """Return how much an owner holds."""


class FairTurns:
    """A fixed number of turns; waiting work gets them by owner, in rotation.

    An owner without a turn gets a free one at once, and an owner without waiting work may always
    wait: other owners can fill neither. The last turn goes only to an owner that has none.
    """

    def __init__(self, turns: int, waiting_max: int) -> None:
        self.total = turns
        self.refused_count = 0
        self._waiting_max = waiting_max
        self._running: dict[Hashable, int] = {}
        self._free = turns
        self._known: set[Hashable] = set()
        self._waiting: dict[Hashable, deque[Any]] = {}  # the next owner first
        self.waiting = 0

    @property
    def held(self) -> int:
        """The number of turns that are taken."""
        return self.total - self._free

    def use_of(self, owner: Hashable) -> int:
        """Return how many turns an owner has."""
        return self._running.get(owner, 0)

    def take(self, owner: Hashable) -> bool:
        """Take a turn if the owner may have one now."""
        self._known.add(owner)
        if not self._may_run(owner):
            return False
        self._free -= 1
        self._running[owner] = self._running.get(owner, 0) + 1
        return True

    def _may_run(self, owner: Hashable) -> bool:
        if not self._free:
            return False
        own = self._running.get(owner, 0)
        return not own or len(self._known) == 1 or own < WEIGHT * (self._free - 1)

    def wait(self, owner: Hashable, work: Any) -> bool:
        """Put work into the owner's queue; False if the owner may not wait any more."""
        if self.waiting >= self._waiting_max and owner in self._waiting:
            self.refused_count += 1
            return False
        self._waiting.setdefault(owner, deque()).append(work)
        self.waiting += 1
        return True

    def remove(self, owner: Hashable, work: Any) -> bool:
        """Remove waiting work; False if it does not wait."""
        queue = self._waiting.get(owner)
        if queue is None or work not in queue:
            return False
        queue.remove(work)
        self.waiting -= 1
        if not queue:
            del self._waiting[owner]
        return True

    def give_back(self, owner: Hashable, start: Callable[[Any], None]) -> None:
        """Return a turn, and start the work that may run now, one for each free turn."""
        self._free += 1
        left = self._running[owner] - 1
        if left:
            self._running[owner] = left
        else:
            del self._running[owner]
        while (work := self._next()) is not None:
            start(work)

    def _next(self) -> Any | None:
        """Take a turn for the first owner in rotation that may have one; return its work."""
        for owner in self._waiting if self._free else ():
            if self._may_run(owner):
                break
        else:
            return None
        queue = self._waiting.pop(owner)
        work = queue.popleft()
        if queue:
            self._waiting[owner] = queue  # behind the other owners
        self.waiting -= 1
        self.take(owner)
        return work
