"""tenant create and tenant list on the command line."""

import pytest

from fixtures.wal import calm
from thermocline.node import Node


@pytest.fixture
def node(shell):
    with Node(str(shell.folder / "node"), calm()) as made:
        made.lake().create_table("m", time_column="ts", bucket="1h")
    return shell


def test_a_tenant_is_made_and_listed_with_its_tables(node):
    assert node.ok("tenant", "create", "acme", "--data", "node", "--json").json() == {
        "tenant": "acme"
    }
    told = node.ok("tenant", "list", "--data", "node", "--json").json()
    assert told == {
        "tenants": [{"tenant": "default", "tables": 1}, {"tenant": "acme", "tables": 0}]
    }
    assert node.ok("tenant", "list", "--data", "node").out == "default  1 table\nacme  0 tables\n"


def test_a_running_node_sees_a_new_tenant_at_once(node):
    with Node(str(node.folder / "node"), calm()) as running:
        node.ok("tenant", "create", "acme", "--data", "node")
        assert running.lake("acme").tables() == []


@pytest.mark.parametrize(
    ("name", "code"), [("default", 4), ("Acme", 2), ("../x", 2), ("", 2), ("a" * 41, 2)]
)
def test_A06_a_name_that_is_taken_or_cannot_be_is_refused(node, name, code):
    ran = node.run("tenant", "create", name, "--data", "node")
    assert ran.code == code
    assert ran.told()


def test_a_name_is_given_once(node):
    node.ok("tenant", "create", "acme", "--data", "node")
    assert node.run("tenant", "create", "acme", "--data", "node").code == 4


def test_without_a_nodes_data_there_are_no_tenants(shell):
    assert shell.run("tenant", "list", "--data", "nothing").code == 3
    assert shell.run("tenant", "create", "acme", "--data", "nothing").code == 3
    assert list(shell.folder.iterdir()) == []
