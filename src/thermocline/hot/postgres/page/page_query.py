"""Reads one page of entities: filtered, sorted, cut to the requested fields, with its references.

In:   a `PageRequest`
Out:  a `Page`

- Pages are keyset pages: a page begins after a row, not at a row number. So its cost depends on its
  size only, and rows written meanwhile do not shift it.
- One statement reads a page and its references, so both are of one snapshot. Only a page that
  begins among values and ends among nulls takes a second statement.
- An entity that many rows refer to is sent once, as a separate row, which is as fast to read as the
  page's rows: as JSON beside each row it took four times as long. An entity that is whole on the
  page is not sent again, unless a list of keys refers to it.
- Rows are counted only on request.
- It reads only PostgreSQL's rows, not those that were evicted to the lake.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from thermocline.errors import Invalid
from thermocline.hot.postgres.page.condition import ROW, Binds, condition
from thermocline.hot.postgres.page.order import SortOrder, order_of
from thermocline.hot.postgres.page.page import Page, PageRequest
from thermocline.hot.postgres.page.relation import (
    REFERENCES_MAX,
    EntityRelation,
    reference_expression,
    relation_of,
)
from thermocline.hot.postgres.schema.layout import Layout
from thermocline.hot.postgres.session.connect import Row
from thermocline.hot.postgres.store.operation import StoredEntity
from thermocline.names import PAGE_LIMIT_MAX

T = TypeVar("T")
PAGE_PART = 0
"""The part number of the page's rows in a result; other parts are numbered by their types."""
_FIXED = 5
"""The number of columns that every row begins with: key, ver, contract, time, rest."""
_PART, _POSITION = -2, -1
"""The columns of a row's part number and of its position in that part."""
_OTHER = "other"
_entity = functools.partial(tuple.__new__, StoredEntity)
"""Makes an entity of a tuple of its values, in a third of the class's time."""

ShownRow = tuple[Row, StoredEntity]
Fields = Sequence[str] | None


class QueryRunner(Protocol):
    """Runs a query in a separate transaction and converts its rows, as `Pool.run_query` does."""

    def __call__(
        self, query: str, values: Mapping[str, Any], made: Callable[[list[Row]], Sequence[T]]
    ) -> list[T]:
        """Run the query with values by name; `made` converts one chunk of rows after another."""
        ...


def read_page(
    ask: QueryRunner, layout: Layout, request: PageRequest, targets: Mapping[str, Layout]
) -> Page:
    """Return one page; `targets` are the types that its references point to, by name."""
    return _PageReader(ask, layout, request, targets).read()


def read_keys(ask: QueryRunner, layout: Layout, keys: Sequence[str]) -> list[StoredEntity]:
    """Return the existing entities of these keys, whole, in any order."""
    wanted = f"{ROW}.id = any(%(keys)s::text[])"
    query = f"select {row_text(layout)} from {layout.table} as {ROW} where {wanted}"  # noqa: S608
    return ask(query, {"keys": list(keys)}, lambda rows: entities_of(layout, rows))


class _PageReader:
    """Reads one page."""

    def __init__(
        self,
        ask: QueryRunner,
        layout: Layout,
        request: PageRequest,
        targets: Mapping[str, Layout],
    ) -> None:
        _check_limits(request)
        self._run_query = ask
        self._layout = layout
        self._request = request
        self._binds = Binds()
        self._where = "true"
        if request.filter is not None:
            self._where = condition(layout, request.filter, self._binds)
        self._asked = dict(self._binds.values)
        self._order: SortOrder = order_of(layout, request.sort, self._binds)
        self._relations = [relation_of(layout, name) for name in request.refs]
        names = dict.fromkeys(relation.target for relation in self._relations)
        self._targets = [targets[name] for name in names]
        self._others = [one for one in self._targets if one is not layout]
        self._on_page = [n for n, one in enumerate(self._relations) if self._may_be_on_page(one)]
        self._sorted_from = _FIXED + len(layout.columns)
        self._sorted_to = self._sorted_from + len(self._order.terms) - 1
        self._starts = self._column_starts()

    def read(self) -> Page:
        limit = self._request.limit
        found: list[ShownRow] = []
        refs: dict[str, dict[str, StoredEntity]] = {target.name: {} for target in self._targets}
        for after in self._order.ranges(self._request.after, self._binds):
            found += self._read_range(after, limit - len(found), refs)
            if len(found) > limit:
                break
        next_page = None
        if len(found) > limit:
            found = found[:limit]
            last, _ = found[-1]
            next_page = self._order.encode_cursor(
                [*last[self._sorted_from : self._sorted_to], last[0]]
            )
        total = self._count_rows() if self._request.with_total else None
        if self._on_page:
            refs[self._layout.name].update(self._references_on_page(found))
        return Page([entity for _, entity in found], next_page, total, refs)

    def _may_be_on_page(self, relation: EntityRelation) -> bool:
        """Tell whether the entities that a property refers to may be on the page, and whole."""
        is_own = relation.target == self._layout.name
        return is_own and not relation.is_list and self._request.fields is None

    def _column_starts(self) -> list[int]:
        """Return the first column of each part's type in a row of the result."""
        starts, next_start = [_FIXED], self._sorted_to
        for target in self._targets:
            is_own = target is self._layout
            starts.append(_FIXED if is_own else next_start)
            next_start += 0 if is_own else len(target.columns)
        return starts

    def _references_on_page(self, found: list[ShownRow]) -> dict[str, StoredEntity]:
        """Return the entities on the page that other entities on the page refer to."""
        by_key = {entity.id: entity for _, entity in found}
        places = range(_PART - len(self._on_page), _PART)
        keys = {row[place] for place in places for row, _ in found}
        return {key: by_key[key] for key in keys & by_key.keys()}

    def _read_range(
        self, after: str, limit: int, refs: dict[str, dict[str, StoredEntity]]
    ) -> list[ShownRow]:
        """Return one range, with up to one row more than `limit`; add references to `refs`."""
        found = self._run_query(
            self._query_text(after, limit), self._binds.values, self._make_entities
        )
        if not self._targets:
            return found
        for row, entity in found:
            if row[_PART] != PAGE_PART:
                refs[self._targets[row[_PART] - 1].name][entity.id] = entity
        own = [one for one in found if one[0][_PART] == PAGE_PART]
        own.sort(key=lambda one: one[0][_POSITION])  # a union returns rows in any order
        return own

    def _make_entities(self, rows: list[Row]) -> list[ShownRow]:
        """Return rows of all parts with their entities."""
        fields = self._request.fields
        if not self._targets:
            return list(zip(rows, entities_of(self._layout, rows, _FIXED, fields), strict=True))
        found: list[ShownRow] = []
        for part, layout in enumerate((self._layout, *self._targets)):
            some = [row for row in rows if row[_PART] == part]
            shown = fields if part == PAGE_PART else None
            found += zip(some, entities_of(layout, some, self._starts[part], shown), strict=True)
        return found

    def _query_text(self, after: str, limit: int) -> str:
        # Names come from the layout and from fixed lists; the caller's values are parameters.
        rest = f"{ROW}.rest::text" if self._needs_rest() else "null::text"
        row = row_text(self._layout, rest, self._request.fields) + self._order.values
        end = (
            f"from {self._layout.table} as {ROW} where {self._where} and {after} "
            f"order by {self._order.text} limit {limit + 1}"
        )
        if not self._targets:
            return f"select {row} {end}"
        columns = "".join(f", c{n}" for n in range(len(self._layout.columns)))
        sorts = "".join(f", s{n}" for n in range(len(self._order.terms) - 1))
        names = ", ".join(f"k{n}" for n in range(len(self._relations)))
        near = "".join(f", k{n}" for n in self._on_page)
        blanks = "".join(target.blank_text for target in self._others)
        keys = ", ".join(
            reference_expression(self._layout, one, self._binds) for one in self._relations
        )
        head = f"id, ver, schema_version, written_at, rest{columns}{sorts}"
        page = (
            f"with page ({head}, {names}, place) as materialized (select {row}, {keys}, "  # noqa: S608
            f"row_number() over (order by {self._order.text}) {end}) "
            f"select {head}{blanks}{near}, {PAGE_PART}, place from page"
        )
        parts = [self._referred_rows_text(part, limit) for part in range(len(self._targets))]
        return " union all ".join([page, *parts])

    def _referred_rows_text(self, number: int, limit: int) -> str:
        """Return the query of one type's entities that the page refers to, each once."""
        target = self._targets[number]
        own = target.shown_text(_OTHER) if target is self._layout else self._layout.blank_text
        others = "".join(
            one.shown_text(_OTHER) if one is target else one.blank_text for one in self._others
        )
        blank = ", null" * (len(self._order.terms) - 1)
        keys = " union ".join(
            self._referred_keys_text(place, limit)
            for place, relation in enumerate(self._relations)
            if relation.target == target.name
        )
        return (
            f"select {_OTHER}.id, {_OTHER}.ver, {_OTHER}.schema_version, {_OTHER}.written_at, "  # noqa: S608
            f"{_OTHER}.rest::text{own}{blank}{others}{', null' * len(self._on_page)}, "
            f"{PAGE_PART + 1 + number}, 0 "
            f"from {target.table} as {_OTHER} where {_OTHER}.id = any(array({keys}))"
        )

    def _referred_keys_text(self, place: int, limit: int) -> str:
        """Return the query of the keys of one relation that are not on the page."""
        rows = f"from page where place <= {limit}"
        if self._relations[place].is_list:
            return f"select jsonb_array_elements_text(k{place}) {rows}"
        others = f" and k{place} not in (select id {rows})" if place in self._on_page else ""
        return f"select k{place} {rows}{others}"

    def _needs_rest(self) -> bool:
        """Tell whether a requested property may be in `rest`."""
        fields = self._request.fields
        columns = self._layout.by_name
        # A null of a property with a column is stored in `rest`.
        return fields is None or any(
            name not in columns or self._may_be_null(name) for name in fields
        )

    def _may_be_null(self, name: str) -> bool:
        kinds = {part.name: part.kind for part in self._layout.contract.kind.fields}
        return not self._layout.by_name[name].is_ready or kinds[name].nullable

    def _count_rows(self) -> int:
        query = f"select count(*) from {self._layout.table} as {ROW} where {self._where}"  # noqa: S608
        return int(self._run_query(query, self._asked, lambda rows: rows)[0][0])


def row_text(layout: Layout, rest: str = f"{ROW}.rest::text", names: Fields = None) -> str:
    """Return the columns to select for `entities_of`."""
    fixed = f"{ROW}.id, {ROW}.ver, {ROW}.schema_version, {ROW}.written_at, {rest} as rest"
    return fixed + layout.shown_text(ROW, names)


def _check_limits(request: PageRequest) -> None:
    limit = request.limit
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= PAGE_LIMIT_MAX:
        hint = f"use 1 to {PAGE_LIMIT_MAX}"
        raise Invalid("the page's limit is out of range", hint=hint, limit=limit)
    if len(request.refs) > REFERENCES_MAX:
        hint = f"ask for at most {REFERENCES_MAX}"
        raise Invalid("too many references", hint=hint, refs=len(request.refs))


def entities_of(
    layout: Layout, rows: Sequence[Row], start: int = _FIXED, fields: Fields = None
) -> list[StoredEntity]:
    """Return the entities of rows that begin with the columns of `row_text`, cut to `fields`.

    The type's property columns begin at `start`.
    """
    if not rows:
        return []
    columns = list(zip(*rows, strict=True))
    keys, vers, versions, times, rests = columns[:_FIXED]
    values = columns[start : start + len(layout.columns)]
    documents = layout.documents_of(versions, values, rests)
    if fields is not None:
        documents = [{name: one[name] for name in fields if name in one} for one in documents]
    return list(map(_entity, zip(keys, vers, versions, times, documents, strict=True)))
