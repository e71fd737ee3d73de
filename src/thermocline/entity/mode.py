"""How a caller wants to be answered when a half of an entity type is down.

In:   a word
Out:  a `Mode`; what each gives is in `answer.py`
"""

import enum

from thermocline.errors import Invalid


class Mode(enum.Enum):
    """How to answer when a half is down."""

    STRICT = "strict"
    BEST_EFFORT = "best_effort"
    CACHED = "cached"


def mode_of(given: "Mode | str") -> Mode:
    """Return the mode of this name; `Invalid` names those there are."""
    try:
        return Mode(given)
    except ValueError as error:
        names = ", ".join(mode.value for mode in Mode)
        raise Invalid("not a way to answer", hint=f"use one of {names}", mode=given) from error
