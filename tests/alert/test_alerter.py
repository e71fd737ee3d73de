"""Alerts through kills: no firing is lost, and none is repeated beyond what the page says."""

import json
from itertools import count

import pyarrow as pa
import pytest

from fixtures.wal import calm
from thermocline.alert import alerter
from thermocline.alert.alerter import LakeAlerts
from thermocline.alert.evaluate import ask_lake
from thermocline.alert.history import DELIVERED, HISTORY, AlertHistory
from thermocline.alert.rule import parse_rule
from thermocline.alert.state import FIRING, PENDING, apply_evaluation
from thermocline.alert.webhook import WebhookError
from thermocline.errors import Unavailable
from thermocline.format.instant import NS_PER_S, to_datetime
from thermocline.node import Node

START_NS = 1_717_200_000 * NS_PER_S
URL = "https://hooks.example.com/a"
RULE = {
    "name": "hot",
    "kind": "sql",
    "every": "10s",
    "query": "select host, max(n) as value from t where ts > $now - interval '10 seconds' "
    "and ts <= $now group by host having max(n) > 5",
    "webhooks": [URL],
}


class Killed(BaseException):
    """The process dies here."""


class World:
    """A lake, a clock, and a receiver that remembers; the process may be killed at a step."""

    def __init__(self, root):
        self.root = str(root)
        self.now_ns = START_NS
        self.received = []
        self.fails = 0
        self.kill_at = None
        self.steps = count(1)
        self.node = None
        self.open()

    def open(self, rules=(RULE,)):
        if self.node is not None:
            self.node.close(flush=False)
        self.node = Node(self.root, calm())
        self.lake = self.node.lake()
        ask = ask_lake(self.lake)
        self.alerts = LakeAlerts(
            self.lake,
            self.attempt,
            ask,
            now_ns=lambda: self.now_ns,
            monotonic_s=lambda: self.now_ns / NS_PER_S,
        )
        parsed = [parse_rule(rule) for rule in rules]
        self.alerts.set_rules({one.name: (one, "test") for one in parsed})
        return self

    def step(self):
        if next(self.steps) == self.kill_at:
            raise Killed

    def attempt(self, url, body, delivery_id):
        self.step()  # killed before the request leaves
        if self.fails:
            self.fails -= 1
            raise WebhookError("the receiver answered 503")
        self.received.append((delivery_id, json.loads(body)["status"]))
        self.step()  # killed before the outcome is stored

    def write(self, **values):
        rows = [{"ts": to_datetime(self.now_ns), "host": h, "n": n} for h, n in values.items()]
        self.lake.table("t").write(rows)

    def run(self, seconds=10):
        self.alerts.evaluate_due()
        self.alerts.deliver_due()
        self.now_ns += seconds * NS_PER_S

    def states(self, rule="hot"):
        (found,) = [one for one in self.alerts.status().rules if one.rule.name == rule]
        return {json.loads(one.labels).get("host"): one.state for one in found.active}

    def history(self):
        return self.lake.sql(
            "select state, labels, firing_id from alert_history order by seq"
        ).to_pylist()


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path / "lake")
    schema = pa.schema(
        [
            pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
            ("host", pa.string()),
            ("n", pa.int64()),
        ]
    )
    made.lake.create_table("t", time_column="ts", bucket="1h", schema=schema)
    yield made
    made.node.close(flush=False)


def ids(received):
    return [one for one, _ in received]


def test_an_alert_fires_once_is_resolved_once_and_says_both(world):
    world.write(a=9, b=1)
    for _ in range(4):
        world.run()
        world.write(a=9)
    assert world.states() == {"a": FIRING}
    world.now_ns += 60 * NS_PER_S
    world.run()
    assert [status for _, status in world.received] == ["firing", "resolved"]
    assert [one["state"] for one in world.history()] == [
        "firing",
        "delivered",
        "resolved",
        "delivered",
    ]
    first, second = ids(world.received)
    assert first.split(":")[0] == second.split(":")[0]


def test_a_rule_with_for_is_pending_first_and_keeps_its_time_through_a_restart(world):
    rule = {**RULE, "for": "25s"}
    world.open([rule])
    for place in range(4):
        world.write(a=9)
        world.run()
        if place == 1:
            assert world.states() == {"a": PENDING}
            world.open([rule])
    assert world.states() == {"a": FIRING}
    assert [one["state"] for one in world.history()][:2] == ["pending", "firing"]


def test_a_pending_alert_that_ends_is_not_sent(world):
    world.open([{**RULE, "for": "1h"}])
    world.write(a=9)
    world.run(60)
    world.run()
    assert world.received == []
    assert [one["state"] for one in world.history()] == ["pending", "cleared"]


def test_a_failed_attempt_is_repeated_with_the_same_id_after_longer_waits(world):
    world.fails = 3
    world.write(a=9)
    world.run(1)
    tried = [world.alerts.deliver_due() for _ in range(3)]
    assert tried == [0, 0, 0]  # it waits
    for _ in range(40):
        world.now_ns += NS_PER_S
        world.alerts.deliver_due()
    assert len(world.received) == 1
    assert world.alerts.status().failed_attempts == 3


def test_an_address_that_is_not_allowed_is_dropped_and_the_history_says_so(world, monkeypatch):
    def refuse(url, body, delivery_id):
        raise WebhookError("alert_hosts does not name the host of this webhook", is_final=True)

    world.alerts._attempt = refuse
    world.write(a=9)
    world.run()
    assert world.alerts.status().dropped == 1
    assert [one["state"] for one in world.history()] == ["firing", "dropped"]


def test_an_evaluation_that_fails_changes_no_state_and_is_reported(world):
    world.write(a=9)
    world.run()
    ask = world.alerts._ask

    def broken(query, params):
        raise Unavailable("the disk is away")

    world.alerts._ask = broken
    world.run()
    (status,) = world.alerts.status().rules
    assert (status.errors, status.evaluations, status.error) == (1, 2, "the disk is away")
    assert world.states() == {"a": FIRING}
    world.alerts._ask = ask
    world.write(a=9)
    world.run()
    assert world.alerts.status().rules[0].error == ""
    assert len(world.received) == 1


def test_a_rule_that_is_removed_ends_its_alerts(world):
    world.write(a=9)
    world.run()
    world.alerts.set_rules({})
    assert [one["state"] for one in world.history()][-1] == "resolved"
    world.open([])
    world.alerts.load()
    assert [one["state"] for one in world.history()][-1] != "firing"


def test_a_dead_man_beats_as_often_as_it_says(world):
    rule = {"name": "beat", "kind": "deadman", "every": "10s", "repeat": "60s", "webhooks": [URL]}
    world.open([rule])
    for _ in range(19):
        world.run()
    beats = [one for one in ids(world.received) if one.endswith(":beat")]
    assert len(beats) == len(set(beats)) == 3
    assert [one for one in ids(world.received) if one.endswith(":firing")]


def scenario(world):
    """Fire for two hosts, resolve one of them; a kill restarts the process and goes on."""
    script = [
        lambda: world.write(a=9, b=9),
        world.run,
        lambda: world.write(a=9),
        world.run,
        lambda: world.write(a=9),
        world.run,
        world.run,
        world.run,
    ]
    kills = 0
    place = 0
    while place < len(script):
        try:
            script[place]()
        except Killed:
            kills += 1
            world.kill_at = None
            world.open()
            continue
        place += 1
    world.open()
    for _ in range(3):
        world.run()
    return kills


def injected(world, monkeypatch):
    """Let every durable step of the history be one at which the process may die."""
    write = AlertHistory._write

    def dying(self, rows):
        rows = list(rows)
        world.step()  # killed before the rows are durable
        write(self, rows)
        world.step()  # killed after that, before anything follows from it

    monkeypatch.setattr(AlertHistory, "_write", dying)


def test_a_kill_at_every_step_loses_no_firing_and_repeats_only_what_may_not_have_been_sent(
    world, monkeypatch, tmp_path
):
    injected(world, monkeypatch)
    steps = 0
    for kill_at in range(1, 100):
        other = World(tmp_path / f"lake{kill_at}")
        injected(other, monkeypatch)
        try:
            schema = world.lake.table("t").schema()
            other.lake.create_table("t", time_column="ts", bucket="1h", schema=schema)
            other.kill_at = kill_at
            kills = scenario(other)
            received = other.received
            fired = [one for one, status in received if status == "firing"]
            ended = [one for one, status in received if status == "resolved"]
            assert (len(set(fired)), len(set(ended))) == (2, 2), kill_at
            assert len(received) - len(set(ids(received))) <= kills, kill_at
            assert other.alerts.status().outstanding == 0
            for one in set(fired):  # a resolution never overtakes its firing
                key = one.split(":")[0]
                order = [name for name in ids(received) if name.startswith(key)]
                assert order[0].endswith(":firing")
            events = [row["state"] for row in other.history()]
            assert (events.count("firing"), events.count("resolved")) == (2, 2), kill_at
            assert events.count(DELIVERED) == 4
        finally:
            other.node.close(flush=False)
        if not kills:
            steps = kill_at
            break
    assert steps > 12  # every step was one to die at


@pytest.mark.parametrize("wrong", ["sent before stored", "done before sent", "only in memory"])
def test_the_wrong_designs_lose_or_repeat_a_firing(world, monkeypatch, wrong):
    injected(world, monkeypatch)
    if wrong == "sent before stored":
        append = AlertHistory.append

        def send_first(self, transitions, webhooks):
            for one in transitions:
                if one.state in ("firing", "resolved"):
                    world.attempt(URL, b'{"status": "firing"}', f"{one.firing_id}:{one.state}")
            append(self, transitions, ())
            return []

        monkeypatch.setattr(AlertHistory, "append", send_first)
        world.kill_at = 3  # sent, and killed before it is stored
    elif wrong == "done before sent":

        def done_first(self, one):
            self._finish(one, DELIVERED, "")
            self._attempt(one.url, b'{"status": "firing"}', one.delivery.delivery_id)

        monkeypatch.setattr(alerter.LakeAlerts, "_deliver", done_first)
        world.kill_at = 4  # noted as delivered, and killed before it is sent
    else:
        monkeypatch.setattr(AlertHistory, "load", lambda self: ({}, []))
        world.kill_at = 6  # delivered and stored, and then forgotten
    world.write(a=9)
    killed = 0
    for _ in range(4):
        try:
            world.run(5)
            world.write(a=9)
        except Killed:
            killed += 1
            world.kill_at = None
            world.now_ns += 10 * NS_PER_S
            world.open()
            world.write(a=9)
    assert killed == 1
    fired = {one for one in ids(world.received) if one.endswith("firing")}
    stored = {row["firing_id"] for row in world.history() if row["state"] == "firing"}
    is_right = len(fired) == 1 and len(stored) == 1
    assert not is_right


def test_the_states_of_an_alert_are_those_of_the_page():
    rule = parse_rule({**RULE, "for": "20s"})
    active, seen = {}, []
    for turn, found in enumerate([{"a": 1.0}, {"a": 2.0}, {"a": 3.0}, {}, {"a": 1.0}, {}]):
        active, changes = apply_evaluation(rule, active, found, turn * 10 * NS_PER_S)
        seen.append([one.state for one in changes])
    assert seen == [["pending"], [], ["firing"], ["resolved"], ["pending"], ["cleared"]]


def test_the_history_names_a_webhook_without_its_address(world):
    world.write(a=9)
    world.run()
    text = str(world.lake.sql(f"select * from {HISTORY}").to_pylist())
    assert "hooks.example.com#" in text
    assert URL not in text
