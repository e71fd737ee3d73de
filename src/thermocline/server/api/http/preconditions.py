"""Preconditions in headers: the version that an entity must have, or that the client has.

In:   `If-Match`, `If-None-Match`
Out:  a version, or whether one matches; `Invalid` for a malformed version

- A version is sent as `ETag: "7"`, and accepted in the same form.
- A well-formed tag that no version can have is a failed precondition (412), not `Invalid`.
"""

import re

from starlette.datastructures import Headers

from thermocline.errors import Invalid, PreconditionFailed

_VERSION = re.compile(r'"(\d{1,18})"')
_TAG = re.compile(r'(?:W/)?"[^"]*"')


def etag(ver: int) -> str:
    """Return a version as an entity tag."""
    return f'"{ver}"'


def parse_if_match(headers: Headers, *, has_star: bool) -> int | None:
    """Return the version that the entity must have, or None for any version.

    `has_star` says that the method requires an existing entity anyway, so `*` has no effect.
    """
    given = ", ".join(headers.getlist("if-match")).strip()
    if not given or (given == "*" and has_star):
        return None
    found = _VERSION.fullmatch(given)
    if found is not None:
        return int(found.group(1))
    if _TAG.fullmatch(given):
        hint = "read the entity again, then decide"
        raise PreconditionFailed("the entity has another version", hint=hint, if_match=given[:80])
    hint = 'send one version as in ETag, such as If-Match: "7"'
    raise Invalid("If-Match has no valid version", hint=hint, if_match=given[:80])


def is_known(headers: Headers, ver: int) -> bool:
    """Tell whether the client has this version already."""
    given = ", ".join(headers.getlist("if-none-match"))
    tags = [tag.strip().removeprefix("W/") for tag in given.split(",")]
    return "*" in tags or etag(ver) in tags


def must_be_new(headers: Headers) -> bool:
    """Tell whether the entity must not exist yet; `Invalid` for anything but `*`."""
    given = ", ".join(headers.getlist("if-none-match")).strip()
    if not given:
        return False
    if given != "*":
        hint = "send If-None-Match: * to create, If-Match to replace"
        raise Invalid("If-None-Match of a write is not *", hint=hint)
    return True
