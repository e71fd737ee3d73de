"""The only way a change reaches the log: plan, commit, and plan again if another writer was first.

In:   a planner: a function from a state to the actions that change it
Out:  the state after the commit; or an error, after which the change was definitely not made,
      unless it is `OutcomeUnknown`

- A plan made against an older state is committed only if the rules in `conflict.py` allow it;
  otherwise it is made again against the newest state, with all its checks.
- The number of attempts is bounded, with a random and growing wait between them.
"""

import random
import time as clock
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thermocline.cold.log.commit_log import CommitLog
from thermocline.errors import Conflict
from thermocline.format.layout import Version
from thermocline.format.log.action import Action
from thermocline.format.log.commit import Commit
from thermocline.format.log.conflict import TimeWindow, broken_rule, find_footprint
from thermocline.format.log.state import TableState

TRIES_MAX = 64
WAIT_S_FIRST = 0.002
WAIT_S_MAX = 0.25


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """What to commit, and the time windows that were read to decide it."""

    operation: str
    actions: tuple[Action, ...]
    windows_read: tuple[TimeWindow, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)


Planner = Callable[[TableState], CommitPlan | None]


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """The state after a transaction, and whether the transaction made a commit."""

    state: TableState
    is_committed: bool


def transact(
    log: CommitLog,
    planner: Planner,
    *,
    tries_max: int = TRIES_MAX,
    sleep: Callable[[float], None] = clock.sleep,
    txn_id: str | None = None,
) -> TransactionOutcome:
    """Commit the planner's change and return the state after it.

    If the planner returns None, nothing is committed and the newest state is returned. If the
    planner raises, the change was definitely not made. After the commit nothing is raised.
    """
    txn_id = txn_id or uuid.uuid4().hex
    state = log.head()
    plan = planner(state)
    rule = ""
    for attempt in range(tries_max):
        if plan is None:
            return TransactionOutcome(state, is_committed=False)
        commit = Commit(
            Version(state.version + 1),
            state.version,
            txn_id,
            log.now(),
            plan.operation,
            plan.actions,
            plan.metrics,
            state.txn_id,
        )
        landed = log.try_commit(commit)
        if landed is not None:
            return TransactionOutcome(log.advance_head(state, landed), is_committed=True)
        sleep(random.uniform(0, min(WAIT_S_MAX, WAIT_S_FIRST * 2**attempt)))  # noqa: S311
        newest = log.head()
        mine = find_footprint(plan.actions, plan.windows_read)
        rule = next(
            (
                broken
                for version in range(state.version + 1, newest.version + 1)
                if (broken := broken_rule(mine, find_footprint(log.commit(version).actions)))
            ),
            "",
        )
        plan = planner(newest) if rule else plan
        state = newest
    raise Conflict(
        "other writers committed first in every try; this change was definitely not made",
        hint="try again, or let fewer writers commit at once",
        tries=tries_max,
        last_conflict=rule or "version taken",
    )
