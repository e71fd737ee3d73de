"""The feed: all committed changes of a tenant, resumable after each of them.

In:   a position, the types of interest
Out:  a `FeedPage`: every change after the position exactly once

- A position has the snapshot of PostgreSQL up to which a consumer has everything. The next batch is
  what a new snapshot sees and the last one does not: by PostgreSQL's own rule of visibility, so a
  transaction that commits late is in the batch after its commit, whatever ids it was given before.
- Within a batch the order is that of the change ids. A change id is assigned while the key is
  locked, and a writer sees the change that it follows: so the changes of a key come in the order of
  its versions, and every change comes after those that its writer could read.
- Two consumers may get the changes of concurrent transactions in another order.
- No open transaction holds the feed up.
- Wrong designs that lose or swap changes, each found by the tests: `id > last`; `id > last` before
  the oldest open transaction; the order of transaction ids, with that limit or without it.
- Changes that the type's retention has removed, a position of another server, or from before a
  restore, are `FeedExpired`: the consumer starts again from a snapshot.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from thermocline.errors import Conflict, FeedExpired, Invalid, ThermoclineError
from thermocline.hot.postgres.revision.change import (
    FEED_LIMIT_MAX,
    NOTHING_SEEN,
    OPS,
    EntityChange,
    FeedPage,
    FeedPosition,
    parse_position,
)
from thermocline.hot.postgres.revision.revisions import RevisionRow, revision_rows, revision_text
from thermocline.hot.postgres.schema.layout import Layout, StaleLayout
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session import postgres_errors
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.session.transaction import Isolation
from thermocline.hot.postgres.store.store import RELOADS_MAX, EntityStore

T = TypeVar("T")
_EXPIRED_HINT = "take feed_position(), read the entities again, and go on from that position"
_IDENTITY = (
    "select feed_id::text, (select system_identifier::text from pg_control_system()), "
    "(select timeline_id::text from pg_control_checkpoint()), pg_current_snapshot()::text, "
    "(select coalesce(max(cid), 0) from revision) from store"
)


class ChangeFeed:
    """The feed of one tenant. Any thread may use it."""

    def __init__(self, pool: Pool, tenant: Tenant) -> None:
        self._pool = pool
        self._tenant = tenant

    def position(self) -> str:
        """Return the position of now: behind every change that a read before this call has seen.

        A read after this call has all changes before the position, and may have later ones: they
        come again, with versions that the read had.
        """

        def look(connection: Connection) -> str:
            now = _read_moment(connection)
            return str(FeedPosition(now.feed, 0, 0, 0, 0, now.snapshot, ""))

        return self._run(look)

    def read(self, stores: Mapping[str, EntityStore], after: str | None, limit: int) -> FeedPage:
        """Return the changes of these types after a position, at most `limit`.

        Without a position: from the oldest change that is kept. `FeedExpired` if changes after the
        position were removed.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= FEED_LIMIT_MAX:
            raise Invalid(
                "the limit is out of range", hint=f"use 1 to {FEED_LIMIT_MAX}", limit=limit
            )
        start = None if after is None else parse_position(after)
        for _ in range(RELOADS_MAX):
            layouts = {store.layout.type_id: store.layout for store in stores.values()}
            try:
                return self._run(partial(_read_feed, layouts=layouts, start=start, limit=limit))
            except StaleLayout:
                pass
            except ThermoclineError as error:
                if not postgres_errors.is_outdated(error):
                    raise
            for store in stores.values():
                store.reload()
        raise Conflict("the types keep changing", hint="try again")

    def _run(self, work: Callable[[Connection], T]) -> T:
        """Run in one snapshot, which is the new batch."""
        return self._pool.run(
            self._tenant, work, isolation=Isolation.REPEATABLE_READ, is_read_only=True
        )


@dataclass(frozen=True, slots=True)
class _Moment:
    """What the running snapshot knows: the feed's identity, itself, and its largest change id."""

    feed: str
    snapshot: str
    cid_max: int


def _read_moment(connection: Connection) -> _Moment:
    row = connection.execute(_IDENTITY).fetchone()
    assert row is not None
    feed = hashlib.blake2b("\0".join(row[:3]).encode(), digest_size=8).hexdigest()
    return _Moment(feed, row[3], row[4])


def _next_xid(connection: Connection) -> int:
    """Return a transaction id above those of all transactions that have begun to write by now.

    The end of a snapshot is no such id: it is one past the last transaction that has ended. A
    transaction with a larger id gets only change ids above every one that the snapshot sees; so,
    when those before it have ended, no change up to the largest visible id is still to come.
    """
    row = connection.execute("select pg_current_xact_id()::text").fetchone()
    assert row is not None
    return int(row[0])


def _xmin(snapshot: str) -> int:
    return int(snapshot.split(":", maxsplit=1)[0])


def _xmax(snapshot: str) -> int:
    return int(snapshot.split(":")[1])


def _read_feed(
    connection: Connection,
    *,
    layouts: Mapping[int, Layout],
    start: FeedPosition | None,
    limit: int,
) -> FeedPage:
    now = _read_moment(connection)
    place = start or FeedPosition(now.feed, 0, 0, 0, 0, NOTHING_SEEN, "")
    types = list(layouts)
    _check_position(connection, now, place, types)
    if not place.batch:
        place = replace(place, cid=0, batch=now.snapshot)
        if not place.mark_xid and now.cid_max > place.low:
            place = replace(place, mark_xid=_next_xid(connection), mark_cid=now.cid_max)
    found = connection.execute(
        "select cid, type_id from revision where cid > %(after)s and type_id = any(%(types)s) "
        "and not pg_visible_in_snapshot(xid, %(seen)s::pg_snapshot) "
        "and pg_visible_in_snapshot(xid, %(batch)s::pg_snapshot) order by cid limit %(limit)s",
        {
            "after": max(place.cid, place.low),
            "types": types,
            "seen": place.seen,
            "batch": place.batch,
            "limit": limit,
        },
    ).fetchall()
    by_cid: dict[int, EntityChange] = {}
    for type_id in {row[1] for row in found}:
        cids = [row[0] for row in found if row[1] == type_id]
        for one in _read_changes(connection, layouts[type_id], cids):
            position = str(replace(place, cid=one.cid))
            by_cid[one.cid] = _change(position, layouts[type_id].name, one)
    changes = [by_cid[cid] for cid, _ in found]
    if len(changes) == limit:
        return FeedPage(changes, changes[-1].position)
    return FeedPage(changes, str(_end_batch(place)))


def _end_batch(place: FeedPosition) -> FeedPosition:
    """Return the position behind the whole batch."""
    done = replace(place, cid=0, seen=place.batch, batch="")
    if _xmin(place.batch) >= place.mark_xid:
        return replace(done, low=place.mark_cid, mark_xid=0, mark_cid=0)
    return done


def _check_position(
    connection: Connection, now: _Moment, place: FeedPosition, types: Sequence[int]
) -> None:
    if place.feed != now.feed:
        raise FeedExpired(
            "the position is of another feed: the server was restored or replaced",
            hint=_EXPIRED_HINT,
            after=str(place)[:80],
        )
    if max(_xmax(place.seen), _xmax(place.batch or NOTHING_SEEN)) > _xmax(now.snapshot):
        raise FeedExpired(
            "the position is ahead of the server: it has lost transactions",
            hint=_EXPIRED_HINT,
            after=str(place)[:80],
        )
    if place.seen == NOTHING_SEEN and not place.batch:
        return  # from the oldest change that is kept
    row = connection.execute(
        "select max(at) from revision_floor where type_id = any(%s) and xid >= %s::text::xid8 "
        "and cid > %s",
        [list(types), str(_xmin(place.seen)), max(place.cid, place.low)],
    ).fetchone()
    if row is not None and row[0] is not None:
        raise FeedExpired(
            "changes after this position are no longer kept",
            hint=_EXPIRED_HINT,
            after=str(place)[:80],
            removed_until=row[0].isoformat(),
        )


def _read_changes(connection: Connection, layout: Layout, cids: list[int]) -> list[RevisionRow]:
    query = f"{revision_text(layout)} and revision.cid = any(%(cids)s)"
    values = {"type": layout.type_id, "cids": cids}
    return revision_rows(layout, connection.execute(query, values).fetchall())


def _change(position: str, name: str, one: RevisionRow) -> EntityChange:
    entity = one.entity
    return EntityChange(
        position,
        name,
        one.id,
        one.ver,
        OPS[one.op],
        one.at,
        None if entity is None else entity.document,
        one.author,
        one.request_id,
        None if entity is None else entity.schema_version,
    )
