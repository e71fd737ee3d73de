"""Two things at once, one of them coming between any two calls of the other.

The first is stopped before its k-th call of the disk, for every k; there the second runs whole.
A reading must be one state that the table had between its begin and its end: all that was answered
before it began is in it, and what is in it is a prefix of what was answered by its end.
"""

import pytest

from crash.lake_operations import Life, made_disk, opened, proven, read
from thermocline.flush import flush

CALLS_MAX = 400
TABLE = "prices"


class History(Life):
    """A life that remembers every content its table has had."""

    def __init__(self, disk):
        super().__init__(disk, is_recorded=False)
        self.contents = [self.content()]

    def content(self):
        return sorted(number for name, number in self.promise.must if name == TABLE)

    def play(self, steps, rng=None):
        for step in steps:
            super().play([step])
            self.contents.append(self.content())
        assert self.errors == []


def begun():
    """Return a life with rows in the lake, rows deleted, and hot rows in two parts."""
    life = History(made_disk())
    life.play(
        [
            ("write", TABLE, 3),
            ("delete", TABLE, 1),
            ("write", TABLE, 2),
            ("write", "trades", 1),
            ("write", TABLE, 1),
        ]
    )
    return life


def strike_at(life, call, act, is_point=lambda path: True):
    """Run `act` before the given call from now; return a list that has one item once it ran."""
    left, struck = call, []

    def hook(operation, path):
        nonlocal left
        if not is_point(path):
            return
        left -= 1
        if left == 0:
            life.disk.hooks = None
            struck.append((operation, path))
            act()

    life.disk.hooks = hook
    return struck


def numbers_in(lake):
    return sorted(lake.table(TABLE).to_arrow().column("number").to_pylist())


BETWEEN = {
    "a flush": [("flush", TABLE, 0)],
    "a flush and a write": [("flush", TABLE, 0), ("write", TABLE, 1)],
    "two flushes": [("flush", TABLE, 0), ("write", TABLE, 2), ("flush", TABLE, 0)],
    "flushes that trim": [
        ("flush_all", "", 0),
        ("write", TABLE, 1),
        ("flush", TABLE, 0),
        ("write", "trades", 1),
        ("write", TABLE, 1),
    ],
    "a delete": [("delete", TABLE, 2), ("write", TABLE, 1)],
    "an append": [("append", TABLE, 2), ("write", TABLE, 1), ("flush", TABLE, 0)],
    "a new owner": [("reopen", "", 0), ("write", TABLE, 1), ("flush_all", "", 0)],
}


READINGS = [
    (reader, between)
    for reader in ("the owner", "another process", "a new process")
    for between in BETWEEN
    if (reader, between) != ("the owner", "a new owner")  # its lake is closed by then
]


@pytest.mark.parametrize(("reader", "between"), READINGS)
def test_F08_Q10_a_reading_that_anything_comes_between_is_one_state_of_the_table(reader, between):
    for call in range(1, CALLS_MAX):
        life = begun()
        lake = life.lake
        if reader != "the owner":
            lake = opened(life.disk, is_read_only=True)
        if reader == "another process":
            numbers_in(lake)  # it has read before and kept what is full
        first = len(life.contents) - 1
        struck = strike_at(life, call, lambda life=life: life.play(BETWEEN[between]))
        found = numbers_in(lake)
        life.disk.hooks = None
        assert found in life.contents[first:], (call, struck, life.contents[first:])
        life.play([("look", "", 0)])
        assert numbers_in(lake) == life.content()
        life.end()
        if not struck:
            return
    pytest.fail("a reading makes too many calls")


def in_the_table(path):
    """Tell whether a call holds no lock of the journal, so that others may run meanwhile."""
    return "/tables/" in path


DURING = {
    "a write": [("write", TABLE, 2)],
    "writes": [("write", TABLE, 1)] * 20,
    "an append": [("append", TABLE, 2)],
    "a write of another table": [("write", "trades", 2)],
}


@pytest.mark.parametrize("during", DURING)
def test_F06_what_comes_while_a_flush_is_under_way_is_in_one_half_of_every_reading(during):
    for call in range(1, CALLS_MAX):
        life = begun()
        beside = opened(life.disk, is_read_only=True)
        wrong = []

        def act(life=life, beside=beside, wrong=wrong):
            life.play(DURING[during])

            def look(operation, path):
                life.disk.hooks = None
                if in_the_table(path):
                    for lake in (life.lake, beside):
                        found = numbers_in(lake)
                        if found != life.content():
                            wrong.append((operation, path, found))
                life.disk.hooks = look

            look("", "/tables/")

        struck = strike_at(life, call, act, in_the_table)
        life.flush(TABLE)
        life.disk.hooks = None
        assert wrong == [], call
        life.look()
        killed, promise = life.disk.killed(), life.promise
        life.end()
        if call % 8 == 0 or not struck:
            proven(killed, promise)
        if not struck:
            return
    pytest.fail("a flush makes too many calls")


def test_F07_of_two_flushers_one_finds_nothing_left_at_whatever_call_they_meet():
    for call in range(1, CALLS_MAX):
        life = begun()
        hot = life.lake.table(TABLE).hot()
        struck = strike_at(
            life, call, lambda life=life, hot=hot: flush(hot, life._beside(TABLE)), in_the_table
        )
        flush(hot, life.lake.table(TABLE).cold)
        life.disk.hooks = None
        life.look()
        assert hot.snapshot().parts == ()
        killed, promise = life.disk.killed(), life.promise
        life.end()
        promise.check(read_again(killed))
        if not struck:
            return
    pytest.fail("a flush makes too many calls")


def read_again(disk):
    life = Life(disk, is_recorded=False)
    found = read(life.lake)
    life.end()
    return found


def test_a_row_that_another_process_saw_is_not_gone_again_though_its_answer_was_lost():
    """The watermark could not be written: nobody was answered, but the next one tells of it."""
    for call in range(1, 12):
        life = History(made_disk())
        life.play([("write", TABLE, 1)])
        beside = opened(life.disk, is_read_only=True)
        life.disk.fail(call, 5, mutating_only=True)
        Life.play(life, [("write", TABLE, 1)])
        life.disk.heal()
        life.errors.clear()
        life.play([("write", TABLE, 1)])
        seen = numbers_in(beside)
        life.play([("flush", TABLE, 0)])
        assert numbers_in(beside) == seen, call
        assert numbers_in(life.lake) == seen, call
        life.end()
