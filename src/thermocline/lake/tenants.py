"""The tenants of a node by name: which folder each has.

    <lake>/tenants/names/<name>.json     a tenant's name and folder
    <lake>/tenants/<id>/                 its tables, as `catalog.py` has them

- The folder of the lake itself is that of the tenant `default`, which is always there.
- A folder is an id, never a name, so that no name can lead elsewhere. That the file of a name
  exists is what makes the tenant; it is created atomically, and never changed.
"""

import re
from collections.abc import Iterator

import orjson

from thermocline.disk import Disk
from thermocline.errors import Conflict, Corruption, Invalid, NotFound
from thermocline.lake.local import LocalStorage
from thermocline.lake.stage import new_id

DEFAULT_TENANT = "default"
TENANTS_FOLDER = "tenants"

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_FOLDER = re.compile(rf"{TENANTS_FOLDER}/[0-9a-f]{{32}}")


class Tenants:
    """The names of a node's tenants. Safe to use from many threads and processes."""

    def __init__(self, root: str, disk: Disk) -> None:
        self._storage = LocalStorage(root, disk)
        self._known: dict[str, str] = {}

    @property
    def root(self) -> str:
        """The lake's folder."""
        return self._storage.root

    def folder(self, name: str) -> str:
        """Return a tenant's folder, from the lake's own; `NotFound` when there is no such one."""
        if name == DEFAULT_TENANT:
            return ""
        if name not in self._known:  # a name's file is never changed
            try:
                self._known[name] = _folder(self._storage.read(_path(name)), _path(name))
            except (NotFound, Invalid) as error:
                hint = "an administrator creates tenants"
                raise NotFound("no such tenant", hint=hint, tenant=name[:80]) from error
        return self._known[name]

    def create(self, name: str) -> None:
        """Make a tenant; `Conflict` when there is one of this name."""
        folder = f"{TENANTS_FOLDER}/{new_id()}"
        made = orjson.dumps({"name": name, "folder": folder})
        if name == DEFAULT_TENANT or not self._storage.put_new(_path(name), made):
            hint = "choose another name"
            raise Conflict("there is a tenant of this name already", hint=hint, tenant=name)

    def __iter__(self) -> Iterator[str]:
        yield DEFAULT_TENANT
        stored = sorted(one.path for one in self._storage.list(f"{TENANTS_FOLDER}/names"))
        for path in stored:
            name = path.rpartition("/")[2].removesuffix(".json")
            if path.endswith(".json") and _NAME.fullmatch(name):
                yield name


def _path(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(
            "this cannot be the name of a tenant",
            hint="use lower case letters, digits and underscores, at most 40, no digit first",
            name=name[:80],
        )
    return f"{TENANTS_FOLDER}/names/{name}.json"


def _folder(data: bytes, path: str) -> str:
    try:
        folder = str(orjson.loads(data)["folder"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path) from error
    if not _FOLDER.fullmatch(folder):
        raise _damaged(path)
    return folder


def _damaged(path: str) -> Corruption:
    return Corruption("this file of the lake cannot be read", hint="restore it", path=path)
