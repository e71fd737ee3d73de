"""Committed changes as values, and their positions in the feed, without the driver.

In:   the text of a position
Out:  `EntityChange`, `FeedPage`, `FeedPosition`

A position is `<feed>.<cid>.<low>.<mark xid>.<mark cid>.<seen>.<batch>`, opaque to clients:

- `feed` identifies the order: it differs after a restore and on another server, where numbers of
  transactions mean other transactions.
- `seen` and `batch` are snapshots of PostgreSQL. Every change visible in `seen` was delivered, and
  of those that only `batch` sees, the ones up to `cid`. Without `batch`, the next read begins one.
- No change up to `low` is still to come. It becomes `mark cid` when every transaction before `mark
  xid` has ended: a transaction that begins later gets larger change ids.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thermocline.errors import Invalid
from thermocline.format.argument import check_text

POSITION_LENGTH_MAX = 20_000
FEED_LIMIT_MAX = 1_000
FEED_WAIT_MAX_S = 60.0
FEED_POLL_S = 0.25

_SNAPSHOT = "[0-9]{1,20}:[0-9]{1,20}:[0-9,]*"
_POSITION = re.compile(
    r"([0-9a-f]{16})\.([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,19})\.([0-9]{1,18})"
    rf"\.({_SNAPSHOT})\.((?:{_SNAPSHOT})?)"
)
NOTHING_SEEN = "1:1:"
OPS = {"c": "created", "u": "updated", "d": "deleted"}


@dataclass(frozen=True, slots=True)
class EntityChange:
    """One committed change of an entity: what it left, when, and who made it.

    `document` is None for a delete. `position` resumes the feed after this change.
    """

    position: str
    type: str
    id: str
    ver: int
    op: str
    at: datetime
    document: dict[str, Any] | None
    key: str | None
    request_id: str | None
    schema_version: int | None = None


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Changes in the order of the feed; `position` resumes after the last of them."""

    changes: list[EntityChange]
    position: str


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """A parsed position; see the module."""

    feed: str
    cid: int
    low: int
    mark_xid: int
    mark_cid: int
    seen: str
    batch: str

    def __str__(self) -> str:
        """Return its text."""
        numbers = f"{self.cid}.{self.low}.{self.mark_xid}.{self.mark_cid}"
        return f"{self.feed}.{numbers}.{self.seen}.{self.batch}"


def parse_position(text: str) -> FeedPosition:
    """Return the position of a text; `Invalid` for another text."""
    given = check_text(text, "after")
    found = _POSITION.fullmatch(given) if len(given) <= POSITION_LENGTH_MAX else None
    if found is None:
        hint = "use the position of a change or a page, unchanged"
        raise Invalid("not a position of the feed", hint=hint, after=given[:80])
    feed, cid, low, mark_xid, mark_cid, seen, batch = found.groups()
    return FeedPosition(feed, int(cid), int(low), int(mark_xid), int(mark_cid), seen, batch)
