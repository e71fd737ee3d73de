"""The tables of OpenTelemetry's signals: names, columns, and the options to create each.

In:   nothing
Out:  `TABLES` by name: Arrow schema, time column, bucket, entity columns

How values are kept:

- **Times** are exact: `ts_ns` is the int64 of nanoseconds. `ts`, the time column, is the same
  instant truncated to microseconds, which every engine can read. An absent time is null.
- **Attributes** are JSON text, one canonical text for one set, keys in order. Exporters repeat
  few distinct sets, so the column is a dictionary: the text is made and stored once. Types are
  kept: a string is a JSON string, a bool a bool, an int64 a number without point or exponent, a
  double a number with one, an array an array, a key-value list an object, an empty value null.
  A value that JSON cannot express is an object with one key: `{"bytesValue": base64}`,
  `{"doubleValue": "NaN" | "Infinity" | "-Infinity"}`; a key-value list that would look like one of
  them is written `{"kvlistValue": {...}}`. `value.py` reads all of these back.
- **Numbers**: `value` is the double that SQL works with; `value_int` is set, exactly, where the
  point was an int64. Unsigned counts beyond int64 are refused, so every integer is an int64.
- **Identifiers** are bytes: 16 for traces, 8 for spans; null when absent.
- **Enumerations** are texts in lower case; a number without a known name is written as digits.
- An absent text (in protobuf the same as an empty one) is null, except names.

`docs/otlp.md` documents the columns; a test compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

WORD = pa.dictionary(pa.int32(), pa.string())
TRACE_ID = pa.binary(16)
SPAN_ID = pa.binary(8)
INT = pa.int64()
DOUBLE = pa.float64()
TEXT = pa.string()

EXEMPLAR = pa.struct(
    [
        ("ts_ns", INT),
        ("value", DOUBLE),
        ("value_int", INT),
        ("trace_id", TRACE_ID),
        ("span_id", SPAN_ID),
        ("attributes", TEXT),
    ]
)
QUANTILE = pa.struct([("quantile", DOUBLE), ("value", DOUBLE)])
EVENT = pa.struct(
    [("ts_ns", INT), ("name", TEXT), ("attributes", TEXT), ("dropped_attributes", INT)]
)
LINK = pa.struct(
    [
        ("trace_id", TRACE_ID),
        ("span_id", SPAN_ID),
        ("trace_state", TEXT),
        ("attributes", TEXT),
        ("dropped_attributes", INT),
        ("flags", INT),
    ]
)

_TIME = [("ts", pa.timestamp("us", tz="UTC")), ("ts_ns", INT)]
ORIGIN = [
    ("service_name", WORD),
    ("host_name", WORD),
    ("resource", WORD),
    ("resource_dropped_attributes", INT),
    ("resource_entities", WORD),
    ("resource_schema_url", WORD),
    ("scope_name", WORD),
    ("scope_version", WORD),
    ("scope_attributes", WORD),
    ("scope_dropped_attributes", INT),
    ("scope_schema_url", WORD),
]
METRIC = [
    ("metric", WORD),
    ("description", WORD),
    ("unit", WORD),
    ("type", WORD),
    ("temporality", WORD),
    ("is_monotonic", pa.bool_()),
    ("metric_metadata", WORD),
]
POINT = [
    ("series_id", INT),
    ("attributes", WORD),
    ("start_ns", INT),
    ("flags", INT),
    ("exemplars", pa.list_(EXEMPLAR)),
]
_NUMBER = [("value", DOUBLE), ("value_int", INT)]
_HISTOGRAM = [
    ("count", INT),
    ("sum", DOUBLE),
    ("min", DOUBLE),
    ("max", DOUBLE),
    ("bounds", pa.list_(DOUBLE)),
    ("bucket_counts", pa.list_(INT)),
    ("scale", pa.int32()),
    ("zero_count", INT),
    ("zero_threshold", DOUBLE),
    ("positive_offset", pa.int32()),
    ("positive_counts", pa.list_(INT)),
    ("negative_offset", pa.int32()),
    ("negative_counts", pa.list_(INT)),
    ("quantiles", pa.list_(QUANTILE)),
]
_RECORD = [
    ("time_ns", INT),
    ("observed_ns", INT),
    ("severity_number", pa.int32()),
    ("severity_text", WORD),
    ("event_name", WORD),
    ("body", TEXT),
    ("body_json", TEXT),
    ("attributes", WORD),
    ("dropped_attributes", INT),
    ("trace_id", TRACE_ID),
    ("span_id", SPAN_ID),
    ("flags", INT),
]
_SPAN = [
    ("trace_id", TRACE_ID),
    ("span_id", SPAN_ID),
    ("parent_span_id", SPAN_ID),
    ("trace_state", TEXT),
    ("name", WORD),
    ("kind", WORD),
    ("end_ns", INT),
    ("duration_ns", INT),
    ("status_code", WORD),
    ("status_message", TEXT),
    ("attributes", WORD),
    ("dropped_attributes", INT),
    ("events", pa.list_(EVENT)),
    ("dropped_events", INT),
    ("links", pa.list_(LINK)),
    ("dropped_links", INT),
    ("flags", INT),
]


@dataclass(frozen=True, slots=True)
class OtlpTable:
    """One table of a signal, with the options to create it."""

    name: str
    schema: pa.Schema
    time_column: str = "ts"
    bucket: str = "1m"
    entity_columns: tuple[str, ...] = ("service_name",)
    overlap: str = "allow"
    signal: str = "metrics"
    token_columns: tuple[str, ...] = ()

    def creation_options(self, retention_s: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return the keyword arguments of `create_table` for this table.

        `retention_s` says how long the rows of each signal are kept; 0 or none keeps all.
        """
        kept_s = (retention_s or {}).get(self.signal, 0.0)
        kept = {"retention": timedelta(seconds=round(kept_s))} if kept_s else {}
        return {
            **kept,
            "time_column": self.time_column,
            "bucket": self.bucket,
            "entity_columns": self.entity_columns,
            "overlap": self.overlap,
            **({"token_columns": self.token_columns} if self.token_columns else {}),
        }


METRIC_POINTS = OtlpTable("metric_points", pa.schema([*_TIME, *ORIGIN, *METRIC, *POINT, *_NUMBER]))
METRIC_HISTOGRAMS = OtlpTable(
    "metric_histograms", pa.schema([*_TIME, *ORIGIN, *METRIC, *POINT, *_HISTOGRAM])
)
LOGS = OtlpTable(
    "logs",
    pa.schema([*_TIME, *ORIGIN, *_RECORD]),
    signal="logs",
    token_columns=("body", "body_json"),
)
SPANS = OtlpTable("spans", pa.schema([*_TIME, *ORIGIN, *_SPAN]), signal="spans")

TABLES = {table.name: table for table in (METRIC_POINTS, METRIC_HISTOGRAMS, LOGS, SPANS)}


def rows_batch(table: OtlpTable, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows, each a tuple in the order of the table's columns, as one batch."""
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, table.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)
