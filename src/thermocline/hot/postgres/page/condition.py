"""Translates a filter to an SQL condition.

In:   a `Filter`, the layout of a type
Out:  a condition in which every value is a parameter

- Only values of one type compare: a number is neither equal to a text nor less than one.
- Properties with a column are compared in it, where an index may help; others in `rest`.
- Names and operators come from fixed lists; no text of a request becomes part of the statement.
"""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from thermocline.contract.document.text import check_value, encode_text
from thermocline.contract.schema.pointer import steps_of
from thermocline.errors import Invalid
from thermocline.hot.postgres.page.page import (
    DEPTH_MAX,
    AllOf,
    AnyOf,
    Comparison,
    Filter,
    Not,
)
from thermocline.hot.postgres.schema.layout import Layout

OPERATORS = {"eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
OPERATOR_NAMES = (*OPERATORS, "ne", "in", "is_null", "starts_with", "contains")
PARTS_MAX = 200
VALUES_MAX = 1_000
SYSTEM_FIELDS = {
    "_id": ("id", "text"),
    "_ver": ("ver", "bigint"),
    "_schema_version": ("schema_version", "bigint"),
    "_written_at": ("written_at", "timestamptz"),
}
ROW = "entity"
"""The alias of the filtered row in a query."""
_NUMBERS = ("bigint", "numeric", "double precision")


class Binds:
    """The named parameters of a statement that is being built."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def add(self, value: Any) -> str:
        """Bind a value; return its placeholder."""
        name = f"p{len(self.values)}"
        self.values[name] = value
        return f"%({name})s"


def condition(layout: Layout, filter: Filter, binds: Binds) -> str:  # noqa: A002
    """Return the condition in SQL; `Invalid` for a filter that the type does not allow."""
    return _ConditionBuilder(layout, binds).build(filter, 0)


def field_expression(layout: Layout, name: str, binds: Binds) -> tuple[str, str]:
    """Return a field's SQL expression and type; the type is `jsonb` if it has no column."""
    if name in SYSTEM_FIELDS:
        column, pg_type = SYSTEM_FIELDS[name]
        return f"{ROW}.{column}", pg_type
    steps = _steps(layout, name)
    hot = layout.by_name.get(steps[0]) if len(steps) == 1 else None
    if hot is None:
        return f"({ROW}.rest #> {binds.add(list(steps))}::text[])", "jsonb"
    place = f"{ROW}.{hot.sql_name}"
    if hot.is_ready:
        return place, hot.pg_type
    # Until the column is filled, an old row has its value in `rest`.
    old = f"({ROW}.rest ->> {binds.add(hot.name)}::text)::{hot.pg_type}"
    return f"coalesce({place}, {old})", hot.pg_type


def _steps(layout: Layout, name: str) -> Sequence[str]:
    steps = steps_of(name) if name.startswith("/") else [name]
    contract = layout.contract
    known = [part.name for part in contract.kind.fields]
    if not steps or (steps[0] not in known and not contract.is_open):
        hint = f"use one of {', '.join([*known, *SYSTEM_FIELDS][:20])}"
        raise Invalid("no such field", hint=hint, field=name)
    return steps


class _ConditionBuilder:
    """Builds one condition."""

    def __init__(self, layout: Layout, binds: Binds) -> None:
        self._layout = layout
        self._binds = binds
        self._count = 0

    def build(self, node: Filter, depth: int) -> str:
        self._count += 1
        if self._count > PARTS_MAX or depth > DEPTH_MAX:
            hint = "use fewer comparisons and less nesting"
            raise Invalid("the filter is too large", hint=hint, parts_max=PARTS_MAX)
        match node:
            case AllOf(parts):
                return self._join_parts(parts, " and ", "true", depth)
            case AnyOf(parts):
                return self._join_parts(parts, " or ", "false", depth)
            case Not(part):
                return f"(({self.build(part, depth + 1)}) is not true)"
            case Comparison(field, "ne", value):
                return f"(({self._compare(Comparison(field, 'eq', value))}) is not true)"
        return self._compare(node)

    def _join_parts(self, parts: Sequence[Filter], word: str, empty: str, depth: int) -> str:
        inner = [self.build(part, depth + 1) for part in parts]
        return f"({word.join(inner)})" if inner else empty

    def _compare(self, node: Comparison) -> str:
        if node.op not in OPERATOR_NAMES:
            raise Invalid(
                "unknown operator", hint=f"use one of {', '.join(OPERATOR_NAMES)}", op=node.op
            )
        place, pg_type = field_expression(self._layout, node.field, self._binds)
        if node.op == "is_null":
            is_json = pg_type == "jsonb"
            return f"(coalesce({place}, 'null') = 'null')" if is_json else f"({place} is null)"
        check_value(node.value)
        if node.op == "in":
            return self._compare_in(node, place, pg_type)
        if node.op in ("starts_with", "contains"):
            return self._compare_text(node, place, pg_type)
        if pg_type == "jsonb":
            return self._compare_in_rest(node, place)
        given = self._binds.add(_fit_value(node.field, pg_type, node.value))
        cast = _parameter_type(pg_type, node.value)
        return f"({place} {OPERATORS[node.op]} {given}::{cast})"

    def _compare_in(self, node: Comparison, place: str, pg_type: str) -> str:
        if not isinstance(node.value, list) or len(node.value) > VALUES_MAX:
            hint = f"give a list of at most {VALUES_MAX} values"
            raise Invalid("the operator in expects a list of values", hint=hint, field=node.field)
        if pg_type == "jsonb":
            wanted = [encode_text(value) for value in node.value if value is not None]
            return f"({place} = any({self._binds.add(wanted)}::jsonb[]))"
        values = [_fit_value(node.field, pg_type, value) for value in node.value]
        is_wide = any(_parameter_type(pg_type, value) == "numeric" for value in node.value)
        cast = "numeric" if is_wide else pg_type
        return f"({place} = any({self._binds.add(values)}::{cast}[]))"

    def _compare_text(self, node: Comparison, place: str, pg_type: str) -> str:
        if not isinstance(node.value, str) or pg_type not in ("text", "jsonb"):
            hint = "compare a text field with a text"
            raise Invalid("the operator needs a text field and a text", hint=hint, field=node.field)
        given = f"{self._binds.add(node.value)}::text"
        if pg_type == "jsonb":
            place = f"case when jsonb_typeof({place}) = 'string' then {place} #>> '{{}}' end"
        if node.op == "starts_with":
            return f"starts_with({place}, {given})"
        return f"(strpos({place}, {given}) > 0)"

    def _compare_in_rest(self, node: Comparison, place: str) -> str:
        value = node.value
        if value is None:
            return "false"
        if node.op == "eq":
            return f"({place} = {self._binds.add(encode_text(value))}::jsonb)"
        if isinstance(value, str):
            kind, cast, tail = "string", "text", ' collate "C"'
        elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            kind, cast, tail = "number", "numeric", ""
        else:
            hint = "compare with a number or a text"
            raise Invalid("the value has no order", hint=hint, field=node.field)
        given = f"{self._binds.add(str(value))}::{cast}"
        found = f"(({place} #>> '{{}}')::{cast}{tail})"
        compared = f"{found} {OPERATORS[node.op]} {given}"
        return f"(case when jsonb_typeof({place}) = '{kind}' then {compared} end)"


def _parameter_type(pg_type: str, value: Any) -> str:
    """Return the parameter's type: numeric where bigint would round or overflow the value."""
    is_fraction = isinstance(value, float | Decimal) and pg_type == "bigint"
    is_large = isinstance(value, int) and pg_type == "bigint" and not -(2**63) <= value < 2**63
    return "numeric" if is_fraction or is_large else pg_type


def _fit_value(field: str, pg_type: str, value: Any) -> Any:
    """Return the parameter for a column; `Invalid` for a value of another type."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if pg_type in _NUMBERS:
        is_right = is_number or (pg_type == "numeric" and isinstance(value, str))
    elif pg_type == "boolean":
        is_right = isinstance(value, bool)
    elif pg_type in ("date", "timestamptz"):
        is_right = _is_time(value, is_date=pg_type == "date")
    else:
        is_right = isinstance(value, str)
    if not is_right:
        hint = "compare a field with a value of its type; use is_null for null"
        raise Invalid("the value is not of the field's type", hint=hint, field=field, type=pg_type)
    return str(value) if is_number else value


def _is_time(value: Any, *, is_date: bool) -> bool:
    if not isinstance(value, str):
        return False
    try:
        if is_date:
            date.fromisoformat(value)
            return True
        return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False
