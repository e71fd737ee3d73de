"""The store of one entity type: create, read, replace, patch and delete, alone or in bulk.

In:   documents, merge patches, keys, the versions that clients have read
Out:  entities; for each write its version, or an error that says whether it happened

- A write is one transaction: it commits the row and its row in `change`, or neither.
- Every write increases the version of a key by one, also across delete and create. Writers of one
  key run one after the other; versions order them, never a clock.
- Every write is validated by the newest contract. A row of an older contract may keep it.
- If the cached contract refuses a document, the newest contract is loaded before the refusal.
- A document is validated in its final form: a patch after merging.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

from thermocline.contract.document.key import parse_id
from thermocline.errors import (
    Conflict,
    Invalid,
    ThermoclineError,
    Unavailable,
)
from thermocline.hot.postgres.page.page import Filter, Page, page_request
from thermocline.hot.postgres.page.page_query import read_keys, read_page
from thermocline.hot.postgres.page.relation import relation_of
from thermocline.hot.postgres.schema.layout import Layout, StaleLayout
from thermocline.hot.postgres.schema.registry import TypeRegistry, is_outdated
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session import postgres_errors
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.store.operation import (
    Operation,
    OperationKind,
    StoredEntity,
    WriteResult,
    new_key,
    parse_operations,
)
from thermocline.hot.postgres.store.write import ColdReader, OperationWriter
from thermocline.names import OPERATIONS_MAX

T = TypeVar("T")
RELOADS_MAX = 3


class EntityStore:
    """The entities of one type of one tenant. Any thread may use it.

    `cold` reads rows that were evicted to the lake; without it such rows cannot be written.
    """

    def __init__(
        self,
        pool: Pool,
        tenant: Tenant,
        type_name: str,
        *,
        cold: ColdReader | None = None,
        make_key: Callable[[], str] = new_key,
    ) -> None:
        self.pool = pool
        self.tenant = tenant
        self.type_name = type_name
        self.run_query = partial(pool.run_query, tenant)
        self._registry = TypeRegistry(pool, tenant)
        self._layout = self._registry.layout(type_name)
        self._targets: dict[str, Layout] = {}
        self._cold = cold
        self._make_key = make_key

    @property
    def layout(self) -> Layout:
        """The type's layout as this store last read it."""
        return self._layout

    def create(self, document: Any, id: str | None = None) -> WriteResult:  # noqa: A002
        """Create an entity; `Conflict` if the key exists. Without a key, it gets a new one."""
        return self._write_one(
            Operation(OperationKind.CREATE, self._make_key() if id is None else id, document)
        )

    def replace(self, id: str, document: Any, if_match: int | None = None) -> WriteResult:  # noqa: A002
        """Replace an entity's document, or create the entity.

        With `if_match`, the entity must have that version, else `Conflict` with the current `ver`.
        """
        return self._write_one(Operation(OperationKind.REPLACE, id, document, if_match))

    def patch(self, id: str, merge_patch: Any, if_match: int | None = None) -> WriteResult:  # noqa: A002
        """Merge a patch (RFC 7386) into an entity; the result must fit the contract."""
        return self._write_one(Operation(OperationKind.PATCH, id, merge_patch, if_match))

    def delete(self, id: str, if_match: int | None = None) -> WriteResult:  # noqa: A002
        """Delete an entity; `NotFound` if it does not exist."""
        return self._write_one(Operation(OperationKind.DELETE, id, None, if_match))

    def bulk(
        self, operations: Sequence[Operation | Mapping[str, Any]], *, atomic: bool = True
    ) -> list[WriteResult | ThermoclineError]:
        """Run many operations in order, in one transaction; return the result of each.

        An operation is an `Operation`, or a dict as in `operation.py`. With `atomic`, the first
        failure is raised, with its index as the fact `item`, and nothing is written. Without it,
        each failure is in the list at its index, and the other operations are written.
        """
        parsed = parse_operations(operations, atomic=atomic)
        done = iter(self._bulk([one for one in parsed if isinstance(one, Operation)], atomic))
        return [next(done) if isinstance(one, Operation) else one for one in parsed]

    def _bulk(
        self, operations: Sequence[Operation], atomic: bool
    ) -> list[WriteResult | ThermoclineError]:
        if len(operations) > OPERATIONS_MAX:
            raise Invalid(
                "too many operations at once",
                hint="send them in smaller parts",
                operations=len(operations),
                operations_max=OPERATIONS_MAX,
            )
        if atomic or not operations:
            return list(self._write(operations, is_atomic=True))
        try:
            return self._write(operations, is_atomic=False)
        except Invalid:
            # PostgreSQL refused one value, and with it the statement that had all of them.
            return [self._write_alone(operation) for operation in operations]

    def read(self, id: str) -> StoredEntity | None:  # noqa: A002
        """Return an entity as it is now, or None if PostgreSQL does not have the key."""
        return self.read_many([id]).get(id)

    def read_many(self, ids: Sequence[str]) -> Mapping[str, StoredEntity]:
        """Return those of these entities that PostgreSQL has, by key, in one snapshot."""
        for key in ids:
            parse_id(key)

        def look(layout: Layout) -> dict[str, StoredEntity]:
            found = read_keys(self.run_query, layout, ids)
            return {entity.id: entity for entity in found}

        return self.run_with_layout(look)

    def page(
        self,
        filter: Filter | Mapping[str, Any] | None = None,  # noqa: A002
        sort: Sequence[str] = (),
        fields: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
        refs: Sequence[str] = (),
        *,
        with_total: bool = False,
    ) -> Page:
        """Return one page of entities, and the cursor of the next; see `page_query.py`."""
        request = page_request(filter, sort, fields, after, limit, refs, with_total=with_total)

        def look(layout: Layout) -> Page:
            names = {relation_of(layout, name).target for name in request.refs}
            targets = {name: self._target_layout(name) for name in names - {layout.name}}
            return read_page(self.run_query, layout, request, {layout.name: layout, **targets})

        return self.run_with_layout(look)

    def reload(self) -> bool:
        """Reload the layouts of the type and its references; return whether one may differ."""
        targets = self._targets
        self._targets = {name: self._registry.layout(name) for name in targets}
        before, self._layout = self._layout, self._registry.layout(self.type_name)
        now = self._layout
        return bool(targets) or _layout_shape(before) != _layout_shape(now)

    def _target_layout(self, name: str) -> Layout:
        """Return the cached layout of another type."""
        if name not in self._targets:
            self._targets[name] = self._registry.layout(name)
        return self._targets[name]

    def _write_one(self, operation: Operation) -> WriteResult:
        result = self._write([operation], is_atomic=False)[0]
        if isinstance(result, ThermoclineError):
            raise result
        return result

    def _write_alone(self, operation: Operation) -> WriteResult | ThermoclineError:
        try:
            return self._write_one(operation)
        except Unavailable:
            raise
        except ThermoclineError as error:
            return error

    def _write(
        self, operations: Sequence[Operation], *, is_atomic: bool
    ) -> list[WriteResult | ThermoclineError]:
        tries = count()

        def write(layout: Layout, connection: Connection) -> list[WriteResult | ThermoclineError]:
            writer = OperationWriter(
                connection, layout, self._cold, is_atomic=is_atomic, is_careful=next(tries) > 0
            )
            try:
                results = writer.write(operations)
            except Invalid as error:
                if is_outdated(connection, layout):
                    raise StaleLayout from error
                raise
            is_doubted = any(isinstance(result, Invalid) for result in results)
            if is_doubted and is_outdated(connection, layout):
                raise StaleLayout
            return results

        return self.run_with_layout(
            lambda layout: self.pool.run(self.tenant, lambda connection: write(layout, connection))
        )

    def run_with_layout(self, work: Callable[[Layout], T]) -> T:
        """Run `work` with the cached layout; reload it and run again if it is out of date."""
        for _ in range(RELOADS_MAX):
            layout = self._layout
            try:
                return work(layout)
            except StaleLayout:
                self.reload()
            except ThermoclineError as error:
                if not postgres_errors.is_outdated(error):
                    raise
                # Another thread may have reloaded the layout meanwhile.
                if not self.reload() and _layout_shape(self._layout) == _layout_shape(layout):
                    raise
        raise Conflict(
            "the type keeps changing, or its entities keep moving to the lake", hint="try again"
        )


def _layout_shape(layout: Layout) -> tuple[object, ...]:
    return layout.table, layout.columns, set(layout.contracts)
