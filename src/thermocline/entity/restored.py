"""Loads the entities of a restored data folder when their tenant is first opened.

In:   `entities/<tenant>/` in the data folder, as `backup` copied it
Out:  the same entities in PostgreSQL; the folder's files are removed

- A restore of a lake does not need PostgreSQL: the entities are loaded at their first use.
- Crash here: between loading and removing. The next process finds the rows in PostgreSQL by their
  store id, and removes the files.
"""

from contextlib import suppress

from thermocline.disk import OsDisk, translated
from thermocline.hot.postgres.dump import load, parse_dump
from thermocline.hot.postgres.pool import Pool
from thermocline.hot.postgres.tenant import Tenant

FOLDER = "entities"
DUMP_NAME = "dump.json"


def load_restored(pool: Pool, tenant: Tenant, root: str) -> bool:
    """Load the restored entities of a tenant; return whether there were any.

    `Conflict` when PostgreSQL already has other entities of the tenant.
    """
    disk = OsDisk()
    folder = f"{root}/{FOLDER}/{tenant.name}"
    path = f"{folder}/{DUMP_NAME}"
    if disk.size(path) is None:
        return False

    def read(name: str) -> bytes:
        with translated(f"{folder}/{name}"):
            return disk.read(f"{folder}/{name}")

    load(pool, tenant, parse_dump(read(DUMP_NAME)), read)
    # Order matters: `dump.json` is removed first; without it the other files are ignored.
    with translated(folder):
        disk.unlink(path)
        for entry in disk.entries(folder):
            with suppress(FileNotFoundError):
                disk.unlink(f"{folder}/{entry.name}")
    return True
