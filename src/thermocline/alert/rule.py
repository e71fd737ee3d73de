"""Rules of alerts: what is asked, how often, and where its alerts are sent.

In:   a mapping from JSON, or a TOML file with `[[rules]]`
Out:  checked `Rule`s; `Invalid` that names the field and what is allowed

    sql       each row that the query returns is an alert; its texts, whole numbers and booleans are
              labels, its column `value` is the value
    promql    each series that the query returns is an alert
    gap       buckets are missing in the last `within` of a table, `lag` behind the clock
    silence   an entity of a table has no row in the last `within`
    deadman   always fires, and is sent again every `repeat`: a receiver that hears nothing knows
              that the node, its rules or the way to the receiver fail
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from thermocline.errors import Invalid, NotFound
from thermocline.format.bucket import parse_duration_s

SQL, PROMQL, GAP, SILENCE, DEADMAN = "sql", "promql", "gap", "silence", "deadman"
KINDS = (SQL, PROMQL, GAP, SILENCE, DEADMAN)
EVERY_S_MIN = 10
EVERY_S_MAX = 86_400
REPEAT_S_MIN = 60
NAME_LENGTH_MAX = 100
QUERY_LENGTH_MAX = 20_000
LABELS_MAX = 20
TEXT_LENGTH_MAX = 1_000
WEBHOOKS_MAX = 5
URL_LENGTH_MAX = 2_000
FILE_RULES_MAX = 1_000
NOW = "$now"
"""The parameter of a query that is the time of the evaluation."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NEEDED = {
    SQL: {"query"},
    PROMQL: {"query"},
    GAP: {"table", "within"},
    SILENCE: {"table", "within"},
    DEADMAN: {"repeat"},
}
_ALLOWED = {
    SQL: {"query"},
    PROMQL: {"query"},
    GAP: {"table", "within", "lag"},
    SILENCE: {"table", "within"},
    DEADMAN: {"repeat"},
}
_KIND_FIELDS = {"query", "table", "within", "lag", "repeat"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One checked rule; durations are whole seconds."""

    name: str
    kind: str
    every_s: int = 60
    for_s: int = 0
    query: str = ""
    table: str = ""
    within_s: int = 0
    lag_s: int = 0
    repeat_s: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    webhooks: tuple[str, ...] = ()

    @property
    def uses_now(self) -> bool:
        """Whether the query takes the time of the evaluation."""
        return NOW in self.query


_DURATIONS = {"every", "for", "within", "lag", "repeat"}
_FIELDS = {
    one.name.removesuffix("_s") if one.name.endswith("_s") else one.name for one in fields(Rule)
}


def parse_rule(given: Any) -> Rule:
    """Return the rule of a mapping; `Invalid` names the first field that is wrong."""
    if not isinstance(given, Mapping):
        raise Invalid("a rule is a table of fields", hint='write [[rules]] and name = "..."')
    unknown = sorted(str(name) for name in given if name not in _FIELDS)
    if unknown:
        hint = f"use {', '.join(sorted(_FIELDS))}"
        raise Invalid("unknown field of a rule", hint=hint, unknown=unknown[:5])
    name, kind = _text(given, "name", NAME_LENGTH_MAX), _text(given, "kind", 20)
    if not _NAME.fullmatch(name):
        hint = "use letters, digits, dots, hyphens and underscores"
        raise Invalid("not the name of a rule", hint=hint, name=name)
    _check_kind(given, name, kind)
    seconds = {one: _seconds(given, one) for one in _DURATIONS if one in given}
    rule = Rule(
        name,
        kind,
        seconds.get("every", 60),
        seconds.get("for", 0),
        _text(given, "query", QUERY_LENGTH_MAX) if "query" in given else "",
        _text(given, "table", NAME_LENGTH_MAX * 3) if "table" in given else "",
        seconds.get("within", 0),
        seconds.get("lag", 0),
        seconds.get("repeat", 0),
        _texts(given, "labels"),
        _texts(given, "annotations"),
        _webhooks(given),
    )
    _check_times(rule)
    return rule


def _check_kind(given: Mapping[str, Any], name: str, kind: str) -> None:
    if kind not in KINDS:
        raise Invalid(
            "unknown kind of rule", hint=f"use one of {', '.join(KINDS)}", rule=name, kind=kind
        )
    missing = sorted(_NEEDED[kind] - given.keys())
    excess = sorted((_KIND_FIELDS & given.keys()) - _ALLOWED[kind])
    if missing or excess:
        hint = f"a rule of kind {kind} takes {', '.join(sorted(_ALLOWED[kind]))}"
        raise Invalid(
            "the fields do not fit the kind of the rule",
            hint=hint,
            rule=name,
            missing=missing,
            excess=excess,
        )


def _check_times(rule: Rule) -> None:
    limits = [
        ("every", rule.every_s, EVERY_S_MIN, EVERY_S_MAX),
        ("for", rule.for_s, 0, 30 * EVERY_S_MAX),
    ]
    if rule.kind in (GAP, SILENCE):
        limits.append(("within", rule.within_s, 1, 366 * EVERY_S_MAX))
    if rule.kind == DEADMAN:
        limits.append(("repeat", rule.repeat_s, REPEAT_S_MIN, EVERY_S_MAX))
    for name, found, low, high in limits:
        if not low <= found <= high:
            raise Invalid(
                "a time of a rule is out of range",
                hint=f"use {low} to {high} seconds",
                rule=rule.name,
                field=name,
                seconds=found,
            )


def _text(given: Mapping[str, Any], name: str, length_max: int) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value.strip() or len(value) > length_max:
        hint = f"write a text of at most {length_max} characters"
        raise Invalid("a field of a rule must be a text", hint=hint, field=name)
    return value


def _seconds(given: Mapping[str, Any], name: str) -> int:
    value = given[name]
    if isinstance(value, str) and value.strip() in ("0", "0s"):
        return 0
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Invalid("a time of a rule is a text", hint="write 30s, 5m or 1h", field=name)
    return value if isinstance(value, int) else parse_duration_s(value, name)


def _texts(given: Mapping[str, Any], name: str) -> dict[str, str]:
    found = given.get(name) or {}
    is_good = (
        isinstance(found, Mapping)
        and len(found) <= LABELS_MAX
        and all(
            isinstance(key, str)
            and _LABEL.fullmatch(key)
            and isinstance(value, str)
            and len(value) <= TEXT_LENGTH_MAX
            for key, value in found.items()
        )
    )
    if not is_good:
        hint = f"write at most {LABELS_MAX} texts by name, such as severity = 'page'"
        raise Invalid(f"the {name} of a rule must be texts", hint=hint)
    return dict(found)


def _webhooks(given: Mapping[str, Any]) -> tuple[str, ...]:
    found = given.get("webhooks") or []
    is_list = isinstance(found, list | tuple) and len(found) <= WEBHOOKS_MAX
    if not is_list or not all(isinstance(url, str) for url in found):
        hint = f"write a list of at most {WEBHOOKS_MAX} addresses"
        raise Invalid("the webhooks of a rule must be addresses", hint=hint)
    for url in found:
        check_url(url)
    return tuple(dict.fromkeys(found))


def check_url(url: str) -> None:
    """Raise `Invalid` for an address that is not plain http or https."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_good = is_good and parts.port != 0 and not (parts.username or parts.password)
    except ValueError:
        is_good = False
    is_printable = url.isascii() and url.isprintable() and " " not in url
    if not is_good or not is_printable or len(url) > URL_LENGTH_MAX:
        hint = "write https://host/path, without a user or a password"
        raise Invalid("not the address of a webhook", hint=hint)


def rule_fields(rule: Rule) -> dict[str, Any]:
    """Return a rule as `parse_rule` takes it, without fields at their default."""
    found: dict[str, Any] = {"name": rule.name, "kind": rule.kind, "every": f"{rule.every_s}s"}
    for name in ("for", "within", "lag", "repeat"):
        if seconds := getattr(rule, f"{name}_s"):
            found[name] = f"{seconds}s"
    for name in ("query", "table", "labels", "annotations"):
        if value := getattr(rule, name):
            found[name] = value
    if rule.webhooks:
        found["webhooks"] = list(rule.webhooks)
    return found


def read_rules(path: str) -> list[Rule]:
    """Return the rules of a TOML file; names are different."""
    try:
        with open(path, "rb") as file:
            text = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = 'write TOML: [[rules]], then name = "..." and kind = "sql"'
        raise Invalid("the file of rules is not TOML", hint=hint, why=str(error)) from error
    except OSError as error:
        hint = "check the path and its permissions"
        raise NotFound("the file of rules cannot be read", hint=hint, path=path) from error
    given = text.pop("rules", None)
    if text or not isinstance(given, list) or len(given) > FILE_RULES_MAX:
        hint = f"write [[rules]] for each, at most {FILE_RULES_MAX}, and nothing else"
        raise Invalid("the file has no list of rules", hint=hint, other=sorted(text)[:5])
    rules = [parse_rule(one) for one in given]
    names = [rule.name for rule in rules]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Invalid("two rules have the same name", hint="rename one", names=twice[:5])
    return rules
