"""Bodies are inflated within a limit, completely or not at all."""

import gzip
import pickle
import tracemalloc
import zlib

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.errors import BodyTooLarge, Invalid
from thermocline.ingest.inflate import CODINGS, MEMBERS_MAX, inflate

MIB = 1 << 20


def zstd(data):
    return pa.Codec("zstd").compress(data, asbytes=True)


def raw_deflate(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def snappy(data):
    return pa.Codec("snappy").compress(data, asbytes=True)


def framed_snappy(data):
    """Return snappy's framed format: the magic chunk, then chunks of at most 64 KiB."""
    found = [b"\xff\x06\x00\x00sNaPpY"]
    for first in range(0, max(1, len(data)), 65_536):
        part = data[first : first + 65_536]
        crc = google_crc32c.value(part)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        is_plain = first % 131_072 == 0
        body = masked.to_bytes(4, "little") + (part if is_plain else snappy(part))
        found.append(bytes([is_plain]) + len(body).to_bytes(3, "little") + body)
    return b"".join(found)


DEFLATERS = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd}
DEFLATERS |= {"zlib": zlib.compress, "snappy": snappy, "x-snappy-framed": framed_snappy}
PACKED = [name for name in CODINGS if name != "identity"]


@pytest.mark.parametrize("coding", CODINGS)
@given(data=st.binary(max_size=300), times=st.sampled_from([1, 1_000]))
def test_what_was_deflated_comes_back(coding, data, times):
    assert inflate(DEFLATERS[coding](data * times), coding) == data * times


@given(data=st.binary(max_size=300), times=st.sampled_from([1, 10_000]))
def test_deflate_without_its_header_comes_back(data, times):
    assert inflate(raw_deflate(data * times), "deflate") == data * times


@pytest.mark.parametrize("coding", ["GZIP", " gzip "])
def test_a_coding_is_named_in_any_case(coding):
    assert inflate(gzip.compress(b"x"), coding) == b"x"


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "lz4", "x" * 10_000])
def test_I02_an_unknown_coding_or_several_are_invalid(coding):
    with pytest.raises(Invalid, match="unknown content encoding") as caught:
        inflate(b"x", coding)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_of_just_the_limit_is_taken_and_one_byte_more_is_not(coding):
    assert len(inflate(DEFLATERS[coding](bytes(MIB)), coding, limit_bytes=MIB)) == MIB
    with pytest.raises(BodyTooLarge) as caught:
        inflate(DEFLATERS[coding](bytes(MIB + 1)), coding, limit_bytes=MIB)
    assert caught.value.facts == {"limit_bytes": MIB}
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), BodyTooLarge)


@pytest.mark.parametrize("coding", PACKED)
def test_I01_a_bomb_is_stopped_at_the_limit_while_inflating(coding):
    bomb = DEFLATERS[coding](bytes(200 * MIB))
    tracemalloc.start()
    with pytest.raises(BodyTooLarge):
        inflate(bomb, coding, limit_bytes=2 * MIB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MIB


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_I02_several_members_are_one_body_with_one_limit(coding):
    part = DEFLATERS[coding](b"x" * 1_000)
    assert inflate(part * 3, coding) == b"x" * 3_000
    with pytest.raises(BodyTooLarge):
        inflate(part * 3, coding, limit_bytes=2_999)


def test_I02_members_without_end_are_stopped():
    with pytest.raises(Invalid, match="cannot be inflated"):
        inflate(gzip.compress(b"") * (MEMBERS_MAX + 1), "gzip")


@pytest.mark.parametrize("coding", PACKED)
@pytest.mark.parametrize("junk", [b"\0", b"junk", b"\x1f\x8b"])
def test_I02_something_after_the_end_is_invalid(coding, junk):
    with pytest.raises(Invalid, match="cannot be inflated"):
        inflate(DEFLATERS[coding](b"body") + junk, coding)


@pytest.mark.parametrize("coding", PACKED)
def test_I03_a_body_cut_anywhere_is_invalid(coding):
    whole = DEFLATERS[coding](bytes(range(256)) * 20)
    for length in range(len(whole)):
        with pytest.raises(Invalid, match="cannot be inflated"):
            inflate(whole[:length], coding)


@pytest.mark.parametrize("coding", PACKED)
def test_I03_a_body_of_another_coding_is_invalid(coding):
    with pytest.raises(Invalid, match="cannot be inflated"):
        inflate(b"\xff\xfe not packed at all", coding)


def test_I02_a_gzip_inside_a_gzip_is_inflated_once():
    inner = gzip.compress(bytes(MIB))
    assert inflate(gzip.compress(inner), "gzip", limit_bytes=10_000) == inner


@pytest.mark.parametrize("place", [10, 14, 40])
def test_I03_a_damaged_chunk_of_framed_snappy_is_invalid(place):
    data = bytearray(framed_snappy(bytes(range(200))))
    data[place] ^= 0x55
    with pytest.raises(Invalid):
        inflate(bytes(data), "snappy")
