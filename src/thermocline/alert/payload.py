"""What a webhook receives: the JSON that Alertmanager's webhooks have, for one alert.

In:   a delivery, and the rule that it belongs to
Out:  bytes

- `fingerprint` is the firing's id: the firing and its resolution have the same one.
- `{name}` in an annotation is the label of that name, `{value}` the value.
"""

import json
from collections.abc import Mapping

from thermocline.alert.history import BEAT, Delivery
from thermocline.alert.rule import Rule
from thermocline.alert.state import RESOLVED
from thermocline.format.instant import format_instant

RECEIVER = "thermocline"
NEVER = "0001-01-01T00:00:00Z"
TEXT_LENGTH_MAX = 4_000


def encode_payload(delivery: Delivery, rule: Rule | None, lake: str) -> bytes:
    """Return the body of a delivery. The rule is None if it was removed."""
    one = delivery.transition
    found: dict[str, str] = json.loads(one.labels)
    given = rule.labels if rule else {}
    labels = {**found, **given, "alertname": one.rule, "lake": lake}
    texts = rule.annotations if rule else {}
    is_over = one.state == RESOLVED
    alert = {
        "status": "resolved" if is_over else "firing",
        "labels": labels,
        "annotations": {name: fill(text, labels, one.value) for name, text in texts.items()},
        "startsAt": format_instant(one.since_ns),
        "endsAt": format_instant(one.at_ns) if is_over else NEVER,
        "generatorURL": "",
        "fingerprint": one.firing_id,
        "value": one.value,
    }
    body = {
        "version": "4",
        "groupKey": f"{{}}:{{alertname={json.dumps(one.rule)}}}",
        "truncatedAlerts": 0,
        "status": alert["status"],
        "receiver": RECEIVER,
        "groupLabels": {"alertname": one.rule},
        "commonLabels": labels,
        "commonAnnotations": alert["annotations"],
        "externalURL": "",
        "alerts": [alert],
        "deliveryId": delivery.delivery_id,
        "isBeat": one.state == BEAT,
    }
    return json.dumps(body, ensure_ascii=False).encode()


def fill(text: str, labels: Mapping[str, str], value: float | None) -> str:
    """Return a text with labels and the value in place of their names in braces."""
    known = {**labels, "value": "" if value is None else f"{value:g}"}
    for name, found in known.items():
        text = text.replace("{" + name + "}", found)
        if len(text) > TEXT_LENGTH_MAX:
            return text[:TEXT_LENGTH_MAX]
    return text
