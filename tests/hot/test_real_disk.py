"""A lake on the disk of this machine when that is full, slow, or failing at a file's close."""

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path

import pyarrow as pa
import pytest

import thermocline as tc
from fixtures.timing import at_best
from hot.ledger import Ledger
from hot.processes import Load, SlowDisk, make_tables, wait_for
from thermocline.config import read_lake_settings
from thermocline.disk import OsDisk
from thermocline.errors import Invalid, OutcomeUnknown, Overloaded, Unavailable
from thermocline.node import open_lake

SMALL_BYTES = 4 << 20
WIDE_BYTES = 20_000


class SmallDisk(OsDisk):
    """The real disk with room for so many bytes, for machines where nothing can be mounted."""

    def __init__(self):
        self.room_bytes = SMALL_BYTES

    def create(self, path):
        """Create a file that takes from the room; `ENOSPC` when there is none."""
        if self.room_bytes <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return Counted(super().create(path), self)


class Counted:
    """A file that stops in the middle of a write when its disk is full."""

    def __init__(self, writer, disk):
        self._writer, self._disk = writer, disk
        self.sync, self.cut, self.close = writer.sync, writer.cut, writer.close

    def write(self, data):
        """Write what there is room for."""
        taken = memoryview(data).cast("B")[: max(0, self._disk.room_bytes)]
        self._disk.room_bytes -= len(taken)
        self._writer.write(taken)
        if len(taken) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(taken)


class Volume:
    """A small place for a lake that can be filled and emptied."""

    def __init__(self, root, disk=None):
        self.root, self.disk = root, disk
        self._ballast = Path(root) / "ballast"

    def fill(self, left_bytes=0):
        """Leave only so many bytes."""
        if self.disk is not None:
            self.disk.room_bytes = left_bytes
            return
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            for _ in range(2 * SMALL_BYTES // 4096):
                file.write(bytes(4096))
        if left_bytes:
            os.truncate(self._ballast, self._ballast.stat().st_size - left_bytes)

    def empty(self):
        """Give the space back."""
        if self.disk is not None:
            self.disk.room_bytes = SMALL_BYTES
        else:
            self._ballast.unlink()

    def open(self, **settings):
        """Open the lake on it."""
        return open_lake(f"{self.root}/lake", read_lake_settings(settings), disk=self.disk)


@pytest.fixture(params=["mounted", "counted"])
def small(tmp_path, request):
    """A volume of a few megabytes: a file system of its own where this process may mount one.

    Where it may not, and once more in any case, a disk that counts the bytes it has room for.
    """
    if request.param == "counted":
        yield Volume(str(tmp_path), SmallDisk())
        return
    size = f"size={SMALL_BYTES}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "thermocline-test", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield Volume(str(tmp_path), SmallDisk())
        return
    try:
        yield Volume(str(tmp_path))
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def wide_rows(number, size_bytes=WIDE_BYTES):
    """Return one row that compresses badly."""
    start = pa.array([1_717_200_000_000_000 + number * 1_000_000], pa.timestamp("us"))
    return pa.table({"ts": start, "seq": [number], "noise": [os.urandom(size_bytes)]})


def wide_table(lake, name="wide"):
    """Make a table for such rows."""
    return lake.create_table(name, time_column="ts", bucket="1h")


def seqs(lake, name="wide"):
    """Return the numbers of the rows that are read."""
    return sorted(lake.sql(f"select seq from {name}").column("seq").to_pylist())


def write_until_refused(table, first=1):
    """Write rows until one is refused; return the last number taken and the refusal."""
    for number in range(first, first + 10_000):
        try:
            table.write(wide_rows(number), wait_s=0.1)
        except (Unavailable, Overloaded) as error:
            return number - 1, error
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("file_bytes_max", [64 << 20, 1], ids=["W10-append", "W11-rotation"])
def test_W10_W11_a_full_disk_refuses_writes_keeps_reads_and_heals_without_a_restart(
    small, file_bytes_max
):
    lake = small.open(file_bytes_max=file_bytes_max, flush_age_s=3600)
    table = wide_table(lake)
    table.write(wide_rows(1))
    small.fill(left_bytes=3 * WIDE_BYTES)
    last, error = write_until_refused(table, first=2)
    assert isinstance(error, Unavailable)
    assert "disk" in error.message
    assert error.hint
    for again in range(3):
        with pytest.raises(Unavailable):
            table.write(wide_rows(1000 + again))
        assert [s for s in seqs(lake) if s < 1000] == list(range(1, last + 1))
    small.empty()
    table.write(wide_rows(last + 1))
    assert [s for s in seqs(lake) if s < 1000] == list(range(1, last + 2))
    lake.close(flush=False)
    assert all(p.stat().st_size for p in Path(f"{small.root}/lake/journal").glob("*.wal"))
    with small.open() as lake:
        found = seqs(lake)
        assert [s for s in found if s < 1000] == list(range(1, last + 2))
        assert len(found) == len(set(found))
        lake.table("wide").write(wide_rows(last + 2))
    with small.open() as lake:
        assert [s for s in seqs(lake) if s < 1000] == list(range(1, last + 3))


@pytest.mark.parametrize("end", ["closed", "died"])
def test_W10_a_lake_that_nobody_owns_is_read_on_a_full_disk_and_written_when_there_is_room(
    small, end
):
    lake = small.open(flush_age_s=3600)
    wide_table(lake).write(wide_rows(1))
    as_it_is = f"{small.root}/as-it-is"
    if end == "died":
        shutil.copytree(f"{small.root}/lake", as_it_is)
    lake.close(flush=False)
    if end == "closed":
        shutil.copytree(f"{small.root}/lake", as_it_is)
    small.fill()
    with tc.connect(as_it_is, read_only=True) as reader:
        assert seqs(reader) == [1]
        with pytest.raises(Unavailable, match="full"):
            write_to(as_it_is, small.disk, 2)
        assert seqs(reader) == [1]
        small.empty()
        write_to(as_it_is, small.disk, 3)
        assert seqs(reader) == [1, 3]


def write_to(root, disk, number):
    """Open a lake, write one row and close it."""
    with open_lake(root, disk=disk) as lake:
        lake.table("wide").write(wide_rows(number))


def test_F04_a_flush_that_finds_no_room_keeps_the_rows_hot_and_is_done_later(small):
    lake = small.open(flush_age_s=3600, flush_look_s=0.05)
    table = wide_table(lake)
    for number in range(1, 21):
        table.write(wide_rows(number))
    small.fill(left_bytes=2 * WIDE_BYTES)
    for _ in range(2):
        with pytest.raises(Unavailable):
            table.flush()
        assert seqs(lake) == list(range(1, 21))
        assert table.snapshot().parts
    small.empty()
    table.flush()
    assert not table.snapshot().parts
    assert seqs(lake) == list(range(1, 21))
    assert [f for f in table.fsck().findings if not f.is_harmless] == []
    lake.close()


@pytest.mark.slow
def test_W20_W26_a_slow_disk_bounds_memory_refuses_what_is_too_much_and_loses_nothing(tmp_path):
    ceiling = 1 << 20
    disk, ledger = SlowDisk(0.0), Ledger(tmp_path / "ledger")
    settings = read_lake_settings(
        {"hot_bytes_max": ceiling, "write_wait_s": 0.1, "flush_age_s": 0.2}
    )
    lake = open_lake(str(tmp_path / "lake"), settings, disk=disk)
    make_tables(lake)
    load = Load(lake, ledger, 0)
    load.begin(writers=12, readers=0, flushers=0, rows_max=1500)
    wait_for(lambda: len(ledger.last(0, "a")) == 12, what="an answer to each writer")
    disk.delay_s = 0.5
    before_bytes, highest = pa.total_allocated_bytes(), 0
    began_s = time.monotonic()

    def is_held():
        nonlocal highest
        highest = max(highest, lake.tier.hot_bytes)
        assert highest <= ceiling
        assert pa.total_allocated_bytes() < before_bytes + 16 * ceiling
        is_full = highest > ceiling / 4 and load.errors.get("Overloaded", 0) > 0
        return is_full and time.monotonic() > began_s + 5

    wait_for(is_held, what="a write that is refused for want of memory")
    disk.delay_s = 0.0
    load.end()
    assert set(load.errors) == {"Overloaded"}
    assert not ledger.check(lake).bad()
    lake.close()
    with tc.connect(tmp_path / "lake") as lake:
        verdict = ledger.check(lake)
        assert verdict.acked
        assert not verdict.bad(), verdict


def test_W20_a_full_queue_refuses_at_once_and_drops_nothing_that_it_took(tmp_path):
    settings = read_lake_settings({"queue_bytes_max": 4 * WIDE_BYTES, "flush_age_s": 3600})
    lake = open_lake(str(tmp_path / "lake"), settings)
    table = wide_table(lake)
    table.write(wide_rows(0))
    taken, refused = [], []

    def write(number):
        try:
            table.write(wide_rows(number))
            taken.append(number)
        except Overloaded as error:
            refused.append(error)

    with lake.tier.group.pause():
        writers = [threading.Thread(target=write, args=(n,)) for n in range(1, 21)]
        writers[0].start()
        # The group before stays there when it is done.
        wait_for(
            lambda: not all(request.future.done() for request in lake.tier.group._group),
            what="a write that is on its way to the disk",
        )
        for writer in writers[1:]:
            writer.start()
        wait_for(lambda: len(refused) == 16, what="refusals while the disk stands still")
        assert not taken
    for writer in writers:
        writer.join(30)
    assert all("wait to be written" in error.message and error.hint for error in refused)
    assert len(taken) == 4, "one was on its way, three had room to wait"
    assert seqs(lake) == [0, *sorted(taken)]
    lake.close(flush=False)
    with tc.connect(tmp_path / "lake") as lake:
        assert seqs(lake) == [0, *sorted(taken)]


class CountingDisk(OsDisk):
    """The real disk, which counts the syncs of files."""

    def __init__(self):
        self.syncs = 0

    def create(self, path):
        """Create a file whose syncs are counted."""
        writer = super().create(path)
        sync = writer.sync

        def counted():
            self.syncs += 1
            sync()

        writer.sync = counted
        return writer


BAD_ROWS = {
    "a time that is missing": pa.table(
        {"ts": pa.array([None], pa.timestamp("us")), "seq": [900], "noise": [b""]}
    ),
    "a column of another type": pa.table(
        {"ts": pa.array([0], pa.timestamp("us")), "seq": ["no number"], "noise": [b""]}
    ),
    "a column that the table has not": [{"ts": "2024-06-01", "seq": 901, "else": 1}],
    "no rows at all": ["text"],
}


def test_W21_of_requests_written_together_only_the_bad_ones_fail_and_one_sync_serves_the_rest(
    tmp_path,
):
    disk = CountingDisk()
    lake = open_lake(str(tmp_path / "lake"), read_lake_settings({"flush_age_s": 3600}), disk=disk)
    table = wide_table(lake)
    table.write(wide_rows(0))
    answers = {}

    def write(name, rows):
        try:
            answers[name] = table.write(rows)
        except Invalid as error:
            answers[name] = error

    requests = {n: wide_rows(n) for n in range(1, 13)} | BAD_ROWS
    writers = [threading.Thread(target=write, args=request) for request in requests.items()]
    with lake.tier.group.pause():
        before = disk.syncs
        for writer in writers:
            writer.start()
        wait_for(lambda: len(answers) == len(BAD_ROWS), what="refusals of the bad ones")
        full = 13 * WIDE_BYTES  # what is on its way counts as hot
        wait_for(lambda: lake.tier.hot_bytes >= full, what="twelve requests on their way")
    for writer in writers:
        writer.join(30)
    assert {name for name, answer in answers.items() if answer != 1} == set(BAD_ROWS)
    assert disk.syncs - before <= 4, "the good ones were not written together"
    assert seqs(lake) == list(range(13))
    lake.close(flush=False)
    with tc.connect(tmp_path / "lake") as lake:
        assert seqs(lake) == list(range(13))


class ClosingBadly(OsDisk):
    """The real disk, where the close of a file reports that its bytes did not get through."""

    def __init__(self):
        self.is_bad = False
        self.failed = 0

    def create(self, path):
        """Create a file whose close may fail."""
        writer = super().create(path)
        close = writer.close

        def failing():
            close()
            if self.is_bad:
                self.failed += 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        writer.close = failing
        return writer


def test_W08_an_error_that_comes_at_close_counts_as_a_failed_sync_and_loses_nothing(tmp_path):
    disk = ClosingBadly()
    settings = read_lake_settings({"file_bytes_max": 1, "flush_age_s": 3600})
    lake = open_lake(str(tmp_path / "lake"), settings, disk=disk)
    table = wide_table(lake)
    table.write(wide_rows(1))
    version = table.version()
    disk.is_bad = True
    for number in range(2, 6):
        table.write(wide_rows(number))
    with pytest.raises(Unavailable):
        table.flush()
    assert disk.failed >= 5
    assert table.version() == version
    assert seqs(lake) == list(range(1, 6))
    disk.is_bad = False
    table.flush()
    assert table.version() > version
    assert seqs(lake) == list(range(1, 6))
    lake.close()
    with tc.connect(tmp_path / "lake") as lake:
        assert seqs(lake) == list(range(1, 6))


class Untold(OsDisk):
    """The real disk, where readers in other processes sometimes cannot be told of a write."""

    is_bad = False
    is_stuck = False

    def rename(self, source, target):
        """Replace a file, unless it is the watermark and its place is bad."""
        self._refuse(target, is_refused=self.is_bad)
        super().rename(source, target)

    def unlink(self, path):
        """Remove a name, unless it is the watermark and that is stuck."""
        self._refuse(path, is_refused=self.is_stuck)
        super().unlink(path)

    def _refuse(self, path, *, is_refused):
        if is_refused and path.endswith("/durable"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def open_slot(self, path):
        """Open a slot that may refuse what is put into it."""
        slot = super().open_slot(path)
        put = slot.put

        def failing(data):
            if self.is_bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            put(data)

        slot.put = failing
        return slot


def test_D12_a_watermark_that_cannot_be_written_fails_no_write_and_hides_no_row(tmp_path):
    disk = Untold()
    lake = open_lake(str(tmp_path / "lake"), read_lake_settings({"flush_age_s": 3600}), disk=disk)
    table = wide_table(lake)
    table.write(wide_rows(1))
    disk.is_bad = True
    with tc.connect(tmp_path / "lake", read_only=True) as beside:
        for number in (2, 3):
            table.write(wide_rows(number))
            assert seqs(lake) == seqs(beside) == list(range(1, number + 1))
        disk.is_bad = False
        table.write(wide_rows(4))
        assert seqs(lake) == seqs(beside) == [1, 2, 3, 4]
    lake.close()
    with tc.connect(tmp_path / "lake") as again:
        assert seqs(again) == [1, 2, 3, 4]


def test_D09_a_second_process_is_refused_though_the_lock_file_was_removed(tmp_path):
    lake = open_lake(str(tmp_path / "lake"), read_lake_settings({"flush_age_s": 3600}))
    table = wide_table(lake)
    table.write(wide_rows(1))
    (tmp_path / "lake" / "journal" / "lock").unlink()
    code = f"import thermocline as tc; tc.connect({str(tmp_path / 'lake')!r})"
    second = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert second.returncode != 0
    assert "another process writes this journal" in second.stderr
    table.write(wide_rows(2))
    lake.close()
    with tc.connect(tmp_path / "lake") as again:
        assert seqs(again) == [1, 2]


def test_D09_an_owner_whose_journal_was_replaced_answers_no_write(tmp_path):
    lake = open_lake(str(tmp_path / "lake"), read_lake_settings({"flush_age_s": 3600}))
    table = wide_table(lake)
    table.write(wide_rows(1))
    journal = tmp_path / "lake" / "journal"
    journal.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", journal)
    before = {path.name: path.read_bytes() for path in journal.iterdir()}
    for _ in range(2):
        with pytest.raises(Unavailable, match="replaced or taken over"):
            table.write(wide_rows(2))
    lake.close()
    assert {path.name: path.read_bytes() for path in journal.iterdir()} == before
    with tc.connect(tmp_path / "lake") as second:
        assert seqs(second) == [1]


def test_F06_rows_that_readers_elsewhere_could_not_be_told_of_are_not_passed_over_by_a_flush(
    tmp_path,
):
    disk = Untold()
    lake = open_lake(str(tmp_path / "lake"), read_lake_settings({"flush_age_s": 3600}), disk=disk)
    table = wide_table(lake)
    table.write(wide_rows(1))
    disk.is_bad = disk.is_stuck = True
    with pytest.raises(OutcomeUnknown):
        table.write(wide_rows(2))
    disk.is_bad = disk.is_stuck = False
    table.write(wide_rows(3))
    with tc.connect(tmp_path / "lake", read_only=True) as beside:
        assert seqs(lake) == seqs(beside) == [1, 2, 3]
        table.flush()
        assert seqs(lake) == seqs(beside) == [1, 2, 3]
        lake.close()
        assert seqs(beside) == [1, 2, 3]


@pytest.mark.slow
def test_F09_a_quiet_table_beside_a_busy_one_is_flushed_within_its_age(tmp_path):
    age_s = 0.5
    with tc.connect(tmp_path / "lake", flush_age_s=age_s, flush_look_s=0.1) as lake:
        busy, quiet = wide_table(lake, "busy"), wide_table(lake, "quiet")
        stop = threading.Event()

        def hammer(writer):
            number = writer
            while not stop.is_set():
                busy.write(wide_rows(number))
                number += 2

        writers = [threading.Thread(target=hammer, args=(n,)) for n in range(2)]
        for writer in writers:
            writer.start()
        numbers = count()

        def rounds():
            late_s = []
            for number in islice(numbers, 4):
                quiet.write(wide_rows(number))
                began_s = time.monotonic()
                wait_for(lambda: not quiet.snapshot().parts, what="a flush of the quiet table")
                late_s.append(time.monotonic() - began_s)
            return late_s

        def is_in_time(late_s):
            return min(late_s) < 2 * age_s and max(late_s) < 10 * age_s

        try:
            late_s = at_best(rounds, is_in_time)
        finally:
            stop.set()
            for writer in writers:
                writer.join(30)
        assert busy.version() > 3, "the busy table was not flushed"
        assert is_in_time(late_s), late_s
        assert lake.flush_error is None


@contextmanager
def umask(bits):
    """Set what new files are not allowed to be, for a while."""
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def test_A14_the_journal_is_for_its_user_alone(tmp_path):
    with umask(0), tc.connect(tmp_path / "lake") as lake:
        wide_table(lake).write(wide_rows(1))
        folder = tmp_path / "lake" / "journal"
        assert folder.stat().st_mode & 0o777 == 0o700
