"""The rules that were set over HTTP or by the command line: a table, the newest row of a name wins.

In:   a lake; checked rules
Out:  rows of the table `alert_rules`; the rules by name

- A rule is durable when `put` returns, and a node evaluates it within seconds.
- The table is of the lake like any other: it is in backups, and keys that may query can read it. An
  address that is a secret belongs into the file of rules of the node.
- A row that is not a rule, written past this module, is reported and skipped.
"""

import json
import time
from typing import Any

import pyarrow as pa

from thermocline.alert.history import open_table
from thermocline.alert.rule import Rule, parse_rule, rule_fields
from thermocline.errors import NotFound, Overloaded, TableNotFound, ThermoclineError
from thermocline.format.instant import to_datetime

RULES = "alert_rules"
RULES_MAX_DEFAULT = 100
_SCHEMA = pa.schema(
    [
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        ("seq", pa.int64()),
        ("name", pa.string()),
        ("rule", pa.string()),
        ("is_removed", pa.bool_()),
    ]
)


def read_rule_book(lake: Any) -> tuple[dict[str, Rule], dict[str, str]]:
    """Return the rules of a lake by name, and the errors of rows that are not rules."""
    try:
        lake.table(RULES)
    except TableNotFound:
        return {}, {}
    rows = lake.sql(
        "select name, max_by(rule, seq) as rule, max_by(is_removed, seq) as is_removed "
        "from alert_rules group by name order by name"
    ).to_pylist()
    rules: dict[str, Rule] = {}
    wrong: dict[str, str] = {}
    for row in rows:
        if row["is_removed"]:
            continue
        try:
            rules[row["name"]] = parse_rule(json.loads(row["rule"]))
        except (ThermoclineError, ValueError, TypeError) as error:
            wrong[str(row["name"])[:100]] = str(error)[:500]
    return rules, wrong


def put_rule(lake: Any, rule: Rule, *, rules_max: int = RULES_MAX_DEFAULT) -> None:
    """Set a rule; it is durable when this returns. `Overloaded` past the limit of rules."""
    known, _ = read_rule_book(lake)
    if rule.name not in known and len(known) >= rules_max:
        hint = "remove a rule, or raise alert_rules_max"
        raise Overloaded("the lake has as many rules as it may have", hint=hint, rules=len(known))
    _append(lake, rule.name, rule)


def remove_rule(lake: Any, name: str) -> None:
    """Remove a rule; `NotFound` when there is none of this name."""
    if name not in read_rule_book(lake)[0]:
        raise NotFound("there is no rule of this name", hint="list the rules", rule=name)
    _append(lake, name, None)


def _append(lake: Any, name: str, rule: Rule | None) -> None:
    now_ns = time.time_ns()
    row = {
        "ts": to_datetime(now_ns),
        "seq": now_ns,
        "name": name,
        "rule": None if rule is None else json.dumps(rule_fields(rule)),
        "is_removed": rule is None,
    }
    open_table(lake, RULES, _SCHEMA, entity="name").write([row])
