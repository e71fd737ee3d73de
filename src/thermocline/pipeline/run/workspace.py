"""The workspace of jobs: the tables of one tenant, beside its writers and readers.

In:   a lake's folder or its address in a store, a tenant, and its node's address if one runs
Out:  tables to rewrite, exact views, and flushes on demand

- Jobs commit through the tables' logs like every writer; no node has to run or to stop.
- The node that owns the journal owns the hot rows: a job reads them, and asks the node to flush.
- A lake in another place than its nodes' data folders may have several journals. A job asks the
  nodes for their hot rows, and asks all of them to flush.
"""

import os
import time as clock
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thermocline.cold.catalog import Catalog
from thermocline.cold.storage.open_storage import is_store_address
from thermocline.cold.table import ColdTable
from thermocline.cold.tenants import TenantCatalog
from thermocline.config import EMBEDDED, LakeSettings
from thermocline.disk import OsDisk
from thermocline.errors import Conflict, Invalid, NotFound
from thermocline.format.instant import NS_PER_S
from thermocline.format.log.action import ENTITIES_FEATURE, TableSpec
from thermocline.lake import Lake
from thermocline.names import DEFAULT_TENANT, is_table_name
from thermocline.node import Node, default_data_folder

if TYPE_CHECKING:
    from thermocline.entity.postgres_service import PostgresService
    from thermocline.entity.types import EntityCatalog


class JobWorkspace:
    """The tables of a tenant, for jobs. Close it after use."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        tenant: str = DEFAULT_TENANT,
        *,
        data: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        settings: LakeSettings | None = None,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        """`data` is the node's data folder, if the lake is in another place."""
        place = os.fspath(root)
        is_store = is_store_address(place)
        self.root = place if is_store else os.path.abspath(place)
        self._data = os.path.abspath(data) if data else None if is_store else self.root
        self.tenant = tenant
        self.url = url
        self._api_key = api_key
        self._settings = settings or LakeSettings()
        tenants = TenantCatalog(self.root, OsDisk())
        self._now_ns = now_ns or clock.time_ns
        self.catalog = Catalog(tenants.storage(tenant), lake=tenants.lake, now_ns=now_ns)
        identity = Catalog(self.root).identity()
        if identity is None:
            raise NotFound("there is no lake here", hint="check the path", folder=self.root)
        self.is_shared = identity.is_shared
        self._reader: Node | None = None
        self._postgres: PostgresService | None = None
        self._types: EntityCatalog | None = None
        self._has_started_server = False

    def now(self) -> datetime:
        """Return the time, in UTC, by the clock of the workspace."""
        return datetime.fromtimestamp(self._now_ns() / NS_PER_S, UTC)

    def tables(self) -> list[str]:
        """Return the names of the tables."""
        return [named.name for named in self.catalog]

    def table(self, name: str) -> ColdTable:
        """Return the cold half of a table; `NotFound` if it does not exist."""
        return self.catalog.table(name)

    def ensure_table(self, name: str, spec: TableSpec) -> ColdTable:
        """Return a table; create it if it does not exist."""
        assert is_table_name(name)
        with suppress(NotFound):
            return self.catalog.table(name)
        with suppress(Conflict):
            return self.catalog.create(name, spec)
        return self.catalog.table(name)

    def holds_entities(self, name: str) -> bool:
        """Tell whether the rows of a table are entities."""
        return ENTITIES_FEATURE in self.table(name).state().spec.features

    def lake(self) -> Lake:
        """Return the lake for reading: each hot and each cold row exactly once."""
        return self._open_reader().lake(self.tenant)

    def _open_reader(self) -> Node:
        if self._reader is None:
            is_shared = self.is_shared
            # A process without a journal asks every node, also the one on this machine.
            data = f"{default_data_folder(self.root)}/reader" if is_shared else self.data
            place = self.root if is_shared else self._elsewhere
            self._reader = Node(data, self._settings, lake=place, is_read_only=True)
        return self._reader

    def list_journals(self) -> list[str]:
        """Return the nodes of a shared lake that may have rows in their journals only."""
        peers = self._open_reader().peers if self.is_shared else None
        return [] if peers is None else [one.claim.label for one in peers.others()]

    @property
    def data(self) -> str:
        """The folder that has the lake's journal; `Invalid` if it is not known."""
        if self._data is None:
            raise Invalid(
                "the rows that are not flushed are in the data folder of the lake's node",
                hint="run the job on the node's machine, with its --data",
                lake=self.root,
            )
        return self._data

    @property
    def _elsewhere(self) -> str | None:
        return None if self._data == self.root else self.root

    def entities(self) -> "EntityCatalog | None":
        """Return the tenant's entity types; None if the lake has no PostgreSQL.

        If the lake's embedded server does not run, this starts it, and `close` stops it. If a node
        has restarted it since, the connections move to its new address.
        """
        if not self._settings.postgres:
            return None
        from thermocline.entity.postgres_service import FOLDER, PostgresService
        from thermocline.hot.postgres.server.cluster import running_server

        is_own, folder = self._settings.postgres == EMBEDDED, os.path.join(self.data, FOLDER)
        if self._types is None:
            if is_own:
                if not os.path.isdir(folder):
                    return None  # the server never existed, so it has no entities
                self._has_started_server = running_server(folder) is None
            self._postgres = PostgresService(self._settings, self.data)
            self._types = self._postgres.types(self.tenant, self.catalog)
        elif self._postgres is not None:
            pool = self._postgres.pool()  # restarts an embedded server that has died
            found = running_server(folder) if is_own else None
            if found is not None and found.dsn != pool.dsn:
                pool.move_to(found.dsn)  # its old port was taken, so it listens on another
        return self._types

    def flush(self, names: list[str]) -> None:
        """Flush the hot rows of these tables into the lake.

        If a node owns the journal, the node flushes, otherwise this process does. `Unavailable` if
        the node, or one of several, cannot be reached.
        """
        from thermocline.entry_point import connect

        peers = self._open_reader().peers if self.is_shared else None
        if peers is not None:
            for name in names:
                peers.flush(self.table(name).state().spec.table_id)
            return
        if self.url is not None:
            with connect(self.url, api_key=self._api_key) as node:
                for name in names:
                    node.flush(name)
            return
        with Node(self.data, self._settings, lake=self._elsewhere) as own:
            lake = own.lake(self.tenant)
            for name in names:
                lake.flush(name)

    def close(self) -> None:
        """Close what was opened, and stop the server if this started it."""
        if self._postgres is not None:
            self._postgres.close(stop_embedded=self._has_started_server)
            self._postgres = self._types = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> "JobWorkspace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables())
