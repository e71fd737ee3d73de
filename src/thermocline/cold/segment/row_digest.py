"""A digest of rows that does not depend on their order, their batches or their encoding.

In:   Arrow batches
Out:  a `RowDigest`: the number of rows, and the sum of a 64-bit hash of each row

- The same rows in another order, in other batches, or with a column as a dictionary give the same
  digest. A value that moves to another row or column, or appears twice, gives another one.
- Values are compared by their bits, so 0.0 and -0.0 differ; null differs from every value.
- The digest detects mistakes, not forgery: anyone who can choose values can construct two rows with
  the same hash.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from thermocline.errors import Unsupported
from thermocline.format.types import plain_type

Hashes = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_NULL = np.uint64(0xD6E8FEB86659FD93)
_RADIX = 0xAF251AF3B0F025B5
"""The radix of a text's hash. It is odd, so it has an inverse, which removes a text's offset."""
BYTES_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class RowDigest:
    """The digest of some rows; the sum of two digests is that of both sets of rows."""

    rows: int = 0
    digest: int = 0

    def __add__(self, other: "RowDigest") -> "RowDigest":
        return RowDigest(self.rows + other.rows, (self.digest + other.digest) & _MASK)

    def __str__(self) -> str:
        return f"{self.rows}:{self.digest:016x}"


def digest_rows(batches: Iterable[pa.RecordBatch]) -> RowDigest:
    """Return the digest of all rows of some batches; the order of the columns matters."""
    total = RowDigest()
    for batch in batches:
        if batch.num_rows:
            total += RowDigest(batch.num_rows, int(hash_rows(batch).sum(dtype=np.uint64)))
    return total


def hash_rows(batch: pa.RecordBatch) -> Hashes:
    """Return a hash of each row."""
    total = np.full(batch.num_rows, np.uint64(_STEP))
    for place, column in enumerate(batch.columns):
        total += _hash_column(column) * np.uint64((2 * place + 1) * _STEP & _MASK)
    return _mix_bits(total)


def _hash_column(column: pa.Array) -> Hashes:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if kinds.is_dictionary(kind):
        return _hash_dictionary(column)
    if kinds.is_null(kind):
        return np.full(len(column), _NULL)
    made = _hash_values(column, kind)
    if column.null_count:
        made[pc.is_null(column).to_numpy(zero_copy_only=False)] = _NULL
    return made


def _hash_dictionary(column: pa.DictionaryArray) -> Hashes:
    known = np.append(_hash_column(column.dictionary), _NULL)
    indices = column.indices
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(len(known) - 1)
    return known[indices.to_numpy(zero_copy_only=False)]


def _hash_values(column: pa.Array, kind: pa.DataType) -> Hashes:
    if kinds.is_boolean(kind):
        return _mix_bits(pc.cast(column, pa.uint8()).fill_null(0).to_numpy().astype(np.uint64))
    if kinds.is_struct(kind):
        return _hash_struct(column)
    if kinds.is_fixed_size_list(kind):
        return _hash_lists(column.cast(pa.list_(kind.value_field)))
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_map(kind):
        return _hash_lists(column)
    wide = plain_type(kind)
    if not wide.equals(kind):
        return _hash_values(column.cast(wide), wide)
    if kinds.is_string(kind) or kinds.is_binary(kind):
        return _hash_texts(column, np.int32)
    if kinds.is_large_string(kind) or kinds.is_large_binary(kind):
        return _hash_texts(column, np.int64)
    return _hash_words(column, kind)


def _hash_words(column: pa.Array, kind: pa.DataType) -> Hashes:
    """Hash values of a fixed width."""
    try:
        width = kind.bit_width // 8
    except ValueError as error:
        raise Unsupported(
            "rows of this type cannot be compared",
            hint="keep the table as it is, or cast the column to an ordinary type",
            type=str(kind),
        ) from error
    data = column.buffers()[1]
    first = column.offset * width
    if data is None or not width:
        return np.zeros(len(column), dtype=np.uint64)
    if width in (1, 2, 4, 8):
        words = np.frombuffer(data, f"<u{width}", len(column), first)
        return _mix_bits(words.astype(np.uint64))
    whole = np.frombuffer(data, np.uint8, len(column) * width, first).reshape(-1, width)
    padded = np.zeros((len(column), -(-width // 8) * 8), dtype=np.uint8)
    padded[:, :width] = whole
    words = padded.view("<u8")
    total = np.zeros(len(column), dtype=np.uint64)
    for place in range(words.shape[1]):
        total = _mix_bits(total * np.uint64(_STEP) + words[:, place])
    return total


def _hash_texts(column: pa.Array, offset_type: Any) -> Hashes:
    _, offsets, data = column.buffers()
    rows = len(column)
    if not rows:
        return np.empty(0, dtype=np.uint64)
    ends = np.frombuffer(offsets, offset_type)[column.offset : column.offset + rows + 1]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    made = np.empty(rows, dtype=np.uint64)
    first = 0
    while first < rows:
        # A bounded range of bytes at a time, at least one text: a hash takes eight bytes per byte.
        last = int(np.searchsorted(ends, int(ends[first]) + BYTES_AT_ONCE, side="right")) - 1
        last = min(max(last, first + 1), rows)
        made[first:last] = _hash_text_run(content, ends[first : last + 1].astype(np.int64))
        first = last
    return made


_TABLE = np.random.default_rng(20240601).integers(0, 1 << 64, 256, dtype=np.uint64)
_POWERS: list[Hashes] = []


def _hash_text_run(content: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> Hashes:
    """Hash adjacent texts: each is a polynomial of bytes, a difference of two prefix sums."""
    start, end = int(ends[0]), int(ends[-1])
    powers, inverses = _read_powers(end - start)
    sums = np.zeros(end - start + 1, dtype=np.uint64)
    np.cumsum(_TABLE[content[start:end]] * powers, out=sums[1:])
    places = ends - start
    made = (sums[places[1:]] - sums[places[:-1]]) * inverses[places[:-1]]
    return _mix_bits(made + np.diff(ends).astype(np.uint64))


def _read_powers(count: int) -> tuple[Hashes, Hashes]:
    """Return the first powers of the radix and of its inverse."""
    if not _POWERS or len(_POWERS[0]) < count + 1:
        size = max(count + 1, BYTES_AT_ONCE + 1)
        inverse = pow(_RADIX, -1, 1 << 64)
        _POWERS[:] = [_compute_powers(_RADIX, size), _compute_powers(inverse, size)]
    return _POWERS[0][:count], _POWERS[1][: count + 1]


def _compute_powers(number: int, count: int) -> Hashes:
    factors = np.full(count, np.uint64(number))
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _hash_struct(column: pa.StructArray) -> Hashes:
    total = np.full(len(column), np.uint64(_STEP))
    for place, part in enumerate(column.flatten()):
        total += _hash_column(part) * np.uint64((2 * place + 1) * _STEP & _MASK)
    return _mix_bits(total)


def _hash_lists(column: pa.Array) -> Hashes:
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    items = _list_items(column).slice(first, last - first)
    places = offsets - first
    lengths = np.diff(places)
    within = np.arange(last - first) - np.repeat(places[:-1], lengths)
    hashes = _mix_bits(_hash_column(items) + within.astype(np.uint64) * np.uint64(_STEP))
    sums = np.zeros(last - first + 1, dtype=np.uint64)
    np.cumsum(hashes, out=sums[1:])
    return _mix_bits(sums[places[1:]] - sums[places[:-1]] + lengths.astype(np.uint64))


def _list_items(column: pa.Array) -> pa.Array:
    if not kinds.is_map(column.type):
        return column.values
    return pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])


def _mix_bits(values: Hashes) -> Hashes:
    """Return mixed values: each bit of a result depends on every bit of its value."""
    made = values ^ (values >> np.uint64(32))
    made *= np.uint64(0xD6E8FEB86659FD93)
    made ^= made >> np.uint64(32)
    made *= np.uint64(0xD6E8FEB86659FD93)
    made ^= made >> np.uint64(32)
    return made
