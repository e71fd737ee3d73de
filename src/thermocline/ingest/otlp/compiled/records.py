"""Decodes logs and traces requests of the common shape: the results of `scan_records` as batches.

In:   the bytes of an `Export{Logs,Trace}ServiceRequest`
Out:  the same `DecodedRequest` as the official decoder; or None, and the official decoder decides

- Every distinct set of attributes, scope, resource, name and status is decoded once by the official
  library, rendered by the same functions as in the official decoder, and cached by its bytes.
- Texts that rarely repeat, such as bodies, are copied after a check that they are UTF-8 and within
  the limits.
- The official library decodes each body that is not a text, and the events and links of spans.
- The official decoder handles every request with anything to refuse or to note.
- Each thread has a separate cache, so nothing is shared or locked.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.compiled.attribute_text import PairCache
from thermocline.ingest.otlp.compiled.metrics import (
    Codes,
    DecodeMemory,
    compact_ids,
    number_array,
    shared_columns,
    texts_of,
)
from thermocline.ingest.otlp.compiled.numba_support import Bytes
from thermocline.ingest.otlp.compiled.protobuf_wire import FULL
from thermocline.ingest.otlp.compiled.scan_metrics import ATTRIBUTES, METRIC, ORIGIN
from thermocline.ingest.otlp.compiled.scan_records import (
    OTHER_BODY,
    TEXT_BODY,
    Positions,
    RecordColumns,
    RecordPlan,
    gather_ids,
    gather_texts,
    new_plan,
    new_record_columns,
    scan_records,
    split_bodies,
)
from thermocline.ingest.otlp.origin import NS_MAX
from thermocline.ingest.otlp.outcome import DecodedRequest, DecodeLimits, Tally
from thermocline.ingest.otlp.spans import KINDS, STATUS_CODES, enum_name, event_row, link_row
from thermocline.ingest.otlp.tables import LOGS, SPAN_ID, SPANS, TEXT, TRACE_ID, OtlpTable
from thermocline.ingest.otlp.tables import ORIGIN as ORIGIN_FIELDS
from thermocline.ingest.otlp.value import ValueRenderer

WORD_TEXT, STATUS = METRIC + 1, METRIC + 2
# The columns of a log record's numbers and texts, and of a span's.
TIME, OBSERVED, SEVERITY, DROPPED, FLAGS = range(5)
SEVERITY_TEXT, EVENT_NAME, LOG_TRACE, LOG_SPAN, BODY = range(5)
START, END, KIND, SPAN_DROPPED, DROPPED_EVENTS, DROPPED_LINKS, SPAN_FLAGS = range(7)
TRACE, SPAN, PARENT, STATE, NAME, SPAN_STATUS = range(6)

_LOG_PLAN = new_plan(
    {9: TIME, 89: OBSERVED, 16: SEVERITY, 56: DROPPED, 69: FLAGS},
    {26: SEVERITY_TEXT, 98: EVENT_NAME, 74: LOG_TRACE, 82: LOG_SPAN, 42: BODY},
    attributes=50,
    interned={SEVERITY_TEXT: WORD_TEXT, EVENT_NAME: WORD_TEXT},
)
_SPAN_PLAN = new_plan(
    dict(
        zip(
            (57, 65, 48, 80, 96, 112, 133),
            (START, END, KIND, SPAN_DROPPED, DROPPED_EVENTS, DROPPED_LINKS, SPAN_FLAGS),
            strict=True,
        )
    ),
    {10: TRACE, 18: SPAN, 34: PARENT, 26: STATE, 42: NAME, 122: SPAN_STATUS},
    attributes=74,
    interned={NAME: WORD_TEXT, SPAN_STATUS: STATUS},
    rich=(90, 106),
)


class _UncommonShape(Exception):
    """The request has a part that the official decoder must handle."""


class RecordMemory(DecodeMemory):
    """One thread's cache of decoded entries of one signal."""

    shared_fields = ORIGIN_FIELDS

    def __init__(
        self, limits: DecodeLimits, record: Any, tag: int, pairs: PairCache | None = None
    ) -> None:
        super().__init__(limits, pairs)
        self._record, self._tag = record, tag

    def decode_entry(self, number: int, context: int, raw: bytes, values: ValueRenderer) -> Any:  # noqa: ARG002
        """Return the decoded form of bytes; None if the official decoder must handle them."""
        if context == ATTRIBUTES:
            text = self.pairs.attributes_text(raw, self._tag)
            if text is not None:
                return text
            return values.attributes(self._record.FromString(raw).attributes)
        if context == WORD_TEXT:
            return values.text(raw.decode())
        if context == STATUS:
            from opentelemetry.proto.trace.v1.trace_pb2 import Status

            status: Any = Status.FromString(raw)
            return enum_name(STATUS_CODES, status.code), values.optional_text(status.message)
        return self.decode_origin(raw, values) if context == ORIGIN else raw


@dataclass(frozen=True, slots=True)
class _ScannedRequest:
    """The result of scanning a request, from which a batch is built."""

    data: Data
    raw: Bytes
    memory: RecordMemory
    columns: RecordColumns
    rows: int
    tally: Tally
    values: ValueRenderer

    def number(self, column: int) -> Any:
        """Return a column of numbers as int64."""
        return np.ascontiguousarray(self.columns.numbers[: self.rows, column]).view(np.int64)

    def time(self, column: int) -> Any:
        """Return a column of times; a time beyond int64 is left to the official decoder."""
        found = self.number(column)
        if (found < 0).any():
            raise _UncommonShape
        return found

    def spans(self, column: int) -> Positions:
        """Return where the texts of a column start and end."""
        return np.ascontiguousarray(self.columns.spans[: self.rows, column])

    def texts(self, spans: Positions, is_there: Any, limit_bytes: int) -> pa.Array:
        """Return a column of texts, checked for UTF-8 and length."""
        lengths = np.where(is_there, spans[:, 1] - spans[:, 0], 0)
        if lengths.max(initial=0) > limit_bytes:
            raise _UncommonShape
        offsets = np.zeros(self.rows + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        copied = np.empty(offsets[-1], np.uint8)
        gather_texts(self.raw, spans, offsets, copied)
        valid = pa.py_buffer(np.packbits(is_there, bitorder="little"))
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(copied)]
        made = pa.Array.from_buffers(TEXT, self.rows, buffers)
        try:
            made.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _UncommonShape from error
        return made

    def words(self, place: int, column: int | None = None) -> pa.Array:
        """Return a column of interned texts; with `column`, texts that are empty there are null."""
        distinct, codes = compact_ids(self.ids(place), self.memory)
        spans = None if column is None else self.columns.spans[: self.rows, column]
        is_there = None if spans is None else spans[:, 1] > spans[:, 0]
        return _dictionary_array(codes, texts_of(self.memory, distinct), is_there)

    def ids(self, place: int) -> Codes:
        """Return the ids of a column's interned texts."""
        return np.ascontiguousarray(self.columns.ids[: self.rows, place])

    def attributes(self) -> pa.Array:
        """Return the sets of attributes."""
        distinct, codes = compact_ids(self.columns.attributes[: self.rows], self.memory)
        return _dictionary_array(codes, texts_of(self.memory, distinct))

    def identifiers(self, column: int, kind: pa.DataType, *, is_needed: bool = False) -> pa.Array:
        """Return a column of identifiers of one width."""
        width = kind.byte_width
        copied = np.empty(self.rows * width, np.uint8)
        is_there = np.empty(self.rows, np.uint8)
        is_odd = gather_ids(self.raw, self.spans(column), width, copied, is_there) < 0
        if is_odd or (is_needed and not is_there.all()):
            raise _UncommonShape
        valid = pa.py_buffer(np.packbits(is_there, bitorder="little"))
        return pa.Array.from_buffers(kind, self.rows, [valid, pa.py_buffer(copied)])

    def origins(self) -> list[pa.Array]:
        """Return the columns of the records' origins."""
        distinct, codes = compact_ids(self.columns.origin[: self.rows], self.memory)
        return shared_columns(self.memory.shape(distinct), codes)


def _dictionary_array(codes: Codes, words: Any, is_there: Any = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        number_array(pa.int32(), codes, is_there), words, safe=False
    )


def _log_columns(scanned: _ScannedRequest, arrived_ns: int) -> list[pa.Array]:
    time, observed = scanned.time(TIME), scanned.time(OBSERVED)
    ts_ns = np.where(time != 0, time, np.where(observed != 0, observed, min(arrived_ns, NS_MAX)))
    kinds = {field.name: field.type for field in LOGS.schema}
    return [
        number_array(kinds["ts"], ts_ns // 1_000),
        number_array(kinds["ts_ns"], ts_ns),
        *scanned.origins(),
        number_array(kinds["time_ns"], time, time != 0),
        number_array(kinds["observed_ns"], observed, observed != 0),
        number_array(kinds["severity_number"], scanned.number(SEVERITY).astype(np.int32)),
        scanned.words(0, SEVERITY_TEXT),
        scanned.words(1, EVENT_NAME),
        *_body_columns(scanned),
        scanned.attributes(),
        number_array(kinds["dropped_attributes"], scanned.number(DROPPED)),
        scanned.identifiers(LOG_TRACE, TRACE_ID),
        scanned.identifiers(LOG_SPAN, SPAN_ID),
        number_array(kinds["flags"], scanned.number(FLAGS)),
    ]


def _body_columns(scanned: _ScannedRequest) -> tuple[pa.Array, pa.Array]:
    """Return bodies as texts, and the bodies that are not texts as typed JSON too."""
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue

    spans, kinds = scanned.spans(BODY), np.empty(scanned.rows, np.uint8)
    split_bodies(scanned.raw, spans, kinds)
    limit_bytes = scanned.memory.limits.body_bytes_max
    texts = scanned.texts(spans, kinds == TEXT_BODY, limit_bytes)
    typed = pa.nulls(scanned.rows, TEXT)
    is_other = kinds == OTHER_BODY
    if not is_other.any():
        return texts, typed
    made = [
        scanned.values.body(AnyValue.FromString(bytes(scanned.data[start:end])))
        for start, end in spans[is_other].tolist()
    ]
    mask = pa.array(is_other)
    texts = pc.replace_with_mask(texts, mask, pa.array([text for text, _ in made], TEXT))
    typed = pc.replace_with_mask(typed, mask, pa.array([text for _, text in made], TEXT))
    return texts, typed


def _span_columns(scanned: _ScannedRequest, _: int) -> list[pa.Array]:
    start, end = scanned.time(START), scanned.time(END)
    if (start == 0).any() or ((end != 0) & (end < start)).any():
        raise _UncommonShape
    kinds = {field.name: field.type for field in SPANS.schema}
    states = scanned.spans(STATE)
    limit_bytes = scanned.memory.limits.value_bytes_max
    status, message = _status_columns(scanned)
    events, links = _event_and_link_columns(scanned)
    return [
        number_array(kinds["ts"], start // 1_000),
        number_array(kinds["ts_ns"], start),
        *scanned.origins(),
        scanned.identifiers(TRACE, TRACE_ID, is_needed=True),
        scanned.identifiers(SPAN, SPAN_ID, is_needed=True),
        scanned.identifiers(PARENT, SPAN_ID),
        scanned.texts(states, states[:, 1] > states[:, 0], limit_bytes),
        scanned.words(0),
        _kind_column(scanned.number(KIND)),
        number_array(kinds["end_ns"], end, end != 0),
        number_array(kinds["duration_ns"], end - start, end != 0),
        status,
        message,
        scanned.attributes(),
        number_array(kinds["dropped_attributes"], scanned.number(SPAN_DROPPED)),
        events,
        number_array(kinds["dropped_events"], scanned.number(DROPPED_EVENTS)),
        links,
        number_array(kinds["dropped_links"], scanned.number(DROPPED_LINKS)),
        number_array(kinds["flags"], scanned.number(SPAN_FLAGS)),
    ]


def _kind_column(numbers: Any) -> pa.Array:
    distinct, codes = np.unique(numbers, return_inverse=True)
    words = pa.array([enum_name(KINDS, number) for number in distinct.tolist()], TEXT)
    return _dictionary_array(codes.astype(np.int32), words)


def _status_columns(scanned: _ScannedRequest) -> tuple[pa.Array, pa.Array]:
    """Return the codes and the messages of statuses."""
    distinct, codes = compact_ids(scanned.ids(1), scanned.memory)
    found = [scanned.memory.entries[number] for number in distinct.tolist()]
    words = pa.array([code for code, _ in found], TEXT).dictionary_encode()
    by_row = pa.array(codes)
    messages = pa.array([message for _, message in found], TEXT)
    return words.take(by_row), messages.take(by_row)


def _event_and_link_columns(scanned: _ScannedRequest) -> tuple[pa.Array, pa.Array]:
    """Return the events and links of spans, decoded by the official library."""
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    kinds = [SPANS.schema.field(name).type for name in ("events", "links")]
    is_rich = scanned.columns.is_rich[: scanned.rows]
    if not is_rich.any():
        return pa.nulls(scanned.rows, kinds[0]), pa.nulls(scanned.rows, kinds[1])
    values, tally = scanned.values, scanned.tally
    events: list[Any] = [None] * scanned.rows
    links: list[Any] = [None] * scanned.rows
    for row in np.flatnonzero(is_rich).tolist():
        start, end = scanned.columns.positions[row].tolist()
        span: Any = Span.FromString(bytes(scanned.data[start:end]))
        events[row] = [event_row(one, values, tally) for one in span.events] or None
        links[row] = [link_row(one, values, tally) for one in span.links] or None
    return pa.array(events, kinds[0]), pa.array(links, kinds[1])


@dataclass(frozen=True, slots=True)
class _RecordFormat:
    """How to decode the records of one signal."""

    table: OtlpTable
    plan: RecordPlan
    attributes_tag: int
    columns: Callable[[_ScannedRequest, int], list[pa.Array]]


_RECORD_FORMATS = {
    "logs": _RecordFormat(LOGS, _LOG_PLAN, 50, _log_columns),
    "traces": _RecordFormat(SPANS, _SPAN_PLAN, 74, _span_columns),
}
_threads = threading.local()


def decode_records(
    signal: str, data: Data, limits: DecodeLimits, arrived_ns: int
) -> DecodedRequest | None:
    """Return the rows of a request in the common shape, or None when it has another."""
    if not data:
        return None
    form, found = _RECORD_FORMATS[signal], np.frombuffer(data, np.uint8)
    memories: dict[str, RecordMemory] = _threads.__dict__.setdefault("memories", {})
    memory, pairs = memories.get(signal), None
    for _ in range(2):
        if memory is None or memory.limits != limits:
            memory = memories[signal] = _new_memory(signal, limits, pairs)
        memory.decode_new_entries()  # entries that an earlier scan added before it failed
        columns = new_record_columns(found.size, form.plan)
        plan = form.plan
        code = scan_records(found, plan.fields, plan.interned, memory.table, columns)
        if code != FULL:
            is_taken = code == 0 and memory.decode_new_entries()
            return _build_batch(signal, data, memory, columns, arrived_ns) if is_taken else None
        pairs, memory = memory.pairs, None  # clear the cache of sets, and try once more
    del memories[signal]
    return None


def _new_memory(signal: str, limits: DecodeLimits, pairs: PairCache | None) -> RecordMemory:
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    record = LogRecord if signal == "logs" else Span
    return RecordMemory(limits, record, _RECORD_FORMATS[signal].attributes_tag, pairs)


def _build_batch(
    signal: str, data: Data, memory: RecordMemory, columns: RecordColumns, arrived_ns: int
) -> DecodedRequest | None:
    from google.protobuf.message import DecodeError

    form, tally, rows = _RECORD_FORMATS[signal], Tally(signal), int(columns.counts[0])
    found = np.frombuffer(data, np.uint8)
    values = ValueRenderer(memory.limits, tally)
    scanned = _ScannedRequest(data, found, memory, columns, rows, tally, values)
    batches = {}
    if rows:
        try:
            arrays = form.columns(scanned, arrived_ns)
        except (_UncommonShape, DecodeError, UnicodeDecodeError):
            return None
        batches[form.table.name] = pa.RecordBatch.from_arrays(arrays, schema=form.table.schema)
    tally.accepted = rows
    decoded = tally.outcome(batches)
    return None if decoded.is_partial else decoded
