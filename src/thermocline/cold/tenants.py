"""The tenants of a node by name, each with its folder.

    <lake>/tenants/names/<name>.json     a tenant's name and folder, and the lake's id
    <lake>/tenants/<id>/                 its tables, laid out as `catalog.py` describes

- The tenant `default` always exists; its folder is the lake's.
- A folder's name is an id, never a tenant's name, so that no name can lead out of the lake. A
  tenant exists exactly when the file of its name does; that file is created atomically and never
  changed.
- The file has a checksum, the tenant's name and the lake's id. It is created before the folder: a
  folder without a name proves that the file of its name was lost.
"""

import re
from collections.abc import Iterator

from thermocline.cold.catalog import TENANTS_FOLDER, read_lake_id
from thermocline.cold.segment.stage import new_id
from thermocline.cold.storage.open_storage import open_place
from thermocline.cold.storage.storage import Storage
from thermocline.disk import Disk
from thermocline.errors import Conflict, Corruption, Invalid, NotFound, TenantNotFound
from thermocline.format.sealed_json import check_owner, seal, unseal
from thermocline.names import DEFAULT_TENANT, is_tenant_name

HINT = "restore this file from a backup of this lake; the tenant's tables are untouched"

_UNSEALED = frozenset({"name", "folder"})
_FOLDER = re.compile(rf"{TENANTS_FOLDER}/[0-9a-f]{{32}}")


class TenantCatalog:
    """The names of a node's tenants. Safe to use from many threads and processes."""

    def __init__(self, root: str | Storage, disk: Disk) -> None:
        self._storage = open_place(root, disk)
        self._known: dict[str, str] = {}

    @property
    def root(self) -> str:
        """The lake's folder."""
        return self._storage.root

    @property
    def lake(self) -> Storage:
        """The storage of the lake."""
        return self._storage

    def storage(self, name: str) -> Storage:
        """Return the storage of a tenant's folder; `TenantNotFound` if unknown."""
        folder = self.folder(name)
        return self._storage.within(folder) if folder else self._storage

    def folder(self, name: str) -> str:
        """Return a tenant's folder, relative to the lake's; `TenantNotFound` if unknown."""
        if name == DEFAULT_TENANT:
            return ""
        if name not in self._known:  # a name's file is never changed
            try:
                self._known[name] = self._read(name)
            except (NotFound, Invalid) as error:
                hint = "an administrator creates tenants"
                raise TenantNotFound("no such tenant", hint=hint, tenant=name[:80]) from error
        return self._known[name]

    def _read(self, name: str) -> str:
        path = f"{self.root}/{_name_path(name)}"
        data = self._storage.read(_name_path(name))
        found = unseal(data, path, hint=HINT, unsealed_fields=_UNSEALED)
        check_owner(found, path, read_lake_id(self._storage), hint=HINT)
        folder = str(found.get("folder"))
        if found.get("name") != name or not _FOLDER.fullmatch(folder):
            raise Corruption(
                "this file has the name of another tenant",
                hint=HINT,
                path=path,
                found=str(found.get("name"))[:80],
            )
        return folder

    def check_names(self) -> None:
        """Raise `Corruption` when a tenant's name is damaged, or a folder has lost its name."""
        there = {f"{TENANTS_FOLDER}/{name}" for name in self._storage.list_names(TENANTS_FOLDER)}
        # Order matters: names are read after folders, because a name is created before its folder.
        named = {self.folder(name) for name in self}
        for one in sorted(there - named):
            if _FOLDER.fullmatch(one):
                raise Corruption(
                    "a tenant's folder has no name: its file in tenants/names/ is missing",
                    hint="restore tenants/names/<tenant>.json from a backup of this lake; if the "
                    "tenant is no longer needed, move its folder away",
                    path=f"{self.root}/{one}",
                )

    def create(self, name: str) -> None:
        """Make a tenant; `Conflict` when there is one of this name."""
        folder = f"{TENANTS_FOLDER}/{new_id()}"
        lake_id = read_lake_id(self._storage)
        made = seal({"name": name, "folder": folder, "lake_id": lake_id})
        is_made = name != DEFAULT_TENANT and self._storage.put_new(_name_path(name), made)
        # An object store's client that lost the answer has tried again, and found its own file.
        if not is_made and (name == DEFAULT_TENANT or self.folder(name) != folder):
            hint = "choose another name"
            raise Conflict("there is a tenant of this name already", hint=hint, tenant=name)

    def __iter__(self) -> Iterator[str]:
        yield DEFAULT_TENANT
        stored = sorted(one.path for one in self._storage.list(f"{TENANTS_FOLDER}/names"))
        for path in stored:
            name = path.rpartition("/")[2].removesuffix(".json")
            if path.endswith(".json") and is_tenant_name(name):
                yield name


def _name_path(name: str) -> str:
    if not is_tenant_name(name):
        raise Invalid(
            "this cannot be the name of a tenant",
            hint="use lower case letters, digits and underscores, at most 40, no digit first",
            name=name[:80],
        )
    return f"{TENANTS_FOLDER}/names/{name}.json"
