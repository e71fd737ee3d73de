"""One page of entities: filtered, sorted, cut to the fields asked for, with what they refer to.

In:   a `PageRequest`
Out:  a `Page`: entities in order, the cursor of the next page, the entities referred to

- Pages are keyset pages: a page begins after a row, not at a number of rows, so it costs what it
  holds, and rows that come and go meanwhile move nothing.
- A page and its references are one statement, and with that as of one moment. Only a page that
  begins among values and ends among nulls takes a second.
- Nothing is counted unless asked.
- PostgreSQL's rows alone are seen here; those moved to the lake are not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thermocline.errors import Invalid
from thermocline.hot.postgres.filter import ROW, Binds, Filter, condition
from thermocline.hot.postgres.layout import Layout
from thermocline.hot.postgres.operation import Entity
from thermocline.hot.postgres.order import Order, order_of
from thermocline.hot.postgres.pool import Connection
from thermocline.hot.postgres.relation import (
    REFERENCES_MAX,
    Relation,
    entities_in,
    referred,
    relation_of,
)

LIMIT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What is asked for. `sort` names fields, `-` before one for descending."""

    filter: Filter | None = None
    sort: tuple[str, ...] = ()
    fields: Sequence[str] | None = None
    after: str | None = None
    limit: int = 100
    refs: tuple[str, ...] = ()
    with_total: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Entities in order; `after` is the cursor of the next page, None when this is the last.

    `refs` has the entities referred to by type and key. `total` is None unless asked for.
    """

    entities: list[Entity]
    after: str | None = None
    total: int | None = None
    refs: dict[str, dict[str, Entity]] = field(default_factory=dict)


def read_page(
    connection: Connection, layout: Layout, request: PageRequest, targets: Mapping[str, Layout]
) -> Page:
    """Return one page; `targets` are the types that its references lead to, by name."""
    return _Reading(connection, layout, request, targets).page()


class _Reading:
    """The reading of one page."""

    def __init__(
        self,
        connection: Connection,
        layout: Layout,
        request: PageRequest,
        targets: Mapping[str, Layout],
    ) -> None:
        limit = request.limit
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= LIMIT_MAX:
            hint = f"use 1 to {LIMIT_MAX}"
            raise Invalid("not a size of a page", hint=hint, limit=limit)
        if len(request.refs) > REFERENCES_MAX:
            hint = f"ask for at most {REFERENCES_MAX}"
            raise Invalid("too many references", hint=hint, refs=len(request.refs))
        self._connection = connection
        self._layout = layout
        self._request = request
        self._targets = targets
        self._binds = Binds()
        self._where = "true"
        if request.filter is not None:
            self._where = condition(layout, request.filter, self._binds)
        self._asked = dict(self._binds.values)
        self._order: Order = order_of(layout, request.sort, self._binds)
        self._relations = [relation_of(layout, name) for name in request.refs]

    def page(self) -> Page:
        limit = self._request.limit
        rows: list[tuple[Any, ...]] = []
        for after in self._order.ranges(self._request.after, self._binds):
            rows += self._rows(after, limit + 1 - len(rows))
            if len(rows) > limit:
                break
        sorted_from = 5 + len(self._layout.columns)
        sorted_to = sorted_from + len(self._order.terms)
        next_page = None
        if len(rows) > limit:
            rows = rows[:limit]
            next_page = self._order.cursor(rows[-1][sorted_from:sorted_to])
        total = self._total() if self._request.with_total else None
        refs = self._referred([row[sorted_to:] for row in rows])
        return Page([self._entity(row[:sorted_from]) for row in rows], next_page, total, refs)

    def _rows(self, after: str, limit: int) -> list[tuple[Any, ...]]:
        rest = f"{ROW}.rest::text" if self._needs_rest() else "null"
        columns = "".join(f", {ROW}.{column.sql_name}" for column in self._layout.columns)
        refs = "".join(f", {self._reference(relation)}" for relation in self._relations)
        # Names come from the layout and from lists; what a caller gave is bound.
        query = (
            f"select {ROW}.id, {ROW}.ver, {ROW}.schema_version, {ROW}.written_at, "  # noqa: S608
            f"{rest}{columns}, {self._order.values}{refs} from {self._layout.table} as {ROW} "
            f"where {self._where} and {after} order by {self._order.text} limit {limit}"
        )
        return self._connection.execute(query, self._binds.values, binary=True).fetchall()

    def _reference(self, relation: Relation) -> str:
        return referred(self._layout, relation, self._targets[relation.target], self._binds)

    def _needs_rest(self) -> bool:
        """Tell whether anything asked for is outside of the columns."""
        fields = self._request.fields
        columns = self._layout.by_name
        # A null of a column's property stands in the rest.
        return fields is None or any(
            name not in columns or self._may_be_null(name) for name in fields
        )

    def _may_be_null(self, name: str) -> bool:
        kinds = {part.name: part.kind for part in self._layout.contract.kind.fields}
        return not self._layout.by_name[name].is_ready or kinds[name].nullable

    def _entity(self, row: tuple[Any, ...]) -> Entity:
        key, ver, version, written_at, rest, *values = row
        document = self._layout.document_of(version, values, rest)
        fields = self._request.fields
        if fields is not None:
            document = {name: document[name] for name in fields if name in document}
        return Entity(key, ver, version, written_at, document)

    def _referred(self, columns: list[tuple[Any, ...]]) -> dict[str, dict[str, Entity]]:
        found: dict[str, dict[str, Entity]] = {r.target: {} for r in self._relations}
        for row in columns:
            for relation, text in zip(self._relations, row, strict=True):
                for entity in entities_in(self._targets[relation.target], text):
                    found[relation.target][entity.id] = entity
        return found

    def _total(self) -> int:
        query = f"select count(*) from {self._layout.table} as {ROW} where {self._where}"  # noqa: S608
        row = self._connection.execute(query, self._asked).fetchone()
        assert row is not None
        return int(row[0])
