"""Columns keep their ids from version to version."""

import pyarrow as pa
import pytest

from contract.made import contract_of, kind_column
from thermocline.contract.document.column import can_widen, decode_columns
from thermocline.contract.schema.register import parse_contract
from thermocline.errors import Corruption, Invalid

TEXT = {"type": "string"}


def ids(contract):
    return {column.name: column.id for column in contract.columns}


def test_ids_go_on_in_any_order_and_new_ones_are_new():
    first = contract_of(a=TEXT, b=TEXT)
    second = contract_of(first, c=TEXT, b=TEXT, a=TEXT)
    assert ids(first) == {"a": 1, "b": 2}
    assert ids(second) == {"c": 3, "b": 2, "a": 1}
    assert second.version == 2


def test_a_rename_by_id_keeps_the_column():
    second = contract_of(contract_of(a=TEXT, b=TEXT), z={**TEXT, "x-id": 1}, b=TEXT)
    assert ids(second) == {"z": 1, "b": 2}
    assert second.retired == ()
    third = contract_of(second, z=TEXT, b=TEXT)
    assert ids(third) == {"z": 1, "b": 2}


@pytest.mark.parametrize(
    ("old", "new", "is_in_place"),
    [
        ({"type": "integer", "x-type": "int32"}, {"type": "integer"}, True),
        ({"type": "number", "x-type": "float"}, {"type": "number"}, True),
        (
            {"type": "number", "x-type": "decimal(10,2)"},
            {"type": "number", "x-type": "decimal(18,2)"},
            True,
        ),
        ({"enum": ["a"]}, TEXT, True),
        ({"type": "integer"}, {"type": "integer", "x-type": "int32"}, False),
        (
            {"type": "number", "x-type": "decimal(10,2)"},
            {"type": "number", "x-type": "decimal(18,4)"},
            False,
        ),
        (TEXT, {"type": "integer"}, False),
        ({"type": "integer"}, {"type": "number"}, False),
        ({"type": "integer", "x-type": "int32"}, {"type": "number"}, False),
        ({**TEXT, "format": "date"}, {**TEXT, "format": "date-time"}, False),
    ],
)
def test_a_column_widens_in_place_or_becomes_a_new_one(old, new, is_in_place):
    first = contract_of(a=old)
    second = contract_of(first, a=new)
    assert (ids(second) == {"a": 1}) is is_in_place
    if not is_in_place:
        assert ids(second) == {"a": 2}
        assert [(column.id, column.name) for column in second.retired] == [(1, "a__1")]


def test_an_id_is_never_used_twice():
    first = contract_of(a=TEXT, b=TEXT)
    second = contract_of(first, a=TEXT)
    assert [(column.id, column.name) for column in second.retired] == [(2, "b")]
    third = contract_of(second, a=TEXT, b=TEXT)
    assert ids(third) == {"a": 1, "b": 3}
    assert [(column.id, column.name) for column in third.retired] == [(2, "b__2")]
    fourth = contract_of(third, a=TEXT)
    assert {column.id for column in fourth.retired} == {2, 3}


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"a": {**TEXT, "x-id": 7}, "b": {**TEXT, "x-id": 7}}, "already"),
        ({"z": {"type": "integer", "x-id": 1}}, "cannot become"),
    ],
)
def test_an_id_that_cannot_be_given_is_refused(properties, reason):
    first = contract_of(a=TEXT)
    with pytest.raises(Invalid) as caught:
        contract_of(first, **properties)
    assert reason in caught.value.facts["problems"][0]["reason"]


def test_a_retired_id_cannot_be_asked_for():
    second = contract_of(contract_of(a=TEXT, b=TEXT), a=TEXT)
    with pytest.raises(Invalid) as caught:
        contract_of(second, a=TEXT, c={**TEXT, "x-id": 2})
    assert "already" in caught.value.facts["problems"][0]["reason"]


def test_extra_and_nulls_have_ids_like_any_column():
    document = {"properties": {"a": {"type": ["string", "null"]}}, "additionalProperties": True}
    first = parse_contract(document)
    assert ids(first) == {"a": 1, "_extra": 2, "_nulls": 3}
    wider = {**document, "properties": {**document["properties"], "b": {}}}
    assert ids(parse_contract(wider, first)) == {"a": 1, "b": 4, "_extra": 2, "_nulls": 3}


def test_promotion_to_hot_keeps_the_column():
    second = contract_of(contract_of(a=TEXT), a={**TEXT, "x-hot": True})
    assert ids(second) == {"a": 1}
    assert kind_column(second, "a").is_hot


def test_types_that_are_stored_alike_are_one():
    assert can_widen(pa.string(), pa.dictionary(pa.int32(), pa.string()))
    assert not can_widen(pa.int32(), pa.int64())
    assert not can_widen(pa.date64(), pa.date32())


def test_columns_that_are_none_are_corruption():
    with pytest.raises(Corruption):
        decode_columns({"columns": [{"id": 1}], "retired": [], "next_id": 2})
