"""Entities are written and read one by one: versions, matches, merging, checking, notes."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from postgres.entities import ORDER, changes, order
from thermocline.errors import Conflict, Invalid, NotFound
from thermocline.hot.postgres.schema.registry import TypeRegistry
from thermocline.hot.postgres.store.operation import (
    Operation,
    OperationKind,
    WriteResult,
)
from thermocline.hot.postgres.store.store import EntityStore
from thermocline.names import OPERATIONS_MAX

FULL = order(
    quantity=3,
    price="12.50",
    placed_at="2026-01-01T00:00:00.5Z",
    note=None,
    weight=1e23,
    tags=["a", "b"],
    address={"city": "Bonn", "zip": 53111},
)


def test_what_is_written_is_read_exactly(store):
    assert store.create(FULL, "a") == WriteResult("a", 1, OperationKind.CREATE)
    entity = store.read("a")
    assert entity.document == FULL
    assert list(entity.document) == list(FULL)
    assert (entity.id, entity.ver, entity.schema_version) == ("a", 1, 1)


def test_null_and_absent_stay_two_things(pool, tenant):
    nullable = {"type": "object", "properties": {"n": {"type": ["integer", "null"], "x-hot": True}}}
    TypeRegistry(pool, tenant).register("thing", nullable)
    things = EntityStore(pool, tenant, "thing")
    for key, document in (("a", {}), ("b", {"n": None}), ("c", {"n": 1})):
        things.create(document, key)
        assert things.read(key).document == document
        assert things.page(fields=["n"]).entities[-1].document == document


@pytest.mark.parametrize("number", [1e22, 1e23, 0.1, 5e-324, 1.7976931348623157e308, 3, -0.5])
def test_numbers_come_back_as_they_were(store, number):
    store.create(order(weight=number), "a")
    kept = store.read("a").document["weight"]
    assert kept == number
    assert type(kept) is float


def test_a_key_is_made_for_what_has_none(store):
    made = [store.create(order()).id for _ in range(3)]
    assert len(set(made)) == 3
    assert all(store.read(key) for key in made)


def test_a_replace_creates_what_is_not_there(store):
    assert store.replace("a", order()) == WriteResult("a", 1, OperationKind.CREATE)
    assert store.replace("a", order("late")) == WriteResult("a", 2, OperationKind.REPLACE)
    assert store.read("a").document == order("late")


def test_a_create_of_what_is_there_is_a_conflict_and_changes_nothing(store):
    store.create(order(), "a")
    with pytest.raises(Conflict) as caught:
        store.create(order("late"), "a")
    assert caught.value.facts["id"] == "a"
    assert store.read("a").document == order()
    assert len(changes(store)) == 1


def test_a_patch_merges_removes_and_replaces_lists(store):
    store.create(FULL, "a")
    patch = {"quantity": None, "tags": ["c"], "address": {"zip": None, "city": "Ulm"}}
    assert store.patch("a", patch) == WriteResult("a", 2, OperationKind.PATCH)
    expected = {**FULL, "tags": ["c"], "address": {"city": "Ulm"}}
    del expected["quantity"]
    assert store.read("a").document == expected


def test_a_patch_is_checked_after_merging_and_names_every_problem(store):
    store.create(FULL, "a")
    with pytest.raises(Invalid) as caught:
        store.patch("a", {"status": None, "quantity": "many"})
    pointers = {problem["pointer"] for problem in caught.value.facts["problems"]}
    assert pointers == {"/status", "/quantity"}
    assert store.read("a").ver == 1


def test_what_is_not_there_cannot_be_patched_or_deleted(store):
    with pytest.raises(NotFound):
        store.patch("a", {})
    with pytest.raises(NotFound):
        store.delete("a")
    assert changes(store) == []


@pytest.mark.parametrize("act", ["replace", "patch", "delete"])
def test_a_write_on_a_version_that_has_passed_is_a_conflict_with_the_current_one(store, act):
    store.create(order(), "a")
    store.patch("a", {"quantity": 1})
    arguments = {"replace": [order()], "patch": [{}], "delete": []}[act]
    with pytest.raises(Conflict) as caught:
        getattr(store, act)("a", *arguments, if_match=1)
    assert caught.value.facts["ver"] == 2
    assert getattr(store, act)("a", *arguments, if_match=2).ver == 3


def test_a_match_on_what_is_not_there_creates_nothing(store):
    with pytest.raises(Conflict):
        store.replace("a", order(), if_match=1)
    assert store.read("a") is None


def test_P17_versions_go_on_over_delete_and_create_again(store):
    versions = [store.create(order(), "a").ver, store.delete("a").ver]
    versions += [store.create(order(), "a").ver, store.patch("a", {"quantity": 2}).ver]
    versions += [store.delete("a").ver, store.replace("a", order()).ver]
    assert versions == [1, 2, 3, 4, 5, 6]
    assert [row[:3] for row in changes(store)] == [
        ("a", 1, "u"),
        ("a", 2, "d"),
        ("a", 3, "u"),
        ("a", 4, "u"),
        ("a", 5, "d"),
        ("a", 6, "u"),
    ]


def test_P17_the_clock_decides_nothing_two_writes_of_one_instant_keep_their_order(store):
    bulk = [Operation(OperationKind.REPLACE, "a", order(quantity=n)) for n in range(5)]
    store.bulk(bulk)
    assert store.read("a").ver == 5
    assert store.read("a").document["quantity"] == 4


@pytest.mark.parametrize("key", [None, "", 7, "a" * 256, " a", "a\x00b", "\ud800", b"a", "a\n"])
def test_P16_what_cannot_be_a_key_is_refused_everywhere(store, key):
    acts = [
        lambda: store.replace(key, order()),
        lambda: store.patch(key, {}),
        lambda: store.delete(key),
        lambda: store.read(key),
    ]
    for act in acts:
        with pytest.raises(Invalid):
            act()
    assert changes(store) == []


def test_P16_the_table_itself_takes_no_null_key(store):
    table = store.layout.table
    text = f"insert into {table} (id, ver, schema_version, rest) values (%s, 1, 1, '{{}}')"
    for key in (None, ""):
        with pytest.raises(Invalid, match="does not fit its table"):
            store.pool.run(store.tenant, lambda c, key=key: c.execute(text, [key]))
    note = "insert into change (type_id, id, ver, op) values (1, null, 1, 'u')"
    with pytest.raises(Invalid, match="does not fit its table"):
        store.pool.run(store.tenant, lambda c: c.execute(note))


def test_the_longest_key_and_the_oddest_text_are_kept(store):
    key = "\N{GRINNING FACE}" * 255
    document = order("a'\"\\{},%s%(x)s\N{GRINNING FACE}", tags=["%", "{", "\\"])
    store.create(document, key)
    assert store.read(key).document == document
    assert store.delete(key).ver == 2


def test_P25_change_ids_may_have_gaps_and_nothing_minds(store):
    store.create(order(), "a")
    with pytest.raises(Conflict):
        store.create(order(), "a")
    store.pool.run(
        store.tenant, lambda c: c.execute("select setval('change_cid_seq', 9000000000000)")
    )
    store.create(order(), "b")
    assert [row[3] for row in changes(store)] == [1, 9000000000001]


# Many at once.


def test_a_bulk_is_in_order_and_a_key_may_come_again(store):
    results = store.bulk(
        [
            Operation(OperationKind.CREATE, "a", order()),
            Operation(OperationKind.CREATE, "b", order()),
            Operation(OperationKind.PATCH, "a", {"quantity": 1}),
            Operation(OperationKind.DELETE, "b"),
            Operation(OperationKind.CREATE, "b", order("late")),
        ]
    )
    assert [(one.id, one.ver) for one in results] == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("b", 2),
        ("b", 3),
    ]
    assert store.read("b").document == order("late")


def test_an_atomic_bulk_fails_as_a_whole_and_says_which(store):
    store.create(order(), "taken")
    good, bad = (
        Operation(OperationKind.CREATE, "a", order()),
        Operation(OperationKind.CREATE, "taken", order()),
    )
    with pytest.raises(Conflict) as caught:
        store.bulk([good, bad])
    assert caught.value.facts["item"] == 1
    with pytest.raises(Invalid) as caught:
        store.bulk([good, good, Operation(OperationKind.REPLACE, "c", {"status": 1})])
    assert store.read("a") is None
    assert len(changes(store)) == 1


def test_a_bulk_by_item_does_what_can_be_done_and_answers_for_each(store):
    store.create(order(), "taken")
    results = store.bulk(
        [
            Operation(OperationKind.CREATE, "a", order()),
            Operation(OperationKind.CREATE, "taken", order()),
            Operation(OperationKind.PATCH, "missing", {}),
            Operation(OperationKind.REPLACE, "b", {"status": 1}),
            Operation(OperationKind.DELETE, "taken", if_match=9),
            Operation(OperationKind.REPLACE, "c", order()),
        ],
        atomic=False,
    )
    kinds = [type(one).__name__ for one in results]
    names = ["WriteResult", "Conflict", "EntityNotFound"]
    assert kinds == [*names, "Invalid", "PreconditionFailed", "WriteResult"]
    assert {key for key, *_ in changes(store)} == {"taken", "a", "c"}


def test_a_bulk_has_a_limit(store):
    operation = Operation(OperationKind.CREATE, "a", order())
    with pytest.raises(Invalid, match="too many"):
        store.bulk([operation] * (OPERATIONS_MAX + 1))
    assert store.bulk([]) == []


def test_a_large_bulk_of_new_keys_does_not_fill_the_servers_lock_table(store):
    bulk = [Operation(OperationKind.CREATE, f"k{n}", order()) for n in range(8_000)]
    assert len(store.bulk(bulk)) == 8_000
    gone = [Operation(OperationKind.DELETE, f"k{n}") for n in range(8_000)]
    assert {one.ver for one in store.bulk(gone)} == {2}
    assert {one.ver for one in store.bulk(bulk)} == {3}


# Contracts that move on.


def test_a_row_of_an_older_contract_moves_to_the_newest_when_it_is_written(pool, tenant, store):
    store.create(order(), "a")
    wider = {**ORDER, "properties": {**ORDER["properties"], "extra": {"type": "string"}}}
    TypeRegistry(pool, tenant).register("order", wider)
    assert store.patch("a", {"extra": "x"}).ver == 2, "a store that knows the old one looks again"
    assert store.read("a").schema_version == 2
    with pytest.raises(Invalid):
        store.patch("a", {"unknown": 1})


def test_a_reader_that_knows_the_old_contract_reads_rows_of_the_new_one(pool, tenant, store):
    other = EntityStore(pool, tenant, "order")
    wider = {**ORDER, "properties": {**ORDER["properties"], "extra": {"type": "string"}}}
    TypeRegistry(pool, tenant).register("order", wider)
    store.create(order(extra="x"), "a")
    assert other.read("a").document == order(extra="x")
    assert EntityStore(pool, tenant, "order").page().entities[0].document == order(extra="x")


# Documents that are odd.


@pytest.mark.parametrize(
    "odd",
    [
        float("nan"),
        float("inf"),
        (1.0,),
        "1.0",
        True,
        datetime(2026, 1, 1, tzinfo=UTC),
        b"1",
        {1: 2},
        10**400,
        Decimal("NaN"),
        object(),
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_what_is_no_number_of_json_is_refused_and_not_made_into_one(store, odd):
    with pytest.raises(Invalid):
        store.create(order(weight=odd), "a")
    assert store.read("a") is None


@pytest.mark.parametrize("fine", [Decimal("0.5"), Decimal("0.1"), 2], ids=repr)
def test_what_stands_for_json_is_taken(store, fine):
    store.create(order(weight=fine), "a")
    assert store.read("a").document == order(weight=float(fine))


def test_a_text_with_a_nul_is_refused_with_its_place(store):
    with pytest.raises(Invalid) as caught:
        store.create(order(note="a\0b"), "a")
    assert caught.value.facts["problems"][0]["pointer"] == "/note"


def test_a_document_may_come_as_json_text(store):
    store.create(b'{"status": "open", "weight": 1e2}', "a")
    store.patch("a", b'{"weight": null, "quantity": 2}')
    assert store.read("a").document == order(quantity=2)
    with pytest.raises(Invalid):
        store.replace("a", b'{"status": "open", "status": "late"}')
