"""Folders of spilled rows: the next process removes those of a killed process."""

import os
import subprocess
import sys
import tempfile

import pytest

from thermocline.query import spill


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill._sweep_once.cache_clear()
    yield tmp_path
    spill._sweep_once.cache_clear()


def gone():
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_killed_process_left_is_removed(place):
    left = place / f"{spill.PREFIX}{gone()}-abc"
    left.mkdir()
    (left / "rows").write_bytes(b"private")
    mine = spill.make_folder()
    assert os.listdir(place) == [os.path.basename(mine)]
    assert os.stat(mine).st_mode & 0o777 == 0o700


def test_what_a_living_process_has_stays_and_so_does_what_is_not_ours(place):
    others = [f"{spill.PREFIX}{os.getppid()}-abc", f"{spill.PREFIX}old", f"else-{gone()}-abc"]
    for name in others:
        (place / name).mkdir()
    spill.make_folder()
    assert set(others) < set(os.listdir(place))


def test_what_the_process_before_left_under_the_number_of_this_one_is_removed(place):
    """In a container, a killed node had the same process id as the next one."""
    mine = spill.make_folder()
    assert os.path.basename(mine).startswith(
        f"{spill.PREFIX}{os.getpid()}-{spill._start_time(os.getpid())}-"
    )
    left = place / f"{spill.PREFIX}{os.getpid()}-1-abc"
    left.mkdir()
    spill._sweep_once.cache_clear()
    again = spill.make_folder()
    assert {*os.listdir(place)} == {os.path.basename(mine), os.path.basename(again)}


def test_when_a_process_began_is_told_whatever_its_name_is(tmp_path):
    odd = tmp_path / "a ) b 1 2"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "60"]) as process:
        try:
            told = int(spill._start_time(process.pid))
        finally:
            process.kill()
    assert told >= int(spill._start_time(os.getpid()))
    assert spill._start_time(gone()) == ""


def test_a_link_is_not_followed(place, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").write_bytes(b"")
    (place / f"{spill.PREFIX}{gone()}-abc").symlink_to(elsewhere)
    spill.make_folder()
    assert os.listdir(elsewhere) == ["kept"]
