"""Appends: bytes taken as they are, rows fitted to the table, all of it or nothing."""

from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.lake import HOUR_US, JUNE_US, closes, files, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.segment import stage
from thermocline.errors import CoverageOverlapError, Invalid, NotFound

TS = pa.timestamp("us")


def only_file(table):
    [segment] = table.cold.state().segments
    return Path(table.root()) / segment.path


def at(*hours, kind=TS):
    return pa.array([JUNE_US + hour * HOUR_US for hour in hours], TS).cast(kind)


def refused(table, data, **options):
    """Append what must be refused; return the error, after a look that nothing is left."""
    before, version = files(table), table.version()
    with pytest.raises(Invalid) as error:
        table.append(data, **options)
    assert (files(table), table.version()) == (before, version)
    return error.value


# Taken byte for byte


def test_a_parquet_file_that_fits_is_copied_byte_for_byte(table, parquet):
    source = parquet(rows(range(5)))
    assert table.append_parquet(source) == 2
    assert only_file(table).read_bytes() == source.read_bytes()
    assert only_file(table).stat().st_ino != source.stat().st_ino


def test_a_linked_file_shares_its_bytes_with_the_source(table, parquet):
    source = parquet(rows(range(5)))
    table.append_parquet(source, link=True)
    assert only_file(table).stat().st_ino == source.stat().st_ino
    assert table.to_arrow().num_rows == 5


def test_a_link_through_a_symbolic_link_is_one_to_the_file_itself(table, parquet, tmp_path):
    source = parquet(rows(range(5)))
    (tmp_path / "latest.parquet").symlink_to(source)
    table.append_parquet(tmp_path / "latest.parquet", link=True)
    assert not only_file(table).is_symlink()
    assert only_file(table).stat().st_ino == source.stat().st_ino
    assert table.to_arrow().num_rows == 5


@pytest.mark.parametrize("is_linked", [False, True])
def test_writing_the_source_again_changes_a_linked_table_and_never_a_copied_one(
    table, parquet, is_linked
):
    source = parquet(rows([0, 1, 2]))
    table.append_parquet(source, link=is_linked)
    data = bytearray(source.read_bytes())
    data[8] ^= 0xFF
    with open(source, "r+b") as file:
        file.write(data)
    assert table.fsck().is_sound is not is_linked


@pytest.mark.parametrize(
    "later",
    [
        lambda t: t.set_column(0, "ts", at(5, 6, kind=pa.timestamp("ms"))),
        lambda t: t.set_column(0, "ts", at(5, 6, kind=pa.timestamp("ns"))),
        lambda t: t.set_column(0, "ts", at(5, 6).cast(pa.timestamp("us", tz="UTC"))),
    ],
    ids=["coarser", "finer", "zone"],
)
def test_a_file_whose_times_are_of_another_kind_is_rewritten_to_the_tables(table, parquet, later):
    table.append_parquet(parquet(rows([0, 1])))
    source = parquet(later(rows([5, 6])))
    table.append_parquet(source)
    data = table.to_arrow().sort_by("ts")
    assert data.column("ts").to_pylist() == at(0, 1, 5, 6).to_pylist()
    assert data.schema.field("ts").type == TS
    assert source.read_bytes() not in [
        (Path(table.root()) / s.path).read_bytes() for s in table.cold.state().segments
    ]


@pytest.mark.parametrize(
    "later",
    [
        lambda t: t.drop(["close"]),
        lambda t: t.select(["close", "ts", "symbol"]),
        lambda t: t.set_column(2, "close", pa.array([5.0, 6.0], pa.float32())),
        lambda t: t.set_column(1, "symbol", pa.array(["A", "A"]).dictionary_encode()),
        lambda t: t.set_column(1, "symbol", pa.array(["A", "A"], pa.large_string())),
    ],
    ids=["fewer", "other order", "narrower", "dictionary", "large"],
)
def test_a_file_that_differs_only_in_how_it_is_read_is_not_rewritten(table, parquet, later):
    table.append_parquet(parquet(rows([0, 1])))
    source = parquet(later(rows([5, 6], "A")))
    table.append_parquet(source)
    kept = [(Path(table.root()) / s.path).read_bytes() for s in table.cold.state().segments]
    assert source.read_bytes() in kept
    data = table.to_arrow().sort_by("ts")
    assert data.column("ts").to_pylist() == at(0, 1, 5, 6).to_pylist()
    assert data.column("symbol").to_pylist() == ["NVDA", "NVDA", "A", "A"]
    assert data.column("close").to_pylist() in ([0.0, 1.0, 5.0, 6.0], [0.0, 1.0, None, None])


def test_a_zone_that_is_declared_makes_clock_times_instants(make, parquet):
    for source in ("arrow", "parquet"):
        table = make(timezone="Europe/Berlin")
        data = pa.table({"ts": pa.array([datetime(2024, 7, 1, 12), datetime(2024, 12, 1, 12)], TS)})
        table.append(data) if source == "arrow" else table.append_parquet(parquet(data))
        found = table.to_arrow().column("ts")
        assert found.type == pa.timestamp("us", tz="UTC")
        assert found.to_pylist() == [
            datetime(2024, 7, 1, 10, tzinfo=UTC),
            datetime(2024, 12, 1, 11, tzinfo=UTC),
        ]
        assert table.is_covered("2024-07-01T10:00Z", "2024-07-01T11:00Z")


def test_a_zone_that_is_declared_leaves_instants_alone(make, parquet):
    table = make(timezone="Europe/Berlin")
    moment = datetime(2024, 7, 1, 12, tzinfo=UTC)
    data = pa.table({"ts": pa.array([moment], pa.timestamp("us", tz="America/New_York"))})
    source = parquet(data)
    table.append_parquet(source)
    assert only_file(table).read_bytes() == source.read_bytes()
    assert table.to_arrow().column("ts").to_pylist() == [moment]


@pytest.mark.parametrize(
    "clock", [datetime(2024, 3, 31, 2, 30), datetime(2024, 10, 27, 2, 30)], ids=["none", "two"]
)
def test_a_clock_time_that_names_no_one_instant_is_refused(make, clock):
    data = pa.table({"ts": pa.array([clock], TS)})
    assert (
        "does not exist, or exists twice" in refused(make(timezone="Europe/Berlin"), data).message
    )


# Many at once


def test_many_files_are_one_version(table, parquet):
    sources = [parquet(rows([hour])) for hour in range(5)]
    assert table.append_parquet(sources) == 2
    assert table.cold.state().totals.segments == 5
    assert closes(table.cold) == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (lambda path: path.write_bytes(b"PAR1 torn"), Invalid),
        (lambda path: path.unlink(), NotFound),
        (lambda path: pq.write_table(rows([9]).drop(["ts"]), path), Invalid),
        (lambda path: pq.write_table(rows([9]).set_column(2, "close", at(9)), path), Invalid),
        (lambda path: pq.write_table(rows([0]), path), CoverageOverlapError),
    ],
    ids=["torn", "missing", "no time", "other type", "overlap"],
)
def test_of_many_files_one_bad_one_refuses_all_and_leaves_nothing(table, parquet, bad, kind):
    table.append(rows([0]))
    sources = [parquet(rows([hour])) for hour in (1, 2, 3)]
    bad(sources[1])
    before = files(table)
    with pytest.raises(kind):
        table.append_parquet(sources)
    assert files(table) == before
    assert (table.version(), closes(table.cold)) == (2, [0.0])


def test_a_long_stream_becomes_several_segments_of_one_version(table, monkeypatch):
    monkeypatch.setattr(stage, "SEGMENT_ROWS_MAX", 10)
    assert table.append(rows(range(35)).to_reader(max_chunksize=4)) == 2
    counts = [segment.row_count for segment in table.cold.state().segments]
    assert sorted(counts) == [11, 12, 12]
    assert closes(table.cold) == [float(hour) for hour in range(35)]


def test_a_stream_that_breaks_off_leaves_nothing(table):
    def broken():
        yield from rows([0, 1]).to_batches()
        raise RuntimeError("the source went away")

    table.append(rows([7]))
    before = files(table)
    reader = pa.RecordBatchReader.from_batches(rows([0]).schema, broken())
    with pytest.raises(Invalid, match="went away"):
        table.append(reader)
    assert (files(table), closes(table.cold)) == (before, [7.0])


@pytest.mark.parametrize("calls_later", range(1, 6))
def test_an_interrupt_after_the_commit_was_made_takes_no_file_from_it(calls_later):
    disk = SimDisk(["/lake"])
    lake_on(disk).create(spec())
    seen = []

    def interrupt(operation, path):
        if ("link", "/lake/prices/_log/00000000000000000002.json") in disk.calls:
            seen.append(operation)
            if len(seen) == calls_later:
                raise KeyboardInterrupt

    disk.hooks = interrupt
    with pytest.raises(KeyboardInterrupt):
        lake_on(disk).append(rows([0, 1]).to_reader(), AppendOptions())
    disk.hooks = None
    assert closes(lake_on(disk)) == [0.0, 1.0]
    assert fsck(lake_on(disk)).is_sound


def test_an_interrupt_before_the_commit_leaves_nothing():
    disk = SimDisk(["/lake"])
    lake_on(disk).create(spec())

    def interrupt(operation, path):
        if (operation, path.endswith(".roar")) == ("sync", True):
            disk.hooks = None
            raise KeyboardInterrupt

    disk.hooks = interrupt
    with pytest.raises(KeyboardInterrupt):
        lake_on(disk).append(rows([0, 1]).to_reader(), AppendOptions())
    assert [path for path in disk.tree() if path.endswith((".parquet", ".roar"))] == []


# Where rows come from


@pytest.mark.parametrize(
    "source",
    [
        lambda t: t,
        lambda t: t.to_batches()[0],
        lambda t: t.to_reader(),
        pl.from_arrow,
        lambda t: t.to_pandas(),
        lambda t: pd.DataFrame(t.to_pandas()).set_index("ts"),
    ],
    ids=["table", "batch", "reader", "polars", "pandas", "pandas index"],
)
def test_rows_come_in_from_whatever_gives_an_arrow_stream(table, source):
    assert table.append(source(rows(range(4)))) == 2
    found = table.to_arrow(columns=["ts", "symbol", "close"])
    assert found.to_pylist() == rows(range(4)).to_pylist()
    # What polars hands over are views, which Arrow cannot pick from: deletes and windows must.
    table.delete("close = 1.0")
    assert table.to_arrow(columns=["symbol"], start="2024-06-01T01:00Z").num_rows == 2
    assert table.fsck().is_sound


@pytest.mark.parametrize(
    "data", [[1, 2], {"ts": []}, "rows.parquet", None, pa.chunked_array([[1]])]
)
def test_what_gives_no_stream_of_rows_is_refused(table, data):
    refused(table, data)
