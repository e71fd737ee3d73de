"""The tables of a lake by name: the folder of each table, and the identity of the lake.

    <lake>/lake.json                 the lake's id and that of its journal
    <lake>/names/<name>.json         a table's name, id and folder, and the lake's id
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
  more commits proves that the table had a name, and that the file of the name was lost.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from thermocline.cold.segment.stage import new_id
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.disk import Disk, OsDisk, translate_errors
from thermocline.errors import Conflict, Corruption, Invalid, NotFound, TableNotFound, Unsupported
from thermocline.format.layout import Version
from thermocline.format.log.action import TableSpec
from thermocline.format.sealed_json import seal, unseal
from thermocline.names import is_table_name

LAKE_PATH = "lake.json"
NAMES_FOLDER = "names"
TABLES_FOLDER = "tables"
JOURNAL_FOLDER = "journal"
TENANTS_FOLDER = "tenants"
FORMAT_VERSION = 1
LAKE_HINT = (
    "restore lake.json from a backup of this lake; it holds the lake's id and that of its journal, "
    "which are also in journal/journal.json and the files in names/; if a restore was interrupted, "
    "restore again into an empty folder"
)
NAME_HINT = "restore this file from a backup of this lake; the table and its rows are untouched"

_UNSEALED_LAKE = frozenset({"format", "lake_id", "journal_id"})
_UNSEALED_NAME = frozenset({"name", "table_id", "folder"})
_ID = re.compile(r"[0-9a-f]{32}")
_OWN_NAMES = frozenset({"names", "tables", TENANTS_FOLDER, "keys.json", "leases"})
_TENANT_ROOT = re.compile(rf"(.+)/{TENANTS_FOLDER}/[0-9a-f]{{32}}")


@dataclass(frozen=True, slots=True)
class LakeIdentity:
    """The ids of a lake and of its journal."""

    lake_id: str
    journal_id: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table of the lake."""

    name: str
    table_id: str
    folder: str


class Catalog:
    """The names of a lake. Safe to use from many threads and processes."""

    def __init__(
        self,
        root: str,
        disk: Disk | None = None,
        *,
        is_read_only: bool = False,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        self._disk = disk or OsDisk()
        self._storage = LocalStorage(root, self._disk)
        self._is_read_only = is_read_only
        self._now_ns = now_ns
        self._opened: dict[str, ColdTable] = {}
        self._known: dict[str, CatalogEntry] = {}
        self._lake_id: str | None = None

    @property
    def root(self) -> str:
        """The lake's folder."""
        return self._storage.root

    @property
    def journal_folder(self) -> str:
        """The folder of the lake's journal."""
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
            self._lake_id = read_lake_id(self._disk, self.root if found is None else found[1])
        return self._lake_id

    def _list_others(self) -> set[str]:
        """Return the names in the folder, except those of an unfinished lake."""
        with translate_errors(self.root):
            try:
                entries = self._disk.entries(self.root)
            except FileNotFoundError:
                return set()
        return {entry.name for entry in entries if not entry.name.startswith(".")} - {
            JOURNAL_FOLDER
        }

    def make_folder(self) -> None:
        """Make the lake's folder if there is none."""
        self._storage.make_root()

    def create_lake(self, journal_id: str) -> LakeIdentity:
        """Make this folder a lake with that journal, unless it is one; return its identity."""
        made = {"format": FORMAT_VERSION, "lake_id": new_id(), "journal_id": journal_id}
        self._storage.put_new(LAKE_PATH, seal(made))
        identity = self.identity()
        assert identity is not None
        return identity

    def create(self, name: str, spec: TableSpec) -> ColdTable:
        """Make a table; `Conflict` when there is one of this name."""
        path = _name_path(name)
        if self._storage.size(path) is not None:
            raise _name_taken_error(name)
        folder = f"{TABLES_FOLDER}/{new_id()}"
        table = self._open_table(folder)
        state = table.create(spec)
        named = {"name": name, "table_id": state.spec.table_id, "folder": folder}
        if not self._storage.put_new(path, seal({**named, "lake_id": self.lake_id})):
            raise _name_taken_error(name)
        self._opened[name.lower()] = table
        return table

    def table(self, name: str) -> ColdTable:
        """Return a table; `NotFound` when there is none of this name.

        `Corruption` when the name leads to another table than the one it was created for.
        """
        key = name.lower()
        if key not in self._opened:
            named = self.find_entry(name)
            table = self._open_table(named.folder)
            version = self._verify_version(named, table)
            if not self._is_read_only:
                self._storage.settle(_name_path(name))
                table.log.sync_commit(version)
            self._opened[key] = table
        return self._opened[key]

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
            return self._read_name(_name_path(name))
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
            try:
                state = self._open_table(folder).state()
            except NotFound:
                continue  # Crash here: before the first commit of a new table.
            if state.version > 1 and folder not in {one.folder for one in self}:
                raise self._lost_name_error(folder, state.spec.table_id)

    def _list_folders(self) -> Iterator[str]:
        with translate_errors(f"{self.root}/{TABLES_FOLDER}"):
            try:
                entries = self._disk.entries(f"{self.root}/{TABLES_FOLDER}")
            except FileNotFoundError:
                return
        for entry in entries:
            if _ID.fullmatch(entry.name):
                yield f"{TABLES_FOLDER}/{entry.name}"

    def _lost_name_error(self, folder: str, table_id: str) -> Corruption:
        return Corruption(
            "a table with data has no name: its file in names/ is missing",
            hint="restore names/<table>.json from a backup of this lake; to start without the "
            "table, move its folder away, and save its rows in the journal with "
            "`thermocline journal repair --set-aside`",
            path=f"{self.root}/{folder}",
            folder=folder,
            table_id=table_id,
        )

    def __iter__(self) -> Iterator[CatalogEntry]:
        stored = sorted(self._storage.list(NAMES_FOLDER), key=lambda one: one.path)
        for one in stored:
            if one.path.endswith(".json") and "/." not in one.path:
                if one.path not in self._known:  # a name's file is never changed
                    self._known[one.path] = self._read_name(one.path)
                yield self._known[one.path]

    def by_id(self, table_id: str) -> ColdTable | None:
        """Return the table of an id, or None when no name leads to it."""
        for named in self:
            if named.table_id == table_id:
                return self.table(named.name)
        return None

    def _open_table(self, folder: str) -> ColdTable:
        return ColdTable(LocalStorage(f"{self.root}/{folder}", self._disk), now_ns=self._now_ns)


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


def read_lake_id(disk: Disk, root: str) -> str | None:
    """Return the id of the lake in a folder; None when the folder has no `lake.json`."""
    try:
        data = LocalStorage(root, disk).read(LAKE_PATH)
    except NotFound:
        return None
    return decode_identity(data, f"{root}/{LAKE_PATH}").lake_id


def decode_identity(data: bytes, path: str) -> LakeIdentity:
    """Return the identity in the bytes of `lake.json`; `Corruption` names the path if damaged."""
    found = unseal(data, path, hint=LAKE_HINT, unsealed_fields=_UNSEALED_LAKE)
    version = found.get("format")
    # Only the first format was ever written without a checksum: another number is damage.
    is_sealed = b'"checksum"' in data
    if is_sealed and isinstance(version, int) and version > FORMAT_VERSION:
        hint = "open it with that version"
        raise Unsupported("the lake was made by a newer Thermocline", hint=hint, path=path)
    identity = LakeIdentity(str(found.get("lake_id")), str(found.get("journal_id")))
    if version != FORMAT_VERSION or not _ID.fullmatch(identity.lake_id):
        raise Corruption("not the identity of a lake", hint=LAKE_HINT, path=path)
    return identity


def _decode_entry(found: dict[str, Any], path: str, lake_id: str | None) -> CatalogEntry:
    """Return the entry in a name's file; `Corruption` unless the file has this path and lake."""
    named = CatalogEntry(*(str(found.get(field)) for field in ("name", "table_id", "folder")))
    is_folder = named.folder.startswith(f"{TABLES_FOLDER}/")
    if not (is_folder and _ID.fullmatch(named.folder.removeprefix(f"{TABLES_FOLDER}/"))):
        raise Corruption("the file of a name has no valid folder", hint=NAME_HINT, path=path)
    if not is_table_name(named.name) or f"/{named.name.lower()}.json" != path[path.rindex("/") :]:
        raise Corruption(
            "this file has the name of another table", hint=NAME_HINT, path=path, found=named.name
        )
    check_owner(found, path, lake_id, hint=NAME_HINT)
    return named


def check_owner(found: dict[str, Any], path: str, lake_id: str | None, *, hint: str) -> None:
    """Raise `Corruption` when a file says that it belongs to another lake."""
    owner = found.get("lake_id")
    if owner is not None and lake_id is not None and owner != lake_id:
        raise Corruption(
            "this file belongs to another lake", hint=hint, path=path, owner=owner, lake_id=lake_id
        )
