"""One damaged range of a journal: what is known about it, and how a hole frame records it.

In:   a `Damage` found while a journal was read
Out:  the payload of a hole frame, and back

- A damage that lost frames becomes a hole. It records their lsns, file and offset, the reason, the
  times between which they were written, and the tables that they may belong to.
- A damage may have lost no frame: a file's header can be derived from its neighbours.
- `tables` None means any table. If `are_tables_known`, the headers of all lost frames were whole,
  and `tables` is exactly their tables.
"""

from dataclasses import asdict, dataclass
from typing import Any

import orjson

from thermocline.errors import Corruption

TABLES_LISTED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of a file whose bytes differ from those written.

    No frame is lost when `last_lsn` is before `first_lsn`. The lost frames were written between
    `after_ns` and `before_ns`, the times of the nearest whole frames; None if there is no such
    frame.
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
    def written_between_ns(self) -> tuple[int | None, int | None]:
        """The times between which the lost frames were written; None for an unknown one."""
        return self.after_ns, self.before_ns

    @property
    def lost_lsns(self) -> int:
        """The maximal number of lost writes."""
        return max(0, self.last_lsn - self.first_lsn + 1)


def encode_hole(damage: Damage) -> bytes:
    """Return the payload of a damage's hole frame."""
    return orjson.dumps(asdict(damage))


def decode_hole(payload: bytes) -> Damage:
    """Return the damage that a hole's payload records; `Corruption` if it cannot be decoded.

    Fields of newer versions are ignored.
    """
    try:
        found: dict[str, Any] = orjson.loads(payload)
        known = {name: found[name] for name in Damage.__slots__}
        tables = known["tables"]
        known["tables"] = None if tables is None else tuple(str(one) for one in tables)
        return Damage(**known)
    except (ValueError, KeyError, TypeError) as error:
        hint = "the hole itself is real; its frame says which lsns are lost"
        raise Corruption("the payload of a hole cannot be decoded", hint=hint) from error
