"""Hostile contracts and documents: refused quickly, without a crash."""

import json
import time

import pytest

from contract.made import contract_of
from thermocline.contract.document.text import DOCUMENT_BYTES_MAX, NESTING_MAX
from thermocline.contract.schema.register import parse_contract
from thermocline.errors import BodyTooLarge, Invalid

SECONDS_MAX = 10


@pytest.fixture(autouse=True)
def _quickly():
    start = time.process_time()
    yield
    assert time.process_time() - start < SECONDS_MAX


def anything():
    return contract_of(a={}, b={"type": "string"})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a JSON document"),
        (b"{", "not a JSON document"),
        (b'{"a":1}{"a":2}', "not a JSON document"),
        (b'{"a":NaN}', "not a JSON document"),
        (b'{"a":Infinity}', "not a JSON document"),
        (b'{"a":1,}', "not a JSON document"),
        (b'{"a":"\xff"}', "not a JSON document"),
        (b'{"a":"\xed\xa0\x80"}', "not a JSON document"),
        (b'{"a":"\\ud800"}', "not a JSON document"),
        (b'{"a":"\\ud800 and more text"}', "not a JSON document"),
        (b'{"a":"\\udc00 and more text"}', "not a JSON document"),
        (b'\xef\xbb\xbf{"a":1}', "not a JSON document"),
        (b'{"a":1e999999999}', "not a JSON document"),
        (b'{"a":1e-999999999}', "not a JSON document"),
        (b'{"a":' + b"1" * 5_000 + b"}", "not a JSON document"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (b'{"a":' + b'{"x":' * 500 + b"1" + b"}" * 500 + b"}", "nested too deep"),
        (b'{"a":1,"a":2}', "given twice"),
        (b'{"a":1,"\\u0061":2}', "given twice"),
        (b'{"a" :1,"a":2}', "given twice"),
        (b'{"a"\n:1,"a"\t:2}', "given twice"),
        (b'{"a":{"x":1,"x":2}}', "given twice"),
        (b'{"a":[{"x":":"},{"x" :1,"x":2}]}', "given twice"),
        (b'{"b":"\\u0000"}', "does not fit"),
        (b'{"a":{"\\u0000":1}}', "does not fit"),
    ],
)
def test_text_that_is_no_document_is_refused(data, words):
    with pytest.raises(Invalid, match=words):
        anything().validate_bytes(data)
    with pytest.raises(Invalid):
        anything().validate_lines(b'{"a":1}\n' + (data or b"{"))


AT = b'"2024-06-01T12:00:00Z"'
PROVED_BY_COLONS = {
    "a value twice": b'{"n":1,"n":2,"at":%s}' % AT,
    "a null twice": b'{"at":null,"at":null,"n":1}',
    "an instant, then null": b'{"at":%s,"at":null}' % AT,
    "null, then an instant": b'{"at":null,"at":%s}' % AT,
    "a key thrice, an instant that is null": b'{"at":null,"n":1,"n":2,"n":3}',
    "a key thrice, no instant": b'{"n":1,"n":2,"n":3}',
    "an instant twice": b'{"at":%s,"at":%s}' % (AT, AT),
    "blanks before a colon": b'{"n" :1,"n"\t: 2,"at":%s}' % AT,
    "an instant with its colons escaped": (
        b'{"at":"2024-06-01T12\\u003a00\\u003a00Z","n":1,"n":2,"n":3}'
    ),
    "a colon in a text": b'{"t":"a:b","n":1,"n":2}',
    "a colon in the text that is lost": b'{"t":"a:b","t":"a"}',
    "a key escaped": b'{"n":1,"\\u006e":2}',
}


@pytest.mark.parametrize("data", PROVED_BY_COLONS.values(), ids=PROVED_BY_COLONS)
def test_a_key_given_twice_is_refused_however_many_colons_the_texts_have(data):
    """A contract whose numbers all fit doubles; other contracts use another decoder."""
    contract = contract_of(
        n={"type": "integer"},
        t={"type": "string"},
        at={"type": ["string", "null"], "format": "date-time"},
    )
    assert not contract.checker.is_exact
    with pytest.raises(Invalid, match="given twice"):
        contract.validate_bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"n":1,"t":"a:b::c","at":"2024-06-01T12:00:00Z"}',
        b'{ "n" : 1 , "t" : " :" , "at" : null }',
        b'{"t":"\\":\\"","n":2}',
        b'{"at":"2024-06-01T12\\u003a00\\u003a00Z"}',
    ],
)
def test_colons_and_blanks_in_a_document_are_taken_as_they_are(data):
    contract = contract_of(
        n={"type": "integer"},
        t={"type": "string"},
        at={"type": ["string", "null"], "format": "date-time"},
    )
    assert contract.validate_bytes(data) == json.loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"b":"\\\\u0000"}',
        b'{"b":"\\u00e9\\ud83d\\ude00"}',
        b'{"b":":","a":"\\":\\""}',
        b'{ "b" : "x" , "a" : [ { "k" : ":" } ] }',
        b'{"a":' + b"[" * NESTING_MAX + b"]" * NESTING_MAX + b"}",
    ],
)
def test_text_that_only_looks_hostile_is_taken(data):
    contract = anything()
    kept = contract.validate_bytes(data)
    assert contract.document_of(contract.arrow_rows([kept]).to_pylist()[0]) == kept


def test_a_document_past_the_size_limit_is_refused():
    data = b'{"b":"' + b"x" * DOCUMENT_BYTES_MAX + b'"}'
    with pytest.raises(BodyTooLarge):
        anything().validate_bytes(data)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ("\ud800", "Unicode"),
        ("\x00", "NUL"),
        ({1: 2}, "keys that are text"),
        ({"\ud800": 1}, "Unicode"),
        ((1, 2), "a JSON value"),
        (b"x", "a JSON value"),
        ({1, 2}, "a JSON value"),
        pytest.param(10**5000, "digits", id="a long integer"),
    ],
)
def test_values_that_are_no_json_are_refused_with_their_pointer(value, expected):
    with pytest.raises(Invalid) as caught:
        anything().validate({"a": [value]})
    (problem,) = caught.value.facts["problems"]
    assert problem["pointer"].startswith("/a/0")
    assert expected in problem["expected"]
    str(caught.value).encode()


def test_values_nested_too_deep_are_refused():
    value = []
    for _ in range(500):
        value = [value]
    with pytest.raises(Invalid, match="nested too deep"):
        anything().validate({"a": value})


def test_a_contract_nested_too_deep_is_refused():
    schema = {}
    for _ in range(50):
        schema = {"type": "array", "items": schema}
    with pytest.raises(Invalid, match="nested too deep"):
        contract_of(a=schema)


def test_references_that_multiply_are_refused():
    definitions = {
        f"d{n}": {"properties": {f"p{k}": {"$ref": f"#/$defs/d{n + 1}"} for k in range(10)}}
        for n in range(10)
    }
    definitions["d10"] = {"type": "string"}
    with pytest.raises(Invalid) as caught:
        parse_contract({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions})
    assert "more than" in caught.value.facts["problems"][0]["reason"]


def test_a_long_chain_of_references_is_refused():
    definitions = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5_000)}
    definitions["d5000"] = {"type": "string"}
    with pytest.raises(Invalid):
        parse_contract({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions})


def test_a_reference_to_itself_ends():
    contract = parse_contract(
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    )
    with pytest.raises(Invalid):
        contract.validate({"b": 1})


def test_a_contract_past_the_size_limit_is_refused():
    with pytest.raises(Invalid, match="larger than the limit"):
        contract_of(a={"description": "x" * 2**20})


def test_more_properties_than_the_limit_are_refused():
    with pytest.raises(Invalid) as caught:
        contract_of(**{f"p{n}": {} for n in range(2_001)})
    assert caught.value.facts["problems"][0]["pointer"] == "/properties"


def test_a_huge_enum_within_the_limit_is_quick():
    contract = contract_of(a={"enum": [f"value {n}" for n in range(10_000)]})
    for _ in range(100):
        contract.validate({"a": "value 9999"})
    with pytest.raises(Invalid) as caught:
        contract.validate({"a": "no value"})
    assert len(caught.value.facts["problems"][0]["expected"]) < 400


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(a*)*b$", r"^([a-z]+\s?)*$"])
def test_no_pattern_is_slow_on_any_text(pattern):
    contract = contract_of(a={"type": "string", "pattern": pattern})
    with pytest.raises(Invalid):
        contract.validate({"a": "a" * 100_000 + "!"})
