"""The algebra of coverage, against Python's own sets: for all buckets and for each entity.

Sets are drawn around the edges of Roaring's containers, before and after 1970, and each is used
both as it was made and as it was read from bytes. The wrong designs below are caught.
"""

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from thermocline.format.bitmap_runs import find_runs, invert_runs
from thermocline.format.coverage import (
    BIAS,
    Buckets,
    Coverage,
    decode_coverage,
    encode_coverage,
    unite_buckets,
)

EDGE = 1 << 16
places = st.one_of(
    st.integers(-40, 40),
    st.integers(-3, 3).map(lambda place: place * EDGE - 1),
    st.sampled_from([-62_135_596_800, 253_402_300_799]),
)
sets = st.lists(st.tuples(places, st.integers(1, 70)), max_size=6).map(
    lambda pairs: frozenset(n for first, length in pairs for n in range(first, first + length))
)
ranges = st.tuples(places, st.integers(0, 200)).map(lambda pair: (pair[0], pair[0] + pair[1]))
KEYS = ['["a"]', '["b"]', '["c"]', "[null]"]
tables = st.dictionaries(st.sampled_from(KEYS), sets.filter(bool), max_size=4)


def made(numbers):
    return Buckets.from_numbers(np.array(sorted(numbers), dtype=np.int64))


def read(numbers):
    return Buckets(data=made(numbers).to_bytes())


ways = st.sampled_from([made, read])


def as_set(buckets):
    return frozenset(buckets.numbers().tolist())


def runs_in(numbers):
    found = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return [tuple(run) for run in found]


def pairs(runs):
    return [(run.first, run.end) for run in runs]


@given(sets, sets, ways, ways)
def test_sets_of_buckets_are_sets(one, other, left, right):
    a, b = left(one), right(other)
    assert as_set(a | b) == one | other
    assert as_set(a - b) == one - other
    assert as_set(a & b) == one & other
    assert (a == b) == (one == other)
    assert (len(a), bool(a)) == (len(one), bool(one))
    assert as_set(unite_buckets([a, b])) == one | other
    assert (as_set(left(one)), as_set(right(other))) == (one, other)


@given(sets, ways, places)
def test_what_is_in_a_set_is_found_in_it(one, way, number):
    buckets = way(one)
    assert (number in buckets) == (number in one)
    assert buckets.numbers().tolist() == sorted(one)
    if one:
        assert (buckets.first(), buckets.last()) == (min(one), max(one))


@given(sets, ways, ranges)
def test_ranges_are_counted_and_held_as_in_a_set(one, way, edges):
    first, end = edges
    buckets, asked = way(one), set(range(first, end))
    assert buckets.count(first, end) == len(one & asked)
    assert buckets.holds_all(first, end) == (asked <= one)
    assert pairs(buckets.runs()) == runs_in(one)
    assert as_set(Buckets.from_range(first, end)) == asked


@given(st.lists(st.tuples(sets, ways), max_size=4), ranges)
def test_gaps_of_many_sets_at_once_are_the_gaps_of_each(drawn, edges):
    first, end = edges
    parts = [way(one) for one, way in drawn]
    runs = find_runs([part.to_bytes() for part in parts])
    held = [(int(o), int(f) - BIAS, int(e) - BIAS) for o, f, e in _rows(runs)]
    assert held == [(o, *run) for o, (one, _) in enumerate(drawn) for run in runs_in(one)]
    holes = invert_runs(runs, len(parts), first + BIAS, end + BIAS)
    missing = [(int(o), int(f) - BIAS, int(e) - BIAS) for o, f, e in _rows(holes)]
    assert missing == [
        (o, *run)
        for o, (one, _) in enumerate(drawn)
        for run in runs_in(set(range(first, end)) - one)
    ]


def _rows(runs):
    return zip(runs.owner, runs.first, runs.end, strict=True)


def covered(table, *, is_read=False, digest=0):
    whole = frozenset().union(*table.values())
    entities = {key: made(numbers) for key, numbers in table.items()}
    coverage = Coverage(60, made(whole), entities, digest)
    return decode_coverage(encode_coverage(coverage)) if is_read else coverage


def as_dict(coverage):
    return {key: as_set(buckets) for key, buckets in coverage.entities.items()}


def whole_of(table):
    return frozenset().union(*table.values())


@given(tables, tables, st.booleans(), st.booleans())
def test_the_union_is_what_either_holds(one, other, left, right):
    found = covered(one, is_read=left).union(covered(other, is_read=right))
    expected = {key: one.get(key, frozenset()) | other.get(key, frozenset()) for key in one | other}
    assert as_dict(found) == expected
    assert as_set(found.whole) == whole_of(one) | whole_of(other)
    assert found.bucket_code == 60


@given(tables, tables, st.booleans(), st.booleans())
def test_what_is_left_is_what_the_other_does_not_hold_of_each_entity(one, other, left, right):
    found = covered(one, is_read=left).subtract(covered(other, is_read=right))
    expected = {key: numbers - other.get(key, frozenset()) for key, numbers in one.items()}
    expected = {key: numbers for key, numbers in expected.items() if numbers}
    assert as_dict(found) == expected
    assert as_set(found.whole) == whole_of(expected)


@given(tables, tables, st.booleans())
def test_what_is_left_has_the_bytes_of_a_coverage_made_from_rows(one, other, is_read):
    found = covered(one, is_read=is_read).subtract(covered(other, is_read=is_read))
    assert encode_coverage(found) == encode_coverage(covered(as_dict(found)))


@given(sets, sets, ways, ways)
def test_without_entities_the_whole_is_all_there_is(one, other, left, right):
    a, b = Coverage(60, left(one), {}), Coverage(60, right(other), {})
    assert as_set(a.union(b).whole) == one | other
    assert as_set(a.subtract(b).whole) == one - other
    assert encode_coverage(a.subtract(b)) == encode_coverage(Coverage(60, made(one - other), {}))
    shared = a.overlap(b, has_entities=False)
    assert {key: as_set(both) for key, both in shared.items()} == (
        {"": one & other} if one & other else {}
    )


@given(tables, tables, st.booleans(), st.booleans())
def test_the_overlap_is_told_for_each_entity_that_has_one(one, other, left, right):
    found = covered(one, is_read=left).overlap(covered(other, is_read=right), has_entities=True)
    expected = {key: one[key] & other[key] for key in one.keys() & other.keys()}
    assert {key: as_set(both) for key, both in found.items()} == {
        key: both for key, both in expected.items() if both
    }


@given(tables, st.integers(0, 2**64 - 1))
def test_a_coverage_reads_back_as_itself(table, digest):
    coverage = covered(table, digest=digest)
    found = decode_coverage(encode_coverage(coverage))
    assert (as_dict(found), as_set(found.whole)) == (table, whole_of(table))
    assert (found.digest, found.bucket_code) == (digest, 60)
    assert encode_coverage(found) == encode_coverage(coverage)
    assert found.with_digest(5).digest == 5
    assert as_dict(found.with_digest(5)) == table


@given(tables, tables, tables)
def test_order_and_grouping_do_not_matter(one, two, three):
    a, b, c = covered(one), covered(two), covered(three)
    left, right = a.union(b).union(c), c.union(b.union(a))
    assert as_dict(left) == as_dict(right)
    assert left.whole == right.whole
    again = left.subtract(b)
    assert not again.overlap(b, has_entities=True)


def whole_minus_whole(one, other):
    """Subtract wholes: an entity that still holds a bucket loses it with the other entity."""
    return whole_of(one) - whole_of(other)


def whole_overlap(one, other):
    """Overlap of wholes: two entities in one bucket look like an overlap, and are none."""
    return bool(whole_of(one) & whole_of(other))


def by_entity(one, other):
    left = {key: numbers - other.get(key, frozenset()) for key, numbers in one.items()}
    shared = any(one[key] & other[key] for key in one.keys() & other.keys())
    return whole_of(left), shared


@pytest.mark.parametrize(("wrong", "place"), [(whole_minus_whole, 0), (whole_overlap, 1)])
def test_answers_that_forget_the_entity_would_be_caught(wrong, place):
    one, other = find(
        st.tuples(tables, tables),
        lambda pair: wrong(*pair) != by_entity(*pair)[place],
        settings=settings(phases=[Phase.generate], deadline=None),
    )
    left = covered(one).subtract(covered(other))
    overlap = covered(one).overlap(covered(other), has_entities=True)
    assert (as_set(left.whole), bool(overlap)) == by_entity(one, other)


def test_a_set_that_is_written_as_it_came_about_would_be_caught():
    """The bytes of a plain difference depend on its past; those of what is left must not."""
    one, other = find(
        st.tuples(sets, sets),
        lambda pair: (
            (read(pair[0]) - read(pair[1])).to_bytes() != made(pair[0] - pair[1]).to_bytes()
        ),
        settings=settings(phases=[Phase.generate], max_examples=2_000, deadline=None),
    )
    left = Coverage(60, read(one), {}).subtract(Coverage(60, read(other), {}))
    assert left.whole.to_bytes() == made(one - other).to_bytes()
