"""Exports on a real PostgreSQL: what is carried, who is fenced off, what a crash leaves."""

import contextlib
import shutil
import threading
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest

from fixtures.postgres import TEST_LIMITS
from postgres.entity_verbs import (
    Died,
    account,
    accounts,
    another,
    balances,
    cold_balances,
    compact,
    dies,
    entity_types,
)
from thermocline.cold.care.fsck import fsck
from thermocline.cold.catalog import Catalog
from thermocline.cold.change.export_plan import ExportPlanner, find_flush_note
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.table import ColdTable
from thermocline.entity.export import EXPORT_TRIES_MAX, roll_forward
from thermocline.entity.table import EntitySettings
from thermocline.entity.types import EntityCatalog
from thermocline.errors import Conflict, Corruption, Overloaded, Unavailable
from thermocline.format.log.change_ids import decode_changes
from thermocline.format.log.commit_note import NoteFlush
from thermocline.hot.postgres.export import dirty
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.session.pool import Pool
from thermocline.hot.postgres.session.pool_settings import PoolSettings

__all__ = ["accounts", "another", "entity_types"]


def changes_left(entities):
    """Return how many changes wait for an export."""
    return entities.source.pressure().changes


def run_between(owner, name, act):
    """Do something right before the next call of a method."""
    method = getattr(owner, name)

    def first(*args, **options):
        setattr(owner, name, method)
        act()
        return method(*args, **options)

    setattr(owner, name, first)


def test_an_export_carries_what_is_dirty_and_leaves_nothing_dirty(accounts):
    accounts.create(account(1), "a")
    accounts.create(account(2), "b")
    done = accounts.export()
    assert (done.keys, done.rows, done.changes) == (2, 2, 2)
    assert cold_balances(accounts) == {"a": 1, "b": 2}
    assert changes_left(accounts) == 0
    assert accounts.source.head().version == done.version == accounts.table.state().version
    assert accounts.export() is None


def test_P01_an_update_between_the_snapshot_and_the_mark_stays_dirty(accounts):
    accounts.create(account(1), "a")
    run_between(accounts.source, "claim", lambda: accounts.replace("a", account(2)))
    accounts.export()
    assert cold_balances(accounts) == {"a": 1}
    assert balances(accounts) == {"a": 2}
    assert changes_left(accounts) == 1
    accounts.export()
    assert cold_balances(accounts) == balances(accounts) == {"a": 2}


def test_P01_marking_by_key_would_have_lost_it(accounts, pool, tenant):
    def marks_by_key(connection, type_id, changes):
        connection.execute(
            "delete from change where type_id = %s and id in "
            "(select id from change where cid = any(%s))",
            [type_id, changes],
        )

    accounts.create(account(1), "a")
    run_between(accounts.source, "claim", lambda: accounts.replace("a", account(2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thermocline.hot.postgres.export.source._drop_changes", marks_by_key)
        accounts.export()
    assert balances(accounts) == {"a": 1}  # the wrong code: an acknowledged write is not read


def held_change(pool, tenant, key, balance):
    """Write a row and its change in a transaction that is left open; return its connection."""
    context = pool.transaction(tenant)
    connection = context.__enter__()
    connection.execute(
        "insert into e_1 (id, ver, schema_version, rest, h_2) values (%s, 1, 1, '{}', %s)",
        [key, balance],
    )
    connection.execute("insert into change (type_id, id, ver, op) values (1, %s, 1, 'u')", [key])
    return context


def test_P02_a_change_that_commits_after_a_higher_one_was_exported_is_exported_next(
    accounts, pool, tenant
):
    slow = held_change(pool, tenant, "slow", 1)
    accounts.create(account(2), "quick")  # its number is higher, and it commits first
    accounts.export()
    slow.__exit__(None, None, None)
    assert balances(accounts) == {"quick": 2, "slow": 1}
    assert changes_left(accounts) == 1
    accounts.export()
    assert cold_balances(accounts) == {"quick": 2, "slow": 1}


def test_P02_marking_up_to_the_highest_number_would_have_lost_it(accounts, pool, tenant):
    def up_to_highest(connection, type_id, changes):
        connection.execute(
            "delete from change where type_id = %s and cid <= %s", [type_id, max(changes)]
        )

    slow = held_change(pool, tenant, "slow", 1)
    accounts.create(account(2), "quick")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thermocline.hot.postgres.export.source._drop_changes", up_to_highest)
        run_between(accounts.source, "retire", lambda: slow.__exit__(None, None, None))
        accounts.export()
    assert balances(accounts) == {"quick": 2}  # the wrong code: an acknowledged write is lost


def test_P03_a_delete_is_exported_and_does_not_come_back(accounts):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.delete("a")
    assert balances(accounts) == {}
    done = accounts.export()
    assert (done.keys, done.rows) == (1, 0)
    assert cold_balances(accounts) == balances(accounts) == {}
    accounts.create(account(3), "a")
    accounts.export()
    assert balances(accounts) == cold_balances(accounts) == {"a": 3}
    assert accounts.read("a").ver == 3


def test_P03_an_export_without_tombstones_would_bring_it_back(accounts):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.delete("a")
    supersede = accounts.table.commit_export

    def without_tombstones(hand):
        return supersede(replace(hand, keys=hand.rows.column("_id").combine_chunks()))

    accounts.table.commit_export = without_tombstones
    accounts.export()
    assert balances(accounts) == {"a": 1}  # the wrong code: a deleted entity is read


def test_P12_of_many_updates_before_one_export_the_newest_is_exported(accounts):
    for balance in range(5):
        accounts.replace("a", account(balance))
    done = accounts.export()
    assert (done.keys, done.rows, done.changes) == (1, 1, 5)
    assert cold_balances(accounts) == {"a": 4}


def test_P13_an_entity_that_came_and_went_before_any_export_leaves_no_ghost(accounts):
    accounts.create(account(1), "ghost")
    accounts.delete("ghost")
    done = accounts.export()
    assert (done.keys, done.rows, done.changes) == (1, 0, 2)
    assert balances(accounts) == cold_balances(accounts) == {}
    assert changes_left(accounts) == 0


def test_P17_the_number_decides_and_no_clock(accounts, pool, tenant):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.replace("a", account(2))
    with pool.transaction(tenant) as connection:
        connection.execute("update e_1 set written_at = '1999-01-01'")  # its clock went back
    assert balances(accounts) == {"a": 2}
    accounts.export()
    assert cold_balances(accounts) == {"a": 2}


def test_the_commit_says_which_changes_it_contains_and_whose(accounts):
    accounts.create(account(1), "a")
    accounts.replace("a", account(2))
    done = accounts.export()
    note = find_flush_note(accounts.table.log.commit(done.version))
    assert isinstance(note, NoteFlush)
    assert len(decode_changes(note.changes)) == 2
    assert note.source == accounts.source.head().store_id


# Several exporters.


def test_P11_of_two_exports_of_one_moment_one_lands_and_the_other_begins_again(accounts, another):
    other = another()
    accounts.create(account(1), "a")

    def meanwhile():
        assert other.export().keys == 1
        accounts.replace("a", account(2))

    run_between(accounts.source, "claim", meanwhile)
    done = accounts.export()
    assert done.keys == 1
    assert cold_balances(accounts) == {"a": 2}
    assert changes_left(accounts) == 0


def test_P11_an_export_that_was_overtaken_after_its_claim_leaves_no_file_and_begins_again(
    accounts, another
):
    other = another()
    accounts.create(account(1), "a")
    accounts.create(account(1), "b")

    def meanwhile():
        other.delete("a")
        other.export()

    run_between(accounts.table, "commit_export", meanwhile)
    assert accounts.export() is None  # the other one had carried it all
    assert cold_balances(accounts) == balances(accounts) == {"b": 1}
    assert fsck(accounts.table).findings == ()


def test_P11_without_the_fence_a_late_export_would_bring_back_what_was_deleted(
    accounts, another, monkeypatch
):
    other = another()
    accounts.create(account(1), "a")
    accounts.create(account(1), "b")

    def meanwhile():
        other.delete("a")
        other.export()
        compact(other)

    run_between(accounts.table, "commit_export", meanwhile)
    monkeypatch.setattr(ExportPlanner, "_check_fence", lambda self, state: None)
    accounts.export()
    assert balances(accounts) == {"a": 1, "b": 1}  # the wrong code: a deleted entity is read


def test_P11_many_exporters_and_writers_lose_nothing_and_double_nothing(accounts, another):
    workers = [another() for _ in range(3)]
    problems = []

    def exporter(entities):
        try:
            for _ in range(6):
                entities.export()
        except Exception as error:  # noqa: BLE001
            problems.append(error)

    def writer():
        for turn in range(60):
            accounts.replace(f"k{turn % 7}", account(turn))

    threads = [threading.Thread(target=exporter, args=[one]) for one in workers]
    threads.append(threading.Thread(target=writer))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [error for error in problems if not isinstance(error, Conflict)] == []
    expected = {f"k{n}": max(turn for turn in range(60) if turn % 7 == n) for n in range(7)}
    assert balances(accounts) == expected
    accounts.export()
    assert cold_balances(accounts) == expected
    assert fsck(accounts.table).is_sound


def test_an_export_that_is_overtaken_every_time_gives_up_and_says_so(accounts, another):
    other = another()
    accounts.create(account(0), "a")
    claim = accounts.source.claim
    turns = []

    def overtaken(frozen):
        turns.append(1)
        accounts.replace("a", account(len(turns)))
        other.export()
        accounts.replace("a", account(len(turns)))
        return claim(frozen)

    accounts.source.claim = overtaken
    with pytest.raises(Conflict):
        accounts.export()
    assert len(turns) == EXPORT_TRIES_MAX
    assert balances(accounts) == {"a": EXPORT_TRIES_MAX}


# A failure at every numbered step; then anyone goes on.

STEPS = [
    ("source", "freeze", False),
    ("source", "freeze", True),
    ("source", "claim", False),
    ("source", "claim", True),
    ("log", "try_commit", False),
    ("log", "try_commit", True),
    ("source", "retire", False),
    ("source", "retire", True),
]


@pytest.mark.parametrize("what", ["update", "delete", "create"])
@pytest.mark.parametrize(("owner", "name", "after"), STEPS)
def test_P04_P05_P14_a_crash_at_any_step_is_finished_by_anyone(
    accounts, another, owner, name, after, what
):
    accounts.create(account(1), "a")
    accounts.create(account(1), "b")
    accounts.export()
    expected = {"a": 1, "b": 1}
    if what == "update":
        accounts.replace("a", account(2))
        expected["a"] = 2
    elif what == "delete":
        accounts.delete("a")
        del expected["a"]
    else:
        accounts.create(account(2), "c")
        expected["c"] = 2
    place = accounts.source if owner == "source" else accounts.table.log
    dies(place, name, after=after)
    with pytest.raises(Died):
        accounts.export()
    other = another()  # opening it rolls forward
    assert balances(other) == expected
    other.replace("b", account(5))
    expected["b"] = 5
    assert balances(other) == expected
    other.export()
    assert cold_balances(other) == balances(other) == expected
    assert changes_left(other) == 0
    assert roll_forward(other.source, other.table) == other.table.state().version
    assert cold_balances(other) == expected


def test_P04_a_reading_between_the_commit_and_the_mark_takes_postgres_rows(accounts):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.replace("a", account(2))
    dies(accounts.source, "retire", after=False)
    with pytest.raises(Died):
        accounts.export()
    assert cold_balances(accounts) == {"a": 2}
    view = accounts.view()
    assert view.state.version == accounts.table.state().version - 1
    assert view.hides.to_pylist() == ["a"]
    assert balances(accounts) == {"a": 2}


def test_rolling_forward_twice_and_at_once_is_rolling_forward_once(accounts, another):
    accounts.create(account(1), "a")
    dies(accounts.source, "retire", after=False)
    with pytest.raises(Died):
        accounts.export()
    waiting = threading.Barrier(4)

    def recovers():
        waiting.wait()
        accounts.recover()

    threads = [threading.Thread(target=recovers) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert changes_left(accounts) == 0
    assert accounts.source.head().version == accounts.table.state().version
    assert another().scan(["_id"]).rows.num_rows == 1


def test_an_export_between_two_looks_of_a_recovery_is_not_taken_for_an_older_lake(
    accounts, another
):
    other = another()
    accounts.create(account(1), "a")
    run_between(accounts.source, "head", other.export)
    assert accounts.recover() == other.table.state().version
    assert balances(accounts) == {"a": 1}


@pytest.mark.own_server
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["claim", "retire"])
def test_P05_a_commit_in_postgres_whose_answer_is_lost_is_looked_up(
    accounts, way, tmp_path, when, step
):
    pool = Pool(way.dsn, PoolSettings(**TEST_LIMITS))
    types = EntityCatalog(pool, open_tenant(pool, "acme"), Catalog(str(tmp_path / "lake")))
    entities = types.table("account")
    entities.create(account(1), "a")
    run_between(entities.source, step, lambda: way.cut_at_commit(when))
    with contextlib.suppress(Unavailable):
        entities.export()
    assert balances(accounts) == {"a": 1}
    accounts.export()
    assert balances(accounts) == cold_balances(accounts) == {"a": 1}
    assert changes_left(accounts) == 0
    pool.close()


def test_P07_an_export_whose_backend_is_terminated_is_tried_again(
    accounts, postgres_server, monkeypatch
):
    accounts.create(account(1), "a")
    live_rows = dirty._read_live_rows

    def terminated(connection, *args, **options):
        monkeypatch.setattr(dirty, "_read_live_rows", live_rows)
        with psycopg.connect(postgres_server.owner_dsn, autocommit=True) as owner:
            owner.execute("select pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
        return live_rows(connection, *args, **options)

    monkeypatch.setattr(dirty, "_read_live_rows", terminated)
    assert accounts.export().rows == 1
    assert cold_balances(accounts) == {"a": 1}


# By the clock, by count, on demand; limits.


def test_an_export_is_due_by_count_by_age_or_not_at_all(accounts, another):
    accounts.create(account(1), "a")
    assert another(EntitySettings(export_changes=2, export_age_s=3600)).export_if_due() is None
    accounts.create(account(1), "b")
    counted = another(EntitySettings(export_changes=2, export_age_s=3600)).export_if_due()
    assert counted.changes == 2
    accounts.create(account(1), "c")
    assert another(EntitySettings(export_changes=9, export_age_s=0)).export_if_due().changes == 1
    assert another(EntitySettings(export_changes=0, export_age_s=3600)).export_if_due() is None


def test_writes_past_the_limit_of_waiting_changes_are_refused_by_its_name(
    accounts, another, caplog
):
    limited = another(EntitySettings(changes_warn=2, changes_max=4, look_s=0))
    for place in range(4):
        limited.create(account(1), f"k{place}")
    assert "changes_warn=2" in caplog.text
    with pytest.raises(Overloaded) as caught:
        limited.create(account(1), "one too many")
    assert caught.value.facts == {"changes": 4, "changes_max": 4}
    assert len(balances(limited)) == 4
    limited.export()
    limited.create(account(1), "now there is room")
    assert len(balances(limited)) == 5


# One half is older than the other.


@pytest.fixture
def backups(accounts, pool, tenant):
    """Take a backup of what PostgreSQL holds of the entities, and put it back."""
    tables = ("e_1", "change", "gone", "lake_head")

    def take():
        with pool.transaction(tenant) as connection:
            for name in tables:
                connection.execute(f"drop table if exists backup_{name}")
                connection.execute(f"create table backup_{name} as table {name}")
            row = connection.execute(
                "select last_value from pg_sequences where sequencename = 'change_cid_seq'"
            ).fetchone()
            return row[0] or 0

    def put_back(last):
        with pool.transaction(tenant) as connection:
            for name in tables:
                connection.execute(f"delete from {name}")
                columns = "cid, type_id, id, ver, op, xid" if name == "change" else "*"
                override = "overriding system value " if name == "change" else ""
                target = f"{name} ({columns})" if columns != "*" else name
                connection.execute(
                    f"insert into {target} {override}select {columns} from backup_{name}"
                )
            connection.execute(f"alter sequence change_cid_seq restart with {last + 1}")

    return take, put_back


@pytest.mark.parametrize("exports", [1, 2, 3])
def test_P23_a_postgres_older_than_the_lake_is_noticed_and_refused(
    accounts, another, backups, exports
):
    take, put_back = backups
    accounts.create(account(1), "a")
    accounts.export()
    last = take()
    for turn in range(exports):
        accounts.replace("a", account(10 + turn))
        accounts.export()
    put_back(last)
    for attempt in (accounts.export, accounts.recover, accounts.scan, another):
        with pytest.raises(Corruption) as caught:
            attempt()
        assert "older than the lake" in str(caught.value)
        assert "restore" in caught.value.hint


def test_P23_writes_of_a_restored_postgres_are_never_taken_for_exported_ones(accounts, backups):
    take, put_back = backups
    accounts.create(account(1), "a")
    accounts.export()
    last = take()
    accounts.replace("a", account(2))
    accounts.export()
    put_back(last)
    accounts.store.replace("a", account(3))  # bears the number of the change that was exported
    with pytest.raises(Corruption):
        accounts.export()
    assert accounts.source.pressure().changes == 1


def test_P23_a_copy_made_between_claim_and_mark_goes_on_where_it_was(accounts, backups):
    take, put_back = backups
    accounts.create(account(1), "a")
    accounts.export()
    accounts.replace("a", account(2))
    lasts = []
    run_between(accounts.table, "commit_export", lambda: lasts.append(take()))
    accounts.export()
    put_back(lasts[0])
    assert balances(accounts) == {"a": 2}
    accounts.recover()
    assert changes_left(accounts) == 0
    assert balances(accounts) == cold_balances(accounts) == {"a": 2}


def test_a_lake_older_than_postgres_is_noticed_and_refused(accounts, another, tmp_path):
    accounts.create(account(1), "a")
    accounts.export()
    root = accounts.table.storage.root
    shutil.copytree(root, tmp_path / "copy")
    accounts.replace("a", account(2))
    accounts.export()
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    with pytest.raises(Corruption) as caught:
        another()
    assert "the lake is older" in str(caught.value)


def test_a_lake_with_another_history_is_noticed_and_refused(accounts, another, tmp_path):
    accounts.create(account(1), "a")
    root = accounts.table.storage.root
    shutil.copytree(root, tmp_path / "copy")
    version = accounts.export().version
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    restored = ColdTable(LocalStorage(root))
    while restored.state().version < version:  # as many commits, but others
        name = f"more_{restored.state().version}"
        restored.adopt_columns(
            pa.schema([*restored.state().schema.arrow, (name, pa.string())]), evolve=True
        )
    for attempt in (another, accounts.recover):
        with pytest.raises(Corruption) as caught:
            attempt()
    assert "another history" in str(caught.value)


def test_a_table_of_another_lake_is_refused(accounts):
    with pytest.raises(Corruption) as caught:
        accounts.source.attach("another")
    assert caught.value.facts["found"] == "another"
