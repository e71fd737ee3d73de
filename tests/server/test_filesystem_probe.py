"""What a file system promises is tried, and a broken promise is seen."""

import os

import pytest

from thermocline.disk import OsDisk
from thermocline.errors import ThermoclineError, Unsupported
from thermocline.server.start.filesystem_probe import (
    file_system,
    probe,
    probe_link,
    probe_lock,
    probe_sync,
)


def test_O11_a_local_folder_keeps_every_promise_and_nothing_is_left(tmp_path):
    probe(str(tmp_path))
    assert probe_sync(str(tmp_path)) > 0
    assert list(tmp_path.iterdir()) == []


def test_O11_a_name_that_is_given_twice_is_seen(tmp_path, monkeypatch):
    def link(self, source, target):
        if os.path.exists(target):
            os.unlink(target)
        os.link(source, target)

    monkeypatch.setattr(OsDisk, "link", link)
    with pytest.raises(Unsupported, match="created twice"):
        probe_link(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_O11_a_file_system_without_links_is_seen(tmp_path, monkeypatch):
    def link(self, source, target):
        raise OSError(95, "not supported")

    monkeypatch.setattr(OsDisk, "link", link)
    with pytest.raises(Unsupported, match="does not support hard links"):
        probe_link(str(tmp_path))


def test_O11_a_lock_that_keeps_nobody_out_is_seen(tmp_path, monkeypatch):
    import fcntl

    monkeypatch.setattr(fcntl, "flock", lambda fd, how: None)
    with pytest.raises(Unsupported, match="have no effect"):
        probe_lock(str(tmp_path))


def test_O11_a_sync_that_fails_is_seen(tmp_path, monkeypatch):
    def fails(fd):
        raise OSError(5, "input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(ThermoclineError):
        probe_sync(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_kind_of_a_file_system_is_told():
    assert file_system("/proc") == "proc"
    assert file_system("/") != ""
