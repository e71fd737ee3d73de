"""Verbs that make OTLP requests: by hand, at random, and in JSON as OTLP writes it."""

import base64
import math

import orjson
from google.protobuf.json_format import MessageToDict
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

REQUESTS = {
    "metrics": ExportMetricsServiceRequest,
    "logs": ExportLogsServiceRequest,
    "traces": ExportTraceServiceRequest,
}
NOW_NS = 1_763_200_000_123_456_789
TRACE_ID, SPAN_ID = bytes(range(1, 17)), bytes(range(1, 9))


def any_value(value):
    """Return a Python value as an `AnyValue`."""
    if value is None:
        return AnyValue()
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    made = AnyValue()
    if isinstance(value, list):
        made.array_value.SetInParent()
        made.array_value.values.extend(any_value(one) for one in value)
    else:
        made.kvlist_value.SetInParent()
        made.kvlist_value.values.extend(pairs(value))
    return made


def pairs(attributes):
    """Return attributes as `KeyValue` messages."""
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def gauge_request(points=1, *, attributes=None, resource=None, name="temperature"):
    """Return a metrics request with one gauge of this many points."""
    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.resource.attributes.extend(pairs(resource or {"service.name": "shop"}))
    metric = group.scope_metrics.add().metrics.add(name=name, unit="Cel")
    metric.gauge.SetInParent()
    for place in range(points):
        point = metric.gauge.data_points.add(time_unix_nano=NOW_NS + place, as_double=place + 0.5)
        point.attributes.extend(pairs(attributes or {"room": f"r{place}"}))
    return request


def log_request(**fields):
    """Return a logs request with one record of these fields."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    scope.log_records.add(**{"time_unix_nano": NOW_NS, **fields})
    return request


def span_request(**fields):
    """Return a trace request with one span of these fields."""
    request = ExportTraceServiceRequest()
    given = {
        "trace_id": TRACE_ID,
        "span_id": SPAN_ID,
        "name": "pay",
        "start_time_unix_nano": NOW_NS,
        "end_time_unix_nano": NOW_NS + 5,
    }
    request.resource_spans.add().scope_spans.add().spans.add(**{**given, **fields})
    return request


def varint(value):
    """Return a number as protobuf writes it."""
    written = b""
    while value > 127:
        written += bytes([value & 127 | 128])
        value >>= 7
    return written + bytes([value])


def field(number, data):
    """Return a field of bytes, such as a message inside another."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def nested_log_bytes(depth):
    """Return a logs request whose body is an array in an array, and so on."""
    value = b"\x18\x01"
    for _ in range(depth):
        value = field(5, field(1, value))
    return field(1, field(2, field(2, field(5, value))))


def otlp_json(message):
    """Return a message as OTLP's JSON: protobuf's, but with ids in hex and enums as integers."""
    return orjson.dumps(_hex_ids(MessageToDict(message, use_integers_for_enums=True)))


def _hex_ids(value):
    if isinstance(value, list):
        return [_hex_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(one).hex()
        if key in ("traceId", "spanId", "parentSpanId")
        else _hex_ids(one)
        for key, one in value.items()
    }


def batches_of(decoded):
    """Return the comparable parts of an outcome: rows, counts and the message."""
    tables = {name: comparable(batch.to_pylist()) for name, batch in decoded.batches.items()}
    return tables, decoded.accepted, decoded.rejected, decoded.message


def comparable(value):
    """Return a value in which NaN equals NaN and 0.0 differs from -0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    return value


# Requests at random: any field may be absent, at its edge, or wrong.

TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(["", "a", "service.name", "host.name", "\0"])
)
INTS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([0, 1, -1, 1 << 53]))
DOUBLES = st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 1e16, 1.0, math.nan, math.inf]))


def mostly(good, *wrong):
    """Return values that are good nine times of ten."""
    return st.integers(0, 9).flatmap(lambda n: good if n else st.sampled_from(wrong))


TIMES = mostly(
    st.one_of(st.integers(NOW_NS, (1 << 63) - 1), st.sampled_from([1, (1 << 63) - 1])),
    *(0, 1 << 63, (1 << 64) - 1),
)
COUNTS = mostly(st.integers(0, (1 << 63) - 1), 1 << 63, (1 << 64) - 1)
SMALL = st.one_of(st.integers(0, 3), st.sampled_from([(1 << 32) - 1]))
TRACE_IDS = mostly(st.binary(min_size=16, max_size=16), b"", bytes(16), b"ab")
SPAN_IDS = mostly(st.binary(min_size=8, max_size=8), b"", bytes(8), b"ab")
VALUES = st.recursive(
    st.one_of(TEXTS, INTS, DOUBLES, st.booleans(), st.binary(max_size=5), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(TEXTS, st.sampled_from(["bytesValue", "doubleValue", "kvlistValue"])),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
KEY_VALUES = st.lists(
    st.builds(lambda key, value: KeyValue(key=key, value=any_value(value)), TEXTS, VALUES),
    max_size=4,
)
_BY_NAME = {
    "start_time_unix_nano": mostly(st.integers(1, NOW_NS), 0, (1 << 63) - 1, 1 << 63),
    "trace_id": TRACE_IDS,
    "span_id": SPAN_IDS,
    "parent_span_id": SPAN_IDS,
    "aggregation_temporality": mostly(st.integers(1, 3), 0),
    "severity_number": st.integers(0, 30),
    "kind": st.integers(0, 8),
    "code": st.integers(0, 4),
    "bytes_value": st.binary(max_size=5),
}
_BY_TYPE = {
    1: DOUBLES,
    3: INTS,
    4: COUNTS,
    5: st.integers(-(1 << 31), (1 << 31) - 1),
    6: TIMES,
    7: SMALL,
    8: st.booleans(),
    9: TEXTS,
    13: SMALL,
    16: INTS,
    17: st.integers(-(1 << 31), (1 << 31) - 1),
}


@st.composite
def messages(draw, kind, density=0.8):
    """Return a random message of a kind, built from its descriptor."""
    message = kind()
    fill(draw, message, density)
    return message


# The messages down to the items are always present, or a request would rarely have an item.
_TREE = frozenset(
    {
        *("resource_metrics", "scope_metrics", "metrics", "data_points"),
        *("resource_logs", "scope_logs", "log_records"),
        *("resource_spans", "scope_spans", "spans"),
    }
)
_NEEDED = frozenset(
    {
        *("time_unix_nano", "start_time_unix_nano", "aggregation_temporality"),
        *("trace_id", "span_id"),
    }
)


def fill(draw, message, density):
    """Set fields of a message at random; of a oneof, any one member."""
    choices = [one for one in message.DESCRIPTOR.oneofs if len(one.fields) > 1]
    for choice in choices:
        if draw(st.integers(1, 10)) > 1:
            _fill_field(draw, message, draw(st.sampled_from(list(choice.fields))), density)
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof in choices:
            continue
        is_needed = field.name in _TREE or field.name in _NEEDED
        if is_needed or draw(st.integers(1, 10)) <= density * 10:
            _fill_field(draw, message, field, density)
    if message.DESCRIPTOR.name == "HistogramDataPoint" and draw(st.integers(0, 9)):
        bounds = sorted(draw(st.sets(st.floats(allow_nan=False), max_size=3)))
        message.explicit_bounds[:] = bounds
        counts = st.lists(COUNTS, min_size=len(bounds) + 1, max_size=len(bounds) + 1)
        message.bucket_counts[:] = draw(counts)


def _fill_field(draw, message, field, density):
    kind = field.message_type
    if kind is not None and kind.name == "KeyValue":
        getattr(message, field.name).extend(draw(KEY_VALUES))
    elif kind is not None and kind.name == "AnyValue":
        getattr(message, field.name).CopyFrom(any_value(draw(VALUES)))
    elif kind is not None and field.is_repeated:
        for _ in range(draw(st.integers(1 if field.name in _TREE else 0, 2))):
            fill(draw, getattr(message, field.name).add(), density)
    elif kind is not None:
        getattr(message, field.name).SetInParent()
        fill(draw, getattr(message, field.name), density)
    else:
        values = _BY_NAME[field.name] if field.name in _BY_NAME else _BY_TYPE[field.type]
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(values, max_size=3)))
        else:
            setattr(message, field.name, draw(values))


def read_attributes(text):
    """Return the attributes of a column's text as Python values: the inverse of rendering."""
    return {key: _restore_value(value) for key, value in orjson.loads(text).items()}


def read_value(text):
    """Return the value of a typed JSON text, such as `body_json`."""
    return _restore_value(orjson.loads(text))


def _restore_value(value):
    if isinstance(value, list):
        return [_restore_value(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(key, held)] = value.items()
        if key == "bytesValue":
            return base64.b64decode(held)
        if key == "doubleValue":
            return float(held)
        if key == "kvlistValue":
            value = held
    return {key: _restore_value(one) for key, one in value.items()}
