"""Columns return every document that a contract accepts, exactly."""

import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from contract.made import contract_of, contracts_and_documents
from thermocline.contract.document.text import decode, encode_text
from thermocline.contract.schema.register import parse_contract, restore_contract

MONEY = {"type": "number", "x-type": "decimal(18,2)"}
INSTANT = {"type": "string", "format": "date-time"}
UUID = "123e4567-e89b-42d3-a456-426614174000"
LONG = "0.1000000000000000055511151231257827"
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def stored(rows: pa.Table) -> list[dict]:
    """Return the rows after a round trip through a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return pq.read_table(io.BytesIO(sink.getvalue())).to_pylist(maps_as_pydicts=None)


@SETTINGS
@given(contracts_and_documents())
def test_documents_come_back_from_parquet_exactly(made):
    schema, documents = made
    contract = parse_contract(schema)
    kept = [contract.validate(document) for document in documents]
    rows = contract.arrow_rows(kept)
    assert rows.schema.names == [column.name for column in contract.columns]
    back = [contract.document_of(row) for row in stored(rows)]
    assert [same(one) for one in back] == [same(one) for one in kept]


@SETTINGS
@given(contracts_and_documents())
def test_the_same_document_as_bytes_as_lines_and_as_values_is_one(made):
    schema, documents = made
    contract = parse_contract(schema)
    kept = [contract.validate(document) for document in documents]
    lines = [encode_text(document).encode() for document in documents]
    assert [same(contract.validate_bytes(line)) for line in lines] == [same(k) for k in kept]
    assert list(map(same, contract.validate_lines(b"\n".join(lines)))) == list(map(same, kept))
    again = [contract.validate_bytes(encode_text(document).encode()) for document in kept]
    assert [same(one) for one in again] == [same(one) for one in kept]


@SETTINGS
@given(contracts_and_documents())
def test_a_document_split_for_the_store_is_joined_again(made):
    schema, documents = made
    hot = {
        name: {**inner, "x-hot": True}
        if inner.get("type") in ("string", "integer", "number", "boolean") or "enum" in inner
        else inner
        for name, inner in schema["properties"].items()
    }
    contract = parse_contract({**schema, "properties": hot})
    for document in documents:
        kept = contract.validate(document)
        values, rest = contract.split(kept)
        assert set(values) == {column.id for column in contract.hot_columns}
        given_back = decode(encode_text(rest).encode())
        assert same(contract.join(values, given_back)) == same(kept)


@SETTINGS
@given(contracts_and_documents())
def test_a_contract_from_the_registry_is_the_one_that_was_registered(made):
    schema, documents = made
    contract = parse_contract(schema)
    shuffled = json.loads(json.dumps(schema, sort_keys=True))
    again = restore_contract(shuffled, 1, json.loads(json.dumps(contract.columns_json)))
    assert again.columns == contract.columns
    kept = [contract.validate(document) for document in documents]
    assert again.arrow_rows(kept).equals(contract.arrow_rows(kept))


def same(value):
    """Return a value that equals only values of the same type and sign: 1 is not True."""
    if isinstance(value, dict):
        return {key: same(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [same(inner) for inner in value]
    if (
        isinstance(value, float)
        and value == int(value)
        and abs(value) < 2**53
        and str(value) != "-0.0"
    ):
        return ("number", int(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return ("number", value)
    return (type(value).__name__, str(value))


@pytest.mark.parametrize(
    ("schema", "is_required", "documents"),
    [
        ({"type": "string"}, True, [{"a": "x"}]),
        ({"type": ["string", "null"]}, True, [{"a": "x"}, {"a": None}]),
        ({"type": "string"}, False, [{"a": "x"}, {}]),
        ({"type": ["string", "null"]}, False, [{"a": "x"}, {"a": None}, {}]),
        ({"type": ["integer", "string", "null"]}, False, [{"a": 1}, {"a": None}, {}]),
        ({"type": "object"}, False, [{"a": {}}, {"a": {"b": None}}, {}]),
        (
            {"type": "object", "properties": {"b": {"type": ["integer", "null"]}}},
            False,
            [{"a": {}}, {"a": {"b": None}}, {"a": {"b": 1}}, {}],
        ),
        (
            {"type": "array", "items": {"type": ["integer", "null"]}},
            False,
            [{"a": []}, {"a": [None]}, {"a": [1, None]}, {}],
        ),
        (
            {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
            False,
            [{"a": {}}, {"a": {"k": None}}, {"a": {"k/~": 1}}, {}],
        ),
    ],
)
def test_absent_and_null_are_told_apart_where_both_may_be(schema, is_required, documents):
    document = {"properties": {"a": schema}, "required": ["a"] if is_required else []}
    contract = parse_contract(document)
    kept = [contract.validate(one) for one in documents]
    assert kept == documents
    assert [contract.document_of(row) for row in stored(contract.arrow_rows(kept))] == documents


def test_nulls_have_a_column_only_where_null_and_absent_may_both_be():
    def names(schema, *required):
        made = parse_contract({"properties": {"a": schema}, "required": list(required)})
        return [column.name for column in made.columns]

    assert names({"type": "string"}) == ["a"]
    assert names({"type": ["string", "null"]}, "a") == ["a"]
    assert names({"type": ["string", "null"]}) == ["a", "_nulls"]
    assert names({}) == ["a"]


@pytest.mark.parametrize(
    ("schema", "given_text", "kept"),
    [
        (MONEY, "0.1", Decimal("0.10")),
        (MONEY, "1234567890123456.78", Decimal("1234567890123456.78")),
        (MONEY, "1e2", Decimal("100.00")),
        (MONEY, "-0.00", Decimal("0.00")),
        ({"type": "string", "x-type": "decimal(18,2)"}, '"12.3"', "12.30"),
        ({"type": "integer"}, "9007199254740993.0", 9007199254740993),
        ({"type": "integer"}, "9223372036854775807", 2**63 - 1),
        (INSTANT, '"2024-06-01T12:00:00+02:00"', "2024-06-01T10:00:00Z"),
        (INSTANT, '"2024-06-01t12:00:00.120z"', "2024-06-01T12:00:00.12Z"),
        ({"type": "string", "format": "uuid"}, f'"{UUID.upper()}"', UUID),
        ({}, LONG, Decimal(LONG)),
        ({}, "123456789012345678901234567890", 123456789012345678901234567890),
        ({}, "0.1", 0.1),
    ],
)
def test_a_value_is_kept_in_its_canonical_form(schema, given_text, kept):
    contract = contract_of(a=schema)
    document = contract.validate_bytes(b'{"a":' + given_text.encode() + b"}")
    assert document == {"a": kept}
    assert type(document["a"]) is type(kept)
    back = contract.document_of(stored(contract.arrow_rows([document]))[0])
    assert back == {"a": kept}
    assert type(back["a"]) is type(kept)
