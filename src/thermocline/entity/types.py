"""The entity types of one tenant: each a contract in PostgreSQL and a table in the lake.

In:   names and JSON Schema documents
Out:  `EntityTable`s

- A type's table is created before its contract is committed. So a name that another lake table uses
  is refused before anything is written. After a crash in between, the next process that registers
  or opens the type finishes the registration.
- A type is bound to one table permanently: PostgreSQL stores the table's id and refuses another.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from thermocline.cold.catalog import Catalog
from thermocline.cold.change.export_plan import create_entity_spec
from thermocline.cold.table import ColdTable
from thermocline.entity.columns import fit_table
from thermocline.entity.contract_copy import copy_contracts
from thermocline.entity.export import roll_forward
from thermocline.entity.table import EntitySettings, EntityTable, open_entity_table
from thermocline.errors import Conflict, NotFound, Unavailable
from thermocline.format.argument import check_text
from thermocline.format.log.action import ENTITIES_FEATURE
from thermocline.hot.postgres.revision.change import FeedPage
from thermocline.hot.postgres.revision.change_feed import ChangeFeed
from thermocline.hot.postgres.schema.layout import Layout
from thermocline.hot.postgres.schema.registry import Evolve, TypeRegistry
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.store.operation import (
    TypedOperation,
    WriteResult,
    parse_typed_operations,
)
from thermocline.hot.postgres.store.transact import transact


class EntityCatalog:
    """The entity types of a tenant. Any thread may use it."""

    def __init__(
        self,
        pool: Pool,
        tenant: Tenant,
        catalog: Catalog,
        settings: EntitySettings | None = None,
        evolve: Evolve | None = None,
    ) -> None:
        self.registry = TypeRegistry(pool, tenant, evolve)
        self.feed = ChangeFeed(pool, tenant)
        self._catalog = catalog
        self._settings = settings
        self._lock = threading.Lock()
        self._opened: dict[str, EntityTable] = {}

    def register(self, name: str, document: Any) -> EntityTable:
        """Register a version of a type's contract and return its entities.

        When this returns, the type can be written and read, also in SQL. `Invalid` when the
        document is not a contract, or is incompatible with the version before. `Conflict` when a
        table of this name has other rows. After either error, nothing is registered.
        """
        layout = self.registry.register(name, document, lambda: self._claim_table(name))
        opened = self.table(name)
        # Order matters: the log has the new columns before a reader uses the new contract.
        self._fit_table(opened, layout)
        opened.store.reload()
        return opened

    def table(self, name: str) -> EntityTable:
        """Return the entities of a type; `NotFound` when no type has this name."""
        check_text(name, "name")
        with self._lock:
            if name not in self._opened:
                opened = open_entity_table(
                    self.registry.pool,
                    self.registry.tenant,
                    name,
                    self._lake_table(name),
                    self._settings,
                )
                opened.source.attach(opened.table.state().spec.table_id)
                self._fit_table(opened, opened.store.layout)
                self._opened[name] = opened
            return self._opened[name]

    def changes(self, types: Sequence[str] | None, after: str | None, limit: int) -> FeedPage:
        """Return the next changes of types, or of all; see `change_feed.py`."""
        names = self.names() if types is None else types
        stores = {name: self.table(name).store for name in names}
        return self.feed.read(stores, after, limit)

    def names(self) -> list[str]:
        """Return the names of all types, in order."""
        return self.registry.names()

    def transact(
        self,
        operations: Sequence[TypedOperation | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
    ) -> list[WriteResult]:
        """Run operations of several types in one transaction; see `transact.py`."""
        parsed = parse_typed_operations(operations)
        counts = Counter(one.type for one in parsed)
        tables = {name: self.table(name) for name in counts}
        for name, table in tables.items():
            table.admit_writes(counts[name])
        stores = {name: table.store for name, table in tables.items()}
        return transact(stores, parsed, idempotency_key=idempotency_key)

    def _lake_table(self, name: str) -> ColdTable:
        self.registry.layout(name)  # create no table for a type that does not exist
        return self._claim_table(name)

    def _claim_table(self, name: str) -> ColdTable:
        """Return the lake table of a type, created if missing; `Conflict` if it has other rows."""
        try:
            table = self._catalog.table(name)
        except NotFound:
            try:
                return self._catalog.create(name, create_entity_spec(name))
            except Conflict:
                table = self._catalog.table(name)  # another process has created it meanwhile
        if ENTITIES_FEATURE not in table.state().spec.features:
            hint = "give the type another name"
            raise Conflict("a table of this name has other rows", hint=hint, table=name)
        return table

    def _fit_table(self, opened: EntityTable, layout: Layout) -> None:
        """Give the table its columns, so that queries can use them before the first export."""
        fit_table(opened.table, layout.contract)
        roll_forward(opened.source, opened.table)
        if self._settings is None or not self._settings.is_read_only:
            copy_contracts(opened.table, layout.contracts)


def open_without_postgres(catalog: Catalog, name: str, why: Unavailable) -> EntityTable:
    """Return a type's entities in the lake; raise `why` if the lake has no such type.

    They answer in mode `best_effort`. A later request opens them again: so, after PostgreSQL's
    return, it gets both halves.
    """
    try:
        table = catalog.table(name)
    except NotFound:
        raise why from None
    if ENTITIES_FEATURE not in table.state().spec.features:
        raise why
    return EntityTable(name, table, why)
