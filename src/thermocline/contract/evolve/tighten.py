"""Explains, keyword by keyword, why a value that fits one schema may not fit another.

In:   two schemas, written out and closed
Out:  refusals, each with the pointer and the reason

- Each keyword that became stricter is named. Changed combinations (`oneOf`, `if`, `not`) are not
  compared: every refusal is certain, but an empty result does not prove compatibility.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from thermocline.contract.document.text import encode_text, preview_value
from thermocline.contract.schema.pointer import Refusal, pointer_of
from thermocline.contract.schema.subschema import Json, Node, Steps
from thermocline.contract.schema.view import others_of
from thermocline.contract.schema.vocabulary import ANNOTATIONS

_ALL_TYPES = frozenset({"null", "boolean", "string", "integer", "number", "array", "object"})
_AT_LEAST = {
    "minimum": "the least value",
    "exclusiveMinimum": "the least value",
    "minLength": "the least length",
    "minItems": "the least number of items",
    "minProperties": "the least number of properties",
}
_AT_MOST = {
    "maximum": "the greatest value",
    "exclusiveMaximum": "the greatest value",
    "maxLength": "the greatest length",
    "maxItems": "the greatest number of items",
    "maxProperties": "the greatest number of properties",
}


def is_annotation(word: str) -> bool:
    """Tell whether a keyword never makes a document valid or invalid."""
    return word in ANNOTATIONS or word.startswith("x-")


@dataclass(slots=True)
class Tightening:
    """The comparison of two documents; recursive definitions are compared once."""

    before: Json
    after: Json
    seen: set[tuple[str, str]] = field(default_factory=set)

    def refusals(self) -> list[Refusal]:
        """Return why documents that fit the old schema may not fit the new one."""
        return list(self._compare(self.before, self.after, ()))

    def _compare(self, old: Node, new: Node, at: Steps) -> Iterator[Refusal]:
        if old == new and "$ref" not in (old if isinstance(old, dict) else {}):
            return
        if old is False or new is True:
            return
        if new is False:
            yield Refusal(pointer_of(at), "nothing is allowed here any more")
            return
        pair = (_reference(old), _reference(new))
        if any(pair):
            if pair in self.seen:
                return
            self.seen.add(pair)
        before, after = _resolve(old, self.before), _resolve(new, self.after)
        yield from _compare_types(before, after, at)
        yield from _compare_values(before, after, at)
        yield from _compare_limits(before, after, at)
        yield from _compare_keywords(before, after, at)
        yield from self._compare_properties(before, after, at)
        if isinstance(after.get("items"), dict | bool) and "items" in before:
            yield from self._compare(before["items"], after["items"], (*at, "items"))
        elif after.get("items", True) is not True:
            yield Refusal(pointer_of((*at, "items")), "items must now fit a schema")

    def _compare_properties(self, old: Json, new: Json, at: Steps) -> Iterator[Refusal]:
        held, wanted = old.get("properties", {}), new.get("properties", {})
        others_before, others_after = others_of(old), others_of(new)
        for name in held:
            place = (*at, "properties", name)
            if name in wanted:
                yield from self._compare(held[name], wanted[name], place)
            elif "properties" in new or others_after is not True:
                yield Refusal(
                    pointer_of(place), "the property was removed; documents may still have it"
                )
        for name, inner in wanted.items():
            if name not in held and others_before is not False and not _takes_all(inner):
                yield Refusal(
                    pointer_of((*at, "properties", name)),
                    "the object was open: documents may already have this property, with another "
                    "type",
                )
        if others_after is False and others_before is not False:
            yield Refusal(pointer_of(at), "properties that are not named are no longer allowed")
        elif isinstance(others_after, dict) and others_before is not False:
            word = "additionalProperties"
            yield from self._compare(others_before, others_after, (*at, word))
        yield from _compare_required(old, new, at)


def _reference(node: Node) -> str:
    return str(node.get("$ref", "")) if isinstance(node, dict) else ""


def _resolve(node: Node, document: Json) -> Json:
    if not isinstance(node, dict):
        return {}
    name = _reference(node).removeprefix("#/$defs/")
    target = document.get("$defs", {}).get(name, {}) if name else {}
    return {**target, **node} if isinstance(target, dict) else node


def _takes_all(node: Node) -> bool:
    return node is True or (isinstance(node, dict) and all(map(is_annotation, node)))


def _compare_types(old: Json, new: Json, at: Steps) -> Iterator[Refusal]:
    lost = _type_set(old) - _type_set(new)
    if lost:
        words = ", ".join(sorted(lost))
        yield Refusal(pointer_of((*at, "type")), f"the type was changed: {words} no longer fits")


def _type_set(node: Json) -> frozenset[str]:
    given = node.get("type")
    if given is None:
        return _ALL_TYPES
    types = frozenset([given] if isinstance(given, str) else given)
    return types | {"integer"} if "number" in types else types


def _compare_values(old: Json, new: Json, at: Steps) -> Iterator[Refusal]:
    for word in ("const", "enum"):
        if word not in new:
            continue
        allowed = {encode_text(v) for v in (new["enum"] if word == "enum" else [new["const"]])}
        held = [old["const"]] if "const" in old else old.get("enum")
        if held is None:
            yield Refusal(pointer_of((*at, word)), "only values that are listed are allowed now")
            continue
        gone = [value for value in held if encode_text(value) not in allowed]
        if gone:
            listed = ", ".join(preview_value(value) for value in gone[:5])
            yield Refusal(pointer_of((*at, word)), f"no longer allowed: {listed}")


def _compare_limits(old: Json, new: Json, at: Steps) -> Iterator[Refusal]:
    for words, sign in ((_AT_LEAST, 1), (_AT_MOST, -1)):
        for word, what in words.items():
            if word not in new:
                continue
            # The old limit may be the exclusive keyword: "more than 4" implies "at least 4".
            held = _held_limit(old, word)
            if held is None or sign * Fraction(str(new[word])) > sign * Fraction(str(held)):
                before = "none" if held is None else str(held)
                reason = f"{what} was tightened from {before} to {new[word]}"
                yield Refusal(pointer_of((*at, word)), reason)


def _held_limit(old: Json, word: str) -> Any:
    if word in ("minimum", "maximum"):
        sibling = "exclusiveMinimum" if word == "minimum" else "exclusiveMaximum"
        return old.get(word, old.get(sibling))
    return old.get(word)


def _compare_keywords(old: Json, new: Json, at: Steps) -> Iterator[Refusal]:
    for word in ("pattern", "format"):
        if word in new and new[word] != old.get(word):
            how = "was changed" if word in old else "was added"
            yield Refusal(pointer_of((*at, word)), f"the {word} {how}; documents may not match it")
    if new.get("uniqueItems") and not old.get("uniqueItems"):
        yield Refusal(pointer_of((*at, "uniqueItems")), "items must differ from each other now")
    if "multipleOf" in new:
        step, held = Fraction(str(new["multipleOf"])), old.get("multipleOf")
        if held is None or (Fraction(str(held)) / step).denominator != 1:
            yield Refusal(pointer_of((*at, "multipleOf")), "fewer multiples are allowed now")


def _compare_required(old: Json, new: Json, at: Steps) -> Iterator[Refusal]:
    for name in new.get("required", []):
        if name in old.get("required", []):
            continue
        inner = new.get("properties", {}).get(name)
        # Only defaults at the root are filled in when an older row is read.
        if not at and isinstance(inner, dict) and "default" in inner:
            continue
        place = pointer_of((*at, "properties", name))
        yield Refusal(place, "the property is now required, and has no default at the root")
