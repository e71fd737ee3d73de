"""Operations on entities, and their results.

In:   a key, a document or a patch, the version that the client has read; or the same as JSON
Out:  well-formed `Operation`s; `WriteResult` or an error for each

    {"op": "create", "document": {...}}   {"op": "replace", "id": "a", "document": {...}}
    {"op": "patch", "id": "a", "document": {...}, "if_match": 3}   {"op": "delete", "id": "a"}

- A key is checked by `names.py`: text, never null, never empty.
"""

import enum
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from thermocline.contract.document.text import decode
from thermocline.errors import Invalid
from thermocline.format.argument import check_flag, wrong_kind
from thermocline.names import parse_id

PATCH_NESTING_MAX = 100
_OPERATION_FIELDS = ("op", "id", "document", "if_match")
_OPERATION_HINT = 'pass a dict: {"op": "create", "id": "a", "document": {...}}'


class OperationKind(enum.Enum):
    """The kind of an operation; the value is its word in an answer."""

    CREATE = "created"
    REPLACE = "replaced"
    PATCH = "patched"
    DELETE = "deleted"

    @property
    def verb(self) -> str:
        """Its word in a request."""
        return self.name.lower()


_KINDS = {kind.verb: kind for kind in OperationKind}


@dataclass(frozen=True, slots=True)
class Operation:
    """One write of one entity. If `if_match` is set, the entity must have that version.

    The document or patch is a JSON value, or JSON text as bytes.
    """

    kind: OperationKind
    id: str
    document: Any = None
    if_match: int | None = None

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
    """The result of one operation; a replace without an existing entity is a create."""

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
    if kind is not OperationKind.DELETE and "document" not in given:
        raise Invalid("the operation has no document", hint="send one", op=word)
    if key is None and kind is OperationKind.CREATE:
        key = new_key()
    return Operation(kind, parse_id(key), given.get("document"), given.get("if_match"))


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
