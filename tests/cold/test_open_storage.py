"""From what a user writes to the storage behind it."""

from pathlib import Path

import pytest

from fixtures.lake import closes, rows, spec
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid


@pytest.mark.parametrize("write", [str, Path, lambda path: f"file://{path}"])
def test_a_folder_is_a_folder_however_it_is_written(tmp_path, write):
    folder = tmp_path / "my prices"
    storage = open_storage(write(folder))
    assert isinstance(storage, LocalStorage)
    assert storage.root == str(folder)


def test_a_file_address_may_be_escaped(tmp_path):
    assert open_storage(f"file://{tmp_path}/my%20prices").root == f"{tmp_path}/my prices"


def test_memory_is_one_store_for_the_whole_process(tmp_path):
    root, options = f"memory://{tmp_path.name}/prices", {"cache_folder": str(tmp_path)}
    table = ColdTable(open_storage(root, options))
    table.create(spec())
    (segment,) = table.append(rows([1, 2]).to_reader(), AppendOptions()).segments
    again = open_storage(f"{root}/", options)
    assert again.root == root
    assert closes(ColdTable(again)) == [1.0, 2.0]
    assert again.locate(segment.path, segment.file_size, segment.checksum).startswith(str(tmp_path))
    assert list(open_storage(f"memory://{tmp_path.name}/other").list("")) == []


@pytest.mark.parametrize(
    "root",
    [
        "ftp://host/prices",
        "file://elsewhere/prices",
        "file://",
        "s3://key:s3cr3t@bucket/prices",
        "s3://bucket/prices?token=s3cr3t",
        "s3://",
        "az://container/prices",
    ],
)
def test_what_is_no_place_for_a_table_is_refused_without_showing_a_secret(root, monkeypatch):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Invalid) as raised:
        open_storage(root)
    assert "s3cr3t" not in str(raised.value)


def test_options_are_checked_by_name_and_never_shown():
    for root, options in [
        ("prices", {"region": "s3cr3t"}),
        ("s3://bucket/prices", {"no_such_option": "s3cr3t"}),
        ("s3://bucket/prices", {"cache_bytes_max": "many"}),
    ]:
        with pytest.raises(Invalid, match=next(iter(options))) as raised:
            open_storage(root, options)
        assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    ("root", "options"),
    [
        (
            "s3://bucket/prices/",
            {"region": "eu-north-1", "access_key_id": "k", "secret_access_key": "s"},
        ),
        ("gs://bucket/prices", {}),
        ("az://container/prices", {"account_name": "me", "account_key": "bWU="}),
    ],
)
def test_a_store_is_opened_without_asking_it_anything(root, options):
    assert open_storage(root, options).root == root.rstrip("/")
