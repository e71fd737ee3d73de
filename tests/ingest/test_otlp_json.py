"""OTLP's JSON and its traps."""

import math

import orjson
import pytest

from ingest.otlp_requests import (
    NOW_NS,
    SPAN_ID,
    TRACE_ID,
    nested_log_bytes,
    otlp_json,
    span_request,
)
from thermocline.errors import Invalid
from thermocline.ingest.otlp.json import decode_json
from thermocline.ingest.otlp.protobuf import decode_protobuf


def decoded(signal, document):
    data = document if isinstance(document, bytes) else orjson.dumps(document)
    return decode_json(signal, data, arrived_ns=NOW_NS)


def only_row(outcome):
    [batch] = outcome.batches.values()
    [row] = batch.to_pylist()
    return row


def record(**fields):
    records = [{"timeUnixNano": str(NOW_NS), **fields}]
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}


def gauge(**fields):
    metric = {"name": "m", "gauge": {"dataPoints": [{"timeUnixNano": NOW_NS, **fields}]}}
    return {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}


def raw_gauge(value):
    return orjson.dumps(gauge(asDouble=77777)).replace(b"77777", value)


@pytest.mark.parametrize("write", [bytes.hex, lambda data: data.hex().upper()])
def test_ids_are_hexadecimal_in_any_case(write):
    outcome = decoded("logs", record(traceId=write(TRACE_ID), spanId=write(SPAN_ID)))
    assert (only_row(outcome)["trace_id"], only_row(outcome)["span_id"]) == (TRACE_ID, SPAN_ID)


def test_ids_that_are_not_hexadecimal_are_invalid():
    with pytest.raises(Invalid, match="does not have the type of its field"):
        decoded("logs", record(traceId="AQIDBAUGBwgJCgsMDQ4PEA=="))


def test_other_bytes_are_base64_of_either_alphabet():
    for text in ("+/8=", "-_8", "+/8"):
        row = only_row(decoded("logs", record(body={"bytesValue": text})))
        assert row["body_json"] == '{"bytesValue":"+/8="}'


@pytest.mark.parametrize("number", [(1 << 63) - 1, -(1 << 63), 0, (1 << 53) + 1])
def test_I15_integers_are_texts_or_numbers_and_exact(number):
    for written in (number, str(number)):
        assert only_row(decoded("metrics", gauge(asInt=written)))["value_int"] == number


@pytest.mark.parametrize(
    "written",
    [b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"1.5", b'"1.5"',
     b'"1e3"', b'""', b'" 1"', b'"0x10"', b'"\xd9\xa1"', b"true", b"[]", b"1e19", b'"9" '],
)  # fmt: skip
def test_I15_what_is_no_int64_is_invalid_or_exact(written):
    data = orjson.dumps(gauge(asInt=77777)).replace(b"77777", written)
    if written.strip() == b'"9"':
        assert only_row(decoded("metrics", data))["value_int"] == 9
        return
    with pytest.raises(Invalid):
        decoded("metrics", data)


def test_I15_an_integral_number_with_an_exponent_is_its_integer():
    data = orjson.dumps(gauge(asInt=77777)).replace(b"77777", b"1e3")
    assert only_row(decoded("metrics", data))["value_int"] == 1000


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_I15_what_is_not_finite_arrives_as_text(text):
    value = only_row(decoded("metrics", gauge(asDouble=text)))["value"]
    assert repr(value) == {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}[text]


@pytest.mark.parametrize(
    "written",
    [b"NaN", b"Infinity", b"-Infinity", b"1e400", b'"1e400"', b'"nan"', b'"inf"', b'"1_0"', b'""',
     b"true", b"{}"],
)  # fmt: skip
def test_I15_what_is_no_double_is_invalid(written):
    with pytest.raises(Invalid):
        decoded("metrics", raw_gauge(written))


def test_enumerations_are_integers_only():
    assert only_row(decoded("logs", record(severityNumber=9)))["severity_number"] == 9
    with pytest.raises(Invalid, match="does not have the type of its field"):
        decoded("logs", record(severityNumber="SEVERITY_NUMBER_INFO"))


def test_I16_unknown_keys_are_ignored_and_proto_names_are_taken():
    row = only_row(decoded("logs", record(severity_text="snake", brand_new={"x": [1]})))
    assert row["severity_text"] == "snake"
    snake = {"resource_logs": [{"scope_logs": [{"log_records": [{"time_unix_nano": NOW_NS}]}]}]}
    assert only_row(decoded("logs", snake))["ts_ns"] == NOW_NS
    with pytest.raises(Invalid, match="under two names"):
        decoded("logs", record(severity_text="a", severityText="b"))


@pytest.mark.parametrize("document", [{"resourceSpans": []}, {"resource_metrics": []}, {"x": 1}])
def test_I16_a_document_without_any_name_of_the_signal_is_invalid(document):
    with pytest.raises(Invalid, match="not a request of this signal") as caught:
        decoded("logs", document)
    assert "resourceLogs" in caught.value.hint
    assert decoded("logs", {}).accepted == 0
    assert decoded("logs", {"resourceLogs": None, "x": 1}).accepted == 0


@pytest.mark.parametrize("written", [b"-0", b"-0.0", b"-0e0", b'"-0"', b'"-0.0"'])
def test_I15_a_negative_zero_keeps_its_sign(written):
    assert math.copysign(1, only_row(decoded("metrics", raw_gauge(written)))["value"]) == -1
    data = orjson.dumps(
        record(body={"stringValue": 'a -0, "-0'}, attributes=[{"key": "k", "value": 77777}])
    ).replace(b"77777", b'{"doubleValue":%b}' % written)
    row = only_row(decoded("logs", data))
    assert (row["attributes"], row["body"]) == ('{"k":-0.0}', 'a -0, "-0')
    data = orjson.dumps(gauge(asInt=77777)).replace(b"77777", b"-0")
    assert only_row(decoded("metrics", data))["value_int"] == 0


@pytest.mark.parametrize("text", [b'"\\ud800"', b'"\\udc00\\ud800"'])
def test_Q12_i09_an_item_with_a_lone_surrogate_is_refused_alone(text):
    document = record(severityText="77777")
    scope = document["resourceLogs"][0]["scopeLogs"][0]
    scope["logRecords"].append({"timeUnixNano": NOW_NS, "body": {"intValue": (1 << 53) + 1}})
    outcome = decoded("logs", orjson.dumps(document).replace(b'"77777"', text))
    assert (outcome.accepted, outcome.rejected) == (1, 1)
    assert "not valid UTF-8" in outcome.message
    assert (only_row(outcome)["ts_ns"], only_row(outcome)["body"]) == (NOW_NS, "9007199254740993")
    scope["scope"] = {"name": "88888"}
    outcome = decoded("logs", orjson.dumps(document).replace(b'"88888"', text))
    assert (outcome.accepted, outcome.rejected) == (0, 2)


def test_I16_a_null_is_as_if_the_key_were_not_there():
    row = only_row(decoded("logs", record(body=None, attributes=None, severityText=None)))
    assert (row["body"], row["attributes"]) == (None, "{}")


def test_I17_of_a_key_that_comes_twice_the_last_counts():
    data = orjson.dumps(record(severityText="a")).replace(
        b'"severityText":"a"', b'"severityText":"a","severityText":"b"'
    )
    assert only_row(decoded("logs", data))["severity_text"] == "b"


def test_I17_two_members_of_one_choice_are_invalid():
    with pytest.raises(Invalid, match="two members of one `oneof`"):
        decoded("metrics", gauge(asInt=1, asDouble=1.0))


def test_I17_a_nul_in_a_text_is_kept():
    data = orjson.dumps(record(body={"stringValue": "a\0b"}, severityText="\0"))
    row = only_row(decoded("logs", data))
    assert (row["body"], row["severity_text"]) == ("a\0b", "\0")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"1", b"null", b"{} {}", b'{"resourceLogs":1}'])
def test_I03_what_is_no_request_is_invalid(data):
    with pytest.raises(Invalid):
        decoded("logs", data)


@pytest.mark.parametrize("depth", [60, 300, 100_000])
def test_I04_deep_nesting_is_invalid(depth):
    with pytest.raises(Invalid):
        decoded("logs", body_json(depth))
    with pytest.raises(Invalid):
        decoded("logs", b"[" * depth * 100)


def test_I04_both_encodings_refuse_the_same_depth():
    def is_taken(decode, signal, data):
        try:
            decode(signal, data, arrived_ns=NOW_NS)
        except Invalid:
            return False
        return True

    depths = range(40, 55)
    in_json = [is_taken(decode_json, "logs", body_json(depth)) for depth in depths]
    in_protobuf = [is_taken(decode_protobuf, "logs", nested_log_bytes(depth)) for depth in depths]
    assert in_json == in_protobuf
    assert {*in_json} == {True, False}


def body_json(depth):
    value = b'{"arrayValue":{"values":[' * depth + b'{"intValue":1}' + b"]}}" * depth
    return orjson.dumps(record(body=77777)).replace(b"77777", value)


def test_a_span_in_json_has_the_ids_of_the_one_in_protobuf():
    row = only_row(decoded("traces", otlp_json(span_request())))
    assert (row["trace_id"], row["span_id"], row["name"]) == (TRACE_ID, SPAN_ID, "pay")


def test_Q12_i09_an_item_with_a_byte_that_is_not_utf8_is_refused_alone():
    document = record(severityText="77777")
    scope = document["resourceLogs"][0]["scopeLogs"][0]
    scope["logRecords"].append({"timeUnixNano": NOW_NS, "severityText": "ä\U0001f600"})
    for raw in (b"a\xffb", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98"):
        outcome = decoded("logs", orjson.dumps(document).replace(b"77777", raw))
        assert (outcome.accepted, outcome.rejected) == (1, 1)
        assert "not valid UTF-8" in outcome.message
        assert only_row(outcome)["severity_text"] == "ä\U0001f600"
    with pytest.raises(Invalid, match="not JSON"):
        decoded("logs", orjson.dumps(document) + b"\xff")


MISNAMED = [
    ("logs", {"resourceLogs": [{"scopeLog": [{"logRecords": [{}]}]}]}, "scopeLog"),
    ("logs", {"resourceLogs": [{"scopeLogs": [{"logs": [{}]}]}]}, "logs"),
    ("traces", {"resourceSpans": [{"instrumentationLibrarySpans": []}]}, "instrumentationLibrary"),
    ("metrics", {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"guage": {}}]}]}]}, "guage"),
    (
        "metrics",
        {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"sum": {"datapoints": [{}]}}]}]}]},
        "datapoints",
    ),
]


@pytest.mark.parametrize(("signal", "document", "name"), MISNAMED)
def test_I16_a_document_whose_items_are_under_unknown_names_is_invalid(signal, document, name):
    with pytest.raises(Invalid, match="under names that OTLP does not have") as caught:
        decoded(signal, document)
    assert name in caught.value.facts["got"]


def test_I16_items_under_unknown_names_beside_others_are_told():
    document = record(severityText="a")
    document["resourceLogs"].append({"scope_log": [{"logRecords": [{}]}]})
    outcome = decoded("logs", document)
    assert (outcome.accepted, outcome.rejected) == (1, 0)
    assert "under names that OTLP does not have, ignored (1)" in outcome.message
    outcome = decoded("logs", {**record(), "resourceSpans": [{}]})
    assert (outcome.accepted, outcome.rejected) == (1, 0)
    assert "another signal, ignored (1)" in outcome.message
    assert decoded("logs", {**record(), "brandNew": [{}]}).message == ""


def test_I09_an_item_with_a_value_that_its_field_does_not_hold_is_refused_alone():
    span = {"traceId": TRACE_ID.hex(), "spanId": SPAN_ID.hex(), "startTimeUnixNano": NOW_NS}
    spans = [{**span, "name": "a"}, {**span, "traceId": "xyz"}, {**span, "kind": "SERVER"}, 7]
    outcome = decoded("traces", {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    assert (outcome.accepted, outcome.rejected) == (1, 3)
    assert "a value does not have the type of its field" in outcome.message
    assert only_row(outcome)["name"] == "a"
    document = gauge(asInt=1)
    [metric] = document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    metric["gauge"]["dataPoints"].append({"timeUnixNano": NOW_NS, "asInt": 1.5})
    outcome = decoded("metrics", document)
    assert (outcome.accepted, outcome.rejected) == (1, 1)
    assert only_row(outcome)["value_int"] == 1
