"""The small files of a lake with a checksum, frozen: read, and written to the same bytes."""

from pathlib import Path

from thermocline.cold.catalog import Catalog, CatalogEntry, LakeIdentity
from thermocline.cold.dropped import dropped_path, encode_dropped
from thermocline.cold.tenants import TenantCatalog
from thermocline.disk import OsDisk
from thermocline.format.sealed_json import seal, unseal

FOLDER = Path(__file__).parent / "lake"
VERBS = Path(__file__).parent / "lake_verbs"


def test_the_frozen_files_of_a_lake_are_read():
    catalog = Catalog(str(FOLDER), is_read_only=True)
    assert catalog.identity() == LakeIdentity(
        "1a4e0000000000000000000000000001", "70000000000000000000000000000001"
    )
    assert list(catalog) == [
        CatalogEntry(
            "Metrics",
            "7ab1e000000000000000000000000001",
            "tables/f01de700000000000000000000000001",
        )
    ]
    folder = "tenants/7e4a4700000000000000000000000001"
    assert TenantCatalog(str(FOLDER), OsDisk()).folder("acme") == folder


def test_the_frozen_files_of_a_lake_are_written_to_the_same_bytes():
    for path in FOLDER.rglob("*.json"):
        data = path.read_bytes()
        assert seal(unseal(data, str(path))) == data, path


def test_the_frozen_files_of_renamed_and_dropped_tables_are_read():
    catalog = Catalog(str(VERBS), is_read_only=True)
    assert [(one.name, one.table_id[-1], one.renamed_to) for one in catalog] == [
        ("Points", "1", ""),  # its old name leads to it, and is no name any more
        ("waiting", "2", "never"),  # its new name was not made
    ]
    assert [(one.name, one.dropped_ns, one.is_purged) for one in catalog.dropped_files()] == [
        ("old", 1_717_243_200_000_000_000, False),
        ("gone", 1_717_243_200_000_000_000, True),
    ]
    assert [one.name for one in catalog.list_dropped()] == ["old"]


def test_the_frozen_files_of_dropped_tables_are_written_to_the_same_bytes():
    for dropped in Catalog(str(VERBS), is_read_only=True).dropped_files():
        data = (VERBS / dropped_path(dropped.table_id)).read_bytes()
        assert encode_dropped(dropped, "1a4e0000000000000000000000000001") == data
