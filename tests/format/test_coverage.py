"""Coverage sidecars: their bytes, field by field, and what damage to them becomes."""

import struct
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from thermocline.errors import Corruption, ThermoclineError, Unsupported
from thermocline.format.coverage import (
    BIAS,
    BucketRun,
    Buckets,
    Coverage,
    decode_coverage,
    empty_coverage,
    encode_coverage,
    entity_key,
    entity_values,
    name_instant,
    sidecar_checksum,
)


def buckets(*numbers):
    return Buckets.from_numbers(np.array(numbers, dtype=np.int64))


def sealed(body):
    """Return the bytes of a sidecar with a checksum that is right."""
    return body + struct.pack("<I", google_crc32c.value(body))


PLAIN = Coverage(3_600, buckets(-2, -1, 0, 1, 500), {})
NAMED = Coverage(
    60,
    buckets(1, 2, 3, 9),
    {'["b"]': buckets(1, 2, 3), '["a"]': buckets(9), '["\u00e9"]': buckets()},
    digest=2**64 - 1,
)


def test_the_fields_lie_where_the_offset_table_says():
    data = encode_coverage(NAMED)
    assert data[:4] == b"TCCV"
    assert struct.unpack_from("<HHIIQ", data, 4) == (1, 0, 60, 3, 2**64 - 1)
    lengths = struct.unpack_from("<7I", data, 24)
    at = 24 + 4 * 7
    pieces = []
    for length in lengths:
        pieces.append(data[at : at + length])
        at += length
    assert pieces[:3] == [b'["a"]', b'["b"]', '["\u00e9"]'.encode()]
    held = [sorted(BitMap64.deserialize(piece)) for piece in pieces[3:]]
    assert held == [
        [BIAS + n for n in (1, 2, 3, 9)],
        [BIAS + 9],
        [BIAS + 1, BIAS + 2, BIAS + 3],
        [],
    ]
    assert data[at:] == struct.pack("<I", google_crc32c.value(data[:at]))


@pytest.mark.parametrize(
    "coverage", [PLAIN, NAMED, empty_coverage(1)], ids=["plain", "named", "empty"]
)
def test_a_sidecar_reads_back_as_itself(coverage):
    found = decode_coverage(encode_coverage(coverage))
    assert found == coverage
    assert encode_coverage(found) == encode_coverage(coverage)


def test_the_order_in_which_entities_came_does_not_show():
    turned = Coverage(60, NAMED.whole, dict(reversed(NAMED.entities.items())), NAMED.digest)
    assert encode_coverage(turned) == encode_coverage(NAMED)


def test_every_bit_flipped_in_every_byte_is_corruption():
    whole = encode_coverage(NAMED)
    for place in range(len(whole)):
        for bit in range(8):
            torn = bytearray(whole)
            torn[place] ^= 1 << bit
            with pytest.raises(Corruption):
                decode_coverage(bytes(torn))


def test_a_sidecar_cut_at_any_length_or_longer_is_corruption():
    whole = encode_coverage(NAMED)
    for size in range(len(whole)):
        with pytest.raises(Corruption):
            decode_coverage(whole[:size])
    with pytest.raises(Corruption):
        decode_coverage(whole + b"\0")


@given(st.binary(max_size=100))
def test_bytes_that_are_no_sidecar_are_corruption(data):
    for foreign in (data, b"TCCV" + data):
        with pytest.raises(Corruption):
            decode_coverage(foreign)


def test_a_newer_sidecar_is_refused_and_named():
    body = bytearray(encode_coverage(PLAIN)[:-4])
    body[4:6] = struct.pack("<H", 3)
    with pytest.raises(Unsupported) as caught:
        decode_coverage(sealed(bytes(body)))
    assert caught.value.facts == {"needed": 3, "supported": 2}


@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_counts_and_lengths_that_do_not_add_up_are_corruption(count, place, length):
    body = bytearray(encode_coverage(NAMED)[:-4])
    wrong_count = bytearray(body)
    struct.pack_into("<I", wrong_count, 12, count)
    wrong_length = bytearray(body)
    struct.pack_into("<I", wrong_length, 24 + 4 * place, length)
    for wrong in (wrong_count, wrong_length):
        if wrong != body:
            with pytest.raises(Corruption):
                decode_coverage(sealed(bytes(wrong)))


def test_a_header_that_promises_more_than_there_is_is_corruption():
    header = struct.pack("<4sHHIIQ", b"TCCV", 1, 0, 60, 3, 0)
    for tail in (b"", b"\0", b"\0\0\0\0", b"\0" * 27):
        with pytest.raises(Corruption):
            decode_coverage(sealed(header + tail))


def test_a_key_that_is_no_text_is_corruption():
    body = encode_coverage(Coverage(60, buckets(1), {"abc": buckets(1)}))[:-4]
    with pytest.raises(Corruption):
        decode_coverage(sealed(body.replace(b"abc", b"\xff\xfe\xfd")))


def test_a_bitmap_that_is_none_is_corruption_when_it_is_asked_for():
    good = encode_coverage(PLAIN)[:-4]
    size = struct.unpack_from("<I", good, 24)[0]
    found = decode_coverage(sealed(good[:-size] + b"\xff" * size))
    with pytest.raises(ThermoclineError) as caught:
        len(found.whole)
    assert isinstance(caught.value, Corruption)


def test_the_logs_checksum_tells_sidecars_apart():
    """The CRC of bytes that end in their own CRC is one number; the log's must not be."""
    one, other = encode_coverage(PLAIN), encode_coverage(NAMED)
    assert google_crc32c.value(one) == google_crc32c.value(other)
    assert sidecar_checksum(one) != sidecar_checksum(other)
    assert sidecar_checksum(one) == f"crc32c:{struct.unpack('<I', one[-4:])[0]:08x}"


def test_what_is_empty_is_false_also_after_it_was_written_and_read():
    found = decode_coverage(encode_coverage(empty_coverage(60)))
    assert not found.whole
    assert len(found.whole) == 0
    assert decode_coverage(encode_coverage(PLAIN)).whole


def test_buckets_before_1970_are_kept_in_order():
    found = decode_coverage(encode_coverage(PLAIN)).whole
    assert found.numbers().tolist() == [-2, -1, 0, 1, 500]
    assert (found.first(), found.last()) == (-2, 500)
    assert -2 in found
    assert 2 not in found
    assert found.runs() == [BucketRun(-2, 2), BucketRun(500, 501)]


def test_a_hole_where_a_container_begins_is_a_hole():
    """The library's own answer overlooks it when a later container exists."""
    held = buckets(2 * 65_536 - 1, 10**11)
    assert not held.holds_all(2 * 65_536 - 1, 2 * 65_536 + 1)
    assert held.holds_all(2 * 65_536 - 1, 2 * 65_536)
    assert held.holds_all(7, 7)


@pytest.mark.parametrize("number", [-62_135_596_800, 253_402_300_799])
def test_the_seconds_of_the_first_and_last_year_fit(number):
    found = decode_coverage(encode_coverage(Coverage(1, buckets(number), {}))).whole
    assert found.numbers().tolist() == [number]
    assert found.runs() == [BucketRun(number, number + 1)]


@pytest.mark.parametrize("keep", [[0, 1, 2], [0, 1, 2, 10, 20, 21, 22], [5], [], [998, 999]])
@pytest.mark.parametrize("is_named", [False, True])
def test_what_is_left_of_a_sidecar_has_the_bytes_of_one_made_from_rows(keep, is_named):
    """A run cut from a longer run would stay a run, and the sidecar could not be made again."""

    def made(numbers):
        held = buckets(*numbers)
        return Coverage(60, held, {'["a"]': held} if is_named and len(held) else {})

    read = decode_coverage(encode_coverage(made(range(1_000))))
    gone = decode_coverage(encode_coverage(made(sorted(set(range(1_000)) - set(keep)))))
    assert encode_coverage(read.subtract(gone)) == encode_coverage(made(keep))


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (["NVDA"], '["NVDA"]'),
        ([1, None, True], "[1,null,true]"),
        (["1"], '["1"]'),
        ([2**64 - 1], "[18446744073709551615]"),
        ([date(2024, 6, 1)], '["2024-06-01"]'),
        ([datetime(2024, 6, 1, 12)], '["2024-06-01T12:00:00"]'),
        ([datetime(2024, 6, 1, 12, 0, 0, 500_000)], '["2024-06-01T12:00:00.5"]'),
        ([datetime(2024, 6, 1, 12, tzinfo=UTC)], '["2024-06-01T12:00:00Z"]'),
        (
            [datetime(2024, 6, 1, 14, tzinfo=timezone(timedelta(hours=2)))],
            '["2024-06-01T12:00:00Z"]',
        ),
        ([time(1, 2, 3)], '["01:02:03"]'),
        ([time(1, 2, 3, 400_000)], '["01:02:03.4"]'),
        ([Decimal("1.50")], '["1.5"]'),
        (
            [Decimal("1.5000000000000000000000000000000001")],
            '["1.5000000000000000000000000000000001"]',
        ),
        ([Decimal("1E+2")], '["100"]'),
        ([Decimal("0.00")], '["0"]'),
    ],
    ids=str,
)
def test_an_entity_has_one_written_name(values, key):
    assert entity_key(values) == key


def test_the_values_of_a_key_come_back():
    assert entity_values(entity_key(["NVDA", 7, None])) == ["NVDA", 7, None]


def test_an_instant_is_named_without_zeros_at_its_end():
    assert name_instant(10, has_zone=True) == "1970-01-01T00:00:00.00000001Z"
    assert name_instant(-1, has_zone=False) == "1969-12-31T23:59:59.999999999"
    assert name_instant(0, has_zone=False) == "1970-01-01T00:00:00"
