"""Measuring: the same rows give the same bytes, and what a loop over them would find."""

from collections import defaultdict
from datetime import date, datetime, time
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from format.made import spec
from thermocline.cold.segment import measure as measure_module
from thermocline.cold.segment.measure import encode_entities, entity_stats, measure
from thermocline.errors import Invalid, Overloaded
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import encode_coverage
from thermocline.format.instant import NS_PER_UNIT, TIME_MAX, TIME_MIN

UNITS = ("s", "ms", "us", "ns")


def counts(unit):
    low = max(TIME_MIN // NS_PER_UNIT[unit], -(2**63))
    high = min(TIME_MAX // NS_PER_UNIT[unit], 2**63 - 1)
    per_day = 86_400 * 10**9 // NS_PER_UNIT[unit]
    return st.one_of(
        st.integers(-3 * per_day, 3 * per_day),
        st.integers(low, high),
        st.sampled_from([low, high, -1, 0, 1]),
    )


names = st.none() | st.sampled_from(["a", "b", "", "\u00e9", '"', "[1]", "null"])
numbers = st.none() | st.integers(-3, 3)


@st.composite
def filled(draw):
    """Draw a unit, a bucket, and rows of a time, a text and a number."""
    unit = draw(st.sampled_from(UNITS))
    width_s = draw(st.sampled_from([1, 7, 60, 3_600, 86_400]))
    rows = draw(st.lists(st.tuples(counts(unit), names, numbers), max_size=30))
    return unit, Bucket(width_s), rows


def tabled(unit, rows, *, as_dictionary=False):
    times, texts, whole = zip(*rows, strict=True) if rows else ((), (), ())
    text = pa.array(texts, pa.string())
    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp(unit)),
            "name": text.dictionary_encode() if as_dictionary else text,
            "number": pa.array(whole, pa.int64()),
        }
    )


def naive(unit, bucket, rows, columns):
    """Measure row by row, in whole nanoseconds."""
    whole, entities = set(), defaultdict(set)
    instants = [count * NS_PER_UNIT[unit] for count, *_ in rows]
    for instant, (_, text, number) in zip(instants, rows, strict=True):
        held = instant // (bucket.width_s * 10**9)
        whole.add(held)
        entities[tuple({"name": text, "number": number}[name] for name in columns)].add(held)
    bounds = (min(instants), max(instants)) if instants else (None, None)
    return len(rows), bounds, whole, dict(entities) if columns else {}


def found(measured):
    from thermocline.format.coverage import entity_values

    coverage = measured.coverage
    entities = {
        tuple(entity_values(key)): set(buckets.numbers().tolist())
        for key, buckets in coverage.entities.items()
    }
    return (
        measured.row_count,
        (measured.ts_min, measured.ts_max),
        set(coverage.whole.numbers().tolist()),
        entities,
    )


COLUMNS = st.sampled_from([(), ("name",), ("number",), ("name", "number"), ("number", "name")])


@given(filled(), COLUMNS, st.booleans())
def test_what_is_measured_is_what_a_loop_over_the_rows_finds(drawn, columns, as_dictionary):
    unit, bucket, rows = drawn
    table = tabled(unit, rows, as_dictionary=as_dictionary)
    measured = measure([table], spec(bucket=bucket, entity_columns=columns))
    assert found(measured) == naive(unit, bucket, rows, columns)
    assert measured.coverage.bucket_code == bucket.code


@given(filled(), COLUMNS, st.lists(st.integers(0, 30), max_size=5), st.booleans())
def test_the_same_rows_in_any_batches_and_order_give_the_same_bytes(drawn, columns, cuts, turned):
    unit, bucket, rows = drawn
    kind = spec(bucket=bucket, entity_columns=columns)
    whole = encode_coverage(measure([tabled(unit, rows)], kind).coverage)
    ordered = rows[::-1] if turned else rows
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    parts = [ordered[low:high] for low, high in pairwise(edges)]
    batches = [
        batch for part in parts for batch in tabled(unit, part, as_dictionary=True).to_batches()
    ]
    assert encode_coverage(measure(batches, kind).coverage) == whole
    chunked = pa.concat_tables(
        [tabled(unit, part, as_dictionary=True) for part in parts] or [tabled(unit, [])]
    )
    assert encode_coverage(measure([chunked], kind).coverage) == whole


@pytest.mark.parametrize("width_s", [1, 60])
def test_dense_stretches_in_any_batches_give_the_same_bytes(width_s):
    """Thousands of buckets in a row: containers of every kind, and unions of them."""
    kind = spec(bucket=Bucket(width_s), entity_columns=())
    seconds = np.concatenate(
        [np.arange(0, 200_000), np.arange(200_000, 400_000, 3), np.arange(10**6, 10**6 + 5)]
    )
    whole = encode_coverage(measure([_seconds(seconds)], kind).coverage)
    shuffled = np.random.default_rng(7).permutation(seconds)
    for split in (2, 37):
        parts = [_seconds(part) for part in np.array_split(shuffled, split)]
        assert encode_coverage(measure(parts, kind).coverage) == whole


def _seconds(values):
    return pa.table({"ts": pa.array(values, pa.timestamp("s"))})


def test_the_sorting_way_and_the_marking_way_agree(monkeypatch):
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "ts": pa.array(rng.integers(-(10**6), 10**6, 50_000), pa.timestamp("s")),
            "symbol": pa.array([f"s{n}" for n in rng.integers(0, 50, 50_000)]),
        }
    )
    marked = encode_coverage(measure([table], spec()).coverage)
    monkeypatch.setattr(measure_module, "GRID_CELLS_MAX", 0)
    assert encode_coverage(measure([table], spec()).coverage) == marked


def test_no_rows_hold_nothing():
    measured = measure([tabled("us", [])], spec(entity_columns=("name",)))
    assert found(measured) == (0, (None, None), set(), {})
    assert measure([], spec()).row_count == 0


def test_times_that_are_null_are_refused_with_their_number():
    table = pa.table({"ts": pa.array([1, None, None], pa.timestamp("s"))})
    with pytest.raises(Invalid, match="nulls") as caught:
        measure([table], spec(entity_columns=()))
    assert caught.value.facts == {"time_column": "ts", "rows": 2}


@pytest.mark.parametrize("seconds", [TIME_MIN // 10**9 - 1, TIME_MAX // 10**9 + 1, 2**62])
def test_a_time_that_cannot_be_written_down_is_refused(seconds):
    with pytest.raises(Invalid, match="outside the years"):
        measure([_seconds(np.array([0, seconds]))], spec(entity_columns=()))


def entity_table(column):
    times = pa.array(range(len(column)), pa.timestamp("s"))
    return pa.table({"ts": times, "symbol": column})


def keys(column):
    return sorted(measure([entity_table(column)], spec()).coverage.entities)


def test_a_dictionary_with_unused_repeated_and_null_values_is_just_its_rows():
    values = pa.array(["unused", "a", "b", "a", None, "also unused"])
    indices = pa.array([1, 3, 2, 4, None, 1], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, values)
    assert keys(column) == ['["a"]', '["b"]', "[null]"]
    assert keys(column) == keys(column.cast(pa.string()))


@pytest.mark.parametrize(
    ("index", "size"), [(pa.int8(), 128), (pa.uint8(), 256), (pa.uint64(), 300)], ids=str
)
def test_a_dictionary_may_be_as_full_as_its_index_allows(index, size):
    values = pa.array([f"s{place}" for place in range(size)])
    full = pa.DictionaryArray.from_arrays(pa.array(range(size), index), values)
    assert len(keys(full)) == size


def test_chunks_whose_dictionaries_do_not_fit_one_index_are_measured():
    def chunk(first):
        values = pa.array([f"s{place}" for place in range(first, first + 100)])
        return pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), values)

    assert len(keys(pa.chunked_array([chunk(0), chunk(100), chunk(50)]))) == 200


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
)
def test_an_entity_is_named_the_same_however_its_text_is_packed(kind):
    assert keys(pa.array(["b", None, "a"]).cast(kind)) == ['["a"]', '["b"]', "[null]"]


NOON = datetime(2024, 6, 1, 12)


@pytest.mark.parametrize(
    ("columns", "key"),
    [
        ([pa.array([7], kind) for kind in (pa.int8(), pa.uint64(), pa.int64())], "[7]"),
        ([pa.array([NOON], pa.timestamp(unit)) for unit in UNITS], '["2024-06-01T12:00:00"]'),
        (
            [
                pa.array([NOON], pa.timestamp("us", tz="UTC")).cast(pa.timestamp(unit, tz=zone))
                for unit in UNITS
                for zone in ("UTC", "Europe/Berlin", "America/New_York")
            ],
            '["2024-06-01T12:00:00Z"]',
        ),
        (
            [
                pa.array([Decimal("1.5")], kind)
                for kind in (pa.decimal128(9, 1), pa.decimal64(9, 4))
            ],
            '["1.5"]',
        ),
        (
            [pa.array([date(2024, 6, 1)], kind) for kind in (pa.date32(), pa.date64())],
            '["2024-06-01"]',
        ),
        (
            [pa.array([time(12, 0, 1)], kind) for kind in (pa.time32("s"), pa.time64("ns"))],
            '["12:00:01"]',
        ),
        ([pa.array([True])], "[true]"),
        ([pa.nulls(1), pa.nulls(1, pa.int8())], "[null]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_entity_is_named_the_same_in_every_unit_zone_and_scale(columns, key):
    assert [keys(column) for column in columns] == [[key]] * len(columns)


@pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.list_(pa.int8())], ids=str)
def test_a_type_that_cannot_name_an_entity_is_refused(kind):
    with pytest.raises(Invalid, match="cannot name an entity") as caught:
        keys(pa.nulls(1, kind))
    assert caught.value.facts == {"type": str(kind)}


def test_a_text_that_is_not_utf_8_is_refused():
    offsets = pa.py_buffer(np.array([0, 1, 2], dtype="i4").tobytes())
    broken = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"\xffa"))
    with pytest.raises(Invalid, match="not UTF-8"):
        keys(broken)


def test_the_limit_of_entities_counts_entities_of_rows_and_nothing_else():
    limited = spec(entities_max=2)
    measure([entity_table(pa.array(["a", "b", "a"]))], limited)
    values = pa.array(["a", "b", "c", "d"])
    unused = pa.DictionaryArray.from_arrays(pa.array([0, 3, 0], pa.int8()), values)
    measure([entity_table(unused)], limited)
    for tables in (
        [entity_table(pa.array(["a", "b", "c"]))],
        [entity_table(pa.array(["a", "b"])), entity_table(pa.array(["c"]))],
        [entity_table(pa.array(["a", "b", None]))],
    ):
        with pytest.raises(Overloaded) as caught:
            measure(tables, limited)
        assert caught.value.facts == {"entities": 3, "entities_max": 2}


def test_every_row_has_the_number_of_its_entity():
    table = pa.table({"name": ["a", "b", None, "a"], "number": [1, 1, 1, None]})
    codes, names = encode_entities(table, spec(entity_columns=("name", "number")))
    assert [names[code] for code in codes] == ['["a",1]', '["b",1]', "[null,1]", '["a",null]']
    codes, names = encode_entities(table, spec(entity_columns=()))
    assert (codes.tolist(), names) == ([0, 0, 0, 0], [""])


@pytest.mark.parametrize(
    ("column", "stats"),
    [
        (pa.array(["b", "a", "\u00e9"]), {"5": ("a", "\u00e9")}),
        (pa.array([3, -7, 2**40]), {"5": (-7, 2**40)}),
        (pa.array(["a", None]), {}),
        (pa.array([True, False]), {}),
        (pa.array(["a", "x" * 200]), {}),
    ],
    ids=str,
)
def test_bounds_are_told_only_where_they_are_sure(column, stats):
    coverage = measure([entity_table(column)], spec()).coverage
    assert entity_stats(spec(), coverage, [5]) == stats


def truncating(unit, bucket, rows):
    return {int(count * NS_PER_UNIT[unit] / (bucket.width_s * 10**9)) for count, *_ in rows}


def closed(unit, bucket, rows):
    return {(count * NS_PER_UNIT[unit] - 1) // (bucket.width_s * 10**9) for count, *_ in rows}


@pytest.mark.parametrize("wrong", [truncating, closed])
def test_buckets_that_round_towards_zero_or_hold_their_end_would_be_caught(wrong):
    unit, bucket, rows = find(
        filled(),
        lambda drawn: wrong(*drawn) != naive(*drawn, ())[2],
        settings=settings(phases=[Phase.generate], deadline=None),
    )
    measured = measure([tabled(unit, rows)], spec(bucket=bucket, entity_columns=()))
    assert found(measured)[2] != wrong(unit, bucket, rows)
