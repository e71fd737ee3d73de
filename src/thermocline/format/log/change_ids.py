"""The change ids that one export of entities contains, as a commit stores them.

In:   ids of changes, in any order
Out:  the base64 text of a 64-bit roaring bitmap in its portable form, and back

- Ids are close together but not dense: a PostgreSQL sequence leaves gaps, and transactions commit
  in another order than they drew their ids. Nothing here assumes dense ids.
- The bitmap is small: at most two bytes for each id, a few bytes for a dense range. The commit
  stores it inline, so no separate file can go missing.
"""

import base64
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from thermocline.errors import Corruption, Overloaded

CHANGES_BYTES_MAX = 32 << 20


def encode_changes(ids: Iterable[int]) -> str:
    """Return change ids as a commit stores them, "" for none; `Overloaded` past 32 MB."""
    held = BitMap64(ids)
    if not held:
        return ""
    held.run_optimize()
    data = held.serialize()
    if len(data) > CHANGES_BYTES_MAX:
        raise Overloaded(
            "one flush has too many changes",
            hint="export more often, or allow fewer dirty keys",
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
