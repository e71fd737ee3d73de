"""Keys that were deleted are forgotten in the end, and none of their versions is given again."""

import pytest

from postgres.entity_verbs import account, accounts, another, balances, entity_types
from thermocline.entity.table import EntitySettings
from thermocline.errors import Conflict, Overloaded
from thermocline.hot.postgres.export.forget import forget

__all__ = ["accounts", "another", "entity_types"]


def remembered(entities):
    query = "select id, ver from gone order by id"
    store = entities.store
    return store.pool.run(store.tenant, lambda c: c.execute(query).fetchall())


def test_a_key_is_forgotten_once_an_export_has_carried_its_delete(accounts, another):
    few = another(EntitySettings(gone_keys_max=1))
    for key in "abc":
        few.create(account(1), key)
    few.replace("b", account(2))
    for key in "abc":
        few.delete(key)
    assert few.forget() == 0, "the lake does not know of the deletes yet"
    assert remembered(few) == [("a", 2), ("b", 3), ("c", 2)]
    few.export()
    assert remembered(few) == [("b", 3)], "the lowest go first"
    assert balances(few) == {}


def test_no_version_is_given_again_after_its_key_was_forgotten(accounts, another):
    none = another(EntitySettings(gone_keys_max=0))
    seen = none.create(account(1), "a").ver
    seen = max(seen, none.replace("a", account(2)).ver, none.delete("a").ver)
    none.export()
    assert remembered(none) == []
    made = accounts.create(account(5), "a")
    assert made.ver > seen
    with pytest.raises(Conflict):
        accounts.replace("a", account(6), if_match=1)
    assert accounts.create(account(1), "new").ver > seen, "nobody knows that it is new"
    assert accounts.replace("a", account(6)).ver == made.ver + 1
    none.export()
    assert [one.ver for one in accounts.history("a")][-1] == made.ver + 1


def test_a_key_that_is_dirty_or_moved_is_not_forgotten(accounts, another):
    accounts.create(account(1), "moved")
    accounts.create(account(1), "dirty")
    accounts.export()
    accounts.evict(accounts.source.find("moved").taken_at)
    accounts.delete("dirty")
    assert forget(accounts.store, 0) == 0
    assert [key for key, _ in remembered(accounts)] == ["dirty", "moved"]


def test_a_writer_that_has_looked_is_waited_for_and_never_overtaken(accounts, pool, tenant):
    accounts.create(account(1), "a")
    accounts.delete("a")
    accounts.export()
    with pool.transaction(tenant) as connection:
        connection.execute("select from gone").fetchall()
        with pytest.raises(Overloaded):
            forget(accounts.store, 0)
    assert remembered(accounts) == [("a", 2)]
    assert forget(accounts.store, 0) == 1
