"""PostgreSQL's half of an export: freezes the changes, numbers the attempt, retires the changes.

In:   a store; the note of a lake commit with the change ids that it contains
Out:  changes frozen in one snapshot; an attempt that PostgreSQL has recorded; changes deleted

    1  freeze   one snapshot: the version to build on, all change ids, all their keys, their rows
    3  claim    the attempt gets a number, durable in PostgreSQL before the lake is written
    5  retire   the head moves from a version to the next, and exactly its changes are deleted

- Any process may run step 5, late and repeatedly: it acts only if the head is at the previous
  version, and deletes the ids that the commit names, never "all up to".
- If PostgreSQL does not know a commit's attempt, the commit was made by a newer state of this
  PostgreSQL, which was then restored from an older copy. The commit's change ids may mean other
  changes here, so nothing is deleted, and the commit is refused with an explanation.
- A PostgreSQL that knows an attempt has everything that the attempt carried: the claim comes after
  the snapshot, so a copy that contains the claim contains the snapshot's rows.
"""

from datetime import datetime

from psycopg import sql

from thermocline.errors import Conflict, Corruption
from thermocline.format.instant import from_datetime, to_datetime
from thermocline.format.layout import Version
from thermocline.format.log.change_ids import decode_changes, encode_changes
from thermocline.format.log.commit_note import NoteFlush
from thermocline.hot.postgres.export.dirty import DirtySet, FrozenChanges, LakeHead
from thermocline.hot.postgres.session.connect import Connection

RETIRE_LIMIT_S = 300.0


class EntitySource(DirtySet):
    """The changes of one type in PostgreSQL, and their export. Any thread may use it."""

    @property
    def type_name(self) -> str:
        """The name of the type."""
        return self._store.type_name

    def attach(self, table_id: str) -> None:
        """Bind the type to a lake table; `Corruption` if it is bound to another one."""

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
                "the type belongs to another lake table",
                hint="open the lake that this PostgreSQL goes with, or restore it",
                type=self.type_name,
                expected=attached,
                found=table_id,
            )

    def claim(self, frozen: FrozenChanges) -> NoteFlush:
        """Step 3: number this attempt durably; return the note for its commit.

        `Conflict` when the head has moved: another export committed first.
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
        """Step 5: move the head to the next version and delete the changes it contains.

        Returns False if the head was already there. `Corruption` when the commit was made from
        another PostgreSQL, or by an attempt that this one does not know.
        """
        changes = [] if note is None else decode_changes(note.changes).tolist()

        def write(connection: Connection) -> bool:
            connection.execute(f"set local statement_timeout = {int(RETIRE_LIMIT_S * 1000)}")
            # Order matters: the head's row is locked first, so that retire calls run one by one.
            head = _lock_head(connection, self._store.layout.type_id)
            if head.version >= version:
                return False
            check_known(head, version, note)
            if head.version != version - 1:
                raise Conflict(
                    "only the version after the head can be retired",
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

    def check_commit_known(self, version: Version, note: NoteFlush) -> None:
        """Raise `Corruption` when a commit ahead of the head is unknown to this PostgreSQL.

        Order matters: the commit was read before this call, and PostgreSQL records an attempt
        before it commits.
        """
        check_known(self.head(), version, note)


def check_known(head: LakeHead, version: Version, note: NoteFlush | None) -> None:
    """Raise `Corruption` unless the PostgreSQL with this head recorded the commit's attempt."""
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


def _lock_head(connection: Connection, type_id: int) -> LakeHead:
    row = connection.execute(
        "select version, as_of, epoch, cluster_id::text from lake_head where type_id = %s "
        "for update",
        [type_id],
    ).fetchone()
    assert row is not None
    return LakeHead(Version(row[0]), row[1], row[2], row[3])


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
