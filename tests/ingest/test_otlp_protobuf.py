"""Requests in protobuf: what is accepted, and what refuses one item or the whole request."""

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from ingest.otlp_requests import (
    NOW_NS,
    REQUESTS,
    SPAN_ID,
    TRACE_ID,
    any_value,
    gauge_request,
    log_request,
    nested_log_bytes,
    pairs,
    span_request,
)
from thermocline.errors import Invalid
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.protobuf import SIGNALS, decode_protobuf

BEYOND = 1 << 63


def decoded(signal, request, limits=None):
    data = request if isinstance(request, bytes) else request.SerializeToString()
    return decode_protobuf(signal, data, arrived_ns=NOW_NS, limits=limits)


def only_row(outcome):
    [batch] = outcome.batches.values()
    [row] = batch.to_pylist()
    return row


def metric_request(kind, *, temporality=2, **fields):
    request = REQUESTS["metrics"]()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    data = getattr(metric, kind)
    data.SetInParent()
    if hasattr(data, "aggregation_temporality"):
        data.aggregation_temporality = temporality
    data.data_points.add(**{"time_unix_nano": NOW_NS, **fields})
    return request


@pytest.mark.parametrize("signal", SIGNALS)
def test_an_empty_request_is_a_full_success_without_rows(signal):
    outcome = decoded(signal, b"")
    assert (outcome.batches, outcome.accepted, outcome.is_partial) == ({}, 0, False)


def test_I09_one_bad_point_of_a_thousand_is_refused_alone_and_told():
    request = gauge_request(1_000)
    request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[500].Clear()
    outcome = decoded("metrics", request)
    assert (outcome.accepted, outcome.rejected) == (999, 1)
    assert outcome.batches["metric_points"].num_rows == 999
    assert outcome.message == (
        "refused 1 of 1000 data points: time_unix_nano is 0 (1) (the first is of 'temperature')"
    )


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (metric_request("gauge", time_unix_nano=0, as_int=1), "time_unix_nano is 0"),
        (metric_request("gauge", time_unix_nano=BEYOND, as_int=1), "a time is beyond int64"),
        (metric_request("gauge", start_time_unix_nano=BEYOND, as_int=1), "a time is beyond int64"),
        (metric_request("gauge"), "no value"),
        (metric_request("sum", temporality=0, as_int=1), "aggregation_temporality is unspecified"),
        (metric_request("histogram", temporality=0), "aggregation_temporality is unspecified"),
        (
            metric_request("exponential_histogram", temporality=0),
            "aggregation_temporality is unspecified",
        ),
        (
            metric_request("histogram", bucket_counts=[1, 2], explicit_bounds=[1.0, 2.0]),
            "bucket_counts do not match explicit_bounds",
        ),
        (
            metric_request("histogram", explicit_bounds=[1.0]),
            "bucket_counts do not match explicit_bounds",
        ),
        (
            metric_request("histogram", bucket_counts=[1, 2, 3], explicit_bounds=[2.0, 2.0]),
            "explicit_bounds do not rise",
        ),
        (metric_request("histogram", count=BEYOND), "a count is beyond int64"),
        (metric_request("histogram", bucket_counts=[BEYOND]), "a count is beyond int64"),
        (metric_request("exponential_histogram", zero_count=BEYOND), "a count is beyond int64"),
        (
            metric_request("exponential_histogram", negative={"bucket_counts": [BEYOND]}),
            "a count is beyond int64",
        ),
        (metric_request("summary", count=BEYOND), "a count is beyond int64"),
    ],
)
def test_I14_a_point_that_cannot_be_is_refused_with_its_reason(request_, reason):
    outcome = decoded("metrics", request_)
    assert (outcome.batches, outcome.accepted, outcome.rejected) == ({}, 0, 1)
    assert f"refused 1 of 1 data points: {reason} (1)" in outcome.message


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"trace_id": b""}, "trace_id is not 16 bytes, or all zeros"),
        ({"trace_id": bytes(16)}, "trace_id is not 16 bytes, or all zeros"),
        ({"trace_id": b"x" * 24}, "trace_id is not 16 bytes, or all zeros"),
        ({"span_id": b"x" * 7}, "span_id is not 8 bytes, or all zeros"),
        ({"span_id": bytes(8)}, "span_id is not 8 bytes, or all zeros"),
        ({"start_time_unix_nano": 0}, "start_time_unix_nano is 0"),
        ({"end_time_unix_nano": BEYOND}, "a time is beyond int64"),
    ],
)
def test_I14_a_span_that_nothing_could_find_is_refused_with_its_reason(fields, reason):
    outcome = decoded("traces", span_request(**fields))
    assert (outcome.accepted, outcome.rejected) == (0, 1)
    assert f"refused 1 of 1 spans: {reason} (1) (the first is of 'pay')" in outcome.message


def test_I14_a_span_that_ends_before_it_starts_is_kept_as_it_says_and_told():
    outcome = decoded("traces", span_request(end_time_unix_nano=NOW_NS - 7))
    assert only_row(outcome)["duration_ns"] == -7
    assert (outcome.rejected, outcome.is_partial) == (0, True)
    assert "span ends before it starts (1)" in outcome.message


def test_I14_a_span_without_an_end_has_no_duration():
    row = only_row(decoded("traces", span_request(end_time_unix_nano=0)))
    assert (row["end_ns"], row["duration_ns"]) == (None, None)


def test_I14_points_of_the_far_future_and_past_are_taken_exactly():
    for time_ns in (1, BEYOND - 1):
        row = only_row(
            decoded("metrics", metric_request("gauge", time_unix_nano=time_ns, as_int=1))
        )
        assert row["ts_ns"] == time_ns


def test_I14_a_record_has_its_own_time_or_when_it_was_observed_or_arrived():
    both = log_request(observed_time_unix_nano=5)
    observed = log_request(time_unix_nano=0, observed_time_unix_nano=5)
    neither = log_request(time_unix_nano=0)
    found = [only_row(decoded("logs", one)) for one in (both, observed, neither)]
    assert [(r["ts_ns"], r["time_ns"], r["observed_ns"]) for r in found] == [
        (NOW_NS, NOW_NS, 5),
        (5, None, 5),
        (NOW_NS, None, None),
    ]


def test_I14_a_record_with_a_time_beyond_int64_is_refused():
    outcome = decoded("logs", log_request(time_unix_nano=BEYOND))
    assert "refused 1 of 1 log records: a time is beyond int64 (1)" in outcome.message


def test_a_record_with_ids_of_a_wrong_length_is_kept_without_them_and_told():
    outcome = decoded("logs", log_request(trace_id=b"abc", span_id=bytes(8)))
    row = only_row(outcome)
    assert (row["trace_id"], row["span_id"]) == (None, None)
    assert "trace or span id of a wrong length, left out (1)" in outcome.message


def test_a_point_that_says_it_has_no_value_is_kept_without_one():
    row = only_row(decoded("metrics", metric_request("gauge", flags=1, as_int=5)))
    assert (row["value"], row["value_int"], row["flags"]) == (None, None, 1)
    row = only_row(decoded("metrics", metric_request("histogram", flags=1, bucket_counts=[1, 2])))
    assert (row["count"], row["bucket_counts"], row["flags"]) == (None, None, 1)


@pytest.mark.parametrize("number", [(1 << 53) + 1, -(1 << 63), (1 << 63) - 1])
def test_I15_an_integer_is_kept_exactly_and_as_a_double_to_count_with(number):
    row = only_row(decoded("metrics", metric_request("gauge", as_int=number)))
    assert (row["value_int"], row["value"]) == (number, float(number))


def test_a_structured_body_is_text_to_read_and_json_with_types():
    body = {"user": {"id": 7}, "tags": ["a", 1.5], "raw": b"\0"}
    row = only_row(decoded("logs", log_request(body=any_value(body))))
    assert row["body"] == row["body_json"]
    assert row["body_json"] == '{"raw":{"bytesValue":"AA=="},"tags":["a",1.5],"user":{"id":7}}'
    row = only_row(decoded("logs", log_request(body=any_value("paid"))))
    assert (row["body"], row["body_json"]) == ("paid", None)


def test_service_and_host_are_columns_of_their_own():
    resource = {"service.name": "shop", "host.name": "h1", "os": "linux"}
    row = only_row(decoded("metrics", gauge_request(resource=resource)))
    assert (row["service_name"], row["host_name"]) == ("shop", "h1")
    assert row["resource"] == '{"host.name":"h1","os":"linux","service.name":"shop"}'


def changed(change):
    request = gauge_request(attributes={"a": 1})
    group = request.resource_metrics[0]
    change(group, group.scope_metrics[0], group.scope_metrics[0].metrics[0])
    return only_row(decoded("metrics", request))["series_id"]


SAME = {
    "description": lambda group, scope, metric: setattr(metric, "description", "x"),
    "value": lambda group, scope, metric: setattr(metric.gauge.data_points[0], "as_int", 3),
}
DIFFERENT = {
    "resource": lambda group, scope, metric: group.resource.attributes.extend(pairs({"b": 1})),
    "scope name": lambda group, scope, metric: setattr(scope.scope, "name", "x"),
    "scope version": lambda group, scope, metric: setattr(scope.scope, "version", "x"),
    "scope schema": lambda group, scope, metric: setattr(scope, "schema_url", "x"),
    "name": lambda group, scope, metric: setattr(metric, "name", "x"),
    "unit": lambda group, scope, metric: setattr(metric, "unit", "x"),
    "attribute type": lambda group, scope, metric: (
        metric.gauge.data_points[0].attributes[0].value.CopyFrom(any_value("1"))
    ),
}


def test_a_series_is_what_the_data_model_says():
    base = changed(lambda *_: None)
    assert {changed(change) for change in SAME.values()} == {base}
    others = [changed(change) for change in DIFFERENT.values()]
    assert len({base, *others}) == 1 + len(DIFFERENT)


@pytest.mark.parametrize("signal", SIGNALS)
def test_I03_a_request_cut_anywhere_is_invalid_or_a_shorter_request(signal):
    request = {
        "metrics": gauge_request(3),
        "logs": log_request(body=any_value("paid"), attributes=pairs({"a": "b"})),
        "traces": span_request(attributes=pairs({"a": "b"})),
    }[signal]
    data = request.SerializeToString()
    for length in range(1, len(data)):
        with pytest.raises(Invalid, match="not a request of this signal in protobuf"):
            decoded(signal, data[:length])


@pytest.mark.parametrize("data", [b"\xff", b"{}", b"<html>", b"\x0a\x02\x08", b"\x0b" * 50])
def test_I03_bytes_that_are_no_request_are_invalid(data):
    with pytest.raises(Invalid, match="not a request of this signal in protobuf"):
        decoded("metrics", data)


def test_I04_a_bomb_of_nested_values_is_invalid():
    with pytest.raises(Invalid):
        decoded("logs", nested_log_bytes(5_000))


def test_I13_long_things_are_cut_told_and_never_silent():
    outcome = decoded(
        "logs",
        log_request(body=any_value("x" * 50), attributes=pairs({"k": "y" * 50, "l" * 50: 1})),
        DecodeLimits(body_bytes_max=10, value_bytes_max=20, key_bytes_max=30),
    )
    row = only_row(outcome)
    assert (row["body"], row["attributes"]) == ("x" * 10, '{"k":"' + "y" * 20 + '"}')
    assert (outcome.accepted, outcome.rejected, outcome.is_partial) == (1, 0, True)
    for told in ("body too long, cut", "value too long, cut", "key too long, dropped"):
        assert told in outcome.message


def test_I16_unknown_fields_and_enumerations_are_no_trouble():
    request = span_request(kind=77, attributes=pairs({"a": "b"}))
    data = request.SerializeToString() + b"\xfa\x3f\x03new"
    probe = type(request)()
    probe.ParseFromString(data)
    assert len(UnknownFieldSet(probe)) == 1
    outcome = decoded("traces", data)
    assert only_row(outcome)["kind"] == "77"
    assert not outcome.is_partial
    request.resource_spans[0].scope_spans[0].spans[0].kind = 2
    assert only_row(decoded("traces", request))["kind"] == "server"


def test_I16_a_metric_of_an_unknown_kind_is_told():
    request = gauge_request()
    request.resource_metrics[0].scope_metrics[0].metrics.add(name="of the future")
    outcome = decoded("metrics", request)
    assert (outcome.accepted, outcome.rejected) == (1, 0)
    assert "metric without data of a known kind (1)" in outcome.message


def test_the_ids_of_a_span_are_its_bytes():
    row = only_row(decoded("traces", span_request(parent_span_id=SPAN_ID[::-1])))
    assert (row["trace_id"], row["span_id"]) == (TRACE_ID, SPAN_ID)
    assert row["parent_span_id"] == SPAN_ID[::-1]


def test_an_unknown_signal_is_invalid():
    with pytest.raises(Invalid, match="no such signal"):
        decoded("profiles", b"")


@pytest.mark.parametrize("signal", SIGNALS)
def test_I16_a_resource_whose_items_are_in_an_old_field_is_invalid_alone_and_told_beside_others(
    signal,
):
    good = {"metrics": gauge_request, "logs": log_request, "traces": span_request}[signal]()
    old = b"\xc2\x3e\x02\x12\x00"  # field 1000, the instrumentation libraries of before 1.0
    lost = b"\x0a" + bytes([len(old)]) + old
    with pytest.raises(Invalid, match="under names that OTLP does not have") as caught:
        decoded(signal, lost)
    assert caught.value.facts["got"] == "field 1000"
    outcome = decoded(signal, good.SerializeToString() + lost)
    assert (outcome.accepted, outcome.rejected) == (1, 0)
    assert "under names that OTLP does not have, ignored (1)" in outcome.message
    assert decoded(signal, b"\x0a\x00").message == ""
