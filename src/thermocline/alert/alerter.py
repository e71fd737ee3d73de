"""The alerts of one lake: evaluates what is due, stores what changes, delivers what is outstanding.

In:   a lake, its rules, a clock, a function that makes one attempt to deliver
Out:  rows of the history, requests to webhooks, an `AlertStatus`

- Order matters: a transition is durable before its alert counts as changed and before it is sent;
  a delivery counts as done when its outcome is durable. So after a crash at any step the next start
  finds every firing again, and sends again only what may not have been sent, under the same id.
- What is guaranteed: every firing and every resolution is delivered at least once to each of its
  webhooks, or `DELIVER_S_MAX` passes and the history says that it was dropped. A repeated delivery
  has the id of the first. An alert does not fire again because the node restarts.
- The resolution of a firing is sent to a webhook after the firing itself.
- An evaluation that fails is counted and reported, and changes no state.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thermocline.alert.evaluate import DEADLINE_S_DEFAULT, AskSql, due_at, evaluate
from thermocline.alert.history import (
    BEAT,
    DELIVERED,
    DROPPED,
    AlertHistory,
    Delivery,
    target_name,
)
from thermocline.alert.payload import encode_payload
from thermocline.alert.rule import DEADMAN, Rule
from thermocline.alert.state import FIRING, ActiveAlert, Transition, apply_evaluation
from thermocline.alert.webhook import WebhookError
from thermocline.errors import ThermoclineError
from thermocline.format.instant import NS_PER_S

RETRY_S = 2.0
RETRY_S_MAX = 300.0
DELIVER_S_MAX = 86_400.0
OUTSTANDING_MAX = 10_000
"""Past this many deliveries of a lake the oldest are dropped, with a row that says so."""

Attempt = Callable[[str, bytes, str], None]
"""Sends a body to a URL under a delivery's id; raises `WebhookError`."""


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """One rule: its alerts, when it was evaluated last, and the error if that failed."""

    rule: Rule
    origin: str
    evaluated_ns: int | None = None
    error: str = ""
    errors: int = 0
    evaluations: int = 0
    active: tuple[ActiveAlert, ...] = ()


@dataclass(frozen=True, slots=True)
class AlertStatus:
    """The rules of a lake, and the state of its deliveries."""

    rules: tuple[RuleStatus, ...] = ()
    wrong_rules: Mapping[str, str] | None = None
    outstanding: int = 0
    delivered: int = 0
    dropped: int = 0
    failed_attempts: int = 0
    last_failure: str = ""


@dataclass(slots=True)
class _Waiting:
    """A delivery that is outstanding: when it is tried again, and after how many attempts."""

    delivery: Delivery
    url: str | None
    rule: Rule | None
    give_up_s: float
    next_s: float = 0.0
    attempts: int = 0
    is_sent: bool = False


class LakeAlerts:
    """The alerts of one lake. Thread-safe; evaluation and delivery may run in different threads."""

    def __init__(
        self,
        lake: Any,
        attempt: Attempt,
        ask: AskSql,
        *,
        deadline_s: float = DEADLINE_S_DEFAULT,
        now_ns: Callable[[], int] = time.time_ns,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lake = lake
        self._attempt = attempt
        self._ask = ask
        self._deadline_s = deadline_s
        self._now_ns = now_ns
        self._monotonic_s = monotonic_s
        self._history = AlertHistory(lake, now_ns)
        self._lock = threading.Lock()
        self._is_loaded = False
        self._rules: dict[str, tuple[Rule, str]] = {}
        self._wrong: Mapping[str, str] = {}
        self._status: dict[str, RuleStatus] = {}
        self._active: dict[str, dict[str, ActiveAlert]] = {}
        self._due: dict[str, int] = {}
        self._beats: dict[str, int] = {}
        self._waiting: list[_Waiting] = []
        self._delivered = self._dropped = self._failed = 0
        self._last_failure = ""

    def set_rules(
        self, rules: Mapping[str, tuple[Rule, str]], wrong: Mapping[str, str] | None = None
    ) -> None:
        """Evaluate these rules from now on, by name, each with its origin.

        The alerts of a rule that is gone end. A changed rule keeps its alerts.
        """
        with self._lock:
            gone = {name: one for name, one in self._rules.items() if name not in rules}
            self._rules, self._wrong = dict(rules), dict(wrong or {})
            self._status = {
                name: replace(self._status.get(name, RuleStatus(rule, origin)), rule=rule)
                for name, (rule, origin) in rules.items()
            }
        if self._is_loaded:
            for name, (rule, _) in gone.items():
                self._record(rule, {}, self._now_ns())
                self._due.pop(name, None)

    def load(self) -> None:
        """Read the states and the outstanding deliveries that the history has; once is enough."""
        if self._is_loaded:
            return
        active, outstanding = self._history.load()
        with self._lock:
            self._active = active
            self._is_loaded = True
        self._enqueue(outstanding)
        for name in [name for name in active if name not in self._rules]:
            self._record(Rule(name, "removed"), {}, self._now_ns())

    def evaluate_due(self) -> int:
        """Evaluate each rule whose time has come; return how many."""
        self.load()
        count = 0
        for name, (rule, _) in list(self._rules.items()):
            at_ns = due_at(rule, self._now_ns())
            if self._due.get(name, -1) >= at_ns:
                continue
            self._due[name] = at_ns
            self._evaluate(rule, at_ns)
            count += 1
        return count

    def _evaluate(self, rule: Rule, at_ns: int) -> None:
        error = ""
        try:
            found = evaluate(self._lake, rule, at_ns, self._ask, self._deadline_s)
            self._record(rule, found, at_ns)
        except ThermoclineError as caught:
            error = str(caught).splitlines()[0][:500]
        except Exception as caught:  # noqa: BLE001  one rule must not end the others
            error = f"{type(caught).__name__}: {caught}"[:500]
        with self._lock:
            before = self._status.get(rule.name)
            if before is not None:
                self._status[rule.name] = replace(
                    before,
                    evaluated_ns=at_ns,
                    error=error,
                    errors=before.errors + bool(error),
                    evaluations=before.evaluations + 1,
                )

    def _record(self, rule: Rule, found: Mapping[str, float | None], at_ns: int) -> None:
        """Store what an evaluation changes, then follow it."""
        active = self._active.get(rule.name, {})
        after, changes = apply_evaluation(rule, active, found, at_ns)
        if rule.kind == DEADMAN:
            changes += self._find_beat(rule, after, at_ns)
        # Crash here: nothing is stored and nothing is sent. The next evaluation finds it again.
        deliveries = self._history.append(changes, rule.webhooks) if changes else []
        # Crash here: it is stored and not sent. The next start reads it as outstanding.
        with self._lock:
            self._active[rule.name] = after
        self._enqueue(deliveries, rule)

    def _find_beat(
        self, rule: Rule, active: Mapping[str, ActiveAlert], at_ns: int
    ) -> list[Transition]:
        turn = at_ns // (rule.repeat_s * NS_PER_S)
        if self._beats.get(rule.name) == turn:
            return []
        is_first = rule.name not in self._beats
        self._beats[rule.name] = turn
        return [
            Transition(
                rule.name, one.labels, BEAT, f"{one.firing_id}-{turn}", one.since_ns, at_ns, 1.0
            )
            for one in active.values()
            if not is_first or one.since_ns != at_ns  # its firing is sent anyway
        ]

    def _enqueue(self, deliveries: Sequence[Delivery], known: Rule | None = None) -> None:
        give_up_s = self._monotonic_s() + DELIVER_S_MAX
        with self._lock:
            for one in deliveries:
                rule = known or self._rules.get(one.transition.rule, (None, ""))[0]
                webhooks = rule.webhooks if rule else ()
                url = next((url for url in webhooks if target_name(url) == one.target), None)
                self._waiting.append(_Waiting(one, url, rule, give_up_s))

    def deliver_due(self) -> int:
        """Try each delivery whose time has come once; return how many were tried."""
        tried = 0
        for one in self._take_due():
            tried += 1
            try:
                self._deliver(one)
            except ThermoclineError as error:  # the outcome cannot be stored: it is tried again
                self._note_failure(one, error.message)
        return tried

    def _take_due(self) -> list[_Waiting]:
        now_s = self._monotonic_s()
        with self._lock:
            blocked: set[tuple[str, str]] = set()
            due = []
            for place, one in enumerate(self._waiting):
                key = (one.delivery.transition.firing_id, one.delivery.target)
                is_excess = place < len(self._waiting) - OUTSTANDING_MAX
                if key not in blocked and (one.next_s <= now_s or is_excess):
                    if is_excess:
                        one.give_up_s = now_s
                    due.append(one)
                blocked.add(key)  # the resolution waits for its firing
            return due

    def _deliver(self, one: _Waiting) -> None:
        if one.url is None:
            self._finish(one, DROPPED, "the rule has no such webhook any more")
            return
        if one.attempts and self._monotonic_s() >= one.give_up_s:
            self._finish(one, DROPPED, "no attempt was accepted in time")
            return
        if not one.is_sent:
            try:
                body = encode_payload(one.delivery, one.rule, getattr(self._lake, "tenant", ""))
                self._attempt(one.url, body, one.delivery.delivery_id)
            except WebhookError as error:
                if error.is_final:
                    self._finish(one, DROPPED, error.why)
                else:
                    self._note_failure(one, error.why)
                return
            one.is_sent = True
        # Crash here: it was sent and the outcome is not stored. It is sent again under its id.
        self._finish(one, DELIVERED, "")

    def _finish(self, one: _Waiting, outcome: str, note: str) -> None:
        self._history.note_outcome(one.delivery, outcome, note)
        with self._lock:
            self._waiting.remove(one)
            if outcome == DELIVERED:
                self._delivered += 1
            else:
                self._dropped += 1
                self._last_failure = f"{one.delivery.transition.rule}: {note}"

    def _note_failure(self, one: _Waiting, why: str) -> None:
        one.attempts += 1
        wait_s = min(RETRY_S * 2 ** min(one.attempts - 1, 20), RETRY_S_MAX)
        with self._lock:
            one.next_s = self._monotonic_s() + wait_s
            self._failed += 1
            self._last_failure = f"{one.delivery.transition.rule}: {why}"

    def status(self) -> AlertStatus:
        """Return the rules with their alerts, and the state of the deliveries."""
        with self._lock:
            rules = tuple(
                replace(one, active=tuple(self._active.get(name, {}).values()))
                for name, one in sorted(self._status.items())
            )
            return AlertStatus(
                rules,
                dict(self._wrong),
                len(self._waiting),
                self._delivered,
                self._dropped,
                self._failed,
                self._last_failure,
            )

    @property
    def firing_count(self) -> int:
        """How many alerts fire."""
        with self._lock:
            return sum(
                one.state == FIRING for found in self._active.values() for one in found.values()
            )
