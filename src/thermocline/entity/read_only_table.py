"""An entity type whose PostgreSQL was not reachable since this process began.

In:   the type's table in the lake, the error of PostgreSQL
Out:  answers of the lake in mode `best_effort`; `Unavailable` in the other modes

- The contracts are the copies in the table's folder.
- Each request constructs it again: so a request after PostgreSQL's return gets both halves.
"""

from functools import cached_property
from typing import Any, NoReturn

from thermocline.cold.catalog import Catalog
from thermocline.cold.table import ColdTable
from thermocline.entity.contract_copy import read_contract_copies
from thermocline.entity.table import EntityTable
from thermocline.errors import NotFound, Unavailable
from thermocline.format.log.action import ENTITIES_FEATURE
from thermocline.hot.postgres.schema.layout import Layout


class _AbsentPostgres:
    """Replaces the PostgreSQL objects of a table: every attribute raises the error."""

    def __init__(self, why: Unavailable) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        why = self._why
        raise Unavailable(why.message, hint=why.hint, **why.facts) from why


class ColdEntityTable(EntityTable):
    """The entities of a type, read from the lake only. Any thread may use it."""

    def __init__(self, name: str, table: ColdTable, why: Unavailable) -> None:
        absent: Any = _AbsentPostgres(why)
        super().__init__(absent, absent, table)
        self._name = name

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


def cold_table(catalog: Catalog, name: str, why: Unavailable) -> ColdEntityTable:
    """Return a type's entities in the lake; raise `why` if the lake has no such type."""
    try:
        table = catalog.table(name)
    except NotFound:
        raise why from None
    if ENTITIES_FEATURE not in table.state().spec.features:
        raise why
    return ColdEntityTable(name, table, why)
