"""Bounds the work of validating a document against its contract.

In:   a schema; a document
Out:  nothing, or the properties whose values are too costly to validate

- Patterns run in time linear to the text, but each character may cost as much as the pattern has
  states: a text costs at most its bytes times the pattern's charge.
- Every value inside a property may meet every schema inside it: they cost at most their product.
- A property is charged for what is inside it. Patterns on names of properties, and what combined
  schemas say, are charged for the whole document.
- The bound is checked before anything is validated, in a time linear to the document. Documents
  that are too short to be costly are not checked at all.
"""

from typing import Any, NamedTuple

from thermocline.contract.document.text import DOCUMENT_BYTES_MAX
from thermocline.contract.schema.pointer import DocumentProblem, pointer_of
from thermocline.contract.schema.subschema import Json, Node, subschemas
from thermocline.contract.schema.vocabulary import PATTERN_BYTES_MAX, pattern_charge, patterns_of

MATCH_COST_MAX = 1_000_000_000
"""The limit for one document; the slowest pattern found takes 100 ms for it."""

VALUE_COST = 100  # of one value that meets one schema, in units of a character and a pattern's byte
ENUM_VALUES_PER_SCHEMA = 4  # so many values of an enumeration cost as much as one schema
VALUE_BYTES_MIN = 2  # the bytes of the shortest value of a document, with its comma


class _Size(NamedTuple):
    """The size of a value: bytes of its texts, and the number of values inside it."""

    text_bytes: int
    values: int


class _Weight(NamedTuple):
    """The weight of a schema: bytes that its patterns are charged, and schemas inside it."""

    patterns: int
    schemas: int

    def cost(self, size: _Size) -> int:
        """Return the most that a value of this size may cost."""
        return self.patterns * size.text_bytes + VALUE_COST * self.schemas * size.values


class MatchCost:
    """What validation against one contract may cost for a document."""

    def __init__(self, schema: Json) -> None:
        properties = schema.get("properties", {})
        self._weights = {name: _weigh(node) for name, node in properties.items()}
        whole = _weigh(schema)
        self._shared = _Weight(
            whole.patterns - sum(one.patterns for one in self._weights.values()),
            whole.schemas - sum(one.schemas for one in self._weights.values()),
        )
        per_byte = whole.patterns + VALUE_COST * whole.schemas // VALUE_BYTES_MIN
        self.bytes_max = MATCH_COST_MAX // max(1, per_byte)
        """A document of at most this many bytes needs no check."""

    def problems(self, document: Any) -> list[DocumentProblem]:
        """Return the properties whose values are too costly; the root when they are together."""
        if self.bytes_max >= DOCUMENT_BYTES_MAX or not isinstance(document, dict):
            return []
        costs: dict[str, int] = {}
        text_bytes = values = 0
        for name, value in document.items():
            size = _measure(value)
            text_bytes += size.text_bytes + len(name)
            values += size.values
            costs[name] = self._weights.get(name, _NOTHING).cost(size)
        found = [_problem(name) for name, cost in costs.items() if cost > MATCH_COST_MAX]
        total = sum(costs.values()) + self._shared.cost(_Size(text_bytes, values))
        return found or ([_problem()] if total > MATCH_COST_MAX else [])


_NOTHING = _Weight(0, 0)


def _weigh(node: Node) -> _Weight:
    if not isinstance(node, dict):
        return _NOTHING
    patterns = sum(pattern_charge(pattern) or PATTERN_BYTES_MAX for pattern in patterns_of(node))
    schemas = 1 + len(node.get("enum", ())) // ENUM_VALUES_PER_SCHEMA
    for _, inner in subschemas(node):
        below = _weigh(inner)
        patterns += below.patterns
        schemas += below.schemas
    return _Weight(patterns, schemas)


def _measure(value: Any) -> _Size:
    waiting, text_bytes, values = [value], 0, 0
    while waiting:
        one = waiting.pop()
        values += 1
        if isinstance(one, str):
            text_bytes += len(one) if one.isascii() else 4 * len(one)
        elif isinstance(one, dict):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return _Size(text_bytes, values)


def _problem(*steps: str) -> DocumentProblem:
    expected = "fewer values, or texts that are shorter or have simpler patterns"
    return DocumentProblem(pointer_of(steps), expected, "more work than one document may cost")
