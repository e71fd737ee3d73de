"""How much a JSON text holds, before any of it is made into values.

In:   the bytes of a body
Out:  how many values it may have at most

- Objects, arrays and what stands between commas are counted, outside of texts. A body that is no
  JSON has some number, too; decoding it says what is wrong with it.
- The memory that counting takes is that of one block, however large the body is.
"""

import numpy as np
import numpy.typing as npt

BLOCK_BYTES = 1 << 20
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_COUNTED = np.zeros(256, np.bool_)
_COUNTED[[ord(","), ord("{"), ord("[")]] = True

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.intp]


def json_values_max(data: bytes) -> int:
    """Return a number that the values in a JSON text, or in JSON lines, do not exceed."""
    whole = np.frombuffer(data, np.uint8)
    count, is_inside, backslashes = 1, False, 0
    for start in range(0, len(whole), BLOCK_BYTES):
        block = whole[start : start + BLOCK_BYTES]
        quotes, backslashes = _quotes(block, backslashes)
        marks = np.flatnonzero(_COUNTED[block])
        # A mark is in a text when an odd number of quotes is before it.
        before = np.searchsorted(quotes, marks) + is_inside
        count += int(np.count_nonzero(before & 1 == 0))
        is_inside = bool((is_inside + len(quotes)) & 1)
    return count


def _quotes(block: Bytes, backslashes: int) -> tuple[Places, int]:
    """Return where texts begin and end, and how many backslashes the block ends with.

    `backslashes` is how many the block before ended with. A quote after an odd number is escaped.
    """
    quotes = np.flatnonzero(block == _QUOTE)
    others = np.flatnonzero(block != _BACKSLASH)
    if not len(others):
        return quotes, backslashes + len(block)
    # The nearest byte before each quote that is no backslash; -1 - backslashes when there is none.
    nearest = np.searchsorted(others, quotes) - 1
    places = np.where(nearest >= 0, others[np.maximum(nearest, 0)], -1 - backslashes)
    is_escaped = (quotes - places - 1) & 1 == 1
    return quotes[~is_escaped], len(block) - 1 - int(others[-1])
