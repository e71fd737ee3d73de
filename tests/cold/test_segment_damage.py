"""Damaged segments: every reader names the file, and no reader answers from it."""

import logging
import os
import random
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from fixtures.lake import JUNE_US, closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from fixtures.timing import wait_until
from thermocline import Session, TimeSeriesTable
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.storage.cache import ObjectCache
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.storage.objects import READ_WHOLE_BYTES_MAX, ObjectStorage
from thermocline.cold.storage.verified import UNSETTLED_NS, checksum_text
from thermocline.cold.table import ColdTable
from thermocline.disk import OsDisk
from thermocline.errors import Corruption, NotFound, Unsupported
from thermocline.query.worker.pool import QueryPool, TableRef

COUNT = 600
MINUTE = timedelta(minutes=1)
START = datetime(2024, 6, 1, tzinfo=UTC)


class CountingDisk(OsDisk):
    """The disk of this machine, which knows how often each file was read to check it."""

    def __init__(self):
        self.checked = []

    def open_reader(self, path):
        self.checked.append(path)
        return super().open_reader(path)


def many_types():
    """Return rows of several types, enough for several pages and row groups of each column."""
    numbers = range(COUNT)
    return pa.table(
        {
            "ts": pa.array([START + n * MINUTE for n in numbers], pa.timestamp("us", "UTC")),
            "symbol": [("NVDA", "AMD", "INTC")[n % 3] for n in numbers],
            "close": [n / 7 for n in numbers],
            "volume": pa.array([n * n for n in numbers], pa.int64()),
            "note": [f"row {n * 7919 % 1000}" for n in numbers],
            "is_open": [n % 5 == 0 for n in numbers],
            "price": pa.array([Decimal(n) / 100 for n in numbers], pa.decimal128(12, 2)),
            "tags": [[f"t{n % 4}", "x"] for n in numbers],
        }
    )


@pytest.fixture
def prices(tmp_path):
    """A table of one file whose columns have several pages, copied byte for byte."""
    source = tmp_path / "incoming.parquet"
    pq.write_table(
        many_types(),
        source,
        row_group_size=COUNT // 2,
        data_page_size=256,
        write_batch_size=64,
        compression="none",
        write_page_checksum=True,
    )
    table = TimeSeriesTable.create(
        tmp_path / "prices", time_column="ts", bucket="1h", entity_columns=["symbol"]
    )
    table.append_parquet(source)
    return table


def segment_file(table):
    (segment,) = table.cold.state().segments
    return Path(table.root()) / segment.path


def flip(path, offset, bit=0):
    """Flip one bit of a file in place."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def settled(path):
    """Wait until a file is old enough to be remembered."""
    wait_until(lambda: time.time_ns() - os.stat(path).st_ctime_ns > UNSETTLED_NS)


def chunks(path):
    """Return the first byte and the byte after the last of every column chunk of a file."""
    metadata = pq.ParquetFile(path).metadata
    found = []
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(place)
            first = min(chunk.data_page_offset, chunk.dictionary_page_offset or 1 << 60)
            found.append((first, first + chunk.total_compressed_size))
    return found


def readers(table):
    """Return every way of this process to take rows from a table."""
    opened = TimeSeriesTable.open(table.root())
    session = Session()
    session.register_tstable("t", opened)
    return {
        "sql": lambda: session.sql("select sum(close), max(note), count(*) from t"),
        "one column": lambda: session.sql("select max(symbol) from t"),
        "a stream": lambda: session.sql_reader("select * from t").read_all(),
        "to_arrow": opened.to_arrow,
        "scan": lambda: list(opened.scan()),
        "delete": lambda: opened.delete("volume = 1"),
        "replace": lambda: opened.append(many_types().slice(0, 2), overlap="replace"),
    }


@pytest.mark.parametrize("seed", range(4))
def test_D01_a_bit_flipped_in_any_page_is_found_by_sql_and_by_a_scan(prices, seed):
    path = segment_file(prices)
    whole = path.read_bytes()
    session = Session()
    session.register_tstable("t", TimeSeriesTable.open(prices.root()))
    chosen = random.Random(seed)
    bounds = chunks(path)
    places = [(first, chosen.randrange(first, end)) for first, end in bounds]
    places += [(None, chosen.randrange(bounds[-1][1], len(whole))) for _ in range(4)]
    for first, offset in places:
        flip(path, offset, chosen.randrange(8))
        for read in (prices.to_arrow, lambda: session.sql("select * from t")):
            with pytest.raises(Corruption) as raised:
                read()
            assert raised.value.facts["path"] in str(path)
            found = raised.value.facts.get("offset")
            assert found is None or first is None or found <= offset
        path.write_bytes(whole)
        assert session.sql("select count(ts) as n from t")["n"].to_pylist() == [COUNT]


def test_D01_the_offset_of_a_flipped_value_is_that_of_its_column_chunk(prices):
    path = segment_file(prices)
    for first, end in chunks(path):
        whole = path.read_bytes()
        flip(path, end - 3)
        with pytest.raises(Corruption) as raised:
            prices.to_arrow()
        assert raised.value.facts["offset"] == first
        path.write_bytes(whole)
    flip(path, path.stat().st_size - 1)
    with pytest.raises(Corruption) as raised:
        prices.to_arrow()
    assert raised.value.facts["offset"] >= chunks_end(whole)


def chunks_end(data):
    return max(end for _, end in chunks(pa.BufferReader(data)))


@pytest.mark.parametrize("offset", [0.1, 0.4, 0.7, 0.999])
def test_D01_every_reader_refuses_a_damaged_segment_and_changes_nothing(prices, offset):
    path, version = segment_file(prices), prices.version()
    ways = readers(prices)
    flip(path, int(path.stat().st_size * offset))
    for name, read in ways.items():
        with pytest.raises(Corruption, match="not those that were committed") as raised:
            read()
        assert raised.value.facts["path"] in str(path), name
        assert raised.value.hint
    assert prices.version() == version
    assert [f.kind for f in prices.fsck().findings if not f.is_harmless] == ["segment"]


def test_D01_gaps_that_need_a_damaged_segment_are_not_answered(prices):
    path = segment_file(prices)
    (segment,) = prices.cold.state().segments
    os.unlink(f"{prices.root()}/{segment.coverage_path}")
    for shortcut in Path(prices.root()).glob("_coverage/table/*"):
        shortcut.unlink()
    flip(path, 1000)
    with pytest.raises(Corruption, match="not those that were committed"):
        TimeSeriesTable.open(prices.root()).gaps()


def test_D01_a_warm_reader_sees_a_bit_that_is_flipped_later(prices):
    path = segment_file(prices)
    ways = readers(prices)
    settled(path)
    for name in ("sql", "one column", "a stream", "to_arrow", "scan"):
        ways[name]()
    flip(path, 1000)
    for name in ("sql", "one column", "a stream", "to_arrow", "scan"):
        with pytest.raises(Corruption):
            ways[name]()


def test_D01_a_query_worker_refuses_a_damaged_segment_and_answers_once_it_is_restored(prices):
    path = segment_file(prices)
    whole = path.read_bytes()
    tables = [TableRef("t", prices.root())]
    with QueryPool(workers=1) as pool:
        query = "select count(close) as n from t"
        assert pool.sql(query, tables=tables)["n"].to_pylist() == [COUNT]
        flip(path, 1000)
        with pytest.raises(Corruption, match="not those that were committed") as raised:
            pool.sql(query, tables=tables)
        assert raised.value.facts["path"] in str(path)
        path.write_bytes(whole)
        assert pool.sql(query, tables=tables)["n"].to_pylist() == [COUNT]


def test_T21_another_file_of_the_same_size_and_time_is_refused(prices):
    path = segment_file(prices)
    settled(path)
    ways = readers(prices)
    assert ways["sql"]().num_rows == 1
    before = path.stat()
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    flip(other, 1000)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.rename(other, path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    for read in (ways["sql"], ways["to_arrow"]):
        with pytest.raises(Corruption, match="not those that were committed"):
            read()


def test_T21_bytes_changed_in_place_under_the_same_time_are_found(prices):
    path = segment_file(prices)
    settled(path)
    ways = readers(prices)
    ways["sql"]()
    before = path.stat()
    flip(path, 1000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(Corruption):
        ways["sql"]()


def test_D06_two_swapped_segments_of_one_table_are_refused(table):
    for hour in (0, 5):
        table.append(rows([hour]))
    one, two = [Path(table.root()) / s.path for s in table.cold.state().segments]
    assert one.stat().st_size == two.stat().st_size
    kept = one.with_suffix(".kept")
    one.rename(kept)
    two.rename(one)
    kept.rename(two)
    session = Session()
    session.register_tstable("t", table)
    for read in (table.to_arrow, lambda: session.sql("select sum(close) from t")):
        with pytest.raises(Corruption, match="not those that were committed"):
            read()


def test_Q01_a_missing_segment_is_corruption_and_a_missing_table_is_not(prices):
    ways = readers(prices)
    segment_file(prices).unlink()
    for read in ways.values():
        with pytest.raises(Corruption, match="live file is missing"):
            read()
    state = prices.cold.state()
    (segment,) = state.segments
    shutil.rmtree(prices.root())
    with pytest.raises(NotFound, match="folder is not there"):
        prices.cold.storage.check(segment.path, segment.file_size, segment.checksum)


def test_a_file_is_read_once_by_a_process_and_again_when_it_changes(prices):
    disk = CountingDisk()
    path = segment_file(prices)
    table = ColdTable(LocalStorage(prices.root(), disk))
    settled(path)
    assert len(closes(table)) == COUNT
    read = disk.checked.count(str(path))
    assert read <= 1, "another reader of this process may have checked it before"
    session = Session()
    session.register_tstable("t", TimeSeriesTable(table))
    for _ in range(3):
        assert len(closes(table)) == COUNT
        session.sql("select sum(close) from t")
    assert disk.checked.count(str(path)) == read
    path.write_bytes(path.read_bytes())
    settled(path)
    for _ in range(3):
        assert len(closes(table)) == COUNT
    assert disk.checked.count(str(path)) == read + 1


def test_a_file_that_changed_a_moment_ago_is_not_remembered(prices):
    disk = CountingDisk()
    path = segment_file(prices)
    storage = LocalStorage(prices.root(), disk)
    (segment,) = prices.cold.state().segments
    os.utime(path, ns=(0, time.time_ns()))
    for _ in range(2):
        storage.check(segment.path, segment.file_size, segment.checksum)
    if time.time_ns() - path.stat().st_ctime_ns < UNSETTLED_NS:
        assert disk.checked.count(str(path)) == 2
    settled(path)
    storage.check(segment.path, segment.file_size, segment.checksum)
    count = disk.checked.count(str(path))
    storage.check(segment.path, segment.file_size, segment.checksum)
    assert disk.checked.count(str(path)) == count
    storage.check(segment.path, segment.file_size, segment.checksum, fresh=True)
    assert disk.checked.count(str(path)) == count + 1


def test_D01_a_fresh_look_finds_a_bit_that_rots_without_a_new_stamp():
    disk = SimDisk(["/lake"])
    table = lake_on(disk)
    table.create(spec())
    (segment,) = table.append(rows(range(5)).to_reader(), AppendOptions()).segments
    assert len(closes(table)) == 5
    disk.flip_byte(f"/lake/prices/{segment.path}", 40)
    disk._damages.clear()
    named = segment.path, segment.file_size, segment.checksum
    table.storage.check(*named)
    with pytest.raises(Corruption):
        table.storage.check(*named, fresh=True)
    with pytest.raises(Corruption):
        closes(table)


def test_a_checksum_of_another_kind_is_of_a_newer_format(prices):
    (segment,) = prices.cold.state().segments
    with pytest.raises(Unsupported, match="newer format"):
        prices.cold.storage.check(segment.path, segment.file_size, "blake3:00")


def test_D07_a_sidecar_of_another_segment_is_not_believed(table, caplog):
    table.append(rows([0, 1, 2]))
    table.append(rows([10]))
    first, second = table.cold.state().segments
    before = table.coverage().to_pylist(), table.gaps().to_pylist()
    for shortcut in Path(table.root()).glob("_coverage/table/*"):
        shortcut.unlink()
    root = Path(table.root())
    shutil.copyfile(root / second.coverage_path, root / first.coverage_path)
    again = TimeSeriesTable.open(table.root())
    with caplog.at_level(logging.WARNING):
        assert (again.coverage().to_pylist(), again.gaps().to_pylist()) == before
    assert first.coverage_path in caplog.text


def test_D07_an_overlap_check_does_not_believe_a_sidecar_of_another_segment(table):
    table.append(rows([0, 1, 2]))
    table.append(rows([10]))
    first, second = table.cold.state().segments
    for shortcut in Path(table.root()).glob("_coverage/table/*"):
        shortcut.unlink()
    root = Path(table.root())
    shutil.copyfile(root / second.coverage_path, root / first.coverage_path)
    with pytest.raises(Exception, match="already"):
        TimeSeriesTable.open(table.root()).append(rows([1]))


# --- object stores --------------------------------------------------------------------------


def large_rows():
    count = 200_000
    return pa.table(
        {
            "ts": pa.array([JUNE_US + n * 1_000_000 for n in range(count)], pa.timestamp("us")),
            "symbol": ["NVDA"] * count,
            "close": [random.Random(n).random() for n in range(count)],
        }
    )


@pytest.fixture(params=["small", "large"])
def stored(request, tmp_path):
    """A table in an object store, with its store and the folder of its cache."""
    store = MemoryStore()
    storage = ObjectStorage(
        store, f"memory://{tmp_path.name}", ObjectCache(str(tmp_path / "cache"))
    )
    table = ColdTable(storage)
    table.create(spec(entities=()))
    data = rows(range(50)) if request.param == "small" else large_rows()
    (segment,) = table.append(data.to_reader(), AppendOptions()).segments
    assert (segment.file_size > READ_WHOLE_BYTES_MAX) == (request.param == "large")
    return table, segment, store, tmp_path / "cache"


def damage_object(store, path, offset):
    data = bytearray(bytes(store.get(path).bytes()))
    data[offset] ^= 1
    store.put(path, bytes(data))


def test_D01_a_damaged_object_is_refused_by_reads_and_by_locate(stored):
    table, segment, store, cache = stored
    damage_object(store, segment.path, 50)
    for read in (
        lambda: closes(table),
        lambda: table.storage.locate(segment.path, segment.file_size, segment.checksum),
    ):
        with pytest.raises(Corruption, match="not those that were committed") as raised:
            read()
        assert raised.value.facts["path"] == segment.path
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_D10_a_flipped_byte_in_the_cache_is_fetched_again_and_said(stored, caplog):
    table, segment, _store, _cache = stored
    named = segment.path, segment.file_size, segment.checksum
    copy = table.storage.locate(*named)
    good = Path(copy).read_bytes()
    flip(copy, 60)
    with caplog.at_level(logging.WARNING):
        again = table.storage.locate(*named)
    assert Path(again).read_bytes() == good
    assert "fetched again" in caplog.text
    expected = closes(table)
    flip(again, 60)
    assert closes(table) == expected


def test_D01_a_segment_larger_than_the_cache_is_read_through_and_checked(stored, tmp_path):
    _table, segment, store, _ = stored
    cache = ObjectCache(str(tmp_path / "tiny"), bytes_max=10)
    table = ColdTable(ObjectStorage(store, "memory://tiny", cache))
    assert len(closes(table)) == segment.row_count
    damage_object(store, segment.path, 50)
    with pytest.raises(Corruption, match="not those that were committed"):
        closes(table)


def test_a_cache_without_a_copy_reads_the_object_once(tmp_path):
    asked = []
    cache = ObjectCache(str(tmp_path / "c"))

    def fetch(writer):
        asked.append(1)
        writer.write(b"abc")

    checksum = checksum_text(google_crc32c.value(b"abc"))
    for _ in range(3):
        assert Path(cache.path("a", 3, checksum, fetch)).read_bytes() == b"abc"
    assert asked == [1]


LOOK_AT_EVERY_FLIP = """
import datetime, sys
import pyarrow as pa
from thermocline.cold.segment.parquet import encode_parquet
from thermocline.cold.storage.verified import find_damaged_offset

times = [datetime.datetime(2024, 6, 1, hour) for hour in range(20)]
data = encode_parquet(pa.table({"ts": times, "host": ["a"] * 20, "n": list(range(20))}))
footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
for bit in range(footer * 8, len(data) * 8):
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    find_damaged_offset(lambda: pa.BufferReader(bytes(damaged)))
print(footer)
"""


def test_D01_the_search_for_a_damaged_footer_never_ends_the_process():
    done = subprocess.run(
        [sys.executable, "-c", LOOK_AT_EVERY_FLIP], capture_output=True, text=True, check=False
    )
    assert (done.returncode, int(done.stdout) > 0) == (0, True), done.stderr[-500:]
