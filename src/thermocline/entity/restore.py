"""Loads the entities of a restored data folder when their tenant is first opened.

In:   `entities/<tenant>/` in the data folder, as `backup` copied it
Out:  the same entities in PostgreSQL; the folder's files are removed

- PostgreSQL need not be there when a lake is restored: it is asked when entities are.
- Crash here: between loading and removing. The next opening finds the rows there, by the name of
  the store that they are of, and removes the files.
- Each part is compared with its checksum before a row of it is loaded. `dump.json` says which
  parts there are and is removed last, so parts without it prove that it was lost.
"""

from collections.abc import Mapping
from contextlib import suppress

from thermocline.disk import OsDisk, translate_errors
from thermocline.errors import Corruption, NotFound
from thermocline.format.sealed_json import crc32c
from thermocline.hot.postgres.export.dump import HINT, load, parse_dump
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.pool import Pool

FOLDER = "entities"
DUMP_NAME = "dump.json"


def load_restored(pool: Pool, tenant: Tenant, root: str) -> bool:
    """Load the restored entities of a tenant; return whether there were any.

    `Conflict` when PostgreSQL already has other entities of the tenant.
    """
    disk = OsDisk()
    folder = f"{root}/{FOLDER}/{tenant.name}"
    path = f"{folder}/{DUMP_NAME}"
    parts = _parts(disk, folder)
    if disk.size(path) is None:
        if parts:
            raise Corruption(
                "the entities of a restored lake cannot be loaded: their dump.json is missing",
                hint=f"{HINT}; if PostgreSQL has the entities already, remove this folder",
                path=path,
            )
        return False
    with translate_errors(path):
        dumped = parse_dump(disk.read(path), path, tenant.name)
    load(pool, tenant, dumped, lambda name: _read_part(disk, folder, name, dumped.checksums))
    # Order matters: the file that says what the others are goes last.
    with translate_errors(folder):
        for name in [*parts, DUMP_NAME]:
            with suppress(FileNotFoundError):
                disk.unlink(f"{folder}/{name}")
    return True


def _parts(disk: OsDisk, folder: str) -> list[str]:
    with translate_errors(folder):
        try:
            return [one.name for one in disk.entries(folder) if one.name != DUMP_NAME]
        except FileNotFoundError:
            return []


def _read_part(disk: OsDisk, folder: str, name: str, checksums: Mapping[str, str]) -> bytes:
    """Return a part whose bytes are those that were copied; `Corruption` otherwise."""
    path = f"{folder}/{name}"
    try:
        with translate_errors(path):
            data = disk.read(path)
    except NotFound as error:
        raise Corruption(
            "a part of the restored entities is missing", hint=HINT, path=path
        ) from error
    expected, found = checksums.get(name), crc32c(data)
    if expected is not None and expected != found:
        raise Corruption(
            "a part of the restored entities is not what was copied",
            hint=HINT,
            path=path,
            expected=expected,
            found=found,
        )
    return data
