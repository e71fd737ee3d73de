"""Resolves references: replaces each `$ref` by its target, except in recursion.

In:   a document in draft 2020-12, and other documents by their URI
Out:  the same contract with every reference written out; recursion is a `$ref` into `$defs`

- Nothing is fetched: a URI that is not among the given documents is refused.
- Keywords beside a `$ref` apply together with its target.
- The result is bounded: references that multiply are refused before they exhaust the memory.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from thermocline.contract.schema.pointer import Refusal, pointer_of, refusal_error, steps_of
from thermocline.contract.schema.subschema import (
    Json,
    Node,
    Steps,
    subschemas,
    with_subschemas,
)
from thermocline.contract.schema.vocabulary import ANNOTATIONS

NODES_MAX = 20_000
STEPS_MAX = 64
REFERENCES_MAX = 32
_ROOT = "#"


def resolve_references(document: Json, known: Mapping[str, Json]) -> Json:
    """Return the document with all references replaced, except recursive ones.

    `Invalid` names every reference without a target, or with a target outside the given documents.
    """
    writer = _ReferenceResolver(document, known)
    made = writer.write_out(document, (), (_ROOT,))
    if writer.refusals:
        raise refusal_error(writer.refusals)
    assert isinstance(made, dict)
    if _ROOT in writer.recursive:
        writer.definitions[writer.names[_ROOT]] = made
    if not writer.definitions:
        return made
    return {**made, "$defs": writer.definitions}


class _ReferenceResolver:
    def __init__(self, document: Json, known: Mapping[str, Json]) -> None:
        self.document = document
        self.known = known
        self.address = str(document.get("$id", ""))
        self.names: dict[str, str] = {}
        self.recursive: set[str] = set()
        self.definitions: dict[str, Node] = {}
        self.refusals: list[Refusal] = []
        self.anchors: dict[str, dict[str, Node]] = {}
        self.count = 0

    def write_out(self, node: Node, at: Steps, under: tuple[str, ...], address: str = "") -> Node:
        self.count += 1
        if self.count > NODES_MAX or len(at) > STEPS_MAX or len(under) > REFERENCES_MAX:
            reason = (
                f"the resolved references have more than {NODES_MAX} schemas, a chain of more than "
                f"{REFERENCES_MAX} references, or more than {STEPS_MAX} levels"
            )
            raise refusal_error([*self.refusals, Refusal(pointer_of(at)[:80], reason)])
        if not isinstance(node, dict):
            return node
        dropped = {"$defs", "definitions", "$anchor", "$schema", "$id"}
        kept = {word: value for word, value in node.items() if word not in dropped}
        reference = kept.pop("$ref", None)
        made = with_subschemas(
            kept, lambda steps, inner: self.write_out(inner, (*at, *steps), under, address)
        )
        if reference is None:
            return made
        return self._follow_reference(str(reference), made, at, under, address)

    def _follow_reference(
        self, reference: str, beside: Json, at: Steps, under: tuple[str, ...], address: str
    ) -> Node:
        target_address, target, key = self._find_target(reference, at, address)
        if key in under or key in self.definitions:
            self.recursive.add(key)
            return {**beside, "$ref": f"#/$defs/{self._definition_name(key)}"}
        found = self.write_out(target, at, (*under, key), target_address)
        if key in self.recursive:
            self.definitions[self._definition_name(key)] = found
            return {**beside, "$ref": f"#/$defs/{self._definition_name(key)}"}
        if isinstance(found, dict) and all(
            word in ANNOTATIONS or word[:2] == "x-" for word in beside
        ):
            return {**found, **beside}
        return {**beside, "allOf": [*beside.get("allOf", []), found]}

    def _definition_name(self, key: str) -> str:
        return self.names.setdefault(key, f"r{len(self.names)}")

    def _find_target(self, reference: str, at: Steps, address: str) -> tuple[str, Node, str]:
        """Return the URI of a reference's document, the schema it names, and the schema's key."""
        joined = urljoin(address or self.address, reference)
        base, fragment = urldefrag(joined if not reference.startswith("#") else reference)
        if reference.startswith("#"):
            base = address
        fragment = unquote(fragment)
        if base in ("", urldefrag(self.address)[0]):
            base, document = "", self.document
        elif base in self.known:
            document = self.known[base]
        else:
            return self._refuse_target(
                at,
                "this reference would have to be fetched; refer only to the contract itself "
                "and to registered documents",
            )
        found = self._find_fragment(document, base, fragment)
        if not isinstance(found, dict | bool):
            return self._refuse_target(at, "there is no schema at that place")
        return base, found, f"{base}#{fragment}"

    def _refuse_target(self, at: Steps, reason: str) -> tuple[str, Node, str]:
        self.refusals.append(Refusal(pointer_of((*at, "$ref")), reason))
        return "", True, f"nowhere {len(self.refusals)}"

    def _find_fragment(self, document: Json, base: str, fragment: str) -> Any:
        if fragment and not fragment.startswith("/"):
            if base not in self.anchors:
                self.anchors[base] = _find_anchors(document)
            return self.anchors[base].get(fragment)
        found: Any = document
        for step in steps_of(fragment):
            if isinstance(found, list) and step.isdigit() and int(step) < len(found):
                found = found[int(step)]
            elif isinstance(found, dict) and step in found:
                found = found[step]
            else:
                return None
        return found


def _find_anchors(document: Json) -> dict[str, Node]:
    found: dict[str, Node] = {}
    waiting: list[Node] = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict) and isinstance(node.get("$anchor"), str):
            found[node["$anchor"]] = node
        waiting += [inner for _, inner in subschemas(node)]
    return found
