"""Pages hold what a plain list would: every filter, every order, every cut, ties and nulls."""

import base64
import random
from contextlib import contextmanager
from decimal import Decimal
from functools import cmp_to_key
from itertools import product

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import sql

from postgres.entities import order
from thermocline.errors import Invalid
from thermocline.hot.postgres.page.page import (
    AllOf,
    AnyOf,
    Comparison,
    Not,
    parse_filter,
)
from thermocline.hot.postgres.schema.registry import TypeRegistry
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.store.operation import Operation, OperationKind
from thermocline.hot.postgres.store.store import EntityStore

VALUES = {
    "status": st.sampled_from(["open", "closed", "a'b\"%", "é", ""]),
    "quantity": st.integers(-2, 2),
    "price": st.sampled_from(["0.00", "-1.50", "10.00", "9.99"]),
    "placed_at": st.sampled_from(["2026-01-01T00:00:00Z", "2025-12-31T23:59:59.5Z"]),
    "note": st.sampled_from([None, "", "x", "10", "Z"]),
    "weight": st.sampled_from([0.5, 1.0, -1.0, 1e22]),
}
documents = st.fixed_dictionaries(
    {"status": VALUES["status"]},
    optional={name: values for name, values in VALUES.items() if name != "status"},
)
nested = st.builds(
    lambda document, city: {**document, **({"address": {"city": city}} if city else {})},
    documents,
    st.sampled_from([None, "Bonn", "Ulm"]),
)
fields = st.sampled_from([*VALUES, "/address/city"])


@st.composite
def comparisons(draw):
    field = draw(fields)
    source = VALUES.get(field, st.sampled_from(["Bonn", "Ulm"]))
    value = source.filter(lambda found: found is not None)
    op = draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge", "in", "is_null"]))
    if op == "is_null":
        return Comparison(field, op)
    return Comparison(field, op, draw(st.lists(value, max_size=3) if op == "in" else value))


filters = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: AllOf(tuple(parts))),
        st.lists(inner, max_size=3).map(lambda parts: AnyOf(tuple(parts))),
        inner.map(Not),
    ),
    max_leaves=5,
)
sorts = st.lists(
    st.builds(lambda name, sign: sign + name, fields, st.sampled_from(["", "-"])), max_size=3
)


# A second opinion, in Python.


def value_of(entity, field):
    if field == "/address/city":
        return entity[1].get("address", {}).get("city")
    value = entity[1].get(field)
    return Decimal(value) if field == "price" and value is not None else value


def holds(node, entity):
    match node:
        case AllOf(parts):
            return all(holds(part, entity) for part in parts)
        case AnyOf(parts):
            return any(holds(part, entity) for part in parts)
        case Not(part):
            return not holds(part, entity)
    found, wanted = value_of(entity, node.field), node.value
    if node.field == "price" and wanted is not None:
        wanted = [Decimal(one) for one in wanted] if node.op == "in" else Decimal(wanted)
    if node.op == "is_null":
        return found is None
    if node.op == "ne":
        return found is None or found != wanted
    if found is None:
        return False
    return {
        "eq": lambda: found == wanted,
        "lt": lambda: found < wanted,
        "le": lambda: found <= wanted,
        "gt": lambda: found > wanted,
        "ge": lambda: found >= wanted,
        "in": lambda: found in wanted,
    }[node.op]()


def compared(sort):
    def compare(a, b):
        for word in sort:
            sign = -1 if word.startswith("-") else 1
            x, y = value_of(a, word.removeprefix("-")), value_of(b, word.removeprefix("-"))
            if x == y:
                continue
            if x is None or y is None:
                return sign if x is None else -sign
            return sign if x > y else -sign
        last = -1 if sort and sort[-1].startswith("-") else 1
        return last * ((a[0] > b[0]) - (a[0] < b[0]))

    return cmp_to_key(compare)


def paged(store, limit, **request):
    found, after = [], None
    while True:
        page = store.page(**request, after=after, limit=limit)
        assert len(page.entities) <= limit
        found += [(e.id, e.document) for e in page.entities]
        after = page.after
        if after is None:
            return found


@settings(max_examples=60)
@given(
    rows=st.lists(nested, max_size=25),
    node=st.none() | filters,
    sort=sorts,
    limit=st.integers(1, 7),
)
def test_pages_are_the_list_filtered_sorted_and_cut(store, rows, node, sort, limit):
    store.pool.run(store.tenant, lambda c: c.execute(f"delete from {store.layout.table}"))
    entities = [(f"k{n:02}", row) for n, row in enumerate(rows)]
    store.bulk([Operation(OperationKind.REPLACE, key, row) for key, row in entities])
    # The key breaks ties the way the last field goes.
    expected = [one for one in entities if node is None or holds(node, one)]
    expected.sort(key=compared(sort))
    assert paged(store, limit, filter=node, sort=sort) == expected
    assert store.page(node, with_total=True).total == len(expected)


def test_rows_that_come_and_go_between_pages_move_nothing(store):
    store.bulk(
        [Operation(OperationKind.CREATE, f"k{n:02}", order(quantity=n)) for n in range(0, 20, 2)]
    )
    first = store.page(sort=["quantity"], limit=5)
    store.delete("k00")
    store.create(order(quantity=1), "k01")
    store.create(order(quantity=11), "k11")
    second = store.page(sort=["quantity"], after=first.after, limit=10)
    assert [e.id for e in second.entities] == ["k10", "k11", "k12", "k14", "k16", "k18"]


def test_a_projection_gives_the_fields_asked_for_in_their_order(store):
    store.create(order(quantity=1, weight=2.0, tags=["a"]), "a")
    pages = [store.page(fields=f).entities[0].document for f in (["tags", "status"], ["quantity"])]
    assert pages == [{"tags": ["a"], "status": "open"}, {"quantity": 1}]
    assert list(pages[0]) == ["tags", "status"]


def test_texts_are_found_by_their_beginning_and_inside(store):
    for key, status, note in (("a", "open", "50% off"), ("b", "opened", "x"), ("c", "o", None)):
        store.create(order(status, note=note), key)

    def ids(field, op, value):
        return [e.id for e in store.page(Comparison(field, op, value)).entities]

    assert ids("status", "starts_with", "open") == ["a", "b"]
    assert ids("note", "contains", "% o") == ["a"]
    assert ids("note", "starts_with", "%") == []


def test_the_tables_own_fields_can_be_asked_for(store):
    for key in "abc":
        store.create(order(), key)
    store.patch("b", {"quantity": 1})
    assert [e.id for e in store.page(Comparison("_ver", "gt", 1)).entities] == ["b"]
    as_json = {"field": "_ver", "op": "gt", "value": 1}
    assert [e.id for e in store.page(as_json).entities] == ["b"]
    assert [e.id for e in store.page(Comparison("_id", "in", ["a", "c"])).entities] == ["a", "c"]
    assert [e.id for e in store.page(sort=["-_written_at"]).entities] == ["b", "c", "a"]


@pytest.mark.parametrize(
    "node",
    [
        Comparison("quantity", "eq", "3"),
        Comparison("quantity", "eq", True),
        Comparison("quantity", "eq", None),
        Comparison("status", "gt", 3),
        Comparison("placed_at", "eq", "yesterday"),
        Comparison("placed_at", "eq", "2026-01-01T00:00:00"),
        Comparison("price", "eq", "cheap"),
        Comparison("nothing", "eq", 1),
        Comparison("status", "like", "x"),
        Comparison("status; drop table type", "eq", "x"),
        Comparison("quantity", "in", 3),
        Comparison("note", "contains", 3),
        Comparison("tags", "lt", ["a"]),
        Comparison("weight", "eq", float("nan")),
        AllOf((Comparison("quantity", "eq", 1),) * 300),
    ],
)
def test_what_cannot_be_asked_is_refused(store, node):
    store.create(order(), "a")
    with pytest.raises(Invalid):
        store.page(node)


def test_a_fraction_is_compared_with_integers_as_what_it_is(store):
    for n in range(4):
        store.create(order(quantity=n), f"k{n}")
    assert [e.id for e in store.page(Comparison("quantity", "gt", 1.5)).entities] == ["k2", "k3"]
    assert store.page(Comparison("quantity", "lt", 10**30), with_total=True).total == 4


@pytest.mark.parametrize("after", ["", "x", "AAAA", "W10", base64.b64encode(b"[1,null]").decode()])
def test_a_cursor_that_is_none_is_refused(store, after):
    with pytest.raises(Invalid, match="the cursor does not fit"):
        store.page(after=after)


def test_a_cursor_of_another_order_is_refused(store):
    store.bulk([Operation(OperationKind.CREATE, f"k{n}", order(quantity=n)) for n in range(4)])
    page = store.page(sort=["quantity"], limit=2)
    with pytest.raises(Invalid, match="the cursor does not fit"):
        store.page(sort=["-quantity"], after=page.after)


@pytest.mark.parametrize("limit", [0, -1, 1_001, True, "10", None])
def test_a_page_has_a_size_within_limits(store, limit):
    with pytest.raises(Invalid, match="limit is out of range"):
        store.page(limit=limit)


def test_a_filter_can_be_written_as_json():
    document = {"and": [{"field": "a", "op": "eq", "value": 1}, {"not": {"or": []}}]}
    assert parse_filter(document) == AllOf((Comparison("a", "eq", 1), Not(AnyOf(()))))
    deep = {"field": "a", "op": "is_null"}
    for _ in range(30):
        deep = {"not": deep}
    for bad in ({}, [], None, {"and": 1}, {"field": 1, "op": "eq"}, {"and": [], "or": []}, deep):
        with pytest.raises(Invalid):
            parse_filter(bad)


# References.

CUSTOMER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "x-hot": True},
        "since": {"type": "string", "format": "date-time", "x-hot": True},
        "limit": {"type": "string", "x-type": "decimal(18,2)", "x-hot": True},
        "score": {"type": "number"},
    },
}
SALE = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "x-hot": True, "x-relation": "customer"},
        "seller": {"type": "string", "x-relation": {"type": "customer"}},
        "others": {"type": "array", "items": {"type": "string", "x-relation": "customer"}},
    },
}
ADA = {"name": "Ada", "since": "2026-01-01T00:00:00.25Z", "limit": "10.50", "score": 1e22}


@pytest.fixture
def sales(pool, tenant):
    registry = TypeRegistry(pool, tenant)
    registry.register("customer", CUSTOMER)
    registry.register("sale", SALE)
    customers = EntityStore(pool, tenant, "customer")
    customers.create(ADA, "ada")
    for name in ("bob", "eve"):
        customers.create({"name": name}, name)
    sales = EntityStore(pool, tenant, "sale")
    sales.create({"customer": "ada", "seller": "bob", "others": ["bob", "eve", "nobody"]}, "s1")
    sales.create({"customer": "ada"}, "s2")
    sales.create({"seller": "nobody"}, "s3")
    return sales


def test_a_page_comes_with_the_entities_it_refers_to(sales):
    page = sales.page(refs=["customer"])
    assert {key: e.document for key, e in page.refs["customer"].items()} == {"ada": ADA}
    page = sales.page(refs=["customer", "seller", "others"])
    assert set(page.refs["customer"]) == {"ada", "bob", "eve"}
    assert page.refs["customer"]["ada"].ver == 1


def test_a_page_and_its_references_are_one_statement_in_one_trip(sales, monkeypatch):
    sales.page(refs=["customer", "others"])
    monkeypatch.setattr(sales.pool, "transaction", None)  # which is three of them
    with counted(sales) as rows:
        sales.page(refs=["customer", "others"])
    assert len(rows) == 1


def test_a_property_that_refers_to_nothing_cannot_be_followed(sales, store):
    with pytest.raises(Invalid, match="has no x-relation"):
        store.page(refs=["status"])


def test_a_page_follows_a_type_that_has_changed_since_it_was_last_followed(pool, tenant, sales):
    assert sales.page(refs=["customer"]).refs["customer"]["ada"].document == ADA
    scored = {**CUSTOMER["properties"], "score": {"type": "number", "x-hot": True}}
    TypeRegistry(pool, tenant).register("customer", {**CUSTOMER, "properties": scored})
    assert sales.page(refs=["customer"]).refs["customer"]["ada"].document == ADA


def test_what_only_the_row_after_a_page_refers_to_does_not_come_with_it(sales):
    sales.create({"customer": "eve"}, "s0")
    page = sales.page(refs=["customer"], limit=1)
    assert [entity.id for entity in page.entities] == ["s0"]
    assert set(page.refs["customer"]) == {"eve"}


@contextmanager
def counted(store):
    """Give the list of how many rows each statement of a store's pages brought."""
    rows = []
    real = store.run_query

    def ask(*question):
        found = real(*question)
        rows.append(len(found))
        return found

    store.run_query = ask
    try:
        yield rows
    finally:
        store.run_query = real


def test_what_many_rows_refer_to_comes_from_the_server_once(sales):
    for n in range(20):
        sales.create({"customer": "ada", "others": ["ada", "bob"]}, f"t{n:02}")
    with counted(sales) as rows:
        page = sales.page(sort=["-customer"], refs=["customer", "others"])
    assert len(page.entities) == 23
    assert rows[-1] == 23 + len(page.refs["customer"])


FOLDER = {
    "type": "object",
    "properties": {
        "rank": {"type": ["integer", "null"], "x-hot": True},
        "parent": {"type": "string", "x-relation": "folder"},
        "twin": {"type": "string", "x-hot": True, "x-relation": "folder"},
        "kin": {"type": "array", "items": {"type": "string", "x-relation": "folder"}},
        "owner": {"type": "string", "x-relation": "customer"},
    },
}
FAMILY = {
    "a": {"rank": 1, "parent": "a", "owner": "ada"},
    "b": {"rank": 2, "parent": "a", "twin": "g", "kin": ["a", "h"]},
    "c": {"rank": 3, "parent": "z", "twin": "c"},
    "d": {"rank": None, "parent": "f", "owner": "bob"},
    "e": {"parent": "nobody"},
    "f": {"kin": ["b"]},
    "g": {"rank": 5, "twin": "b"},
    "h": {"rank": 4},
    "z": {"rank": 9, "parent": "b"},
}


@pytest.fixture
def folders(pool, tenant, sales):
    TypeRegistry(pool, tenant).register("folder", FOLDER)
    store = EntityStore(pool, tenant, "folder")
    store.bulk([Operation(OperationKind.CREATE, key, made) for key, made in FAMILY.items()])
    return store


def referred(ids, refs):
    """What rows refer to, looked up in Python."""
    found = {"folder": {}, "customer": {}} if "owner" in refs else {"folder": {}}
    for key, name in product(ids, refs):
        value = FAMILY[key].get(name, [])
        for other in value if isinstance(value, list) else [value]:
            if name == "owner":
                found["customer"][other] = ADA if other == "ada" else {"name": other}
            elif other in FAMILY:
                found["folder"][other] = FAMILY[other]
    return found


def test_what_a_page_refers_to_comes_with_it_from_the_page_or_from_elsewhere(folders):
    asked = product(
        [["parent"], ["twin"], ["parent", "twin", "kin", "owner"]],
        [None, ["rank"]],
        [1, 2, 3, 5, 100],
        [[], ["rank"], ["-rank"], ["parent"]],
    )
    for refs, fields, limit, sort in asked:
        after, seen = None, []
        while after is not None or not seen:
            page = folders.page(sort=sort, refs=refs, fields=fields, limit=limit, after=after)
            for one in page.entities:
                whole = FAMILY[one.id]
                assert one.document == {f: whole[f] for f in fields or whole if f in whole}
            ids = [one.id for one in page.entities]
            shown = {
                name: {key: one.document for key, one in found.items()}
                for name, found in page.refs.items()
            }
            assert shown == referred(ids, refs), (refs, fields, limit, sort)
            seen += ids
            after = page.after
        assert sorted(seen) == sorted(FAMILY)


def test_what_is_on_a_page_does_not_come_a_second_time(folders):
    with counted(folders) as rows:
        page = folders.page(refs=["parent", "twin"])
        cut = folders.page(refs=["parent"], limit=3)
    assert set(page.refs["folder"]) == {"a", "b", "c", "f", "g", "z"}
    assert set(cut.refs["folder"]) == {"a", "z"}
    # The row after a page of 3 comes to tell that there is one, and z from elsewhere.
    assert rows[-2:] == [len(FAMILY), 3 + 1 + 1]


def test_the_pages_with_references_are_in_order_however_they_are_asked(sales):
    for n, customer in enumerate(["eve", "bob", "ada", "eve", "bob"]):
        sales.create({"customer": customer}, f"t{n}")
    expected = ["s3", "t3", "t0", "t4", "t1", "t2", "s2", "s1"]
    found, after = [], None
    for _ in range(4):
        page = sales.page(sort=["-customer"], refs=["customer"], after=after, limit=2)
        wanted = {e.document["customer"] for e in page.entities if "customer" in e.document}
        assert set(page.refs["customer"]) == wanted
        found += [entity.id for entity in page.entities]
        after = page.after
    assert (found, after) == (expected, None)


def test_a_server_that_writes_dates_another_way_gives_the_same_pages(postgres_dsn, tenant, sales):
    role = sales.pool.run(None, lambda c: c.execute("select current_user").fetchone()[0])
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        named = sql.SQL("alter role {} in database {} set datestyle to 'German'").format(
            sql.Identifier(role), sql.Identifier(connection.info.dbname)
        )
        connection.execute(named)
    pool = Pool(postgres_dsn)
    try:
        customers = EntityStore(pool, tenant, "customer")
        assert customers.page().entities[0].document == ADA
        assert (
            EntityStore(pool, tenant, "sale")
            .page(refs=["customer"])
            .refs["customer"]["ada"]
            .document
            == ADA
        )
    finally:
        pool.close()


NODE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "x-hot": True},
        "size": {"type": ["integer", "null"], "x-hot": True},
        "price": {"type": "string", "x-type": "decimal(18,2)", "x-hot": True},
        "parent": {"type": "string", "x-relation": "node", "x-hot": True},
        "kids": {"type": "array", "items": {"type": "string", "x-relation": "node"}},
        "label": {"type": "string", "x-relation": "label"},
        "note": {"type": ["string", "null"]},
    },
}
LABEL = {"type": "object", "properties": {"text": {"type": "string"}}}


def referred_to(document, refs):
    """Return the keys that a document refers to, by type."""
    found = {"node": set(), "label": set()}
    for name in refs:
        value = document.get(name, [])
        kind = "label" if name == "label" else "node"
        found[kind] |= set(value if isinstance(value, list) else [value])
    return found


def test_pages_of_any_fields_and_references_are_what_was_written(pool, tenant):
    for name, contract in (("label", LABEL), ("node", NODE)):
        TypeRegistry(pool, tenant).register(name, contract)
    nodes, labels = EntityStore(pool, tenant, "node"), EntityStore(pool, tenant, "label")
    chance = random.Random(3)
    written = {"label": {f"l{n}": {"text": str(n)} for n in range(5)}, "node": {}}
    for n in range(70):
        whole = {
            "name": chance.choice("abc"),
            "size": chance.choice([None, 1, 10**12]),
            "price": "1.50",
            "parent": f"n{chance.randrange(90)}",
            "kids": [f"n{chance.randrange(90)}" for _ in range(chance.randrange(3))],
            "label": f"l{chance.randrange(7)}",
            "note": chance.choice([None, "x"]),
        }
        some = {name: value for name, value in whole.items() if chance.random() < 0.7}
        written["node"][f"n{n}"] = some
    for store, name in ((labels, "label"), (nodes, "node")):
        store.bulk([Operation(OperationKind.CREATE, *one) for one in written[name].items()])
    several = [["parent"], ["kids"], ["label"], ["parent", "kids", "label"], ["label", "parent"]]
    for _ in range(40):
        fields = chance.choice([None, [], chance.sample(list(NODE["properties"]), 3)])
        refs = chance.choice([[], *several])
        sort = chance.choice([[], ["name"], ["-size"], ["size", "price"]])
        limit, after, keys = chance.choice([7, 24, 25, 26, 70, 100]), None, []
        while True:
            page = nodes.page(sort=sort, fields=fields, refs=refs, limit=limit, after=after)
            wanted = {"node": set(), "label": set()}
            for one in page.entities:
                document = written["node"][one.id]
                shown = document if fields is None else fields
                assert one.document == {k: document[k] for k in shown if k in document}
                for kind, some in referred_to(document, refs).items():
                    wanted[kind] |= some & written[kind].keys()
            for kind, some in wanted.items():
                found = {key: one.document for key, one in page.refs.get(kind, {}).items()}
                assert found == {key: written[kind][key] for key in some}
            keys += [one.id for one in page.entities]
            after = page.after
            if after is None:
                break
        assert sorted(keys) == sorted(written["node"])
