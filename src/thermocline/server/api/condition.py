"""Conditions that come in headers: which version of an entity must be there, or is known already.

In:   `If-Match`, `If-None-Match`
Out:  a version, or whether one matches; `Invalid` for what is no version

- A version is told as `ETag: "7"` and taken as it was told.
- A tag that no version has is a failed precondition, not a mistake.
"""

import re

from starlette.datastructures import Headers

from thermocline.errors import Conflict, Invalid

_VERSION = re.compile(r'"(\d{1,18})"')
_TAG = re.compile(r'(?:W/)?"[^"]*"')


def tag_of(ver: int) -> str:
    """Return a version as a header has it."""
    return f'"{ver}"'


def if_match(headers: Headers, *, has_star: bool) -> int | None:
    """Return the version that must still be there, or None when any will do.

    `has_star` says that the method needs the entity to be there anyhow, so that `*` adds nothing.
    """
    given = ", ".join(headers.getlist("if-match")).strip()
    if not given or (given == "*" and has_star):
        return None
    found = _VERSION.fullmatch(given)
    if found is not None:
        return int(found.group(1))
    if _TAG.fullmatch(given):
        hint = "read it again, then decide"
        raise Conflict("the entity is not the one you have seen", hint=hint, if_match=given[:80])
    hint = 'send one version as ETag told it, such as If-Match: "7"'
    raise Invalid("not a version to match", hint=hint, if_match=given[:80])


def is_known(headers: Headers, ver: int) -> bool:
    """Tell whether the caller has this version already."""
    given = ", ".join(headers.getlist("if-none-match"))
    tags = [tag.strip().removeprefix("W/") for tag in given.split(",")]
    return "*" in tags or tag_of(ver) in tags


def must_be_new(headers: Headers) -> bool:
    """Tell whether nothing may be there yet; `Invalid` for anything but `*`."""
    given = ", ".join(headers.getlist("if-none-match")).strip()
    if not given:
        return False
    if given != "*":
        hint = "send If-None-Match: * to create, If-Match to replace"
        raise Invalid("a write takes no other condition here", hint=hint)
    return True
