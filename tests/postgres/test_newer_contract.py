"""A contract that is newer than what a process knows: read exactly, by everyone, at any moment."""

from copy import deepcopy

from postgres.entity_verbs import ACCOUNT, account, accounts, another, balances, entity_types
from thermocline.entity import type as type_room

__all__ = ["accounts", "another", "entity_types"]

NEWER = deepcopy(ACCOUNT)
NEWER["properties"]["city"] = {"type": "string"}


def test_another_process_reads_and_exports_after_a_newer_contract(accounts, another, entity_types):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.create(account(2), "b")
    other = another()
    assert balances(other) == {"a": 1, "b": 2}
    entity_types.register("account", NEWER)
    assert balances(other) == {"a": 1, "b": 2}
    assert other.store.layout.contract.version == 2, "it reads by the newest contract"
    assert other.scan(["city"]).rows.column("city").to_pylist() == [None, None]
    assert other.export().keys == 1
    assert balances(accounts) == {"a": 1, "b": 2}


def test_what_sql_reads_while_a_contract_is_registered_is_known_to_the_log(
    accounts, another, entity_types, monkeypatch
):
    accounts.create(account(1), "a")
    accounts.export()
    accounts.create(account(2), "b")
    other = another()
    fit_table = type_room.fit_table
    seen = []

    def looked_at(table, contract):
        for entities in (accounts, other):
            snapshot = entities.snapshot()
            known = entities.table.state(int(snapshot.pairing.version)).schemas
            seen.extend(part.schema_id in known for part in snapshot.parts)
        return fit_table(table, contract)

    monkeypatch.setattr(type_room, "fit_table", looked_at)
    entity_types.register("account", NEWER)
    assert seen
    assert all(seen)
