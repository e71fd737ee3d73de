"""Tokens of texts and their filters: every way to find tokens finds the same ones."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.errors import Corruption, Unsupported
from thermocline.format import tokens
from thermocline.format.tokens import (
    SHARE_OF_SEGMENT_MAX,
    TOKEN_BYTES_MAX,
    bounded_tokens,
    decode_head,
    encode_filters,
    hash_texts,
    hash_token,
    like_fragments,
    tokens_of,
)

LETTERS = "aB9 _-.%ßÄé\u212a\u017f\u3042\U0001f600\n\0“"
TEXTS = st.lists(st.none() | st.text(st.sampled_from(LETTERS), max_size=30), max_size=20)
ROOMY_BYTES = 1 << 20


def hashes_of(texts):
    found = {hash_token(one) for text in texts if text is not None for one in tokens_of(text)}
    return found - {None}


@given(TEXTS)
def test_a_column_has_the_tokens_of_its_texts_in_any_type_and_any_slice(texts):
    plain = pa.array([*texts, "of a row that the slice omits"], pa.string()).slice(0, len(texts))
    wanted = hashes_of(texts)
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert set(hash_texts(plain.cast(kind)).to_pylist()) == wanted
    encoded = pc.dictionary_encode(pa.array([*texts, "unused"], pa.string()))
    assert set(hash_texts(encoded.slice(0, len(texts))).to_pylist()) == wanted
    assert set(hash_texts(pa.chunked_array([plain, plain])).to_pylist()) == wanted


@given(TEXTS)
def test_small_pieces_find_at_least_the_tokens_of_large_ones(texts):
    column = pa.array([one and one * 40 for one in texts], pa.string())
    whole = set(hash_texts(column).to_pylist())
    before = tokens._PIECE_BYTES
    tokens._PIECE_BYTES = TOKEN_BYTES_MAX + 3
    try:
        assert set(hash_texts(column).to_pylist()) >= whole
    finally:
        tokens._PIECE_BYTES = before


def test_the_letters_of_ascii_are_hashed_in_lower_case_and_no_others():
    assert hash_token("PAID") == hash_token("paid") != hash_token("paíd")
    assert hash_token("k") != hash_token("\u212a")  # the Kelvin sign
    assert tokens_of("user_id=42, “Köln”") == ["user", "id", "42", "“Köln”"]


def test_a_token_past_the_limit_is_in_no_filter_and_is_not_asked_for():
    long = "x" * (TOKEN_BYTES_MAX + 1)
    assert hash_token(long) is None
    assert len(hash_texts(pa.array([f"{long} short"]))) == 1


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_a_filter_never_denies_a_token_that_it_holds(columns):
    hashes = {
        place: hash_texts(pa.array(texts, pa.string())) for place, texts in enumerate(columns)
    }
    data = encode_filters(hashes, ROOMY_BYTES)
    if data is None:
        assert not any(map(len, hashes.values()))
        return
    filters = decode_head(data, len(data))
    for key, found in hashes.items():
        assert all(filters[key].may_hold(one, data.__getitem__) for one in found.to_pylist())


def test_a_filter_denies_nearly_every_token_that_it_lacks_and_keeps_to_its_share():
    held = hash_texts(pa.array([f"id{n}" for n in range(20_000)]))
    others = [hash_token(f"other{n}") for n in range(4_000)]
    for segment_bytes, false_max in ((ROOMY_BYTES, 0.05), (90_000, 0.25)):
        data = encode_filters({1: held}, segment_bytes)
        assert len(data) <= segment_bytes * SHARE_OF_SEGMENT_MAX
        one = decode_head(data, len(data))[1]
        false = sum(one.may_hold(token, data.__getitem__) for token in others)
        assert 0 < false / len(others) < false_max


def test_without_room_for_four_bits_a_token_there_is_no_sidecar():
    held = hash_texts(pa.array([f"id{n}" for n in range(1_000)]))
    assert encode_filters({1: held}, 3_400) is None
    assert encode_filters({1: held}, 4_000) is not None
    assert encode_filters({}, ROOMY_BYTES) is None


def test_bytes_that_are_no_sidecar_are_refused():
    data = encode_filters({1: hash_texts(pa.array(["a b c"]))}, ROOMY_BYTES)
    for broken in (b"", data[:7], b"X" + data[1:], data[:20]):
        with pytest.raises(Corruption):
            decode_head(broken, len(data))
    with pytest.raises(Corruption):
        decode_head(data, len(data) + 1)
    with pytest.raises(Unsupported):
        decode_head(data[:4] + b"\2" + data[5:], len(data))


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("%failure%", []),
        ("% failure %", ["failure"]),
        ("%disk failure on sda%", ["failure", "on"]),
        ("disk fail%", ["disk"]),
        ("%fail over", ["over"]),
        ("disk fail", ["disk", "fail"]),
        ("a_b c_d", []),
        ("a b_c d", ["a", "d"]),
        ("%(a-b)%", ["a", "b"]),
        ("%“a”%", []),
    ],
)
def test_only_tokens_that_the_pattern_bounds_on_both_sides_are_asked_for(pattern, wanted):
    assert bounded_tokens(like_fragments(pattern)) == wanted
