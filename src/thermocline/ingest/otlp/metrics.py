"""Converts metrics to rows: numbers to one table, buckets and quantiles to another.

In:   an `ExportMetricsServiceRequest` message, limits
Out:  batches of `metric_points` and `metric_histograms`, and the tally

- A point that violates the data model is refused alone, with its reason: no time, no value without
  the flag for it, buckets that do not match their bounds, no temporality.
- A point with the flag "no recorded value" is kept with null values: it ends a series.
- `series_id` is the same for two points exactly when they belong to one stream: same resource,
  scope, name, type, unit, temporality, monotonicity and attributes (64 bits of a hash: among ten
  million streams of one name, two meet with a chance of one in 370,000).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.origin import (
    NS_MAX,
    TIME_BEYOND,
    Origin,
    digest,
    is_foreign,
    scopes_with_origin,
)
from thermocline.ingest.otlp.outcome import FOREIGN, DecodedRequest, Tally
from thermocline.ingest.otlp.records import parse_identifier
from thermocline.ingest.otlp.tables import METRIC_HISTOGRAMS, METRIC_POINTS, rows_batch
from thermocline.ingest.otlp.value import ValueRenderer

SERIES_FACTOR = 0x9E37_79B9_7F4A_7C15
NO_RECORDED_VALUE = 1
WITH_TEMPORALITY = ("sum", "histogram", "exponential_histogram")
TEMPORALITIES = {1: "delta", 2: "cumulative"}

NO_TIME = "time_unix_nano is 0"
NO_VALUE = "no value"
NO_TEMPORALITY = "aggregation_temporality is unspecified"
BUCKETS_MISMATCH = "bucket_counts do not match explicit_bounds"
BOUNDS_FALL = "explicit_bounds do not rise"
COUNT_BEYOND = "a count is beyond int64"
START_LATE = "start time after time"
EXEMPLAR_BEYOND = "exemplar with a time beyond int64, emptied"
NO_DATA = "metric without data of a known kind"

_Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class MetricStream:
    """The part that all points of one metric share: its columns, and a hash of its identity."""

    columns: _Row
    name: str
    identity: int


def metrics_batches(request: Any, limits: DecodeLimits, tally: Tally) -> DecodedRequest:
    """Return the points of a request as batches."""
    values = ValueRenderer(limits, tally)
    points = PointRows(values, tally)
    for origin, scope in scopes_with_origin(request.resource_metrics, "scope_metrics", values):
        for metric in scope.metrics:
            if is_foreign(metric):
                tally.reject(FOREIGN, metric.name)
                continue
            points.add_metric(origin, metric)
    found = {METRIC_POINTS: points.numbers, METRIC_HISTOGRAMS: points.histograms}
    tally.accepted = sum(map(len, found.values()))
    return tally.outcome({t.name: rows_batch(t, rows) for t, rows in found.items() if rows})


def stream_of(origin: Origin, metric: Any, values: ValueRenderer) -> MetricStream:
    """Return the stream of a metric; its data must be of a known kind."""
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    has_temporality = kind in WITH_TEMPORALITY
    temporality = _temporality(data.aggregation_temporality) if has_temporality else None
    is_monotonic = data.is_monotonic if kind == "sum" else None
    name, unit = values.text(metric.name), values.optional_text(metric.unit)
    description = values.optional_text(metric.description)
    metadata = values.attributes(metric.metadata) if metric.metadata else None
    columns = (name, description, unit, kind, temporality, is_monotonic, metadata)
    identity = digest(
        *origin.identity, name, kind, unit or "", temporality or "", str(is_monotonic)
    )
    return MetricStream((*origin.columns, *columns), name, identity)


def series_id(identity: int, attributes: int) -> int:
    """Return the id of a series, from the hashes of its stream and of its attributes."""
    mixed = (identity + attributes * SERIES_FACTOR) & 0xFFFF_FFFF_FFFF_FFFF
    return mixed - (1 << 64) if mixed > NS_MAX else mixed


def exemplar_rows(
    exemplars: Any, values: ValueRenderer, tally: Tally
) -> list[dict[str, Any]] | None:
    """Return the exemplars of a point as the value of their column."""
    found = []
    for exemplar in exemplars:
        value, value_int = _number_value(exemplar)
        time_ns = exemplar.time_unix_nano
        if time_ns > NS_MAX:
            tally.note(EXEMPLAR_BEYOND)
            time_ns = 0
        found.append(
            {
                "ts_ns": time_ns or None,
                "value": value,
                "value_int": value_int,
                "trace_id": parse_identifier(exemplar.trace_id, 16, tally),
                "span_id": parse_identifier(exemplar.span_id, 8, tally),
                "attributes": values.attributes(exemplar.filtered_attributes),
            }
        )
    return found or None


class PointRows:
    """Collects the rows of points, metric by metric."""

    def __init__(self, values: ValueRenderer, tally: Tally) -> None:
        self.numbers: list[_Row] = []
        self.histograms: list[_Row] = []
        self._values = values
        self._tally = tally
        self._adders: dict[str, Callable[[MetricStream, Any], str | None]] = {
            "gauge": self._add_number,
            "sum": self._add_number,
            "histogram": self._add_histogram,
            "exponential_histogram": self._add_exponential,
            "summary": self._add_summary,
        }

    def add_metric(self, origin: Origin, metric: Any) -> None:
        """Add the points of one metric; invalid points are counted in the tally."""
        kind = metric.WhichOneof("data")
        if kind is None:
            self._tally.note(NO_DATA)
            return
        data = getattr(metric, kind)
        stream = stream_of(origin, metric, self._values)
        if kind in WITH_TEMPORALITY and not data.aggregation_temporality:
            if data.data_points:
                self._tally.reject(NO_TEMPORALITY, stream.name, len(data.data_points))
            return
        add = self._adders[kind]
        for point in data.data_points:
            reason = _time_fault(point) or add(stream, point)
            if reason:
                self._tally.reject(reason, stream.name)
            elif point.start_time_unix_nano > point.time_unix_nano:
                self._tally.note(START_LATE)

    def _shared_cells(self, stream: MetricStream, point: Any, exemplars: Any) -> _Row:
        time_ns = point.time_unix_nano
        attributes = self._values.attributes(point.attributes)
        return (
            time_ns // 1_000,
            time_ns,
            *stream.columns,
            series_id(stream.identity, digest(attributes)),
            attributes,
            point.start_time_unix_nano or None,
            point.flags,
            exemplar_rows(exemplars, self._values, self._tally),
        )

    def _add_number(self, stream: MetricStream, point: Any) -> str | None:
        value = value_int = None
        if not point.flags & NO_RECORDED_VALUE:
            value, value_int = _number_value(point)
            if value is None:
                return NO_VALUE
        self.numbers.append((*self._shared_cells(stream, point, point.exemplars), value, value_int))
        return None

    def _add_histogram(self, stream: MetricStream, point: Any) -> str | None:
        cells: _Row = (None,) * 6
        if not point.flags & NO_RECORDED_VALUE:
            counts, bounds = list(point.bucket_counts), list(point.explicit_bounds)
            if len(counts) != len(bounds) + 1 and (counts or bounds):
                return BUCKETS_MISMATCH
            if not all(low < high for low, high in pairwise(bounds)):
                return BOUNDS_FALL
            if max(point.count, *counts, 0) > NS_MAX:
                return COUNT_BEYOND
            cells = (point.count, *_sum_min_max(point), bounds, counts)
        shared = self._shared_cells(stream, point, point.exemplars)
        self.histograms.append((*shared, *cells, *(None,) * 8))
        return None

    def _add_exponential(self, stream: MetricStream, point: Any) -> str | None:
        cells: _Row = (None,) * 13
        if not point.flags & NO_RECORDED_VALUE:
            sides = [_buckets(point, "positive"), _buckets(point, "negative")]
            counts = [point.count, point.zero_count, *(c for _, side in sides for c in side or ())]
            if max(counts) > NS_MAX:
                return COUNT_BEYOND
            zero = (point.scale, point.zero_count, point.zero_threshold)
            cells = (point.count, *_sum_min_max(point), None, None, *zero, *sides[0], *sides[1])
        shared = self._shared_cells(stream, point, point.exemplars)
        self.histograms.append((*shared, *cells, None))
        return None

    def _add_summary(self, stream: MetricStream, point: Any) -> str | None:
        count = total = quantiles = None
        if not point.flags & NO_RECORDED_VALUE:
            if point.count > NS_MAX:
                return COUNT_BEYOND
            count, total = point.count, point.sum
            quantiles = [
                {"quantile": one.quantile, "value": one.value} for one in point.quantile_values
            ]
        shared = self._shared_cells(stream, point, ())
        self.histograms.append((*shared, count, total, *(None,) * 11, quantiles))
        return None


def _time_fault(point: Any) -> str | None:
    if not point.time_unix_nano:
        return NO_TIME
    if point.time_unix_nano > NS_MAX or point.start_time_unix_nano > NS_MAX:
        return TIME_BEYOND
    return None


def _number_value(point: Any) -> tuple[float | None, int | None]:
    kind = point.WhichOneof("value")
    if kind == "as_int":
        return float(point.as_int), point.as_int
    return (point.as_double if kind == "as_double" else None), None


def _sum_min_max(point: Any) -> _Row:
    return tuple(
        getattr(point, name) if point.HasField(name) else None for name in ("sum", "min", "max")
    )


def _buckets(point: Any, side: str) -> tuple[int | None, list[int] | None]:
    if not point.HasField(side):
        return None, None
    buckets = getattr(point, side)
    return buckets.offset, list(buckets.bucket_counts)


def _temporality(number: int) -> str:
    return TEMPORALITIES.get(number, str(number))
