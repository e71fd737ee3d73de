"""Decodes metrics requests of the common shape: the results of the compiled `scan` as batches.

In:   the bytes of an `ExportMetricsServiceRequest`
Out:  the same `DecodedRequest` as the official decoder; or None, and the official decoder decides

- Every distinct set of attributes, metric, scope and resource is decoded once by the official
  library, rendered by the same functions as in the official decoder, and cached by its bytes.
- The cache is bounded and is cleared completely when it is full.
- The official decoder handles every request with anything to refuse or to note.
- Each thread has a separate cache, so nothing is shared or locked.
"""

import os
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.compiled.attribute_text import PairCache
from thermocline.ingest.otlp.compiled.protobuf_wire import (
    FULL,
    compact,
    gather,
    new_interned,
)
from thermocline.ingest.otlp.compiled.scan_metrics import (
    ATTRIBUTES,
    GAUGE,
    INT,
    METRIC,
    METRIC_KEY_BYTES,
    ORIGIN,
    PointColumns,
    new_columns,
    scan_metrics,
)
from thermocline.ingest.otlp.metrics import (
    SERIES_FACTOR,
    MetricStream,
    PointRows,
    exemplar_rows,
    stream_of,
)
from thermocline.ingest.otlp.origin import (
    Origin,
    digest_bytes,
    join_origin,
    resource_columns,
    scope_columns,
)
from thermocline.ingest.otlp.outcome import DecodedRequest, DecodeLimits, Tally
from thermocline.ingest.otlp.tables import METRIC as METRIC_FIELDS
from thermocline.ingest.otlp.tables import METRIC_HISTOGRAMS, METRIC_POINTS, WORD, rows_batch
from thermocline.ingest.otlp.tables import ORIGIN as ORIGIN_FIELDS
from thermocline.ingest.otlp.value import ValueRenderer

ENTRIES_MAX = 1 << 18
ARENA_BYTES_MAX = 64 << 20
SHAPES_MAX = 64
KEPT_ROWS_MAX = 1 << 15

POINT_ATTRIBUTES = 7 << 3 | 2  # the tag of a point's attributes

_STORED_TEXT = object()
Codes = npt.NDArray[np.int32]
_KINDS = {field.name: field.type for field in METRIC_POINTS.schema}
_SHARED = [*ORIGIN_FIELDS, *METRIC_FIELDS]


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
    """One thread's cache of decoded entries, for one set of limits.

    `shared_fields` are the columns that `shape` returns. Entries that are texts are stored together
    in one buffer, the others as objects.
    """

    shared_fields = _SHARED

    def __init__(self, limits: DecodeLimits, pairs: PairCache | None = None) -> None:
        from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

        self.limits = limits
        self.pairs = pairs or PairCache(limits)
        self._point: Any = NumberDataPoint
        self.table = new_interned(ENTRIES_MAX, ARENA_BYTES_MAX, int.from_bytes(os.urandom(4)))
        self.entries: list[Any] = []
        self.seen = np.full(ENTRIES_MAX, -1, np.int32)
        self.digests = np.zeros(ENTRIES_MAX, np.uint64)
        self.text_starts = np.zeros(ENTRIES_MAX, np.int64)
        self.text_lengths = np.zeros(ENTRIES_MAX, np.int32)
        self.texts = np.empty(1 << 20, np.uint8)
        self.texts_bytes = 0
        self.shapes: dict[bytes, list[_SharedColumn]] = {}

    def decode_new_entries(self) -> bool:
        """Decode the entries added since the last call; tell whether all of them can be used."""
        from google.protobuf.message import DecodeError

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
                entry = self.decode_entry(first + place, context, raw, values)
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

    def decode_entry(self, number: int, context: int, raw: bytes, values: ValueRenderer) -> Any:
        """Return the decoded form of bytes; None if the official decoder must handle them."""
        if context == ATTRIBUTES:
            text = self.pairs.attributes_text(raw, POINT_ATTRIBUTES)
            if text is not None:
                return text
            return values.attributes(self._point.FromString(raw).attributes)
        if context == ORIGIN:
            return self.decode_origin(raw, values)
        return self._decode_stream(number, raw, values) if context == METRIC else raw

    def _decode_stream(self, number: int, raw: bytes, values: ValueRenderer) -> MetricStream | None:
        from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

        origin, kind, form = (int(part) for part in np.frombuffer(raw, "<u4", 3))
        metric: Any = Metric.FromString(raw[METRIC_KEY_BYTES:])
        if kind == GAUGE:
            metric.gauge.SetInParent()
        else:
            metric.sum.aggregation_temporality = form >> 1
            metric.sum.is_monotonic = bool(form & 1)
        if self.entries[origin] is None:
            return None
        stream = stream_of(self.entries[origin], metric, values)
        self.digests[number] = stream.identity
        return stream

    def decode_origin(self, raw: bytes, values: ValueRenderer) -> Origin | None:
        """Return the origin whose four parts have these entry numbers."""
        from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
        from opentelemetry.proto.resource.v1.resource_pb2 import Resource

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
        end = self.texts_bytes + len(data)
        if end > self.texts.size:
            grown = np.empty(max(end, 2 * self.texts.size), np.uint8)
            grown[: self.texts_bytes] = self.texts[: self.texts_bytes]
            self.texts = grown
        self.texts[self.texts_bytes : end] = np.frombuffer(data, np.uint8)
        numbers = np.array([number for number, _ in texts])
        lengths = np.array([len(text) for _, text in texts], np.int64)
        self.text_starts[numbers] = self.texts_bytes + np.cumsum(lengths) - lengths
        self.text_lengths[numbers] = lengths
        self.digests[numbers] = np.array([digest_bytes(text) for _, text in texts], np.uint64)
        self.texts_bytes = end

    def shape(self, metrics: Codes) -> list[_SharedColumn]:
        """Return the shared columns of these metrics, cached by the list of metrics."""
        key = metrics.tobytes()
        if key not in self.shapes:
            if len(self.shapes) >= SHAPES_MAX:
                self.shapes.clear()
            streams: list[MetricStream] = [self.entries[number] for number in metrics.tolist()]
            columns = zip(*(stream.columns for stream in streams), strict=True)
            self.shapes[key] = [
                _SharedColumn(column, kind)
                for column, (_, kind) in zip(columns, self.shared_fields, strict=True)
            ]
        return self.shapes[key]


_threads = threading.local()


def decode_metrics(data: Data, limits: DecodeLimits) -> DecodedRequest | None:
    """Return the rows of a request in the common shape, or None when it has another."""
    if not data:
        return None
    found = np.frombuffer(data, np.uint8)
    memory: DecodeMemory | None = getattr(_threads, "memory", None)
    pairs: PairCache | None = None
    for _ in range(2):
        if memory is None or memory.limits != limits:
            memory = _threads.memory = DecodeMemory(limits, pairs)
        memory.decode_new_entries()  # entries that an earlier scan added before it failed
        columns = new_columns(found.size)
        code = scan_metrics(found, memory.table, columns)
        if code != FULL:
            return (
                _build_batches(data, memory, columns)
                if code == 0 and memory.decode_new_entries()
                else None
            )
        pairs, memory = memory.pairs, None  # clear the cache of sets, and try once more
    _threads.memory = None
    return None


def _build_batches(
    data: Data, memory: DecodeMemory, columns: PointColumns
) -> DecodedRequest | None:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint

    rows, with_exemplars, others = (int(count) for count in columns.counts[:3])
    tally = Tally("metrics")
    values = ValueRenderer(memory.limits, tally)
    points = PointRows(values, tally)
    exemplars: list[Any] | None = None
    try:
        for start, end, origin in columns.others[:others].tolist():
            points.add_metric(memory.entries[origin], Metric.FromString(bytes(data[start:end])))
        if with_exemplars:
            exemplars = [None] * rows
            for row, start, end in columns.exemplars[:with_exemplars].tolist():
                point = NumberDataPoint.FromString(bytes(data[start:end]))
                exemplars[row] = exemplar_rows(point.exemplars, values, tally)
    except DecodeError:
        return None
    batches = {}
    if rows:
        batches[METRIC_POINTS.name] = _points_batch(memory, columns, rows, exemplars)
    if points.histograms:
        batches[METRIC_HISTOGRAMS.name] = rows_batch(METRIC_HISTOGRAMS, points.histograms)
    tally.accepted = rows + len(points.histograms)
    decoded = tally.outcome(batches)
    return None if decoded.is_partial else decoded


def _points_batch(
    memory: DecodeMemory, columns: PointColumns, rows: int, exemplars: list[Any] | None
) -> pa.RecordBatch:
    metrics, codes = compact_ids(columns.metric[:rows], memory)
    sets, set_codes = compact_ids(columns.attributes[:rows], memory)
    time, start = columns.time[:rows].view(np.int64), columns.start[:rows].view(np.int64)
    kind, bits = columns.kind[:rows], columns.bits[:rows]
    numbers = np.where(kind == INT, bits.view(np.int64).astype(np.float64), bits.view(np.float64))
    series = memory.digests[columns.metric[:rows]] + memory.digests[
        columns.attributes[:rows]
    ] * np.uint64(SERIES_FACTOR)
    kinds = _KINDS
    arrays = [
        number_array(kinds["ts"], time // 1_000),
        number_array(kinds["ts_ns"], time),
        *shared_columns(memory.shape(metrics), codes),
        number_array(kinds["series_id"], series),
        pa.DictionaryArray.from_arrays(
            number_array(pa.int32(), set_codes), texts_of(memory, sets), safe=False
        ),
        number_array(kinds["start_ns"], start, start != 0),
        number_array(kinds["flags"], columns.flags[:rows]),
        pa.nulls(rows, kinds["exemplars"])
        if exemplars is None
        else pa.array(exemplars, kinds["exemplars"]),
        number_array(kinds["value"], numbers, kind != 0),
        number_array(kinds["value_int"], bits, kind == INT),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=METRIC_POINTS.schema)


def shared_columns(shape: list[_SharedColumn], codes: Codes) -> list[pa.Array]:
    """Return the columns of a shape by row, given each row's number among its entries."""
    zeros = number_array(pa.int32(), np.zeros(codes.size, np.int32))
    by_row = number_array(pa.int32(), codes)
    return [column.by_row(codes, zeros, by_row) for column in shape]


def compact_ids(ids: Codes, memory: DecodeMemory) -> tuple[Codes, Codes]:
    """Return the distinct ids, and for each position the index of its id among them."""
    codes, distinct = np.empty(ids.size, np.int32), np.empty(ids.size, np.int32)
    return distinct[: compact(ids, memory.seen, codes, distinct)], codes


def texts_of(memory: DecodeMemory, ids: Codes) -> pa.Array:
    """Return the texts of entries."""
    offsets = np.zeros(ids.size + 1, np.int32)
    np.cumsum(memory.text_lengths[ids], out=offsets[1:])
    data = np.empty(offsets[-1], np.uint8)
    gather(memory.texts, memory.text_starts, ids, offsets, data)
    return pa.Array.from_buffers(
        pa.string(), ids.size, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def number_array(kind: pa.DataType, values: Any, is_there: Any = None) -> pa.Array:
    """Return numbers as an Arrow array of a type of the same width, without a copy."""
    valid = None
    if is_there is not None and not is_there.all():
        valid = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(
        kind, values.size, [valid, pa.py_buffer(np.ascontiguousarray(values))]
    )
