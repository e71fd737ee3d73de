"""The dropped tables of a lake: a file for each, which an undo needs and a replay reads.

    <lake>/dropped/<table id>.json     a table's name, id and folder, when it was dropped, and
                                       whether its files are removed

- A table is dropped when the file of its name is removed. This file is written before, so a table
  with a name is in the lake, whatever is here.
- Until a vacuum purges it, a dropped table has all its files. The file of a purged table stays:
  the journal may still have its rows, and a replay learns here that they are of no table any more.
- Order matters: the file says that the table is purged before the first of its files is removed,
  so that an undo never brings back a part of a table.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from thermocline.cold.storage.storage import Storage
from thermocline.errors import Corruption, NotFound
from thermocline.format.instant import TimeNs
from thermocline.format.log.action import Mark
from thermocline.format.sealed_json import check_owner, seal, unseal

DROPPED_FOLDER = "dropped"
EVERY_MARK = Mark((1 << 63) - 1)
"""The mark of a purged table: no row of the journal is missing from it."""

_HINT = "restore this file from a backup of this lake"
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that was dropped; `undrop` brings it back unless it is purged."""

    name: str
    table_id: str
    folder: str
    dropped_ns: TimeNs
    is_purged: bool = False


class DroppedTables:
    """The files of the dropped tables of one lake."""

    def __init__(self, storage: Storage, lake_id: Callable[[], str | None]) -> None:
        self._storage = storage
        self._lake_id = lake_id

    def __iter__(self) -> Iterator[DroppedTable]:
        for stored in sorted(self._storage.list(DROPPED_FOLDER), key=lambda one: one.path):
            name = stored.path.rpartition("/")[2]
            if _ID.fullmatch(name.removesuffix(".json")):
                try:
                    yield self._read(stored.path)
                except NotFound:
                    continue  # an undo removed it meanwhile

    def find(self, table_id: str) -> DroppedTable | None:
        """Return the dropped table of an id, or None."""
        try:
            return self._read(dropped_path(table_id))
        except NotFound:
            return None

    def _read(self, path: str) -> DroppedTable:
        absolute = f"{self._storage.root}/{path}"
        found = unseal(self._storage.read(path), absolute, hint=_HINT)
        check_owner(found, absolute, self._lake_id(), hint=_HINT)
        try:
            dropped = DroppedTable(
                str(found["name"]),
                str(found["table_id"]),
                str(found["folder"]),
                TimeNs(int(found["dropped_ns"])),
                bool(found["is_purged"]),
            )
        except (LookupError, TypeError, ValueError) as error:
            message = "not the file of a dropped table"
            raise Corruption(message, hint=_HINT, path=absolute) from error
        if path != dropped_path(dropped.table_id):
            raise Corruption(
                "this file belongs to another dropped table",
                hint=_HINT,
                path=absolute,
                found=dropped.table_id,
            )
        return dropped

    def put(self, dropped: DroppedTable) -> None:
        """Write the file of a dropped table; it is durable when this returns."""
        path = dropped_path(dropped.table_id)
        data = encode_dropped(dropped, self._lake_id())
        if not self._storage.put_new(path, data):
            self._storage.replace(path, data)  # of an earlier drop

    def purge(self, dropped: DroppedTable) -> None:
        """Note that a table cannot be brought back; then its files may be removed."""
        self.put(replace(dropped, is_purged=True))

    def forget(self, table_id: str) -> None:
        """Remove the file of a table that has its name again; it is a leftover from then on."""
        self._storage.delete(dropped_path(table_id))


def encode_dropped(dropped: DroppedTable, lake_id: str | None) -> bytes:
    """Return the bytes of the file of a dropped table."""
    return seal(
        {
            "name": dropped.name,
            "table_id": dropped.table_id,
            "folder": dropped.folder,
            "dropped_ns": dropped.dropped_ns,
            "is_purged": dropped.is_purged,
            "lake_id": lake_id,
        }
    )


def dropped_path(table_id: str) -> str:
    """Return the path of a dropped table's file, relative to the lake."""
    return f"{DROPPED_FOLDER}/{table_id}.json"
