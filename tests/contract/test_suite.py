"""The official suite, through the registered-contract path: each schema is a property's.

An entity is an object, so a schema of the suite stands under the property `value`, and its own
references with it. The content is open, as the suite expects of a schema without such a keyword.
"""

import json
from pathlib import Path

import pytest

from thermocline.contract.schema.register import parse_contract
from thermocline.errors import Invalid

SUITE = Path(__file__).parent / "suite" / "draft2020-12"
# Parts of the reasons for which registration refuses keywords; it may refuse nothing else.
REFUSED = (
    "would have to be fetched",
    "no schema at that place",
    "changes what its references mean",
    "depends on the referring schema",
    "a custom keyword begins",
    "the same column name",
    "1 to 255 characters",
    "linear-time patterns",
    "not a pattern",
    "allows no document",
    "the character NUL",
)
# Values that a column cannot hold are refused, although the schema allows them.
NARROWER = (
    "a second from 00 to 59",
    "at most microseconds",
    "a year from 0001",
    "years 0001 to 9999",
    "a double holds",
    "at most 9223372036854775807",
    "text without the character NUL",
)


def moved(node):
    """Return the schema with its references under the property."""
    if isinstance(node, list):
        return [moved(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    made = {
        word: inner if word in ("enum", "const") else moved(inner)
        for word, inner in node.items()
        if word != "$schema"
    }
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#") and reference[1:2] in ("", "/"):
        made["$ref"] = "#/properties/value" + reference[1:]
    return made


def groups():
    for path in sorted(SUITE.rglob("*.json")):
        for index, group in enumerate(json.loads(path.read_text(encoding="utf-8"))):
            yield pytest.param(path.stem, group, id=f"{path.stem}-{index}")


def registered(group):
    """Return the contract, or None when it uses what a contract refuses."""
    document = {"x-content": "open", "properties": {"value": moved(group["schema"])}}
    try:
        return parse_contract(document)
    except Invalid as error:
        reasons = [problem["reason"] for problem in error.facts["problems"]]
        assert all(any(words in reason for words in REFUSED) for reason in reasons), reasons
        return None


def is_taken(contract, value):
    try:
        kept = contract.validate_bytes(json.dumps({"value": value}).encode())
    except Invalid as error:
        problems = error.facts["problems"]
        expected = [problem["expected"] for problem in problems]
        if any(words in text for text in expected for words in NARROWER):
            return None
        return False
    row = contract.arrow_rows([kept]).to_pylist()[0]
    assert contract.document_of(row) == kept
    return True


@pytest.mark.parametrize(("name", "group"), list(groups()))
def test_a_contract_takes_what_the_suite_calls_valid_and_nothing_else(name, group):
    contract = registered(group)
    if contract is None:
        return
    for case in group["tests"]:
        taken = is_taken(contract, case["data"])
        assert taken in (case["valid"], None), (group["schema"], case)


def test_most_of_the_suite_can_be_registered():
    held = [registered(param.values[1]) is not None for param in groups()]
    assert len(held) > 300
    assert sum(held) / len(held) > 0.85
