"""For any bytes, a decoder returns valid rows or raises `Invalid`."""

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.otlp_requests import (
    NOW_NS,
    REQUESTS,
    any_value,
    gauge_request,
    log_request,
    messages,
    otlp_json,
    pairs,
    span_request,
)
from thermocline.errors import Invalid
from thermocline.ingest.otlp.json import decode_json
from thermocline.ingest.otlp.protobuf import SIGNALS, decode_protobuf

SEEDS = {
    "metrics": gauge_request(2, attributes={"a": [1, {"b": b"c"}]}),
    "logs": log_request(body=any_value({"a": 1.5}), attributes=pairs({"k": None})),
    "traces": span_request(attributes=pairs({"k": True}), events=[{"name": "e"}], links=[{}]),
}
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(1 << 70), 1 << 70), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)


def answer(decode, signal, data):
    """Decode, and check the outcome."""
    try:
        outcome = decode(signal, data, arrived_ns=NOW_NS)
    except Invalid:
        return
    for batch in outcome.batches.values():
        batch.validate(full=True)
    assert outcome.accepted == sum(batch.num_rows for batch in outcome.batches.values())
    assert len(outcome.message) < 2_000


def damaged(draw, whole):
    """Change some bytes of a request."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        data[place : place + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
        data = data or bytearray(b"\0")
    return bytes(data)


@pytest.mark.parametrize("decode", [decode_protobuf, decode_json])
@pytest.mark.parametrize("signal", SIGNALS)
@given(data=st.binary(max_size=60))
def test_I03_any_bytes_are_answered(decode, signal, data):
    answer(decode, signal, data)


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=80)
@given(data=st.data())
def test_I03_a_damaged_request_in_protobuf_is_answered(signal, data):
    answer(decode_protobuf, signal, damaged(data.draw, SEEDS[signal].SerializeToString()))


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=80)
@given(data=st.data())
def test_I03_a_damaged_request_in_json_is_answered(signal, data):
    answer(decode_json, signal, damaged(data.draw, otlp_json(SEEDS[signal])))


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=80)
@given(data=st.data())
def test_I15_any_value_in_place_of_any_other_in_json_is_answered(signal, data):
    request = orjson.loads(otlp_json(data.draw(messages(REQUESTS[signal], density=0.5))))
    places = list(walk(request))
    if places:
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = data.draw(JSON.filter(is_writable))
    answer(decode_json, signal, orjson.dumps(request))


def walk(value):
    """Yield every position in a document: its container and its key."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from walk(value[key])


def is_writable(value):
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True
