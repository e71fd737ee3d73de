"""Many files become one commit, once; what does not fit is kept aside."""

import gzip
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.lake import HOUR_US, JUNE_US
from fixtures.rollups import rows_of, site_at
from thermocline.cold.care.fsck import fsck
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.change.commit_staged import sweep_staged
from thermocline.errors import (
    Conflict,
    CoverageOverlapError,
    Invalid,
    NotFound,
    Overloaded,
    Unavailable,
)
from thermocline.format.bucket import Bucket
from thermocline.format.log.action import TableSpec
from thermocline.ingest.files.input_files import find_input_files
from thermocline.pipeline.backfill import job as backfill_module
from thermocline.pipeline.backfill import quarantine as quarantine_module
from thermocline.pipeline.backfill import task as fill_module
from thermocline.pipeline.backfill.job import backfill
from thermocline.pipeline.run.job import ignore_progress


@pytest.fixture
def site(tmp_path):
    with site_at(tmp_path / "lake") as made:
        made.ensure_table("prices", TableSpec("", "ts", Bucket(3600), ("symbol",), "reject"))
        yield made


@pytest.fixture
def fill(site, spark):
    """Backfill the table of prices."""

    def run(*sources, **options):
        options = {"spark": lambda: spark, "tell": ignore_progress, **options}
        return backfill(site, "prices", sources, **options)

    return run


@pytest.fixture
def files(tmp_path):
    """Write one CSV file for each hour, with one row; return their folder."""
    folder = tmp_path / "in"
    folder.mkdir()

    def write(hours, *, symbol="NVDA", **others):
        for hour in hours:
            day, clock = divmod(hour, 24)
            row = f"2024-06-{day + 1:02}T{clock:02}:00:00Z,{symbol},{hour}\n"
            (folder / f"{symbol}-{hour:04}.csv").write_text("ts,symbol,close\n" + row)
        for name, text in others.items():
            (folder / f"{name}.csv").write_text(text)
        return folder

    return write


def closes(site, name="prices"):
    return sorted(row["close"] for row in rows_of(site.table(name)))


def aside(site):
    found = rows_of(site.table("prices_quarantine"))
    return sorted((os.path.basename(row["file"]), row["line"], row["raw"]) for row in found)


def is_clean(table):
    return fsck(table).findings == ()


def no_spark():
    raise AssertionError("Spark was asked for")


def test_S04_many_files_are_one_commit_and_the_same_batch_again_is_none(site, fill, files):
    folder = files(range(40))
    done = fill(folder)
    assert done.numbers == {"files": 40, "rows": 40, "segments": 8, "bad_rows": 0}
    assert closes(site) == list(range(40))
    assert site.table("prices").state().version == done.version == 2
    again = fill(folder, spark=no_spark)
    assert again.version is None
    assert site.table("prices").state().version == 2
    coverage = site.table("prices").coverage()[1]
    assert len(coverage.whole) == 40
    assert len(coverage.entities['["NVDA"]']) == 40


def test_a_batch_id_names_a_batch_whatever_its_files_are(site, fill, files):
    fill(files([1]), batch_id="june")
    assert fill(files([2]), batch_id="june").version is None
    assert fill(files([3], symbol="AMD"), batch_id="july", overlap="replace").version == 3
    assert closes(site) == [1, 2, 3]


def test_overlap_is_refused_allowed_or_replaced_and_refused_leaves_nothing(site, fill, files):
    folder = files([1, 2])
    fill(folder)
    more = files([2], symbol="NVDA", bad="ts,symbol,close\nnever,NVDA,9\n")
    (more / "NVDA-0001.csv").unlink()
    before = sorted(p for p in (folder.parent / "lake").rglob("*.parquet"))
    with pytest.raises(CoverageOverlapError) as caught:
        fill(more, batch_id="second")
    assert caught.value.facts["buckets"] == ["2024-06-01T02:00:00Z"]
    assert sorted(p for p in (folder.parent / "lake").rglob("*.parquet")) == before
    assert "prices_quarantine" not in site.tables()
    fill(more, batch_id="second", overlap="replace")
    assert closes(site) == [1, 2]
    fill(more, batch_id="third", overlap="allow")
    assert closes(site) == [1, 2, 2]
    assert is_clean(site.table("prices"))


def test_S06_bad_rows_and_files_are_kept_aside_with_their_place_and_reason(site, fill, files):
    folder = files(
        [1, 2], half="ts,symbol,close\n2024-06-02,AMD,5\nnever,AMD,6\n", none="a,b\n1,2\n"
    )
    (folder / "torn.parquet").write_bytes(b"PAR1")
    done = fill(folder)
    assert (done.numbers["rows"], done.numbers["bad_rows"]) == (3, 3)
    assert closes(site) == [1, 2, 5]
    assert aside(site) == [
        ("half.csv", 3, "never,AMD,6"),
        ("none.csv", None, None),
        ("torn.parquet", None, None),
    ]
    reasons = [row["reason"] for row in rows_of(site.table("prices_quarantine"))]
    assert any("ts" in reason for reason in reasons)
    assert is_clean(site.table("prices_quarantine"))


def test_S06_a_bad_row_stops_the_job_where_that_is_the_policy(site, fill, files):
    folder = files([1, 2], bad="ts,symbol,close\n2024-06-02,AMD,5\nnever,AMD,6\n")
    with pytest.raises(Invalid) as caught:
        fill(folder, on_bad="fail")
    assert (os.path.basename(caught.value.facts["file"]), caught.value.facts["line"]) == (
        "bad.csv",
        3,
    )
    with pytest.raises(Overloaded):
        fill(folder, bad_rows_max=0)
    assert site.table("prices").state().version == 1
    assert site.tables() == ["prices"]
    assert not list((folder.parent / "lake").rglob("*.parquet"))


def test_a_crash_after_the_quarantine_loses_no_row_and_keeps_none_twice(
    site, fill, files, monkeypatch
):
    folder = files([1], bad="ts,symbol,close\nnever,AMD,6\n")

    def crash(*_):
        raise Unavailable("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(backfill_module, "append_staged", crash)
        with pytest.raises(Unavailable):
            fill(folder)
    assert aside(site) == [("bad.csv", 2, "never,AMD,6")]
    assert site.table("prices").state().version == 1
    assert fill(folder).version == 2
    assert closes(site) == [1]
    assert aside(site) == [("bad.csv", 2, "never,AMD,6")]


def test_other_bad_rows_of_a_batch_that_is_run_again_are_kept_as_well(
    site, fill, files, monkeypatch
):
    folder = files([1], bad="ts,symbol,close\nnever,AMD,6\n")

    def crash(*_):
        raise Unavailable("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(backfill_module, "append_staged", crash)
        with pytest.raises(Unavailable):
            fill(folder, batch_id="june")
    (folder / "bad.csv").write_text("ts,symbol,close\nnot yet,AMD,7\n")
    fill(folder, batch_id="june")
    assert [raw for _, _, raw in aside(site)] == ["never,AMD,6", "not yet,AMD,7"]


@pytest.mark.parametrize(
    ("drift", "columns", "rows"),
    [
        ("add", ["ts", "symbol", "close", "venue", "lots"], [(None, None), ("X", 2), ("Y", None)]),
        ("ignore", ["ts", "symbol", "close"], [(None, None)] * 3),
    ],
)
def test_S07_columns_that_are_new_are_added_left_out_or_refused(
    site, fill, files, tmp_path, drift, columns, rows
):
    fill(files([1]))
    more = tmp_path / "more"
    more.mkdir()
    (more / "a.csv").write_text("ts,symbol,close,venue,lots\n2024-06-02,NVDA,2,X,2\n")
    (more / "b.jsonl").write_text('{"ts":"2024-06-03","symbol":"NVDA","close":3,"venue":"Y"}\n')
    with pytest.raises(Invalid) as caught:
        fill(more)
    assert "venue" in caught.value.facts["columns"]
    assert site.table("prices").state().version == 2
    fill(more, drift=drift)
    table = site.table("prices")
    assert list(table.state().schema.by_name) == columns
    found = sorted(rows_of(table), key=lambda row: row["close"])
    assert [(row.get("venue"), row.get("lots")) for row in found] == rows


TIME = pa.array([JUNE_US + 40 * HOUR_US], pa.timestamp("us", tz="UTC"))


@pytest.mark.parametrize(
    ("files_of_kinds", "file", "column", "types"),
    [
        ({"a.parquet": 2, "b.parquet": "two"}, "b.parquet", "close", ("int64", "string")),
        ({"a.parquet": 2, "b.parquet": 2.5}, "b.parquet", "close", ("int64", "double")),
        ({"a.parquet": 1, "b.csv": "north"}, "b.csv", "lots", ("int64", "string")),
        ({"a.parquet": 1, "b.csv": "7", "c.csv": "north"}, "c.csv", "lots", ("int64", "string")),
        ({"a.parquet": 1, "b.jsonl": '"x"'}, "b.jsonl", "lots", ("int64", "string")),
    ],
)
def test_S07_a_type_that_cannot_be_widened_is_told_with_its_file_its_column_and_both_types(
    site, fill, files, tmp_path, files_of_kinds, file, column, types
):
    fill(files([1]))
    more = tmp_path / "more"
    more.mkdir()
    stamp = "2024-06-05T00:00:00Z"
    for name, value in files_of_kinds.items():
        if name.endswith(".parquet"):
            made = {"ts": TIME, "symbol": ["NVDA"], "close": [1], column: [value]}
            pq.write_table(pa.table(made), more / name)
        elif name.endswith(".csv"):
            (more / name).write_text(f"ts,symbol,{column}\n{stamp},NVDA,{value}\n")
        else:
            line = f'{{"ts":"{stamp}","symbol":"NVDA","{column}":{value}}}\n'
            (more / name).write_text(line)
    with pytest.raises(Invalid) as caught:
        fill(more, drift="add")
    facts = caught.value.facts
    assert (os.path.basename(facts["file"]), facts["column"]) == (file, column)
    assert (facts["expected"], facts["got"]) == types
    assert site.table("prices").state().version == 2


def test_parquet_that_fits_is_taken_as_it_is_and_other_is_written_anew(
    site, fill, tmp_path, monkeypatch
):
    monkeypatch.setattr(fill_module, "WHOLE_FILE_BYTES_MIN", 1)
    folder = tmp_path / "in"
    folder.mkdir()

    def write(name, hours, **columns):
        times = pa.array([JUNE_US + hour * HOUR_US for hour in hours], pa.timestamp("us", tz="UTC"))
        symbols = pa.array(["NVDA"] * len(hours))
        pq.write_table(pa.table({"ts": times, "symbol": symbols, **columns}), folder / name)

    write("a.parquet", [0, 1], close=pa.array([0, 1]))
    write("b.parquet", [2, 3], close=pa.array([2, 3], pa.int32()))
    write("c.parquet", [4], close=pa.array([4]))
    table = site.table("prices")
    times = pa.array([JUNE_US + 9 * HOUR_US], pa.timestamp("us", tz="UTC"))
    first = pa.table({"ts": times, "symbol": ["NVDA"], "close": pa.array([9])})
    table.append(first.to_reader(), AppendOptions())
    # Workers are other processes: what is patched here is told to them by running them here.
    order = backfill_module.BackfillContext(
        backfill_module.WriteTarget(
            table.storage.root, table.state().spec, table.state().schema, "c" * 12
        ),
        (tuple(find_input_files([folder], None)),),
        "quarantine",
        10,
        "fail",
    )
    report = backfill_module.write_piece(order, 0)
    assert report.failure is None
    taken = {one.checksum.size_bytes for one in report.staged}
    assert {(folder / f"{name}.parquet").stat().st_size for name in "abc"} == taken
    sweep_staged(table, order.target.tag)
    fill(folder)
    assert closes(site) == [0, 1, 2, 3, 4, 9]
    assert is_clean(table)


def test_files_are_found_in_folders_and_by_patterns_each_once_and_in_order(tmp_path):
    (tmp_path / "a" / "_temporary").mkdir(parents=True)
    for name in (
        "a/2.csv",
        "a/1.parquet",
        "b.jsonl",
        "a/.hidden.csv",
        "a/note.txt",
        "a/_temporary/x.csv",
    ):
        (tmp_path / name).write_bytes(gzip.compress(b""))
    found = find_input_files(
        [tmp_path / "a", str(tmp_path / "*.jsonl"), tmp_path / "a" / "2.csv"], None
    )
    assert [(os.path.relpath(f.path, tmp_path), f.format) for f in found] == [
        ("a/1.parquet", "parquet"),
        ("a/2.csv", "csv"),
        ("b.jsonl", "json"),
    ]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_bad": "ignore"}, Invalid),
        ({"drift": "whatever"}, Invalid),
        ({"format": "xml"}, Invalid),
        ({"overlap": "both"}, Invalid),
        ({"bad_rows_max": -1}, Invalid),
    ],
)
def test_what_cannot_be_right_is_refused_before_spark_is_asked(fill, files, options, error):
    with pytest.raises(error):
        fill(files([1]), spark=no_spark, **options)


def test_names_that_lead_nowhere_are_told_before_spark_is_asked(site, fill, files, tmp_path):
    with pytest.raises(NotFound):
        fill(tmp_path / "nothing", spark=no_spark)
    with pytest.raises(NotFound):
        fill(str(tmp_path / "*.csv"), spark=no_spark)
    (tmp_path / "note.txt").write_text("")
    with pytest.raises(Invalid):
        fill(tmp_path / "note.txt", spark=no_spark)
    with pytest.raises(NotFound):
        backfill(site, "nowhere", [files([1])], spark=no_spark)


def test_two_batches_at_once_are_both_in_or_one_is_refused(site, fill, files, monkeypatch):
    folder = files([1])
    table = site.table("prices")
    rows = pa.table(
        {
            "ts": pa.array([JUNE_US + HOUR_US], pa.timestamp("us", tz="UTC")),
            "symbol": ["NVDA"],
            "close": pa.array([7]),
        }
    )
    real = backfill_module.append_staged

    def after_another(*given):
        table.append(rows.to_reader(), AppendOptions())
        return real(*given)

    monkeypatch.setattr(backfill_module, "append_staged", after_another)
    with pytest.raises(Conflict):
        fill(folder)
    assert closes(site) == [7]


def typed_of(site, column="close"):
    return site.table("prices").state().schema.column(column).type


def test_one_bad_cell_of_a_new_column_costs_its_row_and_not_the_type(site, fill, files):
    folder = files(range(2), bad="ts,symbol,close\n2024-06-05,AMD,2\n2024-06-05,AMD,oops\n")
    done = fill(folder)
    assert (done.numbers["rows"], done.numbers["bad_rows"]) == (3, 1)
    assert typed_of(site) == pa.int64()
    assert closes(site) == [0, 1, 2]
    (row,) = rows_of(site.table("prices_quarantine"))
    assert os.path.basename(row["file"]) == "bad.csv"
    assert (row["line"], row["column_name"], row["raw"]) == (3, "close", "2024-06-05,AMD,oops")
    assert "oops" in row["reason"]


def test_a_declared_type_holds_without_a_majority(site, fill, files):
    folder = files([1, 2], bad="ts,symbol,close\n2024-06-05,AMD,oops\n")
    done = fill(folder, types={"close": "double"})
    assert (done.numbers["rows"], done.numbers["bad_rows"]) == (2, 1)
    assert typed_of(site) == pa.float64()


def test_a_column_without_a_majority_is_a_text_that_holds_every_cell(site, fill, files):
    folder = files([1], bad="ts,symbol,close\n2024-06-05,AMD,oops\n")
    assert fill(folder).numbers["bad_rows"] == 0
    assert (typed_of(site), closes(site)) == (pa.string(), ["1", "oops"])


def test_a_column_that_the_table_has_keeps_its_type_whatever_most_cells_are(site, fill, files):
    fill(files([1]), batch_id="first")
    folder = files([2], bad="ts,symbol,close\n" + "2024-06-05,AMD,oops\n" * 20)
    (folder / "NVDA-0001.csv").unlink()
    for drift in ("fail", "add"):
        done = fill(folder, batch_id=drift, drift=drift, overlap="replace")
        assert (done.numbers["rows"], done.numbers["bad_rows"]) == (1, 20)
        assert typed_of(site) == pa.int64()


def test_a_quarantine_of_before_columns_were_named_gets_the_next_rows_too(site, fill, files):
    old = pa.schema([field for field in quarantine_module.SCHEMA if field.name != "column_name"])
    kept = site.ensure_table(
        "prices_quarantine", TableSpec("", "time", Bucket(3600), overlap="allow")
    )
    row = {"time": JUNE_US, "batch": "a", "file": "x.csv", "line": 1, "reason": "r", "raw": "q"}
    kept.append(pa.Table.from_pylist([row], old).to_reader(), AppendOptions())
    fill(files([1], bad="ts,symbol,close\nnever,AMD,6\n"))
    found = rows_of(site.table("prices_quarantine"))
    assert sorted((one["raw"], one.get("column_name")) for one in found) == [
        ("never,AMD,6", "ts"),
        ("q", None),
    ]


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({"close": "number"}, "unknown column type"),
        ({"closed": "double"}, "no file has this column"),
    ],
)
def test_a_type_that_cannot_be_declared_is_refused(site, fill, files, types, said):
    with pytest.raises(Invalid, match=said):
        fill(files([1]), types=types)
    assert site.table("prices").state().version == 1


def test_a_type_that_a_column_does_not_have_is_refused(fill, files):
    fill(files([1]))
    with pytest.raises(Invalid, match="the column has another type"):
        fill(files([2]), types={"close": "double"}, spark=no_spark)
    with pytest.raises(Invalid, match="the table does not have this column"):
        fill(files([2]), types={"venue": "string"}, spark=no_spark)
