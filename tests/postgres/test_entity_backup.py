"""Entities in a backup: all that PostgreSQL and the lake had at one moment, nothing after it."""

import shutil

import pytest

from fixtures.entities import database
from postgres.test_lake import ACCOUNT, settings
from thermocline.backup.backup import backup, restore
from thermocline.backup.entity_copy import copy_entities
from thermocline.errors import Conflict, Corruption
from thermocline.hot.postgres.export import dump as dump_room
from thermocline.node import open_lake

SALE = {
    "type": "object",
    "properties": {"day": {"type": "string", "format": "date"}, "note": {"type": "string"}},
}


@pytest.fixture
def other_dsn(postgres_server):
    """Another empty database."""
    with database(postgres_server) as dsn:
        yield dsn


@pytest.fixture
def lake(tmp_path, postgres_dsn):
    """A lake with entities hot, cold, changed, deleted and created again."""
    with open_lake(tmp_path / "lake", settings(postgres_dsn)) as lake:
        accounts = lake.register("account", ACCOUNT)
        for key in "abc":
            accounts.create({"owner": f"{key}\t\\\n", "cents": 1, "paid": "1.50"}, key)
        lake.flush("account")
        accounts.patch("a", {"cents": 2})
        accounts.delete("b")
        accounts.create({"owner": "d", "cents": 4}, "d")
        accounts.delete("d")
        lake.register("sale", SALE).create({"day": "2026-01-01", "note": "é"}, "s")
        yield lake
        lake.close(flush=False)


def documents(lake):
    return {
        name: {
            entity.id: (entity.ver, entity.document) for entity in lake.entity(name).page().entities
        }
        for name in lake.entities.names()
    }


def rows(lake):
    return lake.sql("select _id, _ver, cents from account order by 1").to_pylist()


def copied(lake, dsn, target, after=lambda: None):
    """Make a backup of a lake; something may happen as soon as PostgreSQL was read."""

    def entities(put):
        heads = copy_entities(settings(dsn), lake.root(), put)
        after()
        return heads

    return backup(lake.root(), str(target), entities=entities)


@pytest.mark.parametrize("target", ["copy", "copy.tar.gz"])
def test_O15_what_was_committed_when_the_copy_began_comes_back_whole(
    lake, postgres_dsn, other_dsn, tmp_path, monkeypatch, target
):
    monkeypatch.setattr(dump_room, "PART_BYTES", 32)
    before, read = documents(lake), rows(lake)

    def later():
        lake.entity("account").create({"owner": "late", "cents": 9}, "late")
        lake.flush()
        lake.entity("account").patch("a", {"cents": 9})

    copied(lake, postgres_dsn, tmp_path / target, later)
    restore(str(tmp_path / target), str(tmp_path / "back"))
    with open_lake(tmp_path / "back", settings(other_dsn)) as back:
        assert documents(back) == before
        assert rows(back) == read
        accounts = back.entity("account")
        assert accounts.create({"owner": "b", "cents": 1}, "b").ver == 3, "it was deleted at 2"
        assert accounts.export().keys == 3
        assert [row["_ver"] for row in rows(back)] == [2, 3, 1]
        assert [one.ver for one in accounts.history("a")] == [1, 2]
        assert back.register("sale", {**SALE, "description": "x"}).layout.contract.version == 2
        assert back.register("third", SALE).create({}).ver == 1
        assert not list((tmp_path / "back" / "entities" / "default").iterdir())


def test_a_load_that_died_before_its_files_were_removed_is_finished(
    lake, postgres_dsn, other_dsn, tmp_path
):
    copied(lake, postgres_dsn, tmp_path / "copy")
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    files = tmp_path / "back" / "entities"
    shutil.copytree(files, tmp_path / "left")
    with open_lake(tmp_path / "back", settings(other_dsn)) as back:
        back.entity("account").patch("a", {"cents": 7})
        back.close(flush=False)
    shutil.copytree(tmp_path / "left", files, dirs_exist_ok=True)
    with open_lake(tmp_path / "back", settings(other_dsn)) as back:
        assert back.entity("account").read("a").document["cents"] == 7
        assert not list((files / "default").iterdir())


def test_a_postgres_that_has_other_entities_is_not_loaded_over(
    lake, postgres_dsn, other_dsn, tmp_path
):
    with open_lake(tmp_path / "another", settings(other_dsn)) as another:
        another.register("account", ACCOUNT).create({"owner": "x", "cents": 1}, "x")
        another.close(flush=False)
    copied(lake, postgres_dsn, tmp_path / "copy")
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    with open_lake(tmp_path / "back", settings(other_dsn)) as back:
        with pytest.raises(Conflict, match="other entities"):
            back.entity("account")
        back.close(flush=False)
    with open_lake(tmp_path / "another", settings(other_dsn)) as another:
        assert another.entity("account").read("x") is not None


@pytest.mark.parametrize("damage", [b'{"tables": []}', b"{", b"[]", b""])
def test_a_dump_that_cannot_be_read_is_refused_and_loads_nothing(
    lake, postgres_dsn, other_dsn, tmp_path, damage
):
    copied(lake, postgres_dsn, tmp_path / "copy")
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    dumped = tmp_path / "back" / "entities" / "default" / "dump.json"
    data = dumped.read_bytes()
    dumped.write_bytes(damage)
    check_refused(lake, tmp_path / "back", other_dsn, dumped, data)


@pytest.mark.parametrize("way", ["flipped", "cut", "deleted", "swapped"])
@pytest.mark.parametrize("name", ["dump.json", "type_version.000000.copy", "change.000000.copy"])
def test_D01_D03_restored_entities_that_are_damaged_are_refused_by_name(
    lake, postgres_dsn, other_dsn, tmp_path, way, name
):
    copied(lake, postgres_dsn, tmp_path / "copy")
    restore(str(tmp_path / "copy"), str(tmp_path / "back"))
    path = tmp_path / "back" / "entities" / "default" / name
    data = path.read_bytes()
    match way:
        case "flipped":
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "deleted":
            path.unlink()
        case "swapped":
            path.write_bytes((path.parent / "store.000000.copy").read_bytes())
    check_refused(lake, tmp_path / "back", other_dsn, path, data)


def check_refused(lake, root, dsn, path, data):
    """Check that a damaged file is named, that nothing was loaded, and that the file heals it."""
    with open_lake(root, settings(dsn)) as back:
        with pytest.raises(Corruption) as caught:
            back.entity("account")
        assert caught.value.facts["path"] == str(path)
        path.write_bytes(data)
        assert documents(back) == documents(lake)
