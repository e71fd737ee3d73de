"""The small files of a lake with a checksum, frozen: read, and written to the same bytes."""

from pathlib import Path

from thermocline.cold.catalog import Catalog, CatalogEntry, LakeIdentity
from thermocline.cold.tenants import TenantCatalog
from thermocline.disk import OsDisk
from thermocline.format.sealed_json import seal, unseal

FOLDER = Path(__file__).parent / "lake"


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
