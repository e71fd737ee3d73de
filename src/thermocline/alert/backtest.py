"""Runs a rule over the past: when it would have fired.

In:   a lake, a rule, a stretch of time
Out:  the transitions, from the code that a node runs

- It reads the rows as they are now. A row that arrived late is seen at its own time, so a node may
  have fired later than this says, or not at all.
- Nothing is written and nothing is sent.
"""

from collections.abc import Callable, Iterator
from typing import Any

from thermocline.alert.evaluate import AskSql, evaluate
from thermocline.alert.rule import DEADMAN, SQL, Rule
from thermocline.alert.state import ActiveAlert, Transition, apply_evaluation
from thermocline.errors import Invalid, Overloaded
from thermocline.format.instant import NS_PER_S

EVALUATIONS_MAX = 10_000


def run_over(
    lake: Any,
    rule: Rule,
    start_ns: int,
    end_ns: int,
    ask: AskSql,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Transition]:
    """Yield the transitions of a rule between two instants, in their order.

    `check` is called before each evaluation and may raise to end the test.
    """
    if rule.kind == SQL and not rule.uses_now:
        hint = "write $now where the query asks for the time: ts > $now - interval '5 minutes'"
        raise Invalid("a rule is tested over the past only if its query takes $now", hint=hint)
    if rule.kind == DEADMAN:
        raise Invalid("a dead-man rule always fires", hint="test a rule of another kind")
    step_ns = rule.every_s * NS_PER_S
    first = -(-start_ns // step_ns) * step_ns
    count = max(0, (end_ns - first) // step_ns + 1)
    if count > EVALUATIONS_MAX:
        raise Overloaded(
            "the test would take too many evaluations",
            hint="test a shorter stretch, or a larger every",
            evaluations=count,
            evaluations_max=EVALUATIONS_MAX,
        )
    active: dict[str, ActiveAlert] = {}
    for turn in range(count):
        check()
        now_ns = first + turn * step_ns
        active, changes = apply_evaluation(rule, active, evaluate(lake, rule, now_ns, ask), now_ns)
        yield from changes
