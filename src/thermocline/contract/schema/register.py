"""Parses a document as a contract: checks it, resolves references, closes it, assigns columns.

In:   a JSON Schema document, and the contract of the previous version
Out:  a `Contract`, or an `Invalid` that names every refusal with its pointer and reason

- All checks run before anything is written; a contract that passes can be stored.
- The document is stored unchanged; the schema that validates is derived from it deterministically.
"""

from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from thermocline.contract.contract import Contract
from thermocline.contract.document.column import (
    EXTRA,
    EXTRA_KIND,
    NULLS,
    NULLS_KIND,
    AssignedColumns,
    WantedColumn,
    assign_ids,
    decode_columns,
)
from thermocline.contract.document.kind import ColumnKind, KindField, KindMapping
from thermocline.contract.document.row import has_either, may_be_either
from thermocline.contract.document.text import encode_text, value_problems
from thermocline.contract.schema import draft7
from thermocline.contract.schema.closing import close_objects
from thermocline.contract.schema.pointer import Refusal, pointer_of, refusal_error
from thermocline.contract.schema.reference import resolve_references
from thermocline.contract.schema.subschema import Json, Node, subschemas
from thermocline.contract.schema.view import SchemaView, view_of
from thermocline.contract.schema.vocabulary import check_pattern_budget, refusals_of
from thermocline.errors import Invalid

CONTRACT_BYTES_MAX = 1024 * 1024
PROPERTIES_MAX = 2_000


def parse_contract(
    document: Any,
    previous: Contract | None = None,
    *,
    known: Mapping[str, Json] | None = None,
) -> Contract:
    """Return the contract of a document; its columns continue those of the previous version.

    `known` are other documents that it may refer to, by their URI. `Invalid` has the fact
    `problems`, each with pointer and reason. Compatibility with the previous version is not
    checked here.
    """
    before = previous.assigned if previous else AssignedColumns()
    version = previous.version + 1 if previous else 1
    return _make_contract(document, version, before, known or {})


def restore_contract(
    document: Json,
    version: int,
    columns: Mapping[str, Any],
    *,
    known: Mapping[str, Json] | None = None,
) -> Contract:
    """Return a registered contract from its document and its `columns_json`."""
    kept = decode_columns(columns)
    made = _make_contract(document, version, kept, known or {})
    # A database does not keep the order of keys; the list of columns keeps the order of columns.
    place = {column.name: index for index, column in enumerate(kept.columns)}
    fields = sorted(made.kind.fields, key=lambda part: place.get(part.name, len(place)))
    kind = ColumnKind("struct", fields=tuple(fields))
    return Contract(document, version, made.mode, made.schema, kind, kept, is_open=made.is_open)


def _make_contract(
    document: Any, version: int, before: AssignedColumns, known: Mapping[str, Json]
) -> Contract:
    schema = _read_schema(document, known)
    refusals: list[Refusal] = []
    view = view_of(schema)
    kind = _root_kind(view, refusals)
    is_open = view.others is not False or view.is_mixed_object
    wanted = _wanted_columns(view, kind, is_open, refusals)
    if not wanted:
        refusals.append(Refusal("/properties", "a closed entity needs at least one property"))
    assigned = assign_ids(wanted, before, refusals)
    if refusals:
        raise refusal_error(refusals)
    mode = str(schema.get("x-compatibility", "backward"))
    contract = Contract(document, version, mode, schema, kind, assigned, is_open=is_open)
    _check_compiles(contract)
    return contract


def _read_schema(document: Any, known: Mapping[str, Json]) -> Json:
    """Return the schema that validates: draft 2020-12, references written out, closed."""
    if not isinstance(document, dict):
        raise refusal_error([Refusal("", "the contract is not a JSON object")])
    if broken := value_problems(document):
        raise refusal_error([Refusal(p.pointer, f"not {p.expected}, but {p.got}") for p in broken])
    size_bytes = len(encode_text(document))
    if size_bytes > CONTRACT_BYTES_MAX:
        raise Invalid(
            "the contract is larger than the limit",
            hint="keep long lists of values as entities of a separate type",
            size_bytes=size_bytes,
            size_bytes_max=CONTRACT_BYTES_MAX,
        )
    modern = {uri: _modernize(other) for uri, other in known.items()}
    read = _modernize(document)
    _check_grammar(read)
    refusals = refusals_of(read)
    if refusals:
        raise refusal_error(refusals)
    schema = resolve_references(read, modern)
    # A pattern behind references is compiled once for each of them.
    if refusals := check_pattern_budget(schema):
        raise refusal_error(refusals)
    schema = {"type": "object", **schema}
    if view_of(schema).type != "object" or view_of(schema).is_nullable:
        raise refusal_error([Refusal("/type", "an entity must be an object")])
    return close_objects(schema)


def _modernize(document: Json) -> Json:
    uri = document.get("$schema", draft7.URI_NOW)
    if uri in draft7.URIS:
        return draft7.modernize(document)
    if uri not in draft7.URIS_NOW:
        raise refusal_error(
            [Refusal("/$schema", "a contract must be in draft 2020-12 or draft-07")]
        )
    return document


def _check_grammar(document: Json) -> None:
    """Refuse documents that are not valid schemas, for example because of an unknown type."""
    plain = {word: value for word, value in document.items() if word != "$schema"}
    try:
        jsonschema_rs.meta.validate({**plain, "$schema": draft7.URI_NOW})
    except jsonschema_rs.ValidationError as error:
        reason = f"not a schema: {error.message}"[:300]
        raise refusal_error([Refusal(pointer_of(error.instance_path), reason)]) from error
    except ValueError as error:
        raise refusal_error([Refusal("", f"not a schema: {error}"[:300])]) from error


def _root_kind(view: SchemaView, refusals: list[Refusal]) -> ColumnKind:
    mapping = KindMapping(refusals)
    mapping.check_names(list(view.properties), ())
    if len(view.properties) > PROPERTIES_MAX:
        reason = f"more than {PROPERTIES_MAX} properties; put some of them into objects"
        refusals.append(Refusal("/properties", reason))
    fields = []
    for name, node in view.properties.items():
        at = ("properties", name)
        if name.startswith("_"):
            reason = "names that begin with _ are reserved for columns of the table"
            refusals.append(Refusal(pointer_of(at), reason))
        kind = mapping.kind_of(node, at)
        fields.append(KindField(name, kind, name in view.required))
    return ColumnKind("struct", fields=tuple(fields))


def _wanted_columns(
    view: SchemaView, kind: ColumnKind, is_open: bool, refusals: list[Refusal]
) -> list[WantedColumn]:
    wanted = []
    for part in kind.fields:
        node = view.properties[part.name]
        is_hot = _find_keyword(node, "x-hot") is True
        if is_hot and not part.kind.is_scalar:
            at = pointer_of(("properties", part.name, "x-hot"))
            refusals.append(Refusal(at, f"only a scalar can be hot, and this is {part.kind.name}"))
        wanted.append(WantedColumn(part, is_hot, int(_find_keyword(node, "x-id") or 0)))
        _check_inside(node, ("properties", part.name), refusals)
    if is_open:
        wanted.append(WantedColumn(KindField(EXTRA, EXTRA_KIND, is_required=False)))
    if any(may_be_either(part) for part in kind.fields) or has_either(kind):
        wanted.append(WantedColumn(KindField(NULLS, NULLS_KIND, is_required=False)))
    return wanted


def _find_keyword(node: Node, word: str) -> Any:
    """Return the value of a keyword in a property or in one of its combined schemas."""
    if not isinstance(node, dict):
        return None
    if word in node:
        return node[word]
    parts = [*node.get("allOf", []), *node.get("anyOf", []), *node.get("oneOf", [])]
    return next((found for part in parts if (found := _find_keyword(part, word)) is not None), None)


def _check_inside(node: Node, at: tuple[str | int, ...], refusals: list[Refusal]) -> None:
    """Refuse `x-hot` and `x-id` below the root's properties: only root properties are columns."""
    for steps, inner in subschemas(node):
        here = (*at, *steps)
        is_same_value = steps[0] in ("allOf", "anyOf", "oneOf")
        if isinstance(inner, dict) and not is_same_value:
            for word in ("x-hot", "x-id"):
                if inner.get(word):
                    reason = "only a property of the entity itself has a column"
                    refusals.append(Refusal(pointer_of((*here, word)), reason))
        _check_inside(inner, here, refusals)


def _check_compiles(contract: Contract) -> None:
    try:
        contract.is_fitting({})
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise refusal_error([Refusal("", f"not a schema: {error}"[:300])]) from error
