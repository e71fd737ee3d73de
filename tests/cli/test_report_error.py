"""What is told when a command fails."""

import json

import pytest

from thermocline.cli.terminal.report_error import (
    KINDS,
    describe_failure,
    describe_usage_failure,
    translate_hint,
)
from thermocline.error_table import ERROR_TABLE
from thermocline.errors import (
    Conflict,
    Corruption,
    CoverageOverlapError,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ThermoclineError,
    Unavailable,
    Unsupported,
)

CODES = {
    Invalid: 2,
    NotFound: 3,
    Conflict: 4,
    CoverageOverlapError: 4,
    Overloaded: 5,
    Unavailable: 6,
    OutcomeUnknown: 6,
    Unsupported: 7,
    Corruption: 8,
    ThermoclineError: 1,
}


@pytest.mark.parametrize("kind", CODES)
def test_each_kind_of_error_has_its_exit_code(kind):
    assert describe_failure(kind("it did not work")).exit_code == CODES[kind]


def test_no_kind_of_error_is_without_an_exit_code():
    kinds = set(ThermoclineError.__subclasses__())
    assert kinds == set(KINDS)
    assert kinds <= ERROR_TABLE.keys()


def test_an_error_is_three_lines_even_if_it_says_nothing():
    for kind in CODES:
        lines = describe_failure(kind("it did not work")).lines()
        assert all(len(line) > len("error: ") for line in lines)
        assert not any("\n" in line for line in lines)


def test_facts_and_hints_of_many_lines_stay_on_theirs():
    error = Invalid("no", hint="one\ntwo", why="a\n\nb", path=["x\ny", "z"])
    assert describe_failure(error).lines() == (
        "error: no",
        "  why: why: a b; path: x y, z",
        "   do: one two",
    )


def test_facts_never_steer_the_terminal():
    lines = describe_failure(
        NotFound("no", path="\x1b[31mred\x07\x9b2J", hint="\u202eback")
    ).lines()
    assert all(line.isprintable() for line in lines)
    assert "␛[31mred␇" in lines[1]


def test_a_fact_longer_than_a_screen_is_cut():
    line = describe_failure(Invalid("no", columns=[f"column{i}" for i in range(10_000)])).lines()[1]
    assert len(line) < 400
    assert line.endswith("…")


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("append with overlap='replace'", "append with --overlap replace"),
        ("append with evolve=True (--evolve) to add", "append with --evolve to add"),
        ("pass time_column='ts'", "pass --time-column ts"),
        ("use a name like Europe/Berlin", "use a name like Europe/Berlin"),
    ],
)
def test_hints_speak_the_language_of_the_shell(hint, shown):
    assert translate_hint(hint) == shown


def test_the_json_of_an_error_keeps_facts_of_any_type():
    error = CoverageOverlapError("held", hint="h", entity={"symbol": "A"}, n=3, path=object)
    told = json.loads(describe_failure(error).json())["error"]
    assert told["code"] == "coverage_overlap"
    assert told["facts"]["entity"] == {"symbol": "A"}
    assert told["facts"]["n"] == 3
    assert list(told) == ["code", "message", "facts", "hint", "exit_code"]


def test_a_misused_command_is_told_in_lower_case_with_its_usage():
    what, why, do = describe_usage_failure(
        "Missing argument 'X'.", "Usage: a b\n  c", "a b"
    ).lines()
    assert what == "error: missing argument 'X'"
    assert why == "  why: usage: a b c"
    assert do == "   do: `a b --help` shows its usage"
