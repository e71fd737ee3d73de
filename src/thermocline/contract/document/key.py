"""Checks the ids of entities.

In:   a value from a caller
Out:  text, or `Invalid`

- An id is never null and never empty: a null in the set of dirty keys would hide every row.
- Ids that look the same are the same: no white space at the ends, no control characters.
"""

from typing import Any

from thermocline.errors import Invalid
from thermocline.names import ENTITY_ID_LENGTH_MAX


def parse_id(value: Any) -> str:
    """Return the id; `Invalid` for null, for values that are not text, and for invalid text."""
    if not isinstance(value, str):
        reason = "null" if value is None else type(value).__name__
        raise _id_error("an id is text", reason)
    if not value or len(value) > ENTITY_ID_LENGTH_MAX:
        raise _id_error("an id has 1 to 255 characters", f"{len(value)} characters")
    if value != value.strip() or not value.isprintable():
        raise _id_error("an id is printable, without blanks at its ends", ascii(value)[:80])
    return value


def _id_error(expected: str, got: str) -> Invalid:
    problem = {"pointer": "/id", "expected": expected, "got": got}
    hint = "give printable text of 1 to 255 characters, without blanks at its ends"
    return Invalid("invalid entity id", hint=hint, problems=[problem])
