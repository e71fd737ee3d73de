"""The sources of a lake: one journal each, with the address of the process that serves it.

    <lake>/sources/<source>/<number>.json     a claim: who serves the journal, or that it has left
    <lake>/alone.json                         a change that needs the only node, while it runs

In:   the storage of a lake, the id of a journal
Out:  a claim of this process; the newest claim of every source

- A source registers before it acknowledges its first row. A reader lists the sources after its
  query began, so it misses no source with rows that it must read.
- Each claim is a new number, created if it is absent. Of two processes with copies of one journal,
  one gets the number; the other, and every earlier owner, finds a later claim and stops.
- A source leaves when no row is only in its journal. It is never forgotten for another reason: an
  end of contact proves nothing.
- A reader of the lake's objects can read all its rows anyway, so a claim may hold the token
  that the owner's hot rows need.
"""

import re
import secrets
import threading
import time as clock
from dataclasses import dataclass, field
from typing import Any

from thermocline.cold.storage.storage import Storage
from thermocline.errors import Conflict, Corruption, NotFound
from thermocline.format.instant import format_instant
from thermocline.format.sealed_json import check_owner, seal, unseal

SOURCES_FOLDER = "sources"
ALONE_PATH = "alone.json"
CLAIMS_KEPT = 3
CLAIM_TRIES_MAX = 5
SOURCES_MAX = 1_000
HINT = "restore this file from a backup of the lake"

_SOURCE = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"([0-9]{10})\.json")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who serves a source; without `url` no other process can ask for its rows."""

    source: str
    number: int
    url: str
    token: str = field(repr=False)
    has_left: bool
    claimed_ns: int

    @property
    def label(self) -> str:
        """The source as a person reads it."""
        return f"{self.source[:8]} at {self.url}" if self.url else f"{self.source[:8]}, no address"


class SourceRegistry:
    """The claims in a lake. Safe to use from many threads and processes."""

    def __init__(self, lake: Storage, lake_id: str) -> None:
        self._lake = lake
        self._lake_id = lake_id
        self._lock = threading.Lock()
        self._read: dict[str, Claim] = {}  # the newest claim that was read, by path

    def newest(self) -> list[Claim]:
        """Return the newest claim of every source, in order; reads only what is new."""
        found: dict[str, int] = {}
        for stored in self._lake.list(SOURCES_FOLDER):
            _, source, name = stored.path.rsplit("/", 2)
            number = _NUMBER.fullmatch(name)
            if number is not None and _SOURCE.fullmatch(source):
                found[source] = max(found.get(source, 0), int(number[1]))
        if len(found) > SOURCES_MAX:
            raise Conflict("the lake has too many sources", sources=len(found), most=SOURCES_MAX)
        return [self._claim(source, number) for source, number in sorted(found.items())]

    def _claim(self, source: str, number: int) -> Claim:
        path = claim_path(source, number)
        with self._lock:
            known = self._read.get(path)
        if known is not None:
            return known
        claim = self._decode(self._lake.read(path), path)
        if (claim.source, claim.number) != (source, number):
            raise Corruption("this claim belongs to another source", hint=HINT, path=path)
        with self._lock:
            self._read[path] = claim
        return claim

    def _decode(self, data: bytes, path: str) -> Claim:
        absolute = f"{self._lake.root}/{path}"
        found = unseal(data, absolute, hint=HINT)
        check_owner(found, absolute, self._lake_id, hint=HINT)
        try:
            return Claim(
                str(found["source"]),
                int(found["number"]),
                str(found["url"]),
                str(found["token"]),
                bool(found["has_left"]),
                int(found["claimed_ns"]),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise Corruption("not the claim of a source", hint=HINT, path=absolute) from error

    def claim(self, source: str, url: str = "", *, has_left: bool = False) -> Claim:
        """Claim a source for this process; it is durable when this returns.

        `Conflict` when another process claims it at the same time.
        """
        number = self._newest_number(source) + 1
        made = Claim(source, number, url, secrets.token_urlsafe(32), has_left, clock.time_ns())
        path, data = claim_path(source, number), seal(self._fields(made))
        # A client that lost the answer has tried again, and finds its own object.
        if not self._lake.put_new(path, data) and self._lake.read(path) != data:
            raise Conflict(
                "another process claims this journal at the same time",
                hint="a journal has one owner: stop the other process, or remove the copied folder",
                source=source,
            )
        for old in range(max(1, number - CLAIMS_KEPT - 1), number - CLAIMS_KEPT + 1):
            self._lake.delete(claim_path(source, old))
        return made

    def _newest_number(self, source: str) -> int:
        names = self._lake.list_names(f"{SOURCES_FOLDER}/{source}")
        return max((int(one[1]) for one in map(_NUMBER.fullmatch, names) if one), default=0)

    def check_owned(self, claim: Claim) -> None:
        """Raise `Conflict` when a later process has claimed the source of a claim."""
        newest = self._newest_number(claim.source)
        if newest < claim.number:
            raise NotFound("the claim of this node is gone", hint=HINT, source=claim.source)
        if newest > claim.number:
            raise Conflict(
                "another process has taken this journal over",
                hint="stop this node: the folder of its journal was copied, and the copy is in use",
                source=claim.source,
                since=format_instant(self._claim(claim.source, newest).claimed_ns),
            )

    def begin_alone(self, source: str, operation: str) -> None:
        """Note that a source makes a change that needs the lake's only node.

        `Conflict` when another source makes one. A note that this source left behind is taken over.
        """
        data = seal({"source": source, "operation": operation, "lake_id": self._lake_id})
        if not self._lake.put_new(ALONE_PATH, data):
            self.check_alone_note(source)

    def end_alone(self) -> None:
        """Remove the note of such a change."""
        self._lake.delete(ALONE_PATH)

    def check_alone_note(self, source: str) -> None:
        """Raise `Conflict` when another source has noted a change that needs the only node."""
        try:
            found = unseal(self._lake.read(ALONE_PATH), f"{self._lake.root}/{ALONE_PATH}")
        except NotFound:
            return
        if found.get("source") != source:
            raise Conflict(
                "another node makes a change that needs the lake's only node",
                hint="try again in a moment; if that node has died, start it again first",
                node=str(found.get("source"))[:8],
                operation=str(found.get("operation"))[:80],
            )

    def _fields(self, claim: Claim) -> dict[str, Any]:
        return {
            "source": claim.source,
            "number": claim.number,
            "url": claim.url,
            "token": claim.token,
            "has_left": claim.has_left,
            "claimed_ns": claim.claimed_ns,
            "lake_id": self._lake_id,
        }


def claim_path(source: str, number: int) -> str:
    """Return the path of a claim, relative to the lake."""
    return f"{SOURCES_FOLDER}/{source}/{number:010d}.json"
