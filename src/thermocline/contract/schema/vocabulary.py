"""The keywords that a contract may use, and refusals for all others.

In:   a document in draft 2020-12
Out:  refusals, each with its pointer and reason

- An unknown keyword is refused, not ignored: `minimun` would check nothing. Custom keywords begin
  with `x-`.
- Regular expressions must be in the subset that a linear-time engine can run: no look-around, no
  back-references, and a compiled size within the limit. No text can make such a pattern slow.
- All patterns of a contract share one budget of compiled bytes, charged before each is compiled: a
  contract of a few kilobytes cannot compile to gigabytes. What a pattern is charged also bounds how
  much text it may be matched with (`document/match_cost.py`).
- Every format is asserted, so a format that cannot be asserted is refused.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs

from thermocline.contract.schema.pointer import Refusal, pointer_of
from thermocline.contract.schema.subschema import Json, Node, Steps, subschemas
from thermocline.errors import Invalid

PATTERN_LENGTH_MAX = 1_000
PATTERN_BYTES_MAX = 1024 * 1024
PATTERNS_BYTES_MAX = 4 * PATTERN_BYTES_MAX
ENUM_VALUES_MAX = 10_000
DEPTH_MAX = 24
_CHARGES = tuple(PATTERN_BYTES_MAX >> shift for shift in (10, 8, 6, 4, 2, 0))
_FAILED_CHARGE = PATTERN_BYTES_MAX // 4
MODES = ("backward", "forward", "full", "none")

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples"),
        *("example", "$comment", "contentEncoding", "contentMediaType", "contentSchema"),
        *("discriminator", "externalDocs"),
    }
)
ASSERTIONS = frozenset(
    {
        *("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("multipleOf", "minLength", "maxLength", "pattern", "format", "minItems", "maxItems"),
        *("uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties"),
        *("required", "dependentRequired"),
    }
)
APPLICATORS = frozenset(
    {
        *("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems"),
        *("contains", "propertyNames", "not", "if", "then", "else", "allOf", "anyOf", "oneOf"),
        *("prefixItems", "properties", "patternProperties", "dependentSchemas"),
    }
)
STRUCTURE = frozenset({"$ref", "$defs", "definitions", "$anchor", "$schema", "$id"})
FORMATS = frozenset(
    {
        *("uuid", "date", "date-time", "time", "duration", "email", "idn-email", "uri"),
        *("uri-reference", "uri-template", "iri", "iri-reference", "hostname", "idn-hostname"),
        *("ipv4", "ipv6", "json-pointer", "relative-json-pointer", "regex"),
    }
)
_KNOWN = ANNOTATIONS | ASSERTIONS | APPLICATORS | STRUCTURE
_OUTSIDE = {
    "$dynamicRef": "its target depends on the referring schema; write a $ref",
    "$dynamicAnchor": "its meaning depends on the referring schema; write an $anchor",
    "$recursiveRef": "a keyword of draft 2019-09; write a $ref",
    "$vocabulary": "a contract has one vocabulary: that of draft 2020-12",
    "nullable": "a keyword of OpenAPI 3.0; add null to the type instead",
}
_LOOKS_AHEAD = re.compile(r"\(\?<?[=!]")
_REFERS_BACK = re.compile(r"\\[1-9]|\\k<")


def refusals_of(document: Json) -> list[Refusal]:
    """Return the refusals of all keywords that a contract cannot have."""
    return check_pattern_budget(document) or [
        refusal for steps, node in _all_schemas(document) for refusal in _check_node(node, steps)
    ]


def check_pattern_budget(document: Json) -> list[Refusal]:
    """Charge every pattern before it is compiled; return a refusal when the budget is spent."""
    left_bytes = PATTERNS_BYTES_MAX
    for steps, node in _all_schemas(document):
        for pattern in patterns_of(node):
            if len(pattern) > PATTERN_LENGTH_MAX:
                continue  # refused by its rule, without being compiled
            # What is not a pattern, or too large, is refused by its rule; finding out costs, too.
            left_bytes -= pattern_charge(pattern, left_bytes) or _FAILED_CHARGE
            if left_bytes < 0:
                reason = f"the patterns together compile to more than {PATTERNS_BYTES_MAX} bytes"
                return [Refusal(pointer_of(steps), reason)]
    return []


def patterns_of(node: Json) -> list[str]:
    """Return the patterns of one schema, without those of the schemas inside it."""
    own = node.get("pattern")
    named = node.get("patternProperties")
    return [
        *([own] if isinstance(own, str) else []),
        *(named if isinstance(named, dict) else ()),
    ]


def pattern_charge(pattern: str, bytes_max: int = PATTERN_BYTES_MAX) -> int | None:
    """Return an upper bound of a pattern's compiled bytes; None above the limit, or if it is none.

    Nothing larger than the limit is ever compiled.
    """
    for charge in _CHARGES:
        if charge <= bytes_max and _is_compiled_within(pattern, charge):
            return charge
    return None


@functools.lru_cache(maxsize=4_096)
def _is_compiled_within(pattern: str, size_bytes: int) -> bool:
    options = jsonschema_rs.RegexOptions(size_limit=size_bytes, dfa_size_limit=PATTERN_BYTES_MAX)
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=options)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


def _all_schemas(document: Json) -> Iterator[tuple[Steps, Json]]:
    """Yield every schema of the document, outer ones first, down to the depth limit."""
    level: list[tuple[Steps, Node]] = [((), document)]
    for depth in range(DEPTH_MAX + 2):
        if depth > DEPTH_MAX and level:
            raise Invalid(
                "the contract is nested too deep",
                hint="flatten it",
                pointer=pointer_of(level[0][0])[:80],
                depth_max=DEPTH_MAX,
            )
        inner: list[tuple[Steps, Node]] = []
        for steps, node in level:
            if isinstance(node, dict):
                yield steps, node
                inner += [((*steps, *more), sub) for more, sub in subschemas(node)]
        level = inner


def _check_node(node: Json, steps: Steps) -> Iterator[Refusal]:
    for word, value in node.items():
        at = pointer_of((*steps, word))
        if word in _OUTSIDE:
            yield Refusal(at, _OUTSIDE[word])
        elif word not in _KNOWN and not word.startswith("x-"):
            yield Refusal(at, "not a keyword of a contract; a custom keyword begins with x-")
        elif word in ("$schema", "$id") and steps:
            yield Refusal(at, f"{word} inside a document changes what its references mean")
        elif word in _RULES:
            yield from _RULES[word](value, at, not steps)


def _check_pattern(pattern: Any, at: str, _: bool) -> Iterator[Refusal]:
    if reason := unsafe_reason(pattern):
        yield Refusal(at, reason)


def _check_patterns(named: Any, at: str, _: bool) -> Iterator[Refusal]:
    for pattern in named:
        if reason := unsafe_reason(pattern):
            yield Refusal(at + pointer_of([pattern]), reason)


def unsafe_reason(pattern: str) -> str:
    """Return why a regular expression is outside the safe subset, or an empty text."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        return f"the pattern is longer than {PATTERN_LENGTH_MAX} characters"
    if pattern_charge(pattern) is None:
        if _LOOKS_AHEAD.search(pattern):
            return "the pattern looks ahead or behind; only linear-time patterns are safe"
        if _REFERS_BACK.search(pattern):
            return "the pattern refers back to a group; only linear-time patterns are safe"
        return "not a pattern, or its compiled form is larger than the limit"
    return ""


def regex_options() -> jsonschema_rs.RegexOptions:
    """Return the options of the engine for every pattern: linear time, bounded size."""
    return jsonschema_rs.RegexOptions(
        size_limit=PATTERN_BYTES_MAX, dfa_size_limit=PATTERN_BYTES_MAX
    )


def _check_format(name: Any, at: str, _: bool) -> Iterator[Refusal]:
    if name not in FORMATS:
        known = ", ".join(sorted(FORMATS))
        yield Refusal(at, f"a format that cannot be checked; use one of {known}")


def _check_enum(values: Any, at: str, _: bool) -> Iterator[Refusal]:
    if len(values) > ENUM_VALUES_MAX:
        yield Refusal(at, f"more than {ENUM_VALUES_MAX} values; keep them as entities of a type")
    if not values:
        yield Refusal(at, "an empty list of values allows no document")


def _check_mode(mode: Any, at: str, is_root: bool) -> Iterator[Refusal]:
    if not is_root:
        yield Refusal(at, "compatibility applies to the whole contract: set it at the root")
    elif mode not in MODES:
        yield Refusal(at, f"not a compatibility mode; use one of {', '.join(MODES)}")


def _check_content(word: Any, at: str, is_root: bool) -> Iterator[Refusal]:
    if not is_root:
        yield Refusal(at, "x-content applies to the whole contract; use additionalProperties here")
    elif word not in ("open", "closed"):
        yield Refusal(at, "must be open or closed")


def _check_hot(value: Any, at: str, _: bool) -> Iterator[Refusal]:
    if not isinstance(value, bool):
        yield Refusal(at, "must be true or false")


def _check_id(value: Any, at: str, _: bool) -> Iterator[Refusal]:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        yield Refusal(at, "a column id is a positive integer of 31 bits")


_RULES: dict[str, Callable[[Any, str, bool], Iterator[Refusal]]] = {
    "pattern": _check_pattern,
    "patternProperties": _check_patterns,
    "format": _check_format,
    "enum": _check_enum,
    "x-compatibility": _check_mode,
    "x-content": _check_content,
    "x-hot": _check_hot,
    "x-id": _check_id,
}
