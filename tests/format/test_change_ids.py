"""The change ids of a flush: any ids come back, many of them stay small, damage is noticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.errors import Corruption, Overloaded
from thermocline.format.log import change_ids
from thermocline.format.log.change_ids import decode_changes, encode_changes


@given(st.sets(st.integers(1, 2**63 - 1), max_size=50))
def test_P25_ids_with_any_gaps_come_back(ids):
    assert decode_changes(encode_changes(ids)).tolist() == sorted(ids)


def test_no_change_is_no_text():
    assert encode_changes([]) == ""
    assert decode_changes("").tolist() == []


def test_P18_a_million_changes_take_two_bytes_each_at_most():
    assert len(encode_changes(range(1, 1_000_001))) < 1_000
    assert len(encode_changes(range(1, 3_000_001, 3))) < 2_000_000 * 4 / 3 + 1_000


def test_more_changes_than_a_commit_should_hold_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(change_ids, "CHANGES_BYTES_MAX", 100)
    with pytest.raises(Overloaded) as caught:
        encode_changes(range(1, 10_000, 7))
    assert caught.value.facts["changes"] == 1_429


@pytest.mark.parametrize("text", ["AAAA", "not base64!", "AQAAAAAAAAAAAAAAOjAAAAEAAAAA"])
def test_ids_that_cannot_be_read_are_damage(text):
    with pytest.raises(Corruption):
        decode_changes(text)
