"""Builds the batches of metrics requests of the common shape.

In:   a scanned `ExportMetricsServiceRequest`: columns of number points, items of other kinds
Out:  batches of `metric_points` and `metric_histograms`

The official library decodes exemplars and the items of other kinds, and each distinct metric once.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint

from thermocline.ingest.inflate import Data
from thermocline.ingest.otlp.compiled.memory import (
    DecodeMemory,
    ScannedRequest,
    SignalPlan,
    decode_request,
    number_array,
)
from thermocline.ingest.otlp.compiled.scan_items import METRIC, POINTS
from thermocline.ingest.otlp.compiled.scan_metrics import (
    GAUGE,
    INT,
    METRIC_KEY_BYTES,
    PointColumns,
    scan_points,
)
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.metrics import (
    SERIES_FACTOR,
    MetricStream,
    PointRows,
    exemplar_rows,
    stream_of,
)
from thermocline.ingest.otlp.outcome import DecodedRequest
from thermocline.ingest.otlp.tables import METRIC as METRIC_FIELDS
from thermocline.ingest.otlp.tables import METRIC_HISTOGRAMS, METRIC_POINTS, rows_batch
from thermocline.ingest.otlp.tables import ORIGIN as ORIGIN_FIELDS
from thermocline.ingest.otlp.value import ValueRenderer

POINT_ATTRIBUTES = 7 << 3 | 2  # the tag of a point's attributes

_KINDS = {field.name: field.type for field in METRIC_POINTS.schema}


def decode_metrics(data: Data, limits: DecodeLimits) -> DecodedRequest | None:
    """Return the rows of a request in the common shape, or None when it has another."""
    return decode_request(_PLAN, data, limits, 0)


def _decode_stream(
    memory: DecodeMemory, number: int, raw: bytes, values: ValueRenderer
) -> MetricStream | None:
    origin, kind, form = (int(part) for part in np.frombuffer(raw, "<u4", 3))
    metric: Any = Metric.FromString(raw[METRIC_KEY_BYTES:])
    if kind == GAUGE:
        metric.gauge.SetInParent()
    else:
        metric.sum.aggregation_temporality = form >> 1
        metric.sum.is_monotonic = bool(form & 1)
    if memory.entries[origin] is None:
        return None
    stream = stream_of(memory.entries[origin], metric, values)
    memory.digests[number] = stream.identity
    return stream


def _build_batches(scanned: ScannedRequest) -> dict[str, pa.RecordBatch]:
    columns: PointColumns = scanned.columns
    rows, with_exemplars, others = scanned.items.counts[POINTS:].tolist()
    values, tally = scanned.values, scanned.tally
    if others or with_exemplars:
        scanned.check_parts()
    points = PointRows(values, tally)
    for start, end, origin in scanned.items.rows[:others].tolist():
        metric = Metric.FromString(bytes(scanned.data[start:end]))
        points.add_metric(scanned.memory.entries[origin], metric)
    exemplars: dict[int, Any] = {}
    for row, start, end in columns.exemplars[:with_exemplars].tolist():
        point = NumberDataPoint.FromString(bytes(scanned.data[start:end]))
        exemplars[row] = exemplar_rows(point.exemplars, values, tally)
    batches = {}
    if rows:
        batches[METRIC_POINTS.name] = _points_batch(scanned.memory, columns, rows, exemplars)
    if points.histograms:
        batches[METRIC_HISTOGRAMS.name] = rows_batch(METRIC_HISTOGRAMS, points.histograms)
    return batches


def _points_batch(
    memory: DecodeMemory, columns: PointColumns, rows: int, exemplars: dict[int, Any]
) -> pa.RecordBatch:
    metrics, sets = columns.metric[:rows], columns.attributes[:rows]
    time, start = columns.time[:rows].view(np.int64), columns.start[:rows].view(np.int64)
    kind, bits = columns.kind[:rows], columns.bits[:rows]
    numbers = np.where(kind == INT, bits.view(np.int64).astype(np.float64), bits.view(np.float64))
    series = memory.digests[metrics] + memory.digests[sets] * np.uint64(SERIES_FACTOR)
    arrays = [
        number_array(_KINDS["ts"], time // 1_000),
        number_array(_KINDS["ts_ns"], time),
        *memory.shared_columns(metrics),
        number_array(_KINDS["series_id"], series),
        memory.texts(sets),
        number_array(_KINDS["start_ns"], start, start != 0),
        number_array(_KINDS["flags"], columns.flags[:rows]),
        pa.array([exemplars.get(row) for row in range(rows)], _KINDS["exemplars"])
        if exemplars
        else pa.nulls(rows, _KINDS["exemplars"]),
        number_array(_KINDS["value"], numbers, kind != 0),
        number_array(_KINDS["value_int"], bits, kind == INT),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=METRIC_POINTS.schema)


_PLAN = SignalPlan(
    "metrics",
    NumberDataPoint,
    POINT_ATTRIBUTES,
    [*ORIGIN_FIELDS, *METRIC_FIELDS],
    {METRIC: _decode_stream},
    scan_points,
    _build_batches,
)
