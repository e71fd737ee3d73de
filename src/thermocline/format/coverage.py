"""Which buckets are held: bitmaps of bucket numbers, per entity where entities are declared.

In:   bucket numbers, entity keys
Out:  a `Coverage`, its bytes (`.roar`), and the runs that are held or missing

    offset  size  field
    0       4     magic `TCCV`
    4       2     format version, 1
    6       2     flags, 0
    8       4     the code of the bucket: its width in seconds, see `Bucket.code`
    12      4     number of entities n
    16      8     digest: which segments this covers (0 in a segment's own sidecar)
    24      4*n   length of each entity's key in bytes
    ..      4*(n+1) length of each bitmap in bytes: the whole first, then each entity's
    ..            the keys, UTF-8 JSON arrays, in ascending order of their bytes
    ..            the bitmaps, 64-bit portable Roaring
    end-4   4     CRC32C of all bytes before

Version 2 packs the runs of many entities that have few runs each. After the header come the
length of the packed part in 8 bytes, and the part: zstd of the arrays that `_encode_packed` joins.
The log has the CRC32C of the header and the unpacked part: another zstd may pack it differently.

All integers are little-endian and unsigned. A bitmap's value is the bucket number plus 2**40, so
that buckets before 1970 are positive and in order.

- Where entity columns are declared, `whole` is the union of the entities' bitmaps.
- An entity's bitmap is decoded only when it is first needed. Many entities with few runs each are
  three arrays of runs (`EntityRuns`): a bitmap takes 500 bytes and 5 microseconds an entity.
- Which version is written depends on what is held alone, so a lost sidecar is rebuilt exactly.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
from pyroaring import BitMap64

from thermocline.errors import Corruption, Unsupported
from thermocline.format.bitmap_runs import BitmapRuns, find_runs, unite_runs
from thermocline.format.instant import format_instant, from_datetime

BIAS = 1 << 40
FORMAT_VERSION = 1
PACKED_VERSION = 2
PACKED_BYTES_MAX = 1 << 30
ENTITIES_PACKED_MIN = 1_024
RUNS_AN_ENTITY_MAX = 16
"""With more runs, on average, each entity has a bitmap, which is smaller than the runs."""
LONG_RUN = 4_096
RUNS_AT_ONCE = 65_536
ENTITIES_MAX_DEFAULT = 100_000

_MAGIC = b"TCCV"
_HEADER = struct.Struct("<4sHHIIQ")


@dataclass(frozen=True, slots=True)
class BucketRun:
    """A stretch of buckets, from `first` up to, not including, `end`."""

    first: int
    end: int


class Buckets:
    """An immutable set of bucket numbers, decoded from its bytes when first needed."""

    __slots__ = ("_bitmap", "_bytes")

    def __init__(self, bitmap: BitMap64 | None = None, data: bytes | memoryview = b"") -> None:
        self._bitmap = BitMap64() if bitmap is None and not data else bitmap
        self._bytes = data

    @classmethod
    def from_numbers(cls, numbers: npt.NDArray[np.int64]) -> "Buckets":
        """Return the set of these bucket numbers."""
        return cls(BitMap64((numbers + BIAS).astype(np.uint64)))

    @classmethod
    def from_range(cls, first: int, end: int) -> "Buckets":
        """Return the set of all buckets from `first` up to, not including, `end`."""
        bitmap = BitMap64()
        bitmap.add_range(first + BIAS, end + BIAS)
        return cls(bitmap)

    def within(self, first: int, end: int) -> "Buckets":
        """Return the buckets that are in a range, however long it is."""
        bitmap = self.bitmap.copy()
        bitmap.remove_range(0, first + BIAS)
        bitmap.remove_range(end + BIAS, 1 << 63)
        return Buckets(bitmap)

    def outside(self, first: int, end: int) -> "Buckets":
        """Return the buckets that are not in a range, however long it is."""
        bitmap = self.bitmap.copy()
        bitmap.remove_range(first + BIAS, end + BIAS)
        return Buckets(bitmap)

    @classmethod
    def from_runs(cls, runs: BitmapRuns) -> "Buckets":
        """Return the set of these runs of biased numbers, which neither overlap nor touch."""
        is_long = runs.end - runs.first > LONG_RUN
        first, length = runs.first[~is_long], (runs.end - runs.first)[~is_long]
        bitmap = BitMap64()
        for at in range(0, len(first), RUNS_AT_ONCE):
            some, counts = first[at : at + RUNS_AT_ONCE], length[at : at + RUNS_AT_ONCE]
            offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            bitmap |= BitMap64((np.repeat(some, counts) + offsets).astype(np.uint64))
        for start, end in zip(
            runs.first[is_long].tolist(), runs.end[is_long].tolist(), strict=True
        ):
            bitmap.add_range(start, end)
        return cls(bitmap)

    @property
    def bitmap(self) -> BitMap64:
        """The biased bitmap; callers must not change it."""
        if self._bitmap is None:
            try:
                self._bitmap = BitMap64.deserialize(bytes(self._bytes))
            except (ValueError, RuntimeError, MemoryError) as error:
                raise Corruption("not a coverage bitmap", hint=_REBUILD_HINT) from error
        return self._bitmap

    @property
    def is_encoded(self) -> bool:
        """Whether the serialized bytes are cached."""
        return bool(self._bytes)

    def to_bytes(self) -> bytes | memoryview:
        """Return the portable Roaring bytes, and cache them."""
        if not self._bytes:
            self.bitmap.run_optimize()  # changes how the bits are stored, not which are set
            self._bytes = self.bitmap.serialize()
        return self._bytes

    def __len__(self) -> int:
        return len(self.bitmap)

    def __bool__(self) -> bool:
        return bool(self.bitmap)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Buckets) and bool(self.bitmap == other.bitmap)

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: "Buckets") -> "Buckets":
        return Buckets(self.bitmap | other.bitmap)

    def __sub__(self, other: "Buckets") -> "Buckets":
        return Buckets(self.bitmap - other.bitmap)

    def __and__(self, other: "Buckets") -> "Buckets":
        return Buckets(self.bitmap & other.bitmap)

    def __contains__(self, bucket: int) -> bool:
        return bucket + BIAS in self.bitmap

    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the bucket numbers in order."""
        values = np.asarray(self.bitmap.to_array(), dtype=np.uint64)
        return values.astype(np.int64) - BIAS

    def first(self) -> int:
        """Return the lowest bucket."""
        return int(self.bitmap.min()) - BIAS

    def last(self) -> int:
        """Return the highest bucket."""
        return int(self.bitmap.max()) - BIAS

    def count(self, first: int, end: int) -> int:
        """Return how many buckets of the range are held."""
        return int(self.bitmap.range_cardinality(first + BIAS, end + BIAS))

    def holds_all(self, first: int, end: int) -> bool:
        """Tell whether every bucket of the range is held."""
        # Counted, because the library's `contains_range` (1.2.0) overlooks a container that is
        # missing where the range ends.
        return end <= first or self.count(first, end) == end - first

    def runs(self) -> list[BucketRun]:
        """Return the runs of held buckets, in order."""
        first, end = self.run_bounds()
        return [BucketRun(*bounds) for bounds in zip(first.tolist(), end.tolist(), strict=True)]

    def run_bounds(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first bucket of each run of held buckets, and the bucket after its last."""
        # A run starts where a bit has no bit before it, and ends where it has none after it: the
        # cost grows with the containers, not with the bits.
        bits = self.bitmap
        return Buckets(bits - bits.shift(1)).numbers(), Buckets(bits - bits.shift(-1)).numbers() + 1


class EntityRuns(Mapping[str, Buckets]):
    """The buckets of many entities, as the runs of all of them in three arrays."""

    def __init__(self, keys: Sequence[str], runs: BitmapRuns) -> None:
        """Take keys in ascending order, and the maximal runs of biased numbers by place of key."""
        self.keys_in_order = keys
        self.runs = runs
        self._starts = np.searchsorted(runs.owner, np.arange(len(keys) + 1))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.keys_in_order)}

    def __getitem__(self, key: str) -> Buckets:
        place = self._places[key]
        mine = slice(self._starts[place], self._starts[place + 1])
        return Buckets.from_runs(
            BitmapRuns(self.runs.owner[mine], self.runs.first[mine], self.runs.end[mine])
        )

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_in_order)

    def __len__(self) -> int:
        return len(self.keys_in_order)

    def whole(self) -> Buckets | None:
        """Return the buckets that any entity holds; None when they are too far apart."""
        runs = self.runs
        united = unite_runs(BitmapRuns(np.zeros_like(runs.owner), runs.first, runs.end))
        return None if united is None else Buckets.from_runs(united)

    def run_counts(self) -> npt.NDArray[np.int64]:
        """Return how many runs each entity has."""
        return np.diff(self._starts)


def collect_runs(entities: Mapping[str, Buckets]) -> tuple[Sequence[str], BitmapRuns]:
    """Return the keys in ascending order, and the maximal runs of each."""
    if isinstance(entities, EntityRuns):
        return entities.keys_in_order, entities.runs
    keys = sorted(entities)
    return keys, find_runs([entities[key].to_bytes() for key in keys])


def unite_entities(parts: Sequence[Mapping[str, Buckets]]) -> Mapping[str, Buckets]:
    """Return the union of the buckets of each entity over many parts."""
    held = [part for part in parts if part]
    if len(held) == 1:
        return held[0]
    if any(isinstance(part, EntityRuns) for part in held):
        united = _unite_by_runs(held)
        if united is not None:
            return united
    by_entity: dict[str, list[Buckets]] = {}
    for part in held:
        for key, buckets in part.items():
            by_entity.setdefault(key, []).append(buckets)
    return {key: unite_buckets(some) for key, some in by_entity.items()}


def _unite_by_runs(parts: Sequence[Mapping[str, Buckets]]) -> EntityRuns | None:
    listed = [collect_runs(part) for part in parts]
    keys = sorted({key for some, _ in listed for key in some})
    place_of = {key: place for place, key in enumerate(keys)}
    places = [np.array([place_of[key] for key in some], dtype=np.int64) for some, _ in listed]
    united = unite_runs(
        BitmapRuns(
            np.concatenate([at[runs.owner] for at, (_, runs) in zip(places, listed, strict=True)]),
            np.concatenate([runs.first for _, runs in listed]),
            np.concatenate([runs.end for _, runs in listed]),
        )
    )
    return pack_entities(keys, united)


def pack_entities(keys: Sequence[str], runs: BitmapRuns | None) -> EntityRuns | None:
    """Return entities as runs; None when they are few, or have too many runs."""
    if runs is None or len(keys) < ENTITIES_PACKED_MIN:
        return None
    return EntityRuns(keys, runs) if len(runs.owner) <= RUNS_AN_ENTITY_MAX * len(keys) else None


@dataclass(frozen=True, slots=True)
class Coverage:
    """The buckets that are held, in total and by each entity."""

    bucket_code: int
    whole: Buckets
    entities: Mapping[str, Buckets]
    digest: int = 0

    def union(self, other: "Coverage") -> "Coverage":
        """Return the union of both."""
        entities = unite_entities([self.entities, other.entities])
        return Coverage(self.bucket_code, self.whole | other.whole, entities)

    def subtract(self, other: "Coverage") -> "Coverage":
        """Return what this holds and the other does not, entity by entity.

        The result has the same bytes as a coverage measured from the remaining rows: a lost sidecar
        of a segment must be rebuilt with the same checksum.
        """
        if not self.entities:
            return Coverage(self.bucket_code, _rebuild_bitmap(self.whole - other.whole), {})
        entities = dict(self.entities)
        for key, buckets in other.entities.items():
            if key in entities:
                rest = entities.pop(key) - buckets
                if rest:
                    entities[key] = _rebuild_bitmap(rest)
        return Coverage(
            self.bucket_code, _rebuild_bitmap(unite_buckets(entities.values())), entities
        )

    def overlap(self, other: "Coverage", *, has_entities: bool) -> dict[str, Buckets]:
        """Return the buckets both hold, by entity; without entity columns the key is empty."""
        both = self.whole & other.whole
        if not has_entities or not both:
            return {"": both} if both else {}
        found = {}
        for key, buckets in other.entities.items():
            if key in self.entities and (both := self.entities[key] & buckets):
                found[key] = both
        return found

    def with_digest(self, digest: int) -> "Coverage":
        """Return the same coverage, marked with the segments it covers."""
        return Coverage(self.bucket_code, self.whole, self.entities, digest)


def _rebuild_bitmap(buckets: Buckets) -> Buckets:
    # A bitmap's bytes depend on how it was made: a run of three cut from a longer run stays a run,
    # three single bits stay single. Built again from its numbers, its bytes depend on these alone.
    return Buckets.from_numbers(buckets.numbers())


def empty_coverage(bucket_code: int) -> Coverage:
    """Return the coverage of nothing."""
    return Coverage(bucket_code, Buckets(), {})


def unite_buckets(parts: Iterable[Buckets]) -> Buckets:
    """Return the union of many sets."""
    bitmaps = [part.bitmap for part in parts]
    return Buckets(BitMap64.union(*bitmaps) if bitmaps else BitMap64())


def unite_whole(entities: Mapping[str, Buckets]) -> Buckets:
    """Return the buckets that any of the entities holds."""
    whole = entities.whole() if isinstance(entities, EntityRuns) else None
    return unite_buckets(entities.values()) if whole is None else whole


def entity_key(values: Iterable[Any]) -> str:
    """Return the key of an entity: the JSON array of its columns' values.

    A value has one written form, whatever its unit, zone or scale: an instant is
    `2024-06-01T00:00:00Z` (without `Z` where the column has no zone), and neither instants nor
    decimals end in zeros after the point.
    """
    return orjson.dumps([_encode_value(value) for value in values], default=str).decode()


def _encode_value(value: Any) -> Any:
    match value:
        case datetime():
            return name_instant(from_datetime(value), has_zone=value.tzinfo is not None)
        case Decimal():
            return trim_zeros(f"{value:f}")
        case time():
            return trim_zeros(value.isoformat())
    return value


def name_instant(instant: int, *, has_zone: bool) -> str:
    """Return an instant as an entity's key has it."""
    return trim_zeros(format_instant(instant)[:-1]) + ("Z" if has_zone else "")


def trim_zeros(text: str) -> str:
    """Return a written number or time without the zeros that end its fraction."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def entity_values(key: str) -> list[Any]:
    """Return the values of an entity's columns."""
    values: list[Any] = orjson.loads(key)
    return values


_REBUILD_HINT = "run `thermocline table fsck`; a lost sidecar is rebuilt from its segment"


def encode_coverage(coverage: Coverage) -> bytes:
    """Return the bytes of a sidecar."""
    if len(coverage.entities) >= ENTITIES_PACKED_MIN:
        packed = pack_entities(*collect_runs(coverage.entities))
        if packed is not None:
            return _encode_packed(coverage, packed)
    return encode_bitmaps(coverage)


def encode_bitmaps(coverage: Coverage) -> bytes:
    """Return the bytes of a sidecar of version 1, which older versions wrote for every coverage."""
    items = sorted((key.encode(), buckets) for key, buckets in coverage.entities.items())
    keys = [key for key, _ in items]
    bitmaps = [coverage.whole.to_bytes(), *(buckets.to_bytes() for _, buckets in items)]
    header = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, 0, coverage.bucket_code, len(keys), coverage.digest
    )
    lengths = np.array([len(part) for part in (*keys, *bitmaps)], dtype="<u4").tobytes()
    return _seal(b"".join((header, lengths, *keys, *bitmaps)))


def _encode_packed(coverage: Coverage, packed: EntityRuns) -> bytes:
    keys = [key.encode() for key in packed.keys_in_order]
    runs = packed.runs
    content = b"".join(
        (
            np.array([len(key) for key in keys], dtype="<u4").tobytes(),
            packed.run_counts().astype("<u4").tobytes(),
            runs.first.astype("<u8").tobytes(),
            (runs.end - runs.first).astype("<u8").tobytes(),
            *keys,
        )
    )
    header = _HEADER.pack(
        _MAGIC, PACKED_VERSION, 0, coverage.bucket_code, len(keys), coverage.digest
    )
    body = pa.Codec("zstd").compress(content, asbytes=True)
    return _seal(header + struct.pack("<Q", len(content)) + body)


def _seal(body: bytes) -> bytes:
    return body + struct.pack("<I", google_crc32c.value(body))


def sidecar_checksum(data: bytes) -> str:
    """Return the checksum that the log stores for a sidecar: the CRC of all bytes but the last 4.

    Bytes that end in their own CRC all have the same CRC, so the last 4 must be excluded. Of a
    packed sidecar, it is the CRC of the header and the unpacked part; `Corruption` if it is none.
    """
    if _version_of(data) != PACKED_VERSION:
        return f"crc32c:{google_crc32c.value(data[:-4]):08x}"
    header = google_crc32c.value(data[: _HEADER.size])
    return f"crc32c:{google_crc32c.extend(header, _unpack(data)):08x}"


def _version_of(data: bytes) -> int:
    """Return the format version of a sidecar's bytes; 0 when they are not a sidecar."""
    if len(data) < _HEADER.size + 4 or data[:4] != _MAGIC:
        return 0
    return int(_HEADER.unpack_from(data)[1])


def _unpack(data: bytes) -> bytes:
    """Return the packed part of a sidecar, unpacked."""
    try:
        (length,) = struct.unpack_from("<Q", data, _HEADER.size)
        if length > PACKED_BYTES_MAX:
            raise ValueError("more bytes than the limit")
        body = data[_HEADER.size + 8 : -4]
        return bytes(pa.Codec("zstd").decompress(body, length, asbytes=True))
    except (struct.error, ValueError, OSError, pa.ArrowException) as error:
        hint = _REBUILD_HINT
        raise Corruption("a packed coverage cannot be unpacked", hint=hint) from error


def decode_coverage(data: bytes) -> Coverage:
    """Return the coverage of a sidecar's bytes; `Corruption` when they are damaged."""
    if not _version_of(data):
        raise Corruption("not a coverage sidecar", hint=_REBUILD_HINT, size_bytes=len(data))
    (stored,) = struct.unpack_from("<I", data, len(data) - 4)
    computed = google_crc32c.value(data[:-4])
    if stored != computed:
        raise Corruption(
            "coverage checksum differs", hint=_REBUILD_HINT, stored=stored, computed=computed
        )
    _, version, _, bucket_code, count, digest = _HEADER.unpack_from(data)
    if version not in (FORMAT_VERSION, PACKED_VERSION):
        raise Unsupported(
            "coverage sidecar of a newer format",
            hint="use a newer Thermocline",
            needed=version,
            supported=PACKED_VERSION,
        )
    try:
        if version == PACKED_VERSION:
            packed = _decode_packed(_unpack(data), count)
            return Coverage(bucket_code, unite_whole(packed), packed, digest)
        pieces = _split_pieces(data, count)
        keys = [str(next(pieces), "utf-8") for _ in range(count)]
    except UnicodeDecodeError as error:
        raise Corruption("not the key of an entity", hint=_REBUILD_HINT) from error
    whole = Buckets(data=next(pieces))
    entities = {key: Buckets(data=next(pieces)) for key in keys}
    return Coverage(bucket_code, whole, entities, digest)


def _decode_packed(content: bytes, count: int) -> EntityRuns:
    heads = np.frombuffer(content, "<u4", min(2 * count, len(content) // 4)).astype(np.int64)
    lengths, counts = heads[:count], heads[count:]
    runs = int(counts.sum())
    start = 8 * count + 16 * runs
    if len(heads) != 2 * count or start + int(lengths.sum()) != len(content):
        raise Corruption(
            "coverage lengths do not add up", hint=_REBUILD_HINT, size_bytes=len(content)
        )
    first, length = (
        np.frombuffer(content, "<u8", 2 * runs, 8 * count).astype(np.int64).reshape(2, -1)
    )
    ends = (start + np.cumsum(lengths)).tolist()
    keys = [content[low:high].decode() for low, high in pairwise([start, *ends])]
    owner = np.repeat(np.arange(count), counts)
    return EntityRuns(keys, BitmapRuns(owner, first, first + length))


def _split_pieces(data: bytes, count: int) -> Iterator[memoryview]:
    view, start = memoryview(data), _HEADER.size + 4 * (2 * count + 1)
    fits = start <= len(data) - 4
    lengths = np.frombuffer(view[_HEADER.size : start] if fits else b"", dtype="<u4")
    if not fits or start + int(lengths.sum(dtype=np.uint64)) != len(data) - 4:
        raise Corruption("coverage lengths do not add up", hint=_REBUILD_HINT, size_bytes=len(data))
    for length in lengths.tolist():
        yield view[start : start + length]
        start += length
