"""Runs read straight from Roaring bytes are the runs that the bitmap library finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from thermocline.format.bitmap_runs import BitmapRuns, find_runs, invert_runs
from thermocline.format.coverage import BIAS, Buckets

CONTAINER = 1 << 16


def serialized(numbers):
    bits = BitMap64(numbers)
    bits.run_optimize()
    return bits.serialize()


def naive_runs(values):
    runs = []
    for value in sorted(values):
        if runs and runs[-1][1] == value:
            runs[-1][1] = value + 1
        else:
            runs.append([value, value + 1])
    return [tuple(run) for run in runs]


def listed(runs: BitmapRuns):
    return list(zip(runs.owner.tolist(), runs.first.tolist(), runs.end.tolist(), strict=True))


# Stretches around the edges of containers (65,536 values) and of 32-bit parts.
starts = st.one_of(
    st.integers(0, 8 * CONTAINER),
    st.integers(0, 12).map(lambda place: place * CONTAINER - 1).filter(lambda value: value >= 0),
    st.sampled_from([(1 << 32) - 2, 1 << 32, BIAS - 3, BIAS, (1 << 41) - 1]),
)
stretches = st.lists(st.tuples(starts, st.integers(1, 3_000)), max_size=8)
dense = st.tuples(st.integers(0, 3), st.integers(4, 9), st.integers(1, 500)).map(
    lambda three: [
        (BIAS + (three[0] + place) * CONTAINER - 5, 10 + three[2]) for place in range(three[1])
    ]
)
bitmaps = (stretches | dense).map(
    lambda pairs: {value for first, length in pairs for value in range(first, first + length)}
)


@given(st.lists(bitmaps, max_size=4))
def test_the_runs_of_many_bitmaps_are_those_of_each(found):
    runs = find_runs([serialized(bits) for bits in found])
    expected = [
        (owner, first, end) for owner, bits in enumerate(found) for first, end in naive_runs(bits)
    ]
    assert listed(runs) == expected


@given(bitmaps)
def test_the_quick_way_and_the_library_agree(bits):
    data = serialized(bits)
    runs = find_runs([memoryview(data)])
    library = [(run.first + BIAS, run.end + BIAS) for run in Buckets(data=data).runs()]
    assert [(first, end) for _, first, end in listed(runs)] == library


def test_nothing_has_no_runs():
    assert listed(find_runs([])) == []
    assert listed(find_runs([serialized([])] * 3)) == []


def test_runs_that_cross_containers_are_one_run():
    data = serialized(range(BIAS, BIAS + 10 * CONTAINER))
    assert listed(find_runs([data])) == [(0, BIAS, BIAS + 10 * CONTAINER)]


def test_quick_and_slow_bitmaps_come_back_in_their_order():
    quick = range(BIAS, BIAS + 5 * CONTAINER)
    slow = [BIAS + 1, BIAS + 3]
    found = listed(find_runs([serialized(part) for part in (slow, quick, slow, quick)]))
    assert [owner for owner, *_ in found] == [0, 0, 1, 2, 2, 3]


def test_as_many_containers_as_there_can_be_are_read():
    """65,536 containers need a 17-bit count where the header has 16 bits of count minus one."""
    bits = BitMap64()
    for place in range(CONTAINER):
        bits.add_range(BIAS + place * CONTAINER, BIAS + place * CONTAINER + 100)
    bits.run_optimize()
    runs = find_runs([bits.serialize()])
    assert len(runs.first) == CONTAINER
    assert np.all(runs.end - runs.first == 100)


@given(st.lists(bitmaps, max_size=3), starts, st.integers(-5, 300_000))
def test_the_complement_is_what_is_not_in_the_runs(found, start, length):
    stop = start + length
    runs = find_runs([serialized(bits) for bits in found])
    holes = invert_runs(runs, len(found), start, stop)
    for owner, bits in enumerate(found):
        inside = sorted(value for value in bits if start <= value < stop)
        edges = [start, *(edge for run in naive_runs(inside) for edge in run), stop]
        expected = [
            (first, end) for first, end in zip(edges[::2], edges[1::2], strict=True) if first < end
        ]
        mine = [(first, end) for at, first, end in listed(holes) if at == owner]
        assert mine == expected


@pytest.mark.parametrize(("start", "stop"), [(5, 5), (9, 3)])
def test_an_empty_range_has_no_holes(start, stop):
    runs = find_runs([serialized([7])])
    assert listed(invert_runs(runs, 1, start, stop)) == []
