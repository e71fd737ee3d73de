"""The entity types of one tenant: each a contract in PostgreSQL and a table in the lake.

In:   names and JSON Schema documents
Out:  `EntityTable`s

- A type's table is made before its contract is committed, so a name that the lake gave to other
  rows is refused with nothing done. Whatever died in between is finished by the next one who
  registers or opens the type.
- A type goes with one table for ever: PostgreSQL knows its id, and refuses another.
"""

import threading
from typing import Any

from thermocline.entity.column import fit_table
from thermocline.entity.contract_copy import copy_contracts
from thermocline.entity.export import roll_forward
from thermocline.entity.room import EntitySettings
from thermocline.entity.table import EntityTable
from thermocline.errors import Conflict, NotFound
from thermocline.format.action import ENTITIES
from thermocline.format.argument import check_text
from thermocline.hot.postgres.layout import Layout
from thermocline.hot.postgres.pool import Pool
from thermocline.hot.postgres.registry import Registry
from thermocline.hot.postgres.tenant import Tenant
from thermocline.lake.catalog import Catalog
from thermocline.lake.supersede import entity_spec
from thermocline.lake.table import Table


class EntityTypes:
    """The entity types of a tenant. Any thread may use it."""

    def __init__(
        self,
        pool: Pool,
        tenant: Tenant,
        catalog: Catalog,
        settings: EntitySettings | None = None,
    ) -> None:
        self.registry = Registry(pool, tenant)
        self._catalog = catalog
        self._settings = settings
        self._lock = threading.Lock()
        self._opened: dict[str, EntityTable] = {}

    def register(self, name: str, document: Any) -> EntityTable:
        """Register a version of a type's contract and return its entities.

        When this returns, the type can be written and read, in SQL too. `Invalid` when the
        contract is none, or may not follow the version before. `Conflict` when a table of this
        name holds other rows. After either, nothing was registered.
        """
        layout = self.registry.register(name, document, lambda: self._claimed(name))
        opened = self.table(name)
        # Order matters: whoever reads by the new contract finds its columns in the log.
        self._fit(opened, layout)
        opened.store.reload()
        return opened

    def table(self, name: str) -> EntityTable:
        """Return the entities of a type; `NotFound` when none of this name is registered."""
        check_text(name, "name")
        with self._lock:
            if name not in self._opened:
                opened = EntityTable(
                    self.registry.pool,
                    self.registry.tenant,
                    name,
                    self._cold_table(name),
                    self._settings,
                )
                opened.source.attach(opened.table.state().spec.table_id)
                self._fit(opened, opened.store.layout)
                self._opened[name] = opened
            return self._opened[name]

    def names(self) -> list[str]:
        """Return the names of all types, in order."""
        return self.registry.names()

    def _cold_table(self, name: str) -> Table:
        self.registry.layout(name)  # no table is made for a type that does not exist
        return self._claimed(name)

    def _claimed(self, name: str) -> Table:
        """Return the table of a type, made if it is not there; `Conflict` if it is another's."""
        try:
            table = self._catalog.table(name)
        except NotFound:
            try:
                return self._catalog.create(name, entity_spec(name))
            except Conflict:
                table = self._catalog.table(name)  # made meanwhile by somebody else
        if ENTITIES not in table.state().spec.features:
            hint = "give the type another name"
            raise Conflict("a table of this name holds no entities", hint=hint, table=name)
        return table

    def _fit(self, opened: EntityTable, layout: Layout) -> None:
        """Give the table its columns, so that it can be asked for them before the first export."""
        fit_table(opened.table, layout.contract)
        roll_forward(opened.source, opened.table)
        if self._settings is None or not self._settings.is_read_only:
            copy_contracts(opened.table, layout.contracts)
