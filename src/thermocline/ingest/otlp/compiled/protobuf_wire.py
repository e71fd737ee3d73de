"""Protobuf's wire format for compiled code: numbers, lengths, skipping, and interned bytes.

In:   an array of bytes, a position in it and the end of the readable bytes
Out:  a value and the next position, which is negative after a failure

- Every read is checked against the given end. No function here raises.
- Forms that the official decoder accepts but no exporter writes (numbers of more than five bytes
  for 32-bit fields, groups, field 0) are a failure here: the caller leaves them to that decoder.
- Interned bytes are compared byte for byte; the hash only finds the slot.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from thermocline.ingest.otlp.compiled.numba_support import (
    Bytes,
    compile_native,
    inline_native,
    read_byte,
    read_fixed64,
    write_fixed64,
)

FAILED = -1
FULL = -2
PROBES_MAX = 256

_FACTOR = np.uint64(0x9FB2_1C65_1E98_DF25)
_SHIFT = np.uint64(29)


class InternTable(NamedTuple):
    """An open hash table of byte strings, each with a context; an entry's id is its number.

    `follows` is the entry that came after this entry the last time, or -1.
    """

    slots: npt.NDArray[np.int32]
    hashes: npt.NDArray[np.uint64]
    contexts: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    arena: Bytes
    totals: npt.NDArray[np.int64]  # entries, the seed
    is_bad: Bytes
    follows: npt.NDArray[np.int32]


def new_interned(entries_max: int, arena_bytes: int, seed: int) -> InternTable:
    """Return an empty table; it never grows."""
    slots = 1 << (2 * entries_max - 1).bit_length()
    return InternTable(
        np.full(slots, -1, np.int32),
        np.zeros(entries_max, np.uint64),
        np.zeros(entries_max, np.int64),
        np.zeros(entries_max + 1, np.int64),
        np.empty(arena_bytes, np.uint8),
        np.array([0, seed], np.int64),
        np.zeros(entries_max, np.uint8),
        np.full(entries_max, -1, np.int32),
    )


@inline_native
def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of at most five bytes, and the position after it.

    A failure also returns 0: as a tag, which fails in `skip`, so a reader of fields need not ask.
    """
    if at >= end:
        return 0, FAILED
    value = read_byte(data, at)
    if value < 128:
        return value, at + 1
    value &= 127
    for place in range(1, 5):
        if at + place >= end:
            return 0, FAILED
        byte = read_byte(data, at + place)
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    return 0, FAILED


@inline_native
def read_span(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the start and stop of a length-delimited field; it stops at or before the end."""
    length, at = read_varint(data, at, end)
    if at < 0 or length > end - at:
        return 0, FAILED
    return at, at + length


@compile_native
def copy(source: Bytes, start: int, length: int, target: Bytes, at: int) -> None:
    """Copy bytes; the caller has checked the bounds of both arrays."""
    place = 0
    while place + 8 <= length:
        write_fixed64(target, at + place, read_fixed64(source, start + place))
        place += 8
    while place < length:
        target[at + place] = source[start + place]
        place += 1


@compile_native
def skip(data: Bytes, at: int, end: int, tag: int) -> int:
    """Return the position after a field whose tag was just read."""
    wire = tag & 7
    if tag < 8 or tag > 0xFFFF_FFFF:
        return FAILED
    if wire == 2:
        return read_span(data, at, end)[1]
    if wire == 0:
        for _ in range(10):
            if at >= end:
                return FAILED
            at += 1
            if data[at - 1] < 128:
                return at
        return FAILED
    width = 8 if wire == 1 else 4 if wire == 5 else end + 1
    return at + width if at + width <= end else FAILED


@compile_native
def _hash(data: Bytes, start: int, stop: int, seed: int) -> np.uint64:
    value = np.uint64(seed) ^ (np.uint64(stop - start) * _FACTOR)
    while start + 8 <= stop:
        value = (value ^ read_fixed64(data, start)) * _FACTOR
        value ^= value >> _SHIFT
        start += 8
    for place in range(start, stop):
        value = (value ^ np.uint64(data[place])) * _FACTOR
        value ^= value >> _SHIFT
    return value ^ (value >> np.uint64(32))


@inline_native
def match_follower(
    table: InternTable, before: int, data: Bytes, at: int, end: int
) -> tuple[int, int]:
    """Return the entry that followed `before` the last time and its end, if it follows again.

    Exporters repeat their series in the same order: this is one comparison instead of a pass over
    the attributes, a hash and a table lookup.
    """
    guess = int(table.follows[before])
    if guess < 0:
        return FAILED, at
    there = table.starts[guess]
    length = table.starts[guess + 1] - there
    if length == 0 or length > end - at or not _is_same(data, at, table.arena, there, length):
        return FAILED, at
    return guess, at + length


@inline_native
def _is_same(one: Bytes, at: int, other: Bytes, there: int, length: int) -> bool:
    place = 0
    while place + 8 <= length:
        if read_fixed64(one, at + place) != read_fixed64(other, there + place):
            return False
        place += 8
    while place < length:
        if one[at + place] != other[there + place]:
            return False
        place += 1
    return True


@compile_native
def intern(table: InternTable, data: Bytes, start: int, stop: int, context: int) -> int:
    """Return the id of bytes in a context, adding them when they are new.

    `FULL` when the table has no room; `FAILED` for an entry that is marked as bad.
    """
    length = stop - start
    hashed = _hash(data, start, stop, table.totals[1] + context)
    mask = table.slots.size - 1
    slot = int(np.int64(hashed & np.uint64(mask)))
    for _ in range(PROBES_MAX):
        found = int(table.slots[slot])
        if found < 0:
            return _add_entry(table, data, start, length, context, slot, hashed)
        if table.hashes[found] == hashed and table.contexts[found] == context:
            there = table.starts[found]
            if table.starts[found + 1] - there == length and _is_same(
                data, start, table.arena, there, length
            ):
                return FAILED if table.is_bad[found] else found
        slot = (slot + 1) & mask
    return FULL


@compile_native
def _add_entry(
    table: InternTable,
    data: Bytes,
    start: int,
    length: int,
    context: int,
    slot: int,
    hashed: np.uint64,
) -> int:
    added = table.totals[0]
    there = table.starts[added]
    if added >= table.contexts.size or there + length > table.arena.size:
        return FULL
    copy(data, start, length, table.arena, there)
    table.starts[added + 1] = there + length
    table.contexts[added] = context
    table.slots[slot] = added
    table.hashes[added] = hashed
    table.totals[0] = added + 1
    return added


@compile_native
def compact(
    ids: npt.NDArray[np.int32],
    seen: npt.NDArray[np.int32],
    codes: npt.NDArray[np.int32],
    distinct: npt.NDArray[np.int32],
) -> int:
    """Number the ids in order of appearance, into `codes`; return how many are `distinct`.

    `seen` must be all -1, and is all -1 again at the return.
    """
    count = 0
    for place in range(ids.size):
        code = seen[ids[place]]
        if code < 0:
            code = np.int32(count)
            seen[ids[place]] = code
            distinct[count] = ids[place]
            count += 1
        codes[place] = code
    for place in range(count):
        seen[distinct[place]] = -1
    return count


@compile_native
def gather(
    texts: Bytes,
    starts: npt.NDArray[np.int64],
    ids: npt.NDArray[np.int32],
    offsets: npt.NDArray[np.int32],
    found: Bytes,
) -> None:
    """Copy the text of each id to its position in `offsets`."""
    for place in range(ids.size):
        at = offsets[place]
        copy(texts, starts[ids[place]], offsets[place + 1] - at, found, at)
