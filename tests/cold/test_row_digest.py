"""What rows say as a number: the same in any order and encoding, another when they differ."""

import decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.cold.segment.row_digest import RowDigest, digest_rows

KINDS = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "decimal": (pa.decimal128(12, 3), st.decimals(-(10**6), 10**6, places=3)),
    "decimal64": (pa.decimal64(12, 3), st.decimals(-(10**6), 10**6, places=3)),
    "wide decimal": (pa.decimal256(60, 2), st.decimals(-(10**9), 10**9, places=2)),
    "timestamp": (pa.timestamp("us", tz="UTC"), st.integers(0, 10**15)),
    "string": (pa.string(), st.text(max_size=6)),
    "large_string": (pa.large_string(), st.text(max_size=6)),
    "string_view": (pa.string_view(), st.text(max_size=20)),
    "binary": (pa.binary(), st.binary(max_size=6)),
    "fixed binary": (pa.binary(5), st.binary(min_size=5, max_size=5)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.text(max_size=3)),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 9) | st.none(), max_size=4)),
    "fixed list": (pa.list_(pa.int16(), 2), st.lists(st.integers(0, 9), min_size=2, max_size=2)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text(max_size=2)}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.lists(st.tuples(st.text(max_size=2), st.integers(0, 9)), max_size=3),
    ),
}


def batch(*columns):
    return pa.RecordBatch.from_arrays(list(columns), [f"c{place}" for place in range(len(columns))])


@pytest.mark.parametrize("name", KINDS)
def test_the_order_of_rows_and_the_batches_they_come_in_do_not_matter(name):
    kind, values = KINDS[name]

    @settings(max_examples=12)
    @given(st.lists(st.none() | values, max_size=12), st.data())
    def check(given_values, data):
        numbers = list(range(len(given_values)))
        order = data.draw(st.permutations(numbers))
        cut = data.draw(st.integers(0, len(numbers)))
        rows = batch(pa.array(given_values, kind), pa.array(numbers, pa.int64()))
        moved = [given_values[place] for place in order]
        other = batch(pa.array(moved, kind), pa.array(order, pa.int64()))
        assert digest_rows([rows]) == digest_rows([other.slice(0, cut), other.slice(cut)])
        if len(given_values) > 1 and given_values[0] != given_values[1]:
            swapped = [given_values[1], given_values[0], *given_values[2:]]
            crossed = batch(pa.array(swapped, kind), pa.array(numbers, pa.int64()))
            assert digest_rows([crossed]) != digest_rows([rows])

    check()


def test_a_text_says_the_same_as_a_dictionary_and_as_any_other_text_type():
    words = ["", "a", None, "ä", "a" * 100_000, "a"]
    plain = digest_rows([batch(pa.array(words))])
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        assert digest_rows([batch(pa.array(words, kind))]) == plain


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([[1, 2], [3]], [[1], [2, 3]]),
        ([[1, 2]], [[2, 1]]),
        ([[]], [None]),
        (["ab", "c"], ["a", "bc"]),
        (["ab"], ["ba"]),
        (["a\0"], ["a"]),
        ([""], [None]),
        ([0], [None]),
        ([0.0], [-0.0]),
        ([decimal.Decimal("1.0")], [decimal.Decimal("-1.0")]),
        ([{"a": 1, "b": 2}], [{"a": 2, "b": 1}]),
        ([1], [1, 1]),
        ([1, 1, 2], [1, 2, 2]),
    ],
)
def test_rows_that_differ_say_something_else(one, other):
    assert digest_rows([batch(pa.array(one))]) != digest_rows([batch(pa.array(other))])


def test_a_value_in_another_column_says_something_else():
    one, two = pa.array([1]), pa.array([2])
    assert digest_rows([batch(one, two)]) != digest_rows([batch(two, one)])


def test_texts_are_hashed_a_bounded_stretch_at_a_time(monkeypatch):
    words = [f"word {number}" for number in range(1_000)] + [None, ""]
    whole = digest_rows([batch(pa.array(words))])
    monkeypatch.setattr("thermocline.cold.segment.row_digest.BYTES_AT_ONCE", 16)
    assert digest_rows([batch(pa.array(words))]) == whole


def test_contents_add_up():
    one, two = batch(pa.array([1, 2])), batch(pa.array([3]))
    assert digest_rows([one]) + digest_rows([two]) == digest_rows([one, two])
    assert digest_rows([]) == RowDigest()
