"""The commands about contracts, on files."""

import json

import pytest
import typer
from typer.testing import CliRunner

from thermocline.cli.argument import examples
from thermocline.cli.entity import schema
from thermocline.errors import Invalid, NotFound

ORDER = {"type": "object", "properties": {"total": {"type": "number", "x-type": "decimal(18,2)"}}}


@pytest.fixture
def shell():
    app = typer.Typer()
    for name, function, lines in schema.COMMANDS:
        app.command(name, epilog=examples(*lines))(function)
    runner = CliRunner()
    return lambda *words, **options: runner.invoke(app, list(words), **options)


def put(folder, name, *values):
    path = folder / name
    path.write_text("\n".join(json.dumps(value) for value in values))
    return str(path)


def test_a_diff_lists_changes_and_says_what_is_refused(shell, tmp_path):
    old = put(tmp_path, "1.json", ORDER)
    more = {**ORDER["properties"], "note": {"type": "string"}}
    wider = put(tmp_path, "2.json", {**ORDER, "properties": more})
    ran = shell("diff", old, wider)
    assert ran.exit_code == 0
    assert 'added  /properties/note: {"type":"string"}' in ran.stdout
    assert "may follow the old one (backward)" in ran.stdout
    ran = shell("diff", wider, old, "--json")
    answer = json.loads(ran.stdout)
    assert answer["is_compatible"] is False
    assert answer["refusals"][0]["pointer"] == "/properties/note"
    assert "may not follow" in shell("diff", wider, old).stdout


def test_a_contract_is_guessed_from_lines(shell, tmp_path):
    path = put(tmp_path, "orders.ndjson", {"id": 1}, {"id": 2, "paid": True})
    made = json.loads(shell("infer", path).stdout)
    assert made["required"] == ["id"]
    assert made["properties"]["paid"] == {"type": "boolean"}
    piped = shell("infer", "-", input='{"id": 1}\n')
    assert json.loads(piped.stdout)["properties"] == {"id": {"type": "integer"}}
    bad = tmp_path / "bad.ndjson"
    bad.write_text('{"a":1}\n{"a":')
    failed = shell("infer", str(bad))
    assert isinstance(failed.exception, Invalid)
    assert failed.exception.facts["line"] == 2


def test_a_check_shows_the_columns_and_counts_documents(shell, tmp_path):
    contract = put(tmp_path, "order.json", ORDER)
    documents = put(tmp_path, "orders.ndjson", {"total": 1.5}, {})
    ran = shell("check", contract, documents)
    assert ran.exit_code == 0
    assert "total  decimal128(18, 2)" in ran.stdout
    assert "2 documents fit" in ran.stdout
    answer = json.loads(shell("check", contract, documents, "--json").stdout)
    assert answer["documents"] == {documents: 2}


def test_a_check_lists_every_problem_with_its_pointer(shell, tmp_path):
    contract = put(tmp_path, "order.json", ORDER)
    documents = put(tmp_path, "orders.ndjson", {"total": 1.005}, {"tax": 1})
    ran = shell("check", contract, documents)
    assert isinstance(ran.exception, Invalid)
    assert "/0/total: expected at most 2 digits after the point, got 1.005" in ran.stdout
    assert "/1/tax: expected no such property, got 1" in ran.stdout
    narrow = put(tmp_path, "narrow.json", {**ORDER, "required": ["total"]})
    ran = shell("check", narrow, "--against", contract)
    assert isinstance(ran.exception, Invalid)
    assert "/properties/total: the property is now required" in ran.stdout


def test_a_file_that_is_not_there_is_said_to_be_missing(shell, tmp_path):
    assert isinstance(shell("check", str(tmp_path / "none.json")).exception, NotFound)
    with pytest.raises(Invalid):
        schema.read_document(put(tmp_path, "list.json", [1]))
