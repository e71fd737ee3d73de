"""Refusals when a contract is registered, and the form of accepted contracts."""

import pickle

import pytest

from contract.made import contract_of
from thermocline.contract.schema.register import parse_contract
from thermocline.errors import Invalid
from thermocline.names import parse_id

DRAFT_07 = "http://json-schema.org/draft-07/schema#"


def refusals(document, **options):
    with pytest.raises(Invalid) as caught:
        parse_contract(document, **options)
    return {one["pointer"]: one["reason"] for one in caught.value.facts["problems"]}


REFUSED = [
    ({"$ref": "https://elsewhere.example/x"}, "/properties/a/$ref", "fetched"),
    ({"$ref": "#/$defs/none"}, "/properties/a/$ref", "no schema"),
    ({"pattern": "(?=a)"}, "/properties/a/pattern", "looks ahead"),
    ({"pattern": "(?<!a)b"}, "/properties/a/pattern", "looks ahead or behind"),
    ({"pattern": r"(a)\1"}, "/properties/a/pattern", "refers back"),
    ({"pattern": "(a{1000}){1000}"}, "/properties/a/pattern", "larger than the limit"),
    ({"pattern": "a" * 1001}, "/properties/a/pattern", "longer"),
    ({"patternProperties": {"(?=a)": {}}}, "/properties/a/patternProperties/(?=a)", "looks"),
    ({"format": "datetime"}, "/properties/a/format", "cannot be checked"),
    ({"minimun": 3}, "/properties/a/minimun", "not a keyword"),
    ({"nullable": True}, "/properties/a/nullable", "null"),
    ({"$dynamicRef": "#x"}, "/properties/a/$dynamicRef", "depends"),
    ({"$id": "https://x.example/"}, "/properties/a/$id", "references"),
    ({"type": "strin"}, "/properties/a/type", "not a schema"),
    ({"minimum": "3"}, "/properties/a/minimum", "not a schema"),
    ({"enum": []}, "/properties/a/enum", "allows no document"),
    ({"enum": list(range(10_001))}, "/properties/a/enum", "more than"),
    ({"type": "integer", "x-type": "int128"}, "/properties/a/x-type", "not an x-type"),
    ({"type": "string", "x-type": "int32"}, "/properties/a/x-type", "not an x-type"),
    ({"type": "boolean", "x-type": "int32"}, "/properties/a/x-type", "not an x-type"),
    ({"type": "number", "x-type": "decimal(39,2)"}, "/properties/a/x-type", "digits"),
    ({"type": "number", "x-type": "decimal(2,3)"}, "/properties/a/x-type", "digits"),
    ({"type": "array", "x-hot": True}, "/properties/a/x-hot", "scalar"),
    ({"type": "string", "x-hot": "yes"}, "/properties/a/x-hot", "true or false"),
    ({"type": "string", "x-id": 0}, "/properties/a/x-id", "positive"),
    (
        {"type": "object", "properties": {"b": {"type": "string", "x-hot": True}}},
        "/properties/a/properties/b/x-hot",
        "entity itself",
    ),
    (
        {"type": "object", "properties": {"b": {}, "B": {}}},
        "/properties/a/properties/B",
        "same column name",
    ),
    ({"x-compatibility": "none"}, "/properties/a/x-compatibility", "root"),
    ({"const": float("nan")}, "/properties/a/const", "finite"),
    ({"const": "\x00"}, "/properties/a/const", "NUL"),
]


@pytest.mark.parametrize(("schema", "pointer", "reason"), REFUSED)
def test_a_contract_is_refused_with_its_pointer_and_reason(schema, pointer, reason):
    found = refusals({"properties": {"a": schema}})
    assert reason in found[pointer]


@pytest.mark.parametrize(
    ("document", "pointer", "reason"),
    [
        ([], "", "object"),
        ({"type": "array"}, "/type", "an entity must be an object"),
        ({"type": ["object", "null"]}, "/type", "an entity must be an object"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "/$schema", "2020-12"),
        ({"properties": {"a": {}, "A": {}}}, "/properties/A", "same column name"),
        ({"properties": {"_ver": {}}}, "/properties/_ver", "reserved for columns"),
        ({"properties": {"": {}}}, "/properties/", "1 to 255"),
        ({"additionalProperties": False}, "/properties", "at least one property"),
        ({"x-compatibility": "sideways"}, "/x-compatibility", "backward"),
        ({"x-content": "ajar"}, "/x-content", "open or closed"),
    ],
)
def test_a_root_is_refused_with_its_pointer_and_reason(document, pointer, reason):
    assert reason in refusals(document)[pointer]


def test_every_refusal_is_told_at_once():
    document = {"properties": {"a": {"format": "datum"}, "b": {"minimun": 1}}}
    assert set(refusals(document)) == {"/properties/a/format", "/properties/b/minimun"}


def test_objects_are_closed_unless_they_say_otherwise():
    inner = {"type": "object", "properties": {"x": {}}}
    closed = contract_of(a=inner)
    with pytest.raises(Invalid) as caught:
        closed.validate({"a": {"x": 1, "y": 2}, "b": 3})
    pointers = {problem["pointer"] for problem in caught.value.facts["problems"]}
    assert pointers == {"/a/y", "/b"}
    for word in ("additionalProperties", "unevaluatedProperties"):
        opened = contract_of(a={**inner, word: True})
        assert opened.validate({"a": {"x": 1, "y": 2}})
    everywhere = parse_contract({"x-content": "open", "properties": {"a": inner}})
    assert everywhere.validate({"a": {"x": 1, "y": 2}, "b": 3})


def test_parts_of_one_object_are_closed_together():
    named = {"properties": {"name": {"type": "string"}}}
    contract = parse_contract(
        {
            "allOf": [{"$ref": "#/$defs/named"}],
            "properties": {"a": {"$ref": "#/$defs/named"}},
            "$defs": {"named": named},
        }
    )
    assert contract.validate({"name": "n", "a": {"name": "m"}})
    assert [column.name for column in contract.columns] == ["a", "name"]
    with pytest.raises(Invalid):
        contract.validate({"name": "n", "other": 1})
    with pytest.raises(Invalid):
        contract.validate({"a": {"other": 1}})


def test_recursion_is_checked_to_the_end():
    contract = parse_contract(
        {
            "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}},
            "required": ["v"],
        }
    )
    assert contract.validate({"v": 1, "next": {"v": 2, "next": {"v": 3}}})
    with pytest.raises(Invalid) as caught:
        contract.validate({"v": 1, "next": {"v": 2, "next": {"w": 3}}})
    pointers = [problem["pointer"] for problem in caught.value.facts["problems"]]
    assert "/next/next/v" in pointers
    assert "/next/next/w" in pointers


def test_a_document_of_draft_07_means_what_it_did():
    contract = parse_contract(
        {
            "$schema": DRAFT_07,
            "type": "object",
            "definitions": {"s": {"type": "string"}},
            "properties": {
                "a": {"$ref": "#/definitions/s", "maxLength": 1},
                "b": {"type": "array", "items": [{"type": "integer"}], "additionalItems": False},
                "c": {},
                "d": {},
            },
            "dependencies": {"c": ["d"]},
        }
    )
    assert contract.validate({"a": "longer than one", "b": [1]})
    with pytest.raises(Invalid):
        contract.validate({"b": [1, 2]})
    with pytest.raises(Invalid):
        contract.validate({"c": 1})


def test_a_contract_may_refer_to_documents_that_are_registered():
    money = {"$defs": {"amount": {"type": "number", "x-type": "decimal(18,2)"}}}
    address = "https://types.example/money"
    document = {"properties": {"a": {"$ref": address + "#/$defs/amount"}}}
    contract = parse_contract(document, known={address: money})
    assert contract.columns[0].postgres_type == "numeric(18,2)"
    assert "fetched" in refusals(document)["/properties/a/$ref"]


def test_a_contract_survives_pickling():
    contract = contract_of(a={"type": "integer"})
    contract.validate({"a": 1})
    again = pickle.loads(pickle.dumps(contract))
    assert again == contract
    assert again.validate_bytes(b'{"a":1}') == {"a": 1}


@pytest.mark.parametrize("value", [None, "", 5, "x" * 256, " a", "a\x00", "a\n", True])
def test_an_id_is_never_null_or_empty_or_unprintable(value):
    with pytest.raises(Invalid):
        parse_id(value)


@pytest.mark.parametrize("value", ["a", "order/17", "Ünïcode", "x" * 255])
def test_an_id_is_any_printable_text(value):
    assert parse_id(value) == value
