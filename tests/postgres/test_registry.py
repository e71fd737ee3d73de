"""Types are registered version by version, and get columns while they are being written."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from fixtures.timing import wait_until
from postgres.entities import ORDER, order
from thermocline.errors import Invalid, NotFound, ThermoclineError
from thermocline.hot.postgres.page.page import Comparison
from thermocline.hot.postgres.schema import promote_column
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.schema.registry import TypeRegistry
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.store.operation import Operation, OperationKind
from thermocline.hot.postgres.store.store import EntityStore


def plus(**properties):
    return {**ORDER, "properties": {**ORDER["properties"], **properties}}


def hot(name):
    return plus(**{name: {**ORDER["properties"][name], "x-hot": True}})


def columns(store):
    query = (
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 "
        "and not attisdropped order by attname"
    )
    return [
        row[0]
        for row in store.pool.run(
            store.tenant, lambda c: c.execute(query, [store.layout.table]).fetchall()
        )
    ]


def test_a_type_is_found_again_with_its_columns(pool, tenant):
    registry = TypeRegistry(pool, tenant)
    made = registry.register("order", ORDER)
    found = TypeRegistry(pool, tenant).layout("order")
    assert found == made
    assert found.contract.document == ORDER
    assert [column.name for column in found.columns] == ["status", "quantity", "price", "placed_at"]
    assert registry.names() == ["order"]


def test_the_same_document_again_is_the_same_version(pool, tenant):
    registry = TypeRegistry(pool, tenant)
    registry.register("order", ORDER)
    assert registry.register("order", ORDER).contract.version == 1
    assert len(registry.versions("order")) == 1


def test_P24_a_version_that_breaks_old_documents_is_refused_with_the_place(pool, tenant, store):
    store.create(order(quantity=5), "a")
    narrower = plus(quantity={"type": "integer", "maximum": 3, "x-hot": True})
    with pytest.raises(Invalid) as caught:
        TypeRegistry(pool, tenant).register("order", narrower)
    problems = caught.value.facts["problems"]
    assert any(problem["pointer"].startswith("/properties/quantity") for problem in problems)
    assert all(problem["reason"] for problem in problems)
    assert store.read("a").document == order(quantity=5), "old rows are as readable as before"
    assert TypeRegistry(pool, tenant).layout("order").contract.version == 1


def test_a_type_that_is_not_registered_is_not_found(pool, tenant):
    with pytest.raises(NotFound, match="no such type"):
        EntityStore(pool, tenant, "order")


@pytest.mark.parametrize("name", ["", "Order", "e; drop", "a" * 64, None])
def test_what_cannot_be_a_type_is_refused(pool, tenant, name):
    with pytest.raises(Invalid, match="invalid name of a type"):
        TypeRegistry(pool, tenant).register(name, ORDER)


def test_a_document_that_is_no_contract_leaves_nothing_behind(pool, tenant):
    with pytest.raises(Invalid):
        TypeRegistry(pool, tenant).register("order", {"type": "string"})
    assert TypeRegistry(pool, tenant).names() == []


def test_many_who_register_at_once_make_one_version(pool, tenant):
    def register(_):
        return TypeRegistry(pool, tenant).register("order", ORDER).contract.version

    with ThreadPoolExecutor(5) as threads:
        assert set(threads.map(register, range(10))) == {1}


def test_a_new_property_needs_no_change_of_the_table(pool, tenant, store):
    before = columns(store)
    TypeRegistry(pool, tenant).register("order", plus(extra={"type": "string"}))
    store.create(order(extra="x"), "a")
    assert columns(store) == before


def test_a_property_that_becomes_hot_is_moved_and_nothing_becomes_dirty(pool, tenant, store):
    for n in range(5):
        store.create(order(weight=n / 2) if n else order(), f"k{n}")
    before = [(e.id, e.ver, e.document) for e in store.page().entities]
    pool.run(tenant, lambda c: c.execute("delete from change"))
    layout = TypeRegistry(pool, tenant).register("order", hot("weight"))
    assert layout.by_name["weight"].is_ready
    fresh = EntityStore(pool, tenant, "order")
    assert [(e.id, e.ver, e.document) for e in fresh.page().entities] == before
    assert pool.run(tenant, lambda c: c.execute("select * from change").fetchall()) == []
    left = f"select count(*) from {layout.table} where rest ? 'weight'"
    assert pool.run(tenant, lambda c: c.execute(left).fetchone()) == (0,)
    found = fresh.page(Comparison("weight", "gt", 1), sort=["-weight"]).entities
    assert [e.id for e in found] == ["k4", "k3"]


def test_P22_a_property_becomes_hot_under_writers_who_do_not_know_and_none_fails(
    pool, tenant, store, monkeypatch
):
    monkeypatch.setattr(promote_column, "BATCH_ROWS", 20)
    store.bulk([Operation(OperationKind.CREATE, f"k{n:03}", order(weight=n)) for n in range(200)])
    stores = [EntityStore(pool, tenant, "order") for _ in range(3)]
    done, failures, written = threading.Event(), [], [{} for _ in stores]

    def write(number):
        n = 0
        while not done.is_set() or n < 20:
            n += 1
            key = f"k{(n * 3 + number) % 200:03}"
            if int(key[1:]) % 3 != number:
                continue
            try:
                stores[number].patch(key, {"weight": n})
                written[number][key] = float(n)
            except ThermoclineError as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=write, args=[n]) for n in range(3)]
    for thread in threads:
        thread.start()
    TypeRegistry(pool, tenant).register("order", hot("weight"))
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    expected = {f"k{n:03}": float(n) for n in range(200)} | written[0] | written[1] | written[2]
    fresh = EntityStore(pool, tenant, "order")
    assert fresh.layout.by_name["weight"].is_ready
    found = fresh.page(limit=200).entities
    assert {e.id: e.document["weight"] for e in found} == expected
    by_column = fresh.page(sort=["weight"], fields=["weight"], limit=200).entities
    assert [e.document["weight"] for e in by_column] == sorted(expected.values())


def test_while_a_column_is_being_filled_filters_see_both_places(pool, tenant, store):
    store.bulk([Operation(OperationKind.CREATE, f"k{n}", order(weight=n)) for n in range(6)])
    TypeRegistry(pool, tenant).register("order", hot("weight"))
    undo = (
        "update e_1_6 set rest = rest || jsonb_build_object('weight', h_6), h_6 = null "
        "where id > 'k2'; update type_column set state = 'a' where column_id = 6"
    )
    half = TypeRegistry(pool, tenant).layout("order").by_name["weight"]
    assert half.column_id == 6
    pool.run(tenant, lambda c: c.execute(undo, prepare=False))
    middle = EntityStore(pool, tenant, "order")
    assert not middle.layout.by_name["weight"].is_ready
    found = middle.page(Comparison("weight", "ge", 2), sort=["-weight"]).entities
    assert [e.id for e in found] == ["k5", "k4", "k3", "k2"]
    assert TypeRegistry(pool, tenant).finish_promotions("order").by_name["weight"].is_ready
    assert [e.document["weight"] for e in middle.page().entities] == [0, 1, 2, 3, 4, 5]


def test_a_reader_with_the_old_layout_never_sees_a_document_without_what_was_moved(
    pool, tenant, store
):
    store.create(order(weight=1.5), "a")
    readers = [EntityStore(pool, tenant, "order") for _ in range(2)]
    for _ in range(10):  # until the driver has prepared the statement
        readers[0].read("a")
        readers[1].page()
    TypeRegistry(pool, tenant).register("order", hot("weight"))
    assert readers[0].read("a").document == order(weight=1.5)
    assert readers[1].page().entities[0].document == order(weight=1.5)


def _promote_and_wait(dsn):
    pool = Pool(dsn)
    promote_column._finish_column = lambda *_: time.sleep(300)
    TypeRegistry(pool, open_tenant(pool, "acme")).register("order", hot("weight"))


def test_O14_a_promotion_killed_before_its_end_is_finished_by_the_next(
    pool, tenant, store, postgres_dsn
):
    store.bulk([Operation(OperationKind.CREATE, f"k{n}", order(weight=n)) for n in range(6)])
    killed = multiprocessing.get_context("spawn").Process(
        target=_promote_and_wait, args=[postgres_dsn]
    )
    killed.start()
    state = "select state::text from type_column where name = 'weight'"
    wait_until(lambda: pool.run(tenant, lambda c: c.execute(state).fetchone()))
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    store.patch("k1", {"weight": 10})
    assert TypeRegistry(pool, tenant).register("order", hot("weight")).by_name["weight"].is_ready
    found = store.page(sort=["-weight"], limit=2).entities
    assert [(e.id, e.document["weight"]) for e in found] == [("k1", 10), ("k5", 5)]


def test_an_index_that_a_killed_build_left_broken_is_built_again(pool, tenant, store):
    store.bulk([Operation(OperationKind.CREATE, f"k{n}", order(weight=1)) for n in range(6)])
    layout = TypeRegistry(pool, tenant).register("order", hot("weight"))
    index = f"e_{layout.type_id}_h_6"
    with pool.session() as connection:
        connection.execute(f"set role {tenant.role}; set search_path to {tenant.schema}")
        connection.execute(f"drop index {index}")
        with pytest.raises(psycopg.Error):
            connection.execute(f"create unique index concurrently {index} on e_1_6 (h_6)")
    pool.run(tenant, lambda c: c.execute("update type_column set state = 'a' where column_id = 6"))
    TypeRegistry(pool, tenant).finish_promotions("order")
    query = "select indisvalid, indisunique from pg_index where indexrelid = %s::regclass"
    assert pool.run(tenant, lambda c: c.execute(query, [index]).fetchone()) == (True, False)
