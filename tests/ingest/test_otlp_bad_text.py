"""Texts that are not UTF-8, and items of another signal: refused alone, counted, and reported."""

import pytest

from ingest.otlp_requests import NOW_NS, gauge_request, log_request, pairs, span_request
from thermocline.errors import Invalid
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.protobuf import decode_official, decode_protobuf, warm_up

REQUESTS = {"metrics": gauge_request, "logs": log_request, "traces": span_request}


@pytest.fixture(autouse=True, scope="module")
def _warm():
    warm_up()


def decoded(signal, data):
    official = decode_official(signal, data, arrived_ns=NOW_NS, limits=DecodeLimits())
    outcome = decode_protobuf(signal, data, arrived_ns=NOW_NS)
    assert outcome == official
    return outcome


def damaged(request):
    """Return a request's bytes in which every text "BADBAD" is invalid."""
    data = request.SerializeToString()
    assert b"BADBAD" in data
    return data.replace(b"BADBAD", b"BAD\xff\xed\xa0")


def logs():
    request = log_request(severity_text="first")
    records = request.resource_logs[0].scope_logs[0].log_records
    records.add(time_unix_nano=NOW_NS, severity_text="second")
    other = request.resource_logs.add().scope_logs.add()
    other.log_records.add(time_unix_nano=NOW_NS, severity_text="third")
    return request


def check(signal, request, accepted, rejected):
    outcome = decoded(signal, damaged(request))
    assert (outcome.accepted, outcome.rejected) == (accepted, rejected)
    assert "a text is not valid UTF-8" in outcome.message
    return [row for batch in outcome.batches.values() for row in batch.to_pylist()]


def test_Q12_i09_a_record_is_refused_alone_and_the_others_are_as_sent():
    request = logs()
    request.resource_logs[0].scope_logs[0].log_records[0].attributes.extend(
        pairs({"k": ["BADBAD"]})
    )
    rows = check("logs", request, 2, 1)
    assert [row["severity_text"] for row in rows] == ["second", "third"]


@pytest.mark.parametrize("place", ["resource", "url", "scope"])
def test_Q12_i09_a_bad_origin_refuses_all_items_below_it(place):
    request = logs()
    group = request.resource_logs[0]
    if place == "resource":
        group.resource.attributes.extend(pairs({"BADBAD": 1}))
    elif place == "url":
        group.schema_url = "BADBAD"
    else:
        group.scope_logs[0].scope.version = "BADBAD"
    assert [row["severity_text"] for row in check("logs", request, 1, 2)] == ["third"]


def test_Q12_i09_a_span_is_refused_for_its_event_and_a_point_for_its_exemplar():
    spans = span_request(events=[{"name": "BADBAD"}])
    spans.resource_spans[0].scope_spans[0].spans.add().CopyFrom(
        span_request().resource_spans[0].scope_spans[0].spans[0]
    )
    assert len(check("traces", spans, 1, 1)) == 1
    points = gauge_request(3)
    data = points.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    data[1].exemplars.add(as_double=1.0).filtered_attributes.extend(pairs({"k": "BADBAD"}))
    assert [row["value"] for row in check("metrics", points, 2, 1)] == [0.5, 2.5]


def test_Q12_i09_a_metric_with_a_bad_name_refuses_its_points():
    request = gauge_request(3, name="BADBAD")
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    metrics.add(name="ok").gauge.data_points.add(time_unix_nano=NOW_NS, as_int=1)
    assert [row["metric"] for row in check("metrics", request, 1, 3)] == ["ok"]


def test_I03_bytes_that_are_malformed_are_invalid_whatever_their_texts():
    request = logs()
    request.resource_logs[0].scope_logs[0].log_records[0].severity_text = "BADBAD"
    with pytest.raises(Invalid):
        decode_protobuf("logs", damaged(request) + b"\x0a\x05", arrived_ns=NOW_NS)


@pytest.mark.parametrize(
    ("sent", "to"),
    [("traces", "metrics"), ("traces", "logs"), ("logs", "metrics"), ("logs", "traces"),
     ("metrics", "logs")],
)  # fmt: skip
def test_I16_a_request_of_another_signal_is_invalid(sent, to):
    data = REQUESTS[sent]().SerializeToString()
    for decode in (
        decode_protobuf,
        lambda *a, **k: decode_official(*a, **k, limits=DecodeLimits()),
    ):
        with pytest.raises(Invalid, match="not a request of this signal"):
            decode(to, data, arrived_ns=NOW_NS)


def test_I13_attributes_that_a_limit_drops_are_added_to_the_senders_count():
    many = pairs({f"k{place}": place for place in range(5)})
    span = span_request(attributes=many, dropped_attributes_count=7)
    [made] = span.resource_spans[0].scope_spans[0].spans
    made.events.add(name="e", attributes=many, dropped_attributes_count=1)
    made.links.add(attributes=many)
    span.resource_spans[0].resource.attributes.extend(many)
    span.resource_spans[0].scope_spans[0].scope.attributes.extend(many)
    outcome = decode_protobuf(
        "traces", span.SerializeToString(), arrived_ns=NOW_NS, limits=DecodeLimits(attributes_max=3)
    )
    [row] = outcome.batches["spans"].to_pylist()
    assert (row["dropped_attributes"], row["events"][0]["dropped_attributes"]) == (9, 3)
    assert row["links"][0]["dropped_attributes"] == 2
    assert (row["resource_dropped_attributes"], row["scope_dropped_attributes"]) == (2, 2)
    log = log_request(attributes=pairs({"k" * 50: 1, "v": b"x" * 90}), dropped_attributes_count=1)
    limits = DecodeLimits(key_bytes_max=40, value_bytes_max=40)
    outcome = decode_protobuf("logs", log.SerializeToString(), arrived_ns=NOW_NS, limits=limits)
    assert outcome.batches["logs"]["dropped_attributes"].to_pylist() == [3]
