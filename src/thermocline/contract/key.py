"""The ids of entities: what may be one.

In:   what a caller gives for an id
Out:  text, or `Invalid`

- An id is never null and never empty: a null in the set of dirty keys would hide every row.
- Ids that look the same are the same: no blanks at the ends, no control characters.
"""

from typing import Any

from thermocline.errors import Invalid

ID_LENGTH_MAX = 255


def parse_id(value: Any) -> str:
    """Return the id; `Invalid` for null, for what is no text, and for text that cannot be one."""
    if not isinstance(value, str):
        reason = "null" if value is None else type(value).__name__
        raise _no_id("an id is text", reason)
    if not value or len(value) > ID_LENGTH_MAX:
        raise _no_id("an id has 1 to 255 characters", f"{len(value)} characters")
    if value != value.strip() or not value.isprintable():
        raise _no_id("an id is printable, without blanks at its ends", ascii(value)[:80])
    return value


def _no_id(expected: str, got: str) -> Invalid:
    problem = {"pointer": "/id", "expected": expected, "got": got}
    return Invalid("not an id of an entity", hint="give text that is not empty", problems=[problem])
