"""Validates documents against a contract, and reports all their problems.

In:   a schema with the limits of its columns
Out:  a verdict in about a microsecond, or problems with pointer, expected and got

- All problems are reported at once, up to the limit.
- The verdict comes first and allocates nothing; details are built only for a document that fails.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import jsonschema_rs

from thermocline.contract.document.text import preview_value
from thermocline.contract.schema.pointer import PROBLEMS_MAX, DocumentProblem, pointer_of
from thermocline.contract.schema.subschema import Node
from thermocline.contract.schema.vocabulary import regex_options

VALUES_SHOWN_MAX = 10
_FORMATS = {
    "date-time": "an instant with its offset, such as 2024-06-01T12:00:00Z",
    "date": "a date, such as 2024-06-01",
    "time": "a time with its offset, such as 12:00:00Z",
    "uuid": "a UUID, such as 123e4567-e89b-42d3-a456-426614174000",
    "duration": "a duration, such as PT15M",
    "email": "an email address",
    "uri": "a URI",
}


def compile_schema(schema: Node) -> jsonschema_rs.Validator:
    """Return the validator of a schema; it asserts formats and fetches nothing."""
    return jsonschema_rs.Draft202012Validator(
        schema,
        validate_formats=True,
        ignore_unknown_formats=False,
        pattern_options=regex_options(),
        offline=True,
    )


def problems_of(validator: jsonschema_rs.Validator, document: Any) -> list[DocumentProblem]:
    """Return the problems of a document, up to one more than the limit."""
    found = (problem for error in validator.iter_errors(document) for problem in _problems(error))
    return list(dict.fromkeys(islice(found, PROBLEMS_MAX + 1)))


def _problems(error: jsonschema_rs.ValidationError) -> Iterator[DocumentProblem]:
    steps = list(error.instance_path)
    word = error.kind.name
    if word in ("additionalProperties", "unevaluatedProperties"):
        held = error.instance if isinstance(error.instance, dict) else {}
        for name in error.kind.value:
            yield DocumentProblem(
                pointer_of([*steps, name]), "no such property", preview_value(held.get(name))
            )
    elif word == "required":
        yield DocumentProblem(pointer_of([*steps, str(error.kind.value)]), "a value", "nothing")
    elif word == "propertyNames":
        yield DocumentProblem(
            pointer_of(steps), "other names of properties", preview_value(error.instance)
        )
    else:
        yield DocumentProblem(
            pointer_of(steps), _expected_text(word, error), preview_value(error.instance)
        )


_EXPECTED: dict[str, Callable[[Any], str]] = {
    "type": " or ".join,
    "const": preview_value,
    "minimum": lambda limit: f"at least {limit}",
    "maximum": lambda limit: f"at most {limit}",
    "exclusiveMinimum": lambda limit: f"more than {limit}",
    "exclusiveMaximum": lambda limit: f"less than {limit}",
    "multipleOf": lambda step: f"a multiple of {step}",
    "minLength": lambda limit: f"at least {limit} characters",
    "maxLength": lambda limit: f"at most {limit} characters",
    "minItems": lambda limit: f"at least {limit} items",
    "maxItems": lambda limit: f"at most {limit} items",
    "minProperties": lambda limit: f"at least {limit} properties",
    "maxProperties": lambda limit: f"at most {limit} properties",
    "pattern": lambda pattern: f"text that matches {preview_value(pattern)}",
    "format": lambda name: _FORMATS.get(name, f"text of the format {name}"),
    "uniqueItems": lambda _: "items that differ from each other",
    "contains": lambda _: "an item that fits `contains`",
    "anyOf": lambda _: "a value that fits one of the alternatives",
    "not": lambda _: "a value that does not fit the schema in `not`",
}


def _expected_text(word: str, error: jsonschema_rs.ValidationError) -> str:
    value = error.kind.value
    if word == "enum":
        listed = ", ".join(preview_value(option) for option in value[:VALUES_SHOWN_MAX])
        more = len(value) - VALUES_SHOWN_MAX
        return f"one of {listed}" + (f" and {more} more" if more > 0 else "")
    if word == "oneOf":
        return "a value that fits exactly one of the alternatives"
    if word in _EXPECTED:
        return _EXPECTED[word](value)
    return f"a value that fits `{word}`"
