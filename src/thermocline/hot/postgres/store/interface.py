"""The interface of entities, the same in PostgreSQL, in a lake and over HTTP.

In:   documents, merge patches, keys, the versions that clients have read; filters
Out:  the result of each write; pages of entities

- Each method makes a checked value, an `Operation` or a `PageRequest`; a class that offers the
  interface writes the one and answers the other. It needs no driver.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from thermocline.errors import ThermoclineError
from thermocline.format.argument import check_flag, check_text, list_names
from thermocline.hot.postgres.page.page import Filter, Page, PageRequest, as_filter
from thermocline.hot.postgres.store.operation import (
    Operation,
    OperationKind,
    WriteResult,
    new_key,
    parse_operations,
)


class EntityInterface(ABC):
    """What every holder of the entities of one type offers."""

    @abstractmethod
    def write_many(
        self, operations: Sequence[Operation], *, atomic: bool, idempotency_key: str | None = None
    ) -> list[WriteResult | ThermoclineError]:
        """Run operations in order; with `atomic` the first failure is raised, with its index.

        If these operations were already committed under the key, return the results of that time.
        """

    @abstractmethod
    def read_page(self, request: PageRequest) -> Page:
        """Return the requested page."""

    def write_one(self, operation: Operation, *, idempotency_key: str | None = None) -> WriteResult:
        """Run one operation; raise its error."""
        (result,) = self.write_many([operation], atomic=False, idempotency_key=idempotency_key)
        if isinstance(result, ThermoclineError):
            raise result
        return result

    def create(
        self,
        document: Any,
        id: str | None = None,  # noqa: A002
        *,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Create an entity; `Conflict` if the key exists. Without a key, it gets a new one.

        Like every write: if a write with the same `idempotency_key` has been committed, nothing is
        written again, and the answer is the one of that time.
        """
        key = new_key() if id is None else id
        operation = Operation(OperationKind.CREATE, key, document, has_new_key=id is None)
        return self.write_one(operation, idempotency_key=idempotency_key)

    def replace(
        self,
        id: str,  # noqa: A002
        document: Any,
        if_match: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Replace an entity's document, or create the entity.

        With `if_match`, the entity must have that version, else `Conflict` with the current `ver`.
        """
        operation = Operation(OperationKind.REPLACE, id, document, if_match)
        return self.write_one(operation, idempotency_key=idempotency_key)

    def patch(
        self,
        id: str,  # noqa: A002
        merge_patch: Any,
        if_match: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Merge a patch (RFC 7386) into an entity; the result must fit the contract."""
        operation = Operation(OperationKind.PATCH, id, merge_patch, if_match)
        return self.write_one(operation, idempotency_key=idempotency_key)

    def upsert(
        self,
        id: str,  # noqa: A002
        merge_patch: Any,
        if_match: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Merge a patch into an entity like `patch`, or create the entity from it.

        The result says which of both happened.
        """
        operation = Operation(OperationKind.UPSERT, id, merge_patch, if_match)
        return self.write_one(operation, idempotency_key=idempotency_key)

    def delete(
        self,
        id: str,  # noqa: A002
        if_match: int | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Delete an entity; `NotFound` if it does not exist."""
        operation = Operation(OperationKind.DELETE, id, None, if_match)
        return self.write_one(operation, idempotency_key=idempotency_key)

    def bulk(
        self,
        operations: Sequence[Operation | Mapping[str, Any]],
        *,
        atomic: bool = True,
        idempotency_key: str | None = None,
    ) -> list[WriteResult | ThermoclineError]:
        """Run many operations in order, in one transaction; return the result of each.

        An operation is an `Operation`, or a dict like in the HTTP API: `op` (`create`, `replace`,
        `patch`, `upsert`, `delete`, `check`), `id`, `document`, `if_match`. With `atomic` the first
        failure is raised, with its index as the fact `item`, and nothing is written. Without it,
        each failure is in the list at its index, and the other operations are written.
        """
        parsed = parse_operations(operations, atomic=atomic)
        sound = [one for one in parsed if isinstance(one, Operation)]
        done = iter(self.write_many(sound, atomic=atomic, idempotency_key=idempotency_key))
        return [next(done) if isinstance(one, Operation) else one for one in parsed]

    def page(
        self,
        filter: Filter | Mapping[str, Any] | None = None,  # noqa: A002
        sort: str | Sequence[str] = (),
        fields: str | Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 100,
        refs: str | Sequence[str] = (),
        *,
        with_total: bool = False,
    ) -> Page:
        """Return one page of entities and the cursor of the next.

        A filter is a value or JSON, such as `{"field": "state", "op": "eq", "value": "open"}`;
        `sort` names fields, `-field` sorts in descending order. `Unsupported` if rows may have been
        evicted: a page is read only from PostgreSQL.
        """
        return self.read_page(
            PageRequest(
                as_filter(filter),
                list_names(sort, "sort"),
                None if fields is None else list_names(fields, "fields"),
                None if after is None else check_text(after, "after"),
                limit,  # `page_query.py` checks it
                list_names(refs, "refs"),
                check_flag(with_total, "with_total"),
            )
        )
