"""backup and restore on the command line."""

import pytest

from fixtures.wal import calm, numbers, ticks
from thermocline.disk import OsDisk
from thermocline.node import Node


@pytest.fixture
def node(shell):
    """A folder with `node`: table `m`, with cold rows and hot ones."""
    with Node(str(shell.folder / "node"), calm()) as made:
        table = made.lake().create_table("m", time_column="ts", bucket="1h")
        table.write(ticks(1, 2))
        made.flush()
        table.write(ticks(3))
        made.close(flush=False)
    return shell


def restored(shell, name):
    with Node(str(shell.folder / name), calm()) as node:
        return numbers(node.lake().table("m"))


@pytest.mark.parametrize("target", ["copy", "copy.tar"])
def test_O15_a_lake_is_copied_and_brought_back(node, target):
    told = node.ok("backup", target, "--data", "node", "--json").json()
    assert (told["lsn"], told["tables"][0]["name"]) == (2, "m")
    assert told["size_bytes"] > 1_000
    told = node.ok("restore", target, "--data", "back", "--json").json()
    assert told["folder"] == str(node.folder / "back")
    assert restored(node, "back") == [1, 2, 3]


def test_what_a_copy_of_files_cannot_have_is_said(node):
    words = ("backup", "one", "--data", "node", "--json")
    assert node.ok(*words).json()["left_out"] == []
    words = ("backup", "two", "--data", "node", "--without-entities")
    ran = node.run(*words, THERMOCLINE_POSTGRES="embedded")
    assert ran.code == 0
    assert "omitted: entities that are only in PostgreSQL" in ran.out
    (node.folder / "node" / "postgres").mkdir()
    words = ("backup", "three", "--data", "node", "--json")
    assert node.ok(*words).json()["left_out"] == ["postgres"]


def test_people_are_told_in_a_line(node):
    assert node.ok("backup", "copy", "--data", "node").out.startswith("copied 1 table, ")
    assert "restored 1 tables" in node.ok("restore", "copy", "--data", "back").out


def test_O16_two_at_once_are_a_conflict(node):
    node.ok("backup", "copy", "--data", "node")
    lock = OsDisk().lock(str(node.folder / "node" / ".backup.lock"), b"4711\n")
    ran = node.run("backup", "other", "--data", "node")
    assert ran.code == 4
    assert "4711" in ran.told()[1]
    lock.release()
    (node.folder / "back").mkdir()
    lock = OsDisk().lock(str(node.folder / "back" / ".restore.lock"), b"4711\n")
    assert node.run("restore", "copy", "--data", "back").code == 4
    lock.release()


def test_what_cannot_be_is_told_in_three_lines(node):
    node.ok("backup", "copy", "--data", "node")
    for words, code in (
        (("backup", "copy", "--data", "node"), 4),
        (("backup", "other", "--data", "nothing"), 3),
        (("restore", "nothing", "--data", "back"), 3),
        (("restore", "copy", "--data", "node"), 4),
        (("restore", "node", "--data", "back"), 2),
    ):
        ran = node.run(*words)
        assert ran.code == code, words
        assert ran.told()


def test_a_copy_that_cannot_have_what_postgres_has_is_not_made(node):
    nobody = "postgresql://nobody@127.0.0.1:1/none"
    ran = node.run("backup", "copy", "--data", "node", THERMOCLINE_POSTGRES=nobody)
    assert ran.code == 6
    assert not (node.folder / "copy").exists()
    words = ("backup", "copy", "--data", "node", "--without-entities", "--json")
    ran = node.run(*words, THERMOCLINE_POSTGRES=nobody)
    assert ran.json()["left_out"] == ["postgres"]
