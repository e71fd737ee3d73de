"""entity on the command line: against a node, and against a lake that nobody else has open."""

import json
import os

import pytest

from fixtures.entities import ORDER, database, entity_node, new_type
from fixtures.postgres import postgres_run, postgres_server
from thermocline.node import Node

__all__ = ["entity_node", "new_type", "postgres_run", "postgres_server"]


class Orders:
    """A shell whose commands are about the orders of one test."""

    def __init__(self, shell, name, **environment):
        self.shell, self.name, self.environment = shell, name, environment

    def run(self, word, *words, typed=None):
        command = ("entity", word, self.name, *words)
        return self.shell.run(*command, typed=typed, **self.environment)

    def ok(self, word, *words, typed=None):
        ran = self.run(word, *words, typed=typed)
        assert ran.code == 0, ran.err
        return ran

    def told(self, word, *words, typed=None):
        return self.ok(word, *words, "--json", typed=typed).json()


@pytest.fixture
def orders(shell, entity_node, new_type):
    environment = {"THERMOCLINE_URL": entity_node.url, "THERMOCLINE_API_KEY": entity_node.key}
    put(shell, "contract.json", ORDER)
    ran = shell.run("schema", "register", new_type, "contract.json", **environment)
    assert ran.code == 0, ran.err
    return Orders(shell, new_type, **environment)


def put(shell, name, *values):
    text = "\n".join(json.dumps(value) for value in values)
    (shell.folder / name).write_text(text)


def test_an_entity_from_its_creation_to_its_deletion(orders):
    put(orders.shell, "order.json", {"status": "open", "quantity": 2})
    assert orders.ok("create", "order.json", "--id", "a").out == "created a (version 1)\n"
    assert orders.ok("get", "a").json() == {"status": "open", "quantity": 2}
    found = orders.told("get", "a")
    assert (found["id"], found["ver"], found["schema_version"]) == ("a", 1, 1)
    assert found["warning"] == ""
    made = orders.told("replace", "a", "-", "--if-match", "1", typed='{"status": "paid"}')
    assert made == {"type": orders.name, "id": "a", "ver": 2, "deed": "replaced"}
    exported = orders.told("export")["exported"]
    assert (exported["keys"], exported["changes"]) == (1, 2)
    assert orders.ok("export").out == "nothing has changed since the last export\n"
    orders.ok("patch", "a", "-", typed='{"price": 1234567890123456.70, "status": "sent"}')
    assert "1234567890123456.70" in orders.ok("get", "a").out
    assert orders.ok("get", "a", "--at", str(exported["version"])).json() == {"status": "paid"}
    revisions = orders.told("history", "a")["revisions"]
    assert [one["ver"] for one in revisions] == [1, 2, 3]
    assert len(orders.ok("history", "a").out.splitlines()) == 3
    assert orders.ok("diff", "a", "1", "2").out.splitlines() == [
        '/status  "open" -> "paid"',
        "/quantity  2 -> nothing",
    ]
    listed = orders.told("list", "--where", "status=sent", "--where", "price[gt]=1")
    assert [one["id"] for one in listed["entities"]] == ["a"]
    assert orders.run("list", "--where", "status").code == 2
    assert orders.ok("delete", "a", "--if-match", "3").out == "deleted a (version 4)\n"
    assert orders.run("get", "a").code == 3


def test_failures_are_three_lines_with_the_exit_code_of_their_kind(orders, entity_node):
    orders.ok("create", "-", "--id", "a", typed='{"status": "open"}')
    for code, ran in (
        (4, orders.run("create", "-", "--id", "a", typed='{"status": "open"}')),
        (4, orders.run("replace", "a", "-", "--if-match", "9", typed='{"status": "open"}')),
        (2, orders.run("create", "-", typed='{"status": 1}')),
        (2, orders.run("create", "-", typed="{")),
        (3, orders.run("create", "none.json")),
        (3, orders.run("get", "nobody")),
        (3, orders.run("history", "nobody")),
        (3, orders.shell.run("entity", "get", "nothing", "a", **orders.environment)),
        (2, orders.run("list", "--filter", "{")),
        (2, orders.shell.run("entity", "get", orders.name, "a")),
        (2, orders.run("get", "a", "--lake", "x", "--url", "http://x")),
        (3, orders.run("get", "a", "--lake", "x")),
        (6, orders.run("get", "a", "--key-file", "none")),
        (6, orders.run("delete", "a", "--url", "http://127.0.0.1:9")),
    ):
        assert ran.code == code, ran.err
        ran.told()
        assert entity_node.key not in ran.err
    problem = orders.run("create", "-", "--json", typed='{"quantity": "x"}').error()
    assert {one["pointer"] for one in problem["facts"]["problems"]} == {"/status", "/quantity"}


def test_a_key_comes_from_a_file_and_has_its_scopes(orders, entity_node):
    path = orders.shell.folder / "reader.key"
    path.write_text(entity_node.new_key(scopes=["query"]) + "\n")
    orders.ok("create", "-", "--id", "a", typed='{"status": "open"}')
    assert orders.ok("get", "a", "--key-file", "reader.key").json() == {"status": "open"}
    ran = orders.run("delete", "a", "--key-file", "reader.key")
    assert ran.code == 9
    ran.told()


def test_a_list_is_filtered_sorted_and_comes_in_pages(orders):
    rows = [{"status": "ab"[n % 2], "quantity": n, "note": f"n{n}"} for n in range(5)]
    put(orders.shell, "orders.ndjson", *rows)
    orders.ok("import", "orders.ndjson", "--key", "note")
    page = orders.told("list", "--sort=-quantity", "--limit", "2", "--field", "quantity")
    assert [one["document"] for one in page["entities"]] == [{"quantity": 4}, {"quantity": 3}]
    rest = orders.told("list", "--sort=-quantity", "--limit", "9", "--after", page["after"])
    assert [one["id"] for one in rest["entities"]] == ["n2", "n1", "n0"]
    assert rest["after"] is None
    wanted = '{"field": "status", "op": "eq", "value": "b"}'
    ran = orders.ok("list", "--filter", wanted, "--limit", "1")
    assert ran.out == 'n1  1  {"status":"b","quantity":1,"note":"n1"}\n'
    assert "--after" in ran.err


def test_an_import_writes_what_fits_and_lists_what_does_not(orders):
    rows = [{"status": "x", "note": "a"}, {"status": 1, "note": "b"}, {"status": "y", "note": "c"}]
    put(orders.shell, "orders.ndjson", *rows)
    ran = orders.run("import", "orders.ndjson", "--key", "note")
    assert ran.code == 2
    assert ran.out == "line 2: /status: expected string, got 1\nimported 2 of 3 documents\n"
    again = orders.run("import", "orders.ndjson", "--key", "note", "--json")
    told = again.json()
    assert (told["imported"], told["failed"]) == (0, 3)
    assert [one["code"] for one in told["failures"]] == ["conflict", "invalid", "conflict"]
    ran = orders.run("import", "orders.ndjson", "--key", "note", "--replace", "--atomic")
    assert ran.code == 2
    assert "line: 2" in ran.told()[1]
    assert orders.told("get", "a")["ver"] == 1
    mended = "\n".join(json.dumps({**row, "status": "z"}) for row in rows)
    ran = orders.ok("import", "-", "--key", "note", "--replace", "--atomic", typed=mended)
    assert ran.out == "imported 3 of 3 documents\n"
    assert orders.told("get", "a")["ver"] == 2
    ran = orders.ok("import", "-", typed='{"status": "w"}\n\n{"status": "w"}\n')
    assert ran.out == "imported 2 of 2 documents\n"
    assert orders.run("import", "orders.ndjson", "--replace").code == 2
    ran = orders.run("import", "-", "--key", "note", typed='[1]\n{"status": "x"}\n{')
    assert ran.code == 2
    assert [line.split(":")[0] for line in ran.out.splitlines()[:-1]] == [
        *("line 1", "line 2", "line 3")
    ]


def test_a_lake_that_nobody_has_open_is_used_without_a_node(shell, postgres_server):
    folder = str(shell.folder / "lake")
    with database(postgres_server) as dsn:
        with Node(folder):
            pass
        orders = Orders(shell, "order", THERMOCLINE_POSTGRES=dsn)
        put(shell, "contract.json", ORDER)
        words = ("schema", "register", "order", "contract.json", "--lake", folder)
        assert shell.run(*words, "--postgres", dsn).code == 0
        orders.ok("create", "-", "--id", "a", "--lake", folder, typed='{"status": "open"}')
        assert orders.ok("get", "a", "--lake", folder).json() == {"status": "open"}
        other = {"THERMOCLINE_URL": "http://127.0.0.1:9"}  # an option wins over the environment
        ran = shell.run(
            "entity", "export", "order", "--lake", folder, **other, **orders.environment
        )
        assert ran.code == 0, ran.err
        shown = shell.run("schema", "show", "order", "--lake", folder, **orders.environment)
        assert shown.json() == ORDER
        with Node(folder):
            ran = orders.run("get", "a", "--lake", folder)
            assert ran.code == 4
            assert "--url" in ran.told()[2]
    assert os.path.isdir(folder)
