"""Evaluates a rule at one instant: which alerts its question finds.

In:   a lake, embedded or of a node; a rule; the instant
Out:  the value of each alert by its labels

- A query of a rule passes the same gate and has the same limits as every query of its tenant. Its
  parameter `$now` is the instant of the evaluation, so that a rule can be evaluated in the past.
- Every answer is bounded: a rule that finds more than `ALERTS_MAX` alerts is an error, and its
  states stay as they are.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from thermocline.alert.rule import DEADMAN, GAP, PROMQL, SILENCE, SQL, Rule
from thermocline.alert.state import encode_labels
from thermocline.errors import Invalid, Overloaded, ThermoclineError, Unsupported
from thermocline.format.bucket import parse_duration_s
from thermocline.format.instant import NS_PER_S, parse_instant, to_datetime

ALERTS_MAX = 1_000
LABEL_LENGTH_MAX = 1_000
VALUE = "value"
NS_PER_MS = 1_000_000
DEADLINE_S_DEFAULT = 60.0

AskSql = Callable[[str, Mapping[str, Any] | None], pa.Table]
"""Answers one SELECT with parameters, within a deadline; at most `ALERTS_MAX` + 1 rows matter."""


def ask_lake(lake: Any, timeout_s: float | None = None) -> AskSql:
    """Return a function that asks a lake: in a query worker where it has some."""

    def ask(query: str, params: Mapping[str, Any] | None) -> pa.Table:
        pool = getattr(getattr(lake, "node", None), "pool", None)
        if pool is None:
            return lake.sql(query, params)
        with lake.answer(query, params, timeout_s=timeout_s) as reader:
            batches: list[pa.RecordBatch] = []
            for batch in reader:
                batches.append(batch)
                if sum(one.num_rows for one in batches) > ALERTS_MAX:
                    break
            return pa.Table.from_batches(batches, reader.schema)

    return ask


def ask_promql(lake: Any, query: str, now_ns: int, timeout_s: float) -> dict[str, float | None]:
    """Return the series of a PromQL expression at an instant, each as an alert."""
    if not hasattr(lake, "node"):
        hint = "test it on the node: POST /api/v1/alerts/test"
        raise Unsupported("a rule of PromQL is evaluated by the node of the lake", hint=hint)
    from thermocline.promql.labels import NAME
    from thermocline.promql.reader import evaluate_instant_on
    from thermocline.promql.values import SeriesVector

    answer = evaluate_instant_on(lake, query, now_ns // NS_PER_MS, timeout_s=timeout_s)
    vector = answer.value
    if not isinstance(vector, SeriesVector):
        hint = "compare a vector: rate(shop_visits_total[5m]) < 1"
        raise Invalid("the expression of a rule must return an instant vector", hint=hint)
    if len(vector) > ALERTS_MAX:
        raise _too_many()
    found: dict[str, float | None] = {}
    for labels, value in zip(vector.labels, vector.values[:, 0].tolist(), strict=True):
        named = {name: text for name, text in dict(labels).items() if name != NAME}
        key = encode_labels(named)
        if key in found:
            hint = "aggregate by the labels that tell alerts apart"
            raise Invalid("two series of a rule have the same labels", hint=hint, labels=key[:200])
        found[key] = value if math.isfinite(value) else None
    return found


def evaluate(
    lake: Any, rule: Rule, now_ns: int, ask: AskSql, timeout_s: float = DEADLINE_S_DEFAULT
) -> dict[str, float | None]:
    """Return the alerts that a rule finds at an instant, by their labels."""
    now = to_datetime(now_ns).astimezone(UTC)
    if rule.kind == DEADMAN:
        return {encode_labels({}): 1.0}
    if rule.kind == SQL:
        return find_alerts(ask(rule.query, {"now": now} if rule.uses_now else None))
    if rule.kind == PROMQL:
        return ask_promql(lake, rule.query, now_ns, timeout_s)
    if rule.kind == GAP:
        return _find_gaps(lake.table(rule.table), rule, now)
    if rule.kind == SILENCE:
        rows = lake.table(rule.table).silent_entities(now - timedelta(seconds=rule.within_s), now)
        return _alerts_by_entity(rows, lambda row: None)
    raise Invalid("unknown kind of rule", rule=rule.name, kind=rule.kind)


def find_alerts(rows: pa.Table) -> dict[str, float | None]:
    """Return the alerts that rows stand for; `Invalid` when two have the same labels."""
    if rows.num_rows > ALERTS_MAX:
        raise _too_many()
    names = [field.name for field in rows.schema if field.name != VALUE and _is_label(field.type)]
    values = _read_values(rows)
    found: dict[str, float | None] = {}
    for row, value in zip(rows.select(names).to_pylist(), values, strict=True):
        labels = encode_labels({name: _label_text(one) for name, one in row.items()})
        if labels in found:
            raise Invalid(
                "two rows of a rule have the same labels",
                hint="group by the columns that tell alerts apart, and select them",
                labels=labels[:200],
            )
        found[labels] = value
    return found


def _is_label(kind: pa.DataType) -> bool:
    value = kind.value_type if kinds.is_dictionary(kind) else kind
    is_text = kinds.is_string(value) or kinds.is_large_string(value) or kinds.is_string_view(value)
    return bool(is_text or kinds.is_integer(value) or kinds.is_boolean(value))


def _label_text(value: Any) -> str:
    return "" if value is None else str(value)[:LABEL_LENGTH_MAX]


def _read_values(rows: pa.Table) -> Iterable[float | None]:
    if VALUE not in rows.schema.names:
        return [None] * rows.num_rows
    try:
        found = [None if one is None else float(one) for one in rows.column(VALUE).to_pylist()]
    except (TypeError, ValueError) as error:
        hint = "select a number as value"
        raise Invalid("the value of an alert must be a number", hint=hint) from error
    return [one if one is None or math.isfinite(one) else None for one in found]


def _find_gaps(table: Any, rule: Rule, now: datetime) -> dict[str, float | None]:
    end = now - timedelta(seconds=rule.lag_s)
    info = table.info()
    width_s = _parse_width(str(info["bucket"]))
    if width_s:  # the bucket that has not ended is no gap yet
        end = datetime.fromtimestamp(end.timestamp() // width_s * width_s, UTC)
    start = end - timedelta(seconds=rule.within_s)
    if info["start"] is not None:  # before the table's first bucket nothing can be missing
        start = max(start, to_datetime(parse_instant(str(info["start"]))))
    if start >= end:
        return {}
    return _alerts_by_entity(table.gaps(start, end), lambda row: float(row["buckets"]))


def _parse_width(bucket: str) -> int:
    try:
        return parse_duration_s(bucket, "bucket")
    except ThermoclineError:
        return 0  # weeks and months


def _alerts_by_entity(
    rows: pa.Table, read_value: Callable[[dict[str, Any]], float | None]
) -> dict[str, float | None]:
    """Return one alert for each entity of some rows, with the sum of their values."""
    found: dict[str, float | None] = {}
    skipped = {"start", "end", "buckets", "last_seen", "last"}
    names = [
        field.name
        for field in rows.schema
        if field.name not in skipped and not kinds.is_timestamp(field.type)
    ]
    for row in rows.to_pylist():
        labels = encode_labels({name: _label_text(row[name]) for name in names})
        value = read_value(row)
        before = found.get(labels)
        found[labels] = value if before is None else before + (value or 0.0)
        if len(found) > ALERTS_MAX:
            raise _too_many()
    return found


def _too_many() -> Overloaded:
    hint = "aggregate, or raise the threshold of the rule"
    return Overloaded("a rule finds too many alerts", hint=hint, alerts_max=ALERTS_MAX)


def due_at(rule: Rule, now_ns: int) -> int:
    """Return the last instant at or before now at which the rule is evaluated."""
    every_ns = rule.every_s * NS_PER_S
    return now_ns // every_ns * every_ns
