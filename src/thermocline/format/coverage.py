"""Which buckets are held: bitmaps of bucket numbers, per entity where entities are declared.

In:   bucket numbers, entity keys
Out:  a `Coverage`, its bytes (`.roar`), and the runs that are held or missing

    offset  size  field
    0       4     magic `TCCV`
    4       2     format version, 1
    6       2     flags, 0
    8       4     bucket width in seconds
    12      4     number of entities n
    16      8     digest: which segments this covers (0 in a segment's own sidecar)
    24      4*n   length of each entity's key in bytes
    ..      4*(n+1) length of each bitmap in bytes: the whole first, then each entity's
    ..            the keys, UTF-8 JSON arrays, in ascending order of their bytes
    ..            the bitmaps, 64-bit portable Roaring
    end-4   4     CRC32C of all bytes before

All integers are little-endian and unsigned. A bitmap's value is the bucket number plus 2**40, so
that buckets before 1970 are positive and in order.

- Where entity columns are declared, `whole` is the union of the entities' bitmaps.
- An entity's bitmap is decoded only when it is first needed.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import orjson
from pyroaring import BitMap64

from thermocline.errors import Corruption, Unsupported
from thermocline.format.instant import format_instant, from_datetime

BIAS = 1 << 40
FORMAT_VERSION = 1
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

    def missing_runs(self, first: int, end: int) -> list[BucketRun]:
        """Return the runs of the range that are not held, in order."""
        if self.holds_all(first, end):
            return []
        return (Buckets.from_range(first, end) - self).runs()


@dataclass(frozen=True, slots=True)
class Coverage:
    """The buckets that are held, in total and by each entity."""

    width_s: int
    whole: Buckets
    entities: Mapping[str, Buckets]
    digest: int = 0

    def union(self, other: "Coverage") -> "Coverage":
        """Return the union of both."""
        entities = dict(self.entities)
        for key, buckets in other.entities.items():
            entities[key] = entities[key] | buckets if key in entities else buckets
        return Coverage(self.width_s, self.whole | other.whole, entities)

    def subtract(self, other: "Coverage") -> "Coverage":
        """Return what this holds and the other does not, entity by entity.

        The result has the same bytes as a coverage measured from the remaining rows: a lost sidecar
        of a segment must be rebuilt with the same checksum.
        """
        if not self.entities:
            return Coverage(self.width_s, _rebuild_bitmap(self.whole - other.whole), {})
        entities = dict(self.entities)
        for key, buckets in other.entities.items():
            if key in entities:
                rest = entities.pop(key) - buckets
                if rest:
                    entities[key] = _rebuild_bitmap(rest)
        return Coverage(self.width_s, _rebuild_bitmap(unite_buckets(entities.values())), entities)

    def overlap(self, other: "Coverage", *, has_entities: bool) -> dict[str, Buckets]:
        """Return the buckets both hold, by entity; without entity columns the key is empty."""
        if not has_entities:
            both = self.whole & other.whole
            return {"": both} if both else {}
        found = {}
        for key, buckets in other.entities.items():
            if key in self.entities and (both := self.entities[key] & buckets):
                found[key] = both
        return found

    def with_digest(self, digest: int) -> "Coverage":
        """Return the same coverage, marked with the segments it covers."""
        return Coverage(self.width_s, self.whole, self.entities, digest)


def _rebuild_bitmap(buckets: Buckets) -> Buckets:
    # A bitmap's bytes depend on how it was made: a run of three cut from a longer run stays a run,
    # three single bits stay single. Built again from its numbers, its bytes depend on these alone.
    return Buckets.from_numbers(buckets.numbers())


def empty_coverage(width_s: int) -> Coverage:
    """Return the coverage of nothing."""
    return Coverage(width_s, Buckets(), {})


def unite_buckets(parts: Iterable[Buckets]) -> Buckets:
    """Return the union of many sets."""
    bitmaps = [part.bitmap for part in parts]
    return Buckets(BitMap64.union(*bitmaps) if bitmaps else BitMap64())


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
    items = sorted((key.encode(), buckets) for key, buckets in coverage.entities.items())
    keys = [key for key, _ in items]
    bitmaps = [coverage.whole.to_bytes(), *(buckets.to_bytes() for _, buckets in items)]
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, coverage.width_s, len(keys), coverage.digest)
    lengths = np.array([len(part) for part in (*keys, *bitmaps)], dtype="<u4").tobytes()
    body = b"".join((header, lengths, *keys, *bitmaps))
    return body + struct.pack("<I", google_crc32c.value(body))


def sidecar_checksum(data: bytes) -> str:
    """Return the checksum that the log stores for a sidecar: the CRC of all bytes but the last 4.

    Bytes that end in their own CRC all have the same CRC, so the last 4 must be excluded.
    """
    return f"crc32c:{google_crc32c.value(data[:-4]):08x}"


def decode_coverage(data: bytes) -> Coverage:
    """Return the coverage of a sidecar's bytes; `Corruption` when they are damaged."""
    if len(data) < _HEADER.size + 4 or data[:4] != _MAGIC:
        raise Corruption("not a coverage sidecar", hint=_REBUILD_HINT, size_bytes=len(data))
    (stored,) = struct.unpack_from("<I", data, len(data) - 4)
    computed = google_crc32c.value(data[:-4])
    if stored != computed:
        raise Corruption(
            "coverage checksum differs", hint=_REBUILD_HINT, stored=stored, computed=computed
        )
    _, version, _, width_s, count, digest = _HEADER.unpack_from(data)
    if version != FORMAT_VERSION:
        raise Unsupported(
            "coverage sidecar of a newer format",
            hint="use a newer Thermocline",
            needed=version,
            supported=FORMAT_VERSION,
        )
    pieces = _split_pieces(data, count)
    try:
        keys = [str(next(pieces), "utf-8") for _ in range(count)]
    except UnicodeDecodeError as error:
        raise Corruption("not the key of an entity", hint=_REBUILD_HINT) from error
    whole = Buckets(data=next(pieces))
    entities = {key: Buckets(data=next(pieces)) for key in keys}
    return Coverage(width_s, whole, entities, digest)


def _split_pieces(data: bytes, count: int) -> Iterator[memoryview]:
    view, start = memoryview(data), _HEADER.size + 4 * (2 * count + 1)
    fits = start <= len(data) - 4
    lengths = np.frombuffer(view[_HEADER.size : start] if fits else b"", dtype="<u4")
    if not fits or start + int(lengths.sum(dtype=np.uint64)) != len(data) - 4:
        raise Corruption("coverage lengths do not add up", hint=_REBUILD_HINT, size_bytes=len(data))
    for length in lengths.tolist():
        yield view[start : start + length]
        start += length
