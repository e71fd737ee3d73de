"""Compaction in the caller's process: the same rows in fewer files, without Spark."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import thermocline as tc
from thermocline.cold.compact.plan import CompactionLimits, plan_groups
from thermocline.cold.compact.rewrite import HERE_LIMITS, compact_here
from thermocline.cold.segment.row_digest import digest_rows
from thermocline.errors import Corruption

JUNE_US = 1_717_200_000_000_000
MINUTE_US = 60_000_000


def rows(first, count=10):
    """Return one row a minute."""
    minutes = range(first, first + count)
    times = pa.array([JUNE_US + m * MINUTE_US for m in minutes], pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "host": [f"h{m % 3}" for m in minutes], "n": list(minutes)})


@pytest.fixture
def table(tmp_path):
    made = tc.TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", entity_columns=["host"], overlap="allow"
    )
    for part in range(12):
        made.append(rows(part * 60))
    return made


def content(table):
    return digest_rows(table.cold.read(table.cold.state(), None))


def test_small_segments_become_one_and_the_rows_stay(table):
    before, held = content(table), table.coverage()
    done = table.compact()
    assert (done.commits, done.segments_before, done.segments, done.rows) == (1, 12, 1, 120)
    assert done.version == table.version()
    assert content(table) == before
    assert table.coverage().equals(held)
    assert table.fsck().is_sound


def test_a_second_compaction_finds_nothing_to_do(table):
    table.compact()
    version = table.version()
    assert table.compact().commits == 0
    assert table.version() == version


def test_deleted_rows_are_purged(table):
    table.delete("n < 5")
    before = content(table)
    done = table.compact()
    assert done.purged == 5
    assert content(table) == before
    assert not any(segment.deletes for segment in table.cold.state().segments)


def test_rows_that_do_not_fit_into_the_memory_are_rewritten_in_parts(table):
    before = content(table)
    done = compact_here(table.cold, HERE_LIMITS, loaded_bytes_max=400)
    assert done.segments > 1
    assert content(table) == before
    assert table.fsck().is_sound


def test_rows_that_stay_in_small_segments_are_moved_a_bounded_number_of_times(table):
    limits = CompactionLimits(inputs_min=2, level_max=3)
    commits = sum(compact_here(table.cold, limits, loaded_bytes_max=400).commits for _ in range(9))
    assert 0 < commits <= 3 * 12
    assert not list(plan_groups(table.cold.state(), limits))


def test_the_writer_settings_of_the_table_hold(table):
    table.set_writer(compression="gzip")
    table.compact()
    (made,) = table.cold.state().segments
    with table.cold.storage.open_input(made.path) as source:
        chunk = pq.ParquetFile(source).metadata.row_group(0).column(0)
    assert chunk.compression == "GZIP"


def test_D02_a_damaged_segment_is_not_compacted(table):
    version = table.version()
    path = f"{table.root()}/{next(iter(table.cold.state().segments)).path}"
    with open(path, "r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 8)
    with pytest.raises(Corruption):
        tc.TimeSeriesTable.open(table.root()).compact()
    assert table.version() == version


def test_a_lake_that_is_written_meanwhile_can_be_compacted_beside_it(tmp_path):
    with tc.connect(tmp_path / "lake") as lake:
        made = lake.create_table("t", time_column="ts", bucket="1h", entity_columns=["host"])
        for part in range(4):
            made.write(rows(part * 60))
            made.flush()
        made.write(rows(999))
        done = made.compact()
        assert (done.segments_before, done.rows) == (4, 40)
        assert lake.sql("select count(*) from t").column(0).to_pylist() == [50]
