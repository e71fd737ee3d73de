"""Conditions as texts, as query parameters and the command line have them, to filters.

In:   a contract; names with texts: `status=open`, `total[gt]=10`, `/address/city[in]=Rome,Oslo`
Out:  a `Filter`, whose values have the types of their fields

- A name alone means `eq`; another operator is in brackets. Several conditions must all hold.
- A text is a number or a truth value only where the contract says so: a zip code stays text.
- A filter that needs `or` or `not`, or a value with a comma in a list, is written as JSON instead.
"""

import re
from collections.abc import Mapping
from typing import Any

from thermocline.contract.contract import Contract
from thermocline.contract.document.kind import ColumnKind
from thermocline.contract.document.text import decode
from thermocline.errors import Invalid
from thermocline.hot.postgres.page.page import AllOf, Comparison, Filter

CONDITIONS_MAX = 50
_NAME = re.compile(r"(?P<field>[^\[\]]+)(?:\[(?P<op>[a-z_]+)\])?")
_NUMBERS = ("integer", "number", "decimal")
_SYSTEM_NUMBERS = ("_ver", "_schema_version")
_TRUTH = {"true": True, "false": False}


def parse_conditions(contract: Contract, given: Mapping[str, str]) -> Filter | None:
    """Return the filter of conditions by name; None without conditions."""
    if len(given) > CONDITIONS_MAX:
        hint = "use a filter as JSON"
        raise Invalid("too many conditions", hint=hint, conditions_max=CONDITIONS_MAX)
    parts = tuple(_parse_condition(contract, name, text) for name, text in given.items())
    return AllOf(parts) if parts else None


def parse_assignments(contract: Contract, given: list[str]) -> Filter | None:
    """Return the filter of texts like `status=open`."""
    pairs: dict[str, str] = {}
    for one in given:
        name, sign, text = one.partition("=")
        if not sign or name in pairs:
            hint = "write each condition once, as name=value or name[gt]=value"
            raise Invalid("not a condition", hint=hint, condition=one[:80])
        pairs[name] = text
    return parse_conditions(contract, pairs)


def _parse_condition(contract: Contract, name: str, text: str) -> Comparison:
    found = _NAME.fullmatch(name)
    if found is None:
        hint = "write name=value or name[gt]=value"
        raise Invalid("not a condition", hint=hint, condition=name[:80])
    field, op = found["field"], found["op"] or "eq"
    if op == "is_null":
        return Comparison(field, op, _parse_value(ColumnKind("boolean"), field, text))
    kind = _kind_of(contract, field)
    if op == "in":
        return Comparison(field, op, [_parse_value(kind, field, one) for one in text.split(",")])
    return Comparison(field, op, _parse_value(kind, field, text))


def _kind_of(contract: Contract, field: str) -> ColumnKind:
    """Return the kind of a field; text for a field that the contract does not know."""
    if field in _SYSTEM_NUMBERS:
        return ColumnKind("integer")
    names = field.split("/")[1:] if field.startswith("/") else [field]
    kind = contract.kind
    for name in names:
        plain = name.replace("~1", "/").replace("~0", "~")
        inner = next((part.kind for part in kind.fields if part.name == plain), None)
        if inner is None:
            return ColumnKind("string")
        kind = inner
    return kind


def _parse_value(kind: ColumnKind, field: str, text: str) -> Any:
    """Return a text as a value of this kind."""
    if kind.name == "boolean":
        if text not in _TRUTH:
            raise _value_error(field, text, "true or false")
        return _TRUTH[text]
    if kind.name not in _NUMBERS or kind.is_text:
        return text
    try:
        value = decode(text.encode())
    except Invalid as error:
        raise _value_error(field, text, "a number") from error
    if isinstance(value, bool | str | list | dict) or value is None:
        raise _value_error(field, text, "a number")
    return value


def _value_error(field: str, text: str, expected: str) -> Invalid:
    hint = f"the field is compared with {expected}"
    return Invalid("the value is not of the field's type", hint=hint, field=field, got=text[:80])
