"""Vacuum: removes what no kept version, no reader and no writer needs; nothing else, ever."""

import multiprocessing
from pathlib import Path

import orjson
import pytest

from fixtures.lake import closes, lake_on, rows, spec
from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import Died
from thermocline import TimeSeriesTable
from thermocline.cold.care.fsck import fsck
from thermocline.cold.care.pin import LEASE_S
from thermocline.cold.change.append import AppendOptions
from thermocline.errors import Invalid, NotFound
from thermocline.format import layout
from thermocline.format.instant import NS_PER_S, parse_instant

ROOT = "/lake/prices/"
NOW = {"dry_run": False, "grace": "0s", "allow_short_grace": True}
spawn = multiprocessing.get_context("spawn")


class Clock:
    """One clock for the disk and the table, so that the age of a file means something."""

    def __init__(self):
        self.now_ns = parse_instant("2024-07-01")

    def __call__(self):
        self.now_ns += 1_000_000
        return self.now_ns

    def wait(self, seconds):
        self.now_ns += seconds * NS_PER_S


class Lake:
    """A table of four versions on a simulated disk: 0 to 3, then 0 and 1 replaced, then one more.

    Version 2 has the only segment that version 3 removed.
    """

    def __init__(self):
        self.clock = Clock()
        self.disk = SimDisk(["/lake"], clock=self.clock)
        self.table = self.opened()
        self.table.cold.create(spec())
        self.append([0, 1])
        [self.old] = self.table.cold.state().segments
        self.append([0, 1], close=50, overlap="replace")
        self.append([9])

    def opened(self, disk=None):
        lake = lake_on(disk or self.disk, now_ns=self.clock)
        return TimeSeriesTable(lake)

    def append(self, hours, **options):
        wish = AppendOptions(overlap=options.pop("overlap", None))
        return self.opened().cold.append(rows(hours, **options).to_reader(), wish)

    def has(self, path):
        return self.disk.size(ROOT + path) is not None


@pytest.fixture
def lake():
    return Lake()


def sound(lake, disk=None):
    """Tell that fsck finds nothing wrong and nothing left over."""
    found = fsck(lake.opened(disk).cold).findings
    return [f for f in found if not f.is_harmless or f.kind == "orphan"] == []


# What goes and what stays


def test_by_default_nothing_goes_and_what_would_go_is_told(lake):
    lake.clock.wait(30 * 86_400)
    before = lake.disk.tree()
    told = lake.table.vacuum()
    assert told.is_dry_run
    assert {lake.old.path, lake.old.coverage_path} <= set(told.files)
    assert told.size_bytes == sum(len(before[ROOT + path]) for path in told.files)
    assert lake.disk.tree() == before


def test_what_no_kept_version_names_goes_and_all_else_stays(lake):
    lake.clock.wait(30 * 86_400)
    told = lake.table.vacuum()
    steps = []
    done = lake.table.vacuum(dry_run=False, progress=lambda *step: steps.append(step))
    assert (done.files, done.oldest) == (told.files, 4)
    assert steps == [(n, len(done.files)) for n in range(1, len(done.files) + 1)]
    assert not any(lake.has(path) for path in done.files)
    assert closes(lake.opened().cold) == [9, 50, 50]
    assert sound(lake)
    assert lake.opened().history().num_rows == 5


def test_a_version_within_the_grace_period_can_still_be_read(lake):
    lake.clock.wait(3 * 86_400)
    assert lake.table.vacuum(dry_run=False).files == ()
    assert closes(lake.table.cold, at=2) == [0, 1]
    assert lake.table.vacuum(dry_run=False, grace="2d").files != ()
    assert closes(lake.table.cold, at=4) == [9, 50, 50]


def test_the_version_that_was_newest_when_the_grace_period_began_is_kept(lake):
    lake.clock.wait(10 * 86_400)
    lake.append([0, 1], close=70, overlap="replace")
    lake.table.vacuum(dry_run=False)
    assert closes(lake.table.cold, at=4) == [9, 50, 50]
    assert not lake.has(lake.old.path)


@pytest.mark.parametrize("grace", ["0s", "59m"])
def test_a_grace_period_that_could_rob_somebody_has_to_be_allowed(lake, grace):
    with pytest.raises(Invalid, match="too short"):
        lake.table.vacuum(grace=grace)
    lake.table.vacuum(grace=grace, allow_short_grace=True)


def test_a_second_vacuum_has_nothing_to_do_and_makes_no_version(lake):
    assert lake.table.vacuum(**NOW).files != ()
    version = lake.table.version()
    for _ in range(2):
        assert lake.opened().vacuum(**NOW).files == ()
    assert lake.table.version() == version


def test_the_shortcut_of_the_newest_version_is_there_after_a_vacuum(lake):
    lake.clock.wait(30 * 86_400)
    lake.table.vacuum(dry_run=False)
    assert lake.has(layout.table_coverage_path(lake.table.version()))
    lake.disk.calls.clear()
    lake.opened().coverage()
    assert not [path for _, path in lake.disk.calls if layout.SEGMENT_COVERAGE_FOLDER in path]


def test_leftovers_go_when_they_are_old_and_stay_while_they_may_be_somebodys(lake):
    left = ["data/2024/06/01/00/x.parquet", "_coverage/segments/x.roar", "_log/.x.tmp"]
    for path in left:
        lake.disk.overwrite(ROOT + path, b"left by a writer that died")
    lake.clock.wait(3_000)
    lake.table.vacuum(dry_run=False, grace="1h")
    assert all(lake.has(path) for path in left)
    lake.clock.wait(1_000)
    lake.table.vacuum(dry_run=False, grace="1h")
    assert not any(lake.has(path) for path in left)


def test_Q09_a_version_that_was_vacuumed_is_told_to_have_expired(lake):
    lake.table.vacuum(**NOW)
    for table in (lake.table, lake.opened()):
        for ask in (table.to_arrow, table.coverage, table.gaps, table.schema):
            with pytest.raises(NotFound, match="expired") as error:
                ask(at=2)
            assert error.value.facts["oldest"] == 4
        with pytest.raises(NotFound, match="expired"):
            table.restore(2)
        with pytest.raises(NotFound, match="expired"):
            table.diff(2)


# Readers


def test_C07_a_pinned_version_is_kept_whatever_the_grace_period(lake):
    lake.disk.overwrite(ROOT + "data/left.parquet", b"left by a writer that died")
    with lake.table.pin(at=2):
        assert lake.opened().vacuum(**NOW).files == ("data/left.parquet",)
        assert closes(lake.opened().cold, at=2) == [0, 1]
    assert lake.old.path in lake.opened().vacuum(**NOW).files


def test_C07_a_stream_pins_its_version_before_it_is_read_and_until_it_is_dropped(lake):
    stream = lake.table.scan(["close"], at=2)
    lake.opened().vacuum(**NOW)
    assert stream.read_all().column("close").to_pylist() == [0, 1]
    for drop in (lambda s: s.read_all(), lambda s: None):
        stream = lake.table.scan(at=2)
        assert len(list(lake.table.cold.storage.list(layout.PINS_FOLDER))) == 1
        drop(stream)
        del stream
        assert list(lake.table.cold.storage.list(layout.PINS_FOLDER)) == []


def read_when_told(root, pipe):
    table = TimeSeriesTable.open(root)
    stream = table.scan(["close"], at=2)
    pipe.send("pinned")
    pipe.recv()
    pipe.send(sorted(stream.read_all().column("close").to_pylist()))


def test_C07_a_reader_in_another_process_keeps_its_version(table):
    table.append(rows([0, 1]))
    table.append(rows([0, 1], close=50), overlap="replace")
    ours, theirs = spawn.Pipe()
    reader = spawn.Process(target=read_when_told, args=(table.root(), theirs))
    reader.start()
    try:
        assert ours.poll(60)
        assert ours.recv() == "pinned"
        assert table.vacuum(**NOW).files == ()
        ours.send("read")
        assert ours.poll(60)
        assert ours.recv() == [0, 1]
    finally:
        reader.join(60)
    assert reader.exitcode == 0
    gone = table.vacuum(**NOW).files
    assert len([path for path in gone if path.startswith("data/")]) == 1


def test_C07_a_reader_that_died_holds_its_version_no_longer_than_its_lease(lake):
    reader = lake.table.pin(at=2)
    reader.__enter__()
    lake.clock.wait(LEASE_S - 60)
    assert lake.opened().vacuum(**NOW).files == ()
    lake.clock.wait(120)
    assert lake.old.path in lake.opened().vacuum(**NOW).files
    assert list(lake.table.cold.storage.list(layout.PINS_FOLDER)) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": "x", "until_ns": 1}'])
def test_C07_a_pin_that_cannot_be_read_keeps_everything_as_long_as_it_is_young(lake, content):
    lake.disk.overwrite(ROOT + layout.pin_path("torn"), content)
    assert lake.opened().vacuum(**NOW).files == ()
    lake.clock.wait(LEASE_S + 60)
    assert lake.old.path in lake.opened().vacuum(**NOW).files


@pytest.mark.parametrize("bit", range(8))
def test_C07_D01_a_flipped_bit_of_a_pin_lets_no_file_go(lake, bit):
    reader = lake.table.pin(at=2)
    reader.__enter__()
    (pin,) = lake.table.cold.storage.list(layout.PINS_FOLDER)
    data = lake.table.cold.storage.read(pin.path)
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
        lake.disk.overwrite(ROOT + pin.path, flipped)
        assert lake.opened().vacuum(**NOW).files == (), flipped


def test_C07_a_pin_of_an_older_release_keeps_its_version(lake):
    until_ns = lake.table.cold.log.now() + 3_600 * 10**9
    pin = orjson.dumps({"version": 2, "until_ns": until_ns})
    lake.disk.overwrite(ROOT + layout.pin_path("older"), pin)
    assert lake.opened().vacuum(**NOW).files == ()
    lake.clock.wait(3_700)
    assert lake.old.path in lake.opened().vacuum(**NOW).files


def test_C07_a_reader_that_pins_while_the_versions_expire_keeps_its_files(lake):
    streams = []

    def pin(operation, path):
        if operation == "link" and path == ROOT + layout.commit_path(5):
            lake.disk.hooks = None
            streams.append(lake.opened().scan(["close"], at=2))

    lake.disk.hooks = pin
    lake.table.vacuum(**NOW)
    lake.opened().vacuum(**NOW)
    assert streams.pop().read_all().column("close").to_pylist() == [0, 1]
    assert lake.old.path in lake.opened().vacuum(**NOW).files


def test_C07_a_reader_that_pins_too_late_is_told_so_before_it_reads_a_row(lake):
    def expire(operation, path):
        if operation == "create" and layout.PINS_FOLDER in path:
            lake.disk.hooks = None
            lake.opened().vacuum(**NOW)

    lake.disk.hooks = expire
    with pytest.raises(NotFound, match="expired"):
        lake.table.scan(at=2)
    assert list(lake.table.cold.storage.list(layout.PINS_FOLDER)) == []


# Writers


def test_C08_files_of_a_writer_that_has_not_committed_are_left_alone(lake):
    lake.clock.wait(30 * 86_400)

    def vacuum(operation, path):
        if operation == "link" and path == ROOT + layout.commit_path(5):
            lake.disk.hooks = None
            assert lake.opened().vacuum(dry_run=False, grace="1h").files != ()

    lake.disk.hooks = vacuum
    lake.append([20, 21])
    assert closes(lake.opened().cold) == [9, 20, 21, 50, 50]
    assert sound(lake)


def test_C08_what_is_restored_while_its_version_expires_is_not_taken_away(lake):
    def restore(operation, path):
        if operation == "link" and path == ROOT + layout.commit_path(5):
            lake.disk.hooks = None
            lake.opened().restore(2)

    lake.disk.hooks = restore
    lake.table.vacuum(**NOW)
    assert closes(lake.opened().cold) == [0, 1]
    assert sound(lake)


def test_C08_a_restore_of_a_version_that_expires_meanwhile_is_refused(lake):
    def expire(operation, path):
        if operation == "link" and path == ROOT + layout.commit_path(5):
            lake.disk.hooks = None
            lake.opened().vacuum(**NOW)

    lake.disk.hooks = expire
    with pytest.raises(NotFound, match="expired"):
        lake.table.restore(2)
    assert closes(lake.opened().cold) == [9, 50, 50]
    assert sound(lake)


def test_two_vacuums_at_once_remove_the_same_files_and_no_more(lake):
    def rival(operation, path):
        if operation == "unlink" and "/data/" in path:
            lake.disk.hooks = None
            lake.opened().vacuum(**NOW)

    lake.disk.hooks = rival
    lake.table.vacuum(**NOW)
    assert closes(lake.opened().cold) == [9, 50, 50]
    assert sound(lake)


def test_a_vacuum_killed_after_the_versions_expired_is_finished_by_the_next(lake):
    calls = 0
    while True:
        again = Lake()
        calls += 1
        again.disk.die(calls, mutating_only=True)
        try:
            again.table.vacuum(**NOW)
        except Died:
            left = again.disk.killed()
        else:
            break
        table = again.opened(left)
        assert closes(table.cold) == [9, 50, 50]
        table.vacuum(**NOW)
        assert left.size(ROOT + again.old.path) is None
        assert sound(again, left)
    assert calls > 5


def test_a_pin_is_a_small_file_that_says_what_and_until_when(table):
    table.append(rows([0]))
    with table.pin() as version:
        [path] = (Path(table.root()) / layout.PINS_FOLDER).iterdir()
        assert orjson.loads(path.read_bytes())["version"] == version == 2
    assert list((Path(table.root()) / layout.PINS_FOLDER).iterdir()) == []
