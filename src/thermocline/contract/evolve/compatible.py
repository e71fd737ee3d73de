"""Checks whether one contract may follow another.

In:   the registered contract, and its proposed successor
Out:  refusals, each with its pointer and reason; empty when the successor is compatible

- Backward: every document that fits the old contract fits the new one. Forward: the other way
  round. Full: both. None: no check.
- In every mode but none, a property keeps its kind of column; only an integer may become a number.
- Rules that can explain an incompatibility run first, then a proof of compatibility. A contract
  without a proof is refused.
"""

from collections.abc import Iterator

import jsonschema_rs
from jsonschema_rs.canonical import Containment

from thermocline.contract.contract import Contract
from thermocline.contract.document.kind import ColumnKind, KindField
from thermocline.contract.evolve.tighten import Tightening, is_annotation
from thermocline.contract.schema.pointer import Refusal, pointer_of, refusal_error
from thermocline.contract.schema.register import parse_contract
from thermocline.contract.schema.subschema import Json, Node, Steps, with_subschemas
from thermocline.contract.schema.vocabulary import regex_options
from thermocline.errors import Invalid

_UNPROVED = "it cannot be proved that every document {which} still fits"
_BACKWARD = "of the version before"
_FORWARD = "of this version, read by the version before,"


def evolve_contract(
    document: Json, previous: Contract, *, known: dict[str, Json] | None = None
) -> Contract:
    """Return the contract of a document that may follow the previous one; else `Invalid`.

    The compatibility mode is that of the previous contract.
    """
    made = parse_contract(document, previous, known=known)
    refusals = find_incompatibilities(previous, made)
    if refusals:
        error = refusal_error(refusals)
        raise Invalid(
            "the contract may not follow the one that is registered",
            hint="undo the named changes, or migrate the documents to a new entity type",
            mode=previous.mode,
            **error.facts,
        )
    return made


def find_incompatibilities(old: Contract, new: Contract, mode: str = "") -> list[Refusal]:
    """Return why the new contract may not follow the old one, in the old one's mode by default."""
    mode = mode or old.mode
    if mode == "none":
        return []
    found = list(_column_changes(old.kind, new.kind, ()))
    if mode in ("backward", "full"):
        found += _find_misfits(
            old.schema, _without_defaulted(old.schema, new.schema), new.schema, _BACKWARD
        )
    if mode in ("forward", "full"):
        found += _find_misfits(new.schema, old.schema, old.schema, _FORWARD)
    return list(dict.fromkeys(found))


def _find_misfits(before: Json, after: Json, shown_after: Json, which: str) -> list[Refusal]:
    """Return why documents of one schema may not fit the other one."""
    found = Tightening(before, shown_after).refusals()
    if which is _FORWARD:
        found = [Refusal(r.pointer, f"for the version before: {r.reason}") for r in found]
    if found or _is_proved(
        _without_annotations(before), _without_annotations(after), before, after
    ):
        return found
    places = [
        pointer_of(("properties", name))
        for name, inner in before.get("properties", {}).items()
        if name in after.get("properties", {})
        and not _is_proved(
            _without_annotations(inner),
            _without_annotations(after["properties"][name]),
            before,
            after,
        )
    ]
    return [Refusal(place, _UNPROVED.format(which=which)) for place in places or [""]]


def _without_defaulted(old: Json, new: Json) -> Json:
    """Return the new schema without requirements that defaults fill in for older documents."""
    properties = new.get("properties", {})
    held = old.get("required", [])
    required = [
        name
        for name in new.get("required", [])
        if name in held or "default" not in _as_object(properties.get(name))
    ]
    return {**new, "required": required}


def _as_object(node: Node | None) -> Json:
    return node if isinstance(node, dict) else {}


def _without_annotations(node: Node) -> Node:
    """Return the schema without annotations: they prove nothing, and make equal schemas differ."""
    if not isinstance(node, dict):
        return node
    kept = {word: value for word, value in node.items() if not is_annotation(word)}
    return with_subschemas(kept, lambda _, inner: _without_annotations(inner))


def _is_proved(old: Node, new: Node, before: Json, after: Json) -> bool:
    """Tell whether every value of the old schema is proved to fit the new one.

    If the whole cannot be decided, the parts are proved one by one: a schema accepts more values
    when one of its items or properties does.
    """
    verdict = _covers(old, new, before, after)
    if verdict is not Containment.UNKNOWN:
        return verdict is Containment.YES
    if not isinstance(old, dict) or not isinstance(new, dict):
        return False
    same = dict(new)
    parts: list[tuple[Node, Node]] = []
    if _differ(old, new, "items"):
        parts.append((old["items"], new["items"]))
        same["items"] = old["items"]
    held, wanted = old.get("properties", {}), new.get("properties", {})
    for name in held:
        if _differ(held, wanted, name):
            parts.append((held[name], wanted[name]))
            same["properties"] = {**same["properties"], name: held[name]}
    if not parts or not all(_is_proved(o, n, before, after) for o, n in parts):
        return False
    return same == old or _covers(old, same, before, after) is Containment.YES


def _differ(old: Json, new: Json, word: str) -> bool:
    return word in old and word in new and old[word] != new[word]


def _covers(old: Node, new: Node, before: Json, after: Json) -> Containment:
    try:
        held = _canonicalize(old, before)
        return _canonicalize(new, after).covers(held)
    except (jsonschema_rs.ValidationError, ValueError):
        return Containment.UNKNOWN


def _canonicalize(node: Node, document: Json) -> jsonschema_rs.CanonicalSchema:
    if isinstance(node, dict) and "$defs" in document and "$defs" not in node:
        node = {**node, "$defs": _without_annotations({"$defs": document["$defs"]})["$defs"]}  # type: ignore[index]
    return jsonschema_rs.canonicalize(
        node, validate_formats=True, pattern_options=regex_options(), offline=True
    )


def _column_changes(old: ColumnKind, new: ColumnKind, at: Steps) -> Iterator[Refusal]:
    """Yield a refusal for each column, or part of one, that would change its kind."""
    held = {part.name: part for part in old.fields}
    for part in new.fields:
        if part.name in held:
            yield from _column_change(held[part.name], part, (*at, "properties", part.name))
    if old.item and new.item:
        word = "items" if new.name == "list" else "additionalProperties"
        yield from _column_change(
            KindField("", old.item, is_required=True),
            KindField("", new.item, is_required=True),
            (*at, word),
        )


def _column_change(old: KindField, new: KindField, at: Steps) -> Iterator[Refusal]:
    before, after = old.kind, new.kind
    pair = (before.name, after.name)
    if pair in (("integer", "number"), ("enum", "string"), ("string", "enum")):
        return
    if before.name != after.name or before.is_text != after.is_text:
        reason = f"the column would change from {before.type} to {after.type}"
        yield Refusal(pointer_of(at), reason)
    elif before.scale != after.scale or (after.bits, after.digits) < (before.bits, before.digits):
        reason = f"the column would narrow from {before.type} to {after.type}"
        yield Refusal(pointer_of((*at, "x-type")), reason)
    else:
        yield from _column_changes(before, after, at)
