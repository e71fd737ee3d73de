"""The server is killed under load or runs out of disk: what was acknowledged is there, exactly."""

import os
import shutil
import signal
import subprocess
import threading
import time
import uuid

import psycopg
import pytest
from psycopg import conninfo

from fixtures.postgres import TEST_LIMITS, _reachable_folder
from fixtures.timing import wait_until
from postgres.entities import ORDER, changes, order
from thermocline.cold.catalog import Catalog
from thermocline.entity.types import EntityCatalog
from thermocline.errors import Conflict, OutcomeUnknown, Unavailable
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.schema.registry import TypeRegistry
from thermocline.hot.postgres.session.breaker import BreakerSettings
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.session.pool_settings import PoolSettings
from thermocline.hot.postgres.store.operation import Operation, OperationKind
from thermocline.hot.postgres.store.store import EntityStore

SETTINGS = PoolSettings(
    **{**TEST_LIMITS, "connect_timeout_s": 2.0},
    outcome_timeout_s=0.2,
    breaker=BreakerSettings(open_s=0.05, open_max_s=0.2),
)


def store_on(dsn):
    pool = Pool(dsn, SETTINGS)
    tenant = open_tenant(pool, "acme")
    TypeRegistry(pool, tenant).register("order", ORDER)
    return EntityStore(pool, tenant, "order")


class Ledger:
    """What a writer sent and what it was answered."""

    def __init__(self):
        self.sent, self.acked = {}, {}

    def write(self, store, number, stop):
        turn = 0
        while not stop.is_set():
            turn += 1
            key = f"w{number}-{turn:05}"
            operations = [
                Operation(OperationKind.CREATE, f"{key}-{part}", order(quantity=turn))
                for part in "ab"
            ]
            self.sent[key] = turn
            try:
                store.bulk(operations)
                self.acked[key] = turn
            except OutcomeUnknown:
                pass
            except (Unavailable, Conflict):
                time.sleep(0.01)


def test_P06_killed_under_load_everything_acknowledged_is_there_and_nothing_by_half(own_postgres):
    store = store_on(own_postgres.dsn)
    ledgers, stop = [Ledger() for _ in range(3)], threading.Event()
    threads = [
        threading.Thread(target=ledger.write, args=[store, number, stop])
        for number, ledger in enumerate(ledgers)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            wait_for_more(ledgers, 30)
            own_postgres.kill()
            own_postgres.start()
        wait_for_more(ledgers, 10)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    found = {row[0]: row[1:] for row in all_rows(store)}
    acked = {key: turn for ledger in ledgers for key, turn in ledger.acked.items()}
    sent = {key: turn for ledger in ledgers for key, turn in ledger.sent.items()}
    for key, turn in acked.items():
        for part in "ab":
            assert found[f"{key}-{part}"] == (1, turn), "acknowledged and not there as it was"
    halves = {key.rsplit("-", 1)[0] for key in found}
    assert halves <= set(sent)
    assert len(found) == 2 * len(halves), "a transaction is there by half"
    notes = [(row[0], row[1]) for row in changes(store)]
    assert sorted(notes) == sorted((key, 1) for key in found), "rows and notes go together"
    assert len(acked) >= 70
    store.pool.close()


def wait_for_more(ledgers, count):
    """Wait until the writers were answered so many times more."""
    before = sum(len(ledger.acked) for ledger in ledgers)
    wait_until(lambda: sum(len(ledger.acked) for ledger in ledgers) >= before + count)


def all_rows(store):
    query = f"select id, ver, h_2 from {store.layout.table}"
    return store.pool.run(store.tenant, lambda c: c.execute(query).fetchall())


def test_P06_a_dead_server_is_noticed_at_once_and_found_again_when_it_is_back(own_postgres):
    store = store_on(own_postgres.dsn)
    store.create(order(), "a")
    own_postgres.kill()
    start_s = time.monotonic()
    with pytest.raises(Unavailable):
        store.read("a")
    assert time.monotonic() - start_s < 2.5
    own_postgres.start()
    start_s = time.monotonic()
    while True:
        try:
            assert store.read("a").document == order()
            break
        except Unavailable:
            assert time.monotonic() - start_s < 5
            time.sleep(0.01)
    store.pool.close()


def found_again(pool):
    """Open the tenant once the breaker lets somebody try."""
    end_s = time.monotonic() + 90
    while True:
        try:
            return open_tenant(pool, "acme")
        except Unavailable:
            assert time.monotonic() < end_s
            time.sleep(0.05)


def test_P09_a_store_cannot_be_opened_while_nobody_is_there_and_can_afterwards(own_postgres):
    store = store_on(own_postgres.dsn)
    store.create(order(), "a")
    own_postgres.stop()
    pool = Pool(own_postgres.dsn, SETTINGS)
    with pytest.raises(Unavailable):
        open_tenant(pool, "acme")
    own_postgres.start()
    opened = EntityStore(pool, found_again(pool), "order")
    assert opened.read("a").document == order()
    for one in (pool, store.pool):
        one.close()


def answers(ask):
    """Tell whether the server answers what is asked of it."""
    try:
        ask()
    except psycopg.OperationalError:
        return False
    return True


def test_after_a_crash_of_a_backend_ids_are_given_again_and_no_change_is_missed(
    own_postgres, tmp_path
):
    pool = Pool(own_postgres.dsn, SETTINGS)
    types = EntityCatalog(pool, open_tenant(pool, "acme"), Catalog(str(tmp_path / "lake")))
    orders = types.register("order", ORDER)
    orders.create(order(), "before")
    orders.view()
    time.sleep(0.5)  # what was committed is written down, and what follows is not
    witness = psycopg.connect(own_postgres.dsn, autocommit=True)
    with psycopg.connect(own_postgres.dsn, autocommit=True) as other:
        started = other.execute("select pg_postmaster_start_time()").fetchone()
        for _ in range(200):
            other.execute("begin; select pg_current_xact_id(); rollback")
        orders.view()  # remembered: a snapshot that has seen all of these
        victim = other.info.backend_pid
        os.kill(victim, signal.SIGKILL)
    # The server notices after a moment, cuts everyone and lets nobody in until it has recovered.
    wait_until(lambda: not answers(lambda: witness.execute("select 1")))
    wait_until(lambda: answers(lambda: psycopg.connect(own_postgres.dsn).close()))
    witness.close()
    end_s = time.monotonic() + 90
    while True:
        try:
            orders.create(order(), "after")
            break
        except Unavailable:
            assert time.monotonic() < end_s
            time.sleep(0.05)
    look = "select pg_postmaster_start_time()"
    assert pool.run(None, lambda c: c.execute(look).fetchone()) == started
    assert sorted(orders.scan(["_id"]).rows.column("_id").to_pylist()) == ["after", "before"]
    assert orders.export().keys == 2
    assert sorted(orders.scan(["_id"]).rows.column("_id").to_pylist()) == ["after", "before"]
    pool.close()


# A full disk.


@pytest.fixture
def small_disk(own_postgres):
    """A database on a file system of a few megabytes, and a verb to fill and to free it.

    Where nothing can be mounted, the verb makes PostgreSQL answer as a full disk would.
    """
    folder = _reachable_folder(f"thermocline-small-{uuid.uuid4().hex[:12]}")
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "thermocline-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield own_postgres.dsn, _refuse_writes
        shutil.rmtree(folder)
        return
    place = folder / "space"
    place.mkdir(mode=0o700)
    owner = os.stat(own_postgres.folder / "data")
    os.chown(place, owner.st_uid, owner.st_gid)
    with psycopg.connect(own_postgres.server.owner_dsn, autocommit=True) as connection:
        connection.execute(f"create tablespace small location '{place}'")
        connection.execute("create database small owner thermocline tablespace small")

    def fill(store, *, is_full):
        filler = folder / "filler"
        if not is_full:
            filler.unlink()
            return
        with open(filler, "wb", buffering=0) as file:
            for size_bytes in (1 << 16, 1 << 12):
                try:
                    while file.write(b"x" * size_bytes):
                        pass
                except OSError:
                    continue

    try:
        yield conninfo.make_conninfo(own_postgres.dsn, dbname="small"), fill
    finally:
        own_postgres.stop()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


def _refuse_writes(store, *, is_full):
    table = store.layout.table
    text = (
        "create function full_disk() returns trigger language plpgsql as "
        "$$ begin raise exception 'no space' using errcode = '53100'; end $$; "
        f"create trigger full_disk before insert on {table} execute function full_disk()"
        if is_full
        else "drop function full_disk cascade"
    )
    store.pool.run(store.tenant, lambda c: c.execute(text, prepare=False))


def test_P21_a_full_disk_refuses_writes_goes_on_reading_and_recovers(small_disk):
    dsn, fill = small_disk
    store = store_on(dsn)
    store.create(order("kept"), "a")
    fill(store, is_full=True)
    large = [
        Operation(OperationKind.CREATE, f"k{n}", order(note=uuid.uuid4().hex * 60))
        for n in range(2_000)
    ]
    with pytest.raises(Unavailable, match="disk of PostgreSQL is full"):
        store.bulk(large)
    assert store.read("a").document == order("kept")
    assert len(store.page().entities) == 1, "nothing of what was refused"
    fill(store, is_full=False)
    assert len(store.bulk(large)) == 2_000
    assert store.page(with_total=True, limit=1).total == 2_001
    store.pool.close()
