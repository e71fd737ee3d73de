"""Contracts and documents that would occupy the process: refused before the work begins."""

import json
import random

import pytest

from fixtures.timing import soonest
from thermocline.contract.schema.register import parse_contract
from thermocline.contract.schema.vocabulary import PATTERN_BYTES_MAX, pattern_charge
from thermocline.errors import Invalid

COSTLY = "^(.*)*1[01]{450}$"
DIGITS = "".join(random.Random(4).choice("01") for _ in range(900_000))
PROMPT_S = 1.0


def with_properties(**properties):
    """Return a contract document of these properties."""
    return {"type": "object", "properties": properties}


def text(pattern):
    """Return the schema of a text of this pattern."""
    return {"type": "string", "pattern": pattern}


def problems(act):
    """Return the problems with which an act is refused."""
    with pytest.raises(Invalid) as refused:
        act()
    return refused.value.facts["problems"]


GREEDY = {
    "many patterns": with_properties(
        **{f"p{n}": text(f".{{{600 + n % 100}}}") for n in range(800)}
    ),
    "one pattern behind many references": {
        "$defs": {"costly": text(".{700}")},
        **with_properties(**{f"p{n}": {"$ref": "#/$defs/costly"} for n in range(800)}),
    },
    "patterns above the limit of one": with_properties(
        **{f"p{n}": text(f"(a?b?){{{900 + n % 99}}}[^x]{{900}}") for n in range(800)}
    ),
    "patterns of names": with_properties(
        a={"type": "object", "patternProperties": {f".{{{600 + n}}}": {} for n in range(200)}}
    ),
}


@pytest.mark.parametrize("name", GREEDY)
def test_A12_all_patterns_of_a_contract_share_one_budget(name):
    (found,) = problems(lambda: parse_contract(GREEDY[name]))
    assert "together" in found["reason"]
    limit_s = PROMPT_S
    assert soonest(lambda: problems(lambda: parse_contract(GREEDY[name])), limit_s) < limit_s


def test_a_contract_of_a_thousand_ordinary_patterns_is_within_the_budget():
    shapes = ["^[A-Z]{3}$", r"^\d{4}-\d{2}$", "^[a-z]+$", "^(on|off)$"]
    wide = with_properties(**{f"p{n}": text(shapes[n % 4]) for n in range(1_000)})
    assert len(parse_contract(wide).columns) == 1_000


@pytest.mark.parametrize("pattern", ["a", "^[A-Z]{3}$", ".{100}", r"^\p{L}+$", COSTLY])
def test_a_pattern_is_charged_at_least_what_it_compiles_to(pattern):
    charge = pattern_charge(pattern)
    assert charge is not None
    assert pattern_charge(pattern, charge) == charge
    assert pattern_charge(pattern, charge - 1) is None
    assert charge <= PATTERN_BYTES_MAX


def test_what_is_not_a_pattern_has_no_charge():
    assert pattern_charge("(") is None
    assert pattern_charge("(a?b?){999}[^x]{900}") is None


TOO_MUCH = {
    "a text": (with_properties(a=text(COSTLY)), {"a": DIGITS}, "/a"),
    "texts in a list": (
        with_properties(a={"type": "array", "items": text(COSTLY)}),
        {"a": [DIGITS[n : n + 900] for n in range(0, 90_000, 900)]},
        "/a",
    ),
    "several texts together": (
        with_properties(**{f"p{n}": text(COSTLY) for n in range(20)}),
        {f"p{n}": DIGITS[:8_000] for n in range(20)},
        "",
    ),
    "names": (
        {
            "type": "object",
            "x-content": "open",
            "properties": {"a": {"type": "integer"}},
            "patternProperties": {COSTLY: {}},
        },
        {DIGITS[:40_000]: 1},
        "",
    ),
    "values and schemas": (
        with_properties(
            a={"type": "array", "items": {"allOf": [{"minimum": -n} for n in range(1_000)]}}
        ),
        {"a": list(range(100_000))},
        "/a",
    ),
    "values and enumerations": (
        with_properties(
            a={"type": "array", "items": {"type": "string", "enum": [f"{n}" for n in range(9_000)]}}
        ),
        {"a": ["8999"] * 50_000},
        "/a",
    ),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_A12_a_document_that_costs_too_much_is_refused_before_it_is_validated(name):
    contract, document, pointer = TOO_MUCH[name]
    contract, data = parse_contract(contract), json.dumps(document).encode()
    for act in (
        lambda: contract.validate_bytes(data),
        lambda: contract.validate(document),
    ):
        assert [one["pointer"] for one in problems(act)] == [pointer]
        assert soonest(lambda act=act: problems(act), PROMPT_S) < PROMPT_S
    assert [one["pointer"] for one in problems(lambda: contract.validate_lines(data))] == [
        "/0" + pointer
    ]
    assert not contract.is_fitting(document)


SMALL = {
    "a text": {"a": "1" + "0" * 450},
    "several texts together": {f"p{n}": "1" + "0" * 450 for n in range(20)},
    "values and schemas": {"a": [1, 2, 3]},
    "values and enumerations": {"a": ["0", "8999"]},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_document_of_a_costly_contract_is_accepted_when_it_is_small(name):
    assert parse_contract(TOO_MUCH[name][0]).validate(SMALL[name]) == SMALL[name]
