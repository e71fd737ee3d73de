"""Conflicts: every rule both ways, every pair of changes, by what they touch and looked at."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from format.made import schema, segment, spec
from thermocline.format.instant import TimeNs
from thermocline.format.layout import Version
from thermocline.format.log.action import (
    AddSegment,
    Expire,
    Mark,
    SetMark,
    SetTable,
    SetTxn,
    removal,
    with_deletes,
)
from thermocline.format.log.commit_note import NoteFlush
from thermocline.format.log.conflict import (
    ALL_TIME,
    RULES,
    ChangeFootprint,
    TimeWindow,
    broken_rule,
    find_footprint,
)

HERE, THERE = TimeWindow(0, 100), TimeWindow(1_000, 1_100)
NOTHING = find_footprint(())
JUNE = TimeNs(1_717_200_000_000_000_000)


def added(name, first=10, last=20):
    return AddSegment(segment(name, first, last))


def hidden(name, first=10, last=20):
    return with_deletes(segment(name, first, last), deletes="AAAA", deleted_count=1)


def removed(name, first=10, last=20):
    return removal(segment(name, first, last))


def table(**changes):
    return SetTable(spec(**changes), 1, schema())


def changes(who, *, live="s1", first=10, window=HERE, source="hot", job="job"):
    """Return every kind of change, made by `who`, on this segment and this stretch of time."""
    new = added(f"new of {who}", first, first + 10)
    hide, remove = hidden(live, first, first + 10), removed(live, first, first + 10)
    looked = (window,)
    return {
        "append allow": find_footprint([new]),
        "append reject": find_footprint([new], looked),
        "replace": find_footprint([hide, new], looked),
        "delete": find_footprint([hide], looked),
        "retain": find_footprint([remove], (TimeWindow(None, window.end),)),
        "schema change": find_footprint([table(overlap="allow")]),
        "restore": find_footprint([remove, new], (ALL_TIME,)),
        "vacuum expiry": find_footprint([Expire(Version(5))]),
        "flush mark": find_footprint([new, SetMark(source, Mark(7))]),
        "txn": find_footprint([new, SetTxn(job, 3)]),
    }


KINDS = list(changes("me"))
SHORT = {
    "tc": "table_changed",
    "tg": "table_changing",
    "ss": "same_segment",
    "rc": "read_changed",
    "re": "read_expired",
    "sm": "same_mark",
    "sw": "same_writer",
    "--": None,
}

# One line for each change that lost the race, one column for each that won it, in KINDS' order:
# allow reject replace delete retain schema restore expiry flush txn.
SAME_PLACE = """
    append allow    -- -- -- -- -- tc -- -- -- --
    append reject   rc rc rc rc rc tc rc re rc rc
    replace         rc rc ss ss ss tc ss re rc rc
    delete          rc rc ss ss ss tc ss re rc rc
    retain          rc rc ss ss ss tc ss re rc rc
    schema change   tg tg tg tg tg tc tg -- tg tg
    restore         rc rc ss ss ss tc ss re rc rc
    vacuum expiry   -- -- -- -- -- tc -- -- -- --
    flush mark      -- -- -- -- -- tc -- -- sm --
    txn             -- -- -- -- -- tc -- -- -- sw
"""
OTHER_PLACE = """
    append allow    -- -- -- -- -- tc -- -- -- --
    append reject   -- -- -- -- -- tc -- re -- --
    replace         -- -- -- -- -- tc -- re -- --
    delete          -- -- -- -- -- tc -- re -- --
    retain          -- -- -- -- -- tc -- re -- --
    schema change   tg tg tg tg tg tc tg -- tg tg
    restore         rc rc rc rc rc tc rc re rc rc
    vacuum expiry   -- -- -- -- -- tc -- -- -- --
    flush mark      -- -- -- -- -- tc -- -- -- --
    txn             -- -- -- -- -- tc -- -- -- --
"""


def pairs(matrix):
    for line in matrix.strip().splitlines():
        name, cells = line.strip()[:16].strip(), line.strip()[16:].split()
        assert len(cells) == len(KINDS)
        yield from ((name, kind, SHORT[cell]) for kind, cell in zip(KINDS, cells, strict=True))


def test_the_tables_name_every_pair_once():
    for matrix in (SAME_PLACE, OTHER_PLACE):
        assert len({(mine, theirs) for mine, theirs, _ in pairs(matrix)}) == len(KINDS) ** 2


@pytest.mark.parametrize(("mine", "theirs", "rule"), list(pairs(SAME_PLACE)))
def test_a_change_after_another_in_the_same_place(mine, theirs, rule):
    assert broken_rule(changes("me")[mine], changes("them")[theirs]) == rule


@pytest.mark.parametrize(("mine", "theirs", "rule"), list(pairs(OTHER_PLACE)))
def test_a_change_after_another_in_another_place(mine, theirs, rule):
    elsewhere = changes("them", live="s2", first=1_010, window=THERE, source="other", job="other")
    assert broken_rule(changes("me")[mine], elsewhere[theirs]) == rule


BREAKS = [
    ("table_changed", find_footprint([]), find_footprint([table()])),
    ("table_changed", find_footprint([Expire(Version(2))]), find_footprint([table()])),
    ("table_changing", find_footprint([table()]), find_footprint([added("a")])),
    ("table_changing", find_footprint([table()]), find_footprint([Expire(Version(2)), added("a")])),
    ("table_changing", find_footprint([table()]), find_footprint([SetMark("hot", Mark(1))])),
    ("same_segment", find_footprint([removed("a")]), find_footprint([removed("a")])),
    ("same_segment", find_footprint([removed("a")]), find_footprint([hidden("a")])),
    ("same_segment", find_footprint([hidden("a")]), find_footprint([removed("b"), removed("a")])),
    (
        "read_changed",
        find_footprint([], (TimeWindow(10, 11),)),
        find_footprint([added("a", 10, 10)]),
    ),
    (
        "read_changed",
        find_footprint([], (THERE, HERE)),
        find_footprint([added("a", 500, 600), added("b")]),
    ),
    (
        "read_changed",
        find_footprint([], (TimeWindow(None, 1),)),
        find_footprint([added("a", -(10**18), -1)]),
    ),
    ("read_changed", find_footprint([], (ALL_TIME,)), find_footprint([removed("a")])),
    ("read_changed", find_footprint([], (TimeWindow(20, 21),)), find_footprint([hidden("a")])),
    ("read_expired", find_footprint([], (THERE,)), find_footprint([Expire(Version(2))])),
    (
        "same_mark",
        find_footprint([SetMark("hot", Mark(1))]),
        find_footprint([SetMark("hot", Mark(2))]),
    ),
    (
        "same_mark",
        find_footprint([NoteFlush("a", 1, JUNE)]),
        find_footprint([NoteFlush("a", 2, JUNE)]),
    ),
    (
        "same_mark",
        find_footprint([NoteFlush("a", 1, JUNE)]),
        find_footprint([NoteFlush("b", 1, JUNE)]),
    ),
    ("same_writer", find_footprint([SetTxn("job", 1)]), find_footprint([SetTxn("job", 9)])),
]
ALLOWS = [
    ("table_changed", find_footprint([table()]), find_footprint([added("a")])),
    ("table_changing", find_footprint([table()]), find_footprint([Expire(Version(2))])),
    ("table_changing", find_footprint([table()]), NOTHING),
    ("table_changing", find_footprint([added("a")]), find_footprint([added("b")])),
    ("same_segment", find_footprint([removed("a")]), find_footprint([removed("b")])),
    ("same_segment", find_footprint([removed("a")]), find_footprint([added("a")])),
    (
        "read_changed",
        find_footprint([], (TimeWindow(10, 11),)),
        find_footprint([added("a", 11, 20)]),
    ),
    ("read_changed", find_footprint([], (TimeWindow(10, 11),)), find_footprint([added("a", 0, 9)])),
    ("read_changed", find_footprint([added("a")]), find_footprint([added("b")])),
    (
        "read_changed",
        find_footprint([], (TimeWindow(21, 30),)),
        find_footprint([removed("a"), hidden("b")]),
    ),
    ("read_expired", find_footprint([added("a")]), find_footprint([Expire(Version(2))])),
    (
        "same_mark",
        find_footprint([SetMark("hot", Mark(1))]),
        find_footprint([SetMark("cold", Mark(1))]),
    ),
    (
        "same_mark",
        find_footprint([NoteFlush("hot", 1, JUNE)]),
        find_footprint([SetMark("hot", Mark(1))]),
    ),
    ("same_writer", find_footprint([SetTxn("job", 1)]), find_footprint([SetTxn("jobs", 1)])),
]


@pytest.mark.parametrize(("rule", "mine", "theirs"), BREAKS)
def test_a_rule_forbids_what_it_speaks_of(rule, mine, theirs):
    assert RULES[rule](mine, theirs)
    assert broken_rule(mine, theirs) is not None


@pytest.mark.parametrize(("rule", "mine", "theirs"), ALLOWS)
def test_a_rule_allows_what_it_does_not_speak_of(rule, mine, theirs):
    assert not RULES[rule](mine, theirs)


def test_every_rule_is_tried_both_ways():
    assert {rule for rule, *_ in BREAKS} == {rule for rule, *_ in ALLOWS} == set(RULES)


def test_the_page_of_the_rules_names_every_rule():
    from thermocline.format.log import conflict

    lines = [line.split() for line in conflict.__doc__.splitlines() if line.startswith("    ")]
    assert [words[0] for words in lines] == ["rule", *RULES]


def test_what_is_touched_is_told_by_the_actions_alone():
    found = find_footprint(
        [added("a", 1, 2), added("b", 3, 4), removed("c"), hidden("d"), SetMark("hot", Mark(1))],
        (HERE,),
    )
    assert found == ChangeFootprint(
        added=((1, 2), (3, 4)),
        taken=((10, 20), (10, 20)),
        segments=frozenset({"c", "d"}),
        marks=frozenset({"hot"}),
        applications=frozenset(),
        sets_table=False,
        expires=False,
        only_expires=False,
        windows_read=(HERE,),
    )


bounds = st.none() | st.integers(-20, 20)


@given(bounds, bounds, st.integers(-20, 20), st.integers(0, 20))
def test_a_window_meets_exactly_the_rows_that_lie_in_it(start, end, first, length):
    last = first + length
    window = TimeWindow(start, end)
    inside = [
        moment
        for moment in range(first, last + 1)
        if (start is None or moment >= start) and (end is None or moment < end)
    ]
    if inside:
        assert window.meets(first, last)
    elif start is None or end is None or start < end:
        assert not window.meets(first, last)


def test_an_empty_change_conflicts_with_nothing_but_a_changed_table():
    for name, theirs in changes("them").items():
        assert broken_rule(NOTHING, theirs) == (
            "table_changed" if name == "schema change" else None
        )
    assert broken_rule(replace(NOTHING, windows_read=(ALL_TIME,)), NOTHING) is None
