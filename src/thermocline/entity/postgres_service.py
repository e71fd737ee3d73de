"""A node's PostgreSQL: opened at its first use, exported by a clock, closed at the end.

In:   a DSN, or the folder of the lake's embedded server; entity tables to export
Out:  each tenant's entity types

- A node starts without its PostgreSQL and connects when it is reachable: until then only requests
  that need it are refused.
- The export clock has a separate thread: a server that does not answer delays no flush, and delays
  a close only briefly. An export cut off by a close is in the same state as after a crash.
- An embedded server that died is started again, and the connections follow it, also to another port
  and if another process started it. A read-only node never starts the embedded server.
"""

import os
import threading
from collections.abc import Callable, Iterable

from thermocline.cold.catalog import Catalog
from thermocline.config import EMBEDDED, LakeSettings
from thermocline.entity.restore import load_restored
from thermocline.entity.table import EntitySettings
from thermocline.entity.types import EntityCatalog
from thermocline.errors import ThermoclineError, Unavailable
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.schema.registry import Evolve
from thermocline.hot.postgres.server.cluster import (
    PostgresServer,
    is_dead,
    is_elsewhere,
    open_server,
    running_server,
    stop_server,
)
from thermocline.hot.postgres.session.pool import Pool

FOLDER = "postgres"
CLOSE_GRACE_S = 3.0
CLOSE_TIMEOUT_S = 10.0

ExportTasks = Callable[[], Iterable[Callable[[], object]]]
"""Returns, at each tick of the clock, one task for each table of entities."""


class PostgresService:
    """One PostgreSQL for all tenants of a node. Any thread may use it."""

    def __init__(self, settings: LakeSettings, root: str, *, is_read_only: bool = False) -> None:
        self._settings = settings
        self._is_read_only = is_read_only
        self._root = root
        self._folder = os.path.join(root, FOLDER)
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._wake = threading.Event()
        self._is_closed = False
        self._clock: threading.Thread | None = None
        self.error: ThermoclineError | None = None

    def pool(self) -> Pool:
        """Return the connection pool; start the embedded server if it does not run."""
        with self._lock:
            if self._is_closed:
                raise Unavailable("the lake is closed", hint="open it again")
            if self._pool is None:
                self._pool = Pool(self._server().dsn)
            elif self._is_gone(self._pool):
                self._pool.move_to(self._server().dsn)
            return self._pool

    def _server(self) -> PostgresServer:
        if self._settings.postgres != EMBEDDED:
            return open_server(dsn=self._settings.postgres)
        if not self._is_read_only:
            return open_server(folder=self._folder)
        found = running_server(self._folder)
        if found is None:
            hint = "open the lake for writing in another process: that starts its server"
            raise Unavailable("the lake's PostgreSQL does not run", hint=hint)
        return found

    def _is_gone(self, pool: Pool) -> bool:
        """Tell whether the embedded server died, or was restarted at another port.

        A server that only hangs still has its process and its address.
        """
        if self._settings.postgres != EMBEDDED or pool.breaker.state == "closed":
            return False
        return is_dead(self._folder) or is_elsewhere(self._folder, pool.dsn)

    def types(self, tenant: str, catalog: Catalog, evolve: Evolve | None = None) -> EntityCatalog:
        """Return a tenant's entity types; `evolve` judges their next contracts."""
        pool = self.pool()
        settings = EntitySettings(
            export_changes=self._settings.export_changes,
            export_age_s=self._settings.export_age_s,
            is_read_only=self._is_read_only,
        )
        opened = open_tenant(pool, tenant)
        if not self._is_read_only:
            load_restored(pool, opened, self._root)
        return EntityCatalog(pool, opened, catalog, settings, evolve)

    def start_exports(self, keyed: ExportTasks) -> None:
        """Start the clock thread, which exports tables when an export is due."""
        self._clock = threading.Thread(
            target=self._run, args=(keyed,), name="thermocline-export", daemon=True
        )
        self._clock.start()

    def _run(self, keyed: ExportTasks) -> None:
        while not self._is_closed:
            trouble: ThermoclineError | None = None
            try:
                if self._pool is not None:
                    self.pool()
                for work in keyed():
                    if self._is_closed:
                        return
                    try:
                        work()
                    except ThermoclineError as error:
                        trouble = error  # one table's error does not stop the others
            except ThermoclineError as error:
                trouble = error
            except Exception as error:  # noqa: BLE001  the clock thread must not end
                trouble = Unavailable("an export failed", why=repr(error))
            self.error = trouble  # the changes stay in PostgreSQL; the next tick tries again
            self._wake.wait(self._settings.flush_look_s)

    def close(self, *, stop_embedded: bool) -> None:
        """Close the connections; with `stop_embedded` also stop the embedded server."""
        self._is_closed = True
        self._wake.set()
        if self._clock is not None:
            self._clock.join(CLOSE_GRACE_S)
        if self._pool is not None:
            self._pool.close(force=True)
        if self._clock is not None:
            self._clock.join(CLOSE_TIMEOUT_S)
        with self._lock:
            if self._pool is not None:
                self._pool.close(force=True)
                if stop_embedded and self._settings.postgres == EMBEDDED:
                    stop_server(self._folder)
