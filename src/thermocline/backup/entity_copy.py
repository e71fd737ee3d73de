"""Copies a lake's entities out of PostgreSQL into a backup, at one moment for each tenant.

In:   the lake's settings and folder; a function that puts files into the copy
Out:  `entities/<tenant>/` in the copy; the table versions that match it

- The tables of a tenant's entities must be copied at exactly these versions. Then the copy has
  every change committed at that moment, also changes that no export has carried yet.
- If the lake's embedded server is not running, it is started for the copy and stopped afterwards.
"""

import os
from collections.abc import Callable

from thermocline.cold.tenants import TenantCatalog
from thermocline.config import EMBEDDED, LakeSettings
from thermocline.disk import OsDisk
from thermocline.entity.postgres_service import FOLDER as POSTGRES_FOLDER
from thermocline.entity.postgres_service import PostgresService
from thermocline.entity.restore import DUMP_NAME, FOLDER
from thermocline.format.layout import Version
from thermocline.hot.postgres.export.dump import dump
from thermocline.hot.postgres.schema.migrate import open_tenant, tenant_names
from thermocline.hot.postgres.server.cluster import running_server

Put = Callable[[str, bytes], None]


def copy_entities(settings: LakeSettings, data: str, put: Put) -> dict[str, Version]:
    """Put the entities of every tenant into a copy; return the versions by table id.

    `Unavailable` when PostgreSQL cannot be reached: the copy would lack changes not yet exported.
    """
    is_ours = settings.postgres == EMBEDDED
    folder = os.path.join(data, POSTGRES_FOLDER)
    if is_ours and not os.path.isdir(folder):
        return {}
    was_running = not is_ours or running_server(folder) is not None
    half = PostgresService(settings, data)
    heads: dict[str, Version] = {}
    try:
        pool = half.pool()
        known = set(tenant_names(pool))
        for name in (name for name in TenantCatalog(data, OsDisk()) if name in known):
            prefix = f"{FOLDER}/{name}"
            tenant = open_tenant(pool, name)
            dumped = dump(pool, tenant, lambda part, body: put(f"{prefix}/{part}", body))  # noqa: B023
            put(f"{prefix}/{DUMP_NAME}", dumped.data)
            heads |= dumped.heads
    finally:
        half.close(stop_embedded=not was_running)
    return heads
