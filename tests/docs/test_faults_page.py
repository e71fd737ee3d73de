"""docs/faults.md and the names of the tests speak of the same faults."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ROWS = re.findall(r"^\| ([A-Z]\d\d) \|", (ROOT / "docs/faults.md").read_text(), re.MULTILINE)
LADDER = {"L11"}
"""A rung of the test ladder, not a fault."""


def codes_in_names() -> set[str]:
    """Return the codes in the names of all tests."""
    names = [
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    return {code for name in names for code in re.findall(r"(?<=_)[A-Z]\d\d(?=_)", name)}


def test_every_fault_on_the_page_stands_there_once():
    assert [code for code, times in Counter(ROWS).items() if times > 1] == []


def test_every_code_in_the_name_of_a_test_is_on_the_page():
    assert codes_in_names() - LADDER - set(ROWS) == set()


def test_every_fault_on_the_page_is_in_the_name_of_a_test():
    assert set(ROWS) - codes_in_names() == set()
