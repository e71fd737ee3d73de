"""Documents are checked completely, and all their problems are reported."""

from decimal import Decimal

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.made import ANY_JSON, contract_of, contracts_and_documents
from thermocline.contract.document.text import encode_text
from thermocline.contract.schema.pointer import PROBLEMS_MAX
from thermocline.contract.schema.register import parse_contract
from thermocline.errors import Invalid

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
MONEY = {"type": "number", "x-type": "decimal(5,2)"}
INSTANT = {"type": "string", "format": "date-time"}


def problems(contract, document):
    with pytest.raises(Invalid) as caught:
        contract.validate(document)
    told = caught.value.facts["problems"]
    with pytest.raises(Invalid) as caught:
        contract.validate_bytes(encode_text(document).encode())
    assert caught.value.facts["problems"] == told
    return [(one["pointer"], one["expected"], one["got"]) for one in told]


@pytest.mark.parametrize(
    ("schema", "value", "expected", "got"),
    [
        ({"type": "string"}, 5, "string", "5"),
        ({"type": ["string", "null"]}, 5, "null or string", "5"),
        ({"type": "integer"}, 1.5, "integer", "1.5"),
        ({"type": "integer"}, 2**63, "at most 9223372036854775807", "9223372036854775808"),
        (
            {"type": "integer"},
            -(2**63) - 1,
            "at least -9223372036854775808",
            "-9223372036854775809",
        ),
        ({"type": "integer", "x-type": "int8"}, 128, "at most 127", "128"),
        ({"type": "number"}, 2**53 + 1, "a number that a double holds", str(2**53 + 1)),
        ({"type": "number", "x-type": "float"}, 2**24 + 1, "32 bits hold", str(2**24 + 1)),
        ({"type": "number"}, 10**309, "a number that a double holds", "1" + "0" * 76 + "..."),
        ({"type": "number", "x-type": "float"}, 10**39, "32 bits hold", str(10**39)),
        (MONEY, 1.005, "at most 2 digits after the point", "1.005"),
        (MONEY, Decimal("1000.00"), "at most 3 digits before the point", "1000.00"),
        ({**MONEY, "type": "string"}, "1.005", "matches", '"1.005"'),
        ({**MONEY, "type": "string"}, "1e2", "matches", '"1e2"'),
        (INSTANT, "2024-06-01T12:00:00", "an instant with its offset", '"2024-06-01T12:00:00"'),
        (INSTANT, "2024-06-01T12:00:00.1234567Z", "microseconds", '"2024-06-01T12:00:00.1234567Z"'),
        (INSTANT, "2016-12-31T23:59:60Z", "leap seconds", '"2016-12-31T23:59:60Z"'),
        (INSTANT, "0000-06-01T12:00:00Z", "years 0001 to 9999", '"0000-06-01T12:00:00Z"'),
        (INSTANT, "0001-01-01T00:00:00+01:00", "years 0001", '"0001-01-01T00:00:00+01:00"'),
        ({"type": "string", "format": "date"}, "0000-01-01", "0001 to 9999", '"0000-01-01"'),
        ({"type": "string", "format": "date"}, "2023-02-29", "a date", '"2023-02-29"'),
        ({"type": "string", "format": "uuid"}, "123", "a UUID", '"123"'),
        ({"type": "string", "format": "email"}, "a", "email", '"a"'),
        ({"enum": ["x", None]}, "y", 'one of "x", null', '"y"'),
        ({"enum": list(range(30))}, 99, "and 20 more", "99"),
        ({"const": 1}, 2, "1", "2"),
        ({"type": "string", "maxLength": 2}, "abc", "at most 2 characters", '"abc"'),
        ({"type": "string", "pattern": "^a"}, "b", 'matches "^a"', '"b"'),
        ({"type": "integer", "multipleOf": 3}, 4, "a multiple of 3", "4"),
        ({"type": "array", "uniqueItems": True}, [1, 1], "differ", "[1,1]"),
        ({"type": "array", "maxItems": 1}, [1, 1], "at most 1 items", "[1,1]"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, 1.5, "alternatives", "1.5"),
        ({"not": {"const": 1}}, 1, "schema in `not`", "1"),
        ({"type": "string", "maxLength": 2}, "a" * 999, "at most", '"' + "a" * 76 + "..."),
    ],
)
def test_a_problem_says_what_was_expected_and_what_came(schema, value, expected, got):
    ((pointer, wanted, came),) = problems(contract_of(a=schema), {"a": value})
    assert pointer == "/a"
    assert expected in wanted
    assert came == got


def test_all_problems_are_told_at_once_with_their_pointers():
    contract = parse_contract(
        {
            "properties": {
                "a": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"b/~": {"type": "integer"}}},
                },
                "c": MONEY,
                "d": {"type": "string"},
            },
            "required": ["d"],
        }
    )
    found = problems(contract, {"a": [{"b/~": 1}, {"b/~": "x"}], "c": 0.001, "e": 1})
    assert {pointer for pointer, _, _ in found} == {"/a/1/b~1~0", "/c", "/d", "/e"}


def test_the_number_of_problems_is_bounded_and_says_so():
    contract = contract_of(a={"type": "array", "items": {"type": "string"}})
    with pytest.raises(Invalid) as caught:
        contract.validate({"a": [1] * 1000})
    assert len(caught.value.facts["problems"]) == PROBLEMS_MAX
    assert caught.value.facts["is_complete"] is False
    with pytest.raises(Invalid) as caught:
        contract.validate({"a": [1] * 10})
    assert caught.value.facts["is_complete"] is True


@pytest.mark.parametrize("document", [None, 5, "x", [], [{}]])
def test_what_is_no_object_is_no_entity(document):
    assert problems(contract_of(a={}), document)[0][:2] == ("", "object")


def test_lines_name_the_line_of_each_problem():
    contract = contract_of(a={"type": "integer"})
    assert contract.validate_lines(b'{"a":1}\n\n{"a":2}\r\n') == [{"a": 1}, {"a": 2}]
    with pytest.raises(Invalid) as caught:
        contract.validate_lines(b'{"a":1}\n{"a":"x"}\n{"b":1}\n{"a":')
    pointers = [problem["pointer"] for problem in caught.value.facts["problems"]]
    assert pointers == ["/1/a", "/2/b", "/3"]


def test_a_line_is_one_document():
    contract = contract_of(a={"type": "integer"})
    with pytest.raises(Invalid):
        contract.validate_lines(b'{"a":\n1}')
    with pytest.raises(Invalid):
        contract.validate_lines(b'{"a":1}{"a":2}')


def test_an_integer_in_lines_keeps_all_its_digits():
    contract = contract_of(a={"type": "integer"})
    made = contract.validate_lines(b'{"a":1}\n{"a":9007199254740993.0}')
    assert made == [{"a": 1}, {"a": 9007199254740993}]


def test_the_document_given_is_left_as_it_is():
    contract = contract_of(a=INSTANT, b={"type": "object", "properties": {"c": MONEY}})
    document = {"a": "2024-06-01T12:00:00+02:00", "b": {"c": 1}}
    assert contract.validate(document) != document
    assert document == {"a": "2024-06-01T12:00:00+02:00", "b": {"c": 1}}


def oracle(schema):
    """Return the verdict of another implementation on the schema that validates."""
    checker = jsonschema.FormatChecker()
    return jsonschema.Draft202012Validator(schema, format_checker=checker)


@SETTINGS
@given(contracts_and_documents(), st.data())
def test_another_implementation_agrees_on_every_document(made, data):
    schema, documents = made
    contract = parse_contract(schema)
    other = oracle(contract.schema)
    name = data.draw(st.sampled_from([*schema["properties"], "unknown"]))
    for document in documents:
        assert contract.is_fitting(document)
        assert other.is_valid(plain(document))
        changed = {**document, name: data.draw(ANY_JSON)}
        if data.draw(st.booleans()):
            changed.pop(name)
        if not contract.is_fitting(changed):
            # Our verdict may be stricter, by the limits of columns, and never more lenient.
            told = problems_of(contract, changed)
            assert not other.is_valid(plain(changed)) or all(
                "at most 9223372036854775807" in one
                or "at least -9223372036854775808" in one
                or "at most 2147483647" in one
                or "at least -2147483648" in one
                or "matches" in one
                for one in told
            )
        else:
            assert other.is_valid(plain(changed))


def problems_of(contract, document):
    with pytest.raises(Invalid) as caught:
        contract.validate(document)
    return [problem["expected"] for problem in caught.value.facts["problems"]]


def plain(value):
    """Return the value without decimals, which the other one does not take as numbers."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return float(value) if isinstance(value, Decimal) else value
