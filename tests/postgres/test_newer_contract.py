"""A contract that is newer than what a process knows: read exactly, by everyone, at any moment."""

from copy import deepcopy

from postgres.entity_verbs import ACCOUNT, account, accounts, another, balances, entity_types
from thermocline.entity import types as type_room

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


def test_an_export_frozen_before_a_contract_never_takes_its_columns_back(entity_types):
    free = {**deepcopy(ACCOUNT), "x-compatibility": "none"}
    accounts = entity_types.register("account", free)
    accounts.create(account(1, note="kept"), "a")
    renamed = deepcopy(free)
    ids = {column.name: column.id for column in accounts.store.layout.contract.columns}
    renamed["properties"]["remark"] = {**renamed["properties"].pop("note"), "x-id": ids["note"]}
    freeze = accounts.source.freeze

    def frozen_before():
        accounts.source.freeze = freeze
        frozen = freeze()
        entity_types.register("account", renamed)
        return frozen

    accounts.source.freeze = frozen_before
    accounts.export()
    table = accounts.table
    newest = int(table.state().version)
    names = [{c.name for c in table.state(n).schema.columns} for n in range(1, newest + 1)]
    assert "note" in names[0] or "note" in names[1]
    first = next(place for place, found in enumerate(names) if "remark" in found)
    assert not [found for found in names[first:] if "note" in found], "a column got its old name"
    assert accounts.scan(["_id", "remark"]).rows.to_pylist() == [{"_id": "a", "remark": "kept"}]
    accounts.export()
    (cold,) = (row for batch in table.read(table.state(), ["remark"]) for row in batch.to_pylist())
    assert cold == {"remark": "kept"}
