"""Tenants are made once, migrated in order, restartable, and never by an older program."""

import multiprocessing
import os
import signal
import threading

import pytest

from fixtures.timing import wait_until
from thermocline.errors import Corruption, Invalid, NotFound, Unsupported
from thermocline.hot.postgres.schema.migrate import (
    Migration,
    drop_tenant,
    known_migrations,
    open_tenant,
    tenant_names,
)
from thermocline.hot.postgres.session.pool import Pool

KNOWN = known_migrations()
NEXT = Migration(
    len(KNOWN) + 1, "next", "create table later (x int);\ninsert into later values (1);"
)


def tables(pool, tenant):
    query = "select tablename from pg_tables where schemaname = %s order by 1"
    return [
        row[0] for row in pool.run(None, lambda c: c.execute(query, [tenant.schema]).fetchall())
    ]


def test_a_tenant_is_made_once_and_found_again(pool):
    first = open_tenant(pool, "acme")
    assert open_tenant(pool, "acme") == first
    assert {"type", "change", "lake_head", "gone"} <= set(tables(pool, first))
    assert tenant_names(pool) == ["acme"]


@pytest.mark.parametrize("name", ["", "Acme", "1a", "a-b", 'a"; drop', "a" * 42, None])
def test_what_cannot_be_a_tenant_is_refused(pool, name):
    with pytest.raises(Invalid, match="not a tenant's name"):
        open_tenant(pool, name)


def test_many_who_make_one_tenant_at_once_make_it_once(pool):
    found, start = [], threading.Barrier(6)

    def make():
        start.wait()
        found.append(open_tenant(pool, "acme"))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 6


def test_O13_an_older_program_refuses_newer_tables_and_says_so(pool):
    open_tenant(pool, "acme", (*KNOWN, NEXT))
    with pytest.raises(Unsupported, match="newer version") as caught:
        open_tenant(pool, "acme")
    assert caught.value.facts["known_up_to"] == len(KNOWN)
    open_tenant(pool, "acme", (*KNOWN, NEXT))


def test_a_migration_that_was_changed_after_it_ran_is_noticed(pool):
    open_tenant(pool, "acme")
    changed = Migration(1, KNOWN[0].name, KNOWN[0].text + "-- changed\n")
    with pytest.raises(Corruption, match="differs from this program's"):
        open_tenant(pool, "acme", (changed, *KNOWN[1:]))


def test_a_migration_that_fails_leaves_nothing_and_can_be_repeated(pool):
    tenant = open_tenant(pool, "acme")
    broken = Migration(NEXT.number, "next", "create table later (x int);\nselect 1 / 0;")
    with pytest.raises(Invalid):
        open_tenant(pool, "acme", (*KNOWN, broken))
    assert "later" not in tables(pool, tenant)
    open_tenant(pool, "acme", (*KNOWN, NEXT))
    assert "later" in tables(pool, tenant)


def _migrate_slowly(dsn):
    slow = "create table later (x int); select pg_sleep(300);"
    open_tenant(Pool(dsn), "acme", (*KNOWN, Migration(NEXT.number, "next", slow)))


def test_O14_a_migrator_killed_in_the_middle_is_followed_by_one_that_finishes(pool, postgres_dsn):
    tenant = open_tenant(pool, "acme")
    killed = multiprocessing.get_context("spawn").Process(
        target=_migrate_slowly, args=[postgres_dsn]
    )
    killed.start()
    running = (
        "select pid from pg_stat_activity where query like '%pg_sleep(300)%' "
        "and pid <> pg_backend_pid() and datname = current_database()"
    )

    def sleeping():
        return pool.run(None, lambda c: c.execute(running).fetchone())

    wait_until(sleeping)
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    # The server notices a dead client when it next speaks to it; until then it sleeps on.
    pool.run(None, lambda c: c.execute("select pg_terminate_backend(%s)", sleeping()))
    open_tenant(pool, "acme", (*KNOWN, NEXT))
    assert pool.run(tenant, lambda c: c.execute("select x from later").fetchall()) == [(1,)]


def test_a_dropped_tenant_takes_its_role_with_it_and_leaves_the_others(pool):
    gone, kept = open_tenant(pool, "gone"), open_tenant(pool, "kept")
    drop_tenant(pool, "gone")
    assert tenant_names(pool) == ["kept"]
    query = "select count(*) from pg_roles where rolname = any(%s)"
    count = pool.run(None, lambda c: c.execute(query, [[gone.role, kept.role]]).fetchone())
    assert count == (1,)
    with pytest.raises(NotFound):
        drop_tenant(pool, "gone")


def test_the_bytes_of_every_migration_that_was_released_are_frozen():
    assert [(one.name, one.checksum[:16]) for one in KNOWN] == [
        ("001_tenant", "d14517450f066694"),
        ("002_floor", "2831e35d915b66d7"),
        ("003_write_request", "71f469c17901ca97"),
        ("004_revision", "d3db486171b361a1"),
    ]
