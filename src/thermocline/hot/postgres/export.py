"""PostgreSQL's half of an export: what is carried, who tries, what the lake has of it now.

In:   a store; what a commit of the lake says of the changes it contains
Out:  changes frozen in one snapshot; a try that PostgreSQL knows of; exactly those changes gone

    1  freeze   one snapshot: the version to build on, all change ids, all their keys, their rows
    2  claim    the try gets a number, which PostgreSQL has durably before the lake is touched
    4  retire   the head moves from a version to the next, and exactly the changes of that one go

- Step 4 may be done by anyone, late and many times: it acts only when the head is at the version
  before, and removes the ids that the commit names, never "all up to".
- A commit whose try PostgreSQL does not know was made by a PostgreSQL that had more than this one:
  this one was restored from an older copy. Its changes bear numbers that may mean something else
  here, so nothing is removed; it is refused and explained.
- A PostgreSQL that knows a try has everything the try carried: the claim is made after the
  snapshot, so whatever copy holds the claim holds what was in the snapshot.
"""

from datetime import datetime

from psycopg import sql

from thermocline.errors import Conflict, Corruption
from thermocline.format.change import decode_changes, encode_changes
from thermocline.format.instant import from_datetime, to_datetime
from thermocline.format.layout import Version
from thermocline.format.note import NoteFlush
from thermocline.hot.postgres.connect import Connection
from thermocline.hot.postgres.dirty import DirtySet, Frozen, Head
from thermocline.hot.postgres.rows import EntityStore

RETIRE_LIMIT_S = 300.0


class EntitySource:
    """What exports need of one type in PostgreSQL. Any thread may use it."""

    def __init__(self, store: EntityStore) -> None:
        self._store = store
        self.dirty = DirtySet(store)

    @property
    def type_name(self) -> str:
        """The type whose entities these are."""
        return self._store.type_name

    def attach(self, table_id: str) -> None:
        """Make a table of the lake the cold half of this type; `Corruption` if another is."""

        def write(connection: Connection) -> str:
            row = connection.execute(
                "update type set lake_table_id = coalesce(lake_table_id, %s) where name = %s "
                "returning lake_table_id",
                [table_id, self.type_name],
            ).fetchone()
            assert row is not None
            return str(row[0])

        attached = self._store.pool.run(self._store.tenant, write)
        if attached != table_id:
            raise Corruption(
                "the type belongs to another table of the lake",
                hint="open the lake that this PostgreSQL goes with, or restore it",
                type=self.type_name,
                expected=attached,
                found=table_id,
            )

    def head(self) -> Head:
        """Return which version of the lake PostgreSQL goes with now."""
        return self.dirty.head()

    def freeze(self) -> Frozen | None:
        """Step 1: return what is to be carried, or None when nothing is dirty."""
        return self.dirty.freeze()

    def claim(self, frozen: Frozen) -> NoteFlush:
        """Step 2: number this try, durably; return what the commit has to say.

        `Conflict` when the head has moved: another export was first.
        """
        head = frozen.snapshot.head
        query = (
            "update lake_head set epoch = epoch + 1 where type_id = %s and version = %s "
            "returning epoch"
        )
        type_id = self._store.layout.type_id
        row = self._store.pool.run(
            self._store.tenant, lambda c: c.execute(query, [type_id, head.version]).fetchone()
        )
        if row is None:
            raise Conflict(
                "another export was first",
                hint="begin again from a new snapshot",
                base=head.version,
            )
        as_of = from_datetime(frozen.snapshot.taken_at)
        return NoteFlush(head.store_id, row[0], as_of, encode_changes(frozen.changes.tolist()))

    def retire(self, version: Version, note: NoteFlush | None) -> bool:
        """Step 4: move the head to the next version and drop the changes it contains.

        Returns whether this call did; False when somebody had. `Corruption` when the commit is of
        another PostgreSQL, or of a try that this one does not know.
        """
        changes = [] if note is None else decode_changes(note.changes).tolist()

        def write(connection: Connection) -> bool:
            connection.execute(f"set local statement_timeout = {int(RETIRE_LIMIT_S * 1000)}")
            # Order matters: the head's row is locked first, so that retirings take turns.
            head = _locked_head(connection, self._store.layout.type_id)
            if head.version >= version:
                return False
            check_known(head, version, note)
            if head.version != version - 1:
                raise Conflict(
                    "versions are retired one after another",
                    hint="roll forward from the head",
                    head=head.version,
                    version=version,
                )
            as_of = to_datetime(note.as_of) if note is not None and note.changes else None
            _move_head(connection, self._store.layout.type_id, version, as_of)
            if changes:
                _drop_changes(connection, self._store.layout.type_id, changes)
            return True

        return self._store.pool.run(self._store.tenant, write, limit_s=RETIRE_LIMIT_S)

    def reads_known(self, version: Version, note: NoteFlush) -> None:
        """Raise `Corruption` when a commit ahead of the head is not of this PostgreSQL as it is.

        Order matters: the commit was read before this call. A try is known before it commits.
        """
        check_known(self.head(), version, note)


def check_known(head: Head, version: Version, note: NoteFlush | None) -> None:
    """Raise `Corruption` unless a commit is a try of the PostgreSQL that has this head."""
    if note is None or not note.changes:
        return
    if note.source != head.store_id:
        raise Corruption(
            "the lake has an export of another PostgreSQL",
            hint="connect to the PostgreSQL that this lake goes with, or restore it",
            version=version,
            expected=head.store_id,
            found=note.source,
        )
    if note.epoch > head.epoch:
        raise Corruption(
            "PostgreSQL is older than the lake: it was restored from a copy made before an export",
            hint="restore a newer copy, or restore the lake's table to the version PostgreSQL has",
            version=version,
            head=head.version,
            epoch=note.epoch,
            known_epoch=head.epoch,
        )


def _locked_head(connection: Connection, type_id: int) -> Head:
    row = connection.execute(
        "select version, as_of, epoch, cluster_id::text from lake_head where type_id = %s "
        "for update",
        [type_id],
    ).fetchone()
    assert row is not None
    return Head(Version(row[0]), row[1], row[2], row[3])


def _move_head(
    connection: Connection, type_id: int, version: Version, as_of: datetime | None
) -> None:
    connection.execute(
        "update lake_head set version = %s, as_of = coalesce(%s, as_of) where type_id = %s",
        [version, as_of, type_id],
    )


def _drop_changes(connection: Connection, type_id: int, changes: list[int]) -> None:
    given = "{" + ",".join(map(str, changes)) + "}"
    query = sql.SQL("delete from change where type_id = %s and cid = any(%s::bigint[])")
    connection.execute(query, [type_id, given])
