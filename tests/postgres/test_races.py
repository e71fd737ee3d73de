"""Writers of one key take turns: nothing is lost, nothing is done twice, versions never repeat."""

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

from postgres.entities import ORDER, changes, order
from thermocline.errors import Conflict, NotFound
from thermocline.hot.postgres.schema.registry import TypeRegistry
from thermocline.hot.postgres.store.operation import Operation, OperationKind
from thermocline.hot.postgres.store.store import OperationWriter


def at_once(count, act):
    """Call `act` with 0, 1, ... in as many threads, all starting together."""
    start = threading.Barrier(count)

    def one(number):
        start.wait()
        return act(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def test_of_many_who_create_one_key_one_does(store):
    for turn in range(5):

        def create(number, key=f"k{turn}"):
            try:
                return store.create(order(quantity=number), key)
            except Conflict:
                return None

        results = at_once(6, create)
        winners = [number for number, result in enumerate(results) if result]
        assert len(winners) == 1
        assert store.read(f"k{turn}").document["quantity"] == winners[0]
    assert len(changes(store)) == 5


def test_many_who_add_to_one_number_by_version_lose_nothing(store):
    store.create(order(quantity=0), "a")
    adds = 8

    def add(_):
        done = 0
        while done < adds:
            entity = store.read("a")
            try:
                quantity = entity.document["quantity"] + 1
                store.patch("a", {"quantity": quantity}, if_match=entity.ver)
                done += 1
            except Conflict:
                continue

    at_once(4, add)
    assert store.read("a").document["quantity"] == 4 * adds
    assert store.read("a").ver == 1 + 4 * adds


def test_patches_of_one_key_by_many_are_all_in(store):
    store.create(order(tags=[]), "a")
    names = ["quantity", "note", "weight", "price"]
    values = [1, "x", 2.0, "3.00"]

    def patch(number):
        for _ in range(6):
            store.patch("a", {names[number]: values[number]})

    at_once(4, patch)
    entity = store.read("a")
    assert entity.ver == 25
    assert entity.document == order(quantity=1, price="3.00", note="x", weight=2.0, tags=[])


def test_creates_deletes_and_replaces_of_few_keys_keep_every_version_once(store):
    def churn(number):
        rng = random.Random(number)
        for _ in range(40):
            key = rng.choice("abc")
            with contextlib.suppress(Conflict, NotFound):
                rng.choice(
                    [
                        lambda key: store.create(order(quantity=number), key),
                        lambda key: store.replace(key, order(quantity=number)),
                        lambda key: store.patch(key, {"quantity": number}),
                        lambda key: store.delete(key),
                    ]
                )(key)

    at_once(5, churn)
    by_key = {}
    for key, ver, op, _ in changes(store):
        by_key.setdefault(key, []).append((ver, op))
    for key, notes in by_key.items():
        # Change ids may be in another order than the commits; versions may not skip or repeat.
        notes.sort()
        assert [ver for ver, _ in notes] == list(range(1, len(notes) + 1))
        entity = store.read(key)
        assert (entity is None) == (notes[-1][1] == "d")
        if entity is not None:
            assert entity.ver == notes[-1][0]


def test_bulks_that_meet_in_opposite_orders_all_come_through(store):
    keys = [f"k{n:02}" for n in range(30)]

    def write(number):
        ordered = keys if number % 2 else keys[::-1]
        for _ in range(5):
            store.bulk(
                [Operation(OperationKind.REPLACE, key, order(quantity=number)) for key in ordered]
            )

    at_once(4, write)
    assert {store.read(key).ver for key in keys} == {20}


def test_a_create_that_waits_for_a_delete_goes_on_from_its_version(store):
    store.create(order(), "a")
    deleted, created = threading.Event(), []

    def create():
        deleted.wait()
        created.append(store.create(order("late"), "a").ver)

    waiting = threading.Thread(target=create)
    waiting.start()
    with store.pool.transaction(store.tenant) as connection:
        writer = OperationWriter(connection, store.layout, None, is_atomic=True, is_careful=False)
        assert writer.write([Operation(OperationKind.DELETE, "a")])[0].ver == 2
        deleted.set()
        waiting.join(0.5)
        assert waiting.is_alive(), "it waits until the delete is committed or undone"
    waiting.join()
    assert created == [3]
    assert [row[1] for row in changes(store)] == [1, 2, 3]


def test_of_two_who_meet_a_promoted_field_the_later_one_reads_on_too(store, monkeypatch):
    store.create(order(weight=1.5), "a")
    weight = {"type": "number", "x-hot": True}
    newer = {**ORDER, "properties": {**ORDER["properties"], "weight": weight}}
    TypeRegistry(store.pool, store.tenant).register("order", newer)
    both, one_at_a_time, real = threading.Barrier(2), threading.Lock(), store.reload

    def reload():
        both.wait(60)  # until both have found the table changed
        with one_at_a_time:
            return real()

    monkeypatch.setattr(store, "reload", reload)
    with ThreadPoolExecutor(2) as threads:
        read = [threads.submit(store.page) for _ in range(2)]
        assert [one.result(60).entities[0].document for one in read] == [order(weight=1.5)] * 2
