"""Restores the negative zeros of JSON rows: a fast parser reads `-0` as the integer 0.

In:   the text of one JSON value, and the value that a parser returned for it
Out:  that value, with `-0` as a negative zero; only a text that may have one is parsed again
"""

import json
import re
from collections.abc import Callable
from typing import Any

_NEGATIVE_ZERO = re.compile(rb"[\[:,\s]-0(?![\d.eE])")


def restore_negative_zeros(
    data: bytes, value: Any, parse_float: Callable[[str], Any] = float
) -> Any:
    """Return a parsed value with its negative zeros as doubles."""
    if _NEGATIVE_ZERO.search(data) is None:
        return value
    return json.loads(data, parse_int=_parse_integer, parse_float=parse_float)


def _parse_integer(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)
