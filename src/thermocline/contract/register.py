"""A document read as a contract: checked, written out, closed and given its columns.

In:   a JSON Schema document, and the contract of the version before
Out:  a `Contract`, or an `Invalid` that names every refusal with its pointer and reason

- What is refused here is refused before anything is written; what passes can be kept.
- The document is kept as it came; what is checked is made from it, the same way every time.
"""

from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from thermocline.contract import draft7
from thermocline.contract.closing import closed
from thermocline.contract.column import (
    EXTRA,
    EXTRA_KIND,
    NULLS,
    NULLS_KIND,
    Assigned,
    Wanted,
    assign,
    decode_columns,
)
from thermocline.contract.contract import Contract
from thermocline.contract.kind import Kind, KindField, KindMapping
from thermocline.contract.pointer import Refusal, pointer_of, refused
from thermocline.contract.reference import written_out
from thermocline.contract.row import has_either, may_be_either
from thermocline.contract.subschema import Json, Node, subschemas
from thermocline.contract.text import encode_text, value_problems
from thermocline.contract.view import View, view_of
from thermocline.contract.vocabulary import refusals_of
from thermocline.errors import Invalid

CONTRACT_BYTES_MAX = 1024 * 1024
PROPERTIES_MAX = 2_000


def parse_contract(
    document: Any,
    previous: Contract | None = None,
    *,
    known: Mapping[str, Json] | None = None,
) -> Contract:
    """Return the contract of a document; its columns go on those of the version before.

    `known` are other documents that it may refer to, by their address. `Invalid` has the fact
    `problems`, each with pointer and reason. Whether the new version may follow the old one is
    not asked here.
    """
    before = previous.assigned if previous else Assigned()
    version = previous.version + 1 if previous else 1
    return _contract(document, version, before, known or {})


def stored_contract(
    document: Json,
    version: int,
    columns: Mapping[str, Any],
    *,
    known: Mapping[str, Json] | None = None,
) -> Contract:
    """Return a contract as it was registered, from its document and its `columns_json`."""
    kept = decode_columns(columns)
    made = _contract(document, version, kept, known or {})
    # The order of keys is lost in a database; that of the columns is kept by their list.
    place = {column.name: index for index, column in enumerate(kept.columns)}
    fields = sorted(made.kind.fields, key=lambda part: place.get(part.name, len(place)))
    kind = Kind("struct", fields=tuple(fields))
    return Contract(document, version, made.mode, made.schema, kind, kept, is_open=made.is_open)


def _contract(document: Any, version: int, before: Assigned, known: Mapping[str, Json]) -> Contract:
    schema = _read(document, known)
    refusals: list[Refusal] = []
    view = view_of(schema)
    kind = _root_kind(view, refusals)
    is_open = view.others is not False or view.is_mixed_object
    wanted = _wanted(view, kind, is_open, refusals)
    if not wanted:
        refusals.append(Refusal("/properties", "an entity that is closed names a property"))
    assigned = assign(wanted, before, refusals)
    if refusals:
        raise refused(refusals)
    mode = str(schema.get("x-compatibility", "backward"))
    contract = Contract(document, version, mode, schema, kind, assigned, is_open=is_open)
    _check_compiles(contract)
    return contract


def _read(document: Any, known: Mapping[str, Json]) -> Json:
    """Return the document as it is checked: draft 2020-12, written out, closed."""
    if not isinstance(document, dict):
        raise refused([Refusal("", "a contract is a JSON object")])
    if broken := value_problems(document):
        raise refused([Refusal(p.pointer, f"not {p.expected}, but {p.got}") for p in broken])
    size_bytes = len(encode_text(document))
    if size_bytes > CONTRACT_BYTES_MAX:
        raise Invalid(
            "the contract is larger than the limit",
            hint="keep long lists of values as entities of a type of their own",
            size_bytes=size_bytes,
            size_bytes_max=CONTRACT_BYTES_MAX,
        )
    modern = {uri: _modern(other) for uri, other in known.items()}
    read = _modern(document)
    _check_grammar(read)
    refusals = refusals_of(read)
    if refusals:
        raise refused(refusals)
    schema = written_out(read, modern)
    schema = {"type": "object", **schema}
    if view_of(schema).type != "object" or view_of(schema).is_nullable:
        raise refused([Refusal("/type", "an entity is an object, and nothing else")])
    return closed(schema)


def _modern(document: Json) -> Json:
    uri = document.get("$schema", draft7.URI_NOW)
    if uri in draft7.URIS:
        return draft7.modern(document)
    if uri not in draft7.URIS_NOW:
        raise refused([Refusal("/$schema", "a contract is in draft 2020-12, or in draft-07")])
    return document


def _check_grammar(document: Json) -> None:
    """Refuse what is no schema at all, such as a type that is none."""
    plain = {word: value for word, value in document.items() if word != "$schema"}
    try:
        jsonschema_rs.meta.validate({**plain, "$schema": draft7.URI_NOW})
    except jsonschema_rs.ValidationError as error:
        reason = f"not a schema: {error.message}"[:300]
        raise refused([Refusal(pointer_of(error.instance_path), reason)]) from error
    except ValueError as error:
        raise refused([Refusal("", f"not a schema: {error}"[:300])]) from error


def _root_kind(view: View, refusals: list[Refusal]) -> Kind:
    mapping = KindMapping(refusals)
    mapping.check_names(list(view.properties), ())
    if len(view.properties) > PROPERTIES_MAX:
        reason = f"more than {PROPERTIES_MAX} properties; put some of them into objects"
        refusals.append(Refusal("/properties", reason))
    fields = []
    for name, node in view.properties.items():
        at = ("properties", name)
        if name.startswith("_"):
            reason = "names that begin with _ are those of the table's own columns"
            refusals.append(Refusal(pointer_of(at), reason))
        kind = mapping.kind_of(node, at)
        fields.append(KindField(name, kind, name in view.required))
    return Kind("struct", fields=tuple(fields))


def _wanted(view: View, kind: Kind, is_open: bool, refusals: list[Refusal]) -> list[Wanted]:
    wanted = []
    for part in kind.fields:
        node = view.properties[part.name]
        is_hot = _said(node, "x-hot") is True
        if is_hot and not part.kind.is_scalar:
            at = pointer_of(("properties", part.name, "x-hot"))
            refusals.append(Refusal(at, f"only a scalar can be hot, and this is {part.kind.name}"))
        wanted.append(Wanted(part, is_hot, int(_said(node, "x-id") or 0)))
        _check_inside(node, ("properties", part.name), refusals)
    if is_open:
        wanted.append(Wanted(KindField(EXTRA, EXTRA_KIND, is_required=False)))
    if any(may_be_either(part) for part in kind.fields) or has_either(kind):
        wanted.append(Wanted(KindField(NULLS, NULLS_KIND, is_required=False)))
    return wanted


def _said(node: Node, word: str) -> Any:
    """Return what a property says, or what one of its parts does."""
    if not isinstance(node, dict):
        return None
    if word in node:
        return node[word]
    parts = [*node.get("allOf", []), *node.get("anyOf", []), *node.get("oneOf", [])]
    return next((found for part in parts if (found := _said(part, word)) is not None), None)


def _check_inside(node: Node, at: tuple[str | int, ...], refusals: list[Refusal]) -> None:
    """Refuse `x-hot` and `x-id` below the root's properties: only those are columns."""
    for steps, inner in subschemas(node):
        here = (*at, *steps)
        is_same_value = steps[0] in ("allOf", "anyOf", "oneOf")
        if isinstance(inner, dict) and not is_same_value:
            for word in ("x-hot", "x-id"):
                if inner.get(word):
                    reason = "only a property of the entity itself has a column of its own"
                    refusals.append(Refusal(pointer_of((*here, word)), reason))
        _check_inside(inner, here, refusals)


def _check_compiles(contract: Contract) -> None:
    try:
        contract.is_fitting({})
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise refused([Refusal("", f"not a schema: {error}"[:300])]) from error
