"""One damaged stretch of a journal: what is known about it, and how a hole records it.

In:   what was found while a journal was read
Out:  the payload of a hole's frame, and back

- A damage that lost frames becomes a hole: its lsns, where it was, why, the times between which
  those frames were written, and the tables they may have been of.
- A damage may have lost nothing: a file's header can be told from its neighbours.
- `tables` None is any table. Where `are_tables_known`, the headers of all lost frames were still
  whole, and the tables are exactly theirs.
"""

from dataclasses import asdict, dataclass
from typing import Any

import orjson

from thermocline.errors import Corruption

TABLES_LISTED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a file that is not what was written.

    Nothing is lost when `last_lsn` is before `first_lsn`. The lost frames were written after
    `after_ns` and before `before_ns`, as far as whole frames beside them say so.
    """

    first_lsn: int
    last_lsn: int
    file: str
    offset: int
    size_bytes: int
    why: str
    after_ns: int | None = None
    before_ns: int | None = None
    tables: tuple[str, ...] | None = ()
    are_tables_known: bool = False

    @property
    def written(self) -> tuple[int | None, int | None]:
        """The times between which the lost frames were written, as far as they are known."""
        return self.after_ns, self.before_ns

    @property
    def lost_lsns(self) -> int:
        """How many writes are lost, at most."""
        return max(0, self.last_lsn - self.first_lsn + 1)


def encode_hole(damage: Damage) -> bytes:
    """Return the payload of the hole that a damage leaves."""
    return orjson.dumps(asdict(damage))


def decode_hole(payload: bytes) -> Damage:
    """Return what a hole's payload tells; `Corruption` when it tells nothing.

    Fields of a newer version are passed over.
    """
    try:
        found: dict[str, Any] = orjson.loads(payload)
        known = {name: found[name] for name in Damage.__slots__}
        tables = known["tables"]
        known["tables"] = None if tables is None else tuple(str(one) for one in tables)
        return Damage(**known)
    except (ValueError, KeyError, TypeError) as error:
        hint = "the hole itself is real; its frame says which lsns are lost"
        raise Corruption("a hole that does not tell what was lost", hint=hint) from error
