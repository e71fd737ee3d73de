"""Runs operations on rows inside one transaction: lock, read, decide, write.

In:   operations in order, the existing rows
Out:  the result of each; rows and their changes written

- Operations on different keys run together, one statement per kind of write; if a key occurs again,
  its operation waits for the next wave.
- Each decision about a key comes after the key is locked, and holds until the transaction ends.
- An absent key is locked by its insert. If another transaction inserted it first, the key is read
  again.
- Creates optimistically assume a new key. If the insert shows that the row exists only in the lake,
  the transaction restarts in careful mode, which loads such rows from the lake first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thermocline.errors import (
    Conflict,
    EntityNotFound,
    Invalid,
    PreconditionFailed,
    ThermoclineError,
    Unavailable,
)
from thermocline.hot.postgres.schema.layout import Json, Layout, StaleLayout
from thermocline.hot.postgres.session.connect import Connection, Row
from thermocline.hot.postgres.store import statement
from thermocline.hot.postgres.store.operation import (
    Operation,
    OperationKind,
    WriteResult,
    merge_patch,
    split_into_waves,
    validate_document,
)

ATTEMPTS_MAX = 10

ColdReader = Callable[[Connection, Sequence[str]], Mapping[str, tuple[int, Json]]]
"""Reads (schema_version, document) of keys whose rows are only in the lake, as of `lake_head`."""

OperationResult = WriteResult | ThermoclineError
NumberedOperation = tuple[int, Operation]


@dataclass(slots=True)
class _Plan:
    """The writes of one attempt at a wave."""

    inserts: list[Json] = field(default_factory=list)
    updates: list[Json] = field(default_factory=list)
    deletes: list[Json] = field(default_factory=list)
    inserting: list[NumberedOperation] = field(default_factory=list)


class OperationWriter:
    """The writes of one transaction; raises `Stale` if it must restart in careful mode."""

    def __init__(
        self,
        connection: Connection,
        layout: Layout,
        cold: ColdReader | None,
        *,
        is_atomic: bool,
        is_careful: bool,
    ) -> None:
        self._connection = connection
        self._layout = layout
        self._cold = cold
        self._is_atomic = is_atomic
        self._is_careful = is_careful

    def write(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """Run the operations in order; return their results in the same order."""
        results: dict[int, OperationResult] = {}
        for wave in split_into_waves(operations):
            self._write_wave(wave, results)
        return [results[place] for place in range(len(operations))]

    def _write_wave(
        self, wave: list[NumberedOperation], results: dict[int, OperationResult]
    ) -> None:
        # Documents are validated before any row is locked.
        checked = {place: self._check_document(operation) for place, operation in wave}
        rest = wave
        for _ in range(ATTEMPTS_MAX):
            rest = self._try_wave(rest, checked, results)
            if not rest:
                return
        raise _contention_error()

    def _try_wave(
        self,
        wave: list[NumberedOperation],
        checked: Mapping[int, Json | Invalid | None],
        results: dict[int, OperationResult],
    ) -> list[NumberedOperation]:
        """Lock and write; return the operations whose keys another transaction just created."""
        if self._is_careful and self._cold is not None:
            created = [
                operation.id for _, operation in wave if operation.deed is OperationKind.CREATE
            ]
            self._bring_back(statement.moved_keys(self._connection, self._layout, created))
        looked_at = [
            operation.id for _, operation in wave if operation.deed is not OperationKind.CREATE
        ]
        with_documents = any(operation.deed is OperationKind.PATCH for _, operation in wave)
        found = self._lock_rows(looked_at, with_documents=with_documents) if looked_at else {}
        plan = _Plan()
        for place, operation in wave:
            try:
                written = self._decide(
                    plan, place, operation, found.get(operation.id), checked[place]
                )
            except ThermoclineError as error:
                results[place] = self._result_or_raise(error, place)
            else:
                if written is not None:
                    results[place] = written
        if plan.updates:
            statement.update_rows(self._connection, self._layout, plan.updates)
        if plan.deletes:
            statement.delete_rows(self._connection, self._layout, plan.deletes)
        return self._insert(plan, results) if plan.inserts else []

    def _lock_rows(self, keys: Sequence[str], *, with_documents: bool) -> dict[str, Row]:
        """Lock and return the rows of keys; load those that are only in the lake first."""
        found: dict[str, Row] = {}
        sought = keys
        for _ in range(ATTEMPTS_MAX):
            found |= statement.lock_rows(
                self._connection, self._layout, sought, with_documents=with_documents
            )
            absent = [key for key in keys if key not in found]
            if self._cold is None or not absent:
                return found
            by_key = statement.locate_keys(self._connection, self._layout, absent)
            if not by_key:
                return found
            self._bring_back({key for key, is_moved in by_key.items() if is_moved})
            sought = sorted(by_key)
        raise _contention_error()

    def _decide(
        self,
        plan: _Plan,
        place: int,
        operation: Operation,
        row: Row | None,
        checked: Json | Invalid | None,
    ) -> WriteResult | None:
        """Add the write of an operation to the plan, given the locked row or None."""
        key, deed = operation.id, operation.deed
        if row is None:
            if deed in (OperationKind.PATCH, OperationKind.DELETE):
                raise self._missing_error(key)
            if operation.if_match is not None:
                raise _version_conflict(operation, None)
            document = _require_document(checked)
            version = self._layout.contract.version
            # The insert determines the version.
            plan.inserts.append(self._layout.record_of(key, 0, version, document))
            plan.inserting.append((place, operation))
            return None
        ver, schema_version = row[:2]
        if operation.if_match not in (None, ver):
            raise _version_conflict(operation, ver)
        if deed is OperationKind.DELETE:
            plan.deletes.append({"id": key, "ver": ver + 1})
            return WriteResult(key, ver + 1, deed)
        if deed is OperationKind.PATCH:
            old = self._layout.document_of(schema_version, row[3:], row[2])
            given = merge_patch(old, operation.value)
            fits, document = self._fit_contract(given, schema_version)
        elif isinstance(checked, Invalid) and schema_version != self._layout.contract.version:
            fits, document = self._fit_contract(operation.value, schema_version)
        else:
            fits, document = self._layout.contract.version, _require_document(checked)
        plan.updates.append(self._layout.record_of(key, ver + 1, fits, document))
        return WriteResult(key, ver + 1, deed)

    def _insert(self, plan: _Plan, results: dict[int, OperationResult]) -> list[NumberedOperation]:
        inserted = statement.insert_rows(self._connection, self._layout, plan.inserts)
        late, moved = statement.take_over_versions(self._connection, self._layout, inserted)
        if moved:
            raise StaleLayout(moved)
        inserted |= late
        again: list[NumberedOperation] = []
        for place, operation in plan.inserting:
            if operation.id in inserted:
                ver = inserted[operation.id]
                results[place] = WriteResult(operation.id, ver, OperationKind.CREATE)
            elif operation.deed is OperationKind.CREATE:
                error = Conflict(
                    "an entity of this key exists", hint="replace it, or use another key"
                )
                error.facts["id"] = operation.id
                results[place] = self._result_or_raise(error, place)
            else:
                again.append((place, operation))
        return again

    def _check_document(self, operation: Operation) -> Json | Invalid | None:
        """Return the canonical form of a whole document, or the error of the newest contract."""
        if operation.deed in (OperationKind.PATCH, OperationKind.DELETE):
            return None
        try:
            return validate_document(self._layout.contract, operation.document)
        except Invalid as error:
            return error

    def _fit_contract(self, document: Any, schema_version: int) -> tuple[int, Json]:
        """Return the contract version for an updated row, and the document's canonical form.

        The newest version, unless only the row's old contract accepts the document.
        """
        newest = self._layout.contract
        if schema_version == newest.version:
            return newest.version, newest.validate(document)
        try:
            given = newest.fill_defaults(document) if isinstance(document, dict) else document
            return newest.version, newest.validate(given)
        except Invalid:
            old = self._layout.contract_of(schema_version)
            if not old.is_fitting(document):
                raise
            return schema_version, old.validate(document)

    def _missing_error(self, key: str) -> ThermoclineError:
        if self._cold is None and statement.moved_keys(self._connection, self._layout, [key]):
            hint = "write it through the lake that has its row"
            return Unavailable("the entity's row is only in the lake", hint=hint, id=key)
        return EntityNotFound("no such entity", hint="create it first", id=key)

    def _result_or_raise(self, error: ThermoclineError, place: int) -> ThermoclineError:
        """Return the error as a result; with atomic operations raise it."""
        if not self._is_atomic:
            return error
        error.facts.setdefault("item", place)
        raise error

    def _bring_back(self, moved: set[str]) -> None:
        """Load rows that are only in the lake into the table, unchanged, and lock them."""
        assert self._cold is not None
        held = statement.lock_moved(self._connection, self._layout, sorted(moved)) if moved else {}
        if not held:
            return
        # Order matters: the lake is read after the keys are locked, so no export comes in between.
        rows = self._cold(self._connection, sorted(held))
        records = [
            self._layout.record_of(key, ver, rows[key][0], rows[key][1])
            for key, ver in held.items()
        ]
        statement.fill_locked(self._connection, self._layout, records)


def _contention_error() -> Conflict:
    return Conflict("other writers keep creating and deleting the same keys", hint="try again")


def _require_document(checked: Json | Invalid | None) -> Json:
    if isinstance(checked, Invalid):
        raise checked
    assert checked is not None
    return checked


def _version_conflict(operation: Operation, ver: int | None) -> PreconditionFailed:
    hint = "read it again, then decide" if ver else "it is gone; create it if it should be there"
    facts = {"id": operation.id, "if_match": operation.if_match, "ver": ver}
    return PreconditionFailed("the entity is not the one you have seen", hint=hint, **facts)
