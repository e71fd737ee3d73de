"""The dirty set on a real PostgreSQL: one moment, exactly, however it was found."""

import random
import threading

import pytest

from postgres.entity_verbs import (
    account,
    accounts,
    another,
    balances,
    cold_balances,
    entity_types,
)
from postgres.test_export import held_change
from thermocline.cold.segment.parquet import decode_deletes
from thermocline.errors import Corruption, Overloaded
from thermocline.hot.postgres.export import dirty
from thermocline.hot.postgres.export.dirty import DirtySet

__all__ = ["accounts", "another", "entity_types"]


def told(snapshot):
    """Return what a snapshot says: the dirty keys, and the balance of those that live."""
    rows = snapshot.rows.to_pylist()
    return snapshot.keys.to_pylist(), {row["_id"]: row["balance"] for row in rows}


def afresh(entities):
    """Return the snapshot of somebody who remembers nothing."""
    return DirtySet(entities.store).snapshot()


def fill(pool, tenant, count, *, balance="n"):
    """Write many rows and their changes at once."""
    with pool.transaction(tenant) as connection:
        connection.execute(
            "insert into e_1 (id, ver, schema_version, rest, h_2) "
            f"select 'k' || lpad(n::text, 9, '0'), 1, 1, '{{}}', {balance} "
            "from generate_series(1, %s) as n",
            [count],
        )
        connection.execute(
            "insert into change (type_id, id, ver, op) select 1, id, 1, 'u' from e_1"
        )


def test_a_snapshot_has_every_dirty_key_once_and_the_rows_of_those_that_live(accounts):
    accounts.create(account(1), "b")
    accounts.replace("b", account(2))
    accounts.create(account(3), "a")
    accounts.delete("a")
    assert told(afresh(accounts)) == (["a", "b"], {"b": 2})


def test_an_unchanged_moment_is_not_read_again(accounts, monkeypatch):
    accounts.create(account(1), "a")
    for _ in range(20):
        first = accounts.source.snapshot()
        with monkeypatch.context() as blind:
            blind.setattr(dirty, "_changed_keys", None)  # would fail if it were asked
            blind.setattr(dirty, "_read_live_rows", None)
            try:
                second = accounts.source.snapshot()
                break
            except TypeError:
                continue  # another test's transaction on this server: it was no unchanged moment
    else:
        pytest.fail("every moment is read again")
    assert second.rows is first.rows
    assert second.taken_at > first.taken_at


@pytest.mark.own_server
def test_only_what_changed_since_is_fetched(accounts, monkeypatch):
    for key in "abc":
        accounts.create(account(1), key)
    accounts.source.snapshot()
    accounts.replace("b", account(2))
    accounts.delete("c")
    fetched = []
    live_rows = dirty._read_live_rows
    monkeypatch.setattr(
        dirty,
        "_read_live_rows",
        lambda c, layout, keys: fetched.append(keys) or live_rows(c, layout, keys),
    )
    assert told(accounts.source.snapshot()) == (["a", "b", "c"], {"a": 1, "b": 2})
    assert fetched == [["b", "c"]]


def test_P02_a_change_that_commits_late_is_found_though_its_number_is_low(accounts, pool, tenant):
    slow = held_change(pool, tenant, "slow", 1)
    accounts.create(account(2), "quick")
    assert told(accounts.source.snapshot()) == (["quick"], {"quick": 2})
    slow.__exit__(None, None, None)
    assert told(accounts.source.snapshot()) == (["quick", "slow"], {"quick": 2, "slow": 1})


@pytest.mark.own_server
def test_asking_by_the_highest_number_would_have_missed_it(accounts, pool, tenant, monkeypatch):
    slow = held_change(pool, tenant, "slow", 1)
    accounts.create(account(2), "quick")
    accounts.source.snapshot()
    slow.__exit__(None, None, None)

    def by_number(connection, layout, since):
        query = "select id from change where cid > (select max(cid) from change)"
        return dirty.pa.array([row[0] for row in connection.execute(query)], dirty.pa.string())

    monkeypatch.setattr(dirty, "_changed_keys", by_number)
    wrong = told(accounts.source.snapshot())
    assert wrong == (["quick"], {"quick": 2})  # the wrong code: an acknowledged write is not read


def test_whatever_is_done_the_remembered_snapshot_is_the_fresh_one(accounts, another):
    chance = random.Random(7)
    other = another()
    for turn in range(60):
        key = chance.choice("abcdef")
        act = chance.choice(["write", "write", "delete", "export", "other"])
        if act == "write":
            accounts.replace(key, account(turn))
        elif act == "delete" and accounts.read(key):
            accounts.delete(key)
        elif act == "export":
            accounts.export()
        elif act == "other":
            other.replace(key, account(turn))
        if chance.random() < 0.7:
            remembered, fresh = accounts.source.snapshot(), afresh(accounts)
            assert told(remembered) == told(fresh)
            assert remembered.head == fresh.head


def test_many_threads_may_ask_at_once(accounts):
    for key in "abc":
        accounts.create(account(1), key)
    found = []

    def ask():
        found.extend(told(accounts.source.snapshot()) for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(20):
        accounts.replace("a", account(turn + 1))
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for keys, rows in found:
        assert keys == ["a", "b", "c"]
        assert rows.keys() == {"a", "b", "c"}


def test_P18_many_dirty_keys_are_read_and_exported_in_parts(accounts, pool, tenant, monkeypatch):
    monkeypatch.setattr(dirty, "FETCH_ROWS", 500)
    fill(pool, tenant, 5_000)
    sizes = []
    cold_rows = dirty.cold_rows
    monkeypatch.setattr(
        dirty, "cold_rows", lambda layout, rows: sizes.append(len(rows)) or cold_rows(layout, rows)
    )
    assert len(balances(accounts)) == 5_000
    assert set(sizes) == {500}  # no more rows than that are ever held as Python has them
    assert accounts.export().rows == 5_000
    assert sum(balances(accounts).values()) == 5_000 * 5_001 // 2


def test_P18_as_many_dirty_keys_as_cold_rows_are_read_exactly(accounts, pool, tenant):
    count, gone = 50_000, 1_000
    fill(pool, tenant, count)
    assert accounts.export().rows == count
    table, type_id = accounts.store.layout.table, accounts.store.layout.type_id

    def change_all(connection):
        connection.execute(f"delete from {table} where h_2 <= {gone}")
        connection.execute(f"update {table} set ver = 2, h_2 = 1")
        connection.execute(
            f"insert into change (type_id, id, ver, op) select {type_id}, "
            f"'k' || lpad(n::text, 9, '0'), 2, case when n <= {gone} then 'd' else 'u' end "
            f"from generate_series(1, {count}) as n"
        )

    pool.run(tenant, change_all)
    view = accounts.view()
    assert (len(view.hides), view.rows.num_rows) == (count, count - gone)
    found = balances(accounts)
    assert (len(found), sum(found.values())) == (count - gone, count - gone)
    snapshot = accounts.snapshot()
    assert sum(part.batch.num_rows for part in snapshot.parts) == count - gone
    live = accounts.table.state(int(snapshot.pairing.version))
    hidden = sum(len(decode_deletes(text)) for text in snapshot.pairing.hidden.values())
    assert hidden == live.totals.rows
    accounts.patch(f"k{count:09}", {"balance": 5})
    assert sum(balances(accounts).values()) == count - gone + 4
    assert accounts.export().keys == count
    assert sum(cold_balances(accounts).values()) == count - gone + 4


def test_P18_more_dirty_keys_than_a_reading_may_hold_are_refused_by_name(
    accounts, pool, tenant, monkeypatch
):
    monkeypatch.setattr(dirty, "DIRTY_KEYS_MAX", 99)
    fill(pool, tenant, 100)
    with pytest.raises(Overloaded) as caught:
        accounts.scan()
    assert caught.value.facts == {"keys": 100, "dirty_keys_max": 99}
    assert accounts.export().keys == 100  # an export is the way out, and is not refused
    assert accounts.scan().rows.num_rows == 100


def test_a_key_that_nobody_could_have_written_is_damage(accounts, pool, tenant):
    held_change(pool, tenant, "two\nlines", 1).__exit__(None, None, None)
    with pytest.raises(Corruption):
        accounts.scan()


def test_the_transaction_of_an_export_has_ended_before_anything_is_encoded(accounts, pool, tenant):
    accounts.create(account(1), "a")
    supersede = accounts.table.commit_export
    open_then = []

    def looked_at(hand):
        with pool.transaction(tenant) as connection:
            query = (
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and pid <> pg_backend_pid() and state like 'idle in transaction%'"
            )
            open_then.append(connection.execute(query).fetchone()[0])
        return supersede(hand)

    accounts.table.commit_export = looked_at
    accounts.export()
    assert open_then == [0]
