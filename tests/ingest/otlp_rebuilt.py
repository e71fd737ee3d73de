"""Converts rows back to OTLP messages, to prove that nothing was lost."""

import math

import orjson
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ingest.otlp_requests import any_value, pairs, read_attributes, read_value
from thermocline.ingest.otlp.spans import KINDS, STATUS_CODES

TEMPORALITIES = ("unspecified", "delta", "cumulative")


def items(request):
    """Yield every item of a request as a separate request."""
    groups = request.DESCRIPTOR.fields[0].name
    for group in getattr(request, groups):
        scopes = group.DESCRIPTOR.fields[1].name
        for scope in getattr(group, scopes):
            leaves = scope.DESCRIPTOR.fields[1].name
            for leaf in getattr(scope, leaves):
                for part in _parts(leaf):
                    alone = type(request)()
                    only = getattr(alone, groups).add(schema_url=group.schema_url)
                    only.resource.CopyFrom(group.resource)
                    inner = getattr(only, scopes).add(schema_url=scope.schema_url)
                    inner.scope.CopyFrom(scope.scope)
                    getattr(inner, leaves).append(part)
                    yield alone


def _parts(leaf):
    kind = leaf.WhichOneof("data") if isinstance(leaf, Metric) else None
    if kind is None:
        return [leaf] if not isinstance(leaf, Metric) else []
    parts = []
    for point in getattr(leaf, kind).data_points:
        part = Metric()
        part.CopyFrom(leaf)
        del getattr(part, kind).data_points[:]
        getattr(part, kind).data_points.append(point)
        parts.append(part)
    return parts


def normal(message):
    """Return a message as nested values in which equal meanings are equal."""
    return _normal(message)


def _normal(value):
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    if not hasattr(value, "DESCRIPTOR"):
        return value
    found = {}
    for field in value.DESCRIPTOR.fields:
        held = getattr(value, field.name)
        if field.is_repeated:
            if field.message_type is not None and field.message_type.name == "KeyValue":
                found[field.name] = {pair.key: _normal(pair.value) for pair in held}
            else:
                found[field.name] = [_normal(one) for one in held]
        elif field.has_presence:
            is_plain = field.message_type is not None and field.containing_oneof is None
            is_side = field.name in ("positive", "negative", "body")
            if value.HasField(field.name) or (is_plain and not is_side):
                found[field.name] = _normal(held)
        else:
            found[field.name] = _normal(held)
    return found


def forgiving(item):
    """Remove the parts of an item that the decoder omits by design."""
    _forgive(item)
    return item


def _forgive(message):
    names = message.DESCRIPTOR.fields_by_name
    for name, length in (("trace_id", 16), ("span_id", 8), ("parent_span_id", 8)):
        if name in names:
            held = getattr(message, name)
            if len(held) != length or not any(held):
                message.ClearField(name)
    if message.DESCRIPTOR.name in ("Exemplar", "Event") and message.time_unix_nano >= 1 << 63:
        message.ClearField("time_unix_nano")
    if "flags" in names and message.DESCRIPTOR.name.endswith("DataPoint") and message.flags & 1:
        kept = {"attributes", "flags", "time_unix_nano", "start_time_unix_nano", "exemplars"}
        for name in set(names) - kept:
            message.ClearField(name)
    for field, held in message.ListFields():
        if field.message_type is not None:
            for one in held if field.is_repeated else [held]:
                _forgive(one)


def rebuilt(signal, row):
    """Return the single-item request that a row came from, as `items` yields them."""
    from ingest.otlp_requests import REQUESTS

    request = REQUESTS[signal]()
    group = getattr(request, request.DESCRIPTOR.fields[0].name).add()
    group.schema_url = row["resource_schema_url"] or ""
    group.resource.CopyFrom(_resource(row))
    scope = getattr(group, group.DESCRIPTOR.fields[1].name).add()
    scope.schema_url = row["scope_schema_url"] or ""
    scope.scope.CopyFrom(
        InstrumentationScope(
            name=row["scope_name"] or "",
            version=row["scope_version"] or "",
            attributes=pairs(read_attributes(row["scope_attributes"])),
            dropped_attributes_count=row["scope_dropped_attributes"],
        )
    )
    makers = {"metrics": _metric, "logs": _record, "traces": _span}
    getattr(scope, scope.DESCRIPTOR.fields[1].name).append(makers[signal](row))
    return request


def _resource(row):
    resource = Resource(
        attributes=pairs(read_attributes(row["resource"])),
        dropped_attributes_count=row["resource_dropped_attributes"],
    )
    for one in orjson.loads(row["resource_entities"] or "[]"):
        resource.entity_refs.add(
            type=one["type"],
            schema_url=one["schemaUrl"],
            id_keys=one["idKeys"],
            description_keys=one["descriptionKeys"],
        )
    return resource


def _number(value, value_int):
    if value_int is not None:
        return {"as_int": value_int}
    return {} if value is None else {"as_double": value}


def _metric(row):
    metric = Metric(
        name=row["metric"],
        description=row["description"] or "",
        unit=row["unit"] or "",
        metadata=pairs(read_attributes(row["metric_metadata"] or "{}")),
    )
    data = getattr(metric, row["type"])
    data.SetInParent()
    if row["temporality"] is not None:
        data.aggregation_temporality = _number_of(TEMPORALITIES, row["temporality"])
    if row["is_monotonic"] is not None:
        data.is_monotonic = row["is_monotonic"]
    point = data.data_points.add(
        attributes=pairs(read_attributes(row["attributes"])),
        time_unix_nano=row["ts_ns"],
        start_time_unix_nano=row["start_ns"] or 0,
        flags=row["flags"],
    )
    for one in row["exemplars"] or []:
        point.exemplars.add(
            filtered_attributes=pairs(read_attributes(one["attributes"])),
            time_unix_nano=one["ts_ns"] or 0,
            trace_id=one["trace_id"] or b"",
            span_id=one["span_id"] or b"",
            **_number(one["value"], one["value_int"]),
        )
    _set_values(row, point)
    return metric


def _set_values(row, point):
    if row["type"] in ("gauge", "sum"):
        for name, value in _number(row["value"], row["value_int"]).items():
            setattr(point, name, value)
        return
    if row["count"] is None:
        return
    for name in ("count", "sum", "min", "max", "scale", "zero_count", "zero_threshold"):
        if row[name] is not None:
            setattr(point, name, row[name])
    if row["type"] == "histogram":
        point.bucket_counts.extend(row["bucket_counts"])
        point.explicit_bounds.extend(row["bounds"])
    if row["type"] == "summary":
        for one in row["quantiles"]:
            point.quantile_values.add(**one)
    _set_buckets(row, point)


def _set_buckets(row, point):
    for side in ("positive", "negative"):
        if row[f"{side}_counts"] is not None:
            buckets = getattr(point, side)
            buckets.offset = row[f"{side}_offset"]
            buckets.bucket_counts.extend(row[f"{side}_counts"])
            buckets.SetInParent()


def _record(row):
    record = LogRecord(
        time_unix_nano=row["time_ns"] or 0,
        observed_time_unix_nano=row["observed_ns"] or 0,
        severity_number=row["severity_number"],
        severity_text=row["severity_text"] or "",
        event_name=row["event_name"] or "",
        attributes=pairs(read_attributes(row["attributes"])),
        dropped_attributes_count=row["dropped_attributes"],
        trace_id=row["trace_id"] or b"",
        span_id=row["span_id"] or b"",
        flags=row["flags"],
    )
    if row["body_json"] is not None:
        record.body.CopyFrom(any_value(read_value(row["body_json"])))
    elif row["body"] is not None:
        record.body.string_value = row["body"]
    return record


def _span(row):
    span = Span(
        **{name: row[name] for name in ("trace_id", "span_id", "name", "flags")},
        parent_span_id=row["parent_span_id"] or b"",
        trace_state=row["trace_state"] or "",
        kind=_number_of(KINDS, row["kind"]),
        start_time_unix_nano=row["ts_ns"],
        end_time_unix_nano=row["end_ns"] or 0,
        attributes=pairs(read_attributes(row["attributes"])),
        dropped_attributes_count=row["dropped_attributes"],
        dropped_events_count=row["dropped_events"],
        dropped_links_count=row["dropped_links"],
    )
    span.status.code = _number_of(STATUS_CODES, row["status_code"])
    span.status.message = row["status_message"] or ""
    for one in row["events"] or []:
        span.events.add(
            time_unix_nano=one["ts_ns"] or 0,
            name=one["name"],
            attributes=pairs(read_attributes(one["attributes"])),
            dropped_attributes_count=one["dropped_attributes"],
        )
    for one in row["links"] or []:
        span.links.add(
            trace_id=one["trace_id"] or b"",
            span_id=one["span_id"] or b"",
            trace_state=one["trace_state"] or "",
            attributes=pairs(read_attributes(one["attributes"])),
            dropped_attributes_count=one["dropped_attributes"],
            flags=one["flags"],
        )
    return span


def _number_of(names, text):
    return names.index(text) if text in names else int(text)
