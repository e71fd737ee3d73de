"""key create, list and revoke on the command line."""

import json
import re
import stat
import subprocess
import sys

import pytest

from fixtures.wal import calm
from thermocline.node import Node
from thermocline.server.access.keys import KeyStore

KEY = re.compile(r"tck_[a-z0-9]{8}_[A-Za-z0-9_-]{43}")


@pytest.fixture
def node(shell):
    """A folder with `node`, which has its first key."""
    with Node(str(shell.folder / "node"), calm()):
        pass
    shell.first = stored(shell).create_first().text
    return shell


def stored(shell):
    return KeyStore(str(shell.folder / "node"))


def told(shell, *words):
    return shell.ok("key", *words, "--data", "node", "--json").json()


def test_A14_the_first_key_is_made_with_its_folder_which_is_this_users_alone(shell):
    ran = shell.ok("key", "create", "--first", "--data", "node")
    assert KEY.fullmatch(ran.out.strip())
    assert stored(shell).read().find(ran.out.strip()).scopes == {"ingest", "query", "admin"}
    assert (shell.folder / "node" / "lake.json").exists()
    for path in [shell.folder / "node", *(shell.folder / "node").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_A10_of_many_commands_that_make_the_first_key_one_does(shell):
    command = [sys.executable, "-m", "thermocline.cli.main", "key", "create", "--first"]
    started = [
        subprocess.Popen(
            [*command, "--data", "node"],
            cwd=shell.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    done = [(*process.communicate(timeout=120), process.returncode) for process in started]
    assert sorted(code for _, _, code in done) == [0, 4, 4]
    assert [bool(KEY.fullmatch(out.strip())) for out, _, code in done if code == 0] == [True]
    assert len(KeyStore(str(shell.folder / "node")).read().by_id) == 1


def test_a_key_is_made_listed_without_its_secret_and_revoked_by_its_name(node):
    words = ("create", "--name", "dashboard", "--scope", "query", "--scope", "ingest")
    made = told(node, *words, "--expires", "90d")
    assert KEY.fullmatch(made["key"])
    assert (made["tenant"], made["scopes"], made["name"]) == (
        "default",
        ["ingest", "query"],
        "dashboard",
    )
    listed = told(node, "list")["keys"]
    assert [one["state"] for one in listed] == ["valid", "valid"]
    assert made["key"][13:] not in json.dumps(listed)
    assert told(node, "revoke", "dashboard")["key_id"] == made["key_id"]
    listed = told(node, "list")["keys"]
    assert [one["state"] for one in listed] == ["valid", "revoked"]
    assert made["key_id"] in node.ok("key", "list", "--data", "node").out


def test_a_key_may_go_to_a_file_of_its_own_and_to_nowhere_else(node):
    words = ("key", "create", "--scope", "query", "-o", "my.key", "--data", "node")
    ran = node.ok(*words)
    path = node.folder / "my.key"
    assert KEY.fullmatch(path.read_text().strip())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not KEY.search(ran.out + ran.err)
    ran = node.run(*words)
    assert ran.code == 4
    assert "exists" in ran.told()[0]
    assert len(stored(node).read().by_id) == 2


def test_A08_a_key_on_the_command_line_is_refused_and_not_repeated(node):
    ran = node.run("key", "revoke", node.first, "--data", "node")
    assert ran.code == 2
    assert node.first[13:] not in ran.err
    assert "seen" in ran.told()[2]


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("create",), 2, "ingest, query, admin"),
        (("create", "--scope", "root"), 2, "ingest, query, admin"),
        (("create", "--scope", "query", "--tenant", "acme"), 3, "tenant create acme"),
        (("create", "--scope", "query", "--expires", "soon"), 2, "90d"),
        (("create", "--first"), 4, "key create"),
        (("create", "--first", "--scope", "query"), 2, "omit --scope"),
        (("revoke", "nothing"), 3, "key list"),
    ],
)
def test_what_cannot_be_is_told_in_three_lines(node, words, code, hint):
    ran = node.run("key", *words, "--data", "node")
    assert ran.code == code
    assert hint in ran.told()[2] + ran.told()[1]
    assert len(stored(node).read().by_id) == 1


def test_a_name_that_two_keys_have_revokes_neither(node):
    ids = [stored(node).create("default", ["query"], note="x").key.key_id for _ in range(2)]
    ran = node.run("key", "revoke", "x", "--data", "node")
    assert ran.code == 2
    assert all(one in ran.told()[1] for one in ids)
    assert told(node, "revoke", ids[0])["state"] == "revoked"
    assert told(node, "revoke", "x")["key_id"] == ids[1]


def test_without_a_nodes_data_nothing_is_made(shell):
    for words in (("list",), ("revoke", "x"), ("create", "--scope", "query")):
        ran = shell.run("key", *words, "--data", "nothing")
        assert ran.code == 3
        assert "--first" in ran.told()[2]
    assert list(shell.folder.iterdir()) == []


def test_the_data_folder_may_come_from_the_environment_or_a_file(node):
    (node.folder / "node.toml").write_text('data = "node"')
    by_file = node.ok("key", "list", "--config", "node.toml", "--json").json()
    by_environment = node.run("key", "list", "--json", THERMOCLINE_DATA="node").json()
    assert by_file == by_environment == told(node, "list")


def test_what_was_done_is_in_the_audit(node):
    made = told(node, "create", "--scope", "query")
    told(node, "revoke", made["key_id"])
    lines = (node.folder / "node" / "audit.jsonl").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    assert [one["action"] for one in actions] == ["create key", "revoke key"]
    assert made["key"][13:] not in "".join(lines)
