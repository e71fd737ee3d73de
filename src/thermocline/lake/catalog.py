"""The tables of a lake by name: which folder each has, and which lake this is.

    <lake>/lake.json                 the lake's id and that of its journal
    <lake>/names/<name>.json         a table's name, id and folder
    <lake>/tables/<id>/              a table, as `format/layout.py` has it

- That the file of a name exists is what makes the table one of the lake; it is created atomically,
  after the table. Of two processes that make a table of one name, one wins.
- A folder is an id, never a name, so that no name can lead elsewhere. Names differ by more than
  their case, because SQL engines do not tell them apart otherwise.
- A table that is opened to be written is made durable as it is found: a process that was killed may
  have left a version that only the kernel knows, and must not be seen and then lost.
- `lake.json` is written last when a lake is made: whoever finds it can rely on the rest, and a
  folder where it is missing beside other things is refused, not made into a new lake.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson

from thermocline.disk import Disk, OsDisk, translated
from thermocline.errors import Conflict, Corruption, Invalid, NotFound, Unsupported
from thermocline.format.action import TableSpec
from thermocline.lake.local import LocalStorage
from thermocline.lake.stage import new_id
from thermocline.lake.table import Table

LAKE_PATH = "lake.json"
NAMES_FOLDER = "names"
TABLES_FOLDER = "tables"
JOURNAL_FOLDER = "journal"
FORMAT_VERSION = 1

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class LakeIdentity:
    """Which lake this is, and which journal is its own."""

    lake_id: str
    journal_id: str


@dataclass(frozen=True, slots=True)
class Named:
    """A table of the lake."""

    name: str
    table_id: str
    folder: str


def is_name(name: str) -> bool:
    """Tell whether a table can have this name."""
    return _NAME.fullmatch(name) is not None


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
        self._opened: dict[str, Table] = {}
        self._known: dict[str, Named] = {}

    @property
    def root(self) -> str:
        """The lake's folder."""
        return self._storage.root

    @property
    def journal_folder(self) -> str:
        """The folder of the lake's journal."""
        return f"{self.root}/{JOURNAL_FOLDER}"

    def identity(self) -> LakeIdentity | None:
        """Return which lake this is; None when there is none, `Invalid` when something else is."""
        try:
            found = _decoded(self._storage.read(LAKE_PATH), LAKE_PATH)
        except NotFound:
            others = self._others()
            if others:
                raise Invalid(
                    "this folder is not a lake, and it is not empty",
                    hint="check the path; a disk that is not mounted looks like this, too",
                    folder=self.root,
                    found=sorted(others)[:5],
                ) from None
            return None
        if found.get("format") != FORMAT_VERSION:
            hint = "open it with that version"
            raise Unsupported("the lake was made by a newer Thermocline", hint=hint, path=LAKE_PATH)
        return LakeIdentity(str(found["lake_id"]), str(found["journal_id"]))

    def _others(self) -> set[str]:
        """Return what is in the folder beside an unfinished lake."""
        with translated(self.root):
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

    def found(self, journal_id: str) -> LakeIdentity:
        """Make this folder a lake with that journal, or return which one it is by now."""
        made = {"format": FORMAT_VERSION, "lake_id": new_id(), "journal_id": journal_id}
        self._storage.put_new(LAKE_PATH, orjson.dumps(made))
        identity = self.identity()
        assert identity is not None
        return identity

    def create(self, name: str, spec: TableSpec) -> Table:
        """Make a table; `Conflict` when there is one of this name."""
        path = _path(name)
        if self._storage.size(path) is not None:
            raise _exists(name)
        folder = f"{TABLES_FOLDER}/{new_id()}"
        table = self._table(folder)
        state = table.create(spec)
        named = {"name": name, "table_id": state.spec.table_id, "folder": folder}
        if not self._storage.put_new(path, orjson.dumps(named)):
            raise _exists(name)
        self._opened[name.lower()] = table
        return table

    def table(self, name: str) -> Table:
        """Return a table; `NotFound` when there is none of this name."""
        key = name.lower()
        if key not in self._opened:
            table = self._table(self.named(name).folder)
            if not self._is_read_only:
                table.log.settle(table.state().version)
            self._opened[key] = table
        return self._opened[key]

    def named(self, name: str) -> Named:
        """Return what is known of a name; `NotFound` when it is no table's."""
        try:
            return _named(self._storage.read(_path(name)), _path(name))
        except NotFound as error:
            raise NotFound(
                "no such table",
                hint="`tables` lists those that exist",
                table=name,
                tables=[one.name for one in self][:20],
            ) from error

    def __iter__(self) -> Iterator[Named]:
        stored = sorted(self._storage.list(NAMES_FOLDER), key=lambda one: one.path)
        for one in stored:
            if one.path.endswith(".json") and "/." not in one.path:
                if one.path not in self._known:  # a name's file is never changed
                    self._known[one.path] = _named(self._storage.read(one.path), one.path)
                yield self._known[one.path]

    def by_id(self, table_id: str) -> Table | None:
        """Return the table of an id, or None when no name leads to it."""
        for named in self:
            if named.table_id == table_id:
                return self.table(named.name)
        return None

    def _table(self, folder: str) -> Table:
        return Table(LocalStorage(f"{self.root}/{folder}", self._disk), now_ns=self._now_ns)


def _path(name: str) -> str:
    if not is_name(name):
        raise Invalid(
            "this cannot be the name of a table",
            hint="use letters, digits and underscores, at most 63, no digit first",
            name=name[:80],
        )
    return f"{NAMES_FOLDER}/{name.lower()}.json"


def _exists(name: str) -> Conflict:
    hint = "open it, or choose another name; names differ by more than their case"
    return Conflict("there is a table of this name already", hint=hint, table=name)


def _named(data: bytes, path: str) -> Named:
    found = _decoded(data, path)
    folder = str(found.get("folder"))
    if not re.fullmatch(rf"{TABLES_FOLDER}/[0-9a-f]{{32}}", folder):
        raise _not_one(path)
    return Named(str(found["name"]), str(found["table_id"]), folder)


def _decoded(data: bytes, path: str) -> dict[str, object]:
    try:
        found = orjson.loads(data)
    except ValueError as error:
        raise _not_one(path) from error
    if not isinstance(found, dict) or not {"lake_id", "folder"} & found.keys():
        raise _not_one(path)
    return found


def _not_one(path: str) -> Corruption:
    return Corruption("this file of the lake cannot be read", hint="restore it", path=path)
