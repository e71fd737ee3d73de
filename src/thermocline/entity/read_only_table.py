"""An entity type whose PostgreSQL was not reachable since this process began.

In:   the type's table in the lake, the error of PostgreSQL
Out:  answers of the lake in mode `best_effort`; `Unavailable` in the other modes

- The contracts are the copies in the table's folder.
- Each request constructs it again: so a request after PostgreSQL's return gets both halves.
"""

import threading
from functools import cached_property
from typing import Any, NoReturn

from thermocline.cold.catalog import Catalog
from thermocline.cold.entity_view import HiddenPositions
from thermocline.cold.table import ColdTable
from thermocline.entity.change_limit import ChangeLimit, EntitySettings
from thermocline.entity.contract_copy import read_contract_copies
from thermocline.entity.degraded_read import FindAnswerCache, ScanAnswerCache
from thermocline.entity.table import EntityTable
from thermocline.errors import NotFound, Unavailable
from thermocline.format.log.action import ENTITIES_FEATURE
from thermocline.hot.postgres.schema.layout import Layout


class _AbsentPostgres:
    """Replaces the PostgreSQL objects of a table: every attribute raises the error."""

    def __init__(self, why: Unavailable) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise self.error() from self._why

    def error(self) -> Unavailable:
        return Unavailable(self._why.message, hint=self._why.hint, **self._why.facts)


class ColdEntityTable(EntityTable):
    """The entities of a type, read from the lake only. Any thread may use it."""

    def __init__(self, name: str, table: ColdTable, why: Unavailable) -> None:
        self.settings = EntitySettings()
        self.table = table
        self._name = name
        self._why = why
        absent: Any = _AbsentPostgres(why)
        self.store = self.source = self._views = absent
        self._change_limit = ChangeLimit(self.settings, self._refuse)
        self._scan_cache = ScanAnswerCache()
        self._find_cache = FindAnswerCache()
        self._exporting = threading.Lock()
        self._places = HiddenPositions(table.storage)
        self._last_parts = None
        self._last_snapshot = None

    @property
    def name(self) -> str:
        """The type's name."""
        return self._name

    @cached_property
    def layout(self) -> Layout:
        """The type according to the copies of its contracts, without PostgreSQL's columns."""
        try:
            return Layout(0, self._name, "", (), read_contract_copies(self.table))
        except NotFound as error:
            raise Unavailable(error.message, hint=error.hint, type=self._name) from error

    def _refuse(self) -> NoReturn:
        raise Unavailable(self._why.message, hint=self._why.hint, **self._why.facts) from self._why


def cold_table(catalog: Catalog, name: str, why: Unavailable) -> ColdEntityTable:
    """Return a type's entities in the lake; raise `why` if the lake has no such type."""
    try:
        table = catalog.table(name)
    except NotFound:
        raise why from None
    if ENTITIES_FEATURE not in table.state().spec.features:
        raise why
    return ColdEntityTable(name, table, why)
