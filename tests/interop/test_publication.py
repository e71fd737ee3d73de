"""Publishing: only what is new is written, and nothing that happens beside it breaks a reader."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from fixtures.lake import closes, rows
from interop.readers import comparable, open_static, read_pyiceberg
from thermocline.errors import Corruption, Invalid, Unsupported
from thermocline.iceberg import publication
from thermocline.iceberg.publish import open_published, publish
from thermocline.table import TimeSeriesTable

HOUR_S = 3_600


@pytest.fixture
def prices(make):
    """A table of prices in microseconds of UTC, which Iceberg shows."""
    table = make(entity_columns=["symbol"])
    for hour in range(3):
        table.append(rows([hour]))
    return table


def metadata_files(table):
    return {path.name for path in Path(table.root(), "metadata").iterdir()}


def is_equal(table, done):
    return comparable(read_pyiceberg(open_static(done.location))) == comparable(table.to_arrow())


def test_an_append_costs_one_manifest_one_list_and_one_metadata_file(prices):
    publish(prices)
    before = metadata_files(prices)
    prices.append(rows([3]))
    publish(prices)
    kinds = sorted(name.split("-")[0].lstrip("v") for name in metadata_files(prices) - before)
    assert kinds == ["5.metadata.json", "manifest", "snap"]


def test_publishing_again_without_a_commit_writes_nothing(prices):
    first = publish(prices)
    before = metadata_files(prices)
    assert publish(prices).metadata == first.metadata
    assert metadata_files(prices) == before


def test_publishing_step_by_step_gives_the_rows_of_publishing_at_once(prices):
    kept = open_published(prices.cold)
    for hour in range(3, 9):
        prices.append(rows([hour]))
        prices.delete(start=f"2024-06-01T0{hour - 1}:00:00Z", end=f"2024-06-01T0{hour}:00:00Z")
        assert is_equal(prices, kept.publish(HOUR_S))
    assert is_equal(prices, publish(prices))


def test_many_small_manifests_are_merged(prices, monkeypatch):
    monkeypatch.setattr("thermocline.iceberg.manifests.MANIFESTS_MAX", 4)
    kept = open_published(prices.cold)
    for hour in range(3, 15):
        prices.append(rows([hour]))
        assert is_equal(prices, kept.publish(HOUR_S))
    chain = kept._chain
    assert len(chain.manifests) <= 4


def test_old_snapshots_are_forgotten_and_what_only_they_named_is_removed(prices, monkeypatch):
    monkeypatch.setattr(publication, "SNAPSHOTS_KEPT", 3)
    monkeypatch.setattr(publication, "SNAPSHOT_AGE_S", 0)
    monkeypatch.setattr(publication, "SWEEP_EVERY_VERSIONS", 1)
    monkeypatch.setattr(publication, "SWEEP_AGE_S", -HOUR_S)
    kept = open_published(prices.cold)
    for hour in range(3, 9):
        prices.append(rows([hour]))
        done = kept.publish(HOUR_S)
    assert [one["snapshot-id"] for one in done.metadata["snapshots"]] == [8, 9, 10]
    found = metadata_files(prices)
    assert {name for name in found if name.startswith("v1.")} == set()
    assert sum(name.startswith("snap-") for name in found) == 3
    assert is_equal(prices, done)


def test_a_vacuum_keeps_what_is_published_and_the_metadata(prices):
    done = publish(prices)
    prices.append(rows([0, 1, 2], close=7.0), overlap="replace")
    old = time.time() - 30 * 86_400
    for path in Path(prices.root()).rglob("*.*"):
        if "_pins" not in str(path):
            os.utime(path, (old, old))
    prices.vacuum(dry_run=False, grace="0s", allow_short_grace=True)
    theirs = read_pyiceberg(open_static(done.location))
    assert sorted(theirs["close"].to_pylist()) == closes(prices.cold, 4) == [0.0, 1.0, 2.0]


def test_versions_that_have_expired_are_no_snapshots(prices):
    publish(prices, lease_s=1)
    prices.append(rows([0, 1, 2], close=7.0), overlap="replace")
    publish(prices, lease_s=1)
    old = time.time() - 30 * 86_400
    for path in Path(prices.root()).rglob("*.*"):
        os.utime(path, (old, old))
    shutil.rmtree(Path(prices.root(), "_pins"))
    prices.vacuum(dry_run=False, grace="0s", allow_short_grace=True)
    done = publish(prices)
    oldest = prices.cold.log.head().oldest
    assert oldest > 1
    assert done.metadata["snapshots"][0]["snapshot-id"] >= oldest
    for one in done.metadata["snapshots"]:
        read_pyiceberg(open_static(done.location), one["snapshot-id"])


def test_a_folder_that_was_moved_is_published_with_its_new_addresses(prices, tmp_path):
    publish(prices)
    shutil.move(prices.root(), tmp_path / "moved")
    moved = TimeSeriesTable.open(tmp_path / "moved")
    done = publish(moved)
    assert str(tmp_path / "moved") in done.location
    assert is_equal(moved, done)


def test_two_publishers_at_once_are_both_right(prices):
    with ThreadPoolExecutor(2) as pool:
        for hour in range(3, 8):
            prices.append(rows([hour]))
            done = list(pool.map(lambda _: publish(prices), range(2)))
            assert all(is_equal(prices, one) for one in done)


def test_damaged_metadata_is_an_error_that_names_it(prices):
    publish(prices)
    path = Path(prices.root(), "metadata", "v4.metadata.json")
    path.write_bytes(path.read_bytes()[:100])
    prices.append(rows([3]))
    with pytest.raises(Corruption) as found:
        publish(prices)
    assert found.value.facts["path"] == "metadata/v4.metadata.json"


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["manifest-*", "snap-*", "deletes-*", "v*.metadata.json"])
def test_D01_a_flipped_bit_in_metadata_is_never_built_on(prices, kind):
    prices.delete("close = 1")
    publish(prices)
    for path in sorted(Path(prices.root(), "metadata").glob(kind)):
        for offset in range(0, path.stat().st_size, path.stat().st_size // 5):
            before = path.read_bytes()
            key_at = before.find(b"thermocline.digest")
            if 0 <= offset - key_at < 18:
                continue  # without it, this is metadata of an older release
            flip(path, offset)
            with pytest.raises(Corruption) as found:
                publish(prices)
            assert found.value.facts["path"] == f"metadata/{path.name}"
            path.write_bytes(before)
    assert is_equal(prices, publish(prices))


def test_D02_bounds_are_taken_from_no_damaged_segment(prices):
    for path in Path(prices.root(), "data").rglob("*.parquet"):
        flip(path, path.stat().st_size - 100)  # in the footer, which stays readable
    with pytest.raises(Corruption, match="not those that were committed"):
        publish(prices)


def test_metadata_of_an_older_release_is_rendered_again(prices):
    done = publish(prices)
    path = Path(prices.root(), done.path)
    older = orjson.loads(path.read_bytes())
    del older["properties"]["thermocline.digest"]
    path.write_bytes(orjson.dumps({**older, "snapshots": older["snapshots"][-1:]}))
    again = publish(prices)
    assert len(again.metadata["snapshots"]) == len(done.metadata["snapshots"])
    assert is_equal(prices, again)


def test_a_table_without_columns_is_refused_and_a_lease_is_positive(make):
    table = make()
    with pytest.raises(Unsupported, match="without columns"):
        publish(table)
    with pytest.raises(Invalid, match="lease"):
        publish(table, lease_s=0)


def test_bounds_let_a_reader_skip_files(prices):
    done = publish(prices)
    opened = open_static(done.location)
    assert len(list(opened.scan(row_filter="close > 1.5").plan_files())) == 1
    assert len(list(opened.scan(row_filter="symbol = 'AAPL'").plan_files())) == 0
    assert opened.scan(row_filter="close > 1.5").to_arrow()["close"].to_pylist() == [2.0]


def test_a_value_that_is_not_a_number_is_never_skipped(make):
    table = make()
    data = rows([0, 1]).drop_columns(["symbol"])
    nan = data.set_column(1, "close", pa.array([1.0, float("nan")]))
    table.append(nan)
    opened = open_static(publish(table).location)
    assert len(list(opened.scan(row_filter="close > 5").plan_files())) == 1


def test_the_metadata_is_json_that_says_which_version_is_newest(prices):
    done = publish(prices)
    folder = Path(prices.root(), "metadata")
    assert (folder / "version-hint.text").read_text() == "4"
    said = orjson.loads((folder / "v4.metadata.json").read_bytes())
    assert said == done.metadata
    assert said["current-snapshot-id"] == 4
