"""Merges a patch into a document, as RFC 7386 defines.

In:   a document and a merge patch
Out:  the merged document; the inputs stay unchanged

A null in the patch removes a property; an object merges; any other value replaces, also a list.
"""

from typing import Any

from thermocline.errors import Invalid

NESTING_MAX = 100


def merge_patch(document: Any, patch: Any, *, depth: int = 0) -> Any:
    """Return the document with the patch applied."""
    if not isinstance(patch, dict):
        return patch
    if depth > NESTING_MAX:
        raise Invalid("the patch is nested too deep", hint="flatten it", nesting_max=NESTING_MAX)
    made = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge_patch(made.get(name), value, depth=depth + 1)
    return made
