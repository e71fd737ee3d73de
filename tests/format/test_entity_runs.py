"""The coverage of many entities as runs equals the same coverage as a bitmap for each."""

import itertools
from datetime import datetime, timedelta

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.cold.segment.measure import measure
from thermocline.errors import Corruption, EntityLimitReached
from thermocline.format.bitmap_runs import BitmapRuns, find_runs, unite_runs
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import (
    BIAS,
    ENTITIES_PACKED_MIN,
    LONG_RUN,
    RUNS_AN_ENTITY_MAX,
    Buckets,
    Coverage,
    EntityRuns,
    collect_runs,
    decode_coverage,
    encode_bitmaps,
    encode_coverage,
    pack_entities,
    sidecar_checksum,
    unite_buckets,
    unite_entities,
    unite_whole,
)
from thermocline.format.log.action import TableSpec

MANY = ENTITIES_PACKED_MIN + 3


def some_entities(seed: int, count: int = MANY) -> dict[str, Buckets]:
    """Return buckets of many entities: some lone, some in runs, some before 1970."""
    random = np.random.default_rng(seed)
    found = {}
    for number in random.choice(3 * count, count, replace=False).tolist():
        first = random.integers(-50, 50, 3)
        ends = first + random.integers(1, 9, 3)
        numbers = np.concatenate([np.arange(*pair) for pair in zip(first, ends, strict=True)])
        found[f'["e\u00e9{number}"]'] = Buckets.from_numbers(np.unique(numbers))
    return found


def packed(entities: dict[str, Buckets]) -> EntityRuns:
    made = pack_entities(*collect_runs(entities))
    assert made is not None
    return made


def covered(entities) -> Coverage:
    return Coverage(3_600, unite_whole(entities), entities)


def spec(**how) -> TableSpec:
    return TableSpec("", "ts", Bucket(3_600), entity_columns=("e",), **how)


def test_a_run_of_any_length_is_the_set_of_its_buckets():
    lengths = np.array([1, LONG_RUN, LONG_RUN + 1, 3, 200_000])
    first = BIAS + np.cumsum(lengths + 5) - lengths
    made = Buckets.from_runs(BitmapRuns(np.zeros(5, dtype=np.int64), first, first + lengths))
    assert len(made) == lengths.sum()
    runs = find_runs([made.to_bytes()])
    assert runs.first.tolist() == first.tolist()
    assert runs.end.tolist() == (first + lengths).tolist()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-40, 40), st.integers(1, 20)), max_size=30)
)
def test_united_runs_are_the_maximal_runs_of_each_owner(drawn):
    columns = zip(*drawn, strict=True) if drawn else ((), (), ())
    owner, first, length = (np.array(list(part), dtype=np.int64) for part in columns)
    united = unite_runs(BitmapRuns(owner, first, first + length))
    assert united is not None
    for one in range(4):
        held = {b for o, f, n in drawn if o == one for b in range(f, f + n)}
        mine = united.owner == one
        pairs = list(zip(united.first[mine].tolist(), united.end[mine].tolist(), strict=True))
        assert {b for low, high in pairs for b in range(low, high)} == held
        assert all(high < low for (_, high), (low, _) in itertools.pairwise(pairs))


def test_runs_too_far_apart_for_one_number_are_not_united():
    far = BitmapRuns(np.array([0, 9]), np.array([0, 1 << 60]), np.array([1, (1 << 60) + 1]))
    assert unite_runs(far) is None


@pytest.mark.parametrize("seed", range(3))
def test_entities_as_runs_equal_the_same_entities_as_bitmaps(seed):
    plain = some_entities(seed)
    runs = packed(plain)
    assert runs == plain
    assert len(runs) == len(plain)
    assert list(runs) == sorted(plain)
    assert unite_whole(runs) == unite_buckets(plain.values())
    assert '["nobody"]' not in runs
    with pytest.raises(KeyError):
        runs['["nobody"]']


@pytest.mark.parametrize("seed", range(3))
def test_unions_and_overlaps_are_those_of_bitmaps(seed):
    one, other, few = some_entities(seed), some_entities(seed + 9), some_entities(seed + 20, 40)
    expected = unite_entities([one, other, few])
    for parts in ([packed(one), packed(other), few], [one, packed(other), few]):
        assert unite_entities(parts) == expected
    left, right = covered(one), covered(other)
    both = covered(packed(one)).overlap(covered(packed(other)), has_entities=True)
    assert both == left.overlap(right, has_entities=True)
    rest = covered(packed(one)).subtract(covered(packed(other)))
    assert rest.entities == left.subtract(right).entities
    assert rest.whole == left.subtract(right).whole
    assert covered(packed(one)).union(right).entities == left.union(right).entities


@pytest.mark.parametrize("seed", range(3))
def test_a_packed_sidecar_is_read_as_it_was_written(seed):
    plain = some_entities(seed)
    data = encode_coverage(covered(packed(plain)).with_digest(7))
    assert data[4] == 2
    assert decode_coverage(data) == covered(plain).with_digest(7)
    assert encode_coverage(covered(plain).with_digest(7)) == data
    assert encode_coverage(decode_coverage(data)) == data
    assert len(data) < len(encode_bitmaps(covered(plain))) / 3


def test_the_checksum_of_a_packed_sidecar_does_not_depend_on_the_packing():
    data = encode_coverage(covered(some_entities(1)))
    content = pa.Codec("zstd").decompress(data[32:-4], int.from_bytes(data[24:32], "little"))
    again = data[:32] + pa.Codec("zstd", compression_level=19).compress(content, asbytes=True)
    assert again != data[:-4]
    assert sidecar_checksum(again + b"\0\0\0\0") == sidecar_checksum(data)
    assert sidecar_checksum(encode_coverage(covered(some_entities(2)))) != sidecar_checksum(data)


def test_few_entities_and_entities_with_many_runs_keep_a_bitmap_each():
    assert encode_coverage(covered(some_entities(1, ENTITIES_PACKED_MIN - 1)))[4] == 1
    lone = Buckets.from_numbers(np.arange(0, 2 * RUNS_AN_ENTITY_MAX + 2, 2))
    torn = {f'["{n}"]': lone for n in range(MANY)}
    data = encode_coverage(covered(torn))
    assert data[4] == 1
    assert decode_coverage(data) == covered(torn)


def test_every_flipped_byte_and_every_cut_of_a_packed_sidecar_is_noticed():
    data = encode_coverage(covered(some_entities(1)))
    for place in range(0, len(data), 7):
        with pytest.raises(Corruption):
            decode_coverage(data[:place])
        damaged = bytearray(data)
        damaged[place] ^= 16
        with pytest.raises(Corruption):
            decode_coverage(bytes(damaged))


@pytest.mark.slow
@given(st.integers(0, 40), st.integers(0, 255))
@settings(max_examples=60)
def test_a_packed_part_that_contradicts_itself_is_damage(place, value):
    """Each of the first bytes of the content is replaced, with checksums that fit."""
    coverage = covered(some_entities(1))
    data = encode_coverage(coverage)
    content = bytearray(
        pa.Codec("zstd").decompress(data[32:-4], int.from_bytes(data[24:32], "little"))
    )
    if content[place] == value:
        return
    content[place] = value
    body = data[:32] + pa.Codec("zstd").compress(bytes(content), asbytes=True)
    with pytest.raises(Corruption):
        decode_coverage(body + google_crc32c.value(body).to_bytes(4, "little"))


def rows(seed: int, entities: int, per_batch: int) -> pa.Table:
    random = np.random.default_rng(seed)
    times = random.integers(-9, 9, per_batch) * 1_800_000_000
    # A dictionary with values that no row uses, and rows without a value.
    codes = pa.array(random.integers(0, entities, per_batch), mask=random.random(per_batch) < 0.01)
    names = pa.array([f"n{place}" for place in random.permutation(entities + 50)])
    device = pa.DictionaryArray.from_arrays(codes, names)
    return pa.table({"ts": pa.array(times).cast(pa.timestamp("us")), "e": device})


@pytest.mark.parametrize("seed", range(3))
def test_measured_rows_of_many_entities_cover_what_they_cover_one_by_one(seed):
    some = rows(seed, 2_000, 6_000)
    batches = [some.slice(0, 3_000), some.slice(3_000, 40), some.slice(3_040)]
    coverage = measure(batches, spec()).coverage
    expected: dict[str, set[int]] = {}
    for row in some.cast(pa.schema([some.schema.field("ts"), ("e", pa.string())])).to_pylist():
        key = "[null]" if row["e"] is None else f'["{row["e"]}"]'
        number = (row["ts"] - datetime(1970, 1, 1)) // timedelta(hours=1)
        expected.setdefault(key, set()).add(number)
    assert isinstance(coverage.entities, EntityRuns)
    found = {key: set(held.numbers().tolist()) for key, held in coverage.entities.items()}
    assert found == expected
    assert encode_coverage(measure([some], spec()).coverage) == encode_coverage(coverage)


def test_the_bytes_of_version_1_are_those_that_one_bitmap_an_entity_gave():
    coverage = measure([rows(4, 2_000, 9_000)], spec()).coverage
    separate = {
        key: unite_buckets([Buckets.from_numbers(held.numbers())])
        for key, held in coverage.entities.items()
    }
    old = Coverage(3_600, unite_buckets(separate.values()), separate)
    assert encode_bitmaps(coverage) == encode_bitmaps(old)


def test_the_limit_of_entities_holds_over_batches():
    some = rows(1, 3_000, 20_000)
    held = len(measure([some], spec()).coverage.entities)
    batches = [some.slice(0, 10_000), some.slice(10_000)]
    assert len(measure(batches, spec(entities_max=held)).coverage.entities) == held
    with pytest.raises(EntityLimitReached):
        measure(batches, spec(entities_max=held - 1))
