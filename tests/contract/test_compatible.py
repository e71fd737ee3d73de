"""Each row of the compatibility rules, both ways; no incompatible contract is accepted."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from contract.made import contracts_and_documents, fields
from thermocline.contract.evolve.compatible import evolve_contract, find_incompatibilities
from thermocline.contract.evolve.difference import diff_documents
from thermocline.contract.schema.register import parse_contract
from thermocline.errors import Invalid

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
TEXT = {"type": "string"}
MONEY = {"type": "number", "x-type": "decimal(18,2)"}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}


def of(*required, **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


def listed(items):
    return {"type": "array", "items": items}


ALLOWED = {
    "add an optional property": (of(a=TEXT), of(a=TEXT, b=TEXT)),
    "drop from required": (of("a", a=TEXT), of(a=TEXT)),
    "widen a minimum": (
        of(a={"type": "integer", "minimum": 5}),
        of(a={"type": "integer", "minimum": 3}),
    ),
    "drop a maximum": (of(a={"type": "integer", "maximum": 5}), of(a={"type": "integer"})),
    "widen a length": (of(a={**TEXT, "maxLength": 5}), of(a={**TEXT, "maxLength": 9})),
    "drop a pattern": (of(a={**TEXT, "pattern": "^a"}), of(a=TEXT)),
    "add a value": (of(a={"enum": ["x"]}), of(a={"enum": ["x", "y"]})),
    "an enum becomes text": (of(a={"type": "string", "enum": ["x"]}), of(a=TEXT)),
    "make nullable": (of(a=TEXT), of(a={"type": ["string", "null"]})),
    "integer to number": (of(a={"type": "integer"}), of(a={"type": "number"})),
    "add a description": (of(a=TEXT), of(a={**TEXT, "description": "the a"})),
    "add a default": (of(a=TEXT), of(a={**TEXT, "default": "x"})),
    "add required with a default": (of(a=TEXT), of("b", a=TEXT, b={**TEXT, "default": "x"})),
    "make hot": (of(a=TEXT), of(a={**TEXT, "x-hot": True})),
    "more digits": (of(a=MONEY), of(a={"type": "number", "x-type": "decimal(20,2)"})),
    "more bits": (of(a={"type": "integer", "x-type": "int32"}), of(a={"type": "integer"})),
    "a float becomes a double": (
        of(a={"type": "number", "x-type": "float"}),
        of(a={"type": "number"}),
    ),
    "add an optional property inside": (
        of(a=POINT),
        of(a={**POINT, "properties": {"x": {"type": "integer"}, "y": TEXT}}),
    ),
    "widen items": (of(a=listed({"enum": ["x"]})), of(a=listed({"enum": ["x", "y"]}))),
    "open a closed root": (of(a=TEXT), {**of(a=TEXT), "additionalProperties": True}),
    "a coarser multiple becomes finer": (
        of(a={"type": "integer", "multipleOf": 6}),
        of(a={"type": "integer", "multipleOf": 3}),
    ),
    "say the same by a reference": (
        of(a=TEXT),
        {**of(a={"$ref": "#/$defs/t"}), "$defs": {"t": TEXT}},
    ),
    "nothing at all": (of(a=TEXT), of(a=TEXT)),
}
REFUSED = {
    "add required": (of(a=TEXT), of("b", a=TEXT, b=TEXT), "/properties/b", "required"),
    "require what was optional": (of(a=TEXT), of("a", a=TEXT), "/properties/a", "required"),
    "remove": (of(a=TEXT, b=TEXT), of(a=TEXT), "/properties/b", "removed"),
    "rename": (of(a=TEXT), of(b=TEXT), "/properties/a", "removed"),
    "rename by id": (of(a=TEXT), of(b={**TEXT, "x-id": 1}), "/properties/a", "removed"),
    "change a type": (of(a=TEXT), of(a={"type": "integer"}), "/properties/a/type", "changed"),
    "number to integer": (
        of(a={"type": "number"}),
        of(a={"type": "integer"}),
        "/properties/a/type",
        "number",
    ),
    "forbid null": (of(a={"type": ["string", "null"]}), of(a=TEXT), "/properties/a/type", "null"),
    "raise a minimum": (
        of(a={"type": "integer", "minimum": 3}),
        of(a={"type": "integer", "minimum": 5}),
        "/properties/a/minimum",
        "from 3 to 5",
    ),
    "add a maximum": (
        of(a={"type": "integer"}),
        of(a={"type": "integer", "maximum": 5}),
        "/properties/a/maximum",
        "none to 5",
    ),
    "shorten": (of(a=TEXT), of(a={**TEXT, "maxLength": 5}), "/properties/a/maxLength", "length"),
    "add a pattern": (
        of(a=TEXT),
        of(a={**TEXT, "pattern": "^a"}),
        "/properties/a/pattern",
        "added",
    ),
    "change a pattern": (
        of(a={**TEXT, "pattern": "^a"}),
        of(a={**TEXT, "pattern": "^b"}),
        "/properties/a/pattern",
        "changed",
    ),
    "add a format": (of(a=TEXT), of(a={**TEXT, "format": "date"}), "/properties/a/format", "added"),
    "drop a format": (
        of(a={**TEXT, "format": "date"}),
        of(a=TEXT),
        "/properties/a",
        "date32[day] to string",
    ),
    "remove a value": (
        of(a={"enum": ["x", "y"]}),
        of(a={"enum": ["x"]}),
        "/properties/a/enum",
        '"y"',
    ),
    "list the values": (of(a=TEXT), of(a={**TEXT, "enum": ["x"]}), "/properties/a/enum", "listed"),
    "fewer digits": (
        of(a=MONEY),
        of(a={"type": "number", "x-type": "decimal(10,2)"}),
        "/properties/a/x-type",
        "narrow",
    ),
    "another scale": (
        of(a=MONEY),
        of(a={"type": "number", "x-type": "decimal(20,4)"}),
        "/properties/a/x-type",
        "narrow",
    ),
    "a double becomes money": (
        of(a={"type": "number"}),
        of(a=MONEY),
        "/properties/a",
        "column would change",
    ),
    "fewer bits": (
        of(a={"type": "integer"}),
        of(a={"type": "integer", "x-type": "int32"}),
        "/properties/a/x-type",
        "narrow",
    ),
    "close an open root": (
        {**of(a=TEXT), "additionalProperties": True},
        of(a=TEXT),
        "",
        "no longer allowed",
    ),
    "name a property of an open root": (
        {**of(a=TEXT), "additionalProperties": True},
        {**of(a=TEXT, b=TEXT), "additionalProperties": True},
        "/properties/b",
        "was open",
    ),
    "open a closed object inside": (
        of(a=POINT),
        of(a={**POINT, "additionalProperties": True}),
        "/properties/a",
        "column would change",
    ),
    "require inside, whatever the default": (
        of(a=POINT),
        of(
            a={
                "type": "object",
                "properties": {"x": {"type": "integer", "default": 0}},
                "required": ["x"],
            }
        ),
        "/properties/a/properties/x",
        "required",
    ),
    "narrow items": (
        of(a=listed({"enum": ["x", "y"]})),
        of(a=listed({"enum": ["x"]})),
        "/properties/a/items/enum",
        '"y"',
    ),
    "differ from each other": (
        of(a=listed(TEXT)),
        of(a={**listed(TEXT), "uniqueItems": True}),
        "/properties/a/uniqueItems",
        "differ",
    ),
    "add a condition": (of(a=TEXT), {**of(a=TEXT), "not": {"required": ["a"]}}, "", "proved"),
    "add a condition to a property": (
        of(a=TEXT),
        of(a={**TEXT, "not": {"const": "x"}}),
        "/properties/a",
        "proved",
    ),
    "a finer multiple becomes coarser": (
        of(a={"type": "integer", "multipleOf": 3}),
        of(a={"type": "integer", "multipleOf": 6}),
        "/properties/a/multipleOf",
        "multiples",
    ),
}


def refusals(old, new, mode=""):
    before = parse_contract(old)
    found = find_incompatibilities(before, parse_contract(new, before), mode)
    return {refusal.pointer: refusal.reason for refusal in found}


@pytest.mark.parametrize(("old", "new"), ALLOWED.values(), ids=ALLOWED)
def test_a_change_that_keeps_every_document_valid_is_allowed(old, new):
    assert refusals(old, new) == {}
    assert evolve_contract(new, parse_contract(old)).version == 2


@pytest.mark.parametrize(("old", "new", "pointer", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_change_that_may_break_documents_is_refused_with_its_place(old, new, pointer, reason):
    found = refusals(old, new)
    assert reason in found[pointer], found
    with pytest.raises(Invalid) as caught:
        evolve_contract(new, parse_contract(old))
    assert {"pointer": pointer, "reason": found[pointer]} in caught.value.facts["problems"]
    assert caught.value.facts["mode"] == "backward"


@pytest.mark.parametrize(
    ("mode", "new", "is_allowed"),
    [
        ("backward", of(a=TEXT, b=TEXT), True),
        ("forward", of(a=TEXT, b=TEXT), False),
        ("forward", of("a", a=TEXT), True),
        ("backward", of("a", a=TEXT), False),
        ("full", of(a={**TEXT, "description": "x"}), True),
        ("full", of("a", a=TEXT), False),
        ("full", of(a=TEXT, b=TEXT), False),
        ("none", of(z={"type": "integer"}), True),
    ],
)
def test_the_mode_of_the_registered_contract_decides(mode, new, is_allowed):
    old = parse_contract({**of(a=TEXT), "x-compatibility": mode})
    assert (find_incompatibilities(old, parse_contract(new, old)) == []) is is_allowed


def test_what_became_required_is_filled_in_with_its_default():
    before = parse_contract(of(a=TEXT))
    after = evolve_contract(of("b", a=TEXT, b={**TEXT, "default": "x"}), before)
    assert after.fill_defaults({"a": "1"}) == {"a": "1", "b": "x"}
    assert after.fill_defaults({"a": "1", "b": "y"}) == {"a": "1", "b": "y"}


@pytest.mark.slow
@SETTINGS
@given(contracts_and_documents(), fields(), st.data())
def test_documents_of_a_version_fit_every_version_that_may_follow_it(made, other, data):
    schema, documents = made
    names = list(schema["properties"])
    name = data.draw(st.sampled_from([*names, "added"]))
    new = {**schema, "properties": {**schema["properties"], name: other[0]}}
    required = data.draw(st.lists(st.sampled_from(names), unique=True))
    if data.draw(st.booleans()):
        new["required"] = required
    before = parse_contract(schema)
    after = parse_contract(new, before)
    assume(not find_incompatibilities(before, after))
    for document in documents:
        kept = before.validate(document)
        assert after.validate(kept) == kept


@SETTINGS
@given(contracts_and_documents())
def test_a_contract_may_follow_itself(made):
    schema, _ = made
    before = parse_contract(schema)
    assert find_incompatibilities(before, parse_contract(schema, before), "full") == []


def test_a_diff_names_each_change_with_its_pointer():
    old = of("a", a=TEXT, b={"enum": ["x", "y"]}, c={"type": "integer"})
    new = of("a", "b", a={**TEXT, "maxLength": 3}, b={"enum": ["x", "z"]}, d=TEXT)
    found = [
        (change.pointer, change.change, change.before, change.after)
        for change in diff_documents(old, new)
    ]
    assert found == [
        ("/properties/c", "removed", {"type": "integer"}, None),
        ("/properties/a/maxLength", "added", None, 3),
        ("/properties/b/enum", "removed", "y", None),
        ("/properties/b/enum", "added", None, "z"),
        ("/properties/d", "added", None, TEXT),
        ("/required", "added", None, "b"),
    ]
    assert diff_documents(old, old) == []
    assert diff_documents(of(a=TEXT), of(a={"type": "integer"}))[0].as_json() == {
        "pointer": "/properties/a/type",
        "change": "changed",
        "before": "string",
        "after": "integer",
    }
