"""The change ids that one flush of entities contains, as they stand in a commit.

In:   ids of changes, in any order
Out:  the base64 text of a 64-bit roaring bitmap in its portable form, and back

- Ids are near each other but not dense, and never assumed to be: a sequence leaves gaps, and
  transactions commit in another order than they took their ids.
- A bitmap of them is small: at most two bytes an id, a few bytes for a dense stretch. So they
  need no file of their own, and a commit cannot name one that is missing.
"""

import base64
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from thermocline.errors import Corruption, Overloaded

CHANGES_BYTES_MAX = 32 << 20


def encode_changes(ids: Iterable[int]) -> str:
    """Return change ids as they stand in a commit, "" for none; `Overloaded` past 32 MB."""
    held = BitMap64(ids)
    if not held:
        return ""
    held.run_optimize()
    data = held.serialize()
    if len(data) > CHANGES_BYTES_MAX:
        raise Overloaded(
            "one flush has too many changes",
            hint="export more often, or raise the number of keys that may be dirty less",
            changes=len(held),
            size_bytes=len(data),
            size_bytes_max=CHANGES_BYTES_MAX,
        )
    return base64.b64encode(data).decode()


def decode_changes(text: str) -> npt.NDArray[np.int64]:
    """Return the change ids in ascending order; `Corruption` when they cannot be read."""
    if not text:
        return np.empty(0, dtype=np.int64)
    try:
        held = BitMap64.deserialize(base64.b64decode(text, validate=True))
    except (ValueError, RuntimeError) as error:
        raise Corruption(
            "not the change ids of a flush", hint="restore the commit from a copy"
        ) from error
    return np.fromiter(held, dtype=np.int64, count=len(held))
