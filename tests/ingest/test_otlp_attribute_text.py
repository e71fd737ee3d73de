"""A set of attributes built from cached pairs equals the official decoder's text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint

from ingest.otlp_requests import KEY_VALUES, field, pairs
from thermocline.ingest.otlp.compiled import attribute_text as module
from thermocline.ingest.otlp.compiled.attribute_text import PairCache
from thermocline.ingest.otlp.compiled.metrics import POINT_ATTRIBUTES
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import Tally
from thermocline.ingest.otlp.value import ValueRenderer

SMALL = DecodeLimits(attributes_max=3, key_bytes_max=8, value_bytes_max=12, nesting_max=2)


def raw_of(attributes):
    return NumberDataPoint(attributes=attributes).SerializeToString()


def official(raw, limits):
    tally = Tally("metrics")
    text = ValueRenderer(limits, tally).attributes(NumberDataPoint.FromString(raw).attributes)
    return None if tally.has_notes else text


@given(
    sets=st.lists(KEY_VALUES, min_size=1, max_size=4),
    limits=st.sampled_from([DecodeLimits(), SMALL]),
)
def test_the_text_is_the_official_one_or_none(sets, limits):
    remembered = PairCache(limits)
    for attributes in [*sets, *reversed(sets)]:
        raw = raw_of(attributes)
        text = remembered.attributes_text(raw, POINT_ATTRIBUTES)
        if text is not None:
            assert text == official(raw, limits)
        elif official(raw, limits) is not None:
            # Only sets with an empty field are left to the official decoder without need.
            assert raw.endswith(field(7, b""))


def test_a_set_of_known_pairs_needs_no_decoding():
    remembered = PairCache(DecodeLimits())
    given_ = {"b": "x", "a": 1, "é": True, "": 1.5, "z": [1, {"k": None}]}
    first = remembered.attributes_text(raw_of(pairs(given_)), POINT_ATTRIBUTES)
    remembered._key_value = None
    turned = dict(reversed(given_.items()))
    assert remembered.attributes_text(raw_of(pairs(turned)), POINT_ATTRIBUTES) == first
    assert first == '{"":1.5,"a":1,"b":"x","z":[1,{"k":null}],"é":true}'


def test_no_attributes_are_an_empty_object():
    assert PairCache(DecodeLimits()).attributes_text(b"", POINT_ATTRIBUTES) == "{}"


@pytest.mark.parametrize(
    "raw",
    [
        raw_of(pairs({"a": 1})) + raw_of(pairs({"a": 2})),
        raw_of(pairs({f"k{n}": n for n in range(4)})),
        raw_of(pairs({"long key here": 1})),
        raw_of(pairs({"k": "x" * 13})),
        raw_of(pairs({"a": 1}))[:-1],
        b"\x3a",
        b"\x3a\xff",
        b"\x3a\xff\xff\x01",
        b"\x08\x01",
    ],
)
def test_what_has_anything_to_say_is_left_to_the_official_way(raw):
    assert PairCache(SMALL).attributes_text(raw, POINT_ATTRIBUTES) is None


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "PAIRS_MAX", 8)
    remembered = PairCache(DecodeLimits())
    for number in range(100):
        raw = raw_of(pairs({"k": number, "big": "x" * 2_000}))
        assert remembered.attributes_text(raw, POINT_ATTRIBUTES) == official(raw, DecodeLimits())
        assert len(remembered._known) <= 8
