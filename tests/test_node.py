"""A lake: rows are durable when written, seen at once and once, whoever reads."""

import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import thermocline as tc
from fixtures.lake import JUNE_US
from fixtures.wal import NEVER_S, calm, numbers, opened, ticks
from thermocline.errors import (
    Conflict,
    Corruption,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ThermoclineError,
    Unavailable,
)
from thermocline.format.layout import commit_path
from thermocline.ingest.idempotency import request_key
from thermocline.lake_table import DIRECT_BYTES_MIN
from thermocline.node import Node, open_lake


def count(lake, table="m"):
    return lake.sql(f"select count(*) as n from {table}").to_pylist()[0]["n"]


def test_a_row_is_seen_by_the_next_query_and_stays_one_row_through_flush_and_reopening(tmp_path):
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        assert table.write([{"ts": "2024-06-01T00:00:00", "n": 1}]) == 1
        assert lake.sql("select * from m").to_pylist() == table.to_arrow().to_pylist()
        assert count(lake) == 1
        version = table.flush()
        assert (count(lake), table.version(), table.snapshot().parts) == (1, version, ())
        table.write([{"ts": "2024-06-01T01:00:00", "n": 2}])
        assert numbers(table) == [1, 2]
    with opened(tmp_path / "lake") as lake:
        assert numbers(lake.table("M")) == [1, 2]
        assert lake.tables() == ["m"]


def test_rows_that_were_not_flushed_come_back_from_the_journal(tmp_path):
    lake = opened(tmp_path / "lake")
    lake.create_table("m", time_column="ts", bucket="1h").write(ticks(1, 2, 3))
    lake.close(flush=False)
    with opened(tmp_path / "lake") as lake:
        assert lake.tier.recovery_report.rows == 3
        assert (numbers(lake.table("m")), count(lake)) == ([1, 2, 3], 3)


def test_two_tables_and_many_threads_share_one_journal(lake):
    other = lake.create_table("other", time_column="ts", bucket="1h")
    tables = [lake.table("m"), other]

    def write(client):
        for n in range(20):
            tables[n % 2].write(ticks(client * 100 + n))

    threads = [threading.Thread(target=write, args=(client,)) for client in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = numbers(tables[0]) + numbers(tables[1])
    assert sorted(found) == sorted(client * 100 + n for client in range(8) for n in range(20))
    assert count(lake) + count(lake, "other") == 160


def test_hot_rows_join_and_group_with_cold_ones(lake):
    table = lake.table("m")
    table.write(ticks(1, 2, host="a"))
    table.flush()
    table.write(ticks(3, host="b"))
    table.write(ticks(4, 5, host="a"))
    answer = lake.sql("select host, count(*) c, sum(n) s from m group by host order by host")
    assert answer.to_pylist() == [{"host": "a", "c": 4, "s": 12}, {"host": "b", "c": 1, "s": 3}]
    assert lake.sql("select n from m where n > 2 and host = 'a' order by n").to_pydict() == {
        "n": [4, 5]
    }


def test_coverage_counts_hot_rows(lake):
    table = lake.table("m")
    table.write(ticks(1, hour=0))
    table.write(ticks(2, hour=2))
    missing = table.gaps("2024-06-01T00:00", "2024-06-01T03:00").to_pylist()
    assert [gap["buckets"] for gap in missing] == [1]
    answer = lake.sql("select * from gaps('m', '2024-06-01T00:00', '2024-06-01T03:00')")
    assert answer.num_rows == 1
    table.flush()
    assert table.gaps("2024-06-01T00:00", "2024-06-01T03:00").to_pylist() == missing


def test_an_older_version_has_only_what_was_committed_then(lake):
    table = lake.table("m")
    table.write(ticks(1))
    first = table.flush()
    table.write(ticks(2))
    assert numbers(table, at=first) == [1]
    assert lake.sql(f"select n from m as of version {first}").to_pydict() == {"n": [1]}
    assert numbers(table) == [1, 2]
    second = table.flush()
    assert numbers(table, at=second) == [1, 2]
    assert numbers(table, at=first) == [1]


def test_deletes_reach_hot_rows(lake):
    table = lake.table("m")
    table.write(ticks(1, 2, 3))
    table.delete("n = 2")
    assert (numbers(table), count(lake)) == ([1, 3], 2)


def test_F10_columns_change_between_the_writes_of_one_flush(lake):
    table = lake.table("m")
    table.write(ticks(1))
    wider = ticks(2).append_column("extra", pa.array(["x"]))
    with pytest.raises(Invalid, match="columns"):
        table.write(wider)
    table.write(wider, evolve=True)
    table.rename_column("n", "number")
    table.write(pa.table({"ts": ticks(3)["ts"], "host": ["b"], "number": [3], "extra": ["y"]}))
    for _ in range(2):
        answer = lake.sql("select number, extra from m order by number").to_pylist()
        assert answer == [
            {"number": 1, "extra": None},
            {"number": 2, "extra": "x"},
            {"number": 3, "extra": "y"},
        ]
        assert table.to_arrow().sort_by("number")["extra"].to_pylist() == [None, "x", "y"]
        table.flush()


def test_F11_a_column_that_is_null_in_every_row_exists_and_reads_as_null(lake):
    table = lake.table("m")
    nulls = ticks(1, 2).append_column("later", pa.nulls(2, pa.float64()))
    table.write(nulls)
    for _ in range(2):
        assert lake.sql("select later from m").to_pydict() == {"later": [None, None]}
        table.flush()


def test_F12_a_value_of_another_type_is_refused_with_its_column(lake):
    table = lake.table("m")
    table.write(ticks(1))
    for bad in (["x"], [1.5]):
        with pytest.raises(Invalid) as raised:
            table.write(ticks(2).set_column(2, "n", pa.array(bad)))
        assert "n" in str(raised.value)
    with pytest.raises(Invalid) as raised:
        table.write([{"ts": "2024-06-01", "host": "a", "n": "many"}])
    assert raised.value.facts["column"] == "n"
    table.write(ticks(2).set_column(2, "n", pa.array([2], pa.int32())))
    assert numbers(table) == [1, 2]


def test_F13_special_numbers_are_found_hot_and_cold(lake):
    table = lake.create_table("f", time_column="ts", bucket="1h")
    special = [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.0]
    times = pa.array([JUNE_US + n for n in range(len(special))], pa.timestamp("us"))
    table.write(pa.table({"ts": times, "v": special}))
    queries = ("v > 1", "v = 'nan'", "v < 0", "v = 0", "v > 0 and v < 1e-300")
    asked = [f"select count(*) c from f where {where}" for where in queries]
    hot = [lake.sql(sql).to_pylist() for sql in asked]
    table.flush()
    assert [lake.sql(sql).to_pylist() for sql in asked] == hot
    assert hot == [[{"c": n}] for n in (2, 1, 1, 1, 1)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_F14_times_at_the_limits_are_kept_exactly_or_refused(tmp_path, unit):
    per_s = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    year_1, year_9999 = -62_135_596_800 * per_s, 253_402_300_799 * per_s
    limits = [-(2**63) + 1, year_1, -1, 0, 1, year_9999, 2**63 - 1]
    kept = []
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table("t", time_column="ts", bucket="1d")
        for value in limits:
            if -(2**63) < value < 2**63:
                try:
                    table.write(pa.table({"ts": pa.array([value]).cast(pa.timestamp(unit))}))
                    kept.append(value)
                except Invalid as error:
                    assert "time" in str(error)  # noqa: PT017
        hot = table.to_arrow().column("ts").cast(pa.int64()).to_pylist()
        table.flush()
        cold = table.to_arrow().column("ts").cast(pa.int64()).to_pylist()
    assert {-1, 0, 1} <= set(kept)
    assert sorted(hot) == sorted(cold) == sorted(kept)


def test_Q11_an_empty_table_has_no_rows_and_its_columns(lake):
    assert lake.sql("select * from m").num_rows == 0
    assert lake.table("m").to_arrow().num_rows == count(lake) == 0


def test_Q12_text_that_is_not_utf8_is_refused(lake):
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    rows, table = ticks(1).set_column(1, "host", bad), lake.table("m")
    named = ticks(1).append_column("name", bad)
    for put in (table.write, table.append):
        for refused in (rows, named):
            with pytest.raises(Invalid, match="not UTF-8") as raised:
                put(refused)
            assert raised.value.facts["column"] in ("host", "name")
    assert count(lake) == 0
    assert table.version() == 1, "rows that were refused bring no columns"


def test_a_date64_within_a_day_is_refused_for_a_file_would_keep_the_day_alone(lake):
    table = lake.table("m")
    for put in (table.write, table.append):
        with pytest.raises(Invalid, match="not valid for its type") as raised:
            put(ticks(1).append_column("day", pa.array([12], pa.date64())))
        assert raised.value.facts["column"] == "day"
    assert count(lake) == 0


def test_a_write_is_whole_or_not_at_all(lake):
    table = lake.table("m")
    table.write(ticks(1))
    rows = ticks(2, 3).set_column(0, "ts", pa.array([JUNE_US, None], pa.timestamp("us")))
    with pytest.raises(Invalid, match="time"):
        table.write(rows)
    with pytest.raises(Invalid):
        table.write([{"ts": "2024-06-01", "n": 1}, "not a row"])
    assert numbers(table) == [1]


def test_what_the_caller_changes_after_the_write_changes_nothing(lake):
    import numpy as np

    values = np.array([7], dtype=np.int64)
    rows = ticks(7).set_column(2, "n", pa.array(values))
    lake.table("m").write(rows)
    values[0] = 8
    assert numbers(lake.table("m")) == [7]


def test_a_large_write_goes_straight_to_the_lake(lake):
    many = DIRECT_BYTES_MIN // 8
    table = lake.create_table("wide", time_column="ts", bucket="1h")
    times = pa.array(range(JUNE_US, JUNE_US + many), pa.int64()).cast(pa.timestamp("us"))
    table.write(pa.table({"ts": times, "n": times.cast(pa.int64())}))
    assert table.snapshot().parts == ()
    assert count(lake, "wide") == many


def test_a_table_of_whole_buckets_takes_no_single_rows(lake):
    table = lake.create_table("batch", time_column="ts", bucket="1h", overlap="reject")
    with pytest.raises(Invalid, match="buckets"):
        table.write(ticks(1))
    table.append(ticks(1))
    assert count(lake, "batch") == 1


def test_more_entities_than_the_limit_are_refused_before_the_journal(tmp_path):
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table(
            "m", time_column="ts", bucket="1h", entity_columns="host", entities_max=2
        )
        table.write(ticks(1, host="a"))
        table.write(ticks(2, host="b"))
        with pytest.raises(Overloaded, match="entities"):
            table.write(ticks(3, host="c"))
        table.write(ticks(4, host="b"))
        table.flush()
        assert numbers(table) == [1, 2, 4]


def test_a_full_buffer_is_flushed_and_where_it_cannot_be_writes_are_refused(tmp_path):
    with opened(tmp_path / "lake", hot_bytes_max=2_000, write_wait_s=0.05) as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        kept = []
        with table._flush_lock:  # as long as this is held, no flush makes room
            for n in range(80):
                try:
                    table.write(ticks(n))
                    kept.append(n)
                except Overloaded as error:
                    assert error.facts["hot_bytes_max"] == 2_000  # noqa: PT017
        assert 0 < len(kept) < 80
        assert numbers(table) == kept
        for n in range(200, 400):
            table.write(ticks(n), wait_s=30)
        assert numbers(table) == [*kept, *range(200, 400)]
        assert table.version() > 2


def test_F09_every_table_is_flushed_once_it_is_old_enough(tmp_path):
    settings = calm()
    settings = type(settings)(settings.wal, flush_age_s=0.05, flush_look_s=0.01)
    with open_lake(str(tmp_path / "lake"), settings) as lake:
        tables = [lake.create_table(name, time_column="ts", bucket="1h") for name in ("a", "b")]
        tables[1].write(ticks(1))
        waited = threading.Event()
        for n in range(3_000):
            tables[0].write(ticks(n))
            if not tables[1].snapshot().parts:
                break
            waited.wait(0.01)
        assert tables[1].snapshot().parts == ()
        assert numbers(tables[1]) == [1]


def test_W24_a_second_process_is_told_who_writes(lake, tmp_path):
    import os

    with pytest.raises(Conflict) as raised:
        opened(tmp_path / "lake")
    assert raised.value.facts["process"] == str(os.getpid())


def test_another_reader_sees_what_was_acknowledged_without_disturbing_the_owner(lake, tmp_path):
    table = lake.table("m")
    with tc.connect(tmp_path / "lake", read_only=True) as reader:
        assert count(reader) == 0
        for n in range(40):
            table.write(ticks(n))
            if n % 7 == 0:
                table.flush()
            assert numbers(reader.table("m")) == list(range(n + 1))
        assert count(reader) == 40
        with pytest.raises(Invalid, match="reading only"):
            reader.table("m").write(ticks(1))
        with pytest.raises(Invalid, match="reading only"):
            reader.create_table("x", time_column="ts", bucket="1h")
    lake.close(flush=False)
    with tc.connect(tmp_path / "lake", read_only=True) as reader:
        assert numbers(reader.table("m")) == list(range(40))


def test_O10_a_lake_whose_journal_is_gone_is_not_begun_anew(tmp_path):
    lake = opened(tmp_path / "lake")
    lake.create_table("m", time_column="ts", bucket="1h").write(ticks(1))
    lake.close(flush=False)
    (tmp_path / "lake" / "journal").rename(tmp_path / "elsewhere")
    with pytest.raises(Corruption, match="journal"):
        opened(tmp_path / "lake")


def test_a_folder_with_other_things_in_it_is_not_made_into_a_lake(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Invalid, match="not a lake"):
        opened(tmp_path)
    with pytest.raises(NotFound, match="no lake"):
        tc.connect(tmp_path / "nothing", read_only=True)


@pytest.mark.parametrize("name", ["../x", "*", "a b", "", "1a", "x" * 64, "a/b", "duckdb_tables"])
def test_A06_names_that_lead_elsewhere_are_refused(lake, name):
    with pytest.raises(ThermoclineError):
        lake.create_table(name, time_column="ts", bucket="1h")
    assert lake.tables() == ["m"]


def test_names_that_differ_in_case_alone_are_one_name(lake):
    with pytest.raises(Conflict):
        lake.create_table("M", time_column="ts", bucket="1h")
    with pytest.raises(NotFound) as raised:
        lake.table("n")
    assert raised.value.facts["tables"] == ["m"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("sync", "never"), ("hot_bytes", 1), ("flush_age_s", -1), ("hot_bytes_max", "64 apples")],
)
def test_O06_a_setting_that_is_none_is_named(tmp_path, setting, value):
    with pytest.raises(Invalid) as raised:
        tc.connect(tmp_path / "lake", **{setting: value})
    assert setting in str(raised.value)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_every_way_to_sync_keeps_rows_through_closing_and_opening(tmp_path, sync):
    with tc.connect(tmp_path / "lake", sync=sync, flush_age_s=NEVER_S) as lake:
        lake.create_table("m", time_column="ts", bucket="1h").write(ticks(1, 2))
        lake.close(flush=False)
    with tc.connect(tmp_path / "lake") as lake:
        assert numbers(lake.table("m")) == [1, 2]


@pytest.mark.parametrize("workers", [0, 4])
def test_a_lake_that_is_left_has_closed_its_readers_and_released_their_pins(tmp_path, workers):
    many = pa.table({"ts": pa.array(range(JUNE_US, JUNE_US + 1_000_000), pa.timestamp("us"))})
    with tc.connect(tmp_path / "lake", query_workers=workers, flush_age_s=NEVER_S) as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        table.append(many)
        table.write([{"ts": "2024-06-01"}])
        readers = [table.scan(), table.scan(where="ts > '2000-01-01'")]
        readers += [lake.sql_reader("select * from m")]
        readers += [lake.answer("select * from m")] if workers else []
        for reader in readers:
            assert reader.read_next_batch().num_rows
        readers += [table.scan()]
        held = table.pin()
        held.__enter__()
        pins = Path(table.root(), "_pins")
        assert len(list(pins.iterdir())) == len(readers) + 1
    assert list(pins.iterdir()) == []
    for reader in readers:
        with pytest.raises(Unavailable, match="closed"):
            reader.read_next_batch()
        with pytest.raises(Unavailable, match="closed"):
            reader.read_all()
    held.__exit__(None, None, None)


def test_a_closed_lake_says_so_at_every_call(lake):
    table = lake.table("m")
    lake.close()
    lake.close()
    for use in (
        lambda: lake.table("m"),
        lake.tables,
        lambda: lake.create_table("o", time_column="ts", bucket="1h"),
        lambda: lake.sql("select 1"),
        lambda: lake.sql_reader("select 1"),
        lambda: lake.answer("select 1"),
        lambda: lake.cancel("q"),
        table.hot,
        table.snapshot,
        lambda: lake.entities,
        lambda: lake.entity("m"),
        lake.flush,
        lambda: table.write(ticks(1)),
        lambda: table.append(pa.table({"ts": pa.array([0], pa.timestamp("us"))})),
        table.scan,
        table.to_arrow,
        table.version,
        table.schema,
        table.history,
        table.held,
        table.flush,
        table.vacuum,
        lambda: table.add_column("x", pa.int64()),
        lambda: table.pin().__enter__(),
    ):
        with pytest.raises(Unavailable, match="the lake is closed"):
            use()
    assert repr(table) == f"LakeTable('m', {table.root()!r}: the lake is closed)"
    assert table._repr_html_() is None


def test_closing_leaves_nothing_to_replay(tmp_path):
    with opened(tmp_path / "lake") as lake:
        lake.create_table("m", time_column="ts", bucket="1h").write(ticks(1))
    assert len(list((tmp_path / "lake" / "journal").glob("*.wal"))) == 1
    with opened(tmp_path / "lake") as lake:
        assert lake.tier.recovery_report.frames == 0
        assert numbers(lake.table("m")) == [1]


def test_Q06_queries_in_worker_processes_see_hot_rows_and_cannot_harm_the_lake(tmp_path):
    with tc.connect(tmp_path / "lake", query_workers=1, flush_age_s=NEVER_S) as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        table.write(ticks(1, 2))
        table.flush()
        table.write(ticks(3))
        assert count(lake) == 3
        with pytest.raises(Overloaded):
            lake.sql("select length(repeat('x', 2000000000)) from m")
        table.write(ticks(4))
        assert lake.sql("select n from m order by n").to_pydict() == {"n": [1, 2, 3, 4]}
        with lake.sql_reader("select n from m where n > 2") as reader:
            assert sorted(reader.read_all().column("n").to_pylist()) == [3, 4]
        with pytest.raises(NotFound):
            lake.sql("select * from nothing")


def next_commit(table):
    """Return the file that the table's next commit will have."""
    return Path(table.root()) / commit_path(table.version() + 1)


def test_a_table_whose_flush_fails_keeps_no_other_from_being_flushed(lake):
    tables = [lake.table("m"), lake.create_table("z", time_column="ts", bucket="1h")]
    for table in tables:
        table.write(ticks(1))
    damage = next_commit(tables[0])
    damage.write_bytes(b"no commit")
    with pytest.raises(Corruption):
        lake.flush()
    assert tables[1].snapshot().parts == ()
    damage.unlink()
    lake.flush()
    assert [numbers(table) for table in tables] == [[1], [1]]


def test_a_lake_that_cannot_flush_lets_go_of_its_journal_all_the_same(tmp_path):
    lake = opened(tmp_path / "lake")
    table = lake.create_table("m", time_column="ts", bucket="1h")
    table.write(ticks(1))
    damage = next_commit(table)
    damage.write_bytes(b"no commit")
    with pytest.raises(Corruption):
        lake.close()
    damage.unlink()
    with opened(tmp_path / "lake") as lake:
        assert numbers(lake.table("m")) == [1]


def test_rows_that_were_refused_leave_no_entity_behind(tmp_path):
    with opened(tmp_path / "lake", hot_bytes_max=2_000, write_wait_s=0.0) as lake:
        table = lake.create_table(
            "m", time_column="ts", bucket="1h", entity_columns="host", entities_max=2
        )
        table.write(ticks(1, host="a"))

        def fill():
            for n in range(200):
                table.write(ticks(n, host="a"))

        with table._flush_lock:  # as long as this is held, no flush makes room
            with pytest.raises(Overloaded, match="hot"):
                fill()
            with pytest.raises(Overloaded, match="hot"):
                table.write(ticks(1, host="b"))
        lake.flush()
        table.write(ticks(2, host="c"))
        with pytest.raises(Overloaded, match="entities"):
            table.write(ticks(3, host="b"))


def test_I08_a_write_that_is_sent_again_is_written_once_hot_flushed_and_after_a_restart(tmp_path):
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h", entity_columns=["host"])
        assert table.write(ticks(1, 2), request_id="a") == 2
        assert table.write(ticks(7, 8, 9), request_id="a") == 2, "what the first one did"
        assert table.write(ticks(3), request_id="b") == 1
        lake.close(flush=False)
    with opened(tmp_path / "lake") as lake:
        table = lake.table("m")
        assert table.write(ticks(1, 2), request_id="a") == 2
        table.flush()
        assert table.write(ticks(1, 2), request_id="a") == 2
    with opened(tmp_path / "lake") as lake:
        table = lake.table("m")
        assert table.write(ticks(3), request_id="b") == 1
        assert table.write(ticks(4), request_id="c") == 1
        assert numbers(table) == [1, 2, 3, 4]


def test_I08_resends_at_the_same_time_are_written_once(lake):
    table = lake.table("m")
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda _: table.write(ticks(1, 2), request_id="a"), range(16)))
    assert counts == [2] * 16
    assert numbers(table) == [1, 2]


def test_I08_a_request_that_was_refused_may_be_sent_again(lake):
    table = lake.table("m")
    with pytest.raises(Invalid):
        table.write([{"ts": None, "host": "a", "n": 1}], request_id="a")
    assert table.write(ticks(1), request_id="a") == 1
    assert numbers(table) == [1]
    for unfit in ("", "x" * 257):
        with pytest.raises(Invalid, match="idempotency key"):
            table.write(ticks(2), request_id=unfit)


def test_A01_a_tenant_has_tables_of_its_own(tmp_path):
    with Node(str(tmp_path / "lake"), calm()) as node:
        acme, other = node.create_tenant("acme"), node.lake()
        for lake, number in ((acme, 1), (other, 2)):
            lake.create_table("m", time_column="ts", bucket="1h").write(ticks(number))
        acme.create_table("mine", time_column="ts", bucket="1h")
        assert other.tables() == ["m"]
        with pytest.raises(NotFound, match="no such table"):
            other.sql("select * from mine")
        with pytest.raises(Conflict):
            node.create_tenant("acme")
        for name in ("../x", "Acme", "", "default", "a" * 41):
            with pytest.raises((Invalid, Conflict)):
                node.create_tenant(name)
        with pytest.raises(NotFound, match="no such tenant"):
            node.lake("nobody")
        node.close(flush=False)
    with Node(str(tmp_path / "lake"), calm()) as node:
        assert node.tenants() == ["default", "acme"]
        assert [numbers(node.lake(name).table("m")) for name in node.tenants()] == [[2], [1]]
        node.flush()
        assert [node.lake(name).table("m").snapshot().parts for name in node.tenants()] == [(), ()]
        assert numbers(node.lake("acme").table("m")) == [1]


def test_an_answer_says_what_it_was_read_from(tmp_path):
    with open_lake(tmp_path / "lake", replace(calm(), query_workers=1)) as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        for hour in range(3):
            table.write(ticks(1, 2, hour=hour))
            table.flush()
        table.write(ticks(5, hour=2))
        june = "2024-06-01 02:00:00"
        for _ in range(2):
            answer = lake.answer("select n from m where ts >= $1", [june], query_id="q7")
            read = answer.report.tables["m"]
            assert len(answer.read_all()) == 3
            assert answer.query_id == "q7"
            assert (read.hot_rows, read.cold_rows, read.files, read.files_pruned) == (1, 2, 1, 2)
            assert read.version == table.version()
            assert read.as_of > table.history().column("time")[-1].as_py().isoformat()
        assert lake.cancel("q7") is False


def test_I12_writes_that_come_together_count_together_and_can_all_be_flushed(tmp_path):
    with opened(tmp_path / "lake") as lake:
        options = {"time_column": "ts", "bucket": "1h", "entity_columns": ["host"]}
        table = lake.create_table("m", **options, entities_max=2)
        table.write(ticks(0, host="a"))
        with lake.tier.group.pause():
            taken = [table.submit(ticks(1, host="b"))]
            for host in ("c", "d"):
                with pytest.raises(Overloaded, match="more entities"):
                    table.submit(ticks(2, host=host))
            taken.append(table.submit(ticks(3, host="b")))
        assert [one.result() for one in taken] == [1, 1]
        table.flush()
        assert numbers(table) == [0, 1, 3]


def test_I08_a_request_nobody_knows_the_fate_of_is_looked_for_before_it_is_written_again(tmp_path):
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        table.write(ticks(1), request_id="a")
        key = request_key("b")
        assert table._request_ledger.begin(key) is None
        table._submit(ticks(2), False, None, key).result()
        unknown = Future()
        unknown.set_exception(OutcomeUnknown("the answer was lost"))
        table._request_ledger.end(key, unknown)
        assert table.write(ticks(2), request_id="b") == 1
        assert numbers(table) == [1, 2]


def test_I08_a_large_write_that_is_sent_again_is_written_once(tmp_path):
    rows = pa.table(
        {
            "ts": pa.array(range(JUNE_US, JUNE_US + 600_000), pa.timestamp("us")),
            "noise": pa.array([f"{n:030d}" for n in range(600_000)]),
        }
    )
    with opened(tmp_path / "lake") as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        assert table.write(rows, request_id="a") == 600_000
        table._request_ledger._known = None
        table._request_ledger._load = dict
        assert table.write(rows, request_id="a") == 600_000
        assert count(lake) == 600_000


def test_what_waits_for_a_request_cannot_be_cancelled_by_one_of_those_who_do(lake):
    table = lake.table("m")
    with lake.tier.group.pause():
        first = table.submit(ticks(1), request_id="a")
        assert not first.cancel()
        again = table.submit(ticks(1), request_id="a")
        assert not again.cancel()
    assert (first.result(), again.result()) == (1, 1)
    assert numbers(table) == [1]


def test_a_lake_whose_settings_want_entities_names_the_package_that_is_not_there(tmp_path):
    program = """
import sys
sys.modules["psycopg"] = None  # as if it were not installed
import thermocline as tc
try:
    tc.connect(sys.argv[1], postgres="embedded")
except tc.errors.Unsupported as error:
    print(error.hint)
tc.connect(sys.argv[1]).close()
"""
    words = [sys.executable, "-c", program, str(tmp_path / "lake")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "thermocline[entities]" in done.stdout
