"""Builds the batches of logs and traces requests of the common shape.

In:   a scanned `Export{Logs,Trace}ServiceRequest`: the columns of its records
Out:  a batch of `logs` or of `spans`

- Every distinct name and status is decoded once, as attributes and origins are.
- Texts that rarely repeat, such as bodies, are copied after a check that they are UTF-8 and within
  the limits.
- The official library decodes each body that is not a text, and the events and links of spans.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.compiled.memory import (
    Codes,
    DecodeMemory,
    ScannedRequest,
    SignalPlan,
    UncommonShape,
    decode_request,
    dictionary_array,
    number_array,
    text_array,
)
from thermocline.ingest.otlp.compiled.numba_support import Bytes
from thermocline.ingest.otlp.compiled.protobuf_wire import InternTable
from thermocline.ingest.otlp.compiled.scan_items import (
    ITEMS,
    STATUS,
    WORD_TEXT,
    Positions,
    RequestItems,
)
from thermocline.ingest.otlp.compiled.scan_records import (
    OTHER_BODY,
    TEXT_BODY,
    RecordColumns,
    RecordPlan,
    gather_ids,
    gather_texts,
    new_plan,
    new_record_columns,
    scan_records,
    split_bodies,
)
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.origin import NS_MAX
from thermocline.ingest.otlp.outcome import DecodedRequest
from thermocline.ingest.otlp.spans import KINDS, STATUS_CODES, enum_name, event_row, link_row
from thermocline.ingest.otlp.tables import LOGS, SPAN_ID, SPANS, TEXT, TRACE_ID, OtlpTable
from thermocline.ingest.otlp.tables import ORIGIN as ORIGIN_FIELDS
from thermocline.ingest.otlp.value import ValueRenderer

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


class _ScannedRecords:
    """The columns of a scanned request as Arrow arrays."""

    def __init__(self, scanned: ScannedRequest) -> None:
        self.scanned = scanned
        self.memory, self.raw = scanned.memory, scanned.raw
        self.columns: RecordColumns = scanned.columns
        self.rows = int(scanned.items.counts[ITEMS])

    def number(self, column: int) -> Any:
        """Return a column of numbers as int64."""
        return np.ascontiguousarray(self.columns.numbers[: self.rows, column]).view(np.int64)

    def time(self, column: int) -> Any:
        """Return a column of times; a time beyond int64 is left to the official decoder."""
        found = self.number(column)
        if (found < 0).any():
            raise UncommonShape
        return found

    def spans(self, column: int) -> Positions:
        """Return where the texts of a column start and end."""
        return np.ascontiguousarray(self.columns.spans[: self.rows, column])

    def texts(self, spans: Positions, is_there: Any, limit_bytes: int) -> pa.Array:
        """Return a column of texts, checked for UTF-8 and length."""
        lengths = np.where(is_there, spans[:, 1] - spans[:, 0], 0)
        if lengths.max(initial=0) > limit_bytes:
            raise UncommonShape
        made = text_array(lengths, partial(gather_texts, self.raw, spans), is_there)
        try:
            made.validate(full=True)
        except pa.ArrowInvalid as error:
            raise UncommonShape from error
        return made

    def words(self, place: int, column: int | None = None) -> pa.Array:
        """Return a column of interned texts; with `column`, texts that are empty there are null."""
        spans = None if column is None else self.columns.spans[: self.rows, column]
        is_there = None if spans is None else spans[:, 1] > spans[:, 0]
        return self.memory.texts(self.ids(place), is_there)

    def ids(self, place: int) -> Codes:
        """Return the ids of a column's interned texts."""
        return np.ascontiguousarray(self.columns.ids[: self.rows, place])

    def attributes(self) -> pa.Array:
        """Return the sets of attributes."""
        return self.memory.texts(self.columns.attributes[: self.rows])

    def identifiers(self, column: int, kind: pa.DataType, *, is_needed: bool = False) -> pa.Array:
        """Return a column of identifiers of one width."""
        width = kind.byte_width
        copied = np.empty(self.rows * width, np.uint8)
        is_there = np.empty(self.rows, np.uint8)
        is_odd = gather_ids(self.raw, self.spans(column), width, copied, is_there) < 0
        if is_odd or (is_needed and not is_there.all()):
            raise UncommonShape
        valid = pa.py_buffer(np.packbits(is_there, bitorder="little"))
        return pa.Array.from_buffers(kind, self.rows, [valid, pa.py_buffer(copied)])

    def origins(self) -> list[pa.Array]:
        """Return the columns of the records' origins."""
        origins = np.ascontiguousarray(self.scanned.items.rows[: self.rows, 2])
        return self.memory.shared_columns(origins)


def _log_columns(records: _ScannedRecords) -> list[pa.Array]:
    time, observed = records.time(TIME), records.time(OBSERVED)
    arrived = min(records.scanned.arrived_ns, NS_MAX)
    ts_ns = np.where(time != 0, time, np.where(observed != 0, observed, arrived))
    kinds = {field.name: field.type for field in LOGS.schema}
    return [
        number_array(kinds["ts"], ts_ns // 1_000),
        number_array(kinds["ts_ns"], ts_ns),
        *records.origins(),
        number_array(kinds["time_ns"], time, time != 0),
        number_array(kinds["observed_ns"], observed, observed != 0),
        number_array(kinds["severity_number"], records.number(SEVERITY).astype(np.int32)),
        records.words(0, SEVERITY_TEXT),
        records.words(1, EVENT_NAME),
        *_body_columns(records),
        records.attributes(),
        number_array(kinds["dropped_attributes"], records.number(DROPPED)),
        records.identifiers(LOG_TRACE, TRACE_ID),
        records.identifiers(LOG_SPAN, SPAN_ID),
        number_array(kinds["flags"], records.number(FLAGS)),
    ]


def _body_columns(records: _ScannedRecords) -> tuple[pa.Array, pa.Array]:
    """Return bodies as texts, and the bodies that are not texts as typed JSON too."""
    spans, kinds = records.spans(BODY), np.empty(records.rows, np.uint8)
    split_bodies(records.raw, spans, kinds)
    limit_bytes = records.memory.limits.body_bytes_max
    texts = records.texts(spans, kinds == TEXT_BODY, limit_bytes)
    typed = pa.nulls(records.rows, TEXT)
    is_other = kinds == OTHER_BODY
    if not is_other.any():
        return texts, typed
    records.scanned.check_parts()
    made = [
        records.scanned.values.body(AnyValue.FromString(bytes(records.scanned.data[start:end])))
        for start, end in spans[is_other].tolist()
    ]
    mask = pa.array(is_other)
    texts = pc.replace_with_mask(texts, mask, pa.array([text for text, _ in made], TEXT))
    typed = pc.replace_with_mask(typed, mask, pa.array([text for _, text in made], TEXT))
    return texts, typed


def _span_columns(records: _ScannedRecords) -> list[pa.Array]:
    start, end = records.time(START), records.time(END)
    if (start == 0).any() or ((end != 0) & (end < start)).any():
        raise UncommonShape
    kinds = {field.name: field.type for field in SPANS.schema}
    states = records.spans(STATE)
    limit_bytes = records.memory.limits.value_bytes_max
    status, message = _status_columns(records)
    events, links = _event_and_link_columns(records)
    return [
        number_array(kinds["ts"], start // 1_000),
        number_array(kinds["ts_ns"], start),
        *records.origins(),
        records.identifiers(TRACE, TRACE_ID, is_needed=True),
        records.identifiers(SPAN, SPAN_ID, is_needed=True),
        records.identifiers(PARENT, SPAN_ID),
        records.texts(states, states[:, 1] > states[:, 0], limit_bytes),
        records.words(0),
        _kind_column(records.number(KIND)),
        number_array(kinds["end_ns"], end, end != 0),
        number_array(kinds["duration_ns"], end - start, end != 0),
        status,
        message,
        records.attributes(),
        number_array(kinds["dropped_attributes"], records.number(SPAN_DROPPED)),
        events,
        number_array(kinds["dropped_events"], records.number(DROPPED_EVENTS)),
        links,
        number_array(kinds["dropped_links"], records.number(DROPPED_LINKS)),
        number_array(kinds["flags"], records.number(SPAN_FLAGS)),
    ]


def _kind_column(numbers: Any) -> pa.Array:
    distinct, codes = np.unique(numbers, return_inverse=True)
    words = pa.array([enum_name(KINDS, number) for number in distinct.tolist()], TEXT)
    return dictionary_array(codes.astype(np.int32), words)


def _status_columns(records: _ScannedRecords) -> tuple[pa.Array, pa.Array]:
    """Return the codes and the messages of statuses."""
    distinct, codes = records.memory.compact(records.ids(1))
    found = [records.memory.entries[number] for number in distinct.tolist()]
    words = pa.array([code for code, _ in found], TEXT).dictionary_encode()
    by_row = pa.array(codes)
    messages = pa.array([message for _, message in found], TEXT)
    return words.take(by_row), messages.take(by_row)


def _event_and_link_columns(records: _ScannedRecords) -> tuple[pa.Array, pa.Array]:
    """Return the events and links of spans, decoded by the official library."""
    kinds = [SPANS.schema.field(name).type for name in ("events", "links")]
    is_rich = records.columns.is_rich[: records.rows]
    if not is_rich.any():
        return pa.nulls(records.rows, kinds[0]), pa.nulls(records.rows, kinds[1])
    scanned = records.scanned
    scanned.check_parts()
    values, tally = scanned.values, scanned.tally
    events: list[Any] = [None] * records.rows
    links: list[Any] = [None] * records.rows
    for row in np.flatnonzero(is_rich).tolist():
        start, end, _ = scanned.items.rows[row].tolist()
        span: Any = Span.FromString(bytes(scanned.data[start:end]))
        events[row] = [event_row(one, values, tally) for one in span.events] or None
        links[row] = [link_row(one, values, tally) for one in span.links] or None
    return pa.array(events, kinds[0]), pa.array(links, kinds[1])


def decode_records(
    signal: str, data: Data, limits: DecodeLimits, arrived_ns: int
) -> DecodedRequest | None:
    """Return the rows of a request in the common shape, or None when it has another."""
    return decode_request(_PLANS[signal], data, limits, arrived_ns)


def _scan(
    plan: RecordPlan, raw: Bytes, table: InternTable, items: RequestItems, _items_max: int
) -> tuple[int, RecordColumns]:
    columns = new_record_columns(items.rows.shape[0], plan)
    return scan_records(raw, plan, table, items, columns), columns


def _decode_word(_: DecodeMemory, _number: int, raw: bytes, values: ValueRenderer) -> str:
    return values.text(raw.decode())


def _decode_status(
    _: DecodeMemory, _number: int, raw: bytes, values: ValueRenderer
) -> tuple[str, str | None]:
    status: Any = Status.FromString(raw)
    return enum_name(STATUS_CODES, status.code), values.optional_text(status.message)


def _build_batches(
    table: OtlpTable,
    columns: Callable[[_ScannedRecords], list[pa.Array]],
    scanned: ScannedRequest,
) -> dict[str, pa.RecordBatch]:
    if not scanned.items.counts[ITEMS]:
        return {}
    arrays = columns(_ScannedRecords(scanned))
    return {table.name: pa.RecordBatch.from_arrays(arrays, schema=table.schema)}


_PLANS = {
    "logs": SignalPlan(
        "logs",
        LogRecord,
        50,
        ORIGIN_FIELDS,
        {WORD_TEXT: _decode_word},
        partial(_scan, _LOG_PLAN),
        partial(_build_batches, LOGS, _log_columns),
    ),
    "traces": SignalPlan(
        "traces",
        Span,
        74,
        ORIGIN_FIELDS,
        {WORD_TEXT: _decode_word, STATUS: _decode_status},
        partial(_scan, _SPAN_PLAN),
        partial(_build_batches, SPANS, _span_columns),
    ),
}
