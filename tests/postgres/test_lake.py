"""Entities of a lake: tables in SQL like any other, exact while they change, beside time series."""

import threading
from dataclasses import replace

import pytest

import thermocline as tc
from fixtures.wal import calm, ticks
from thermocline.errors import Conflict, Invalid, NotFound, Unavailable
from thermocline.hot.postgres.store.operation import Operation, OperationKind
from thermocline.node import Node, open_lake

ACCOUNT = {
    "type": "object",
    "properties": {
        "owner": {"type": "string", "x-hot": True},
        "cents": {"type": "integer"},
        "paid": {"type": "string", "x-type": "decimal(18,2)"},
    },
    "required": ["owner", "cents"],
}
TOTAL = "select count(*) as n, sum(cents) as total from account"


def settings(dsn, **more):
    """Return settings under which an export happens on demand only."""
    return replace(calm(), postgres=dsn, export_age_s=1e9, export_changes=10**9, **more)


@pytest.fixture(params=[0, 1], ids=["in this process", "in a worker"])
def lake(request, tmp_path, postgres_dsn):
    """A lake with accounts, whose queries run here or in a worker process."""
    with open_lake(tmp_path / "lake", settings(postgres_dsn, query_workers=request.param)) as lake:
        lake.register("account", ACCOUNT)
        yield lake


def owners(lake):
    return [row["owner"] for row in lake.sql("select owner from account order by 1").to_pylist()]


def test_an_entity_is_seen_by_the_next_query_hot_cold_changed_and_deleted(lake):
    account = lake.entity("account")
    ada = account.create({"owner": "ada", "cents": 5, "paid": "1.50"}).id
    account.create({"owner": "bob", "cents": 7})
    assert owners(lake) == ["ada", "bob"]
    lake.flush("account")
    assert owners(lake) == ["ada", "bob"]
    account.patch(ada, {"owner": "eve", "cents": 6})
    found = lake.sql("select owner, cents, paid, _ver from account where cents < 7").to_pylist()
    assert [(row["owner"], row["cents"], str(row["paid"]), row["_ver"]) for row in found] == [
        ("eve", 6, "1.50", 2)
    ]
    assert not lake.sql("select * from account where owner = 'ada'").num_rows, "its old row"
    account.delete(ada)
    assert owners(lake) == ["bob"]
    lake.flush()
    assert owners(lake) == ["bob"]
    version = lake.table("account").version()
    past = lake.sql(f"select owner from account at (version => {version - 1})")
    assert sorted(past.column(0).to_pylist()) == ["ada", "bob"]


def test_entities_join_with_time_series(lake):
    lake.entity("account").create({"owner": "a", "cents": 5})
    lake.create_table("m", time_column="ts", bucket="1h").write(ticks(1, 2, host="a"))
    query = "select n, cents from m join account on host = owner order by n"
    assert lake.sql(query).to_pylist() == [{"n": 1, "cents": 5}, {"n": 2, "cents": 5}]


def test_every_way_to_read_a_table_of_entities_is_exact(lake):
    account = lake.entity("account")
    key = account.create({"owner": "ada", "cents": 5}).id
    account.export()
    account.patch(key, {"cents": 9})
    table = lake.table("account")
    assert table.to_arrow().column("cents").to_pylist() == [9]
    assert [b.column("cents").to_pylist() for b in table.scan(["cents"])] == [[9]]


def test_rows_of_entities_change_through_their_store_alone(lake):
    table = lake.table("account")
    for act in (
        lambda: table.write([{"_id": "x", "owner": "ada", "cents": 1}]),
        lambda: table.delete("cents = 1"),
    ):
        with pytest.raises(Invalid, match="entities"):
            act()


def test_P01_P15_Q10_the_total_is_exact_while_money_moves_and_exports_run(lake):
    account = lake.entity("account")
    keys = [account.create({"owner": f"o{n}", "cents": 100}).id for n in range(6)]
    is_over, wrong = threading.Event(), []

    def move():
        turn = 0
        while not is_over.is_set():
            turn += 1
            source, target = keys[turn % 6], keys[(turn * 5 + 1) % 6]
            if source != target:
                have = [account.read(key).document["cents"] for key in (source, target)]
                account.bulk(
                    [
                        Operation(OperationKind.PATCH, source, {"cents": have[0] - 1}),
                        Operation(OperationKind.PATCH, target, {"cents": have[1] + 1}),
                    ]
                )

    def export():
        while not is_over.is_set():
            account.export()

    threads = [threading.Thread(target=work) for work in (move, export)]
    for thread in threads:
        thread.start()
    for _ in range(25):
        found = lake.sql(TOTAL).to_pylist()[0]
        if (found["n"], found["total"]) != (6, 600):
            wrong.append(found)
    is_over.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert lake.table("account").version() > 3, "exports ran meanwhile"


def test_the_clock_exports_what_is_due(tmp_path, postgres_dsn):
    due = replace(settings(postgres_dsn), export_changes=2, flush_look_s=0.05)
    with open_lake(tmp_path / "lake", due) as lake:
        account = lake.register("account", ACCOUNT)
        before = account.table.state().version
        for n in range(3):
            account.create({"owner": f"o{n}", "cents": n})
        done = threading.Event()
        for _ in range(1_200):
            if account.table.state().version > before:
                done.set()
                break
            threading.Event().wait(0.05)
        assert done.is_set(), lake.node.export_error
        assert lake.sql(TOTAL).to_pylist() == [{"n": 3, "total": 3}]


def test_a_lake_for_reading_reads_entities_and_writes_none(lake, postgres_dsn):
    key = lake.entity("account").create({"owner": "ada", "cents": 5}).id
    reading = Node(lake.root(), settings(postgres_dsn), is_read_only=True)
    try:
        beside = reading.lake()
        assert owners(beside) == ["ada"]
        account = beside.entity("account")
        for act in (
            lambda: account.create({"owner": "eve", "cents": 1}),
            lambda: account.patch(key, {"cents": 6}),
            lambda: account.delete(key),
            account.export,
            lambda: beside.register("other", ACCOUNT),
        ):
            with pytest.raises(Invalid, match="reading only"):
                act()
    finally:
        reading.close()
    assert owners(lake) == ["ada"]


def test_A01_tenants_have_entities_of_their_own(tmp_path, postgres_dsn):
    with Node(str(tmp_path / "lake"), settings(postgres_dsn)) as node:
        for name in ("acme", "other"):
            lake = node.create_tenant(name)
            lake.register("account", ACCOUNT).create({"owner": name, "cents": 1})
        for name in ("acme", "other"):
            assert owners(node.lake(name)) == [name]


def test_P09_a_lake_whose_postgres_is_not_there_serves_the_rest(tmp_path):
    nobody = "postgresql://thermocline@127.0.0.1:1/thermocline?connect_timeout=2"
    with open_lake(tmp_path / "lake", settings(nobody)) as lake:
        lake.create_table("m", time_column="ts", bucket="1h").write(ticks(1))
        assert lake.sql("select n from m").to_pylist() == [{"n": 1}]
        with pytest.raises(Unavailable):
            lake.register("account", ACCOUNT)


def test_a_lake_without_postgres_says_how_to_have_entities(tmp_path):
    with tc.connect(tmp_path / "lake") as lake, pytest.raises(Invalid) as raised:
        lake.register("account", ACCOUNT)
    assert "postgres" in raised.value.hint


def test_a_type_whose_name_a_table_has_is_refused_with_nothing_registered(lake):
    lake.create_table("prices", time_column="ts", bucket="1d")
    with pytest.raises(Conflict, match="has other rows"):
        lake.register("prices", ACCOUNT)
    assert lake.entities.names() == ["account"]
    with pytest.raises(NotFound, match="no such type"):
        lake.entity("prices")


def test_coverage_speaks_of_the_rows_that_readings_see(lake):
    accounts, table = lake.entity("account"), lake.table("account")
    accounts.create({"owner": "ada", "cents": 5}, "a")
    lake.flush("account")
    assert table.coverage().num_rows == 1
    accounts.delete("a")
    assert table.coverage().num_rows == 0, "the lake has the row, and no reading does"
    assert table.coverage(at=int(table.version())).num_rows == 1, "then it was there"
    lake.flush("account")
    assert table.coverage().num_rows == 0
    accounts.create({"owner": "bob", "cents": 5}, "b")
    assert table.coverage().num_rows == 1
