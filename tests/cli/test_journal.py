"""journal inspect and journal repair on the command line."""

import re

import pytest

from hot.repairing import LOGS, METRICS, frames_of, path_of, put_journal, started, written
from thermocline.disk import OsDisk

FIRST = path_of(1).rpartition("/")[2]


@pytest.fixture
def lake(shell):
    """A folder with `lake`, whose journal has 3 and 2 frames in two files."""
    put_journal(shell.folder / "lake", written((3, 2)))
    return shell


@pytest.fixture
def hurt(lake):
    """The same with a flipped byte in the payload of lsn 2."""
    path = lake.folder / "lake" / "journal" / FIRST
    data = bytearray(path.read_bytes())
    data[frames_of(written((3, 2)), 1)[1][1] + 80] ^= 0xFF
    path.write_bytes(data)
    return lake


def content(shell):
    """Return every file of the lake but the lock."""
    files = (shell.folder / "lake").rglob("*")
    return {path: path.read_bytes() for path in files if path.is_file() and path.name != "lock"}


def test_a_sound_journal_is_shown_and_would_start(lake):
    ran = lake.ok("journal", "inspect", "lake")
    assert "file 1 state whole first lsn 1 last lsn 3 frames 3" in ran.out
    assert f"table {METRICS.hex()} frames 3 rows 6" in ran.out
    assert "watermark lsn 5 durable, 5 visible" in ran.out
    assert ran.out.endswith("a start would use lsn 6 next\n")


def test_the_folder_of_the_journal_can_be_named_as_well(lake):
    whole = lake.ok("journal", "inspect", "lake", "--json").json()
    assert lake.ok("journal", "inspect", "lake/journal", "--json").json() == whole


def test_the_json_has_the_keys_that_the_page_names(hurt):
    from cli.test_page import SECTIONS

    ran = hurt.run("journal", "inspect", "lake", "--json")
    assert ran.code == 8
    found = ran.json()
    named = set(re.findall(r"`(\w+)`", SECTIONS["thermocline journal inspect"]))
    inner = [found["watermark"], *found["files"], *found["tables"], *found["damages"]]
    assert named >= {key for one in (found, *inner) for key in one}
    assert (found["start"], found["is_sound"]) == ("refuse", False)
    assert found["files"][0]["state"] == "damaged"


def test_W13_a_damaged_journal_is_explained_and_exits_with_8(hurt):
    before = content(hurt)
    ran = hurt.run("journal", "inspect", "lake")
    assert ran.code == 8
    assert f"damage    {FIRST}, offset 436: a frame's checksum differs" in ran.out
    assert "lost: lsn 2, 372 bytes, written after 2024-06-01T00:00:01Z and before" in ran.out
    assert f"of table {LOGS.hex()}" in ran.out
    assert "a start would refuse: a frame's checksum differs" in ran.out
    assert FIRST in ran.told()[1]
    assert content(hurt) == before


def test_a_torn_end_is_told_in_bytes_and_is_no_failure(shell):
    disk = written((3,), is_closed=False)
    disk.overwrite(path_of(1), disk.tree()[path_of(1)] + b"torn")
    put_journal(shell.folder / "lake", disk)
    ran = shell.ok("journal", "inspect", "lake")
    assert "a start would cut 4 bytes of an unacknowledged write, and use lsn 4 next" in ran.out
    found = shell.ok("journal", "inspect", "lake", "--json").json()
    assert (found["start"], found["torn_bytes"]) == ("cut", 4)


def test_W13_a_repair_without_a_yes_explains_changes_nothing_and_exits_with_8(hurt):
    before = content(hurt)
    ran = hurt.run("journal", "repair", "lake")
    assert ran.code == 8
    assert "lost: lsn 2" in ran.out
    assert "would copy the damaged bytes to" in ran.out
    assert "with 1 write lost; --yes does it" in ran.out
    assert "--yes" in ran.told()[2]
    assert content(hurt) == before


def test_W13_a_repair_with_a_yes_sets_the_damage_aside_and_the_journal_starts(hurt):
    damaged = (hurt.folder / "lake" / "journal" / FIRST).read_bytes()
    ran = hurt.ok("journal", "repair", "lake", "--yes")
    assert ran.out.endswith("repaired: the journal is usable, with 1 write lost\n")
    (copy,) = (hurt.folder / "lake" / "journal" / "quarantine").iterdir()
    assert copy.read_bytes() == damaged
    assert str(copy) in ran.out
    assert started(OsDisk(), str(hurt.folder / "lake" / "journal")) == [1, (2, 2), 3, 4, 5]
    assert "hole      lost: lsn 2" in hurt.ok("journal", "inspect", "lake").out
    after = content(hurt)
    assert "nothing to repair" in hurt.ok("journal", "repair", "lake", "--yes").out
    assert content(hurt) == after


def test_the_json_of_a_repair_says_what_is_lost_and_where_the_copy_is(hurt):
    dry = hurt.run("journal", "repair", "lake", "--json")
    assert (dry.code, dry.error()["code"]) == (8, "corruption")
    done = hurt.ok("journal", "repair", "lake", "--yes", "--json").json()
    assert {**done, "is_dry_run": True} == dry.json()
    assert (done["is_dry_run"], done["lost_lsns"]) == (False, 1)
    assert done["damages"][0]["tables"] == [LOGS.hex()]
    assert done["quarantined"][0].endswith(".wal")


def test_W24_a_repair_while_a_process_holds_the_journal_is_a_conflict(hurt):
    before = content(hurt)
    lock = OsDisk().lock(str(hurt.folder / "lake" / "journal" / "lock"), b"4711\n")
    try:
        ran = hurt.run("journal", "repair", "lake", "--yes")
        assert hurt.run("journal", "inspect", "lake").code == 8
    finally:
        lock.release()
    assert ran.code == 4
    assert "4711" in ran.told()[1]
    assert "stop that process" in ran.told()[2]
    assert content(hurt) == before


def test_a_terminal_gets_boxes(lake):
    shown = lake.on_terminal("journal", "inspect", "lake").out
    assert "\u256d" in shown
    assert "3 files" in shown
    assert "2 tables" in shown


def test_a_lake_without_a_journal_is_not_found_and_none_is_made(shell):
    for words in (("inspect", "."), ("repair", ".", "--yes")):
        ran = shell.run("journal", *words)
        assert ran.code == 3
        ran.told()
    assert list(shell.folder.iterdir()) == []


def test_a_journal_in_an_object_store_is_refused(shell):
    ran = shell.run("journal", "inspect", "s3://bucket/lake")
    assert ran.code == 7
    assert "run this on that machine" in ran.told()[2]
