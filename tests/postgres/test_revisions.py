"""The history of an entity has every committed change; expiry and erasure remove what they say."""

from datetime import UTC, datetime, timedelta

import pytest

from postgres.entities import changes
from postgres.entity_verbs import ACCOUNT, account, accounts, another, entity_types
from thermocline.entity.history import differences
from thermocline.entity.model import PropertyChange
from thermocline.errors import NotFound
from thermocline.hot.postgres.export.purge import count_traces, purge
from thermocline.hot.postgres.revision.revisions import (
    expire_revisions,
    purge_value,
    set_retention,
)
from thermocline.hot.postgres.store.author import write_as

__all__ = ["accounts", "another", "entity_types"]


def told(revisions):
    return [(one.ver, one.op, one.document and one.document["balance"]) for one in revisions]


def test_every_change_is_in_the_history_also_those_between_two_exports(accounts):
    accounts.create(account(1), "a")
    accounts.replace("a", account(2))
    accounts.patch("a", {"balance": 3})
    exported = accounts.export()
    accounts.delete("a")
    accounts.create(account(5, limit="1.50", note=None), "a")
    found = accounts.history("a")
    assert told(found) == [
        (1, "created", 1),
        (2, "updated", 2),
        (3, "updated", 3),
        (4, "deleted", None),
        (5, "created", 5),
    ]
    assert found[-1].document == {"balance": 5, "limit": "1.50", "note": None}
    assert [one.version for one in found] == [None, None, exported.version, None, None]
    assert accounts.history("nobody") == []


def test_a_failed_write_leaves_no_change(accounts):
    accounts.create(account(1), "a")
    with pytest.raises(Exception, match="no such entity"):
        accounts.bulk(
            [{"op": "patch", "id": "a", "document": {"balance": 2}}, {"op": "delete", "id": "b"}]
        )
    assert told(accounts.history("a")) == [(1, "created", 1)]


def test_the_history_says_which_key_wrote_and_by_which_request(accounts):
    with write_as("key7", "req9"):
        accounts.create(account(1), "a")
    accounts.delete("a")
    first, last = accounts.history("a")
    assert (first.key, first.request_id) == ("key7", "req9")
    assert (last.key, last.request_id) == (None, None)


def test_an_entity_is_read_as_it_was_at_any_instant(accounts):
    before = datetime.now(UTC) - timedelta(seconds=1)
    for balance in range(3):
        accounts.replace("a", account(balance))
    accounts.delete("a")
    for one in accounts.history("a"):
        assert accounts.at("a", one.at) == one
        earlier = accounts.at("a", one.at - timedelta(microseconds=1))
        assert (earlier.ver if earlier else 0) == one.ver - 1
    assert accounts.at("a", before) is None
    assert accounts.at("nobody", before) is None


def test_an_instant_that_the_history_does_not_reach_is_an_error_and_not_an_absence(accounts):
    accounts.create(account(1), "a")
    accounts.patch("a", {"balance": 2})
    created = accounts.history("a")[0].at
    set_retention(accounts.store, 0.0)
    assert expire_revisions(accounts.store) == 2
    with pytest.raises(NotFound, match="does not reach back"):
        accounts.at("a", created)
    with pytest.raises(NotFound, match="does not reach back"):
        accounts.at("nobody", created)


def test_two_versions_differ_by_what_was_changed(accounts):
    accounts.create(account(1, owner="Ada", note=None), "a")
    accounts.replace("a", account(2, owner="Ada", limit="3.00"))
    accounts.delete("a")
    found = accounts.diff("a", 1, 2)
    assert sorted(found, key=lambda one: one.pointer) == [
        PropertyChange("/balance", 1, 2),
        PropertyChange("/limit", None, "3.00", is_added=True),
        PropertyChange("/note", None, None, is_removed=True),
    ]
    gone = accounts.diff("a", 2, 3)
    assert {one.pointer for one in gone} == {"/balance", "/owner", "/limit"}
    with pytest.raises(NotFound, match="no such version"):
        accounts.diff("a", 1, 9)


def test_differences_go_into_objects_and_take_a_list_as_one_value():
    old = {"a": {"b/c": 1, "~": 2}, "list": [1]}
    new = {"a": {"b/c": 2, "~": 2}, "list": [1, 2]}
    assert [one.pointer for one in differences(old, new)] == ["/a/b~1c", "/list"]
    assert differences(old, old) == []


def test_only_the_retention_of_a_type_removes_changes_and_the_entity_stays(accounts):
    accounts.create(account(1), "a")
    accounts.patch("a", {"balance": 2})
    accounts.export()
    assert len(accounts.history("a")) == 2
    assert accounts.keep_history("2w") == 14 * 86_400.0
    set_retention(accounts.store, 0.0)
    accounts.patch("a", {"balance": 3})
    accounts.export()  # every export expires
    assert accounts.read("a").document["balance"] == 3
    # What the exports carried is in the lake's versions until a vacuum.
    assert [one.op for one in accounts.history("a")] == [None, None]
    assert accounts.keep_history(None) == 30 * 86_400.0


def test_a_key_that_was_evicted_and_comes_back_has_its_whole_history(accounts):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.evict(datetime.now(UTC) + timedelta(hours=1))
    accounts.patch("a", {"balance": 2})
    assert told(accounts.history("a")) == [(1, "created", 1), (2, "updated", 2)]


def test_a_property_that_gets_a_column_later_is_in_old_revisions(accounts, entity_types):
    accounts.create(account(1, note="n", limit="2.50"), "a")
    hot = {name: {**one, "x-hot": True} for name, one in ACCOUNT["properties"].items()}
    opened = entity_types.register("account", {**ACCOUNT, "properties": hot})
    opened.patch("a", {"limit": "3.50"})
    assert [one.document for one in opened.history("a")] == [
        {"balance": 1, "note": "n", "limit": "2.50"},
        {"balance": 1, "note": "n", "limit": "3.50"},
    ]


def test_a_purge_leaves_no_change_of_a_key_and_no_remembered_answer(accounts):
    accounts.create(account(1), "a", idempotency_key="k-a")
    accounts.create(account(1), "b", idempotency_key="k-b")
    accounts.delete("a")
    accounts.export()
    assert count_traces(accounts.store, ["a"]) == 3
    assert purge(accounts.store, ["a"]).revisions == 2
    assert count_traces(accounts.store, ["a"]) == 0
    query = "select request from write_request"
    found = accounts.store.pool.run(accounts.store.tenant, lambda c: c.execute(query).fetchall())
    assert found == [("k-b",)]
    assert told(accounts.history("b")) == [(1, "created", 1)]


def test_changes_that_left_a_value_are_purged_where_the_value_is_gone_now(accounts):
    for owner in ("Ada", "Bob"):
        accounts.replace("a", account(1, owner=owner, note=owner))
    assert purge_value(accounts.store, "owner", "Ada") == 1
    assert purge_value(accounts.store, "note", "Bob") == 1
    assert len(changes(accounts.store)) == 2
