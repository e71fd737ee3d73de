"""The read modes: how to answer when PostgreSQL or the lake is down.

In:   the name of a mode
Out:  a `Mode`; `answer.py` defines the answers
"""

import enum

from thermocline.errors import Invalid


class ReadMode(enum.Enum):
    """How to answer when PostgreSQL or the lake is down."""

    STRICT = "strict"
    BEST_EFFORT = "best_effort"
    CACHED = "cached"


def mode_of(given: "ReadMode | str") -> ReadMode:
    """Return the mode of this name; `Invalid` for an unknown name."""
    try:
        return ReadMode(given)
    except ValueError as error:
        names = ", ".join(mode.value for mode in ReadMode)
        raise Invalid("unknown read mode", hint=f"use one of {names}", mode=given) from error
