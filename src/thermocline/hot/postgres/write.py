"""Does operations on rows inside one transaction: lock, look, decide, write.

In:   operations in order, the rows that are there
Out:  what became of each; rows and their notes written

- Operations on different keys are done together, a statement for all of a sort; a key that comes
  again waits for the next wave.
- What is decided about a key is decided after it is locked, and holds until the transaction ends.
- A key that is absent is locked by its insert. If somebody else was first, it is looked at again.
- A key that is created is taken to be new. If its row turns out to be in the lake alone, which is
  seen by its insert, the transaction is given up and begun again carefully: the lake first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from thermocline.errors import Conflict, Invalid, NotFound, ThermoclineError, Unavailable
from thermocline.hot.postgres import statement
from thermocline.hot.postgres.connect import Connection, Row
from thermocline.hot.postgres.layout import Json, Layout, Stale
from thermocline.hot.postgres.merge import merged
from thermocline.hot.postgres.operation import Deed, Operation, Written, validated, waves

LOOKS_MAX = 10

Cold = Callable[[Connection, Sequence[str]], Mapping[str, tuple[int, Json]]]
"""Gives (schema_version, document) of keys that the lake alone has, as of `lake_head`."""

Result = Written | ThermoclineError
Placed = tuple[int, Operation]


@dataclass(slots=True)
class _Plan:
    """What one look at a wave has decided to write."""

    inserts: list[Json] = field(default_factory=list)
    updates: list[Json] = field(default_factory=list)
    deletes: list[Json] = field(default_factory=list)
    inserting: list[Placed] = field(default_factory=list)


class Writer:
    """The writes of one transaction; `Stale` when it has to be begun again, carefully."""

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
        """Do the operations in order; return what became of each, in the same order."""
        results: dict[int, Result] = {}
        for wave in waves(operations):
            self._do(wave, results)
        return [results[place] for place in range(len(operations))]

    def _do(self, wave: list[Placed], results: dict[int, Result]) -> None:
        # Documents are checked before anything is locked.
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
        """Lock and write what can be; return the operations whose keys somebody else just made."""
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
        """Lock the rows of keys, also of those whose rows have to come back first; return them."""
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
        """Add to the plan what an operation does to a row that is locked, or to none."""
        key, deed = operation.id, operation.deed
        if row is None:
            if deed in (Deed.PATCH, Deed.DELETE):
                raise self._missing(key)
            if operation.if_match is not None:
                raise _changed(operation, None)
            document = _fitting(checked)
            version = self._layout.contract.version
            # Which version it is, its insert finds out.
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
                    "there is an entity of this key", hint="replace it, or take another key"
                )
                error.facts["id"] = operation.id
                results[place] = self._failed(error, place)
            else:
                again.append((place, operation))
        return again

    def _checked(self, operation: Operation) -> Json | Invalid | None:
        """Return a whole document as the newest contract has it, or why it does not fit."""
        if operation.deed in (Deed.PATCH, Deed.DELETE):
            return None
        try:
            return validated(self._layout.contract, operation.document)
        except Invalid as error:
            return error

    def _kept(self, document: Any, schema_version: int) -> tuple[int, Json]:
        """Return the contract that a row may have from now on, and the document as it has it.

        The newest, unless only the one the row was written under accepts it.
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
            hint = "write it through the lake that it was moved to"
            return Unavailable("the entity is in the lake alone", hint=hint, id=key)
        return NotFound("no such entity", hint="create it first", id=key)

    def _failed(self, error: ThermoclineError, place: int) -> ThermoclineError:
        """Return the error as an answer, or raise it when one failure fails all."""
        if not self._is_atomic:
            return error
        error.facts.setdefault("item", place)
        raise error

    def _bring_back(self, moved: set[str]) -> None:
        """Put rows that the lake alone has back in the table, as they were, and hold them."""
        assert self._cold is not None
        held = statement.hold_moved(self._connection, self._layout, sorted(moved)) if moved else {}
        if not held:
            return
        # Order matters: the lake is read after the keys are held, so nobody can export in between.
        rows = self._cold(self._connection, sorted(held))
        records = [
            self._layout.record_of(key, ver, rows[key][0], rows[key][1])
            for key, ver in held.items()
        ]
        statement.fill_held(self._connection, self._layout, records)


def _contended() -> Conflict:
    return Conflict("others keep creating and deleting the same keys", hint="try again")


def _fitting(checked: Json | Invalid | None) -> Json:
    if isinstance(checked, Invalid):
        raise checked
    assert checked is not None
    return checked


def _changed(operation: Operation, ver: int | None) -> Conflict:
    hint = "read it again, then decide" if ver else "it is gone; create it if it should be there"
    facts = {"id": operation.id, "if_match": operation.if_match, "ver": ver}
    return Conflict("the entity is not the one you have seen", hint=hint, **facts)
