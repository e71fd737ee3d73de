"""Runs of many bitmaps at once, read straight from their Roaring bytes.

In:   the portable 64-bit Roaring bytes of many bitmaps
Out:  three arrays: which bitmap, first value and end of every run of set bits

A thousand entities over ten years of minutes are five thousand million bits but only some
hundred thousand runs. Decoding each bitmap and listing its runs costs 100 microseconds per entity;
reading the run containers of all bitmaps as one array costs about 10.

    offset  size  field of one 64-bit bitmap
    0       8     number of 32-bit parts
    8       4     the high half of the first part's values
    12      4     cookie: 12347 in the low half if there are run containers, containers - 1 above
    16      r     one bit a container: is it a run container (r = containers / 8, rounded up)
    16+r    4*c   the high 16 bits and the count - 1 of each container
    ..      4*c   offset of each container from the cookie, where there are at least 4
    ..            a run container: 2 bytes count, then 2 bytes start and 2 bytes length - 1 each

- Only bitmaps with one part, at least four containers, and no other kind of container than runs
  are read this way. The bitmap library reads all others. Both ways give the same result.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

COOKIE_WITH_RUNS = 12_347
CONTAINERS_WITH_OFFSETS_MIN = 4
PLACES_MAX = 1 << 62

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BitmapRuns:
    """Runs of set bits, in order of bitmap and value: from `first` up to, not including, `end`."""

    owner: Array
    first: Array
    end: Array


def find_runs(bitmaps: Sequence[bytes | memoryview]) -> BitmapRuns:
    """Return the maximal runs of every bitmap."""
    is_plain = [_has_only_runs(data) for data in bitmaps]
    quick = [place for place, plain in enumerate(is_plain) if plain]
    slow = [place for place, plain in enumerate(is_plain) if not plain]
    parts = [_read_containers(bitmaps, quick)] if quick else []
    parts += [_decode_runs(place, bytes(bitmaps[place])) for place in slow]
    if not parts:
        nothing = np.empty(0, dtype=np.int64)
        return BitmapRuns(nothing, nothing, nothing)
    owner = np.concatenate([part.owner for part in parts])
    first = np.concatenate([part.first for part in parts])
    end = np.concatenate([part.end for part in parts])
    if slow and quick:
        order = np.lexsort((first, owner))
        owner, first, end = owner[order], first[order], end[order]
    return BitmapRuns(owner, first, end)


def invert_runs(runs: BitmapRuns, owners: int, start: int, stop: int) -> BitmapRuns:
    """Return the runs of unset bits from `start` up to, not including, `stop`, of each bitmap."""
    keep = (runs.end > start) & (runs.first < stop)
    # An empty run at `stop` ends each bitmap, so that the gap after its last run is found like any
    # other. A gap begins where the run before it in the same bitmap ends.
    owner = np.concatenate([runs.owner[keep], np.arange(owners)])
    first = np.concatenate([runs.first[keep], np.full(owners, stop)])
    end = np.concatenate([runs.end[keep], np.full(owners, stop)])
    order = np.argsort(owner, kind="stable")
    owner, first, end = owner[order], np.minimum(first[order], stop), end[order]
    before = np.empty_like(first)
    before[1:] = end[:-1]
    begins = np.ones(len(owner), dtype=bool)
    begins[1:] = owner[1:] != owner[:-1]
    before[begins] = start
    hole = before < first
    return BitmapRuns(owner[hole], before[hole], first[hole])


def unite_runs(runs: BitmapRuns) -> BitmapRuns | None:
    """Return the maximal runs of each owner, of runs that may overlap and be in any order.

    None when owner and value do not fit one number of 64 bits.
    """
    if not len(runs.owner):
        return runs
    low, high = int(runs.first.min()), int(runs.end.max())
    span = high - low + 2  # so that the runs of two owners never touch
    if span * (int(runs.owner.max()) + 1) > PLACES_MAX:
        return None
    base = runs.owner * span - low
    first, end = runs.first + base, runs.end + base
    if (first[1:] < first[:-1]).any():
        order = np.argsort(first, kind="stable")
        first, end = first[order], end[order]
    reached = np.maximum.accumulate(end)
    fresh = np.ones(len(first), dtype=bool)
    np.greater(first[1:], reached[:-1], out=fresh[1:])
    starts = np.flatnonzero(fresh)
    ends = reached[np.append(starts[1:], len(first)) - 1]
    owner = first[starts] // span
    return BitmapRuns(owner, first[starts] - owner * span + low, ends - owner * span + low)


def _has_only_runs(data: bytes | memoryview) -> bool:
    if len(data) < 24 or bytes(data[:8]) != b"\x01\0\0\0\0\0\0\0":
        return False
    cookie = int.from_bytes(data[12:16], "little")
    containers = (cookie >> 16) + 1
    if cookie & 0xFFFF != COOKIE_WITH_RUNS or containers < CONTAINERS_WITH_OFFSETS_MIN:
        return False
    flags = int.from_bytes(data[16 : 16 + (containers + 7) // 8], "little")
    return flags == (1 << containers) - 1


def _decode_runs(owner: int, data: bytes) -> BitmapRuns:
    bits = BitMap64.deserialize(data)
    first = np.asarray((bits - bits.shift(1)).to_array(), dtype=np.uint64).astype(np.int64)
    last = np.asarray((bits - bits.shift(-1)).to_array(), dtype=np.uint64).astype(np.int64)
    return BitmapRuns(np.full(len(first), owner, dtype=np.int64), first, last + 1)


def _read_containers(bitmaps: Sequence[bytes | memoryview], owners: list[int]) -> BitmapRuns:
    lengths = np.array([len(bitmaps[owner]) for owner in owners], dtype=np.int64)
    buffer = np.frombuffer(b"".join(bitmaps[owner] for owner in owners) + b"\0\0\0", np.uint8)
    start = np.cumsum(lengths) - lengths
    high = _u32(buffer, start + 8)
    count = (_u32(buffer, start + 12) >> 16) + 1
    heads = start + 16 + (count + 7) // 8
    which, place = _expand_counts(count)
    key = _u16(buffer, heads[which] + 4 * place)
    where = start[which] + 12 + _u32(buffer, heads[which] + 4 * count[which] + 4 * place)
    container, run = _expand_counts(_u16(buffer, where))
    low = _u16(buffer, where[container] + 2 + 4 * run)
    length = _u16(buffer, where[container] + 4 + 4 * run) + 1
    first = (high[which] << 32 | key << 16)[container] + low
    owner = np.array(owners, dtype=np.int64)[which][container]
    return _join_runs(owner, first, first + length)


def _join_runs(owner: Array, first: Array, end: Array) -> BitmapRuns:
    """Join runs that touch: a container's end cuts a run in two."""
    fresh = np.ones(len(first), dtype=bool)
    fresh[1:] = (first[1:] != end[:-1]) | (owner[1:] != owner[:-1])
    starts = np.flatnonzero(fresh)
    lasts = np.append(starts[1:], len(first)) - 1
    return BitmapRuns(owner[starts], first[starts], end[lasts])


def _expand_counts(counts: Array) -> tuple[Array, Array]:
    """Return, for counts 2 and 3, the owners 0 0 1 1 1 and the positions 0 1 0 1 2."""
    owner = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, place


def _u16(buffer: npt.NDArray[np.uint8], at: Array) -> Array:
    return buffer[at].astype(np.int64) | buffer[at + 1].astype(np.int64) << 8


def _u32(buffer: npt.NDArray[np.uint8], at: Array) -> Array:
    return _u16(buffer, at) | _u16(buffer, at + 2) << 16
