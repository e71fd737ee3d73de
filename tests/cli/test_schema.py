"""schema on the command line: register and show on a node; the rest works on files alone."""

import json

import pytest

from fixtures.entities import ORDER, entity_node, new_type
from fixtures.postgres import postgres_run, postgres_server

__all__ = ["entity_node", "new_type", "postgres_run", "postgres_server"]

WIDER = {**ORDER, "properties": {**ORDER["properties"], "urgent": {"type": "boolean"}}}
NARROWER = {**ORDER, "required": ["status", "note"]}


@pytest.fixture
def node(shell, entity_node):
    """A shell whose commands ask a node; three contracts are in its folder."""
    for name, document in (("1", ORDER), ("2", WIDER), ("3", NARROWER)):
        (shell.folder / f"{name}.json").write_text(json.dumps(document))
    environment = {"THERMOCLINE_URL": entity_node.url, "THERMOCLINE_API_KEY": entity_node.key}
    return lambda *words, **more: shell.run("schema", *words, **environment, **more)


def test_a_contract_is_registered_and_shown_version_by_version(node, new_type):
    ran = node("register", new_type, "1.json")
    assert (ran.code, ran.out) == (0, f"registered {new_type}, version 1: 10 columns\n"), ran.err
    told = node("register", new_type, "-", "--json", typed=json.dumps(WIDER)).json()
    assert (told["type"], told["version"]) == (new_type, 2)
    assert node("show", new_type).json() == WIDER
    assert node("show", new_type, "--version", "1").json() == ORDER
    shown = node("show", new_type, "--json").json()
    assert (shown["version"], shown["document"], shown["mode"]) == (2, WIDER, "backward")
    tool = node("show", new_type, "--tool", "anthropic").json()
    assert (tool["name"], "x-hot" in str(tool)) == (new_type, False)
    function = node("show", new_type, "--tool", "openai").json()
    assert function["type"] == "function"
    assert function["function"]["parameters"] == tool["input_schema"]
    assert node("show", new_type, "--tool", "other").code == 2
    assert node("show", new_type, "--version", "7").code == 3
    assert node("show", "nothing").code == 3


def test_a_contract_that_may_not_follow_is_refused_with_pointer_and_reason(node, new_type):
    node("register", new_type, "1.json")
    ran = node("register", new_type, "3.json")
    assert ran.code == 2
    assert ran.out.startswith("/properties/note: ")
    assert "may not follow" in ran.told()[0]
    error = node("register", new_type, "3.json", "--json").error()
    assert error["facts"]["problems"][0]["pointer"] == "/properties/note"


def test_contracts_are_compared_guessed_and_checked_without_a_lake(shell, node):
    assert "may not follow" in shell.run("schema", "diff", "1.json", "3.json").out
    assert shell.run("schema", "diff", "1.json", "2.json", "--json").json()["is_compatible"]
    guessed = shell.run("schema", "infer", "-", typed='{"a": 1}\n').json()
    assert guessed["properties"] == {"a": {"type": "integer"}}
    assert shell.run("schema", "check", "2.json", "--against", "1.json").code == 0
    assert shell.run("schema", "check", "3.json", "--against", "1.json").code == 2
    ran = shell.run("schema", "show", "order")
    assert ran.code == 2
    assert "--url" in ran.told()[2]
