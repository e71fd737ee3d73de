"""What words on a command line mean."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import thermocline as tc
from thermocline.cli.argument import (
    parse_at,
    parse_entity,
    parse_parameter,
    parse_parameters,
    parse_txn,
)
from thermocline.cold.coverage_report import report_coverage
from thermocline.errors import Invalid
from thermocline.format.instant import Nanoseconds
from thermocline.format.types import parse_type


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("5", 5),
        ("-1.5", -1.5),
        ("true", True),
        ("null", None),
        ("NVDA", "NVDA"),
        ("", ""),
        ('"5"', "5"),
        ("[1]", "[1]"),
        ("2024-06-01", datetime(2024, 6, 1, tzinfo=UTC)),
        ("2024-06-01T12:30:00Z", datetime(2024, 6, 1, 12, 30, tzinfo=UTC)),
        ('"2024-06-01"', "2024-06-01"),
        ("007", "007"),
        ("00100000000000000000", "00100000000000000000"),
        ("18446744073709551617", 18446744073709551617),
        ("-9007199254740993", -9007199254740993),
        ("9007199254740993.5", Decimal("9007199254740993.5")),
        ("2024-06-01T12:30:00.5", datetime(2024, 6, 1, 12, 30, 0, 500_000, tzinfo=UTC)),
        ("2024-06-01T12:30:00.123456789Z", Nanoseconds(1_717_245_000_123_456_789, True)),
    ],
)
def test_a_parameter_is_what_it_looks_like_and_text_in_quotes(word, value):
    found = parse_parameter(word)
    assert found == value
    assert type(found) is type(value)


def test_parameters_are_by_name_or_by_position():
    assert parse_parameters(["a=1", "b=x=y"]) == {"a": 1, "b": "x=y"}
    assert parse_parameters(["1", "x"]) == [1, "x"]
    assert parse_parameters(["a<=b"]) == ["a<=b"]
    assert parse_parameters([]) is None


def test_a_number_is_a_version_and_any_other_text_an_instant():
    assert parse_at("7") == 7
    assert parse_at("2024-06-01") == "2024-06-01"
    assert parse_at(None) is None


def test_a_transaction_is_a_name_and_a_number():
    assert parse_txn("a:b:7") == ("a:b", 7)
    for word in ("7", ":7", "a:", "a:-1", "a:٣"):
        with pytest.raises(Invalid):
            parse_txn(word)


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("int", pa.int64()),
        ("text", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp[ns,tz=UTC]", pa.timestamp("ns", tz="UTC")),
        ("decimal128(10,2)", pa.decimal128(10, 2)),
    ],
)
def test_types_have_short_names_and_need_no_exact_spaces(word, kind):
    assert parse_type(word) == kind


def held_by(tmp_path, **columns):
    """Return what a table holds whose entity is told by these columns."""
    table = tc.TimeSeriesTable.create(
        tmp_path / "t", time_column="ts", bucket="1h", entity_columns=list(columns)
    )
    times = pa.array([0, 3_600], pa.timestamp("s"))
    table.append(pa.table({"ts": times, **columns}))
    return report_coverage(table.cold)


def test_an_entity_has_values_of_its_columns_types(tmp_path):
    found = held_by(tmp_path, id=pa.array([1, 2], pa.int32()), name=["1", None])
    assert parse_entity(["id=1", "name=1"], found) == {"id": 1, "name": "1"}
    assert parse_entity(["name=null", "id=2"], found) == {"id": 2, "name": None}
    assert found.buckets(parse_entity(["name=null", "id=2"], found))
    assert parse_entity(None, found) is None


@pytest.mark.parametrize("words", [["id=1"], ["id=x", "name=a"], ["nope=1", "name=a"], ["1", "2"]])
def test_an_entity_that_is_not_named_whole_is_invalid(tmp_path, words):
    with pytest.raises(Invalid):
        parse_entity(words, held_by(tmp_path, id=[1, 2], name=["a", "b"]))


def test_one_entity_column_needs_no_name_even_if_the_value_has_an_equals_sign(tmp_path):
    found = held_by(tmp_path, symbol=["a=b", "c"])
    assert parse_entity(["a=b"], found) == {"symbol": "a=b"}
    assert parse_entity(["symbol=c"], found) == {"symbol": "c"}
