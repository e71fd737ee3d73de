"""A table on a file system: who may win, what is refused, and how its errors are told."""

import errno
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.lake import closes, rows, spec
from fixtures.sim_disk import SimDisk
from thermocline import TimeSeriesTable
from thermocline.cold.change.append import AppendOptions
from thermocline.cold.storage.local import LocalStorage, translate_error
from thermocline.cold.table import ColdTable
from thermocline.disk import OsDisk
from thermocline.errors import (
    Corruption,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
    Unsupported,
)
from thermocline.format import layout
from thermocline.format.log.action import AddSegment, encode_action, removal

COMMIT = layout.commit_path(7)


class LinksReplace(OsDisk):
    """A file system whose link() takes the name from whoever has it."""

    def link(self, source, target):
        with suppress(FileNotFoundError):
            os.unlink(target)
        super().link(source, target)


class LinksDoNothing(OsDisk):
    """A file system whose link() says that it worked."""

    def link(self, source, target):
        pass


class LinksTruncate(OsDisk):
    """A file system that refuses a second link, but has emptied the first name by then."""

    def link(self, source, target):
        if os.path.exists(target):
            os.truncate(target, 0)
        super().link(source, target)


class NoLinks(OsDisk):
    """A file system without hard links."""

    def __init__(self, code):
        self._code = code

    def link(self, source, target):
        raise OSError(self._code, os.strerror(self._code), target)


BAD_DISKS = [
    LinksReplace(),
    LinksDoNothing(),
    LinksTruncate(),
    *(NoLinks(code) for code in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)),
]


@pytest.mark.parametrize("disk", BAD_DISKS, ids=lambda disk: type(disk).__name__)
def test_O11_a_file_system_where_two_could_win_is_refused_before_anything_is_written(
    tmp_path, disk
):
    root = tmp_path / "prices"
    with pytest.raises(Unsupported, match="atomically") as error:
        ColdTable(LocalStorage(str(root), disk)).create(spec())
    assert error.value.facts["root"] == str(root)
    assert [path for path in root.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("disk", BAD_DISKS, ids=lambda disk: type(disk).__name__)
def test_O11_a_table_copied_onto_such_a_file_system_is_read_but_never_written(
    table, tmp_path, disk
):
    table.append(rows([0, 1]))
    copied = tmp_path / "copied"
    shutil.copytree(table.root(), copied)
    there = ColdTable(LocalStorage(str(copied), disk), workers=1)
    assert closes(there) == [0, 1]
    for change in (
        lambda: there.append(rows([5]).to_reader(), AppendOptions()),
        lambda: there.delete(lambda batch: batch.column("close"), ["close"]),
        lambda: there.restore(1),
    ):
        with pytest.raises(Unsupported):
            change()
    assert there.state().version == 2


def test_O11_the_probe_is_made_once_and_leaves_nothing(tmp_path):
    disk = SimDisk(["/lake"])
    storage = LocalStorage("/lake/prices", disk)
    storage.probe()
    assert [path for path, data in disk.tree().items() if data is not None] == []
    calls = len(disk.calls)
    storage.probe()
    assert len(disk.calls) == calls


def test_O11_a_disk_that_fails_the_probe_by_accident_is_asked_again():
    disk = SimDisk(["/lake"])
    storage = LocalStorage("/lake/prices", disk)
    disk.fail(1, errno.EIO)
    with pytest.raises(Unavailable):
        storage.probe()
    disk.heal()
    storage.probe()


# One winner


def test_of_many_that_create_one_name_exactly_one_is_told_that_it_did(tmp_path):
    storages = [LocalStorage(str(tmp_path)) for _ in range(8)]
    start, told = threading.Barrier(len(storages)), {}

    def create(place):
        start.wait()
        told[place] = storages[place].put_new(COMMIT, f"writer {place}".encode())

    for _ in range(10):
        threads = [threading.Thread(target=create, args=(n,)) for n in range(len(storages))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [winner] = [place for place, is_mine in told.items() if is_mine]
        assert storages[0].read(COMMIT) == f"writer {winner}".encode()
        storages[0].delete(COMMIT)
        assert list(storages[0].list(layout.LOG_FOLDER)) == []


def test_a_new_name_that_may_not_be_durable_is_told_as_unknown():
    disk = SimDisk(["/lake"])
    storage = LocalStorage("/lake/prices", disk)
    storage.put_new(layout.commit_path(6), b"makes the folders")

    def fail_the_sync(operation, path):
        if operation == "sync_folder":
            disk.hooks = None
            disk.fail(1, errno.EIO)

    disk.hooks = fail_the_sync
    with pytest.raises(OutcomeUnknown):
        storage.put_new(COMMIT, b"bytes")


# T21 and T22: files that are not those of the log


def segment_file(table):
    [segment] = table.cold.state().segments
    return Path(table.root()) / segment.path


def reads(table):
    """Return the ways of reading rows."""
    opened = TimeSeriesTable.open(table.root())
    return [
        opened.to_arrow,
        lambda: opened.to_arrow(columns=["close"], where="close > 0"),
        lambda: opened.delete("close = 1"),
        lambda: list(opened.scan()),
    ]


def test_T21_a_file_of_another_size_under_the_same_name_is_an_error_that_names_it(table, parquet):
    table.append(rows([0, 1]))
    path = segment_file(table)
    shutil.copyfile(parquet(rows(range(50))), path)
    for read in reads(table):
        with pytest.raises(Corruption, match="another size") as error:
            read()
        assert error.value.facts["path"] in str(path)


def test_T21_a_file_of_the_same_size_with_other_rows_is_found_by_fsck(table, parquet):
    for close in (1.0, 2.0):
        path = parquet(rows([0, 1], close=close))
        size_bytes = path.stat().st_size
        if close == 1.0:
            table.append_parquet(path)
    assert segment_file(table).stat().st_size == size_bytes
    shutil.copyfile(path, segment_file(table))
    [found] = table.fsck().findings
    assert found.kind == "segment"
    assert found.path in str(segment_file(table))


def test_Q01_a_live_file_that_is_missing_is_an_error_that_names_it_and_never_a_short_answer(table):
    table.append(rows([0, 1]))
    table.append(rows([5]))
    path = Path(table.root()) / next(iter(table.cold.state().segments)).path
    path.unlink()
    for read in reads(table):
        with pytest.raises(Corruption, match="live file is missing") as error:
            read()
        assert error.value.facts["path"] in str(path)


@pytest.mark.parametrize("up", [0, 1, 3])
def test_T22_a_file_reached_through_a_symbolic_link_out_of_the_table_is_refused(
    table, tmp_path, up
):
    table.append(rows([0, 1]))
    path = segment_file(table)
    moved = path if up == 0 else path.parents[up - 1]
    shutil.move(moved, tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    for read in reads(table):
        # A link to a file has a size of its own, which is told first.
        with pytest.raises(Corruption, match=r"symbolic link|another size") as error:
            read()
        assert error.value.facts["path"] in str(path)
    assert [finding.kind for finding in table.fsck().findings if not finding.is_harmless] == [
        "segment"
    ]


def test_T22_a_table_may_itself_be_reached_through_a_symbolic_link(table, tmp_path):
    table.append(rows([0, 1]))
    (tmp_path / "alias").symlink_to(table.root())
    alias = TimeSeriesTable.open(tmp_path / "alias")
    assert alias.append(rows([2])) == 3
    assert closes(alias.cold) == [0, 1, 2]
    assert alias.fsck().is_sound


@pytest.mark.parametrize("path", ["../out", "data/../../out", "/etc/passwd", "", "data//x", "."])
def test_T22_a_path_that_leaves_the_table_is_never_written_into_a_log(table, path):
    table.append(rows([0]))
    [segment] = table.cold.state().segments
    for name in ("path", "coverage_path"):
        with pytest.raises(Corruption, match="leaves the table"):
            encode_action(AddSegment(replace(segment, **{name: path})))
    with pytest.raises(Corruption, match="leaves the table"):
        encode_action(removal(replace(segment, path=path)))


# Taking files in


class OtherDevice(OsDisk):
    """A disk on which the caller's files are on another device, or not to be linked."""

    def __init__(self, code):
        self._code, self.is_struck = code, False

    def link(self, source, target):
        if "incoming" in source:
            self.is_struck = True
            raise OSError(self._code, os.strerror(self._code), target)
        super().link(source, target)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_a_file_that_cannot_be_linked_is_copied(tmp_path, parquet, code):
    disk = OtherDevice(code)
    table = TimeSeriesTable(ColdTable(LocalStorage(str(tmp_path / "t"), disk)))
    table.cold.create(spec())
    source = parquet(rows([0, 1]))
    table.append_parquet(source, link=True)
    assert disk.is_struck
    assert segment_file(table).read_bytes() == source.read_bytes()
    assert segment_file(table).stat().st_ino != source.stat().st_ino


# Errors of the operating system


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOENT, NotFound),
        (errno.ENOTDIR, NotFound),
        (errno.ENOSPC, Unavailable),
        (errno.EDQUOT, Unavailable),
        (errno.EACCES, Unavailable),
        (errno.EROFS, Unavailable),
        (errno.EMFILE, Overloaded),
        (errno.EISDIR, Invalid),
        (errno.EIO, Unavailable),
    ],
    ids=lambda value: errno.errorcode.get(value, "") if isinstance(value, int) else value.code,
)
def test_an_error_of_the_operating_system_becomes_what_the_caller_can_do(code, kind):
    error = translate_error(OSError(code, os.strerror(code)), "data/x.parquet")
    assert type(error) is kind
    assert error.facts == {"path": "data/x.parquet", "error": os.strerror(code)}
    assert error.hint


def test_a_folder_that_is_not_there_lists_nothing_and_a_file_has_no_size(tmp_path):
    storage = LocalStorage(str(tmp_path / "nowhere"))
    assert list(storage.list("data")) == []
    assert storage.size("data/x") is None
    storage.delete("data/x")
    with pytest.raises(NotFound):
        storage.read("data/x")
    with pytest.raises(NotFound, match="folder is not there"):
        storage.check("data/x", 5, "crc32c:00000000")
