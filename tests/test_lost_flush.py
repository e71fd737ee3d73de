"""A flush whose commit was lost after the journal let its rows go: an error, never fewer rows."""

from datetime import UTC, datetime, timedelta

import pytest

import thermocline as tc
from thermocline.errors import Corruption
from thermocline.table import repair_table, survey_loss

START = datetime(2026, 6, 1, tzinfo=UTC)
NEVER_S = 10**9


def write(lake, first, count):
    rows = [{"ts": START + timedelta(minutes=n), "v": n} for n in range(first, first + count)]
    lake.table("load").write(rows)


@pytest.fixture
def folder(tmp_path):
    """A lake whose rows were all flushed, and whose journal has removed their files."""
    folder = tmp_path / "lake"
    with tc.connect(folder, flush_age_s=NEVER_S) as lake:
        lake.create_table("load", time_column="ts", bucket="1h")
        write(lake, 0, 10)
        lake.flush()
        write(lake, 10, 10)
    return folder


def lose_the_newest_commit(folder):
    """Remove the newest commit and all that a table has to prove it; return the table's folder."""
    (table,) = (folder / "tables").iterdir()
    newest = sorted((table / "_log").glob("*.json"))[-1]
    newest.unlink()
    (table / "_log" / "CURRENT").unlink()
    for path in (table / "_coverage" / "table").iterdir():
        path.unlink()
    return table


def test_D03_a_log_behind_what_the_journal_handed_over_is_refused_by_name(folder):
    lose_the_newest_commit(folder)
    with pytest.raises(Corruption) as error:
        tc.connect(folder)
    assert error.value.facts["table"] == "load"
    with tc.connect(folder, read_only=True) as reader, pytest.raises(Corruption):
        reader.sql("select count(*) from load")


def test_D03_a_repair_accepts_the_loss_and_the_lake_opens_with_a_hole_on_record(folder):
    table = lose_the_newest_commit(folder)
    loss = survey_loss(table)
    assert loss.is_needed
    assert [stray.rows for stray in loss.segments] == [10]
    assert repair_table(table) is not None
    with tc.connect(folder) as lake:
        assert lake.sql("select count(*) from load").to_pylist() == [{"count_star()": 10}]
        assert lake.table("load").holes().num_rows == 1
        write(lake, 20, 5)
        assert lake.sql("select count(*) as n from load")["n"].to_pylist() == [15]
    with tc.connect(folder) as lake:
        assert lake.sql("select count(*) as n from load")["n"].to_pylist() == [15]


def test_D08_a_flipped_byte_in_the_journals_marks_is_named_or_does_no_harm(folder):
    path = folder / "journal" / "retired.json"
    whole = path.read_bytes()
    for offset in range(0, len(whole), 11):
        flipped = bytearray(whole)
        flipped[offset] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(Corruption) as error:
            tc.connect(folder)
        assert "retired.json" in str(error.value.facts["path"])
    path.write_bytes(whole)
    with tc.connect(folder) as lake:
        assert lake.sql("select count(*) as n from load")["n"].to_pylist() == [20]
