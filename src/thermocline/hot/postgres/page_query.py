"""Reads one page of entities: filtered, sorted, cut to the fields asked for, with its references.

In:   a `PageRequest`
Out:  a `Page`

- Pages are keyset pages: a page begins after a row, not at a number of rows, so it costs what it
  holds, and rows that come and go meanwhile move nothing.
- A page and its references are one statement, and with that as of one moment. Only a page that
  begins among values and ends among nulls takes a second.
- What many rows refer to comes once. It comes as rows of its own, as quick to read as those of
  the page: as JSON beside each row it took four times as long.
- Nothing is counted unless asked.
- PostgreSQL's rows alone are seen here; those moved to the lake are not.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from thermocline.errors import Invalid
from thermocline.hot.postgres.condition import ROW, Binds, condition
from thermocline.hot.postgres.layout import Layout
from thermocline.hot.postgres.operation import Entity
from thermocline.hot.postgres.order import Order, order_of
from thermocline.hot.postgres.page import Page, PageRequest
from thermocline.hot.postgres.pool import Connection
from thermocline.hot.postgres.relation import REFERENCES_MAX, Relation, reference, relation_of

LIMIT_MAX = 1_000
OWN = 0
"""The part of an answer that is the page itself; the others are numbered by their types."""
_FIXED = 7
"""What every row of an answer begins with: part, place, key, ver, contract, time, rest."""
_OTHER = "other"
_entity = functools.partial(tuple.__new__, Entity)
"""Makes an entity of a tuple of its parts, in a third of the time its class takes."""

Row = tuple[Any, ...]


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
        _check_limits(request)
        self._connection = connection
        self._layout = layout
        self._request = request
        self._binds = Binds()
        self._where = "true"
        if request.filter is not None:
            self._where = condition(layout, request.filter, self._binds)
        self._asked = dict(self._binds.values)
        self._order: Order = order_of(layout, request.sort, self._binds)
        self._relations = [relation_of(layout, name) for name in request.refs]
        names = dict.fromkeys(relation.target for relation in self._relations)
        self._targets = [targets[name] for name in names]
        self._sorted_from = _FIXED + len(layout.columns)
        self._sorted_to = self._sorted_from + len(self._order.terms)

    def page(self) -> Page:
        limit = self._request.limit
        rows: list[Row] = []
        refs: dict[str, dict[str, Entity]] = {target.name: {} for target in self._targets}
        for after in self._order.ranges(self._request.after, self._binds):
            rows += self._rows(after, limit - len(rows), refs)
            if len(rows) > limit:
                break
        next_page = None
        if len(rows) > limit:
            rows = rows[:limit]
            next_page = self._order.cursor(rows[-1][self._sorted_from : self._sorted_to])
        total = self._total() if self._request.with_total else None
        entities = self._cut(_entities(self._layout, rows, _FIXED))
        return Page(entities, next_page, total, refs)

    def _rows(self, after: str, limit: int, refs: dict[str, dict[str, Entity]]) -> list[Row]:
        """Return the rows of one stretch, one more than asked for if there is; add to `refs`."""
        query = self._query(after, limit)
        found = self._connection.execute(query, self._binds.values, binary=True).fetchall()
        if not self._targets:
            return found
        own = [row for row in found if row[0] == OWN]
        own.sort(key=_place)  # the parts of a union come in any order
        start = self._sorted_to
        for part, target in enumerate(self._targets, OWN + 1):
            rows = [row for row in found if row[0] == part]
            others = _entities(target, rows, start)
            refs[target.name].update((one.id, one) for one in others)
            start += len(target.columns)
        return own

    def _query(self, after: str, limit: int) -> str:
        # Names come from the layout and from lists; what a caller gave is bound.
        rest = f"{ROW}.rest::text" if self._needs_rest() else "null::text"
        row = (
            f"{ROW}.id, {ROW}.ver, {ROW}.schema_version, {ROW}.written_at, {rest} as rest"
            f"{self._layout.shown_text(ROW)}"
        )
        end = (
            f"from {self._layout.table} as {ROW} where {self._where} and {after} "
            f"order by {self._order.text} limit {limit + 1}"
        )
        if not self._targets:
            return f"select {OWN}, 0, {row}, {self._order.values} {end}"
        columns = "".join(f", c{n}" for n in range(len(self._layout.columns)))
        sorts = "".join(f", s{n}" for n in range(len(self._order.terms)))
        names = ", ".join(f"k{n}" for n in range(len(self._relations)))
        blanks = "".join(target.blank_text for target in self._targets)
        keys = ", ".join(reference(self._layout, one, self._binds) for one in self._relations)
        head = f"place, id, ver, schema_version, written_at, rest{columns}{sorts}"
        page = (
            f"with page ({head}, {names}) as materialized (select row_number() over "  # noqa: S608
            f"(order by {self._order.text}), {row}, {self._order.values}, {keys} {end}) "
            f"select {OWN}, {head}{blanks} from page"
        )
        parts = [self._part(part, limit) for part in range(len(self._targets))]
        return " union all ".join([page, *parts])

    def _part(self, number: int, limit: int) -> str:
        """Return the rows of one other type that the page refers to, each once."""
        target = self._targets[number]
        blank = self._layout.blank_text + ", null" * len(self._order.terms)
        columns = "".join(
            one.shown_text(_OTHER) if one is target else one.blank_text for one in self._targets
        )
        keys = " union ".join(
            f"select {_key(relation, place)} from page where place <= {limit}"  # noqa: S608
            for place, relation in enumerate(self._relations)
            if relation.target == target.name
        )
        return (
            f"select {OWN + 1 + number}, 0, {_OTHER}.id, {_OTHER}.ver, {_OTHER}.schema_version, "  # noqa: S608
            f"{_OTHER}.written_at, {_OTHER}.rest::text{blank}{columns} "
            f"from {target.table} as {_OTHER} where {_OTHER}.id = any(array({keys}))"
        )

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

    def _cut(self, entities: list[Entity]) -> list[Entity]:
        """Return the entities with the fields that were asked for."""
        fields = self._request.fields
        if fields is None:
            return entities
        documents = [one.document for one in entities]
        cut = ({name: one[name] for name in fields if name in one} for one in documents)
        return [one._replace(document=made) for one, made in zip(entities, cut, strict=True)]

    def _total(self) -> int:
        query = f"select count(*) from {self._layout.table} as {ROW} where {self._where}"  # noqa: S608
        row = self._connection.execute(query, self._asked).fetchone()
        assert row is not None
        return int(row[0])


def _check_limits(request: PageRequest) -> None:
    limit = request.limit
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= LIMIT_MAX:
        hint = f"use 1 to {LIMIT_MAX}"
        raise Invalid("not a size of a page", hint=hint, limit=limit)
    if len(request.refs) > REFERENCES_MAX:
        hint = f"ask for at most {REFERENCES_MAX}"
        raise Invalid("too many references", hint=hint, refs=len(request.refs))


def _place(row: Row) -> int:
    return int(row[1])


def _key(relation: Relation, place: int) -> str:
    return f"jsonb_array_elements_text(k{place})" if relation.is_list else f"k{place}"


def _entities(layout: Layout, rows: Sequence[Row], start: int) -> list[Entity]:
    """Return rows as entities; the values of the type's columns begin at `start`."""
    if not rows:
        return []
    columns = list(zip(*rows, strict=True))
    _, _, keys, vers, versions, times, rests = columns[:_FIXED]
    values = columns[start : start + len(layout.columns)]
    documents = layout.documents_of(versions, values, rests)
    return list(map(_entity, zip(keys, vers, versions, times, documents, strict=True)))
