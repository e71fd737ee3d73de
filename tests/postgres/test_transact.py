"""Transactions across types, and writes with idempotency keys: all or nothing, and only once."""

import threading

import pytest

from fixtures.entities import CUSTOMER
from postgres.entities import ORDER, changes, order
from thermocline.cold.catalog import Catalog
from thermocline.entity.types import EntityCatalog
from thermocline.errors import Conflict, EntityNotFound, Invalid, PreconditionFailed
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.session.pool_settings import PoolSettings
from thermocline.hot.postgres.store import idempotency
from thermocline.hot.postgres.store.idempotency import remove_old_requests
from thermocline.hot.postgres.store.store import EntityStore


@pytest.fixture
def shop(pool, tenant, tmp_path):
    """Orders and customers of one tenant."""
    types = EntityCatalog(pool, tenant, Catalog(str(tmp_path / "lake")))
    types.register("order", ORDER)
    types.register("customer", CUSTOMER)
    return types


def operations(*, name="Ada", match=None):
    return [
        {"type": "order", "op": "create", "id": "o-1", "document": order()},
        {"type": "customer", "op": "upsert", "id": "ada", "document": {"name": name}},
        {"type": "order", "op": "patch", "id": "o-1", "document": {"quantity": 2}},
        {"type": "customer", "op": "check", "id": "bob", "if_match": match},
    ]


def documents(shop):
    return {
        name: {one.id: one.document for one in shop.table(name).page().entities}
        for name in shop.names()
    }


def test_operations_of_several_types_are_written_together_in_their_order(shop):
    shop.table("customer").create({"name": "Bob"}, "bob")
    done = shop.transact(operations(match=1))
    assert [(one.id, one.ver, one.deed.value) for one in done] == [
        ("o-1", 1, "created"),
        ("ada", 1, "created"),
        ("o-1", 2, "patched"),
        ("bob", 1, "checked"),
    ]
    assert documents(shop) == {
        "customer": {"ada": {"name": "Ada"}, "bob": {"name": "Bob"}},
        "order": {"o-1": {"status": "open", "quantity": 2}},
    }


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ({"op": "check", "id": "bob", "if_match": 2}, PreconditionFailed),
        ({"op": "check", "id": "nobody"}, EntityNotFound),
        ({"op": "create", "id": "bob", "document": {"name": "B"}}, Conflict),
        ({"op": "create", "id": "eve", "document": {"name": 3}}, Invalid),
    ],
)
def test_one_failure_undoes_the_operations_of_every_type_and_names_its_place(shop, last, kind):
    shop.table("customer").create({"name": "Bob"}, "bob")
    before = documents(shop)
    with pytest.raises(kind) as caught:
        shop.transact([*operations()[:3], {"type": "customer", **last}])
    assert (caught.value.facts["item"], documents(shop)) == (3, before)


def test_an_operation_without_a_type_or_of_an_unknown_type_is_refused(shop):
    with pytest.raises(Invalid, match="no type"):
        shop.transact([{"op": "delete", "id": "a"}])
    with pytest.raises(Exception, match="no such type"):
        shop.transact([{"type": "crate", "op": "delete", "id": "a"}])
    assert shop.transact([]) == []


def test_a_checked_entity_does_not_change_until_the_transaction_ends(shop, pool, tenant):
    shop.table("customer").create({"name": "Bob"}, "bob")
    store = EntityStore(pool, tenant, "customer")
    done = threading.Event()

    def write():
        store.patch("bob", {"name": "Bert"})
        done.set()

    with pool.transaction(tenant) as connection:
        check = [one.operation for one in _parsed({"op": "check", "id": "bob", "if_match": 1})]
        store.write_in(connection, store.layout, check, is_atomic=True, is_careful=False)
        writer = threading.Thread(target=write)
        writer.start()
        assert not done.wait(0.2)
    writer.join(30)
    assert done.is_set()


def _parsed(one):
    from thermocline.hot.postgres.store.operation import parse_typed_operations

    return parse_typed_operations([{"type": "customer", **one}])


def test_rows_that_were_evicted_take_part_in_a_transaction(shop):
    from datetime import UTC, datetime, timedelta

    customers = shop.table("customer")
    customers.create({"name": "Bob"}, "bob")
    customers.export()
    assert customers.evict(datetime.now(UTC) + timedelta(hours=1)) == 1
    with pytest.raises(Conflict):
        shop.transact([{"type": "customer", "op": "create", "id": "bob", "document": {"name": ""}}])
    shop.transact([{"type": "customer", "op": "upsert", "id": "bob", "document": {"name": "B"}}])
    assert customers.read("bob").ver == 2


def test_transactions_that_lock_types_in_any_order_all_commit(shop):
    shop.transact(operations()[:2])
    trouble = []

    def write(first, second):
        try:
            for _ in range(10):
                shop.transact([first, second])
        except Exception as error:  # noqa: BLE001
            trouble.append(error)

    one = {"type": "order", "op": "patch", "id": "o-1", "document": {"quantity": 1}}
    two = {"type": "customer", "op": "patch", "id": "ada", "document": {"name": "A"}}
    writers = [threading.Thread(target=write, args=pair) for pair in ((one, two), (two, one))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert trouble == []
    assert shop.table("order").read("o-1").ver == shop.table("customer").read("ada").ver == 21


# Idempotency keys


def test_a_write_with_a_key_happens_once_and_is_answered_again(store):
    first = store.create(order(), idempotency_key="k-1")
    assert store.create(order(), idempotency_key="k-1") == first
    assert store.create(order(), idempotency_key="k-2") != first
    patched = store.patch(first.id, {"quantity": 1}, 1, idempotency_key="k-3")
    assert store.patch(first.id, {"quantity": 1}, 1, idempotency_key="k-3") == patched
    deleted = store.delete(first.id, idempotency_key="k-4")
    assert store.delete(first.id, idempotency_key="k-4") == deleted
    assert len(changes(store)) == 4


def test_a_transaction_with_a_key_happens_once_across_processes(shop, pool, tenant, tmp_path):
    first = shop.transact(operations()[:3], idempotency_key="t-1")
    other = EntityCatalog(pool, tenant, Catalog(str(tmp_path / "lake")))
    assert other.transact(operations()[:3], idempotency_key="t-1") == first
    assert shop.table("order").read("o-1").ver == 2


def test_a_bulk_with_failures_is_answered_again_with_the_same_failures(store):
    many = [
        {"op": "create", "id": "a", "document": order()},
        {"op": "patch", "id": "b", "document": order()},
        {"op": "create", "document": {"status": 7}},
    ]
    first = store.bulk(many, atomic=False, idempotency_key="b-1")
    again = store.bulk(many, atomic=False, idempotency_key="b-1")
    assert again[0] == first[0]
    assert [(type(one), one.message, one.facts) for one in again[1:]] == [
        (type(one), one.message, one.facts) for one in first[1:]
    ]
    assert len(changes(store)) == 1


def test_a_key_with_other_operations_is_refused(store):
    store.create(order(), "a", idempotency_key="k")
    for write in (
        lambda: store.create(order("late"), "a", idempotency_key="k"),
        lambda: store.create(order(), "b", idempotency_key="k"),
        lambda: store.delete("a", idempotency_key="k"),
        lambda: store.bulk([{"op": "delete", "id": "a"}], atomic=False, idempotency_key="k"),
    ):
        with pytest.raises(Invalid, match="used for another request"):
            write()
    assert len(changes(store)) == 1


@pytest.mark.parametrize("bad", ["", " ", "a b", "ä", "k" * 201, 7])
def test_a_malformed_key_is_refused(store, bad):
    with pytest.raises(Invalid):
        store.create(order(), idempotency_key=bad)


def test_a_write_that_failed_may_be_sent_again_with_its_key(store):
    with pytest.raises(EntityNotFound):
        store.patch("a", {"quantity": 1}, idempotency_key="k")
    store.create(order(), "a")
    assert store.patch("a", {"quantity": 1}, idempotency_key="k").ver == 2


def test_of_two_requests_with_one_key_at_once_one_writes(store):
    answers = []
    gate = threading.Barrier(4)

    def write():
        gate.wait()
        answers.append(store.create(order(), idempotency_key="k"))

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(answers) == 4
    assert len(set(answers)) == 1
    assert len(changes(store)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_to_a_commit_is_repeated_with_its_key(way, tenant, store, when):
    pool = Pool(way.dsn, PoolSettings(connect_timeout_s=10, wait_timeout_s=30))
    try:
        cut = EntityStore(pool, tenant, "order")
        way.cut_at_commit(when)
        assert cut.create(order(), "a", idempotency_key="k").ver == 1
        assert cut.create(order(), "a", idempotency_key="k").ver == 1
    finally:
        pool.close()
    assert len(changes(store)) == 1


def test_a_design_that_claims_the_key_after_the_write_writes_twice(store, monkeypatch):
    """The wrong design: look whether the key is known, write, and note the key afterwards."""

    def run_then_note(connection, request, write):
        query = "select true from write_request where request = %s"
        if connection.execute(query, [request.key]).fetchone():
            return idempotency._read_results(connection, request)
        gate.wait(30)  # both have looked
        results = write()
        connection.execute(
            "insert into write_request (request, fingerprint) values (%s, %s) "
            "on conflict do nothing",
            [request.key, request.fingerprint],
        )
        return results

    gate = threading.Barrier(2)
    monkeypatch.setattr("thermocline.hot.postgres.store.store.run_once", run_then_note)
    writers = [
        threading.Thread(target=lambda: store.create(order(), idempotency_key="k"))
        for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(changes(store)) == 2


def test_old_keys_are_removed(store):
    store.create(order(), idempotency_key="k")
    assert store.pool.run(store.tenant, remove_old_requests) == 0
    assert store.pool.run(store.tenant, lambda c: remove_old_requests(c, kept_s=-1)) == 1
