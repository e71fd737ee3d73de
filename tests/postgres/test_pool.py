"""Transactions end in a known way, whatever dies: committed, not made, or said to be unknown."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from fixtures.timing import soonest, wait_until
from thermocline.errors import (
    Conflict,
    Invalid,
    OutcomeUnknown,
    Overloaded,
    ThermoclineError,
    Unavailable,
)
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session import pool as pool_room
from thermocline.hot.postgres.session.breaker import BreakerSettings
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.session.pool_settings import PoolSettings
from thermocline.hot.postgres.session.transaction import Isolation

QUICK = PoolSettings(
    connections_max=4,
    wait_timeout_s=2.0,
    connect_timeout_s=2.0,
    statement_timeout_s=4.0,
    lock_timeout_s=3.0,
    transaction_timeout_s=8.0,
    outcome_timeout_s=2.0,
    breaker=BreakerSettings(failures_max=3, open_s=0.3),
)
LIMITS_S = sum(
    (
        QUICK.wait_timeout_s,
        QUICK.connect_timeout_s,
        QUICK.transaction_timeout_s,
        QUICK.outcome_timeout_s,
    )
)


@pytest.fixture
def quick(postgres_dsn):
    pool = Pool(postgres_dsn, QUICK)
    pool.run(None, lambda c: c.execute("create table t (k text primary key, n int not null)"))
    yield pool
    pool.close()


@pytest.fixture
def far(quick, way):
    """A pool whose connections go through a proxy."""
    pool = Pool(way.dsn, QUICK)
    yield pool
    pool.close()


def put(key, n=0):
    return lambda c: c.execute("insert into t values (%s, %s)", [key, n])


def keys(pool):
    return [row[0] for row in pool.run(None, lambda c: c.execute("select k from t").fetchall())]


# Tenants.


def test_P20_a_connection_comes_back_without_its_last_tenant(postgres_dsn):
    one = Pool(postgres_dsn, replace(QUICK, connections_max=1))
    acme, other = open_tenant(one, "acme"), open_tenant(one, "other")
    seen = []

    def look(connection):
        query = "select pg_backend_pid(), current_user, current_schema(), session_user"
        seen.append(connection.execute(query).fetchone())

    for tenant in (acme, None, other, None):
        one.run(tenant, look)
    with pytest.raises(Invalid), one.transaction(acme) as connection:
        connection.execute("select 1 / 0")
    one.run(None, look)
    one.close()
    assert len({row[0] for row in seen}) == 1, "one connection served them all"
    users = [row[1] for row in seen]
    assert users == [acme.role, seen[0][3], other.role, seen[0][3], seen[0][3]]
    assert seen[2][2] == "tc_other"


def test_P20_a_tenant_cannot_see_or_name_anothers_rows(pool):
    acme, other = open_tenant(pool, "acme"), open_tenant(pool, "other")
    pool.run(acme, lambda c: c.execute("insert into type (name, table_name) values ('x', 'e')"))
    count = "select count(*) from type"
    assert pool.run(other, lambda c: c.execute(count).fetchone()) == (0,)
    for tenant in (other, None):  # a transaction that forgot its tenant sees nothing either
        with pytest.raises(Unavailable, match="does not allow"):
            pool.run(tenant, lambda c: c.execute("select * from tc_acme.type"))


def test_P20_threads_of_many_tenants_on_few_connections_never_meet(pool):
    tenants = [open_tenant(pool, f"t{n}") for n in range(4)]
    for tenant in tenants:
        pool.run(
            tenant,
            lambda c, t=tenant: c.execute(
                "insert into type (name, table_name) values (%s, '')", [t.name]
            ),
        )

    def look(n):
        tenant = tenants[n % 4]
        rows = pool.run(tenant, lambda c: c.execute("select name from type").fetchall())
        return rows == [(tenant.name,)]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(look, range(200)))


# Conflicts.


def test_P19_serialization_failures_are_tried_again_until_every_one_is_in(quick):
    quick.run(None, put("a"))

    def add(connection):
        n = connection.execute("select n from t where k = 'a'").fetchone()[0]
        connection.execute("update t set n = %s where k = 'a'", [n + 1])

    def one(_):
        return quick.run(None, add, isolation=Isolation.SERIALIZABLE)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(one, range(24)))
    query = "select n from t"
    assert quick.run(None, lambda c: c.execute(query).fetchone()) == (24,)


def test_P19_without_another_try_they_are_a_conflict(postgres_dsn, quick):
    quick.run(None, put("a"))
    once = Pool(postgres_dsn, replace(QUICK, retries_max=0))

    def work(mine):
        mine.execute("select * from t").fetchall()
        quick.run(None, lambda c: c.execute("update t set n = n + 1"))
        mine.execute("update t set n = n + 1")

    with pytest.raises(Conflict, match="other transactions keep changing"):
        once.run(None, work, isolation=Isolation.SERIALIZABLE)
    once.close()


def test_P19_a_deadlock_is_tried_again_by_the_one_who_lost(quick):
    quick.run(None, put("a"))
    quick.run(None, put("b"))
    both, runs = threading.Barrier(2), []

    def cross(first, second):
        def work(connection):
            runs.append(first)
            connection.execute("update t set n = n + 1 where k = %s", [first])
            if len(runs) <= 2:
                both.wait(60)
            connection.execute("update t set n = n + 1 where k = %s", [second])

        return quick.run(None, work)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(cross, "ab", "ba"))
    assert len(runs) == 3
    query = "select n from t order by k"
    assert quick.run(None, lambda c: c.execute(query).fetchall()) == [(2,), (2,)]


def test_an_error_caught_inside_cannot_pass_for_a_commit(quick):
    def work(connection):
        put("a")(connection)
        with pytest.raises(psycopg.Error):
            connection.execute("select 1 / 0")

    with pytest.raises(Invalid, match="failed before its end"):
        quick.run(None, work)
    assert keys(quick) == []


# Lost connections.


@pytest.mark.own_server
def test_P05_a_commit_whose_answer_is_lost_is_found_out_and_not_repeated(far, way, quick):
    runs = []

    def work(connection):
        runs.append(1)
        put("a")(connection)

    way.cut_at_commit("after")
    far.run(None, work)
    assert (keys(quick), runs) == (["a"], [1])


def test_P06_a_commit_that_never_arrived_is_found_out_and_done_again(far, way, quick):
    runs = []

    def work(connection):
        runs.append(1)
        put("a")(connection)

    way.cut_at_commit("before")
    far.run(None, work)
    assert (keys(quick), runs) == (["a"], [1, 1])


def test_P05_when_nobody_can_be_asked_the_outcome_is_said_to_be_unknown(far, way, quick):
    def work(connection):
        put("a")(connection)
        way.cut_at_commit("after")
        way.refuse()

    with pytest.raises(OutcomeUnknown):
        far.run(None, work)
    assert keys(quick) == ["a"], "it did happen, and nobody said that it did not"


def test_P07_a_backend_that_is_terminated_in_the_middle_is_tried_again(quick):
    runs = []

    def work(connection):
        put("a")(connection)
        runs.append(connection.info.backend_pid)
        if len(runs) == 1:
            quick.run(None, lambda c: c.execute("select pg_terminate_backend(%s)", [runs[0]]))
        connection.execute("select 1")

    quick.run(None, work)
    assert keys(quick) == ["a"]
    assert len(runs) == 2


def test_idle_connections_that_died_meanwhile_cost_their_next_users_nothing(far, way, quick):
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: far.run(None, put(f"k{n}")), range(4)))
    way.cut()
    for n in range(8):
        far.run(None, put(f"l{n}"))
    assert len(keys(quick)) == 12


def test_P09_nobody_at_the_address_is_unavailable_at_once(quick, postgres_dsn):
    nowhere = psycopg.conninfo.make_conninfo(postgres_dsn, port=1)
    pool = Pool(nowhere, QUICK)

    def act():
        with pytest.raises(Unavailable, match=r"not there|attempts pause"):
            pool.run(None, put("a"))

    assert soonest(act, 2) < 2
    pool.close()


def test_a_wrong_password_says_so_and_is_not_tried_for_long(postgres_dsn):
    pool = Pool(psycopg.conninfo.make_conninfo(postgres_dsn, password="wrong"), QUICK)
    with pytest.raises(Unavailable, match=r"login|not there"):
        pool.run(None, put("a"))
    pool.close()


@pytest.mark.own_server
def test_a_commit_under_an_id_that_was_given_again_is_not_taken_for_ours(
    far, way, quick, own_postgres
):
    def work(connection):
        put("a")(connection)
        # A recovery ends with a checkpoint: from then on the id may be somebody else's.
        with psycopg.connect(own_postgres.server.owner_dsn, autocommit=True) as owner:
            owner.execute("checkpoint")
        way.cut_at_commit("after")

    with pytest.raises(OutcomeUnknown):
        far.run(None, work)
    assert keys(quick) == ["a"]


# Black holes and limits.


def test_P10_a_black_hole_is_noticed_in_time_and_does_not_exhaust_the_pool(far, way, quick):
    far.run(None, put("before"))
    way.go_silent()
    start_s = time.monotonic()

    def ask(n):
        begun_s = time.monotonic()
        with pytest.raises((Unavailable, Overloaded)):
            far.run(None, put(f"k{n}"))
        return time.monotonic() - begun_s

    with ThreadPoolExecutor(8) as threads:
        waits = list(threads.map(ask, range(16)))
    noticed_s = time.monotonic() - start_s
    assert max(waits) < LIMITS_S + 2, "nobody waits longer than the limits add up to"
    assert noticed_s < 2 * LIMITS_S
    way.speak()
    way.cut()
    end_s = time.monotonic() + 90
    while True:
        try:
            far.run(None, put("after"))
            break
        except Unavailable:
            assert time.monotonic() < end_s
            time.sleep(0.05)
    assert sorted(keys(quick)) == ["after", "before"]


def test_P10_a_server_that_goes_silent_in_a_statement_is_given_up(way):
    def work(connection):
        way.go_silent()
        connection.execute("select 1")

    def act():
        way.speak()
        pool = Pool(way.dsn, QUICK)
        with pytest.raises(Unavailable):
            pool.run(None, work, limit_s=0.5)
        pool.close()

    assert soonest(act, 6) < 6


def test_a_dead_server_slows_its_callers_only_until_it_is_noticed(postgres_dsn):
    pool = Pool(psycopg.conninfo.make_conninfo(postgres_dsn, port=1), QUICK)
    for _ in range(2):
        with pytest.raises(Unavailable):
            pool.run(None, put("a"))
    assert pool.breaker.state == "open"
    start_s = time.monotonic()
    for _ in range(100):
        with pytest.raises(Unavailable, match=r"attempts pause|not there"):
            pool.run(None, put("a"))
    assert time.monotonic() - start_s < 2, "a hundred refusals"
    pool.close()


def half_open(pool):
    """Let the breaker take the server for dead, and wait until one may try."""
    for _ in range(QUICK.breaker.failures_max):
        pool.breaker.record_failure()
    wait_until(lambda: pool.breaker.state == "half_open")


def test_a_try_that_the_server_refuses_is_an_answer(quick):
    half_open(quick)
    with pytest.raises(ThermoclineError):
        quick.run(Tenant("x", "tc_x", "tc_nobody"), put("a"))
    assert quick.breaker.state == "closed"
    quick.run(None, put("a"))


def test_a_try_that_is_broken_off_lets_the_next_one_in_and_loses_no_connection(quick, monkeypatch):
    def interrupted(connection, opening):
        raise KeyboardInterrupt

    half_open(quick)
    with monkeypatch.context() as patched:
        patched.setattr(pool_room, "begin_transaction", interrupted)
        with pytest.raises(KeyboardInterrupt):
            quick.run(None, put("a"))
    assert quick._in_use == 0
    quick.run(None, put("a"))


def test_a_try_without_a_connection_to_try_with_lets_the_next_one_in(postgres_dsn, quick):
    one = Pool(postgres_dsn, replace(QUICK, connections_max=1, wait_timeout_s=0.1))
    with one.transaction(None):
        half_open(one)
        with pytest.raises(Overloaded):
            one.run(None, put("a"))
    one.run(None, put("a"))
    one.close()


def test_a_try_on_an_idle_connection_that_died_takes_another(far, way, quick):
    far.run(None, put("a"))
    time.sleep(QUICK.connect_timeout_s + 0.1)  # from then on it counts as idle
    way.cut()
    half_open(far)
    far.run(None, put("b"))
    assert keys(quick) == ["a", "b"]


def test_more_callers_than_connections_wait_and_then_are_told(quick):
    release = threading.Event()

    def hold(_):
        return quick.run(None, lambda c: release.wait(60))

    with ThreadPoolExecutor(4) as threads:
        held = [threads.submit(hold, n) for n in range(4)]
        wait_until(lambda: quick._in_use == 4)
        start_s = time.monotonic()
        with pytest.raises(Overloaded, match="every connection"):
            quick.run(None, put("a"))
        assert 1.5 < time.monotonic() - start_s < 6
        release.set()
        for one in held:
            one.result()
    quick.run(None, put("a"))


def test_a_statement_past_its_limit_is_overloaded_and_leaves_a_good_connection(quick):
    with pytest.raises(Overloaded, match="longer than its limit"):
        quick.run(None, lambda c: c.execute("select pg_sleep(10)"))
    quick.run(None, put("a"))


def test_a_row_that_somebody_holds_is_given_up_after_the_lock_limit(quick):
    quick.run(None, put("a"))
    with quick.transaction(None) as mine:
        mine.execute("update t set n = 1")
        with pytest.raises(Overloaded):
            quick.run(None, lambda c: c.execute("update t set n = 2"))


def test_a_pool_closed_by_force_lets_nobody_wait_for_an_answer(far, way, quick):
    begun = threading.Event()

    def work(connection):
        way.go_silent()
        begun.set()
        connection.execute("select 1")

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(far.run, None, work, limit_s=60)
        assert begun.wait(60)
        start_s = time.monotonic()
        far.close(force=True)
        with pytest.raises(Unavailable):
            waiting.result(60)
        assert time.monotonic() - start_s < 2


def test_a_closed_pool_says_so(quick):
    quick.close()
    with pytest.raises(Unavailable, match="closed"):
        quick.run(None, put("a"))
