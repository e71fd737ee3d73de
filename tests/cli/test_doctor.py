"""doctor: what it looks at, what it finds, and that it changes nothing."""

import os
import socket

import pytest

from fixtures.wal import calm, ticks
from thermocline.node import Node
from thermocline.server.access.keys import KeyStore

NAMES = ("http", "grpc", "flight", "api")
ANY = tuple(word for name in NAMES for word in (f"--{name}", "127.0.0.1:0"))


@pytest.fixture
def node(shell):
    """A folder with `node`, whose journal has a row."""
    before = os.umask(0o077)
    with Node(str(shell.folder / "node"), calm()) as made:
        made.lake().create_table("m", time_column="ts", bucket="1h").write(ticks(1))
        made.close(flush=False)
    os.umask(before)
    return shell


def looks(ran):
    return {look["name"]: look for look in ran.json()["looks"]}


def test_a_sound_node_is_sound_and_stays_as_it_was(node):
    before = {path: path.read_bytes() for path in node.folder.rglob("*") if path.is_file()}
    ran = node.ok("doctor", "--data", "node", *ANY, "--json")
    found = looks(ran)
    assert {"python", "libraries", "server", "link", "lock", "sync", "lake", "journal"} <= set(
        found
    )
    assert {look["status"] for look in found.values()} <= {"ok", "warn"}
    assert all(look["do"] for look in found.values() if look["status"] == "warn")
    assert "1 tenants, 1 tables" in found["lake"]["found"]
    after = {path: path.read_bytes() for path in node.folder.rglob("*") if path.is_file()}
    assert {p for p in before if p.name != "lock"} == {p for p in after if p.name != "lock"}
    assert all(after[path] == data for path, data in before.items() if path.name != "lock")


def test_a_line_is_how_it_is_and_what_was_found(node):
    lines = node.ok("doctor", "--data", "node", *ANY).out.splitlines()
    assert lines[0].startswith("ok   python      3.")
    assert all(line[:5].strip() in ("ok", "warn", "") for line in lines)


def test_where_there_is_no_data_yet_a_start_would_make_it(shell):
    found = looks(shell.ok("doctor", "--data", "a/b/node", *ANY, "--json"))
    assert "none yet" in found["lake"]["found"]
    assert list(shell.folder.iterdir()) == []


def test_a_port_that_is_taken_fails_and_is_named(shell):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ("doctor", "--http", address, "--grpc", "off", "--api", "off", "--flight", "off")
        ran = shell.run(*words, "--json")
        assert ran.code == 1
        assert ran.json()["status"] == "fail"
        assert address in looks(ran)["port http"]["found"]
        ran = shell.run(*words)
        assert ran.code == 1
        assert "do: stop the process that listens there" in ran.out


def test_O06_settings_that_cannot_be_fail_with_the_nearest_name(shell):
    ran = shell.run("doctor", "--set", "flush_age=3", "--json")
    assert ran.code == 1
    assert "flush_age_s" in looks(ran)["settings"]["do"]


def test_a_damaged_journal_fails(node):
    victim = sorted((node.folder / "node" / "journal").glob("*.wal"))[0]
    data = bytearray(victim.read_bytes())
    data[10] ^= 0xFF
    victim.write_bytes(data)
    ran = node.run("doctor", "--data", "node", *ANY, "--json")
    assert ran.code == 1
    assert [look["name"] for look in ran.json()["looks"] if look["status"] == "fail"] == ["journal"]


def test_a_running_node_is_told_with_its_process(node):
    with Node(str(node.folder / "node"), calm()):
        found = looks(node.ok("doctor", "--data", "node", *ANY, "--json"))
    assert found["owner"]["found"] == f"a node is running (process {os.getpid()})"


def test_A14_files_that_others_may_read_are_a_warning(node):
    KeyStore(str(node.folder / "node")).create_first()
    (node.folder / "node" / "keys.json").chmod(0o644)
    found = looks(node.ok("doctor", "--data", "node", *ANY, "--json"))
    assert found["rights"]["status"] == "warn"
    assert "chmod" in found["rights"]["do"]


def test_an_unprotected_address_fails(node):
    ran = node.run("doctor", "--data", "node", *ANY[:6], "--api", "0.0.0.0:0", "--json")
    assert ran.code == 1
    assert looks(ran)["protection"]["status"] == "fail"


def test_O10_a_folder_that_is_no_lake_fails(shell):
    (shell.folder / "other").mkdir()
    (shell.folder / "other" / "photo.jpg").write_text("x")
    ran = shell.run("doctor", "--data", "other", *ANY, "--json")
    assert ran.code == 1
    assert looks(ran)["lake"]["status"] == "fail"


def test_O12_a_disk_without_room_or_inodes_fails(monkeypatch, tmp_path):
    from thermocline.cli.node import doctor

    class Full:
        f_files, f_favail = 1_000, 3

    monkeypatch.setattr(doctor.os, "statvfs", lambda place: Full)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: type("U", (), {"free": 1 << 20}))
    found = {look.name: look.status for look in doctor._check_space(str(tmp_path))}
    assert found == {"free space": "fail", "inodes": "fail"}
