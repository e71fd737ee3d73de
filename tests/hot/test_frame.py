"""Frames and file headers: what is written is read, and nothing else is."""

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.errors import Corruption, Unsupported
from thermocline.hot.wal.frame import (
    CHECKSUM_BYTES,
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    FRAME_HEADER_BYTES,
    KIND_HOLE,
    KIND_ROWS,
    PAYLOAD_BYTES_MAX,
    UNSALTED_VERSION,
    FileHeader,
    FrameHeader,
    Lsn,
    check_lengths,
    decode_file_header,
    decode_frame_header,
    encode_file_header,
    encode_frame,
    whole_payload,
)

JOURNAL_ID = b"the journal's id"
IDS = st.binary(min_size=16, max_size=16)
BIG = st.integers(0, 2**64 - 1)
VERSIONS = st.sampled_from([UNSALTED_VERSION, FORMAT_VERSION])


@st.composite
def file_headers(draw):
    """A file's header, of either version."""
    number, version = draw(BIG.filter(bool)), draw(VERSIONS)
    salt = number if version == UNSALTED_VERSION else draw(BIG)
    return FileHeader(draw(IDS), number, draw(BIG), salt, draw(BIG), version)


@st.composite
def written(draw):
    """A journal's id, a frame's header and its payload."""
    payload = draw(st.binary(max_size=300))
    header = FrameHeader(
        draw(st.sampled_from([KIND_ROWS, KIND_HOLE])),
        draw(st.sampled_from([CODEC_NONE, CODEC_ZSTD, CODEC_LZ4])),
        draw(BIG),
        draw(BIG),
        draw(BIG),
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(IDS),
        draw(st.integers(0, 2**32 - 1)),
        len(payload),
        draw(st.integers(0, PAYLOAD_BYTES_MAX)),
        draw(VERSIONS),
    )
    return draw(IDS), header, payload


def a_header(length=5, **changed):
    fields = {
        "kind": KIND_ROWS,
        "codec": CODEC_NONE,
        "lsn": Lsn(9),
        "salt": 3,
        "durable": Lsn(8),
        "written_ns": 10**18,
        "table_id": b"t" * 16,
        "schema_id": 2,
        "length": length,
        "raw_length": length,
    }
    return FrameHeader(**{**fields, **changed})


@given(file_headers())
def test_a_file_header_reads_back(header):
    data = encode_file_header(header)
    assert len(data) == FILE_HEADER_BYTES
    assert decode_file_header(data) == header
    assert decode_file_header(data + b"frames") == header


@given(written(), st.integers(0, 50))
def test_a_frame_reads_back_wherever_it_is(made, offset):
    journal_id, header, payload = made
    data = b"".join(encode_frame(journal_id, header, payload))
    assert len(data) == header.size_bytes
    assert decode_frame_header(journal_id, b"\xf7" * offset + data, offset) == header
    assert data[FRAME_HEADER_BYTES:-CHECKSUM_BYTES] == payload
    assert whole_payload(header, b"\xf7" * offset + data + b"more", offset) == payload
    assert whole_payload(header, data[:-1]) is None


@pytest.mark.parametrize("bits", [1, 0x80, 0xFF])
def test_every_flip_in_a_file_header_is_noticed(bits):
    data = encode_file_header(FileHeader(JOURNAL_ID, 3, Lsn(9), 2, 4711))
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= bits
        assert decode_file_header(bytes(damaged)) is None, place


@pytest.mark.parametrize("version", [UNSALTED_VERSION, FORMAT_VERSION])
@pytest.mark.parametrize("bits", [1, 0x80, 0xFF])
def test_every_flip_in_a_frame_is_noticed(bits, version):
    payload = b"these are the rows"
    whole = a_header(len(payload), version=version)
    data = b"".join(encode_frame(JOURNAL_ID, whole, payload))
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= bits
        header = decode_frame_header(JOURNAL_ID, bytes(damaged))
        if place < FRAME_HEADER_BYTES:
            assert header is None, place
        else:
            assert header == whole
            assert whole_payload(header, bytes(damaged)) is None, place


@pytest.mark.parametrize(
    "other", [{"salt": 4}, {"lsn": 10}, {"durable": 7}, {"written_ns": 1}, {"table_id": b"u" * 16}]
)
def test_W06_a_payload_of_another_frame_is_not_that_of_this_one(other):
    mine, others = (
        b"".join(encode_frame(JOURNAL_ID, a_header(**changed), b"rows!")) for changed in ({}, other)
    )
    assert whole_payload(a_header(), mine) == b"rows!"
    mixed = mine[:FRAME_HEADER_BYTES] + others[FRAME_HEADER_BYTES:]
    assert whole_payload(a_header(), mixed) is None


def test_frames_of_two_files_differ_in_their_tags():
    frames = [a_header(), a_header(salt=4), a_header(version=UNSALTED_VERSION)]
    files = [
        FileHeader(JOURNAL_ID, 3, Lsn(9), salt, 4711, version)
        for salt, version in ((3, FORMAT_VERSION), (4, FORMAT_VERSION), (3, UNSALTED_VERSION))
    ]
    assert [file.tag for file in files] == [frame.tag for frame in frames]
    assert len({frame.tag for frame in frames}) == 3


@given(st.binary(max_size=200), st.integers(0, 100))
def test_bytes_of_any_kind_are_no_header_and_no_error(data, offset):
    assert decode_file_header(data) is None
    assert decode_frame_header(JOURNAL_ID, data, offset) is None


def test_a_header_cut_short_is_none():
    file = encode_file_header(FileHeader(JOURNAL_ID, 1, Lsn(1), 0, 0))
    frame = encode_frame(JOURNAL_ID, a_header(), b"rows!")[0]
    assert not any(decode_file_header(file[:size]) for size in range(len(file)))
    assert not any(decode_frame_header(JOURNAL_ID, frame[:size]) for size in range(len(frame)))


@given(IDS.filter(lambda other: other != JOURNAL_ID))
def test_W06_a_frame_of_another_journal_is_no_frame(other):
    header = encode_frame(other, a_header(), b"rows!")[0]
    assert decode_frame_header(JOURNAL_ID, header) is None


def test_a_hole_stands_for_as_many_lsns_as_it_says():
    assert a_header(kind=KIND_HOLE, schema_id=40).span == 40
    assert a_header(schema_id=40).span == 1


@pytest.mark.parametrize("field", ["length", "raw_length"])
@pytest.mark.parametrize("length", [PAYLOAD_BYTES_MAX + 1, 2**32 - 1])
def test_W14_a_length_no_writer_writes_is_refused_with_its_place(field, length):
    with pytest.raises(Corruption) as caught:
        check_lengths(a_header(**{field: length}), "/journal/1.wal", 64)
    assert caught.value.facts["path"] == "/journal/1.wal"
    assert caught.value.facts["offset"] == 64
    check_lengths(a_header(**{field: PAYLOAD_BYTES_MAX}), "/journal/1.wal", 64)


def test_a_payload_larger_than_a_frame_is_a_bug_of_the_caller():
    with pytest.raises(AssertionError):
        encode_frame(JOURNAL_ID, a_header(4), b"rows!")


def newer(data, offset, kind, prefix=b""):
    """Return a whole header that says it is of the next format version."""
    body = bytearray(data[:-CHECKSUM_BYTES])
    struct.pack_into(kind, body, offset, FORMAT_VERSION + 1)
    crc = google_crc32c.extend(google_crc32c.value(prefix), bytes(body))
    return bytes(body) + struct.pack("<I", crc)


def test_a_newer_format_is_unsupported_and_not_damage():
    file = encode_file_header(FileHeader(JOURNAL_ID, 1, Lsn(1), 0, 0))
    frame = encode_frame(JOURNAL_ID, a_header(), b"rows!")[0]
    with pytest.raises(Unsupported, match="newer Thermocline"):
        decode_file_header(newer(file, 8, "<H"))
    with pytest.raises(Unsupported, match="newer Thermocline"):
        decode_frame_header(JOURNAL_ID, newer(frame, 4, "<B", JOURNAL_ID))
