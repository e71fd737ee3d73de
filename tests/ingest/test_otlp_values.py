"""Attribute values keep their types in JSON text, within limits that are reported."""

import math

import duckdb
import pytest
from hypothesis import given

from ingest.otlp_requests import (
    VALUES,
    any_value,
    comparable,
    pairs,
    read_attributes,
    read_value,
)
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.outcome import Tally
from thermocline.ingest.otlp.value import ValueRenderer


def rendered(attributes, **limits):
    tally = Tally("logs")
    text = ValueRenderer(DecodeLimits(**limits), tally).attributes(pairs(attributes))
    return text, tally.outcome({}).message


@given(VALUES)
def test_every_value_comes_back_from_its_text_with_its_type(value):
    text, message = rendered({"k": value})
    assert comparable_with_types(read_attributes(text)) == comparable_with_types({"k": value})
    assert message == ""


@given(VALUES)
def test_every_structured_body_comes_back_from_its_text_with_its_type(value):
    text, json = ValueRenderer(DecodeLimits(), Tally("logs")).body(any_value(value))
    found = text if isinstance(value, str) else read_value(json)
    assert comparable_with_types(found) == comparable_with_types(value)


def comparable_with_types(value):
    if isinstance(value, list):
        return [comparable_with_types(one) for one in value]
    if isinstance(value, dict):
        return {key: comparable_with_types(one) for key, one in value.items()}
    return type(value).__name__, comparable(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", '{"k":"x"}'),
        (True, '{"k":true}'),
        (7, '{"k":7}'),
        (7.0, '{"k":7.0}'),
        (-(1 << 63), '{"k":-9223372036854775808}'),
        (math.nan, '{"k":{"doubleValue":"NaN"}}'),
        (-math.inf, '{"k":{"doubleValue":"-Infinity"}}'),
        (b"\0\1", '{"k":{"bytesValue":"AAE="}}'),
        (None, '{"k":null}'),
        ([1, "a", None], '{"k":[1,"a",null]}'),
        ({"b": 1, "a": {}}, '{"k":{"a":{},"b":1}}'),
        ({"bytesValue": "AAE="}, '{"k":{"kvlistValue":{"bytesValue":"AAE="}}}'),
        ({"kvlistValue": {"x": 1}}, '{"k":{"kvlistValue":{"kvlistValue":{"x":1}}}}'),
    ],
)
def test_a_value_has_the_text_that_the_page_describes(value, text):
    assert rendered({"k": value})[0] == text


def test_two_orders_of_one_set_have_one_text():
    one, other = {"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"y": 2, "x": 1}, "a": 1}
    assert rendered(one)[0] == rendered(other)[0]


def test_the_engine_reads_values_by_key_with_their_types():
    text, _ = rendered({"http.route": "/pay", "code": (1 << 53) + 1, "ok": True, "s": 0.5})
    found = duckdb.execute(
        """select t->>'http.route', (t->'code')::bigint, json_type(t, '$.ok'), (t->'s')::double
        from (select ?::varchar as t)""",
        [text],
    ).fetchone()
    assert found == ("/pay", (1 << 53) + 1, "BOOLEAN", 0.5)


def test_I13_a_long_value_is_cut_between_characters_and_told():
    text, message = rendered({"k": "é" * 50}, value_bytes_max=11)
    assert read_attributes(text) == {"k": "é" * 5}
    assert "attribute value too long, cut (1)" in message


def test_I13_a_value_of_just_the_limit_is_kept():
    text, message = rendered({"k": "é" * 5}, value_bytes_max=10)
    assert (read_attributes(text), message) == ({"k": "é" * 5}, "")


@pytest.mark.parametrize("value", [[1] * 50, {"x" * 50: 1}, b"x" * 50])
def test_I13_a_long_compound_value_is_dropped_and_told(value):
    text, message = rendered({"k": value, "l": 1}, value_bytes_max=40)
    assert read_attributes(text) == {"l": 1}
    assert "attribute value too long, dropped (1)" in message


def test_I13_a_long_key_is_dropped_and_told():
    text, message = rendered({"k" * 11: 1, "k" * 10: 2}, key_bytes_max=10)
    assert read_attributes(text) == {"k" * 10: 2}
    assert "attribute key too long, dropped (1)" in message


def test_I13_attributes_past_the_limit_are_dropped_and_told():
    text, message = rendered({f"k{n}": n for n in range(10_000)}, attributes_max=3)
    assert read_attributes(text) == {"k0": 0, "k1": 1, "k2": 2}
    assert "too many attributes, dropped (9997)" in message


def test_I13_values_nested_past_the_limit_are_emptied_and_told():
    text, message = rendered({"k": [[[["deep"]]]]}, nesting_max=3)
    assert read_attributes(text) == {"k": [[[None]]]}
    assert "value nested too deep, emptied (1)" in message


def test_I17_a_key_that_comes_twice_keeps_its_last_value_and_is_told():
    tally = Tally("logs")
    twice = [*pairs({"k": 1}), *pairs({"k": 2})]
    assert ValueRenderer(DecodeLimits(), tally).attributes(twice) == '{"k":2}'
    assert "attribute key twice, the last kept (1)" in tally.outcome({}).message
