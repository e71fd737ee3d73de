"""The tables of a lake by name: the folder of each table, and the identity of the lake.

    <lake>/lake.json                 the lake's id and that of its journal
    <lake>/names/<name>.json         a table's name, id and folder, and the lake's id
    <lake>/dropped/<table id>.json   a table that was dropped (`dropped.py`)
    <lake>/tables/<id>/              a table, laid out as `format/layout.py` describes

- A table belongs to the lake exactly when the file of its name exists. That file is created
  atomically, after the table. If two processes create a table of one name, one of them wins.
- A folder's name is an id, never a table's name, so that no name can lead out of the lake. Names
  differ by more than their case, because SQL engines ignore case.
- Opening a table for writing syncs its newest version: a killed process may have left a version
  that is only in the kernel's cache, and readers must not see a version that is then lost.
- When a lake is created, `lake.json` is written last: if it exists, the rest exists. A folder that
  has other files but no `lake.json` is rejected and never made into a new lake.
- Every file has a checksum and says what it belongs to. A reader compares the name with the file's
  name, the table id with the one in the table's log, and the lake id with `lake.json`.
- A crash during creation leaves a table folder without a name, whose log has one commit. A log with
  more commits proves that the table had a name, and that the file of the name was lost, unless
  the table was dropped.
- A table is renamed when the file of its new name exists. The file of the old name has the new one
  before, so that no reader finds the table under two names, and is removed after.
- One process renames, drops and brings back tables: the one that has the lake's journal.
"""

import re
import threading
import time as clock
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from thermocline.cold.care.pin import list_pinned_versions
from thermocline.cold.change.copy_version import copy_version
from thermocline.cold.dropped import (
    DROPPED_FOLDER,
    EVERY_MARK,
    DroppedTable,
    DroppedTables,
    dropped_path,
)
from thermocline.cold.segment.stage import new_id
from thermocline.cold.storage.open_storage import open_place
from thermocline.cold.storage.storage import Storage, StoredFile
from thermocline.cold.table import ColdTable
from thermocline.disk import Disk, OsDisk
from thermocline.errors import (
    Conflict,
    Corruption,
    Invalid,
    NotFound,
    OutcomeUnknown,
    TableNotFound,
    ThermoclineError,
    Unsupported,
)
from thermocline.format.instant import NS_PER_S, TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import Mark, TableSpec
from thermocline.format.log.state import TableState
from thermocline.format.schema import NO_COLUMNS, Schema
from thermocline.format.sealed_json import check_owner, seal, unseal
from thermocline.names import is_table_name

LAKE_PATH = "lake.json"
NAMES_FOLDER = "names"
TABLES_FOLDER = "tables"
JOURNAL_FOLDER = "journal"
TENANTS_FOLDER = "tenants"
FORMAT_VERSION = 1
FORMAT_SHARED = 2
"""The format of a lake with many journals (`sources/`): older programs refuse it."""
YOUNG_NS = 2 * NS_PER_S
"""A file of this age may be replaced by one with the same size and time: it is read again."""

LAKE_HINT = (
    "restore lake.json from a backup of this lake; it holds the lake's id and that of its journal, "
    "which are also in journal/journal.json and the files in names/; if a restore was interrupted, "
    "restore again into an empty folder"
)
NAME_HINT = "restore this file from a backup of this lake; the table and its rows are untouched"

_UNSEALED_LAKE = frozenset({"format", "lake_id", "journal_id"})
_UNSEALED_NAME = frozenset({"name", "table_id", "folder"})
_ID = re.compile(r"[0-9a-f]{32}")
_OWN_NAMES = frozenset({"names", "tables", DROPPED_FOLDER, TENANTS_FOLDER, "keys.json", "leases"})
_TENANT_ROOT = re.compile(rf"(.+)/{TENANTS_FOLDER}/[0-9a-f]{{32}}")


@dataclass(frozen=True, slots=True)
class LakeIdentity:
    """The ids of a lake and of the journal that it was created with.

    A lake that `is_shared` may have more journals, in the data folders of several nodes.
    """

    lake_id: str
    journal_id: str
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table of the lake; `renamed_to` is a name that it is to have, or has already."""

    name: str
    table_id: str
    folder: str
    renamed_to: str = ""


class Catalog:
    """The names of a lake. Safe to use from many threads and processes."""

    def __init__(
        self,
        root: str | Storage,
        disk: Disk | None = None,
        *,
        lake: Storage | None = None,
        is_read_only: bool = False,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        """`root` has the tables: the lake's folder, or that of a tenant inside of `lake`."""
        self._disk = disk or OsDisk()
        self._storage = open_place(root, self._disk)
        self._lake = lake
        self._is_read_only = is_read_only
        self._now_ns = now_ns
        self._opened: dict[str, ColdTable] = {}  # by folder
        self._known: dict[str, tuple[StoredFile, CatalogEntry]] = {}  # by the path of the name
        self._lake_id: str | None = None
        self._dropped = DroppedTables(self._storage, lambda: self.lake_id)
        self._verbs = threading.RLock()  # one change of names at a time

    @property
    def is_read_only(self) -> bool:
        """Whether another process may change the names."""
        return self._is_read_only

    @property
    def root(self) -> str:
        """The lake's folder."""
        return self._storage.root

    @property
    def storage(self) -> Storage:
        """The storage of the folder that has the tables."""
        return self._storage

    @property
    def journal_folder(self) -> str:
        """The folder of the journal of a lake in a folder."""
        return f"{self.root}/{JOURNAL_FOLDER}"

    def identity(self) -> LakeIdentity | None:
        """Return the lake's identity; None for an empty folder, `Invalid` for any other folder.

        `Corruption` when `lake.json` is damaged, or missing beside other files of a lake.
        """
        try:
            data = self._storage.read(LAKE_PATH)
        except NotFound:
            self._check_empty()
            return None
        return decode_identity(data, f"{self.root}/{LAKE_PATH}")

    def _check_empty(self) -> None:
        """Raise when a folder without `lake.json` contains other files."""
        others = self._list_others()
        if others & _OWN_NAMES:
            raise Corruption(
                "lake.json is missing: the lake cannot be identified",
                hint=LAKE_HINT,
                path=f"{self.root}/{LAKE_PATH}",
                found=sorted(others)[:5],
            )
        if others:
            raise Invalid(
                "this folder is not a lake, and it is not empty",
                hint="check the path; a disk that is not mounted looks like this too",
                folder=self.root,
                found=sorted(others)[:5],
            )

    @property
    def lake_id(self) -> str | None:
        """The id of the lake that these names belong to; None for tables outside of a lake."""
        if self._lake_id is None:
            found = _TENANT_ROOT.fullmatch(self.root)
            lake = self._lake or (open_place(found[1], self._disk) if found else self._storage)
            self._lake_id = read_lake_id(lake)
        return self._lake_id

    def _list_others(self) -> set[str]:
        """Return the names in the folder, except those of an unfinished lake."""
        names = self._storage.list_names()
        return {name for name in names if not name.startswith(".")} - {JOURNAL_FOLDER}

    def make_folder(self) -> None:
        """Make the lake's folder if there is none."""
        self._storage.make_root()

    def create_lake(self, journal_id: str, *, is_shared: bool = False) -> LakeIdentity:
        """Make this folder a lake with that journal, unless it is one; return its identity."""
        number = FORMAT_SHARED if is_shared else FORMAT_VERSION
        made = {"format": number, "lake_id": new_id(), "journal_id": journal_id}
        self._storage.put_new(LAKE_PATH, seal(made))
        identity = self.identity()
        assert identity is not None
        return identity

    def create(self, name: str, spec: TableSpec, schema: Schema = NO_COLUMNS) -> ColdTable:
        """Make a table; `Conflict` when there is one of this name."""
        self._check_free(name)
        folder = f"{TABLES_FOLDER}/{new_id()}"
        table = self._open_table(folder)
        state = table.create(spec, schema)
        return self._name_table(CatalogEntry(name, state.spec.table_id, folder), table)

    def copy(self, source: ColdTable, state: TableState, name: str) -> ColdTable:
        """Make a table with the rows of a state of another; `Conflict` when the name is taken."""
        self._check_free(name)
        folder = f"{TABLES_FOLDER}/{new_id()}"
        table = self._open_table(folder)
        storage = self._storage.within(folder)
        try:
            copied = copy_version(source, state, storage, table)
            return self._name_table(CatalogEntry(name, copied.spec.table_id, folder), table)
        except OutcomeUnknown:
            raise  # the name may exist: then it needs the files
        except ThermoclineError:
            with suppress(ThermoclineError):
                self._remove_files(folder)
            raise

    def _check_free(self, name: str) -> None:
        if self._storage.size(_name_path(name)) is not None:
            self._finish_renames()
            if self._storage.size(_name_path(name)) is not None:
                raise _name_taken_error(name)

    def _name_table(self, named: CatalogEntry, table: ColdTable) -> ColdTable:
        self._create_name(named)
        self._opened[named.folder] = table
        return table

    def _create_name(self, named: CatalogEntry) -> None:
        """Create the file of a name; `Conflict` when there is one. It is durable at return."""
        path = _name_path(named.name)
        try:
            if not self._storage.put_new(path, self._encode_entry(named)):
                # An object store's client that lost the answer has tried again, and found its own.
                if self._read_name(path).table_id != named.table_id:
                    raise _name_taken_error(named.name)
                self._storage.settle(path)
        except Conflict:
            raise
        except ThermoclineError as error:
            # A failed create may have created the file: the file itself says.
            try:
                is_there = self._read_name(path).table_id == named.table_id
                self._storage.settle(path)
            except NotFound:
                is_there = False
            except ThermoclineError:
                raise OutcomeUnknown(
                    "the table may have this name, or not",
                    hint="list the tables before trying again",
                    table=named.name,
                ) from error
            if not is_there:
                raise

    def _encode_entry(self, named: CatalogEntry) -> bytes:
        fields = {"name": named.name, "table_id": named.table_id, "folder": named.folder}
        renamed = {"renamed_to": named.renamed_to} if named.renamed_to else {}
        return seal({**fields, **renamed, "lake_id": self.lake_id})

    def rename(self, name: str, to: str) -> CatalogEntry:
        """Give a table another name; `Conflict` when a table has it. Durable at return."""
        path = _name_path(to)
        with self._verbs:
            self._finish_renames()
            old = self.find_entry(name)
            new = CatalogEntry(to, old.table_id, old.folder)
            if path == _name_path(old.name):  # the same letters, other capitals
                self._storage.replace(path, self._encode_entry(new))
                self._known.pop(path, None)
                return new
            self._check_free(to)
            leaving = CatalogEntry(old.name, old.table_id, old.folder, to)
            self._storage.replace(_name_path(old.name), self._encode_entry(leaving))
            # Crash here: the table has its old name until the file of the new name exists.
            self._create_name(new)
            # Crash here: the old name leads nowhere already, and the next start removes it.
            self._remove_name(old.name)
            return new

    def finish_renames(self) -> None:
        """Remove the old names of tables that were renamed when a process died."""
        with self._verbs:
            self._finish_renames()

    def _finish_renames(self) -> None:
        for stored in self._list_names():
            with suppress(NotFound):
                found = self._read_known(stored)
                if self._is_superseded(found):
                    self._remove_name(found.name)

    def drop(self, name: str) -> DroppedTable:
        """Remove a table from the lake; `undrop` brings it back until it is purged."""
        with self._verbs:
            self._finish_renames()
            named = self.find_entry(name)
            dropped = DroppedTable(named.name, named.table_id, named.folder, self._now())
            self._dropped.put(dropped)
            # Crash here: the name still leads to the table, so the table is in the lake.
            self._remove_name(named.name)
            return dropped

    def _remove_name(self, name: str) -> None:
        """Remove the file of a name; the removal is durable when this returns."""
        path = _name_path(name)
        self._storage.delete(path)
        self._known.pop(path, None)
        try:
            self._storage.settle(path)
        except ThermoclineError as error:
            raise OutcomeUnknown(
                "the name of a table was removed, and may be back after a power cut",
                hint="list the tables before trying again",
                table=name,
            ) from error

    def undrop(self, name: str, to: str | None = None) -> CatalogEntry:
        """Bring back the table that was dropped last under a name, as `to` if given.

        `NotFound` when no dropped table has the name, `Conflict` when a table has it now.
        """
        with self._verbs:
            self._finish_renames()
            old = [one for one in self.list_dropped() if one.name.lower() == name.lower()]
            if not old:
                raise TableNotFound(
                    "no dropped table has this name, or a vacuum has removed it",
                    hint="`dropped_tables` lists those that can be brought back",
                    table=name,
                    dropped=sorted({one.name for one in self.list_dropped()})[:20],
                )
            last = max(old, key=lambda one: one.dropped_ns)
            named = CatalogEntry(to or last.name, last.table_id, last.folder)
            self._check_free(named.name)
            self._create_name(named)
            # Crash here: the table has a name, so the file of the drop is a leftover.
            with suppress(ThermoclineError):
                self._dropped.forget(named.table_id)
            return named

    def list_dropped(self) -> list[DroppedTable]:
        """Return the dropped tables that can be brought back, the oldest drop first."""
        found = [one for one in self._dropped if not one.is_purged]
        # Order matters: a table gets its name back before the file of its drop is removed.
        named = {one.table_id for one in self}
        gone = [one for one in found if one.table_id not in named]
        return sorted(gone, key=lambda one: one.dropped_ns)

    def purge(self, grace_s: int, *, dry_run: bool) -> list[DroppedTable]:
        """Remove the files of tables that were dropped longer ago than the grace period.

        A table that a reader has pinned stays. Returns the tables that were removed, or would be.
        Leftovers of copies that were cut off are removed, too.
        """
        with self._verbs:
            cut_off = self._now() - grace_s * NS_PER_S
            doomed = [
                one
                for one in self.list_dropped()
                if one.dropped_ns <= cut_off and not list_pinned_versions(self.open_dropped(one))
            ]
            if dry_run:
                return doomed
            for one in doomed:
                self._dropped.purge(one)
            named = {one.folder for one in self}
            for one in self._dropped:
                if one.is_purged and one.folder not in named:
                    self._remove_files(one.folder)  # also after a purge that was cut off
            for folder in self._list_leftovers(cut_off):
                self._remove_files(folder)
            return doomed

    def _list_leftovers(self, cut_off: int) -> list[str]:
        """Return folders without a name in which a create or a copy ended before its name."""
        known = {one.folder for one in self} | {one.folder for one in self._dropped}
        found = []
        for folder in sorted(set(self._list_folders()) - known):
            files = list(self._storage.list(folder))
            if files and all(one.modified_ns <= cut_off for one in files):
                with suppress(NotFound):
                    if self._open_table(folder).state().version > 1:
                        continue  # a table that has lost its name
                found.append(folder)
        named = {one.folder for one in self}  # read again: a create may have ended meanwhile
        return [folder for folder in found if folder not in named]

    def _remove_files(self, folder: str) -> None:
        for stored in list(self._storage.list(folder)):
            self._storage.delete(stored.path)

    def _now(self) -> TimeNs:
        return TimeNs((self._now_ns or clock.time_ns)())

    def dropped_mark(self, table_id: str, source: str) -> Mark | None:
        """Return the mark of a source that a dropped table has reached; None if it is unknown."""
        found = self._dropped.find(table_id)
        if found is None:
            return None
        if found.is_purged:
            return EVERY_MARK
        return self.open_dropped(found).state().marks.get(source, Mark(0))

    def open_dropped(self, dropped: DroppedTable) -> ColdTable:
        """Return the files and the log of a dropped table that is not purged."""
        return self._open_table(dropped.folder)

    def dropped_files(self) -> list[DroppedTable]:
        """Return every dropped table, purged ones too, whose id the journal may have."""
        return list(self._dropped)

    def table(self, name: str) -> ColdTable:
        """Return a table; `NotFound` when there is none of this name.

        `Corruption` when the name leads to another table than the one it was created for.
        """
        named = self.find_entry(name)
        if named.folder not in self._opened:
            table = self._open_table(named.folder)
            version = self._verify_version(named, table)
            if not self._is_read_only:
                self._storage.settle(_name_path(name))
                table.log.sync_commit(version)
            self._opened[named.folder] = table
        return self._opened[named.folder]

    def _verify_version(self, named: CatalogEntry, table: ColdTable) -> Version:
        """Return the newest version, after comparing the table id in the log with the name's."""
        path = f"{self.root}/{_name_path(named.name)}"
        try:
            state = table.state()
        except NotFound as error:
            raise self._missing_table_error(named) from error
        if state.spec.table_id != named.table_id:
            raise Corruption(
                "the name of a table leads to another table",
                hint=NAME_HINT,
                path=path,
                table=named.name,
                folder=named.folder,
                named_id=named.table_id,
                found_id=state.spec.table_id,
            )
        return state.version

    def _missing_table_error(self, named: CatalogEntry) -> Corruption:
        return Corruption(
            "the name of a table leads to a folder without a table",
            hint="restore the folder, or this file, from a backup of this lake",
            path=f"{self.root}/{_name_path(named.name)}",
            table=named.name,
            folder=named.folder,
        )

    def find_entry(self, name: str) -> CatalogEntry:
        """Return the entry of a name; `NotFound` when no table has this name.

        `Corruption` when a table has lost its name: it may be the requested one.
        """
        try:
            found = self._read_name(_name_path(name))
            if self._is_superseded(found):
                raise NotFound("the table has another name", table=name, name=found.renamed_to)
            return found
        except NotFound as error:
            self.check_names()
            raise TableNotFound(
                "no such table",
                hint="`tables` lists those that exist",
                table=name,
                tables=[one.name for one in self][:20],
            ) from error

    def _read_name(self, path: str) -> CatalogEntry:
        found = unseal(
            self._storage.read(path),
            f"{self.root}/{path}",
            hint=NAME_HINT,
            unsealed_fields=_UNSEALED_NAME,
        )
        return _decode_entry(found, f"{self.root}/{path}", self.lake_id)

    def check_names(self) -> None:
        """Raise `Corruption` when a table's name is damaged, or a table has lost its name.

        Reads every name, and the logs of folders without a name. Tables created at the same time do
        no harm: a table's name exists before its second commit.
        """
        # Order matters: a table's folder is made before its name, so names are read first.
        named = list(self)
        folders = set(self._list_folders())
        for one in named:
            if one.folder not in folders:
                raise self._missing_table_error(one)
        for folder in sorted(folders - {one.folder for one in self}):
            if self._is_dropped(folder):
                continue
            try:
                state = self._open_table(folder).state()
            except NotFound:
                continue  # Crash here: before the first commit of a new table.
            if state.version == 1 or folder in {one.folder for one in self}:
                continue
            # Order matters: a drop writes its file before it removes the name, and an undo the name
            # before it removes the file. One of three readings finds the table.
            if not self._is_dropped(folder):
                raise self._lost_name_error(folder, state.spec.table_id)

    def _is_dropped(self, folder: str) -> bool:
        return folder in {one.folder for one in self._dropped}

    def _list_folders(self) -> Iterator[str]:
        for name in self._storage.list_names(TABLES_FOLDER):
            if _ID.fullmatch(name):
                yield f"{TABLES_FOLDER}/{name}"

    def _lost_name_error(self, folder: str, table_id: str) -> Corruption:
        return Corruption(
            "a table with data has no name: its file in names/ is missing",
            hint="restore names/<table>.json from a backup of this lake, or "
            f"{dropped_path(table_id)} if the table was dropped; to start without the table, move "
            "its folder away, and save its rows in the journal with `thermocline journal repair "
            "--set-aside`",
            path=f"{self.root}/{folder}",
            folder=folder,
            table_id=table_id,
        )

    def __iter__(self) -> Iterator[CatalogEntry]:
        for stored in self._list_names():
            try:
                named = self._read_known(stored)
            except NotFound:
                continue  # dropped, or renamed, since the names were listed
            if not self._is_superseded(named):
                yield named

    def _list_names(self) -> list[StoredFile]:
        stored = sorted(self._storage.list(NAMES_FOLDER), key=lambda one: one.path)
        return [one for one in stored if one.path.endswith(".json") and "/." not in one.path]

    def _read_known(self, stored: StoredFile) -> CatalogEntry:
        """Return the entry in a listed file, which is read again when the file has changed."""
        known = self._known.get(stored.path)
        if known is not None and known[0] == stored:
            return known[1]
        found = self._read_name(stored.path)
        if stored.modified_ns <= clock.time_ns() - YOUNG_NS:
            self._known[stored.path] = stored, found
        return found

    def _is_superseded(self, named: CatalogEntry) -> bool:
        """Tell whether the table of an entry has the name that it was to have."""
        if not named.renamed_to:
            return False
        try:
            return self._read_name(_name_path(named.renamed_to)).table_id == named.table_id
        except NotFound:
            return False

    def by_id(self, table_id: str) -> ColdTable | None:
        """Return the table of an id, or None when no name leads to it."""
        for named in self:
            if named.table_id == table_id:
                return self.table(named.name)
        return None

    def _open_table(self, folder: str) -> ColdTable:
        return ColdTable(self._storage.within(folder), now_ns=self._now_ns)


def _name_path(name: str) -> str:
    if not is_table_name(name):
        raise Invalid(
            "this cannot be the name of a table",
            hint="use letters, digits and underscores, at most 63, no digit first",
            name=name[:80],
        )
    return f"{NAMES_FOLDER}/{name.lower()}.json"


def _name_taken_error(name: str) -> Conflict:
    hint = "open it, or choose another name; names differ by more than their case"
    return Conflict("there is a table of this name already", hint=hint, table=name)


def read_lake_id(lake: Storage) -> str | None:
    """Return the id of the lake in a folder; None when the folder has no `lake.json`."""
    try:
        data = lake.read(LAKE_PATH)
    except NotFound:
        return None
    return decode_identity(data, f"{lake.root}/{LAKE_PATH}").lake_id


def decode_identity(data: bytes, path: str) -> LakeIdentity:
    """Return the identity in the bytes of `lake.json`; `Corruption` names the path if damaged."""
    found = unseal(data, path, hint=LAKE_HINT, unsealed_fields=_UNSEALED_LAKE)
    version = found.get("format")
    # Only the first format was ever written without a checksum: another number is damage.
    is_sealed = b'"checksum"' in data
    if is_sealed and isinstance(version, int) and version > FORMAT_SHARED:
        hint = "open it with that version"
        raise Unsupported("the lake was made by a newer Thermocline", hint=hint, path=path)
    is_shared = is_sealed and version == FORMAT_SHARED
    identity = LakeIdentity(str(found.get("lake_id")), str(found.get("journal_id")), is_shared)
    if not (is_shared or version == FORMAT_VERSION) or not _ID.fullmatch(identity.lake_id):
        raise Corruption("not the identity of a lake", hint=LAKE_HINT, path=path)
    return identity


def _decode_entry(found: dict[str, Any], path: str, lake_id: str | None) -> CatalogEntry:
    """Return the entry in a name's file; `Corruption` unless the file has this path and lake."""
    name, table_id, folder = (str(found.get(field)) for field in ("name", "table_id", "folder"))
    named = CatalogEntry(name, table_id, folder, str(found.get("renamed_to", "")))
    is_folder = named.folder.startswith(f"{TABLES_FOLDER}/")
    if not (is_folder and _ID.fullmatch(named.folder.removeprefix(f"{TABLES_FOLDER}/"))):
        raise Corruption("the file of a name has no valid folder", hint=NAME_HINT, path=path)
    if not is_table_name(named.name) or f"/{named.name.lower()}.json" != path[path.rindex("/") :]:
        raise Corruption(
            "this file has the name of another table", hint=NAME_HINT, path=path, found=named.name
        )
    check_owner(found, path, lake_id, hint=NAME_HINT)
    return named
