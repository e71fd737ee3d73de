"""Bounds admit every row they must, and prune what they surely may."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.lake import HOUR_US, JUNE_US, rows
from thermocline.query.sql.plan import Constraint, prune_segments, time_window

numbers = st.integers(-6, 6)
edges = st.one_of(st.none(), numbers)


@given(
    edges,
    edges,
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.lists(numbers).map(tuple)),
    st.lists(numbers, min_size=1, max_size=5),
)
def test_a_segment_with_a_row_that_satisfies_is_never_pruned(low, high, closed, shut, values, held):
    constraint = Constraint("a", low, high, closed, shut, values)

    def satisfies(value):
        return (
            (low is None or value > low or (value == low and closed))
            and (high is None or value < high or (value == high and shut))
            and (values is None or value in values)
        )

    if any(satisfies(value) for value in held):
        assert constraint.admits(min(held), max(held))


@pytest.mark.parametrize(
    ("constraint", "least", "greatest"),
    [
        (Constraint("a", low=5), 1, 4),
        (Constraint("a", low=5, low_inclusive=False), 1, 5),
        (Constraint("a", high=5), 6, 9),
        (Constraint("a", high=5, high_inclusive=False), 5, 9),
        (Constraint("a", 1, 9, values=(1, 9)), 2, 8),
        (Constraint("a", 9, 1), 0, 8),
    ],
)
def test_a_segment_that_cannot_have_such_rows_is_pruned(constraint, least, greatest):
    assert not constraint.admits(least, greatest)


def test_the_window_is_the_hull_of_the_alternatives():
    first = [Constraint("ts", low=5), Constraint("ts", low=7, high=20), Constraint("a", low=0)]
    second = [Constraint("ts", low=1, high=3)]
    assert time_window("ts", [first]) == (7, 20)
    assert time_window("ts", [first, second]) == (1, 20)
    assert time_window("ts", [first, second, []]) == (None, None)
    assert time_window("ts", []) == (None, None)


def at(hour: int) -> int:
    return (JUNE_US + hour * HOUR_US) * 1000


def test_segments_are_pruned_by_time_and_by_entity(make_table):
    table = make_table(
        rows(range(5), "A"), rows(range(5), "B"), rows(range(10, 15), "C"), entities=("symbol",)
    )
    state = table.cold.state()

    def left(*alternatives) -> int:
        return len(prune_segments(state, alternatives))

    late = Constraint("ts", low=at(5))
    is_b = Constraint("symbol", "B", "B")
    assert left([]) == 3
    assert left([late]) == 1
    assert left([is_b]) == 1
    assert left([late, is_b]) == 0
    assert left([late], [is_b]) == 2
    assert left([late], []) == 3
    assert left([Constraint("ts", low=at(4), high=at(4))]) == 2
    assert left([Constraint("ts", low=at(4), low_inclusive=False, high=at(9))]) == 0
    assert left([Constraint("close", low=1e9)]) == 3
    assert left([Constraint("symbol", low=5)]) == 3


def test_bounds_written_as_texts_do_not_prune_dates(make_table, session):
    ts = rows([0, 1]).column("ts")
    days = pa.array([19_000, 2_000_000], pa.date32())  # the later one sorts first as a text
    session.register_tstable("t", make_table(pa.table({"ts": ts, "day": days}), entities=("day",)))
    answer = session.sql("select count(*) as n from t where day > date '3000-01-01'")
    assert answer.to_pylist() == [{"n": 1}]
