"""Contracts inferred from samples, and contracts as tools of language models."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.made import ANY_JSON, NAMES, contract_of, kind_column
from thermocline.contract.infer import infer_schema
from thermocline.contract.schema.register import parse_contract
from thermocline.contract.tool import tool_schema
from thermocline.errors import Invalid

SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(st.lists(st.dictionaries(NAMES, ANY_JSON, max_size=4), min_size=1, max_size=5))
def test_every_sample_fits_the_contract_guessed_from_it(samples):
    try:
        contract = parse_contract(infer_schema(samples))
    except Invalid as error:
        # Names that no column can have: empty ones, two that differ only in case, none at all.
        reasons = [problem["reason"] for problem in error.facts["problems"]]
        known = ("column name", "1 to 255", "at least one property")
        assert all(any(words in reason for words in known) for reason in reasons)
        return
    for sample in samples:
        kept = contract.validate(sample)
        assert contract.document_of(contract.arrow_rows([kept]).to_pylist()[0]) == kept


@pytest.mark.parametrize(
    ("samples", "schema"),
    [
        ([1, 2], {"type": "integer"}),
        ([1, 2.5], {"type": "number"}),
        ([1, None], {"type": ["integer", "null"]}),
        (["a", 1], {"type": ["integer", "string"]}),
        (["2024-06-01", "2024-06-02"], {"type": "string", "format": "date"}),
        (["2024-06-01", "x"], {"type": "string"}),
        (["2024-06-01T00:00:00Z"], {"type": "string", "format": "date-time"}),
        (["2024-06-01T00:00:00"], {"type": "string"}),
        (["123e4567-e89b-42d3-a456-426614174000"], {"type": "string", "format": "uuid"}),
        ([[1, 2], []], {"type": "array", "items": {"type": "integer"}}),
        ([2**70], {"type": "integer", "x-type": "json"}),
        (
            [{"x": 1}, {"x": 2, "y": True}],
            {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "boolean"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_a_guess_says_what_the_samples_have_in_common(samples, schema):
    assert infer_schema([{"a": sample} for sample in samples])["properties"]["a"] == schema


def test_an_object_of_many_names_is_a_map():
    made = infer_schema([{"a": {f"k{n}": n for n in range(500)}}])
    assert made["properties"]["a"]["additionalProperties"] == {"type": "integer"}
    assert str(kind_column(parse_contract(made), "a").type) == "map<string, int64>"


@pytest.mark.parametrize("samples", [[], [1], [{"a": 1}, None], [{"a": 1, "A": 2}], [{"_id": 1}]])
def test_samples_that_make_no_contract_are_refused(samples):
    with pytest.raises(Invalid):
        infer_schema(samples)


def test_a_model_is_given_what_is_checked_without_words_of_our_own():
    contract = parse_contract(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "description": "An order of a customer.",
            "type": "object",
            "properties": {
                "total": {"type": "number", "x-type": "decimal(18,2)", "x-hot": True},
                "to": {"$ref": "#/$defs/address"},
            },
            "$defs": {"address": {"type": "object", "properties": {"x-ray": {"type": "string"}}}},
        }
    )
    tool = tool_schema(contract, "create_order")
    assert tool == {
        "name": "create_order",
        "description": "An order of a customer.",
        "input_schema": {
            "type": "object",
            "description": "An order of a customer.",
            "properties": {
                "total": {"type": "number"},
                "to": {
                    "type": "object",
                    "properties": {"x-ray": {"type": "string"}},
                    "additionalProperties": False,
                },
            },
            "additionalProperties": False,
        },
    }
    other = tool_schema(contract, "create_order", form="openai")
    assert other["type"] == "function"
    assert other["function"]["parameters"] == tool["input_schema"]
    json.dumps(other)


@pytest.mark.parametrize("name", ["", "an order", "x" * 65, "ö"])
def test_a_tool_has_a_name_that_models_take(name):
    with pytest.raises(Invalid):
        tool_schema(contract_of(a={}), name)
