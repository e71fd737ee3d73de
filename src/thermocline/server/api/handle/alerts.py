"""Rules of alerts over HTTP: listed with their states, set, removed, and tested over the past.

In:   a call on a route
Out:  rules with their alerts; the transitions that a rule would have had

- A rule is durable when the answer arrives, and is evaluated within seconds.
- The host of each webhook must be one that the node's settings allow.
- A test runs queries of its tenant, within the limits of queries, and for a bounded time.
"""

import time

import pyarrow as pa
from msgspec import Struct, field

from thermocline.alert.alerter import RuleStatus
from thermocline.alert.backtest import run_over
from thermocline.alert.evaluate import ask_lake
from thermocline.alert.keeper import tenant_key
from thermocline.alert.rule import Rule, parse_rule, rule_fields
from thermocline.alert.rule_book import put_rule, read_rule_book, remove_rule
from thermocline.alert.state import FIRING, PENDING, ActiveAlert, Transition
from thermocline.alert.webhook import AllowedHosts, WebhookError, check_host
from thermocline.config import AlertSettings
from thermocline.errors import Invalid, NotFound, Overloaded
from thermocline.format.instant import format_instant, to_datetime, to_instant
from thermocline.server.api.types import request_types
from thermocline.server.api.types.route import ApiRequest

TEST_S_MAX = 30.0
TEST_ROWS_MAX = 100_000


class AlertState(Struct):
    """One alert that is pending or firing."""

    labels: str
    state: str
    since: str
    value: float | None
    firing_id: str


class RuleState(Struct, omit_defaults=True):
    """One rule, as it was set, with its state and its alerts.

    `state` is that of its worst alert, `inactive` without one, `error` if it cannot be evaluated.
    """

    name: str
    kind: str
    state: str
    origin: str
    rule: dict[str, str | list[str] | dict[str, str]]
    evaluated: str | None
    evaluations: int
    errors: int
    error: str = ""
    alerts: list[AlertState] = field(default_factory=list)


class Alerts(Struct):
    """Every rule of the lake, and the state of its deliveries since the node started."""

    is_on: bool
    rules: list[RuleState]
    wrong_rules: dict[str, str]
    outstanding: int
    delivered: int
    dropped: int
    failed_attempts: int
    last_failure: str


class RuleAnswer(Struct):
    """A rule that was set."""

    rule: dict[str, str | list[str] | dict[str, str]]


class SigningKey(Struct):
    """The key that signs the tenant's webhooks; empty if the node signs none."""

    key: str


def alerts(call: ApiRequest) -> Alerts:
    """Return the rules with their states."""
    keeper = call.parts.alerts
    if keeper is None or not keeper.is_on:
        rules, wrong = read_rule_book(call.lake)
        found = [_rule_state(RuleStatus(rule, "table")) for rule in rules.values()]
        return Alerts(False, found, wrong, 0, 0, 0, 0, "")
    status = keeper.status_of(call.caller.tenant)
    return Alerts(
        True,
        [_rule_state(one) for one in status.rules],
        dict(status.wrong_rules or {}),
        status.outstanding,
        status.delivered,
        status.dropped,
        status.failed_attempts,
        status.last_failure,
    )


def _rule_state(one: RuleStatus) -> RuleState:
    states = {alert.state for alert in one.active}
    worst = next((state for state in (FIRING, PENDING) if state in states), "inactive")
    return RuleState(
        one.rule.name,
        one.rule.kind,
        "error" if one.error else worst,
        one.origin,
        rule_fields(one.rule),
        None if one.evaluated_ns is None else format_instant(one.evaluated_ns),
        one.evaluations,
        one.errors,
        one.error,
        [_alert_state(alert) for alert in one.active],
    )


def _alert_state(one: ActiveAlert) -> AlertState:
    return AlertState(one.labels, one.state, format_instant(one.since_ns), one.value, one.firing_id)


def put_alert_rule(call: ApiRequest) -> RuleAnswer:
    """Set a rule under the name in the path."""
    rule = _read_rule(call.body, call.path["rule"])
    allowed = AllowedHosts.parse(_settings(call).alert_hosts)
    for url in rule.webhooks:
        try:
            check_host(url, allowed)
        except WebhookError as error:
            hint = "ask the operator of the node to name the host in alert_hosts"
            raise Invalid(error.why, hint=hint, rule=rule.name) from error
    quota = call.parts.quota.of(call.caller.tenant)
    quota.check_tables(len(call.lake.tables()))
    put_rule(call.lake, rule, rules_max=_settings(call).alert_rules_max)
    _notice(call)
    return RuleAnswer(rule_fields(rule))


def remove_alert_rule(call: ApiRequest) -> None:
    """Remove a rule; its alerts end."""
    remove_rule(call.lake, call.path["rule"])
    _notice(call)


def _notice(call: ApiRequest) -> None:
    if call.parts.alerts is not None:
        call.parts.alerts.notice_change(call.caller.tenant)


def run_alert_test(call: ApiRequest) -> pa.Table:
    """Return when a rule would have changed its state between two instants."""
    body = call.body
    if (body.name is None) == (body.rule is None):
        raise Invalid("name a rule or give one", hint="send name, or rule", fields=["name", "rule"])
    rule = _read_rule(body.rule, "test") if body.rule else _find_rule(call, body.name)
    start, end = to_instant(body.start), to_instant(body.end)
    if end < start:
        raise Invalid("the end is before the start", hint="exchange them")
    ask = ask_lake(call.lake, _settings(call).alert_deadline_s)
    end_s = time.monotonic() + TEST_S_MAX
    found: list[Transition] = []
    for one in run_over(call.lake, rule, start, end, ask, lambda: _check_time(end_s)):
        found.append(one)
        if len(found) > TEST_ROWS_MAX:
            raise Overloaded("the test has too many results", hint="test a shorter stretch")
    return transitions_table(found)


def _check_time(end_s: float) -> None:
    if time.monotonic() > end_s:
        hint = "test a shorter stretch, or a larger every"
        raise Overloaded("the test takes too long", hint=hint, seconds_max=TEST_S_MAX)


def transitions_table(found: list[Transition]) -> pa.Table:
    """Return transitions as rows: at, state, labels, value, since."""
    time_type = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "at": pa.array([to_datetime(one.at_ns) for one in found], time_type),
            "state": pa.array([one.state for one in found], pa.string()),
            "labels": pa.array([one.labels for one in found], pa.string()),
            "value": pa.array([one.value for one in found], pa.float64()),
            "since": pa.array([to_datetime(one.since_ns) for one in found], time_type),
        }
    )


def signing_key(call: ApiRequest) -> SigningKey:
    """Return the key with which a receiver checks the tenant's webhooks."""
    key = tenant_key(_settings(call).alert_signing_key, call.caller.tenant)
    return SigningKey(key.decode())


def _read_rule(body: request_types.RuleRequest, name: str) -> Rule:
    given = {
        key: value
        for key in request_types.RuleRequest.__struct_encode_fields__
        if (value := getattr(body, "for_" if key == "for" else key)) not in (None, {}, [])
    }
    return parse_rule({"name": name, **given})


def _find_rule(call: ApiRequest, name: str | None) -> Rule:
    rules, _ = read_rule_book(call.lake)
    if name is None or name not in rules:
        raise NotFound("there is no rule of this name", hint="list the rules", rule=name)
    return rules[name]


def _settings(call: ApiRequest) -> AlertSettings:
    settings = call.parts.settings
    return AlertSettings() if settings is None else settings.alert
