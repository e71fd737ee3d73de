"""The worked example on the page about contracts is what the code does."""

import re
from pathlib import Path

import pytest

from thermocline.cli.entity.schema import COMMANDS
from thermocline.contract.document.text import decode
from thermocline.contract.evolve.compatible import evolve_contract
from thermocline.contract.schema.register import parse_contract
from thermocline.contract.schema.vocabulary import PATTERN_LENGTH_MAX
from thermocline.errors import Invalid

PAGE = (Path(__file__).parents[2] / "docs" / "contract.md").read_text()


def block(name):
    """Return the JSON of a fenced block by its name."""
    (text,) = re.findall(rf"^```json {name}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return decode(text.encode())


def rows(*header):
    """Return the cells of the table with this header."""
    start = PAGE.index("| " + " | ".join(header) + " |")
    lines = PAGE[start:].split("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


@pytest.fixture
def contract():
    return parse_contract(block("order-1"))


def test_the_columns_are_those_on_the_page(contract):
    shown = [
        (str(c.id), c.name, str(c.type), c.postgres_type if c.is_hot else "")
        for c in contract.columns
    ]
    assert rows("id", "column", "Arrow type", "hot in PostgreSQL") == shown


def test_the_document_is_kept_as_the_page_says(contract):
    kept = contract.validate(block("given"))
    assert kept == block("kept")
    assert contract.document_of(contract.arrow_rows([kept]).to_pylist()[0]) == kept
    assert contract.join(*contract.split(kept)) == kept


def test_the_problems_are_those_on_the_page(contract):
    with pytest.raises(Invalid) as caught:
        contract.validate(block("wrong"))
    told = [tuple(problem.values()) for problem in caught.value.facts["problems"]]
    assert sorted(told) == sorted(rows("pointer", "expected", "got"))


def test_the_second_version_may_follow_and_keeps_the_columns(contract):
    after = evolve_contract(block("order-2"), contract)
    ids = {column.name: column.id for column in after.columns}
    assert ids == {**{column.name: column.id for column in contract.columns}, "coupon": 8}
    with pytest.raises(Invalid):
        evolve_contract(block("order-1"), after)


def test_the_limits_and_commands_on_the_page_are_those_of_the_code():
    assert f"at most {PATTERN_LENGTH_MAX:,} characters" in PAGE
    for name, _, _ in COMMANDS:
        assert f"`thermocline schema {name} " in PAGE
