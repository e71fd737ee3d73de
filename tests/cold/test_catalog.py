"""The small files of a lake that say what belongs to what: damaged, missing, swapped, another's."""

import shutil
from datetime import UTC, datetime, timedelta

import orjson
import pytest

import thermocline as tc
from thermocline.cold.catalog import Catalog
from thermocline.errors import Corruption, Invalid, Unsupported
from thermocline.format.sealed_json import seal, unseal
from thermocline.node import Node, set_aside_frames

START = datetime(2024, 6, 1, tzinfo=UTC)


def rows(count, start=0):
    return [{"ts": START + timedelta(hours=start + n), "n": start + n} for n in range(count)]


@pytest.fixture
def root(tmp_path):
    """A lake with two tables and a tenant, each with flushed rows and rows in the journal."""
    root = tmp_path / "lake"
    with Node(str(root)) as node:
        node.create_tenant("acme")
        for lake, name in ((node.lake(), "A"), (node.lake(), "b"), (node.lake("acme"), "c")):
            table = lake.create_table(name, time_column="ts", bucket="1h")
            table.write(rows(3))
        node.flush()
        for lake, name in ((node.lake(), "a"), (node.lake(), "b"), (node.lake("acme"), "c")):
            lake.table(name).write(rows(2, start=3))
        node.close(flush=False)
    return root


def count(root, name="a", tenant="default"):
    with Node(str(root)) as node:
        answer = node.lake(tenant).sql(f"select count(*) as n from {name}")
        node.close(flush=False)
        return answer.to_pylist()[0]["n"]


def refused(root, path=None, **how):
    """Return the error with which a node refuses to open a lake, naming this file."""
    with pytest.raises(Corruption) as raised:
        Node(str(root), **how)
    if path is not None:
        assert str(path) in str(raised.value.facts["path"])
    assert raised.value.hint
    return raised.value


def unsealed(path):
    """Write a file as releases before the checksum wrote it."""
    fields = unseal(path.read_bytes(), str(path))
    if path.name != "lake.json":
        del fields["lake_id"]
    path.write_bytes(orjson.dumps(fields))


SMALL = ["lake.json", "names/a.json", "names/b.json", "tenants/names/acme.json"]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("is_read_only", [False, True])
def test_D05_D08_a_flipped_byte_of_a_small_file_refuses_the_lake(root, name, is_read_only):
    path = root / name
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refused(root, name, is_read_only=is_read_only)
    path.write_bytes(whole)
    assert count(root) == count(root, "b") == count(root, "c", "acme") == 5


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("kept", [0, 1, 20, -1])
def test_D05_D08_a_small_file_that_was_cut_refuses_the_lake(root, name, kept):
    path = root / name
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    refused(root, name)
    refused(root, name, is_read_only=True)
    path.write_bytes(whole)
    assert count(root) == 5


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("is_read_only", [False, True])
def test_D05_D08_a_small_file_that_was_deleted_refuses_the_lake(root, name, is_read_only):
    path = root / name
    whole = path.read_bytes()
    path.unlink()
    refused(root, is_read_only=is_read_only)
    assert not list(root.glob("journal/quarantine/*")), "acknowledged rows were set aside"
    path.write_bytes(whole)
    assert count(root) == count(root, "b") == count(root, "c", "acme") == 5


def test_D05_a_deleted_name_whose_rows_are_all_in_the_journal_refuses_the_start(tmp_path):
    root = tmp_path / "lake"
    with Node(str(root)) as node:
        node.lake().create_table("a", time_column="ts", bucket="1h").write(rows(4))
        node.close(flush=False)
    (root / "names" / "a.json").rename(tmp_path / "a.json")
    assert "names/" in refused(root).hint
    assert "--set-aside" in refused(root).hint
    (tmp_path / "a.json").rename(root / "names" / "a.json")
    assert count(root) == 4


def test_D05_rows_of_a_table_without_a_name_are_set_aside_when_a_person_says_so(tmp_path):
    root = tmp_path / "lake"
    with Node(str(root)) as node:
        node.lake().create_table("a", time_column="ts", bucket="1h").write(rows(4))
        node.lake().create_table("b", time_column="ts", bucket="1h").write(rows(2))
        node.close(flush=False)
    folder = root / Catalog(str(root)).find_entry("a").folder
    (root / "names" / "a.json").rename(tmp_path / "a.json")
    with pytest.raises(Corruption, match="no name"):
        set_aside_frames(str(root), dry_run=False)
    folder.rename(tmp_path / "folder")
    assert len(set_aside_frames(str(root), dry_run=True)) == 1
    assert "--set-aside" in refused(root).hint
    assert len(set_aside_frames(str(root), dry_run=False)) == 1
    assert count(root, "b") == 2
    (tmp_path / "folder").rename(folder)
    (tmp_path / "a.json").rename(root / "names" / "a.json")
    assert count(root) == 4, "the journal still had its rows"


def test_D05_two_names_that_were_swapped_refuse_the_lake(root, tmp_path):
    first, second = root / "names" / "a.json", root / "names" / "b.json"
    for is_unsealed in (False, True):
        if is_unsealed:
            unsealed(first), unsealed(second)
        one, two = first.read_bytes(), second.read_bytes()
        first.write_bytes(two)
        second.write_bytes(one)
        refused(root, "names/")
        refused(root, "names/", is_read_only=True)
        first.write_bytes(one)
        second.write_bytes(two)
        assert count(root) == count(root, "b") == 5


def test_D05_a_name_that_leads_to_another_table_is_refused_when_it_is_opened(root):
    first, second = root / "names" / "a.json", root / "names" / "b.json"
    one, two = (unseal(path.read_bytes(), str(path)) for path in (first, second))
    first.write_bytes(seal({**one, "folder": two["folder"]}))
    second.write_bytes(seal({**two, "folder": one["folder"]}))
    refused(root, "names/")
    with Node(str(root), is_read_only=True) as node, pytest.raises(Corruption) as raised:
        node.lake().sql("select count(*) from a")
    assert "names/a.json" in raised.value.facts["path"]


def test_D05_a_folder_that_was_swapped_with_its_neighbour_is_noticed(root):
    folders = sorted((root / "tables").iterdir())
    folders[0].rename(root / "elsewhere")
    folders[1].rename(folders[0])
    (root / "elsewhere").rename(folders[1])
    refused(root, "names/")


def test_D05_a_name_whose_table_is_gone_is_refused(root, tmp_path):
    named = Catalog(str(root)).find_entry("a")
    (root / named.folder).rename(tmp_path / "gone")
    refused(root, "names/a.json")
    with pytest.raises(Corruption, match="without a table"):
        Catalog(str(root), is_read_only=True).table("a")


def test_D08_the_names_of_another_lake_and_of_another_tenant_are_refused(root, tmp_path):
    other = tmp_path / "other"
    with Node(str(other)) as node:
        node.create_tenant("acme")
        node.lake().create_table("a", time_column="ts", bucket="1h")
    for name in ("names/a.json", "tenants/names/acme.json"):
        whole = (root / name).read_bytes()
        shutil.copy(other / name, root / name)
        assert "another lake" in refused(root, name).message
        (root / name).write_bytes(whole)
    (tenant,) = root.glob("tenants/*/names")
    shutil.copy(root / "names" / "b.json", tenant / "b.json")
    refused(root, "names/b.json")


def test_D08_another_lakes_identity_is_refused(root, tmp_path):
    with Node(str(tmp_path / "other")):
        pass
    shutil.copy(tmp_path / "other" / "lake.json", root / "lake.json")
    refused(root, "lake.json")
    refused(root, "lake.json", is_read_only=True)


def test_D08_a_lake_that_lost_its_identity_is_not_made_into_a_new_one(root):
    (root / "lake.json").unlink()
    assert "restore lake.json" in refused(root, "lake.json").hint
    with pytest.raises(Corruption):
        Catalog(str(root)).identity()


def test_files_of_older_releases_are_read_and_compared(root):
    for name in SMALL:
        unsealed(root / name)
    assert count(root) == count(root, "b") == count(root, "c", "acme") == 5
    path = root / "names" / "a.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = count(root)
        except Corruption:
            continue
        assert found == 5, f"byte {place}"  # the case of a letter of its name, nothing else


def test_a_newer_format_is_refused_by_name(root):
    path = root / "lake.json"
    fields = unseal(path.read_bytes(), str(path))
    path.write_bytes(seal({**fields, "format": 3}))
    with pytest.raises(Unsupported, match="newer"):
        Node(str(root))


def test_what_a_crash_leaves_while_a_table_is_made_does_no_harm(root):
    catalog = Catalog(str(root))
    catalog.create("later", catalog.table("a").state().spec)
    (root / "names" / "later.json").unlink()
    (root / "tables" / ("0" * 32) / "_log").mkdir(parents=True)
    assert count(root) == 5
    with tc.connect(root) as lake:
        lake.create_table("later", time_column="ts", bucket="1h").write(rows(1))


def test_a_folder_of_other_things_is_still_not_a_lake(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Invalid, match="not a lake"):
        Catalog(str(tmp_path)).identity()
