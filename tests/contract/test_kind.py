"""Each row of the mapping: a schema, its Arrow type, its PostgreSQL type, a value in and out."""

import pyarrow as pa
import pytest

from contract.made import contract_of, kind_column
from thermocline.contract.schema.register import parse_contract
from thermocline.errors import Invalid

UTC = pa.timestamp("us", tz="UTC")
STRUCT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}
TREE = {"$ref": "#/$defs/tree"}
DEFINED = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"leaves": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        },
        "point": STRUCT,
    }
}

ROWS = [
    ("text", {"type": "string"}, pa.string(), "text"),
    ("uuid", {"type": "string", "format": "uuid"}, pa.string(), "uuid"),
    ("date", {"type": "string", "format": "date"}, pa.date32(), "date"),
    ("instant", {"type": "string", "format": "date-time"}, UTC, "timestamptz"),
    ("time", {"type": "string", "format": "time"}, pa.string(), "text"),
    (
        "decimal in text",
        {"type": "string", "x-type": "decimal(18,2)"},
        pa.decimal128(18, 2),
        "numeric(18,2)",
    ),
    (
        "decimal number",
        {"type": "number", "x-type": "decimal(38,0)"},
        pa.decimal128(38, 0),
        "numeric(38,0)",
    ),
    ("integer", {"type": "integer"}, pa.int64(), "bigint"),
    ("int32", {"type": "integer", "x-type": "int32"}, pa.int32(), "integer"),
    ("int8", {"type": "integer", "x-type": "int8"}, pa.int8(), "smallint"),
    ("number", {"type": "number"}, pa.float64(), "double precision"),
    ("float", {"type": "number", "x-type": "float"}, pa.float32(), "real"),
    ("boolean", {"type": "boolean"}, pa.bool_(), "boolean"),
    ("enum", {"enum": ["a", "b"]}, pa.dictionary(pa.int32(), pa.string()), "text"),
    ("const", {"const": "a"}, pa.dictionary(pa.int32(), pa.string()), "text"),
    ("enum of numbers", {"enum": [1, 2]}, pa.int64(), "bigint"),
    ("mixed enum", {"enum": [1, "a"]}, pa.string(), "jsonb"),
    ("nullable", {"type": ["integer", "null"]}, pa.int64(), "bigint"),
    ("either null", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, pa.int64(), "bigint"),
    ("closed object", STRUCT, pa.struct([("x", pa.int64()), ("y", pa.string())]), "jsonb"),
    (
        "reference",
        {"$ref": "#/$defs/point"},
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        "jsonb",
    ),
    ("open object", {**STRUCT, "additionalProperties": True}, pa.string(), "jsonb"),
    ("object of anything", {"type": "object"}, pa.string(), "jsonb"),
    (
        "map",
        {"type": "object", "additionalProperties": {"type": "integer"}},
        pa.map_(pa.string(), pa.int64()),
        "jsonb",
    ),
    ("list", {"type": "array", "items": {"type": "string"}}, pa.list_(pa.string()), "jsonb"),
    (
        "list of objects",
        {"type": "array", "items": STRUCT},
        pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())])),
        "jsonb",
    ),
    ("list of anything", {"type": "array"}, pa.string(), "jsonb"),
    ("tuple", {"type": "array", "prefixItems": [{"type": "string"}]}, pa.string(), "jsonb"),
    ("one of", {"oneOf": [{"type": "string"}, {"type": "integer"}]}, pa.string(), "jsonb"),
    ("mixed types", {"type": ["string", "integer"]}, pa.string(), "jsonb"),
    ("recursion", TREE, pa.string(), "jsonb"),
    ("anything", {}, pa.string(), "jsonb"),
    ("forced JSON", {**STRUCT, "x-type": "json"}, pa.string(), "jsonb"),
    (
        "parts put together",
        {"allOf": [{"type": "string"}, {"format": "date"}]},
        pa.date32(),
        "date",
    ),
    (
        "objects put together",
        {
            "type": "object",
            "allOf": [{"properties": {"x": {"type": "integer"}}}],
            "properties": {"y": {"type": "string"}},
        },
        pa.struct([("y", pa.string()), ("x", pa.int64())]),
        "jsonb",
    ),
]


@pytest.mark.parametrize(
    ("schema", "kind", "postgres"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_schema_maps_to_its_column(schema, kind, postgres):
    contract = parse_contract({"properties": {"a": schema}, **DEFINED})
    column = kind_column(contract, "a")
    assert column.type == kind
    assert column.postgres_type == postgres


def test_enums_inside_objects_are_plain_text():
    contract = contract_of(a={"type": "array", "items": {"enum": ["x", "y"]}})
    assert kind_column(contract, "a").type == pa.list_(pa.string())


def test_a_column_of_a_required_property_is_not_null():
    contract = parse_contract({"properties": {"a": {}, "b": {"type": "string"}}, "required": ["b"]})
    assert kind_column(contract, "a").nullable
    assert not kind_column(contract, "b").nullable


def test_conditions_at_the_root_are_checked_and_choose_no_column():
    contract = parse_contract(
        {
            "properties": {"kind": {"enum": ["a", "b"]}},
            "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
            "then": {"properties": {"size": {"type": "integer"}}, "required": ["size"]},
            "not": {"required": ["forbidden"]},
        }
    )
    assert [column.name for column in contract.columns] == ["kind", "_extra"]
    document = {"kind": "a", "size": 3}
    kept = contract.validate(document)
    assert contract.document_of(contract.arrow_rows([kept]).to_pylist()[0]) == document
    with pytest.raises(Invalid):
        contract.validate({"kind": "a"})
    with pytest.raises(Invalid):
        contract.validate({"kind": "b", "other": 1})


def test_one_of_with_a_discriminating_constant_is_checked():
    card = {
        "type": "object",
        "properties": {"by": {"const": "card"}, "number": {"type": "string"}},
        "required": ["by", "number"],
    }
    cash = {"type": "object", "properties": {"by": {"const": "cash"}}, "required": ["by"]}
    contract = contract_of(paid={"oneOf": [card, cash]})
    assert contract.validate({"paid": {"by": "cash"}}) == {"paid": {"by": "cash"}}
    with pytest.raises(Invalid):
        contract.validate({"paid": {"by": "card"}})
    with pytest.raises(Invalid):
        contract.validate({"paid": {"by": "cash", "more": 1}})


def test_hot_columns_are_those_that_ask_for_it():
    contract = contract_of(
        a={"type": "string", "format": "uuid", "x-hot": True}, b={"type": "integer"}
    )
    assert [column.name for column in contract.hot_columns] == ["a"]
    values, rest = contract.split(
        contract.validate({"a": "123e4567-e89b-42d3-a456-426614174000", "b": 1})
    )
    assert str(values[1]) == "123e4567-e89b-42d3-a456-426614174000"
    assert rest == {"b": 1}


def test_unknown_properties_of_an_open_contract_stand_in_extra():
    contract = parse_contract({"properties": {"a": {}}, "additionalProperties": True})
    assert [column.name for column in contract.columns] == ["a", "_extra"]
    row = contract.arrow_rows([contract.validate({"a": 1, "z": [1.5]})]).to_pylist()[0]
    assert row == {"a": "1", "_extra": '{"z":[1.5]}'}


@pytest.mark.parametrize("document", [{"a": None, "b": 1}, {"b": 1}, {"a": 5, "b": 1}])
def test_a_null_of_a_hot_column_is_told_from_an_absent_one(document):
    contract = contract_of(a={"type": ["integer", "null"], "x-hot": True}, b={"type": "integer"})
    values, rest = contract.split(contract.validate(document))
    assert values == {1: document.get("a")}
    assert contract.join(values, rest) == document
