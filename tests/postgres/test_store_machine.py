"""Anything done to a store, in any order, is what the same done to a dict would be."""

import uuid

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from postgres.entities import ORDER, changes, order
from thermocline.errors import Conflict, Invalid, NotFound
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.schema.registry import TypeRegistry
from thermocline.hot.postgres.store.operation import Operation, OperationKind, merge_patch
from thermocline.hot.postgres.store.store import EntityStore, OperationWriter

KEYS = st.sampled_from(["a", "b", "é%'"])
EXTRA = {**ORDER, "properties": {**ORDER["properties"], "extra": {"type": "string"}}}
HOT = {**EXTRA, "properties": {**EXTRA["properties"], "weight": {"type": "number", "x-hot": True}}}
CONTRACTS = [ORDER, EXTRA, HOT]
patches = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from(["open", "late"]),
        "quantity": st.none() | st.integers(-(2**63), 2**63 - 1),
        "weight": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.none()
        | st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))),
        "address": st.none() | st.fixed_dictionaries({}, optional={"zip": st.integers(0, 9)}),
        "extra": st.sampled_from([None, "x"]),
    },
)
documents = patches.map(lambda patch: merge_patch(order(), patch))
operations = st.one_of(
    st.builds(
        Operation, st.sampled_from([OperationKind.CREATE, OperationKind.REPLACE]), KEYS, documents
    ),
    st.builds(
        Operation, st.sampled_from([OperationKind.PATCH, OperationKind.UPSERT]), KEYS, patches
    ),
    st.builds(Operation, st.just(OperationKind.DELETE), KEYS),
)


class Model:
    """A dict with versions, that does what a store should."""

    def __init__(self):
        self.rows, self.versions, self.notes, self.has_extra = {}, {}, 0, False

    def do(self, operation):
        key, present = operation.id, operation.id in self.rows
        ver = self.versions.get(key, 0)
        if operation.kind in (OperationKind.CREATE, OperationKind.REPLACE):
            document = operation.document
        elif operation.kind is OperationKind.PATCH and present:
            document = merge_patch(self.rows[key], operation.document)
        elif operation.kind is OperationKind.UPSERT:
            document = merge_patch(self.rows.get(key, {}), operation.document)
        else:
            document = None
        if operation.kind is OperationKind.CREATE and present:
            # Whether it is refused for its document or its key first is not promised.
            return (Conflict, Invalid) if self._is_bad(document) else Conflict
        if operation.kind in (OperationKind.PATCH, OperationKind.DELETE) and not present:
            return NotFound
        if operation.if_match is not None and operation.if_match != (ver if present else None):
            return Conflict
        if document is not None and self._is_bad(document):
            return Invalid
        self.versions[key] = ver + 1
        self.notes += 1
        self.rows.pop(key, None)
        if document is not None:
            self.rows[key] = document
        return ver + 1

    def _is_bad(self, document):
        is_early = "extra" in document and not self.has_extra
        return is_early or "status" not in document


class Machine(RuleBasedStateMachine):
    pool = None
    store_type = EntityStore

    def __init__(self):
        super().__init__()
        self.tenant = open_tenant(self.pool, f"m{uuid.uuid4().hex}")
        self.registered = 0
        TypeRegistry(self.pool, self.tenant).register("order", ORDER)
        self.stores = [self.store_type(self.pool, self.tenant, "order") for _ in range(2)]
        self.model = Model()

    def expect(self, operation, store):
        expected = self.model.do(operation)
        result = store.bulk([operation], atomic=False)[0]
        if isinstance(expected, int):
            assert getattr(result, "ver", result) == expected
        else:
            assert isinstance(result, expected), (result, expected)

    @rule(operation=operations, second=st.booleans())
    def one(self, operation, second):
        self.expect(operation, self.stores[second])

    @rule(operation=operations, back=st.integers(0, 2), second=st.booleans())
    def one_that_matches(self, operation, back, second):
        if operation.kind is OperationKind.CREATE:
            return
        ver = self.model.versions.get(operation.id, 0) - back
        operation = Operation(operation.kind, operation.id, operation.document, ver)
        self.expect(operation, self.stores[second])

    @rule(many=st.lists(operations, max_size=8))
    def many_by_item(self, many):
        expected = [self.model.do(operation) for operation in many]
        results = self.stores[0].bulk(many, atomic=False)
        for result, wanted in zip(results, expected, strict=True):
            if isinstance(wanted, int):
                assert getattr(result, "ver", result) == wanted
            else:
                assert isinstance(result, wanted)

    @rule(many=st.lists(operations, max_size=8))
    def many_or_none(self, many):
        trial = Model()
        trial.rows, trial.versions = dict(self.model.rows), dict(self.model.versions)
        trial.notes, trial.has_extra = self.model.notes, self.model.has_extra
        if all(isinstance(trial.do(operation), int) for operation in many):
            self.stores[1].bulk(many)
            self.model = trial
        else:
            with pytest.raises((Conflict, NotFound, Invalid)):
                self.stores[1].bulk(many)

    @rule()
    def register_the_next(self):
        self.registered = min(self.registered + 1, 2)
        TypeRegistry(self.pool, self.tenant).register("order", CONTRACTS[self.registered])
        self.model.has_extra = True

    @invariant()
    def the_store_is_the_model(self):
        for store in self.stores:
            found = {e.id: (e.ver, e.document) for e in store.page(limit=10).entities}
            expected = {
                key: (self.model.versions[key], document)
                for key, document in self.model.rows.items()
            }
            assert found == expected, (found, expected)
        assert len(changes(self.stores[0])) == self.model.notes


def test_a_store_is_a_dict_with_versions(pool):
    machine = type("Machine", (Machine,), {"pool": pool})
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=12))


# Wrong designs, seen to be caught.


class ForgetsVersions(OperationWriter):
    """Starts again at 1 after a delete."""

    def _insert(self, plan, results):
        clear = "delete from gone"
        self._connection.execute(clear)
        return super()._insert(plan, results)


class IgnoresMatches(OperationWriter):
    """Writes whatever version the caller has seen."""

    def _decide(self, plan, place, operation, row, checked):
        free = Operation(operation.kind, operation.id, operation.document)
        return super()._decide(plan, place, free, row, checked)


class ChecksPatches(OperationWriter):
    """Checks the patch, not what comes out of it: a patch is a valid document rarely."""

    def _fit_contract(self, document, schema_version):
        return schema_version, document


class FirstContract(Machine):
    """Stays with the first contract, which refuses patches that later ones accept."""

    register_the_next = None


@pytest.mark.parametrize(
    ("wrong", "way"),
    [(ForgetsVersions, Machine), (IgnoresMatches, Machine), (ChecksPatches, FirstContract)],
)
def test_a_wrong_store_is_told_from_a_dict(pool, monkeypatch, wrong, way):
    monkeypatch.setattr("thermocline.hot.postgres.store.store.OperationWriter", wrong)
    machine = type("Machine", (way,), {"pool": pool})
    many = settings(
        max_examples=40, stateful_step_count=20, report_multiple_bugs=False, phases=("generate",)
    )
    with pytest.raises(Exception):  # noqa: B017, PT011
        run_state_machine_as_test(machine, settings=many)
