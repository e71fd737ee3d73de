"""One read in one trip: the same rows, the same errors, and a connection as good as before."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import psycopg
import pytest

from postgres.test_pool import LIMITS_S, QUICK, half_open
from thermocline.errors import Invalid, NotFound, Overloaded, Unavailable
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session import pipelined_read
from thermocline.hot.postgres.session import pool as pool_room
from thermocline.hot.postgres.session.pool import Pool

WHO = "select pg_backend_pid(), current_user, current_schema(), session_user"


@pytest.fixture
def one(postgres_dsn):
    """A pool of one connection, and a tenant."""
    pool = Pool(postgres_dsn, replace(QUICK, connections_max=1))
    yield pool, open_tenant(pool, "acme")
    pool.close()


def rows_of(pool, tenant, query, values):
    return pool.run_query(tenant, query, values, lambda rows: rows)


def looked(pool, tenant):
    return pool.run(tenant, lambda c: c.execute(WHO).fetchone(), is_read_only=True)


def test_values_go_out_and_come_back_as_they_are(one):
    pool, tenant = one
    given = {
        "text": "a%s $1 'ü'",
        "small": 7,
        "large": 2**40,
        "truth": True,
        "nothing": None,
        "real": 1.5,
        "price": Decimal("12.30"),
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "keys": ["a", "b"],
    }
    query = (
        "select %(text)s::text, %(small)s, %(large)s, %(truth)s, %(nothing)s::int, %(real)s, "
        "%(price)s, %(at)s, %(keys)s::text[], 5 %% 3, %(small)s + 1"
    )
    for _ in range(3):  # prepared, and used again
        assert rows_of(pool, tenant, query, given) == [(*given.values(), 2, 8)]


def test_values_of_other_types_under_the_same_text_are_another_statement(one):
    pool, tenant = one
    found = [
        rows_of(pool, tenant, "select %(v)s", {"v": value})[0][0] for value in (1, 2**40, 1.5, 2)
    ]
    assert found == [1, 2**40, 1.5, 2]


def test_more_statements_than_a_connection_keeps_are_asked_all_the_same(one, monkeypatch):
    monkeypatch.setattr(pipelined_read, "PREPARED_MAX", 2)
    pool, tenant = one
    queries = [f"select {n}, %(v)s::int" for n in range(5)]
    for _ in range(2):
        assert [rows_of(pool, tenant, q, {"v": 9}) for q in queries] == [[(n, 9)] for n in range(5)]
    kept = pool.run(None, lambda c: c.execute("select name from pg_prepared_statements").fetchall())
    assert len([name for (name,) in kept if name.startswith("trip")]) == 2


def test_what_the_server_was_told_to_forget_is_prepared_again(one):
    pool, tenant = one
    for _ in range(2):
        assert rows_of(pool, tenant, "select %(v)s::int", {"v": 4}) == [(4,)]
        pool.run(None, lambda c: c.execute("deallocate all"))


@pytest.mark.parametrize("comes_in_pieces", [True, False])
def test_rows_come_in_their_order_a_piece_at_a_time(one, monkeypatch, comes_in_pieces):
    monkeypatch.setattr(pipelined_read, "_IN_PIECES", comes_in_pieces)
    pool, tenant = one
    pieces = []
    for last in (0, 1, 25, 26, 60):
        pieces.clear()

        def made(rows):
            pieces.append(len(rows))
            return [number * 2 for (number,) in rows]

        found = pool.run_query(tenant, "select generate_series(1, %(n)s)", {"n": last}, made)
        assert found == [number * 2 for number in range(1, last + 1)]
    assert [size for size in pieces if size] == ([25, 25, 10] if comes_in_pieces else [60])


def test_a_query_that_fails_after_its_first_rows_gives_none_of_them(one):
    pool, tenant = one
    before = looked(pool, tenant)
    taken = []
    query = "select 1 / (5000 - n) from generate_series(1, 5000) as n"
    with pytest.raises(Invalid):
        pool.run_query(tenant, query, {}, lambda rows: taken.extend(rows) or rows)
    assert taken, "some came before the server knew"
    assert looked(pool, tenant) == before


@pytest.mark.parametrize("error", [ValueError("ours"), KeyboardInterrupt()])
def test_an_asker_that_fails_over_the_first_rows_leaves_no_answers_to_others(one, error):
    pool, tenant = one
    before = looked(pool, tenant)

    def made(rows):
        raise error

    with pytest.raises(type(error)):
        pool.run_query(tenant, "select generate_series(1, 5000)", {}, made)
    assert pool._in_use == 0
    is_kept = isinstance(error, Exception)  # who is interrupted does not wait for the rest
    assert (looked(pool, tenant)[0] == before[0]) is is_kept
    assert rows_of(pool, tenant, "select 7", {}) == [(7,)]


def test_a_trip_that_is_broken_off_before_it_says_a_word_costs_its_connection(one, monkeypatch):
    pool, tenant = one
    with monkeypatch.context() as patched:
        patched.setattr(pool_room, "opening_statements", lambda *_, **__: ())
        with pytest.raises(ValueError, match="unpack"):
            rows_of(pool, tenant, "select 7", {})
    assert (pool._idle, pool._in_use) == ([], 0)
    assert looked(pool, tenant)[1] == tenant.role


def kept(pool):
    """Return the names that the one connection of a pool has prepared for trips."""
    query = "select name from pg_prepared_statements where name like 'trip%'"
    return [name for (name,) in pool.run(None, lambda c: c.execute(query).fetchall())]


def test_queries_that_fail_are_prepared_once_like_others(one):
    pool, tenant = one
    for _ in range(3):
        with pytest.raises(Invalid):
            rows_of(pool, tenant, "select 1 / %(n)s", {"n": 0})
    assert len(kept(pool)) == 1
    assert rows_of(pool, tenant, "select 1 / %(n)s", {"n": 1}) == [(1,)]
    assert len(kept(pool)) == 1


def test_a_table_that_was_made_anew_with_other_types_is_read_at_once(postgres_dsn, one):
    pool, tenant = one
    other = Pool(postgres_dsn, QUICK)
    for kind, value in (("int", 1), ("text", "one"), ("int", 2)):
        other.run(tenant, lambda c, k=kind: c.execute(f"create table made (v {k})"))
        other.run(tenant, lambda c, v=value: c.execute("insert into made values (%s)", [v]))
        for _ in range(2):
            assert rows_of(pool, tenant, "select v from made", {}) == [(value,)]
        assert len(kept(pool)) == 1
        other.run(tenant, lambda c: c.execute("drop table made"))
    other.close()


def test_P20_the_tenant_is_that_of_the_trip_and_leaves_with_it(one):
    pool, acme = one
    other = open_tenant(pool, "other")
    seen = [rows_of(pool, tenant, WHO, {})[0] for tenant in (acme, other, acme)]
    assert [row[1:3] for row in seen] == [
        (tenant.role, f"tc_{tenant.name}") for tenant in (acme, other, acme)
    ]
    after = looked(pool, None)
    assert (after[0], after[1]) == (seen[0][0], after[3]), "the same connection, of nobody"


def test_P20_the_same_words_of_two_tenants_are_each_ones_own_rows(one):
    pool, acme = one
    other = open_tenant(pool, "other")
    insert = "insert into type (name, table_name) values (%s, '')"
    for tenant in (acme, other):
        pool.run(tenant, lambda c, t=tenant: c.execute(insert, [t.name]))
    for tenant in (acme, other, acme, other):
        assert rows_of(pool, tenant, "select name from type", {}) == [(tenant.name,)]
    with pytest.raises(Unavailable, match="does not allow"):
        rows_of(pool, other, "select * from tc_acme.type", {})


def test_it_only_reads(one):
    pool, tenant = one
    with pytest.raises(Unavailable, match="failed"):
        rows_of(
            pool, tenant, "insert into type (name, table_name) values ('x', '') returning 1", {}
        )
    assert rows_of(pool, tenant, "select count(*) from type", {}) == [(0,)]


@pytest.mark.parametrize(
    ("query", "values", "kind"),
    [
        ("select 1 / %(n)s", {"n": 0}, Invalid),
        ("select * from nowhere", {}, NotFound),
        ("select pg_sleep(60)", {}, Overloaded),
    ],
)
def test_a_query_that_fails_leaves_the_connection_as_it_was(one, query, values, kind):
    pool, tenant = one
    before = looked(pool, tenant)
    for _ in range(2 if kind is not Overloaded else 1):
        with pytest.raises(kind):
            rows_of(pool, tenant, query, values)
    assert looked(pool, tenant) == before
    assert rows_of(pool, tenant, "select 1 / %(n)s", {"n": 1}) == [(1,)]


def test_P07_a_backend_that_is_terminated_in_a_trip_is_asked_again(postgres_dsn, one):
    _, tenant = one
    pool = Pool(postgres_dsn, QUICK)
    with psycopg.connect(postgres_dsn, autocommit=True) as killer, ThreadPoolExecutor(1) as thread:
        killer.execute("select pg_advisory_lock(9)")
        query = "select pg_backend_pid() from (select pg_advisory_xact_lock(9) limit 1) as held"
        asking = thread.submit(rows_of, pool, tenant, query, {})
        waiting = "select pid from pg_locks where locktype = 'advisory' and not granted and "
        waiting += "database = (select oid from pg_database where datname = current_database())"
        end_s = time.monotonic() + 60
        while (row := killer.execute(waiting).fetchone()) is None:
            assert time.monotonic() < end_s
        killer.execute("select pg_terminate_backend(%s)", row)
        killer.execute("select pg_advisory_unlock(9)")
        assert asking.result(60)[0][0] != row[0]
    pool.close()


def test_idle_connections_that_died_meanwhile_cost_their_next_askers_nothing(one, way):
    _, tenant = one
    far = Pool(way.dsn, QUICK)
    with ThreadPoolExecutor(4) as threads:
        meeting = threading.Barrier(4)

        def ask(_):
            meeting.wait(60)
            return rows_of(far, tenant, "select 1 from pg_sleep(0.1)", {})

        list(threads.map(ask, range(4)))
    way.cut()
    assert [rows_of(far, tenant, "select 2", {}) for _ in range(8)] == [[(2,)]] * 8
    far.close()


def test_P10_a_black_hole_is_noticed_as_soon_as_a_beginning_would_be(one, way):
    _, tenant = one
    far = Pool(way.dsn, replace(QUICK, connect_timeout_s=0.5, transaction_timeout_s=60.0))
    rows_of(far, tenant, "select 1", {})
    way.go_silent()
    start_s = time.monotonic()
    with pytest.raises(Unavailable):
        rows_of(far, tenant, "select 1", {})
    assert time.monotonic() - start_s < LIMITS_S, "not the limit of the transaction"
    far.close()


def test_P10_a_query_may_take_longer_than_a_beginning_may(postgres_dsn, one):
    _, tenant = one
    pool = Pool(postgres_dsn, replace(QUICK, connect_timeout_s=1.0))
    rows_of(pool, tenant, "select 1", {})
    assert rows_of(pool, tenant, "select 3 from pg_sleep(2)", {}) == [(3,)]
    pool.close()


def test_P10_an_answer_that_makes_no_sense_is_a_lost_connection(one, way):
    _, tenant = one
    far = Pool(way.dsn, replace(QUICK, reconnects_max=0))
    query = "select repeat('m', 20) from generate_series(1, 30)"
    whole = rows_of(far, tenant, query, {})
    for _ in range(2):
        way.spoil(b"m" * 20)
        with pytest.raises(Unavailable):
            rows_of(far, tenant, query, {})
        assert far._in_use == 0
        assert rows_of(far, tenant, query, {}) == whole
    far.close()


def test_a_connection_that_is_cut_when_all_has_come_is_nobody_elses(one):
    pool, tenant = one

    def late(rows):
        with pool._deadlines._changed:
            pool._deadlines._cut_due(float("inf"))
        return rows

    assert pool.run_query(tenant, "select 1", {}, late) == [(1,)]
    assert pool._idle == []
    assert pool.run(tenant, lambda c: c.execute("select 2").fetchone()) == (2,)


def test_a_server_that_has_begun_to_answer_is_there_for_everyone(postgres_dsn, one):
    _, tenant = one
    pool = Pool(postgres_dsn, QUICK)
    half_open(pool)
    with ThreadPoolExecutor(1) as thread, psycopg.connect(postgres_dsn, autocommit=True) as other:
        other.execute("select pg_advisory_lock(7)")
        asking = thread.submit(rows_of, pool, tenant, "select 1 from pg_advisory_xact_lock(7)", {})
        end_s = time.monotonic() + 60
        while pool.breaker.state != "closed":
            assert not asking.done()
            assert time.monotonic() < end_s
        assert pool.run(None, lambda c: c.execute("select 1").fetchone()) == (1,)
        other.execute("select pg_advisory_unlock(7)")
        assert asking.result(60) == [(1,)]
    pool.close()


def test_P07_a_backend_that_is_terminated_in_a_trip_is_not_the_server(postgres_dsn, one):
    _, tenant = one
    login = psycopg.conninfo.conninfo_to_dict(postgres_dsn)["user"]
    pool = Pool(postgres_dsn, replace(QUICK, reconnects_max=0))
    for _ in range(QUICK.breaker.failures_max + 1):
        with pytest.raises(Unavailable, match="is not there"):
            rows_of(
                pool,
                Tenant(tenant.name, tenant.schema, login),
                "select pg_terminate_backend(pg_backend_pid())",
                {},
            )
    assert pool.breaker.state == "closed"
    pool.close()
