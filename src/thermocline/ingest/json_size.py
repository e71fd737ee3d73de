"""Counts the values of a JSON text before it is decoded.

In:   the bytes of a body
Out:  an upper bound of the number of its values

- It counts objects, arrays and commas, outside of strings. Malformed JSON gets some number, too;
  the decoder reports what is wrong with it.
- Counting uses the memory of one block, for a body of any size.
"""

import numpy as np
import numpy.typing as npt

BLOCK_BYTES = 1 << 20
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_COUNTED = np.zeros(256, np.bool_)
_COUNTED[[ord(","), ord("{"), ord("[")]] = True

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.intp]


def json_values_max(data: bytes) -> int:
    """Return an upper bound of the number of values in a JSON text, or in JSON lines."""
    whole = np.frombuffer(data, np.uint8)
    count, is_inside, backslashes = 1, False, 0
    for start in range(0, len(whole), BLOCK_BYTES):
        block = whole[start : start + BLOCK_BYTES]
        quotes, backslashes = _quotes(block, backslashes)
        marks = np.flatnonzero(_COUNTED[block])
        # A mark is inside a string if the number of quotes before it is odd.
        before = np.searchsorted(quotes, marks) + is_inside
        count += int(np.count_nonzero(before & 1 == 0))
        is_inside = bool((is_inside + len(quotes)) & 1)
    return count


def _quotes(block: Bytes, backslashes: int) -> tuple[Positions, int]:
    """Return the positions of quotes that delimit strings, and the block's trailing backslashes.

    `backslashes` is the number of trailing ones of the block before. A quote after an odd number
    is escaped.
    """
    quotes = np.flatnonzero(block == _QUOTE)
    others = np.flatnonzero(block != _BACKSLASH)
    if not len(others):
        return quotes, backslashes + len(block)
    # The last other byte than a backslash before each quote; -1 - backslashes if there is none.
    nearest = np.searchsorted(others, quotes) - 1
    places = np.where(nearest >= 0, others[np.maximum(nearest, 0)], -1 - backslashes)
    is_escaped = (quotes - places - 1) & 1 == 1
    return quotes[~is_escaped], len(block) - 1 - int(others[-1])
