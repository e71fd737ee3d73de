"""Infers a contract from sample documents.

In:   sample documents
Out:  a JSON Schema document that each of them fits

- A property that every sample has is required; one that is null in a sample may be null.
- A text is a date, an instant or a UUID when it is one in every sample.
- An object with more names than the limit is a map: its names are data, not properties.
- The result is a guess: a person reviews it before it is registered.
"""

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import jsonschema_rs

from thermocline.contract.document.canonical import json_form
from thermocline.contract.document.text import check_value
from thermocline.contract.schema.draft7 import URI_NOW
from thermocline.contract.schema.register import parse_contract
from thermocline.contract.schema.subschema import Json
from thermocline.contract.schema.view import type_of
from thermocline.errors import Invalid

NAMES_MAX = 200
SAMPLES_MAX = 1_000_000
_FORMATS = {
    name: jsonschema_rs.validator_for({"format": name}, validate_formats=True)
    for name in ("uuid", "date-time", "date")
}


class SchemaGuess:
    """A summary of the values at one position of the documents."""

    def __init__(self) -> None:
        self.types: set[str] = set()
        self.objects = 0
        self.names: dict[str, SchemaGuess] = {}
        self.counts: dict[str, int] = {}
        self.items: SchemaGuess | None = None
        self.formats = set(_FORMATS)
        self.is_large = False

    def add(self, value: Any) -> None:
        """Add one value to the summary."""
        kind = type_of(value) if not isinstance(value, float | Decimal) else "number"
        self.types.add(kind)
        if isinstance(value, str):
            self.formats = {name for name in self.formats if _FORMATS[name].is_valid(value)}
            if value.startswith("0000") or "60" in value[17:19] or len(value) > 27:
                self.formats -= {"date", "date-time"}
        elif kind == "integer":
            self.is_large |= not -(2**63) <= value < 2**63
        elif kind == "number":
            self.is_large |= isinstance(json_form(value), Decimal) or not math.isfinite(value)
        elif isinstance(value, list):
            self.items = self.items or SchemaGuess()
            for item in value:
                self.items.add(item)
        elif isinstance(value, dict):
            self.objects += 1
            for name, inner in value.items():
                self.names.setdefault(name, SchemaGuess()).add(inner)
                self.counts[name] = self.counts.get(name, 0) + 1

    def merge(self, other: "SchemaGuess") -> None:
        """Add all values of another summary."""
        self.types |= other.types
        self.objects += other.objects
        self.formats &= other.formats if "string" in other.types else self.formats
        self.is_large |= other.is_large
        for name, inner in other.names.items():
            self.names.setdefault(name, SchemaGuess()).merge(inner)
            self.counts[name] = self.counts.get(name, 0) + other.counts[name]
        if other.items:
            self.items = self.items or SchemaGuess()
            self.items.merge(other.items)

    def schema(self) -> Json:
        """Return the schema that all added values fit."""
        types = self.types - {"integer"} if "number" in self.types else self.types
        words = sorted(types - {"null"}) + sorted(types & {"null"})
        made: Json = {"type": words[0] if len(words) == 1 else words} if words else {}
        if "string" in types and len(self.formats) == 1:
            made["format"] = next(iter(self.formats))
        if self.is_large and types & {"integer", "number"}:
            made["x-type"] = "json"
        if self.items and self.items.types:
            made["items"] = self.items.schema()
        if "object" in types:
            made |= self._object_schema()
        return made

    def _object_schema(self) -> Json:
        if len(self.names) > NAMES_MAX:
            values = SchemaGuess()
            for inner in self.names.values():
                values.merge(inner)
            return {"additionalProperties": values.schema()}
        made: Json = {"properties": {name: at.schema() for name, at in self.names.items()}}
        required = [name for name in self.names if self.counts[name] == self.objects]
        if required:
            made["required"] = required
        return {**made, "additionalProperties": False}


def infer_schema(documents: Iterable[Any]) -> Json:
    """Return a document that can be registered and that every sample fits.

    `Invalid` when there are no samples, when one is not an object, or when no contract can hold
    them, for example because two names differ only in case.
    """
    guess = SchemaGuess()
    count = 0
    for document in documents:
        count += 1
        check_value(document)
        if not isinstance(document, dict):
            raise Invalid(
                "a sample is not an object", hint="give one JSON object per line", sample=count
            )
        if count > SAMPLES_MAX:
            raise Invalid("more samples than the limit", hint="give fewer", samples_max=SAMPLES_MAX)
        guess.add(document)
    if not count:
        raise Invalid("there are no samples", hint="give at least one JSON object")
    made = {"$schema": URI_NOW, **guess.schema()}
    parse_contract(made)
    return made
