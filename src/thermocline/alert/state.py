"""The states of a rule's alerts: what one evaluation changes.

In:   the active alerts of a rule, and what an evaluation found
Out:  the active alerts after it, and the transitions

    found, was inactive    pending, or firing if the rule has no `for`
    found, was pending     firing once it has been found for `for`
    gone, was pending      cleared
    gone, was firing       resolved

- A firing has an id from its activation to its end. It depends on the rule, the labels and the
  instant of the activation only, so it is the same in every process that computes it.
- An evaluation that fails changes nothing: that it could not find out is not that nothing is there.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from thermocline.alert.rule import Rule
from thermocline.format.instant import NS_PER_S

PENDING, FIRING, RESOLVED, CLEARED = "pending", "firing", "resolved", "cleared"
ACTIVE = (PENDING, FIRING)
SENT = (FIRING, RESOLVED)
"""The transitions that are sent to webhooks."""
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    """An alert that is pending or firing. `labels` is JSON, sorted by name."""

    labels: str
    state: str
    firing_id: str
    since_ns: int
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of an alert's state, at one instant."""

    rule: str
    labels: str
    state: str
    firing_id: str
    since_ns: int
    at_ns: int
    value: float | None = None


Found = Mapping[str, float | None]
"""What an evaluation found: the value of each alert by its labels."""


def encode_labels(labels: Mapping[str, str]) -> str:
    """Return labels as JSON, in one way for equal labels."""
    return json.dumps(labels, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def make_firing_id(rule: str, labels: str, since_ns: int) -> str:
    """Return the id of a firing."""
    text = json.dumps([rule, labels, since_ns]).encode()
    return hashlib.blake2b(text, digest_size=_ID_BYTES).hexdigest()


def apply_evaluation(
    rule: Rule, active: Mapping[str, ActiveAlert], found: Found, now_ns: int
) -> tuple[dict[str, ActiveAlert], list[Transition]]:
    """Return the active alerts after an evaluation, and what changed."""
    after: dict[str, ActiveAlert] = {}
    changes: list[Transition] = []

    def note(alert: ActiveAlert, state: str) -> None:
        changes.append(
            Transition(
                rule.name,
                alert.labels,
                state,
                alert.firing_id,
                alert.since_ns,
                now_ns,
                alert.value,
            )
        )

    for labels, value in found.items():
        known = active.get(labels)
        if known is None:
            known = ActiveAlert(labels, "", make_firing_id(rule.name, labels, now_ns), now_ns)
        is_due = now_ns - known.since_ns >= rule.for_s * NS_PER_S
        state = FIRING if known.state == FIRING or is_due else PENDING
        after[labels] = replace(known, state=state, value=value)
        if state != known.state:
            note(after[labels], state)
    for labels, known in active.items():
        if labels not in found:
            note(known, RESOLVED if known.state == FIRING else CLEARED)
    return after, changes
