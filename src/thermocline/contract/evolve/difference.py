"""Compares two documents of a contract.

In:   two JSON Schema documents
Out:  `DocumentChange`s with their pointers, in the order of the documents

- Lists without a meaningful order (`required`, `enum`, `type`) are compared as sets.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thermocline.contract.document.text import encode_text
from thermocline.contract.schema.pointer import pointer_of
from thermocline.contract.schema.subschema import Json, Steps

_SETS = frozenset({"required", "enum", "type"})


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """One difference: `change` is added, removed or changed."""

    pointer: str
    change: str
    before: Any = None
    after: Any = None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON, without the side that does not exist."""
        made = {"pointer": self.pointer, "change": self.change}
        if self.change != "added":
            made["before"] = self.before
        if self.change != "removed":
            made["after"] = self.after
        return made


def diff_documents(old: Json, new: Json) -> list[DocumentChange]:
    """Return what was added, removed and changed."""
    return list(_diff_values(old, new, ()))


def _diff_values(old: Any, new: Any, at: Steps) -> Iterator[DocumentChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old:
            if key not in new:
                yield DocumentChange(pointer_of((*at, key)), "removed", before=old[key])
        for key, value in new.items():
            if key not in old:
                yield DocumentChange(pointer_of((*at, key)), "added", after=value)
            else:
                yield from _diff_values(old[key], value, (*at, key))
    elif at and at[-1] in _SETS and (isinstance(old, list) or isinstance(new, list)):
        yield from _diff_sets(_as_list(old), _as_list(new), at)
    elif encode_text(old) != encode_text(new):
        yield DocumentChange(pointer_of(at), "changed", old, new)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _diff_sets(old: list[Any], new: list[Any], at: Steps) -> Iterator[DocumentChange]:
    held, wanted = ({encode_text(value): value for value in side} for side in (old, new))
    for text, value in held.items():
        if text not in wanted:
            yield DocumentChange(pointer_of(at), "removed", before=value)
    for text, value in wanted.items():
        if text not in held:
            yield DocumentChange(pointer_of(at), "added", after=value)
