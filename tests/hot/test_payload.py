"""Rows in frames: replay gives byte for byte what was live (W17), and nothing shares memory."""

import math
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.errors import Corruption, Overloaded, Unsupported
from thermocline.hot.wal import payload as payload_room
from thermocline.hot.wal.frame import (
    CODEC_LZ4,
    CODEC_NONE,
    CODEC_ZSTD,
    KIND_ROWS,
    PAYLOAD_BYTES_MAX,
    FrameHeader,
    Lsn,
)
from thermocline.hot.wal.payload import decode_frames, decode_rows, encode_rows

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.one_of(
    st.floats(width=64), st.sampled_from([math.nan, -math.nan, -0.0, 0.0, math.inf, -math.inf])
)
TEXT = st.text(max_size=12)
DECIMALS = st.integers(-(10**20), 10**20).map(lambda n: Decimal(n).scaleb(-4))


def sized(bits, *, signed=True):
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1)


KINDS = [
    *((pa.type_for_alias(f"int{bits}"), sized(bits)) for bits in (8, 16, 32, 64)),
    *((pa.type_for_alias(f"uint{bits}"), sized(bits, signed=False)) for bits in (8, 16, 32, 64)),
    (pa.float64(), FLOATS),
    (pa.float32(), st.floats(width=32)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(38, 4), DECIMALS),
    *((pa.timestamp(unit), INT64) for unit in ("s", "ms", "us", "ns")),
    *((pa.timestamp(unit, "UTC"), INT64) for unit in ("us", "ns")),
    (pa.duration("us"), INT64),
    (pa.date32(), sized(32)),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.string_view(), TEXT),
    (pa.binary(), st.binary(max_size=12)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.null(), st.none()),
    (pa.list_(pa.int64()), st.lists(INT64, max_size=3)),
    (pa.list_(pa.string()), st.lists(TEXT, max_size=3)),
    (pa.list_(pa.float32(), 2), st.lists(st.floats(width=32), min_size=2, max_size=2)),
    (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | sized(8), "b": st.none() | TEXT}),
    ),
    (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(TEXT, INT64), max_size=3)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "bb", "", "ü"])),
]
PHYSICAL = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_date32)


def array_of(kind, values):
    """Return an array; times are made from their numbers, which may lie outside of Python's."""
    if any(is_kind(kind) for is_kind in PHYSICAL):
        number = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        return pa.array(values, number).cast(kind)
    return pa.array(values, kind)


@st.composite
def batches(draw):
    """A batch of a few columns of any kinds, often a slice of larger arrays."""
    rows = draw(st.integers(0, 12))
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=5))
    columns = [
        array_of(kind, draw(st.lists(st.none() | values, min_size=rows, max_size=rows)))
        for kind, values in kinds
    ]
    fields = [
        pa.field(f"c{place}", column.type, metadata={"unit": "K"} if place % 2 else None)
        for place, column in enumerate(columns)
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, {"made": "by hand"}))
    start = draw(st.integers(0, rows))
    return whole.slice(start, draw(st.integers(0, rows - start))) if draw(st.booleans()) else whole


def header_of(payload, **changed):
    fields = {"codec": payload.codec, "raw_length": payload.raw_length, **changed}
    codec, raw_length = fields["codec"], fields["raw_length"]
    size = len(payload.data)
    return FrameHeader(KIND_ROWS, codec, Lsn(4), 1, Lsn(3), 0, b"t" * 16, 0, size, raw_length)


def bits_of(batch):
    """Return bytes that are equal only for equal bits: NaNs and zeros keep their sign."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def bits_if_valid(batch):
    """Return the bytes, or None for an array of a flipped byte: Arrow aborts when it writes it."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return bits_of(batch)


@settings(max_examples=300)
@given(batches())
def test_W17_replay_gives_bit_for_bit_what_is_live_and_what_was_given(batch):
    payload = encode_rows(batch)
    replayed = decode_rows(header_of(payload), payload.data).batch
    assert replayed.schema.equals(batch.schema, check_metadata=True)
    assert payload.batch.schema.equals(batch.schema, check_metadata=True)
    assert bits_of(replayed) == bits_of(payload.batch) == bits_of(batch)
    assert replayed.num_rows == batch.num_rows
    replayed.validate(full=True)


@pytest.mark.parametrize("rows", [3, 3000])
def test_W17_what_the_caller_does_with_its_memory_afterwards_changes_nothing(rows):
    numbers = np.arange(rows, dtype="int64")
    batch = pa.RecordBatch.from_arrays([pa.array(numbers)], ["n"])
    assert batch.column(0).buffers()[1].address == numbers.ctypes.data, "the memory is not shared"
    payload = encode_rows(batch)
    numbers[:] = -1
    assert batch.column(0)[0].as_py() == -1
    expected = list(range(rows))
    assert payload.batch.column(0).to_pylist() == expected
    assert decode_rows(header_of(payload), payload.data).batch.column(0).to_pylist() == expected


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_rows_without_columns_keep_their_number(rows):
    columns = pa.RecordBatch.from_pydict({"n": list(range(rows))})
    batch = columns.select([])
    payload = encode_rows(batch)
    assert decode_rows(header_of(payload), payload.data).batch.num_rows == batch.num_rows


def test_the_bits_of_a_float_survive():
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_DEAD_BEEF))[0]
    values = np.array([odd, -0.0, 0.0, math.inf])
    payload = encode_rows(pa.RecordBatch.from_arrays([pa.array(values)], ["x"]))
    replayed = decode_rows(header_of(payload), payload.data).batch
    assert replayed.column(0).to_numpy().tobytes() == values.tobytes()


def test_a_slice_is_written_without_the_rows_around_it():
    large = pa.RecordBatch.from_pydict({"s": [f"row {n}" for n in range(10_000)]})
    assert encode_rows(large.slice(5_000, 2)).raw_length < 1_000


@pytest.mark.parametrize(
    ("rows", "codec"), [(10, CODEC_NONE), (5_000, CODEC_LZ4), (50_000, CODEC_LZ4)]
)
def test_payloads_are_compressed_by_their_size(rows, codec):
    payload = encode_rows(pa.RecordBatch.from_pydict({"n": [1] * rows}))
    assert payload.codec == codec
    assert (len(payload.data) < payload.raw_length) == (codec != CODEC_NONE)
    assert decode_rows(header_of(payload), payload.data).batch.num_rows == rows


def test_what_does_not_get_smaller_is_not_compressed():
    noise = np.random.default_rng(1).integers(0, 255, 4096, dtype="uint8")
    random = encode_rows(pa.RecordBatch.from_arrays([pa.array(noise)], ["n"]))
    assert len(random.data) <= random.raw_length


def test_a_batch_larger_than_a_frame_is_refused_before_anything_is_written():
    large = pa.RecordBatch.from_arrays([pa.array(np.zeros(PAYLOAD_BYTES_MAX // 8))], ["x"])
    with pytest.raises(Overloaded) as caught:
        encode_rows(large)
    assert caught.value.facts["size_bytes"] > PAYLOAD_BYTES_MAX


@pytest.fixture(scope="module")
def payload():
    return encode_rows(pa.RecordBatch.from_pydict({"n": list(range(500)), "s": ["x"] * 500}))


@given(data=st.data())
def test_W18_bytes_that_are_no_rows_are_corruption_that_names_the_lsn(payload, data):
    junk = data.draw(st.binary(max_size=400))
    codec = data.draw(st.sampled_from([CODEC_NONE, CODEC_ZSTD, CODEC_LZ4]))
    with pytest.raises(Corruption) as caught:
        decode_rows(header_of(payload, codec=codec, raw_length=len(junk)), junk)
    assert caught.value.facts["lsn"] == 4


@pytest.mark.parametrize("cut", [0, 1, 9, 100, -1])
def test_W18_half_a_payload_is_corruption(payload, cut):
    with pytest.raises(Corruption):
        decode_rows(header_of(payload), payload.data[:cut])


@pytest.mark.parametrize("raw_length", [0, 1, 10**6])
def test_W18_a_length_that_does_not_fit_is_corruption(payload, raw_length):
    with pytest.raises(Corruption):
        decode_rows(header_of(payload, raw_length=raw_length), payload.data)


@st.composite
def frames(draw):
    """A few frames: of one schema or of two, with requests or without, some of them no rows."""
    shapes = draw(st.lists(batches(), min_size=1, max_size=2))
    made = []
    for lsn in range(draw(st.integers(1, 9))):
        requests = draw(st.dictionaries(TEXT, st.integers(0, 9), max_size=2))
        payload = encode_rows(draw(st.sampled_from(shapes)), requests)
        codec = draw(st.sampled_from([payload.codec, CODEC_NONE, CODEC_LZ4]))
        raw = payload_room._decompress(header_of(payload), payload.data)
        # The frame's checksum is checked before: what may be wrong here was written so.
        match draw(st.sampled_from(["whole"] * 12 + ["half", "flipped", "empty"])):
            case "half":
                raw = raw[: len(raw) // 2]
            case "flipped":
                place = draw(st.integers(0, len(raw) - 1))
                raw = raw[:place] + bytes([raw[place] ^ 0xFF]) + raw[place + 1 :]
            case "empty":
                raw, codec = b"", CODEC_NONE
        pack = payload_room._CODECS.get(codec)
        data = raw if pack is None else pack.compress(raw, asbytes=True)
        header = header_of(payload, codec=codec, raw_length=len(raw))._replace(
            lsn=Lsn(lsn), length=len(data)
        )
        made.append((header, data))
    return made


@settings(max_examples=300)
@given(frames(), st.sampled_from([1, 2_000, 1 << 20]))
def test_W17_frames_read_together_are_what_each_is_by_itself(frames, together_bytes):
    def one(header, data):
        try:
            return decode_rows(header, data)
        except Corruption as error:
            return error

    kept, payload_room.DECODE_RUN_BYTES = payload_room.DECODE_RUN_BYTES, together_bytes
    try:
        together = list(decode_frames(frames))
    finally:
        payload_room.DECODE_RUN_BYTES = kept
    alone = [one(header, data) for header, data in frames]
    for found, expected in zip(together, alone, strict=True):
        assert type(found) is type(expected)
        if isinstance(expected, Corruption):
            assert found.facts == expected.facts
        else:
            assert bits_if_valid(found.batch) == bits_if_valid(expected.batch)
            assert found.batch.schema.equals(expected.batch.schema, check_metadata=True)
            assert found.requests == expected.requests


def test_small_writes_of_one_table_are_read_as_one_stream(monkeypatch):
    payloads = [encode_rows(pa.RecordBatch.from_pydict({"n": [n]}), {"k": n}) for n in range(50)]
    monkeypatch.setattr(payload_room, "_read_stream", None)
    found = decode_frames([(header_of(payload), payload.data) for payload in payloads])
    assert [stored.requests["k"] for stored in found] == list(range(50))


def test_an_unknown_codec_is_unsupported_and_not_damage(payload):
    with pytest.raises(Unsupported, match="codec"):
        decode_rows(header_of(payload, codec=9), payload.data)
