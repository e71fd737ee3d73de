"""CURRENT: the newest version of a table when the file was written.

In:   the newest version of a log
Out:  one sealed line; read back as a `Current`, or None where the file is not intact

A writer makes a commit durable before it writes CURRENT. A CURRENT that names a version without a
commit file therefore proves that commits were lost. It is written without fsync, so it may also
be missing, torn or behind; such a file is ignored.

- `table_id` and `txn_id` tie the file to one log: they are those of the table and of the commit
  that CURRENT names.
- Older releases wrote `{"version": n}` without a checksum. Readers trust that form too: a wrong
  number then causes an error that a person can resolve, never a silently shorter table.
"""

from dataclasses import dataclass

from thermocline.errors import Corruption
from thermocline.format.layout import CURRENT_PATH, Version
from thermocline.format.sealed_json import seal, unseal

_UNSEALED_FIELDS = frozenset({"version"})


@dataclass(frozen=True, slots=True)
class Current:
    """What CURRENT says; `table_id` and `txn_id` are empty where an older release wrote it."""

    version: Version
    table_id: str = ""
    txn_id: str = ""


def encode_current(current: Current) -> bytes:
    """Return the bytes of CURRENT."""
    return seal(
        {
            "version": current.version,
            "table_id": current.table_id,
            "txn_id": current.txn_id,
        }
    )


def decode_current(data: bytes) -> Current | None:
    """Return what CURRENT says, or None when its bytes are torn or damaged."""
    try:
        fields = unseal(data, CURRENT_PATH, unsealed_fields=_UNSEALED_FIELDS)
    except Corruption:
        return None
    version = fields.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        return None
    return Current(Version(version), str(fields.get("table_id", "")), str(fields.get("txn_id", "")))
