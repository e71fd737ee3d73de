"""The other nodes of a lake: the hot rows that are only in their journals, for one exact view.

In:   the registry of a lake; the claim of this process, if it has a journal
Out:  the hot snapshots of all other live sources

- A reader lists the sources after its query began, then takes every snapshot, then (the caller)
  reads the newest version of the table. A part that the version's mark has reached is left out.
- A source that cannot be reached fails a strict read, with its name. In mode `best_effort` the
  answer has a warning that says which source is missing, and since when.
- A change that must reach all rows asks every source to flush first. A change that must stop writes
  everywhere needs this node to be the only one.
"""

import threading
import time as clock
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from thermocline.errors import Conflict, NotFound, Unavailable
from thermocline.format.instant import TimeNs, format_instant
from thermocline.hot.tier import HotSnapshot
from thermocline.peers.registry import Claim, SourceRegistry
from thermocline.peers.remote import RemoteSource

ASKED_AT_ONCE = 16
LIST_TRIES_MAX = 3
RETRY_S = 2.0
RETRY_WAIT_S = 0.1

T = TypeVar("T")


class Peers:
    """The other sources of a lake. Safe to use from many threads."""

    def __init__(self, registry: SourceRegistry, own_source: str | None) -> None:
        self.registry = registry
        self.own: Claim | None = None
        self._own_source = own_source
        self._lock = threading.Lock()
        self._remotes: dict[str, RemoteSource] = {}  # by source
        self._reached_ns: dict[str, int] = {}
        self._threads = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="thermocline-peers")

    def register(self, url: str, *, has_rows: bool) -> None:
        """Claim this process's journal; call it before the first row is acknowledged.

        `has_rows` says whether the journal has rows that are nowhere else. `Conflict` while another
        node makes a change that needs the only node.
        """
        source = self._own_source
        assert source is not None
        self.own = self.registry.claim(source, url)
        try:
            # Order matters: this claims and then looks for the note, `alone` the other way round.
            # One of the two sees the other.
            self.registry.check_alone_note(source)
        except Conflict:
            if not has_rows:
                self.registry.claim(source, has_left=True)
            raise
        self.registry.end_alone()  # a note that this node left behind when it died

    def leave(self) -> None:
        """Say that no row is only in this process's journal, which takes no more rows."""
        if self.own is not None:
            self.registry.check_owned(self.own)
            self.own = self.registry.claim(self.own.source, has_left=True)

    def close(self) -> None:
        """Release the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def others(self) -> list[RemoteSource]:
        """Return every other source that may have rows in its journal, at this moment."""
        for _ in range(LIST_TRIES_MAX):
            try:
                claims = self.registry.newest()
                break
            except NotFound:
                continue  # a newer claim replaced it meanwhile
        else:
            raise Unavailable("the sources of the lake change too fast", hint="try again")
        live = [one for one in claims if not one.has_left and one.source != self._own_source]
        with self._lock:
            known = self._remotes
            self._remotes = {
                one.source: known[one.source]
                if one.source in known and known[one.source].claim == one
                else RemoteSource(one)
                for one in live
            }
            return list(self._remotes.values())

    def snapshots(self, table_id: str, *, is_strict: bool) -> tuple[tuple[HotSnapshot, ...], str]:
        """Return the hot rows of a table in all other sources, and a warning, if not strict."""
        found, missing = self._ask(lambda one: one.snapshot(table_id))
        end_s = clock.monotonic() + RETRY_S
        while missing and is_strict:
            # A node that starts or stops answers in a moment, or leaves the list of sources.
            if clock.monotonic() > end_s:
                raise missing[0][1]
            clock.sleep(RETRY_WAIT_S)
            found, missing = self._ask(lambda one: one.snapshot(table_id))
        return tuple(found), "; ".join(self._describe_missing(one) for one, _ in missing)

    def _describe_missing(self, remote: RemoteSource) -> str:
        claim = remote.claim
        since = TimeNs(self._reached_ns.get(claim.source, claim.claimed_ns))
        return f"rows of node {claim.label} since {format_instant(since)} may be missing"

    def flush(self, table_id: str) -> None:
        """Have every other source flush a table; raise for the first that cannot be reached."""
        _, missing = self._ask(lambda one: one.flush(table_id))
        if missing:
            raise missing[0][1]

    def _ask(
        self, ask: Callable[[RemoteSource], T]
    ) -> tuple[list[T], list[tuple[RemoteSource, Unavailable]]]:
        others = self.others()
        found, missing = [], []
        for one, asked in [(one, self._threads.submit(ask, one)) for one in others]:
            try:
                found.append(asked.result())
                self._reached_ns[one.claim.source] = clock.time_ns()
            except Unavailable as error:
                missing.append((one, error))
        return found, missing

    @contextmanager
    def alone(self, operation: str) -> Iterator[None]:
        """Keep other nodes from joining in the block; `Conflict` when there is one already."""
        assert self._own_source is not None
        self.registry.begin_alone(self._own_source, operation)
        try:
            self._check_no_others(operation)
            yield
        finally:
            self.registry.end_alone()

    def _check_no_others(self, operation: str) -> None:
        others = self.others()
        if others:
            raise Conflict(
                "this change needs the lake's only node",
                hint="stop the other nodes: they flush, and leave the lake",
                operation=operation,
                nodes=[one.claim.label for one in others][:20],
            )

    def check_owned(self) -> None:
        """Raise `Conflict` when another process has taken over this process's journal."""
        if self.own is not None:
            self.registry.check_owned(self.own)
