"""Tokens of texts, and the filters that say which tokens a segment may hold.

In:   texts, as an Arrow array or as one needle of a query
Out:  the hashes of their tokens; the bytes of a token sidecar, and a reader of them

    offset  size  field
    0       4     magic, the letters TCTK
    4       2     format version, 1
    6       2     number of columns, n
    8       16*n  for each column: its id (4), probes (4), size of its filter in bits (8)
    ...           the filters, one after another, each a whole number of bytes

- The file has no checksum inside: the commit names its size and the CRC32C of all its bytes. (The
  CRC of bytes that end in their own CRC is the same for all files.)
- A token is a longest run of token bytes: ASCII letters, digits, and every byte of a character
  outside of ASCII. Every other ASCII character separates tokens.
- ASCII letters are hashed in lower case, so one filter serves searches with and without case.
- A filter may claim a token that the segment lacks. It never denies one that the segment holds,
  except tokens longer than `TOKEN_BYTES_MAX`, which are not in it and which readers do not ask for.
- The same texts give the same bytes, in any batches and any order.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from thermocline.errors import Corruption, Unsupported

MAGIC = b"TCTK"
FORMAT_VERSION = 1
TOKEN_BYTES_MAX = 128
COLUMNS_MAX = 64
BITS_PER_TOKEN = 8
BITS_PER_TOKEN_MIN = 4
PROBES = 5
SHARE_OF_SEGMENT_MAX = 0.15
"""The most bytes that a sidecar takes, as a share of its segment's Parquet file."""
FILTER_BITS_MAX = 1 << 28
TOKENS_MAX = 1 << 24
"""Past this many different tokens in one column of a segment, the column has no filter."""

_HEAD = struct.Struct("<4sHH")
_COLUMN = struct.Struct("<IIQ")
_PIECE_BYTES = 1 << 18
_BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2**64
_INVERSE = pow(_BASE, -1, 1 << 64)
_LENGTH_FACTOR = 0xD6E8FEB86659FD93
_Hashes = npt.NDArray[np.uint64]


def _byte_classes() -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint8]]:
    is_token = np.zeros(256, dtype=bool)
    is_token[128:] = True
    lower = np.arange(256, dtype=np.uint8)
    for first, last in (b"09", b"AZ", b"az"):
        is_token[first : last + 1] = True
    lower[ord("A") : ord("Z") + 1] += 32
    return is_token, lower


_IS_TOKEN, _LOWER = _byte_classes()


def tokens_of(text: str) -> list[str]:
    """Return the tokens of a text in their order, in the case that they have."""
    data = text.encode(errors="surrogatepass")
    found: list[str] = []
    start: int | None = None
    for place, byte in enumerate((*data, 0)):
        if _IS_TOKEN[byte]:
            start = place if start is None else start
        elif start is not None:
            found.append(data[start:place].decode(errors="surrogatepass"))
            start = None
    return found


def is_separator(letter: str) -> bool:
    """Tell whether a character separates tokens."""
    return ord(letter) < 128 and not _IS_TOKEN[ord(letter)]


def hash_token(token: str) -> int | None:
    """Return the hash of one token, or None for one that no filter holds because of its length."""
    data = token.encode(errors="surrogatepass")
    if not data or len(data) > TOKEN_BYTES_MAX:
        return None
    raw = 0
    for place, byte in enumerate(data):
        raw += (int(_LOWER[byte]) + 1) * pow(_BASE, place, 1 << 64)
    mixed = _mix(np.array([raw % (1 << 64)], np.uint64), np.array([len(data)], np.uint64))
    return int(mixed[0])


def hash_texts(column: pa.Array | pa.ChunkedArray) -> pa.UInt64Array:
    """Return the hashes of the tokens of a column of texts; each different hash once."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    found = pa.array([], pa.uint64())
    for chunk in chunks:
        for hashes in _hash_chunk(chunk):
            found = pc.unique(pa.concat_arrays([found, pa.array(hashes)]))
            if len(found) > TOKENS_MAX:
                return found
    return found


def _hash_chunk(chunk: pa.Array) -> Iterator[_Hashes]:
    if kinds.is_dictionary(chunk.type):
        # Values that no row has would make the bytes depend on how the rows were batched.
        chunk = chunk.dictionary.take(pc.unique(pc.drop_null(chunk.indices)))
    chunk = pc.drop_null(chunk.cast(pa.large_string()).cast(pa.large_binary()))
    if not len(chunk):
        return
    _, offsets_buffer, data_buffer = chunk.buffers()
    if data_buffer is None:
        return
    offsets = np.frombuffer(offsets_buffer, np.int64)[chunk.offset :][: len(chunk) + 1]
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    if not len(data):
        return
    is_first = np.zeros(len(data) + 1, dtype=bool)
    is_first[offsets - offsets[0]] = True  # the end of the last text is a boundary, too
    start = 0
    while start < len(data):
        end = _find_cut(data, is_first, start)
        yield _hash_piece(data[start:end], is_first[start : end + 1])
        start = end


def _find_cut(data: npt.NDArray[np.uint8], is_first: npt.NDArray[np.bool_], start: int) -> int:
    """Return the end of the next piece; no token that a filter holds lies across it."""
    end = start + _PIECE_BYTES
    if end >= len(data):
        return len(data)
    first = end - TOKEN_BYTES_MAX
    breaks = np.flatnonzero(is_first[first:end] | ~_IS_TOKEN[data[first:end]])
    return end if not len(breaks) else first + int(breaks[-1])


def _hash_piece(data: npt.NDArray[np.uint8], is_first: npt.NDArray[np.bool_]) -> _Hashes:
    """Return the hashes of the tokens of joined texts; `is_first` marks where texts begin."""
    inside = np.zeros(len(data) + 2, dtype=bool)
    inside[1:-1] = _IS_TOKEN[data]
    starts = np.flatnonzero(inside[1:-1] & (~inside[:-2] | is_first[:-1]))
    ends = np.flatnonzero(inside[1:-1] & (~inside[2:] | is_first[1:])) + 1
    lengths = ends - starts
    fits = lengths <= TOKEN_BYTES_MAX
    starts, ends, lengths = starts[fits], ends[fits], lengths[fits]
    powers, inverses = _powers(max(_PIECE_BYTES, len(data)))
    sums = np.zeros(len(data) + 1, dtype=np.uint64)
    np.cumsum((_LOWER[data].astype(np.uint64) + np.uint64(1)) * powers[: len(data)], out=sums[1:])
    raw = (sums[ends] - sums[starts]) * inverses[starts]
    return _mix(raw, lengths.astype(np.uint64))


@lru_cache(maxsize=1)
def _powers(size: int) -> tuple[_Hashes, _Hashes]:
    """Return the powers of the base modulo 2**64, and those of its inverse."""
    factors = np.full((2, size), np.uint64(1), dtype=np.uint64)
    factors[0, 1:], factors[1, 1:] = np.uint64(_BASE), np.uint64(_INVERSE)
    powers = np.cumprod(factors, axis=1)
    return powers[0], powers[1]


def _mix(raw: _Hashes, lengths: _Hashes) -> _Hashes:
    """Return hashes whose bits all depend on all bits of the sums: SplitMix64's last step."""
    mixed = raw + lengths * np.uint64(_LENGTH_FACTOR)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def encode_filters(hashes: Mapping[int, pa.UInt64Array], segment_bytes: int) -> bytes | None:
    """Return a sidecar for these columns by id, or None when no filter is worth its bytes.

    The sidecar takes at most `SHARE_OF_SEGMENT_MAX` of the segment's bytes: with many different
    tokens the filters get fewer bits for each token, and below `BITS_PER_TOKEN_MIN` there is none.
    """
    wanted = {key: found for key, found in hashes.items() if len(found) <= TOKENS_MAX}
    wanted = dict(sorted(wanted.items())[:COLUMNS_MAX])
    tokens = sum(len(found) for found in wanted.values())
    overhead = _HEAD.size + _COLUMN.size * len(wanted) + len(wanted)
    room_bits = (int(segment_bytes * SHARE_OF_SEGMENT_MAX) - overhead) * 8
    if not tokens or room_bits < tokens * BITS_PER_TOKEN_MIN:
        return None
    share = min(BITS_PER_TOKEN, room_bits / tokens)
    parts, head = [], _HEAD.pack(MAGIC, FORMAT_VERSION, len(wanted))
    for key, found in wanted.items():
        bits = min(max(8, int(len(found) * share)), FILTER_BITS_MAX)
        head += _COLUMN.pack(key, PROBES, bits)
        parts.append(_encode_filter(found.to_numpy(), bits))
    return head + b"".join(parts)


def _encode_filter(hashes: _Hashes, bits: int) -> bytes:
    held = np.zeros(bits, dtype=bool)
    low, high = hashes & np.uint64(0xFFFFFFFF), hashes >> np.uint64(32)
    for probe in range(PROBES):
        held[(low + np.uint64(probe) * high) % np.uint64(bits)] = True
    return np.packbits(held, bitorder="little").tobytes()


@dataclass(frozen=True, slots=True)
class TokenFilter:
    """Where the filter of one column is in a sidecar."""

    offset: int
    probes: int
    bits: int

    def may_hold(self, token: int, read: Callable[[int], int]) -> bool:
        """Tell whether the column may hold a token; `read` returns the byte at an offset."""
        low, high = token & 0xFFFFFFFF, token >> 32
        for probe in range(self.probes):
            place, bit = divmod((low + probe * high) % self.bits, 8)
            if not read(self.offset + place) >> bit & 1:
                return False
        return True


def decode_head(head: bytes, size_bytes: int) -> dict[int, TokenFilter]:
    """Return the filters of a sidecar by column id, from its first bytes and its size.

    `head` has at least `HEAD_BYTES_MAX` bytes or is the whole sidecar. The caller has verified the
    sidecar's checksum. `Corruption` for bytes that are no sidecar, `Unsupported` for a newer one.
    """
    if len(head) < _HEAD.size or head[: len(MAGIC)] != MAGIC:
        raise Corruption("not a token sidecar", hint=DAMAGE_HINT)
    _, version, columns = _HEAD.unpack_from(head)
    if version != FORMAT_VERSION:
        hint = "use a newer Thermocline"
        raise Unsupported("a token sidecar of a newer format", hint=hint, version=version)
    offset = _HEAD.size + columns * _COLUMN.size
    if columns > COLUMNS_MAX or len(head) < offset:
        raise Corruption("a token sidecar is cut", hint=DAMAGE_HINT)
    filters = {}
    for place in range(columns):
        key, probes, bits = _COLUMN.unpack_from(head, _HEAD.size + place * _COLUMN.size)
        if not 1 <= bits <= FILTER_BITS_MAX or not 1 <= probes <= 64:
            raise Corruption("a token sidecar has an impossible filter", hint=DAMAGE_HINT)
        filters[key] = TokenFilter(offset, probes, bits)
        offset += -(-bits // 8)
    if offset != size_bytes:
        raise Corruption("a token sidecar has another size than its filters", hint=DAMAGE_HINT)
    return filters


HEAD_BYTES_MAX = _HEAD.size + COLUMNS_MAX * _COLUMN.size
DAMAGE_HINT = "queries read the whole segment instead; compaction writes a new sidecar"


def can_hold_tokens(kind: pa.DataType) -> bool:
    """Tell whether a column of this type can have a filter: it holds texts."""
    value = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(
        kinds.is_string(value) or kinds.is_large_string(value) or kinds.is_string_view(value)
    )


def bounded_tokens(fragments: Iterable[tuple[str, bool, bool]]) -> list[str]:
    """Return the tokens that a text must have if it contains all these fragments.

    Each fragment says whether the text begins before it, and ends after it. A token at the edge of
    a fragment may be part of a longer one in the text, unless the text itself begins or ends there.
    """
    found: list[str] = []
    for fragment, is_begin, is_end in fragments:
        tokens = tokens_of(fragment)
        if not tokens:
            continue
        cut_first = not is_begin and not is_separator(fragment[0])
        cut_last = not is_end and not is_separator(fragment[-1])
        first = 1 if cut_first else 0
        last = len(tokens) - (1 if cut_last else 0)
        found += tokens[first:last]
    return found


def like_fragments(pattern: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield the literal parts of a LIKE pattern, as `bounded_tokens` takes them."""
    parts = pattern.replace("_", "%").split("%")
    last = len(parts) - 1
    for place, part in enumerate(parts):
        yield part, place == 0, place == last
