"""Our own server: made once, found again, started by many at once, alive after a kill."""

import json
import math
import multiprocessing
import os
import shutil
import socket
import stat
import subprocess
import time

import psycopg
import pytest

from thermocline.errors import Corruption, Invalid, NotFound, Unavailable
from thermocline.hot.postgres.server.binaries import (
    Account,
    Programs,
    allow_traversal,
    is_reachable,
)
from thermocline.hot.postgres.server.cluster import (
    is_dead,
    open_server,
    running_server,
    stop_server,
)


def answer(dsn, query="select 1"):
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchone()[0]


def _open(folder, answers):
    answers.put(open_server(folder=folder).dsn)


def test_many_processes_that_start_it_at_once_find_one_server(own_postgres):
    own_postgres.stop()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    folder = str(own_postgres.folder)
    starters = [context.Process(target=_open, args=[folder, answers]) for _ in range(4)]
    for one in starters:
        one.start()
    dsns = {answers.get(timeout=120) for _ in starters}
    for one in starters:
        one.join()
    assert len(dsns) == 1
    assert answer(dsns.pop()) == 1, "it outlives those who started it"


def test_it_is_found_again_and_keeps_what_it_had(own_postgres):
    with psycopg.connect(own_postgres.dsn) as connection:
        connection.execute("create table public_of_ours as select 7 as n")
    assert open_server(folder=str(own_postgres.folder)) == own_postgres.server
    assert stop_server(str(own_postgres.folder))
    assert not stop_server(str(own_postgres.folder)), "it is stopped already"
    with pytest.raises(psycopg.OperationalError):
        answer(own_postgres.dsn)
    own_postgres.start()
    assert answer(own_postgres.dsn, "select n from public_of_ours") == 7


def test_P06_killed_it_recovers_what_was_committed_and_undoes_the_rest(own_postgres):
    with psycopg.connect(own_postgres.dsn) as connection:
        connection.execute("create table kept as select 7 as n")
    with psycopg.connect(own_postgres.dsn) as connection:
        connection.execute("insert into kept values (8)")
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
        connection.close()
    own_postgres.start()
    assert answer(own_postgres.dsn, "select array_agg(n) from kept") == [7]


def held(port):
    """Take a port; where somebody's connection has just ended, a minute later at the latest."""
    end_s = time.monotonic() + 150
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)


def test_it_takes_another_port_when_its_own_is_taken(own_postgres):
    port = json.loads((own_postgres.folder / "server.json").read_text())["port"]
    own_postgres.stop()
    with held(port):
        own_postgres.start()
    assert answer(own_postgres.dsn) == 1
    assert str(port) not in own_postgres.dsn


def test_P06_a_number_that_another_process_got_since_the_kill_is_not_the_servers(own_postgres):
    """As in a container, where the few numbers there are come again at once."""
    folder = str(own_postgres.folder)
    lock = own_postgres.folder / "data" / "postmaster.pid"
    own_postgres.kill()
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            _, *others = lock.read_text().split("\n")
            lock.write_text("\n".join([str(other.pid), *others]))
            assert is_dead(folder)
            assert not stop_server(folder)
            own_postgres.start()
            assert answer(own_postgres.dsn) == 1
            assert own_postgres.process_id != other.pid
            assert not is_dead(folder)
            own_postgres.stop()
            assert other.poll() is None, "it was stopped instead of the server"
        finally:
            other.kill()


def test_a_copy_of_a_folder_has_a_server_of_its_own(own_postgres):
    copy = own_postgres.folder.parent / "copy"
    own_postgres.stop()
    subprocess.run(["cp", "-a", own_postgres.folder, copy], check=True)
    own_postgres.start()
    lock = copy / "data" / "postmaster.pid"
    shutil.copy(own_postgres.folder / "data" / "postmaster.pid", lock)
    assert running_server(str(copy)) is None
    assert is_dead(str(copy))
    assert not stop_server(str(copy)), "the server that it speaks of is another's"
    lock.unlink()
    opened = open_server(folder=str(copy))
    try:
        assert opened.dsn != own_postgres.dsn
        assert running_server(str(copy)) == opened
        with psycopg.connect(opened.dsn) as connection:
            connection.execute("create table of_the_copy as select 7 as n")
        with pytest.raises(psycopg.errors.UndefinedTable):
            answer(own_postgres.dsn, "select n from of_the_copy")
    finally:
        assert stop_server(str(copy))
    assert answer(own_postgres.dsn) == 1


def test_whoever_has_the_address_of_one_never_reaches_its_copy(own_postgres):
    """Or writes would go there while the first is down."""
    copy, first = own_postgres.folder.parent / "copy", own_postgres.dsn
    own_postgres.stop()
    subprocess.run(["cp", "-a", own_postgres.folder, copy], check=True)
    opened = open_server(folder=str(copy))
    try:
        parts = psycopg.conninfo.conninfo_to_dict
        assert parts(opened.dsn)["port"] != parts(first)["port"]
        same_port = psycopg.conninfo.make_conninfo(first, port=parts(opened.dsn)["port"])
        for dsn in (first, same_port):
            with pytest.raises(psycopg.OperationalError):
                answer(dsn)
        assert answer(opened.dsn) == 1
        assert stop_server(str(copy))
        assert open_server(folder=str(copy)) == opened, "once its own, it stays"
    finally:
        stop_server(str(copy))
    own_postgres.start()
    assert own_postgres.dsn == first
    assert answer(first) == 1


def test_its_port_is_none_that_linux_lends_to_others_while_it_is_down(own_postgres):
    assert int(psycopg.conninfo.conninfo_to_dict(own_postgres.dsn)["port"]) < 32_768


def test_it_is_durable_and_listens_on_loopback_with_passwords_alone(own_postgres):
    shown = {
        name: answer(own_postgres.server.owner_dsn, f"show {name}")
        for name in ("fsync", "synchronous_commit", "listen_addresses", "password_encryption")
    }
    assert shown == {
        "fsync": "on",
        "synchronous_commit": "on",
        "listen_addresses": "127.0.0.1",
        "password_encryption": "scram-sha-256",
    }
    without = psycopg.conninfo.make_conninfo(own_postgres.dsn, password="")
    with pytest.raises(psycopg.OperationalError, match="no password"):
        answer(without)
    mode = os.stat(own_postgres.folder / "server.json").st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_what_connects_is_no_superuser(own_postgres):
    query = "select rolsuper or rolinherit from pg_roles where rolname = current_user"
    assert answer(own_postgres.dsn, query) is False


def test_a_server_that_cannot_start_says_why(own_postgres):
    own_postgres.stop()
    start_s = time.monotonic()
    with pytest.raises(Unavailable, match="does not start") as caught:
        open_server(folder=str(own_postgres.folder), settings={"no_such_setting": "1"})
    assert "no_such_setting" in caught.value.facts["said"]
    assert time.monotonic() - start_s < 50
    own_postgres.start()


def cut_short(monkeypatch, times):
    """Let starts of servers fail before they say a word; return the list of those that did."""
    whole, failed = Programs.run, []

    def run(programs, name, arguments, *, timeout_s):
        if arguments[-1] == "start" and len(failed) < times:
            failed.append(name)
            raise Unavailable("a program of PostgreSQL failed", said="could not start server")
        return whole(programs, name, arguments, timeout_s=timeout_s)

    monkeypatch.setattr(Programs, "run", run)
    return failed


def test_a_start_that_is_cut_short_is_tried_again_at_the_same_port(own_postgres, monkeypatch):
    first = own_postgres.dsn
    own_postgres.stop()
    failed = cut_short(monkeypatch, 2)
    own_postgres.start()
    assert len(failed) == 2
    assert own_postgres.dsn == first
    assert answer(first) == 1


def test_a_start_that_never_says_a_word_ends_with_those_of_the_program(own_postgres, monkeypatch):
    own_postgres.stop()
    failed = cut_short(monkeypatch, math.inf)
    with pytest.raises(Unavailable, match="does not start") as caught:
        own_postgres.start()
    assert caught.value.facts["program"] == {"said": "could not start server"}
    assert 1 < len(failed) < 10


@pytest.mark.parametrize("damage", ["{", "", "flipped", "deleted"])
@pytest.mark.parametrize("is_running", [True, False])
def test_D08_a_note_that_is_damaged_or_lost_is_not_written_over(own_postgres, damage, is_running):
    note = own_postgres.folder / "server.json"
    kept = note.read_text()
    if not is_running:
        own_postgres.stop()
    if damage == "deleted":
        note.unlink()
    else:
        note.write_text(kept.replace("password", "passvord") if damage == "flipped" else damage)
    with pytest.raises(Corruption) as caught:
        open_server(folder=str(own_postgres.folder))
    assert caught.value.facts["path"] == str(note)
    note.write_text(kept)
    assert answer(open_server(folder=str(own_postgres.folder)).dsn) == 1


@pytest.mark.parametrize("lost", ["data", "data/PG_VERSION"])
def test_D08_a_server_that_lost_its_data_is_not_replaced_by_an_empty_one(own_postgres, lost):
    own_postgres.stop()
    path, aside = own_postgres.folder / lost, own_postgres.folder / "aside"
    path.rename(aside)
    with pytest.raises(Corruption) as caught:
        open_server(folder=str(own_postgres.folder))
    assert caught.value.facts["path"].endswith("data/PG_VERSION")
    aside.rename(path)
    own_postgres.start()
    assert answer(own_postgres.dsn) == 1


def test_a_server_at_an_address_is_taken_as_it_is():
    dsn = "postgresql://somewhere/else"
    assert open_server(dsn=dsn).dsn == dsn


@pytest.mark.parametrize("places", [{}, {"dsn": "x", "folder": "y"}])
def test_there_is_one_place_and_only_one(places):
    with pytest.raises(Invalid, match="an address or a folder"):
        open_server(**places)


def test_a_folder_without_a_server_cannot_be_stopped(tmp_path):
    with pytest.raises(NotFound, match="there is no PostgreSQL server"):
        stop_server(str(tmp_path))


def test_a_folder_that_others_cannot_walk_to_is_told_from_one_they_can(tmp_path):
    shut, inside = tmp_path / "shut", tmp_path / "shut" / "inside"
    inside.mkdir(parents=True)
    inside.chmod(0o755)
    shut.chmod(0o700)
    nobody = Account(65_534, 65_534)
    assert not is_reachable(str(inside), nobody)
    assert is_reachable("/", nobody)


def test_one_account_is_let_through_a_private_folder_and_nobody_else(tmp_path):
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o700)
    allow_traversal(str(shut), Account(65_534, os.getgid()))
    found = shut.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o710, os.getgid())
