"""Tables of a lake renamed, dropped, brought back and copied, beside writers and readers."""

import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import thermocline as tc
from thermocline.errors import Conflict, Invalid, NotFound, TableNotFound

START = datetime(2024, 6, 1, tzinfo=UTC)


def rows(count, start=0):
    return [{"ts": START + timedelta(hours=start + n), "n": start + n} for n in range(count)]


def numbers(table):
    return sorted(table.to_arrow()["n"].to_pylist())


@pytest.fixture
def lake(tmp_path):
    """A lake with a table of three cold rows and two hot ones."""
    with tc.connect(tmp_path / "lake") as lake:
        table = lake.create_table("prices", time_column="ts", bucket="1h")
        table.write(rows(3))
        table.flush()
        table.write(rows(2, start=3))
        yield lake


def reopened(lake):
    root = lake.root()
    lake.close(flush=False)
    return tc.connect(root)


def test_a_renamed_table_keeps_its_rows_and_its_history(lake):
    table = lake.table("prices")
    renamed = lake.rename_table("prices", "quotes")
    assert (lake.tables(), renamed.name, table.name) == (["quotes"], "quotes", "quotes")
    table.write(rows(1, start=9))
    assert numbers(renamed) == [0, 1, 2, 3, 4, 9]
    assert lake.sql("select count(*) as n from quotes").to_pylist() == [{"n": 6}]
    with pytest.raises(TableNotFound):
        lake.sql("select * from prices")
    with pytest.raises(TableNotFound):
        lake.table("prices")
    again = reopened(lake)
    assert numbers(again.table("quotes")) == [0, 1, 2, 3, 4, 9]
    assert again.table("quotes").history().num_rows >= 2
    again.close()


def test_a_name_that_is_taken_is_a_conflict_and_nothing_changes(lake):
    lake.create_table("quotes", time_column="ts", bucket="1h")
    for act in (lake.rename_table, lake.copy_table):
        with pytest.raises(Conflict):
            act("prices", "QUOTES")
    assert lake.tables() == ["prices", "quotes"]
    assert numbers(lake.table("prices")) == [0, 1, 2, 3, 4]
    lake.drop_table("quotes")
    assert numbers(lake.rename_table("prices", "quotes")) == [0, 1, 2, 3, 4]


def test_the_capitals_of_a_name_can_be_changed(lake):
    assert lake.rename_table("prices", "Prices").name == "Prices"
    assert lake.tables() == ["Prices"]
    with reopened(lake) as again:
        assert again.tables() == ["Prices"]


@pytest.mark.parametrize("name", ["", "a b", "duckdb_x", "../x", 5])
def test_a_name_that_no_table_can_have_is_refused(lake, name):
    for act in (lake.rename_table, lake.copy_table):
        with pytest.raises(Invalid):
            act("prices", name)
    assert lake.tables() == ["prices"]


def test_a_dropped_table_comes_back_with_every_acknowledged_row(lake):
    table = lake.table("prices")
    lake.drop_table("prices")
    assert lake.tables() == []
    assert lake.dropped_tables()["table"].to_pylist() == ["prices"]
    for act in (
        lambda: table.write(rows(1)),
        table.to_arrow,
        lambda: lake.table("prices"),
        lambda: lake.sql("select * from prices"),
        lambda: lake.drop_table("prices"),
    ):
        with pytest.raises(NotFound):
            act()
    with reopened(lake) as again:
        assert again.tables() == []
        assert numbers(again.undrop_table("PRICES")) == [0, 1, 2, 3, 4]
        assert again.dropped_tables().num_rows == 0
        assert again.sql("select sum(n) as n from prices").to_pylist() == [{"n": 10}]


def test_the_name_of_a_dropped_table_is_free_and_the_table_comes_back_under_another(lake):
    lake.drop_table("prices")
    again = lake.create_table("prices", time_column="ts", bucket="1h")
    again.write(rows(1, start=50))
    assert lake.sql("select n from prices").to_pylist() == [{"n": 50}]
    with pytest.raises(Conflict):
        lake.undrop_table("prices")
    older = lake.undrop_table("prices", to="older")
    assert (numbers(older), numbers(again)) == ([0, 1, 2, 3, 4], [50])
    assert lake.tables() == ["older", "prices"]
    answer = lake.sql("select (select count(*) from prices) a, (select count(*) from older) b")
    assert answer.to_pylist() == [{"a": 1, "b": 5}]


def test_of_two_dropped_tables_of_one_name_the_last_comes_back_first(lake):
    lake.drop_table("prices")
    lake.create_table("prices", time_column="ts", bucket="1h").write(rows(1, start=50))
    lake.drop_table("prices")
    assert lake.dropped_tables()["table"].to_pylist() == ["prices", "prices"]
    assert numbers(lake.undrop_table("prices")) == [50]
    assert numbers(lake.undrop_table("prices", "older")) == [0, 1, 2, 3, 4]
    with pytest.raises(TableNotFound, match="no dropped table"):
        lake.undrop_table("prices", "more")


def test_a_copy_has_the_rows_of_its_moment_and_goes_its_own_way(lake):
    copy = lake.copy_table("prices", "copied")
    assert numbers(copy) == [0, 1, 2, 3, 4]
    assert copy.version() == 1
    lake.table("prices").write(rows(1, start=60))
    copy.write(rows(1, start=70))
    copy.delete("n = 0")
    lake.table("prices").delete("n = 1")
    assert numbers(copy) == [1, 2, 3, 4, 70]
    assert numbers(lake.table("prices")) == [0, 2, 3, 4, 60]
    assert copy.fsck().is_sound
    first = lake.copy_table("prices", "first", at=3)
    assert numbers(first) == [0, 1, 2]
    lake.drop_table("prices")
    assert lake.vacuum_dropped(dry_run=False, grace="0s", allow_short_grace=True) == ["prices"]
    with reopened(lake) as again:
        assert again.tables() == ["copied", "first"]
        assert numbers(again.table("copied")) == [1, 2, 3, 4, 70]
        assert again.table("copied").fsck().is_sound


def test_a_copy_keeps_changed_columns_and_deleted_rows(lake):
    table = lake.table("prices")
    table.flush()
    table.rename_column("n", "m")
    table.write([{"ts": START + timedelta(hours=30), "m": 30, "w": "x"}], evolve=True)
    table.delete("m = 2")
    copy = lake.copy_table("prices", "copied")
    assert copy.schema() == table.schema()
    order = [("m", "ascending")]
    assert copy.to_arrow().sort_by(order).equals(table.to_arrow().sort_by(order))
    assert copy.gaps().equals(table.gaps())


def test_a_vacuum_of_dropped_tables_keeps_young_ones_and_those_that_are_read(lake):
    reader = lake.sql_reader("select n from prices")
    pinned = lake.table("prices").pin()
    pinned.__enter__()
    lake.drop_table("prices")
    assert lake.vacuum_dropped(dry_run=False) == []
    now = {"grace": "0s", "allow_short_grace": True}
    assert lake.vacuum_dropped(dry_run=False, **now) == []  # a reader has pinned it
    assert sorted(reader.read_all()["n"].to_pylist()) == [0, 1, 2, 3, 4]
    reader.close()
    pinned.__exit__(None, None, None)
    assert lake.vacuum_dropped(**now) == ["prices"]
    assert lake.dropped_tables().num_rows == 1  # that was a dry run
    assert lake.vacuum_dropped(dry_run=False, **now) == ["prices"]
    with pytest.raises(TableNotFound):
        lake.undrop_table("prices")
    with pytest.raises(Invalid, match="grace period"):
        lake.vacuum_dropped(grace="1s")
    with reopened(lake) as again:  # the journal still has rows of the table that is gone
        assert again.tables() == []


def test_a_reader_in_another_process_follows_the_names(lake):
    lake.flush()
    with tc.connect(lake.root(), read_only=True) as reader:
        assert reader.sql("select count(*) as n from prices").to_pylist() == [{"n": 5}]
        lake.rename_table("prices", "quotes")
        assert reader.tables() == ["quotes"]
        assert reader.sql("select count(*) as n from quotes").to_pylist() == [{"n": 5}]
        lake.create_table("prices", time_column="ts", bucket="1h").write(rows(1, start=80))
        assert reader.sql("select n from prices").to_pylist() == [{"n": 80}]
        assert numbers(reader.table("prices")) == [80]
        lake.drop_table("prices")
        with pytest.raises(TableNotFound):
            reader.table("prices")
        with pytest.raises(TableNotFound):
            reader.sql("select n from prices")
        with pytest.raises(Invalid):
            reader.drop_table("quotes")


def test_writers_beside_a_drop_get_an_error_or_their_rows_come_back(lake):
    table = lake.create_table("busy", time_column="ts", bucket="1h")
    table.write(rows(1))
    accepted, started = [], threading.Barrier(4)

    def write(place):
        started.wait(30)
        for turn in range(200):
            number = 1000 * place + turn + 1
            try:
                table.write([{"ts": START, "n": number}])
            except TableNotFound:
                return
            accepted.append(number)

    writers = [threading.Thread(target=write, args=(place,)) for place in range(3)]
    for one in writers:
        one.start()
    started.wait(30)
    while len(accepted) < 5 and any(one.is_alive() for one in writers):
        pass
    lake.drop_table("busy")
    for one in writers:
        one.join()
    assert numbers(lake.undrop_table("busy")) == sorted([0, *accepted])


def test_flushes_and_queries_run_beside_renames(lake):
    stop, failed = threading.Event(), []

    def flush():
        while not stop.is_set():
            try:
                lake.node.flush()
                lake.sql("select 1 as n")
            except Exception as error:  # noqa: BLE001
                failed.append(error)

    other = threading.Thread(target=flush)
    other.start()
    table = lake.table("prices")
    for turn in range(20):
        table.write(rows(1, start=100 + turn))
        lake.rename_table(table.name, f"name_{turn % 3}")
    stop.set()
    other.join()
    assert failed == []
    assert numbers(table) == [0, 1, 2, 3, 4, *range(100, 120)]


def test_a_backup_of_a_lake_with_dropped_tables_is_restored_without_them(lake, tmp_path):
    from thermocline.backup.backup import backup, restore

    lake.create_table("kept", time_column="ts", bucket="1h").write(rows(2))
    lake.drop_table("prices")
    backup(lake.root(), str(tmp_path / "copy"))
    restore(str(tmp_path / "copy"), str(tmp_path / "restored"))
    with tc.connect(tmp_path / "restored") as again:
        assert again.tables() == ["kept"]
        assert again.dropped_tables().num_rows == 0
        assert numbers(again.table("kept")) == [0, 1]
        with pytest.raises(TableNotFound):
            again.undrop_table("prices")


@pytest.mark.parametrize("symbol", [["A", "B", "B"], None])
def test_the_first_row_that_is_not_alone_in_its_bucket_is_named(tmp_path, symbol):
    table = tc.TimeSeriesTable.create(
        tmp_path / "t",
        time_column="ts",
        bucket="1h",
        entity_columns=["symbol"] if symbol else [],
        unique=True,
    )
    times = [datetime(2024, 6, 1, 1, minute, tzinfo=UTC) for minute in (0, 10, 50)]
    rows = pa.table({"ts": times, **({"symbol": symbol} if symbol else {})})
    with pytest.raises(Invalid, match="two rows of one entity") as caught:
        table.append(rows)
    assert caught.value.interval == "[2024-06-01T01:00:00Z, 2024-06-01T02:00:00Z)"
    assert caught.value.facts.get("entity") == ({"symbol": "B"} if symbol else None)
    assert table.version() == 1
