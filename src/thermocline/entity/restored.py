"""Entities that came with a restored data folder: loaded when their tenant is first opened.

In:   `entities/<tenant>/` in the data folder, as `backup` copied it
Out:  the same entities in PostgreSQL; the folder is gone

- PostgreSQL need not be there when a lake is restored: it is asked when entities are.
- Crash here: between loading and removing. Whoever comes next finds the rows there, by the name
  of the store that they are of, and removes the files.
"""

from contextlib import suppress

from thermocline.disk import OsDisk, translated
from thermocline.hot.postgres.dump import load, parse_dump
from thermocline.hot.postgres.pool import Pool
from thermocline.hot.postgres.tenant import Tenant

FOLDER = "entities"
DUMP_NAME = "dump.json"


def load_restored(pool: Pool, tenant: Tenant, root: str) -> bool:
    """Load what a restore left for a tenant; return whether there was any.

    `Conflict` when PostgreSQL has other entities of the tenant already.
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
    # Order matters: without the first file the others are nobody's.
    with translated(folder):
        disk.unlink(path)
        for entry in disk.entries(folder):
            with suppress(FileNotFoundError):
                disk.unlink(f"{folder}/{entry.name}")
    return True
