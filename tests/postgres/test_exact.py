"""Readings of entities on a real PostgreSQL: every one is what was committed, and nothing else."""

import contextlib
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from postgres.entity_verbs import (
    ACCOUNT,
    Died,
    account,
    accounts,
    another,
    balances,
    cold_balances,
    compact,
    dies,
    entity_types,
    forget_changes,
)
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.vacuum import vacuum
from thermocline.cold.catalog import Catalog
from thermocline.entity import history as history_room
from thermocline.entity import table as table_room
from thermocline.entity.table import EntitySettings
from thermocline.entity.types import EntityCatalog
from thermocline.errors import Conflict, Invalid, NotFound, Unsupported
from thermocline.hot.postgres.export import dirty
from thermocline.hot.postgres.export.evict import delete_clean, lock_clean
from thermocline.hot.postgres.session.transaction import Isolation
from thermocline.hot.postgres.store import store as store_module
from thermocline.hot.postgres.store.operation import Operation, OperationKind

__all__ = ["accounts", "another", "entity_types"]


# Which copy is returned.


def only_in_postgres(entities, unnoticed):
    entities.create(account(1), "x")


def synced_without_updates(entities, unnoticed):
    entities.create(account(1), "x")
    entities.export()
    unnoticed(99)  # the copy in PostgreSQL is told apart by a value that nobody wrote


def synced_then_updated(entities, unnoticed):
    entities.create(account(1), "x")
    entities.export()
    entities.replace("x", account(2))


def synced_then_deleted(entities, unnoticed):
    entities.create(account(1), "x")
    entities.export()
    entities.delete("x")


def deleted_and_synced(entities, unnoticed):
    synced_then_deleted(entities, unnoticed)
    entities.export()


def synced_then_evicted(entities, unnoticed):
    entities.create(account(1), "x")
    entities.export()
    assert entities.evict(datetime.now(UTC) + timedelta(hours=1)) == 1


@pytest.mark.parametrize(
    ("scene", "is_dirty", "in_lake", "returned"),
    [
        (only_in_postgres, True, {}, {"x": 1}),
        (synced_without_updates, False, {"x": 1}, {"x": 1}),
        (synced_then_updated, True, {"x": 1}, {"x": 2}),
        (synced_then_deleted, True, {"x": 1}, {}),
        (deleted_and_synced, False, {}, {}),
        (synced_then_evicted, False, {"x": 1}, {"x": 1}),
    ],
)
def test_the_copy_that_is_returned_is_the_one_that_was_committed_last(
    accounts, pool, tenant, scene, is_dirty, in_lake, returned
):
    def unnoticed(balance):
        with pool.transaction(tenant) as connection:
            connection.execute("update e_1 set h_2 = %s", [balance])

    scene(accounts, unnoticed)
    assert accounts.view().hides.to_pylist() == (["x"] if is_dirty else [])
    assert cold_balances(accounts) == in_lake
    assert balances(accounts) == returned
    if scene is not synced_without_updates:
        found = accounts.read("x")
        assert (None if found is None else found.document["balance"]) == returned.get("x")


# Money moves, and every total is right.


def moves(entities, keys, turns):
    """Move money around a ring of accounts, each move one transaction."""
    held = dict.fromkeys(keys, 100)
    for turn in range(turns):
        one, other = keys[turn % len(keys)], keys[(turn + 1) % len(keys)]
        held[one] -= 7
        held[other] += 7
        operations = [
            Operation(OperationKind.REPLACE, key, account(held[key])) for key in (one, other)
        ]
        entities.bulk(operations)


class Together:
    """Threads that work until they are told to stop; what they raise is kept."""

    def __init__(self):
        self.is_done = threading.Event()
        self.problems = []
        self._threads = []

    def start(self, work):
        def run():
            try:
                work()
            except Exception as error:  # noqa: BLE001
                self.problems.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()
        return self._threads[-1]

    def stop(self):
        self.is_done.set()
        for thread in self._threads:
            thread.join()


def test_every_total_is_exact_while_money_moves_and_exports_run(accounts, another):
    rings = [[f"r{ring}-{n}" for n in range(6)] for ring in range(2)]
    for ring in rings:
        accounts.bulk([Operation(OperationKind.CREATE, key, account(100)) for key in ring])
    total = sum(balances(accounts).values())
    together, totals = Together(), []

    def exports():
        mine = another()
        while not together.is_done.is_set():
            with contextlib.suppress(Conflict):
                mine.export()

    def reads():
        mine = another()
        while not together.is_done.is_set():
            totals.append(sum(balances(mine).values()))

    for work in (exports, exports, reads):
        together.start(work)
    for writer in [together.start(lambda ring=ring: moves(accounts, ring, 60)) for ring in rings]:
        writer.join()
    together.stop()
    assert together.problems == []
    assert len(totals) > 5
    assert set(totals) == {total}
    accounts.export()
    assert sum(cold_balances(accounts).values()) == total


def test_P15_a_reading_in_two_statements_would_see_half_of_a_transfer(accounts, pool, monkeypatch):
    accounts.create(account(100), "a")
    accounts.create(account(100), "b")
    accounts.export()
    changed = dirty._changed_keys

    def total(*, isolation):
        """Return the total of a reading with a transfer between its first two statements."""
        accounts.replace("a", account(100))
        accounts.replace("b", account(100))
        accounts.export()
        accounts.replace("a", account(100))

        def transfer(*args):
            found = changed(*args)
            monkeypatch.setattr(dirty, "_changed_keys", changed)
            both = [Operation(OperationKind.REPLACE, "a", account(1))]
            accounts.bulk([*both, Operation(OperationKind.REPLACE, "b", account(199))])
            return found

        run = pool.run
        accounts.source._last = None
        monkeypatch.setattr(dirty, "_changed_keys", transfer)
        with monkeypatch.context() as patch:
            weak = {} if isolation is None else {"isolation": isolation}
            patch.setattr(pool, "run", lambda *args, **more: run(*args, **{**more, **weak}))
            rows = accounts.scan(["balance"]).rows
        return sum(rows.column("balance").to_pylist())

    assert total(isolation=None) == 200
    assert total(isolation=Isolation.READ_COMMITTED) != 200  # the wrong code: torn


@pytest.mark.parametrize("order", ["reading first", "export first"])
def test_P15_a_reading_and_an_export_in_either_order_are_exact(accounts, another, order):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.replace("a", account(2))
    other = another()
    state = accounts._views._state

    def meanwhile(head):
        accounts._views._state = state
        if order == "export first":
            other.export()
            compact(other)
            other.recover()
        return state(head)

    accounts._views._state = meanwhile
    assert balances(accounts) == {"a": 2}
    other.export()
    assert balances(accounts) == {"a": 2}


# A dict is the judge.

KEYS = st.sampled_from(["a", "b", "c", "é"])
STEPS = st.sampled_from(
    [("source", "claim", True), ("log", "try_commit", True), ("source", "retire", False)]
)


class EntityMachine(RuleBasedStateMachine):
    """Writers, deleters, exporters, compactors and readers, against a dict."""

    types = None
    count = 0

    @initialize()
    def begin(self):
        EntityMachine.count += 1
        name = f"account_{EntityMachine.count}"
        first, second = EntityMachine.types
        first.register(name, ACCOUNT)
        self.entities = [first.table(name), second.table(name)]
        self.model, self.versions, self.past = {}, {}, {}

    def _noted(self, done):
        if done is not None:
            self.past[done.version] = dict(self.model)

    @rule(who=st.integers(0, 1), key=KEYS, balance=st.integers(0, 9))
    def write(self, who, key, balance):
        written = self.entities[who].replace(key, account(balance))
        assert written.ver == self.versions.get(key, 0) + 1
        self.model[key], self.versions[key] = balance, written.ver

    @rule(who=st.integers(0, 1), key=KEYS)
    def delete(self, who, key):
        if key in self.model:
            self.versions[key] = self.entities[who].delete(key).ver
            del self.model[key]
        else:
            with pytest.raises(NotFound):
                self.entities[who].delete(key)

    @rule(who=st.integers(0, 1))
    def export(self, who):
        self._noted(self.entities[who].export())

    @rule(who=st.integers(0, 1), step=STEPS)
    def die_in_an_export(self, who, step):
        entities = self.entities[who]
        owner, name, after = step
        place = entities.source if owner == "source" else entities.table.log
        method = getattr(place, name)
        dies(place, name, after=after)
        try:
            self._noted(entities.export())
        except Died:
            state = entities.table.state()
            if name in ("try_commit", "retire"):
                self.past.setdefault(state.version, dict(self.model))
        finally:
            setattr(place, name, method)

    @rule(who=st.integers(0, 1))
    def compact(self, who):
        compact(self.entities[who])

    @rule(who=st.integers(0, 1))
    def recover(self, who):
        self.entities[who].recover()

    @rule(who=st.integers(0, 1))
    def evict(self, who):
        self.entities[who].evict(datetime.now(UTC) + timedelta(hours=1))

    @rule(who=st.integers(0, 1), key=KEYS)
    def read_one(self, who, key):
        found = self.entities[who].read(key)
        assert (None if found is None else found.document["balance"]) == self.model.get(key)
        assert found is None or found.ver == self.versions[key]

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def read_the_past(self, data):
        version = data.draw(st.sampled_from(sorted(self.past)))
        assert balances(self.entities[0], at=version) == self.past[version]

    @invariant()
    def every_reading_is_exact(self):
        for entities in getattr(self, "entities", ()):
            assert balances(entities) == self.model

    def teardown(self):
        if getattr(self, "entities", None):
            assert fsck(self.entities[0].table).is_sound


def test_whatever_writers_exporters_and_compactors_do_a_reading_is_the_dict(pool, tenant, tmp_path):
    lake = str(tmp_path / "lake")
    EntityMachine.types = [EntityCatalog(pool, tenant, Catalog(lake)) for _ in range(2)]
    run_state_machine_as_test(
        EntityMachine, settings=settings(max_examples=12, stateful_step_count=18, deadline=None)
    )


# The past, and what one entity was.


def test_an_instant_and_a_version_read_what_exports_had_left_then(accounts):
    accounts.create(account(1), "a")
    first = accounts.export()
    then = accounts.table.state().time
    accounts.replace("a", account(2))
    accounts.create(account(5), "b")
    accounts.export()
    accounts.replace("a", account(3))
    assert balances(accounts, at=first.version) == {"a": 1}
    assert balances(accounts, at=datetime.fromtimestamp(then / 1e9 + 1e-5, UTC)) == {"a": 1}
    assert accounts.read("a", at=first.version).document == account(1)
    assert accounts.read("b", at=first.version) is None
    answer = accounts.scan(at=first.version)
    assert answer.version == first.version
    assert answer.as_of == first.as_of


def test_the_history_of_an_entity_is_what_each_export_carried_and_what_is_hot(accounts):
    accounts.create(account(1), "a")
    first = accounts.export()
    compact(accounts)
    accounts.replace("a", account(2))
    accounts.create(account(9), "other")
    second = accounts.export()
    accounts.delete("a")
    third = accounts.export()
    accounts.create(account(4), "a")
    told = [
        (one.version, one.ver, one.document and one.document["balance"])
        for one in accounts.history("a")
    ]
    assert told == [
        (first.version, 1, 1),
        (second.version, 2, 2),
        (third.version, 3, None),
        (None, 4, 4),
    ]
    accounts.delete("a")
    assert accounts.history("a")[-1].document is None
    assert accounts.history("nobody") == []


def test_a_history_begins_with_the_oldest_version_that_is_kept(accounts):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.replace("a", account(2))
    second = accounts.export()
    vacuum(accounts.table, grace_s=0, dry_run=False, allow_short_grace=True)
    assert [one.ver for one in accounts.history("a")] == [1, 2]
    forget_changes(accounts)
    assert [one.ver for one in accounts.history("a")] == [2]
    assert accounts.history("a")[0].version == second.version


def test_a_version_that_was_vacuumed_before_postgres_followed_is_rolled_past(accounts, another):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.replace("a", account(2))
    dies(accounts.source, "retire", after=False)
    with pytest.raises(Died):
        accounts.export()
    vacuum(accounts.table, grace_s=0, dry_run=False, allow_short_grace=True)
    assert balances(accounts) == {"a": 2}
    assert accounts.view().hides.to_pylist() == []


def vacuumed_now(entities):
    """Remove all files that no kept version names, however young they are."""
    return vacuum(entities.table, grace_s=0, dry_run=False, allow_short_grace=True)


def test_a_reading_keeps_the_files_of_its_version_from_a_vacuum(accounts, another, monkeypatch):
    for key in "abc":
        accounts.create(account(1), key)
    accounts.export()
    other, real, vacuumed = another(), table_room.read_entity_rows, []

    def long_reading(storage, view, names):
        if not vacuumed:
            for key in "abc":
                other.replace(key, account(2))
            other.export()
            compact(other)
            vacuumed.append(vacuumed_now(other))
        yield from real(storage, view, names)

    monkeypatch.setattr(table_room, "read_entity_rows", long_reading)
    assert balances(accounts) == {"a": 1, "b": 1, "c": 1}
    assert vacuumed
    assert balances(accounts) == {"a": 2, "b": 2, "c": 2}
    vacuumed_now(other)
    assert balances(accounts) == {"a": 2, "b": 2, "c": 2}


def test_a_history_keeps_the_files_it_walks_from_a_vacuum(accounts, another, monkeypatch):
    for balance in (1, 2, 3):
        accounts.replace("a", account(balance))
        accounts.export()
    forget_changes(accounts)
    other, real, vacuumed = another(), history_room.find_keys, []

    def slow_walk(*args):
        if not vacuumed:
            vacuumed.append(vacuumed_now(other))
        return real(*args)

    monkeypatch.setattr(history_room, "find_keys", slow_walk)
    assert [one.ver for one in accounts.history("a")] == [1, 2, 3]
    vacuumed_now(other)
    assert [one.ver for one in accounts.history("a")] == [3], "it was the history that held them"


# Contracts change; rows leave and come back.


def test_a_new_property_is_read_at_once_and_of_old_rows_as_null(accounts, entity_types):
    accounts.create(account(1), "old")
    accounts.export()
    wider = {**ACCOUNT, "properties": {**ACCOUNT["properties"], "city": {"type": "string"}}}
    entity_types.registry.register("account", wider)  # by another process: this one is not told
    accounts.store.reload()
    accounts.create(account(2, city="Bonn"), "new")
    answer = accounts.scan(["_id", "city"])
    assert {row["_id"]: row["city"] for row in answer.rows.to_pylist()} == {
        "old": None,
        "new": "Bonn",
    }
    accounts.export()
    assert accounts.scan(["_id", "city"]).rows.sort_by("_id").to_pylist()[0]["city"] == "Bonn"
    assert accounts.read("new", at=accounts.table.state().version).document["city"] == "Bonn"
    assert fsck(accounts.table).is_sound


def test_P22_a_contract_registered_by_somebody_else_is_found_by_readings_and_exports(
    accounts, another, entity_types
):
    reader = another()
    wider = {**ACCOUNT, "properties": {**ACCOUNT["properties"], "city": {"type": "string"}}}
    entity_types.register("account", wider).create(account(2, city="Bonn"), "new")
    assert reader.scan(["city"]).rows.to_pylist() == [{"city": "Bonn"}]
    assert reader.export().rows == 1
    assert reader.scan(["city"]).rows.to_pylist() == [{"city": "Bonn"}]


def test_documents_come_back_from_the_lake_exactly(accounts):
    document = account(-(2**63), owner='"q", é\n', note=None, limit="-0.10")
    accounts.create(document, 'a, "b"')
    accounts.create(account(1), "plain")
    hot = accounts.read('a, "b"').document
    accounts.export()
    assert accounts.read('a, "b"', at=accounts.table.state().version).document == hot
    assert balances(accounts)['a, "b"'] == -(2**63)


def test_an_evicted_row_is_read_from_the_lake_and_comes_back_when_it_is_written(accounts, another):
    accounts.create(account(1, note="kept"), "a")
    accounts.create(account(1), "b")
    assert accounts.evict(datetime.now(UTC) + timedelta(hours=1)) == 0  # dirty rows stay
    accounts.export()
    assert accounts.evict(datetime.now(UTC) + timedelta(hours=1)) == 2
    assert accounts.store.read("a") is None
    assert accounts.read("a").document == account(1, note="kept")
    assert balances(accounts) == {"a": 1, "b": 1}
    with pytest.raises(Conflict, match="an entity of this key exists"):
        another().create(account(7), "a")
    assert accounts.patch("a", {"balance": 5}).ver == 2
    assert accounts.read("a").document == account(5, note="kept")
    assert accounts.delete("b").ver == 2
    accounts.export()
    assert balances(accounts) == cold_balances(accounts) == {"a": 5}


@pytest.mark.parametrize(
    "write",
    [
        lambda accounts: accounts.patch("a", {"balance": 9}),
        lambda accounts: accounts.replace("a", account(9), if_match=2),
        lambda accounts: accounts.delete("a"),
    ],
)
def test_an_evicted_row_that_somebody_else_brings_back_is_still_there(
    accounts, another, monkeypatch, write
):
    accounts.create(account(1), "a")
    accounts.export()
    assert accounts.evict(datetime.now(UTC) + timedelta(hours=1)) == 1
    other, real = another(), store_module.locate_keys
    others = []

    def beaten(*key):
        if not others:
            others.append(None)
            others.append(other.patch("a", {"balance": 5}))
        return real(*key)

    monkeypatch.setattr(store_module, "locate_keys", beaten)
    assert write(accounts).ver == 3
    assert others[1].ver == 2


def test_evicted_and_other_rows_are_written_together(accounts):
    for key in "abcd":
        accounts.create(account(1, note=key), key)
    accounts.delete("d")
    accounts.export()
    assert accounts.evict(datetime.now(UTC) + timedelta(hours=1)) == 3
    accounts.create(account(1), "present")
    results = accounts.bulk(
        [
            Operation(OperationKind.CREATE, "a", account(7)),
            Operation(OperationKind.CREATE, "new", account(7)),
            Operation(OperationKind.REPLACE, "b", account(7), if_match=1),
            Operation(OperationKind.PATCH, "c", {"balance": 7}),
            Operation(OperationKind.REPLACE, "d", account(7)),
            Operation(OperationKind.PATCH, "present", {"balance": 7}),
            Operation(OperationKind.DELETE, "a", if_match=1),
        ],
        atomic=False,
    )
    assert isinstance(results[0], Conflict)
    assert [(one.id, one.ver) for one in results[1:]] == [
        *(("new", 1), ("b", 2), ("c", 2), ("d", 3), ("present", 2), ("a", 2))
    ]
    seven = dict.fromkeys(("b", "c", "d", "new", "present"), 7)
    assert balances(accounts) == seven
    accounts.export()
    assert balances(accounts) == cold_balances(accounts) == seven


def test_a_row_that_was_written_before_it_was_locked_is_not_evicted(accounts, pool, tenant):
    accounts.create(account(1), "a")
    accounts.create(account(1), "b")
    accounts.export()
    later = datetime.now(UTC) + timedelta(hours=1)
    layout = accounts.store.layout
    with pool.transaction(tenant) as connection:
        keys = lock_clean(connection, layout, later, 10)
    assert keys == ["a", "b"]
    accounts.replace("a", account(2))  # as if it had committed while the lock was waited for
    with pool.transaction(tenant) as connection:
        assert delete_clean(connection, layout, keys) == 1
    assert balances(accounts) == {"a": 2, "b": 1}
    assert accounts.store.read("a").document == account(2)


def test_eviction_is_off_by_default_and_pages_refuse_once_it_is_on(accounts, another):
    accounts.create(account(1), "a")
    accounts.export()
    assert accounts.evict() == 0
    evicting = another(EntitySettings(evict_age_s=0))
    with pytest.raises(Unsupported):
        evicting.page()
    assert evicting.evict() == 1
    assert [entity.id for entity in accounts.page().entities] == []


def test_a_column_that_does_not_exist_is_named(accounts):
    with pytest.raises(Invalid) as caught:
        accounts.scan(["nothing"])
    assert caught.value.facts["columns"] == ["nothing"]


def test_P16_a_null_among_the_hidden_keys_hides_nothing():
    duckdb = pytest.importorskip("duckdb")
    import pyarrow as pa

    from thermocline.cold.entity_view import drop_keys

    cold = pa.table({"_id": ["a", "b"]})
    hides = pa.array(["a", None], pa.string())
    connection = duckdb.connect()
    connection.register("cold", cold)
    connection.register("hides", pa.table({"id": hides}))
    wrong = "select * from cold where _id not in (select id from hides)"
    assert connection.sql(wrong).fetchall() == []  # the wrong code: everything is hidden
    (batch,) = cold.to_batches()
    kept = drop_keys(batch, hides.drop_null())
    assert kept.column("_id").to_pylist() == ["b"]
