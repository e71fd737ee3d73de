"""The history of a lake's alerts: a table whose rows are also what a restart reads.

In:   transitions, and outcomes of deliveries
Out:  rows of the table `alert_history`; the active alerts and the deliveries that are outstanding

- A row is durable, in the journal, before anything follows from it: a transition before its alert
  counts as firing and before it is sent, the outcome of a delivery before it counts as done.
- `seq` is the order of the rows, whatever the clock does.
- An address may be a secret. A row names a webhook by its host and a digest of the address.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from thermocline.alert.state import ACTIVE, CLEARED, RESOLVED, SENT, ActiveAlert, Transition
from thermocline.errors import Conflict, TableNotFound
from thermocline.format.instant import from_datetime, to_datetime

HISTORY = "alert_history"
DELIVERED, DROPPED, BEAT = "delivered", "dropped", "beat"
TARGET_DIGEST_BYTES = 6
_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        pa.field("ts", _TIME, nullable=False),
        ("seq", pa.int64()),
        ("rule", pa.string()),
        ("state", pa.string()),
        ("labels", pa.string()),
        ("value", pa.float64()),
        ("firing_id", pa.string()),
        ("since", _TIME),
        ("target_count", pa.int64()),
        ("sent", pa.string()),
        ("target", pa.string()),
        ("note", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One transition for one webhook; receivers recognise a repeated one by its id."""

    transition: Transition
    target: str

    @property
    def delivery_id(self) -> str:
        """The id that every attempt to deliver this has."""
        return f"{self.transition.firing_id}:{self.transition.state}"


def target_name(url: str) -> str:
    """Return the name of a webhook in the history, without the address."""
    digest = hashlib.blake2b(url.encode(), digest_size=TARGET_DIGEST_BYTES).hexdigest()
    return f"{urlsplit(url).hostname}#{digest}"


class AlertHistory:
    """The history of one lake. Thread-safe."""

    def __init__(self, lake: Any, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._lake = lake
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._last_seq = 0

    def load(self) -> tuple[dict[str, dict[str, ActiveAlert]], list[Delivery]]:
        """Return the active alerts by rule, and the deliveries without an outcome."""
        try:
            self._lake.table(HISTORY)
        except TableNotFound:
            return {}, []
        newest = self._ask("select max(seq) seq from alert_history")
        self._last_seq = newest[0]["seq"] or 0
        return self._read_active(), self._read_outstanding()

    def _ask(self, query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._lake.sql(query).to_pylist()
        return rows

    def _read_active(self) -> dict[str, dict[str, ActiveAlert]]:
        states = ", ".join(f"'{one}'" for one in (*ACTIVE, RESOLVED, CLEARED))
        rows = self._ask(
            "select rule, labels, max_by(state, seq) state, max_by(firing_id, seq) firing_id, "  # noqa: S608
            "max_by(since, seq) since, max_by(value, seq) as value from alert_history "
            f"where state in ({states}) group by rule, labels"
        )
        found: dict[str, dict[str, ActiveAlert]] = {}
        for row in rows:
            if row["state"] in ACTIVE:
                found.setdefault(row["rule"], {})[row["labels"]] = ActiveAlert(
                    row["labels"],
                    row["state"],
                    row["firing_id"],
                    from_datetime(row["since"]),
                    row["value"],
                )
        return found

    def _read_outstanding(self) -> list[Delivery]:
        sent = ", ".join(f"'{one}'" for one in SENT)
        rows = self._ask(
            "with done as (select firing_id, sent, count(distinct target) as n "  # noqa: S608
            f"from alert_history where state in ('{DELIVERED}', '{DROPPED}') group by all) "
            "select e.rule, e.labels, e.state, e.firing_id, e.since, e.ts, e.value, e.target "
            "from alert_history e left join done d on e.firing_id = d.firing_id "
            f"and e.state = d.sent where e.state in ({sent}) "
            "and e.target_count > coalesce(d.n, 0) order by e.seq"
        )
        if not rows:
            return []
        outcomes = self._ask(
            "select firing_id, sent, target from alert_history "  # noqa: S608
            f"where state in ('{DELIVERED}', '{DROPPED}')"
        )
        done = {(one["firing_id"], one["sent"], one["target"]) for one in outcomes}
        return [
            Delivery(_read_transition(row), target)
            for row in rows
            for target in row["target"].split(" ")
            if (row["firing_id"], row["state"], target) not in done
        ]

    def append(self, transitions: Sequence[Transition], webhooks: Sequence[str]) -> list[Delivery]:
        """Store transitions; return what is to be delivered. They are durable when this returns."""
        targets = [target_name(url) for url in webhooks]
        rows = []
        for one in transitions:
            is_sent = one.state in SENT or one.state == BEAT
            row = self._row(one, one.state)
            row["target_count"] = len(targets) if is_sent else 0
            row["target"] = " ".join(targets) if is_sent else ""
            rows.append(row)
        self._write(rows)
        return [
            Delivery(one, target)
            for one in transitions
            if one.state in SENT or one.state == BEAT
            for target in targets
        ]

    def note_outcome(self, delivery: Delivery, outcome: str, note: str = "") -> None:
        """Store that a delivery is done; it is durable when this returns."""
        row = self._row(delivery.transition, outcome)
        row |= {"sent": delivery.transition.state, "target": delivery.target, "note": note[:500]}
        self._write([row])

    def _row(self, one: Transition, state: str) -> dict[str, Any]:
        return {
            "rule": one.rule,
            "state": state,
            "labels": one.labels,
            "value": one.value,
            "firing_id": one.firing_id,
            "since": to_datetime(one.since_ns),
            "target_count": 0,
            "sent": "",
            "target": "",
            "note": "",
        }

    def _write(self, rows: Iterable[dict[str, Any]]) -> None:
        with self._lock:
            numbered = []
            for row in rows:
                self._last_seq = max(self._last_seq + 1, self._now_ns())
                moment = to_datetime(self._last_seq)
                numbered.append({"ts": moment, "seq": self._last_seq, **row})
            if numbered:
                open_table(self._lake, HISTORY, _SCHEMA, entity="rule").write(numbered)


def _read_transition(row: dict[str, Any]) -> Transition:
    return Transition(
        row["rule"],
        row["labels"],
        row["state"],
        row["firing_id"],
        from_datetime(row["since"]),
        from_datetime(row["ts"]),
        row["value"],
    )


def open_table(lake: Any, name: str, schema: pa.Schema, *, entity: str) -> Any:
    """Return a table of alerts; the first use creates it."""
    try:
        return lake.table(name)
    except TableNotFound:
        try:
            return lake.create_table(
                name, time_column="ts", bucket="1h", entity_columns=[entity], schema=schema
            )
        except Conflict:  # another thread was first
            return lake.table(name)
