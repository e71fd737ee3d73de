"""Readings while a half is down: refused, or marked; never an old answer that looks new."""

import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fixtures.postgres import TEST_LIMITS
from fixtures.timing import soonest
from postgres.entity_verbs import (
    ACCOUNT,
    Died,
    WeakDisk,
    account,
    accounts,
    another,
    balances,
    cold_balances,
    dies,
    entity_types,
    told,
)
from thermocline.cold.catalog import Catalog
from thermocline.entity.degraded_read import LAKE_ALONE, OLD_ANSWER, POSTGRES_ALONE
from thermocline.entity.types import EntityCatalog
from thermocline.errors import Corruption, Invalid, Unavailable
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.session.pool_settings import PoolSettings

__all__ = ["accounts", "another", "entity_types"]


class Halves:
    """Entities whose two halves can be taken down and brought back."""

    def __init__(self, way, folder):
        self._way = way
        self._disk = WeakDisk()
        self.pool = Pool(way.dsn, PoolSettings(**TEST_LIMITS))
        tenant = open_tenant(self.pool, "acme")
        types = EntityCatalog(self.pool, tenant, Catalog(folder, self._disk))
        self.entities = types.register("account", ACCOUNT)

    def take_down(self, *halves):
        if "postgres" in halves:
            self._way.refuse()
            self._way.cut()
        self._disk.is_down = "lake" in halves


@pytest.fixture
def halves(way, tmp_path):
    """Two entities in the lake, one of them written again since, and one in PostgreSQL alone."""
    made = Halves(way, str(tmp_path / "lake"))
    made.entities.create(account(1), "a")
    made.entities.create(account(1), "b")
    made.exported = made.entities.export()
    made.entities.replace("a", account(2))
    made.entities.create(account(3), "c")
    yield made
    made.pool.close()


NOW = {"a": 2, "b": 1, "c": 3}
EXPORTED = {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("down", "mode", "expected", "warning"),
    [
        ((), "strict", NOW, ""),
        ((), "best_effort", NOW, ""),
        ((), "cached", NOW, ""),
        (("lake",), "strict", Unavailable, ""),
        (("lake",), "best_effort", NOW, POSTGRES_ALONE),
        (("lake",), "cached", NOW, OLD_ANSWER),
        (("postgres",), "strict", Unavailable, ""),
        (("postgres",), "best_effort", EXPORTED, LAKE_ALONE),
        (("postgres",), "cached", NOW, OLD_ANSWER),
        (("postgres", "lake"), "strict", Unavailable, ""),
        (("postgres", "lake"), "best_effort", Unavailable, ""),
        (("postgres", "lake"), "cached", NOW, OLD_ANSWER),
    ],
)
def test_each_mode_answers_as_it_says_with_each_half_down(halves, down, mode, expected, warning):
    before = halves.entities.scan(["_id", "balance"])
    halves.take_down(*down)
    if expected is Unavailable:
        with pytest.raises(Unavailable):
            halves.entities.scan(["_id", "balance"], mode=mode)
        return
    answer = halves.entities.scan(["_id", "balance"], mode=mode)
    assert told(answer) == expected
    assert answer.warning == warning
    assert answer.is_exact == (not warning)
    if warning == LAKE_ALONE:
        assert (answer.as_of, answer.version) == (halves.exported.as_of, halves.exported.version)
    if warning == OLD_ANSWER:
        assert answer.as_of == before.as_of


def test_one_entity_is_remembered_with_the_moment_it_is_true_of(halves):
    now = halves.entities.find("a", mode="cached")
    assert (now.entity.document, now.is_exact) == (account(2), True)
    halves.take_down("postgres")
    then = halves.entities.find("a", mode="cached")
    assert (then.entity, then.as_of, then.warning) == (now.entity, now.as_of, OLD_ANSWER)
    with pytest.raises(Unavailable):
        halves.entities.find("b", mode="cached")
    with pytest.raises(Unavailable):
        halves.entities.find("a")


def test_nothing_remembered_is_refused_and_not_made_up(halves):
    halves.take_down("postgres")
    with pytest.raises(Unavailable):
        halves.entities.scan(mode="cached")


def test_without_postgres_the_lake_is_what_was_committed_at_one_moment(halves):
    halves.take_down("postgres")
    view = halves.entities.view(mode="best_effort")
    assert view.warning == LAKE_ALONE
    assert view.rows.num_rows == len(view.hides) == 0
    found = halves.entities.find("a", mode="best_effort")
    assert (found.entity.document, found.warning) == (account(1), LAKE_ALONE)
    assert found.as_of == halves.exported.as_of
    with pytest.raises(Unavailable):
        halves.entities.read("a")
    with pytest.raises(Unavailable):
        halves.entities.view()


def test_damage_is_raised_in_every_mode(halves):
    (segment, *_) = halves.entities.table.state().segments
    path = Path(halves.entities.table.storage.root) / segment.path
    path.write_bytes(path.read_bytes()[:-1])
    for mode in ("strict", "best_effort", "cached"):
        with pytest.raises(Corruption):
            halves.entities.scan(mode=mode)


def test_an_unknown_mode_is_named(halves):
    with pytest.raises(Invalid) as caught:
        halves.entities.scan(mode="perhaps")
    assert "best_effort" in caught.value.hint


def test_a_dead_postgres_is_noticed_in_seconds_and_then_at_once(halves):
    halves.take_down("postgres")
    started = time.monotonic()
    with pytest.raises(Unavailable):
        halves.entities.scan()
    assert time.monotonic() - started < 5
    for _ in range(5):
        with pytest.raises(Unavailable):
            halves.entities.scan()
    assert halves.pool.breaker.state != "closed"

    def marked():
        assert told(halves.entities.scan(["_id", "balance"], mode="best_effort")) == EXPORTED

    assert soonest(marked, 1) < 1  # the breaker does not let it be asked again


def test_P10_a_postgres_that_says_nothing_is_given_up_in_time(way, tmp_path):
    pool = Pool(way.dsn, PoolSettings(**{**TEST_LIMITS, "connect_timeout_s": 1.0}))
    tenant = open_tenant(pool, "acme")
    entities = EntityCatalog(pool, tenant, Catalog(str(tmp_path / "lake"))).register(
        "account", ACCOUNT
    )
    entities.create(account(1), "a")
    entities.export()
    way.go_silent()
    started = time.monotonic()
    answer = entities.scan(["_id", "balance"], mode="best_effort")
    assert time.monotonic() - started < 20
    assert (told(answer), answer.warning) == ({"a": 1}, LAKE_ALONE)
    pool.close()


def test_P08_a_restart_in_the_middle_of_a_query_is_refused_or_marked(own_postgres, tmp_path):
    pool = Pool(own_postgres.dsn, PoolSettings(**TEST_LIMITS))
    tenant = open_tenant(pool, "acme")
    entities = EntityCatalog(pool, tenant, Catalog(str(tmp_path / "lake"))).register(
        "account", ACCOUNT
    )
    entities.create(account(1), "a")
    exported = entities.export()
    entities.replace("a", account(2))
    snapshot = entities.source.snapshot
    started_then = snapshot().token[1]

    def killed():
        entities.source.snapshot = snapshot
        own_postgres.kill()
        return snapshot()

    entities.source.snapshot = killed
    with pytest.raises(Unavailable):
        entities.scan()
    marked = entities.scan(["_id", "balance"], mode="best_effort")
    assert (told(marked), marked.warning) == ({"a": 1}, LAKE_ALONE)
    assert marked.as_of == exported.as_of < datetime.now(UTC)
    own_postgres.start()
    end_s = time.monotonic() + 120
    while True:
        try:
            answer = entities.scan(["_id", "balance"])
            break
        except Unavailable:
            assert time.monotonic() < end_s
            time.sleep(0.2)
    assert (told(answer), answer.warning) == ({"a": 2}, "")
    assert snapshot().token[1] != started_then  # what was remembered is of another run
    entities.export()
    assert cold_balances(entities) == {"a": 2}
    pool.close()


# The failure modes of the reference, one line of its table each.


def app_dies_in_a_write(entities, pool, tenant):
    context = pool.transaction(tenant)
    connection = context.__enter__()
    connection.execute("update e_1 set h_2 = 99")
    connection.execute("insert into change (type_id, id, ver, op) values (1, 'a', 9, 'u')")
    connection.close()
    with pytest.raises(Unavailable):
        context.__exit__(None, None, None)


def export_dies_before_the_lake(entities, pool, tenant):
    _dying(entities.source, "claim", entities)


def export_dies_after_the_lake(entities, pool, tenant):
    _dying(entities.source, "retire", entities)


def lake_refuses_the_files(entities, pool, tenant):
    put = entities.table.storage.put

    def refused(path, data):
        raise Unavailable("the disk is full")

    entities.table.storage.put = refused
    with pytest.raises(Unavailable):
        entities.export()
    entities.table.storage.put = put


def query_fails(entities, pool, tenant):
    open_segment = entities.table.storage.open_segment

    def fails(path, *_, **__):
        raise Unavailable("the disk failed")

    entities.table.storage.open_segment = fails
    with pytest.raises(Unavailable):
        entities.scan()
    entities.table.storage.open_segment = open_segment


def _dying(owner, name, entities):
    dies(owner, name, after=False)
    with pytest.raises(Died):
        entities.export()


@pytest.mark.parametrize(
    "failure",
    [
        app_dies_in_a_write,
        export_dies_before_the_lake,
        export_dies_after_the_lake,
        lake_refuses_the_files,
        query_fails,
    ],
)
def test_no_failure_loses_doubles_or_brings_back_anything(accounts, pool, tenant, failure):
    accounts.create(account(1), "a")
    accounts.create(account(1), "b")
    accounts.export()
    accounts.replace("a", account(2))
    accounts.delete("b")
    failure(accounts, pool, tenant)
    assert balances(accounts) == {"a": 2}
    accounts.export()
    assert balances(accounts) == cold_balances(accounts) == {"a": 2}


KILLED = """
import os, signal, sys
sys.path[:0] = {paths!r}
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.entity.types import EntityCatalog
from thermocline.cold.catalog import Catalog
pool = Pool({dsn!r})
entities = EntityCatalog(pool, open_tenant(pool, "acme"), Catalog({lake!r})).table("account")
owner = {{"source": entities.source, "log": entities.table.log, "table": entities.table}}[{owner!r}]
method = getattr(owner, {name!r})
def last(*args, **options):
    if {after!r}:
        method(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, {name!r}, last)
entities.export()
"""


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        ("source", "freeze", True),
        ("source", "claim", True),
        ("log", "try_commit", False),
        ("log", "try_commit", True),
        ("source", "retire", True),
    ],
)
def test_P04_an_exporter_killed_at_any_step_is_finished_by_another_process(
    accounts, another, postgres_dsn, tmp_path, owner, name, after
):
    accounts.create(account(1), "a")
    accounts.create(account(1), "b")
    accounts.export()
    accounts.replace("a", account(2))
    accounts.delete("b")
    places = {"dsn": postgres_dsn, "lake": str(tmp_path / "lake"), "paths": sys.path}
    program = KILLED.format(**places, owner=owner, name=name, after=after)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert balances(accounts) == {"a": 2}
    other = another()
    other.export()
    assert balances(other) == cold_balances(other) == {"a": 2}
    assert other.source.pressure().changes == 0
