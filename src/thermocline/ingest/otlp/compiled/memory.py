"""Decodes requests of the common shape: the columns of a scan become batches.

In:   the bytes of an `Export{Metrics,Logs,Trace}ServiceRequest`; the plan of its signal
Out:  the same `DecodedRequest` as the official decoder; or None, and the official decoder decides

- Every distinct set of attributes, scope, resource, and what else a plan interns is decoded once by
  the official library, rendered by the same functions as in the official decoder, and cached by its
  bytes.
- The cache is bounded and is cleared completely when it is full.
- The official decoder handles every request with anything to refuse or to note.
- Before the official library decodes more than a few bytes of a request, the parts of the request
  are counted: compiled code reads a part in nanoseconds, the library builds it in microseconds.
- Each thread has a separate cache for each signal, so nothing is shared or locked.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.compiled.attribute_text import PairCache
from thermocline.ingest.otlp.compiled.numba_support import Bytes
from thermocline.ingest.otlp.compiled.part_scan import is_within_limits
from thermocline.ingest.otlp.compiled.protobuf_wire import (
    FULL,
    InternTable,
    compact,
    gather,
    new_interned,
)
from thermocline.ingest.otlp.compiled.scan_items import (
    ATTRIBUTES,
    ORIGIN,
    REQUEST_BYTES_MAX,
    RequestItems,
    new_items,
)
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.origin import (
    Origin,
    digest_bytes,
    join_origin,
    resource_columns,
    scope_columns,
)
from thermocline.ingest.otlp.outcome import DecodedRequest, Tally
from thermocline.ingest.otlp.tables import WORD
from thermocline.ingest.otlp.value import ValueRenderer

ENTRIES_MAX = 1 << 18
ARENA_BYTES_MAX = 64 << 20
SHAPES_MAX = 64
KEPT_ROWS_MAX = 1 << 15

_STORED_TEXT = object()
Codes = npt.NDArray[np.int32]


class UncommonShape(Exception):
    """The request has a part that the official decoder must handle."""


@dataclass(frozen=True, slots=True)
class SignalPlan:
    """What is particular to the decoding of one signal.

    `item` is the message that has attributes, under the tag `attributes_tag`. `shared_fields` are
    the columns of the entries that `shared_columns` is called with. `decoders` decode the interned
    bytes of a context: they get the memory, the number of the entry and its bytes.
    """

    signal: str
    item: Any
    attributes_tag: int
    shared_fields: Sequence[tuple[str, pa.DataType]]
    decoders: Mapping[int, "Callable[[DecodeMemory, int, bytes, ValueRenderer], Any]"]
    scan: Callable[[Bytes, InternTable, RequestItems, int], tuple[int, Any]]
    build: "Callable[[ScannedRequest], dict[str, pa.RecordBatch]]"


class _SharedColumn:
    """A column with one value for each metric, which all points of the metric share."""

    def __init__(self, column: tuple[Any, ...], kind: pa.DataType) -> None:
        self._values = pa.array(column, kind)
        self._is_word = kind == WORD
        self._codes: Codes | None = None
        self._last = pa.nulls(0, kind)
        self._is_constant = len(set(column)) == 1
        if self._is_word:
            nulls, words = self._values.null_count, self._values.dictionary
            if nulls and words:
                self._codes = self._values.indices.fill_null(-1).to_numpy()
            elif len(words) > 1:
                self._codes = self._values.indices.to_numpy()

    def by_row(self, codes: Codes, zeros: pa.Array, by_row: pa.Array) -> pa.Array:
        """Return the column by row; given the metric of each row, and as many zeros as rows."""
        if not self._is_constant or codes.size > KEPT_ROWS_MAX:
            return self._build_column(codes, zeros, by_row)
        if len(self._last) < codes.size:
            self._last = self._build_column(codes, zeros, by_row)
        return self._last if len(self._last) == codes.size else self._last.slice(0, codes.size)

    def _build_column(self, codes: Codes, zeros: pa.Array, by_row: pa.Array) -> pa.Array:
        if not self._is_word:
            return self._values.take(by_row)
        words = self._values.dictionary
        if not len(words):
            return pa.nulls(codes.size, WORD)
        if self._codes is None:
            return pa.DictionaryArray.from_arrays(zeros, words, safe=False)
        indices = self._codes[codes]
        found = number_array(pa.int32(), indices, indices >= 0)
        return pa.DictionaryArray.from_arrays(found, words, safe=False)


class DecodeMemory:
    """One thread's cache of decoded entries of one signal, for one set of limits.

    Entries that are texts are stored together in one buffer, the others as objects.
    """

    def __init__(self, plan: SignalPlan, limits: DecodeLimits, pairs: PairCache | None) -> None:
        self.limits = limits
        self.pairs = pairs or PairCache(limits)
        self._plan = plan
        self.table = new_interned(ENTRIES_MAX, ARENA_BYTES_MAX, int.from_bytes(os.urandom(4)))
        self.entries: list[Any] = []
        self.digests = np.zeros(ENTRIES_MAX, np.uint64)
        self._seen = np.full(ENTRIES_MAX, -1, np.int32)
        self._text_starts = np.zeros(ENTRIES_MAX, np.int64)
        self._text_lengths = np.zeros(ENTRIES_MAX, np.int32)
        self._texts = np.empty(1 << 20, np.uint8)
        self._texts_bytes = 0
        self._shapes: dict[bytes, list[_SharedColumn]] = {}

    def decode_new_entries(self) -> bool:
        """Decode the entries added since the last call; tell whether all of them can be used."""
        if len(self.entries) == self.table.totals[0]:
            return True
        first, last = len(self.entries), int(self.table.totals[0])
        starts = self.table.starts[first : last + 1].tolist()
        arena = self.table.arena[starts[0] : starts[-1]].tobytes()
        contexts = self.table.contexts[first:last].tolist()
        texts: list[tuple[int, bytes]] = []
        tally = Tally("metrics")
        values = ValueRenderer(self.limits, tally)
        for place, context in enumerate(contexts):
            raw = arena[starts[place] - starts[0] : starts[place + 1] - starts[0]]
            try:
                entry = self._decode_entry(first + place, context, raw, values)
            except (DecodeError, UnicodeDecodeError):
                entry = None
            if tally.has_notes:
                entry, tally = None, Tally("metrics")
                values = ValueRenderer(self.limits, tally)
            if entry is None:  # the official decoder must handle it, each time
                self.table.is_bad[first + place] = 1
            elif isinstance(entry, str):
                texts.append((first + place, entry.encode()))
                entry = _STORED_TEXT
            self.entries.append(entry)
        self._keep_texts(texts)
        return not self.table.is_bad[first:last].any()

    def new_bytes(self) -> int:
        """Return the size of the entries that are not decoded yet."""
        starts, last = self.table.starts, int(self.table.totals[0])
        return int(starts[last] - starts[len(self.entries)])

    def refuse_new_entries(self) -> None:
        """Leave the entries that are not decoded yet to the official decoder, each time."""
        first, last = len(self.entries), int(self.table.totals[0])
        self.table.is_bad[first:last] = 1
        self.entries += [None] * (last - first)

    def _decode_entry(self, number: int, context: int, raw: bytes, values: ValueRenderer) -> Any:
        """Return the decoded form of bytes; None if the official decoder must handle them."""
        if context == ATTRIBUTES:
            text = self.pairs.attributes_text(raw, self._plan.attributes_tag)
            if text is not None:
                return text
            return values.attributes(self._plan.item.FromString(raw).attributes)
        if context == ORIGIN:
            return self._decode_origin(raw, values)
        decode = self._plan.decoders.get(context)
        return decode(self, number, raw, values) if decode else raw

    def _decode_origin(self, raw: bytes, values: ValueRenderer) -> Origin:
        """Return the origin whose four parts have these entry numbers."""
        parts = [self.entries[int(number)] for number in np.frombuffer(raw, "<u4")]
        resource, url, scope, scope_url = parts
        return join_origin(
            resource_columns(Resource.FromString(resource), url.decode(), values),
            scope_columns(InstrumentationScope.FromString(scope), scope_url.decode(), values),
        )

    def _keep_texts(self, texts: list[tuple[int, bytes]]) -> None:
        if not texts:
            return
        data = b"".join([text for _, text in texts])
        end = self._texts_bytes + len(data)
        if end > self._texts.size:
            grown = np.empty(max(end, 2 * self._texts.size), np.uint8)
            grown[: self._texts_bytes] = self._texts[: self._texts_bytes]
            self._texts = grown
        self._texts[self._texts_bytes : end] = np.frombuffer(data, np.uint8)
        numbers = np.array([number for number, _ in texts])
        lengths = np.array([len(text) for _, text in texts], np.int64)
        self._text_starts[numbers] = self._texts_bytes + np.cumsum(lengths) - lengths
        self._text_lengths[numbers] = lengths
        self.digests[numbers] = np.array([digest_bytes(text) for _, text in texts], np.uint64)
        self._texts_bytes = end

    def compact(self, ids: Codes) -> tuple[Codes, Codes]:
        """Return the distinct ids, and for each position the index of its id among them."""
        codes, distinct = np.empty(ids.size, np.int32), np.empty(ids.size, np.int32)
        return distinct[: compact(ids, self._seen, codes, distinct)], codes

    def texts(self, ids: Codes, is_there: Any = None) -> pa.Array:
        """Return the texts of entries as a dictionary; null where `is_there` is false."""
        distinct, codes = self.compact(ids)
        gather_words = partial(gather, self._texts, self._text_starts, distinct)
        words = text_array(self._text_lengths[distinct], gather_words)
        return dictionary_array(codes, words, is_there)

    def shared_columns(self, ids: Codes) -> list[pa.Array]:
        """Return the columns of the streams or origins with these ids, by row."""
        distinct, codes = self.compact(ids)
        key = distinct.tobytes()
        if key not in self._shapes:
            if len(self._shapes) >= SHAPES_MAX:
                self._shapes.clear()
            columns = zip(*[self.entries[id_].columns for id_ in distinct.tolist()], strict=True)
            self._shapes[key] = [
                _SharedColumn(column, kind)
                for column, (_, kind) in zip(columns, self._plan.shared_fields, strict=True)
            ]
        zeros = number_array(pa.int32(), np.zeros(codes.size, np.int32))
        by_row = number_array(pa.int32(), codes)
        return [column.by_row(codes, zeros, by_row) for column in self._shapes[key]]


@dataclass(slots=True)
class ScannedRequest:
    """The result of scanning a request, from which batches are built."""

    data: Data
    raw: Bytes
    memory: DecodeMemory
    items: RequestItems
    columns: Any
    tally: Tally
    values: ValueRenderer
    arrived_ns: int

    def check_parts(self) -> None:
        """Raise `UncommonShape` when the official library must not decode the items themselves."""
        if not is_within_limits(self.tally.signal, self.data, self.memory.limits):
            raise UncommonShape


_threads = threading.local()


def decode_request(
    plan: SignalPlan, data: Data, limits: DecodeLimits, arrived_ns: int
) -> DecodedRequest | None:
    """Return the rows of a request in the common shape, or None when it has another."""
    if not 0 < len(data) <= REQUEST_BYTES_MAX:
        return None
    raw = np.frombuffer(data, np.uint8)
    raw.flags.writeable = False  # Numba would compile everything again for bytes that are writable
    memories: dict[str, DecodeMemory] = _threads.__dict__.setdefault("memories", {})
    memory, pairs = memories.get(plan.signal), None
    for _ in range(2):
        if memory is None or memory.limits != limits:
            memory = memories[plan.signal] = DecodeMemory(plan, limits, pairs)
        memory.decode_new_entries()  # entries that an earlier scan added before it failed
        items = new_items(raw.size, limits.items_max)
        code, columns = plan.scan(raw, memory.table, items, limits.items_max)
        if memory.new_bytes() > 2 * limits.items_max and (
            code != 0 or not is_within_limits(plan.signal, data, limits)
        ):
            memory.refuse_new_entries()
            if code == 0:
                return None
        if code != FULL:
            if code != 0 or not memory.decode_new_entries():
                return None
            tally = Tally(plan.signal)
            values = ValueRenderer(limits, tally)
            return _build_batches(
                plan,
                ScannedRequest(data, raw, memory, items, columns, tally, values, arrived_ns),
            )
        pairs, memory = memory.pairs, None  # clear the cache of sets, and try once more
    del memories[plan.signal]
    return None


def _build_batches(plan: SignalPlan, scanned: ScannedRequest) -> DecodedRequest | None:
    try:
        batches = plan.build(scanned)
    except (UncommonShape, DecodeError, UnicodeDecodeError):
        return None
    scanned.tally.accepted = sum(batch.num_rows for batch in batches.values())
    decoded = scanned.tally.outcome(batches)
    return None if decoded.is_partial else decoded


def text_array(
    lengths: Any, copy: Callable[[Codes, Bytes], None], is_there: Any = None
) -> pa.Array:
    """Return texts of these lengths, which `copy` puts at given offsets of given bytes."""
    offsets = np.zeros(lengths.size + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    copied = np.empty(offsets[-1], np.uint8)
    copy(offsets, copied)
    buffers = [_valid_buffer(is_there), pa.py_buffer(offsets), pa.py_buffer(copied)]
    return pa.Array.from_buffers(pa.string(), lengths.size, buffers)


def dictionary_array(codes: Codes, words: pa.Array, is_there: Any = None) -> pa.Array:
    """Return words by their codes; null where `is_there` is false."""
    return pa.DictionaryArray.from_arrays(
        number_array(pa.int32(), codes, is_there), words, safe=False
    )


def number_array(kind: pa.DataType, values: Any, is_there: Any = None) -> pa.Array:
    """Return numbers as an Arrow array of a type of the same width, without a copy."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, values.size, [_valid_buffer(is_there), data])


def _valid_buffer(is_there: Any) -> pa.Buffer | None:
    if is_there is None or is_there.all():
        return None
    return pa.py_buffer(np.packbits(is_there, bitorder="little"))
