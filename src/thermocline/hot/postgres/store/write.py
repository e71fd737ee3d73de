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

from thermocline.errors import Conflict, Invalid, NotFound, ThermoclineError, Unavailable
from thermocline.hot.postgres.schema.layout import Json, Layout, Stale
from thermocline.hot.postgres.session.connect import Connection, Row
from thermocline.hot.postgres.store import statement
from thermocline.hot.postgres.store.merge import merged
from thermocline.hot.postgres.store.operation import (
    Deed,
    Operation,
    Written,
    validated,
    waves,
)

LOOKS_MAX = 10

Cold = Callable[[Connection, Sequence[str]], Mapping[str, tuple[int, Json]]]
"""Reads (schema_version, document) of keys whose rows are only in the lake, as of `lake_head`."""

Result = Written | ThermoclineError
Placed = tuple[int, Operation]


@dataclass(slots=True)
class _Plan:
    """The writes of one attempt at a wave."""

    inserts: list[Json] = field(default_factory=list)
    updates: list[Json] = field(default_factory=list)
    deletes: list[Json] = field(default_factory=list)
    inserting: list[Placed] = field(default_factory=list)


class Writer:
    """The writes of one transaction; raises `Stale` if it must restart in careful mode."""

    def __init__(
        self,
        connection: Connection,
        layout: Layout,
        cold: Cold | None,
        *,
        is_atomic: bool,
        is_careful: bool,
    ) -> None:
        self._connection = connection
        self._layout = layout
        self._cold = cold
        self._is_atomic = is_atomic
        self._is_careful = is_careful

    def written(self, operations: Sequence[Operation]) -> list[Result]:
        """Run the operations in order; return their results in the same order."""
        results: dict[int, Result] = {}
        for wave in waves(operations):
            self._do(wave, results)
        return [results[place] for place in range(len(operations))]

    def _do(self, wave: list[Placed], results: dict[int, Result]) -> None:
        # Documents are validated before any row is locked.
        checked = {place: self._checked(operation) for place, operation in wave}
        rest = wave
        for _ in range(LOOKS_MAX):
            rest = self._look(rest, checked, results)
            if not rest:
                return
        raise _contended()

    def _look(
        self,
        wave: list[Placed],
        checked: Mapping[int, Json | Invalid | None],
        results: dict[int, Result],
    ) -> list[Placed]:
        """Lock and write; return the operations whose keys another transaction just created."""
        if self._is_careful and self._cold is not None:
            created = [operation.id for _, operation in wave if operation.deed is Deed.CREATE]
            self._bring_back(statement.moved_keys(self._connection, self._layout, created))
        looked_at = [operation.id for _, operation in wave if operation.deed is not Deed.CREATE]
        with_documents = any(operation.deed is Deed.PATCH for _, operation in wave)
        found = self._locked(looked_at, with_documents=with_documents) if looked_at else {}
        plan = _Plan()
        for place, operation in wave:
            try:
                written = self._decide(
                    plan, place, operation, found.get(operation.id), checked[place]
                )
            except ThermoclineError as error:
                results[place] = self._failed(error, place)
            else:
                if written is not None:
                    results[place] = written
        if plan.updates:
            statement.update_rows(self._connection, self._layout, plan.updates)
        if plan.deletes:
            statement.delete_rows(self._connection, self._layout, plan.deletes)
        return self._insert(plan, results) if plan.inserts else []

    def _locked(self, keys: Sequence[str], *, with_documents: bool) -> dict[str, Row]:
        """Lock and return the rows of keys; load those that are only in the lake first."""
        found: dict[str, Row] = {}
        sought = keys
        for _ in range(LOOKS_MAX):
            found |= statement.lock_rows(
                self._connection, self._layout, sought, with_documents=with_documents
            )
            absent = [key for key in keys if key not in found]
            if self._cold is None or not absent:
                return found
            by_key = statement.whereabouts(self._connection, self._layout, absent)
            if not by_key:
                return found
            self._bring_back({key for key, is_moved in by_key.items() if is_moved})
            sought = sorted(by_key)
        raise _contended()

    def _decide(
        self,
        plan: _Plan,
        place: int,
        operation: Operation,
        row: Row | None,
        checked: Json | Invalid | None,
    ) -> Written | None:
        """Add the write of an operation to the plan, given the locked row or None."""
        key, deed = operation.id, operation.deed
        if row is None:
            if deed in (Deed.PATCH, Deed.DELETE):
                raise self._missing(key)
            if operation.if_match is not None:
                raise _changed(operation, None)
            document = _fitting(checked)
            version = self._layout.contract.version
            # The insert determines the version.
            plan.inserts.append(self._layout.record_of(key, 0, version, document))
            plan.inserting.append((place, operation))
            return None
        ver, schema_version = row[:2]
        if operation.if_match not in (None, ver):
            raise _changed(operation, ver)
        if deed is Deed.DELETE:
            plan.deletes.append({"id": key, "ver": ver + 1})
            return Written(key, ver + 1, deed)
        if deed is Deed.PATCH:
            old = self._layout.document_of(schema_version, row[3:], row[2])
            given = merged(old, operation.value)
            fits, document = self._kept(given, schema_version)
        elif isinstance(checked, Invalid) and schema_version != self._layout.contract.version:
            fits, document = self._kept(operation.value, schema_version)
        else:
            fits, document = self._layout.contract.version, _fitting(checked)
        plan.updates.append(self._layout.record_of(key, ver + 1, fits, document))
        return Written(key, ver + 1, deed)

    def _insert(self, plan: _Plan, results: dict[int, Result]) -> list[Placed]:
        inserted = statement.insert_rows(self._connection, self._layout, plan.inserts)
        late, moved = statement.take_over_versions(self._connection, self._layout, inserted)
        if moved:
            raise Stale(moved)
        inserted |= late
        again: list[Placed] = []
        for place, operation in plan.inserting:
            if operation.id in inserted:
                ver = inserted[operation.id]
                results[place] = Written(operation.id, ver, Deed.CREATE)
            elif operation.deed is Deed.CREATE:
                error = Conflict(
                    "an entity of this key exists", hint="replace it, or use another key"
                )
                error.facts["id"] = operation.id
                results[place] = self._failed(error, place)
            else:
                again.append((place, operation))
        return again

    def _checked(self, operation: Operation) -> Json | Invalid | None:
        """Return the canonical form of a whole document, or the error of the newest contract."""
        if operation.deed in (Deed.PATCH, Deed.DELETE):
            return None
        try:
            return validated(self._layout.contract, operation.document)
        except Invalid as error:
            return error

    def _kept(self, document: Any, schema_version: int) -> tuple[int, Json]:
        """Return the contract version for an updated row, and the document's canonical form.

        The newest version, unless only the row's old contract accepts the document.
        """
        newest = self._layout.contract
        if schema_version == newest.version:
            return newest.version, newest.validated(document)
        try:
            given = newest.upgraded(document) if isinstance(document, dict) else document
            return newest.version, newest.validated(given)
        except Invalid:
            old = self._layout.contract_of(schema_version)
            if not old.is_fitting(document):
                raise
            return schema_version, old.validated(document)

    def _missing(self, key: str) -> ThermoclineError:
        if self._cold is None and statement.moved_keys(self._connection, self._layout, [key]):
            hint = "write it through the lake that has its row"
            return Unavailable("the entity's row is only in the lake", hint=hint, id=key)
        return NotFound("no such entity", hint="create it first", id=key)

    def _failed(self, error: ThermoclineError, place: int) -> ThermoclineError:
        """Return the error as a result; with atomic operations raise it."""
        if not self._is_atomic:
            return error
        error.facts.setdefault("item", place)
        raise error

    def _bring_back(self, moved: set[str]) -> None:
        """Load rows that are only in the lake into the table, unchanged, and lock them."""
        assert self._cold is not None
        held = statement.hold_moved(self._connection, self._layout, sorted(moved)) if moved else {}
        if not held:
            return
        # Order matters: the lake is read after the keys are locked, so no export comes in between.
        rows = self._cold(self._connection, sorted(held))
        records = [
            self._layout.record_of(key, ver, rows[key][0], rows[key][1])
            for key, ver in held.items()
        ]
        statement.fill_held(self._connection, self._layout, records)


def _contended() -> Conflict:
    return Conflict("other writers keep creating and deleting the same keys", hint="try again")


def _fitting(checked: Json | Invalid | None) -> Json:
    if isinstance(checked, Invalid):
        raise checked
    assert checked is not None
    return checked


def _changed(operation: Operation, ver: int | None) -> Conflict:
    hint = "read it again, then decide" if ver else "it is gone; create it if it should be there"
    facts = {"id": operation.id, "if_match": operation.if_match, "ver": ver}
    return Conflict("the entity is not the one you have seen", hint=hint, **facts)
