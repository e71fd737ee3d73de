"""Operations on entities, and their results.

In:   a key, a document or a patch, the version that the client has read; or the same as JSON
Out:  well-formed `Operation`s; `WriteResult` or an error for each

    {"op": "create", "document": {...}}   {"op": "replace", "id": "a", "document": {...}}
    {"op": "patch", "id": "a", "document": {...}, "if_match": 3}   {"op": "delete", "id": "a"}
    {"op": "upsert", "id": "a", "document": {...}}        {"op": "check", "id": "a", "if_match": 3}

- `upsert` merges like a patch if the entity exists, and creates it otherwise. `check` writes
  nothing: the transaction fails unless the entity exists, with the version if one is named.
- A key is checked by `names.py`: text, never null, never empty.
"""

import enum
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from thermocline.contract.document.text import decode
from thermocline.errors import Invalid
from thermocline.format.argument import check_flag, check_text, wrong_kind
from thermocline.names import OPERATIONS_MAX, parse_id

PATCH_NESTING_MAX = 100
_OPERATION_FIELDS = ("op", "id", "document", "if_match")
TYPES_MAX = 100
_TYPED_HINT = 'pass dicts: {"type": "order", "op": "create", "document": {...}}'
_OPERATION_HINT = 'pass a dict: {"op": "create", "id": "a", "document": {...}}'


class OperationKind(enum.Enum):
    """The kind of an operation; the value is its word in an answer."""

    CREATE = "created"
    REPLACE = "replaced"
    PATCH = "patched"
    DELETE = "deleted"
    UPSERT = "upserted"
    CHECK = "checked"

    @property
    def verb(self) -> str:
        """Its word in a request."""
        return self.name.lower()


_KINDS = {kind.verb: kind for kind in OperationKind}
_WITHOUT_DOCUMENT = (OperationKind.DELETE, OperationKind.CHECK)


@dataclass(frozen=True, slots=True)
class Operation:
    """One write of one entity. If `if_match` is set, the entity must have that version.

    The document or patch is a JSON value, or JSON text as bytes. `has_new_key` says that the key
    was generated, so that a retry of the same request has another one.
    """

    kind: OperationKind
    id: str
    document: Any = None
    if_match: int | None = None
    has_new_key: bool = False

    def __post_init__(self) -> None:
        parse_id(self.id)
        match = self.if_match
        if match is not None and (isinstance(match, bool) or not isinstance(match, int)):
            hint = "pass the version that a read or write returned"
            raise Invalid("not a version to match", hint=hint, if_match=match)

    @property
    def value(self) -> Any:
        """The document or patch as a value."""
        return decode(self.document) if isinstance(self.document, bytes) else self.document


class StoredEntity(NamedTuple):
    """One stored entity. A tuple: a page makes a hundred, and frozen dataclasses are slow."""

    id: str
    ver: int
    schema_version: int
    written_at: datetime
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of one operation; a replace or upsert of a missing entity is a create."""

    id: str
    ver: int
    deed: OperationKind


def new_key() -> str:
    """Return a new unique key: a UUID of version 7, which sorts by its creation time."""
    value = int(time.time() * 1000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return str(uuid.UUID(int=value & ~(0x3 << 62) | 0x2 << 62))


def _list_operations(given: Any) -> list[Any]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | type)
    if not is_list:
        hint = "pass a list of operations, each an Operation or a dict"
        raise wrong_kind("not operations", hint, "operations", given)
    return list(given)


def parse_operations(given: Any, *, atomic: bool) -> list[Operation | Invalid]:
    """Parse operations given as values or as JSON, in order.

    A malformed operation is replaced by its error; with `atomic` the error is raised.
    """
    check_flag(atomic, "atomic")
    results: list[Operation | Invalid] = []
    for place, one in enumerate(_list_operations(given)):
        try:
            results.append(one if isinstance(one, Operation) else parse_operation(one))
        except Invalid as error:
            if atomic:
                error.facts.setdefault("item", place)
                raise
            results.append(error)
    return results


def parse_operation(given: Any) -> Operation:
    """Return the operation in a JSON object; a create without an id gets a new one."""
    if not isinstance(given, Mapping):
        raise wrong_kind("not an operation", _OPERATION_HINT, "operations", given)
    word = given.get("op")
    if not isinstance(word, str) or word not in _KINDS:
        hint = f"use one of {', '.join(_KINDS)}"
        raise Invalid("unknown operation", hint=hint, op=str(word)[:80])
    unknown = [str(name)[:80] for name in given if name not in _OPERATION_FIELDS]
    if unknown:
        raise Invalid("the operation has unknown fields", hint=_OPERATION_HINT, fields=unknown)
    kind, key = _KINDS[word], given.get("id")
    if kind not in _WITHOUT_DOCUMENT and "document" not in given:
        raise Invalid("the operation has no document", hint="send one", op=word)
    is_new = key is None and kind is OperationKind.CREATE
    key = new_key() if is_new else parse_id(key)
    return Operation(kind, key, given.get("document"), given.get("if_match"), is_new)


def check_operation_count(count: int) -> None:
    """Raise `Invalid` for more operations than one transaction may have."""
    if count > OPERATIONS_MAX:
        raise Invalid(
            "too many operations at once",
            hint="send them in smaller parts",
            operations=count,
            operations_max=OPERATIONS_MAX,
        )


@dataclass(frozen=True, slots=True)
class TypedOperation:
    """One operation of a transaction, with the name of its type."""

    type: str
    operation: Operation


def parse_typed_operations(given: Any) -> list[TypedOperation]:
    """Return the operations in a list of dicts; `Invalid` with the fact `item` for a bad one."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise wrong_kind("not operations", _TYPED_HINT, "operations", given)
    made = []
    for place, one in enumerate(given):
        try:
            made.append(one if isinstance(one, TypedOperation) else _parse_typed(one))
        except Invalid as error:
            error.facts.setdefault("item", place)
            raise
    check_operation_count(len(made))
    names = {one.type for one in made}
    if len(names) > TYPES_MAX:
        hint = "split it into smaller transactions"
        raise Invalid("too many types in one transaction", hint=hint, types_max=TYPES_MAX)
    return made


def _parse_typed(given: Any) -> TypedOperation:
    if not isinstance(given, Mapping):
        raise wrong_kind("not an operation", _TYPED_HINT, "operations", given)
    name = given.get("type")
    if name is None:
        raise Invalid("the operation has no type", hint=_TYPED_HINT)
    rest = {key: value for key, value in given.items() if key != "type"}
    return TypedOperation(check_text(name, "type"), parse_operation(rest))


def merge_patch(document: Any, patch: Any, *, depth: int = 0) -> Any:
    """Return the document with the patch applied as RFC 7386 defines; the inputs stay unchanged.

    A null in the patch removes a property; an object merges; any other value replaces, also a list.
    """
    if not isinstance(patch, dict):
        return patch
    if depth > PATCH_NESTING_MAX:
        raise Invalid(
            "the patch is nested too deep", hint="flatten it", nesting_max=PATCH_NESTING_MAX
        )
    made = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge_patch(made.get(name), value, depth=depth + 1)
    return made
