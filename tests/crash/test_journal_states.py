"""The journal under power cuts, kills and failing calls, one after the other; and wrong journals.

A cut before call k + 1 is the cut after call k, so that cuts before every call, and one after the
last, are all there are. What is found each time is held against the ledger of what was answered.
"""

import errno
import random
from contextlib import suppress
from itertools import zip_longest

import pytest

from crash.journal_core import (
    FOLDER,
    JOURNAL_ID,
    Ledger,
    Story,
    check,
    entry,
    forget_what_may_be_lost,
    frames,
    journal_disk,
    opened,
    payloads,
    random_story,
)
from fixtures import sim_states
from fixtures.sim_disk import SimDisk, SimWriter
from fixtures.sim_fault import Died
from thermocline.config import Sync
from thermocline.errors import Corruption, ThermoclineError
from thermocline.hot.wal.folder import DURABLE_NAME, file_path, numbers
from thermocline.hot.wal.frame import FRAME_MAGIC, decode_frame_header
from thermocline.hot.wal.journal import Journal
from thermocline.hot.wal.reader import FrameReader, JournalFile, JournalReader

CALLS_MAX = 300
STATES_PER_CALL = 60
SHARDS = 8
STATES_PER_SHARD = 5_050  # all shards together: more than 40,000
STORIES_PER_SHARD_MAX = 18  # a story that has lost its states does not count as quick
SECOND_CUT_EVERY = 41
CODES = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EINTR, errno.EDQUOT)


@pytest.fixture(autouse=True)
def _few_dry_samples(monkeypatch):
    """Few things are pending at a time: what chance has not found soon, it does not find."""
    monkeypatch.setattr(sim_states, "DRY_SAMPLES_MAX", 12)


def cut_at(call, story, *, kind=Journal, sync=Sync.ALWAYS, fault=None):
    """Play a story up to a call; return the disk at that moment, the ledger, and if it ended."""
    disk, ledger = journal_disk(), Ledger()
    try:
        told = Story(disk, ledger, kind, sync=sync)
        if fault is not None:
            disk.fail(**fault)
        disk.die(call, mutating_only=True)
        told.play(story)
    except Died:
        return disk, ledger, False
    return disk, ledger, True


def with_an_older_watermark(left, ledger, rng):
    """The watermark is never synced: any that was ever written may be the one on the disk."""
    if ledger.watermarks and rng.random() < 0.3:
        left.overwrite(f"{FOLDER}/{DURABLE_NAME}", rng.choice(ledger.watermarks))


def second_life(left, ledger, rng, *, kind=Journal, sync=Sync.ALWAYS):
    """Open what the first life left, die again somewhere, and look at what that leaves."""
    left.die(rng.randint(1, 14), mutating_only=True)
    with suppress(Died):
        Story(left, ledger, kind, sync=sync).play([("append", 2), ("append", 1)])
    for last in (left.killed(), left.crash(rng), left.crash(rng, any_subset=True)):
        check(frames(last), ledger, is_power_cut=True)
    third = Story(last, ledger, kind, sync=sync)
    third.append(1)
    third.journal.sync()
    check(frames(last), ledger, is_power_cut=False)


def run_cuts(seed, *, kind=Journal, sync=Sync.ALWAYS, fault=None):
    """Cut the power at every call of one story; return how many states were looked at."""
    rng = random.Random(seed)
    story = random_story(rng, laxly=sync is not Sync.ALWAYS)
    count = 0
    for call in range(1, CALLS_MAX):
        disk, ledger, has_ended = cut_at(call, story, kind=kind, sync=sync, fault=fault)
        check(frames(disk.killed()), ledger, is_power_cut=False)
        for left in disk.crash_states(STATES_PER_CALL, seed=seed * CALLS_MAX + call):
            count += 1
            with_an_older_watermark(left, ledger, rng)
            check(frames(left), ledger, is_power_cut=True)
            if count % SECOND_CUT_EVERY == 0:
                second_life(left, ledger.copy(), rng, kind=kind, sync=sync)
        if has_ended:
            return count
    raise AssertionError("the story makes too many calls")


def run_lives(seed, *, kind=Journal, sync=Sync.ALWAYS):
    """Live four times on one disk, each time with a failing call, a death, and maybe a cut."""
    rng = random.Random(seed)
    disk, ledger = journal_disk(), Ledger()
    for _ in range(4):
        disk.fail(**some_fault(rng))
        disk.die(rng.randint(5, 40), mutating_only=True)
        with suppress(Died, ThermoclineError):
            Story(disk, ledger, kind, sync=sync).play(random_story(rng, laxly=True))
        is_cut = rng.random() < 0.5
        disk = disk.crash(rng) if is_cut else disk.killed()
        found = frames(disk)
        check(found, ledger, is_power_cut=is_cut)
        if is_cut:
            forget_what_may_be_lost(found, ledger)


def some_fault(rng):
    """Return a call to fail, and how."""
    return {
        "call": rng.randint(1, 25),
        "code": rng.choice(CODES),
        "sticky": rng.random() < 0.4,
        "torn": rng.random() < 0.5,
        "landed": rng.random() < 0.2,
        "mutating_only": True,
    }


@pytest.mark.parametrize("shard", range(SHARDS))
def test_W02_W04_W19_W22_no_power_cut_at_any_call_loses_what_was_answered(shard):
    """Every third story also meets a failing call, and one in four has a laxer policy."""
    count = 0
    for place in range(STORIES_PER_SHARD_MAX):
        seed = shard * STORIES_PER_SHARD_MAX + place
        fault = some_fault(random.Random(seed)) if seed % 3 == 0 else None
        sync = {1: Sync.INTERVAL, 3: Sync.OS}.get(seed % 8, Sync.ALWAYS)
        count += run_cuts(seed, sync=sync, fault=fault)
        if count >= STATES_PER_SHARD:
            return
    pytest.fail(f"only {count} states")


@pytest.mark.parametrize("sync", list(Sync))
def test_W07_W22_lives_that_end_in_kills_and_cuts_with_failing_disks_lose_nothing(sync):
    """A killed process leaves bytes that only the kernel has, and after a failed sync not even."""
    for seed in range(250):
        run_lives(seed, sync=sync)


# --- wrong journals: each mistake is one that somebody has shipped -----------------------------


class AnswersBeforeSyncing(Journal):
    """Takes the write for durable."""

    def _synced(self):
        self._settle()


class RetriesTheSync(Journal):
    """Syncs the same file again, and believes the second answer."""

    def _synced(self):
        try:
            self._writer.sync()
        except OSError:
            self._writer.sync()
        self._settle()


class NeverSyncsTheFolder(Journal):
    """Answers from a file whose name is not durable."""

    def _link(self, temporary, path):
        self._disk.link(temporary, path)


class NamesBeforeSyncing(Journal):
    """Gives a new file its name before its header is durable."""

    def _named(self, path, data):
        writer = self._disk.create(path)
        self._disk.sync_folder(self._folder)
        writer.write(data)
        writer.sync()
        return writer


class WritesOnAfterAFailedRotation(Journal):
    """Goes on in the old file although the new one's name may have got through."""

    def _link(self, temporary, path):
        try:
            self._disk.link(temporary, path)
            self._disk.sync_folder(self._folder)
        except OSError:
            self._disk.unlink(path)
            raise


class TrustsWhatItIsShown(Journal):
    """Takes what a dead process left in the kernel's memory for durable."""

    def _adopt(self, frames):
        with_sync = file_path(self._folder, frames[-1].header.number)
        self._disk.sync_file(with_sync)


class LeavesHalfAGroup(Journal):
    """Does not cut off what a failed write left behind."""

    def _after_failed_write(self, error):
        return ThermoclineError("the disk failed")


class ForgetsWhatWasNotSynced(Journal):
    """Opens a new file after a failed sync without the frames that the old one lost."""

    def _open_next(self):
        self._unsynced.clear()
        super()._open_next()


class ReopensAndAppends(Journal):
    """Goes on behind whatever the last file holds."""

    def __init__(self, disk, folder, identity, tail, **options):
        super().__init__(disk, folder, identity, tail, **options)
        if tail.number and self._writer is None:
            path = file_path(folder, tail.number)
            self._writer = SimWriter(disk, path, disk._volume.file(path))
            self._end = disk.size(path)


def run_failed_rotation(kind):
    """Fail each call of a rotation of a file that is not full, write on, and cut the power."""
    for call in range(1, 8):
        disk, ledger = journal_disk(), Ledger()
        told = Story(disk, ledger, kind)
        told.append(1)
        disk.fail(call, errno.EIO, mutating_only=True)
        told.play([("rotate", 0), ("append", 1), ("append", 1)])
        assert disk.struck
        for left in disk.crash_states(STATES_PER_CALL):
            check(frames(left), ledger, is_power_cut=True)


def test_W11_W19_a_rotation_that_failed_is_never_followed_by_a_write_to_the_old_file():
    run_failed_rotation(Journal)


def survives(kind, *, seeds=range(30)):
    """Tell whether a journal passes the loops that the right one passes."""
    try:
        run_failed_rotation(kind)
        for seed in seeds:
            rng = random.Random(seed)
            sync = Sync.INTERVAL if seed % 3 == 2 else Sync.ALWAYS
            run_lives(seed, kind=kind, sync=sync)
            if seed % 5 == 0:
                run_cuts(seed, kind=kind, sync=sync, fault=some_fault(rng))
    except (AssertionError, ThermoclineError, OSError):
        return False
    return True


def test_the_right_journal_survives_what_the_wrong_ones_meet():
    assert survives(Journal)


@pytest.mark.parametrize(
    "mutant",
    [
        AnswersBeforeSyncing,
        RetriesTheSync,
        NeverSyncsTheFolder,
        NamesBeforeSyncing,
        WritesOnAfterAFailedRotation,
        TrustsWhatItIsShown,
        LeavesHalfAGroup,
        ForgetsWhatWasNotSynced,
        ReopensAndAppends,
    ],
)
def test_W02_W04_W07_W15_W19_a_journal_that_skips_a_step_is_caught(mutant):
    assert not survives(mutant, seeds=range(250))


# --- wrong readers --------------------------------------------------------------------------------


def written_disk(*, is_closed=False, has_watermark=True):
    """Return a disk with three files of acknowledged frames; closed, a fourth proves their end."""
    disk = journal_disk()
    journal = opened(disk, file_bytes_max=300)
    for number in range(9):
        journal.append([entry(b"row %d" % number)])
    if is_closed:
        journal.close()
    if not has_watermark:
        disk.remove(f"{FOLDER}/{DURABLE_NAME}")
    return disk


def flipped(number, offset, **state):
    disk = written_disk(**state)
    disk.flip_byte(file_path(FOLDER, number), offset)
    return disk


def without(number, **state):
    disk = written_disk(**state)
    disk.remove(file_path(FOLDER, number))
    return disk


def damaged_disks():
    """Yield journals that lost or damaged something that had been answered."""
    for number, offset in ((1, 80), (1, 145), (1, 10), (2, -6), (3, -6)):
        yield flipped(number, offset, is_closed=True, has_watermark=False)
    yield flipped(3, -6)
    yield flipped(3, 80, has_watermark=False)
    yield flipped(3, 10, has_watermark=False)
    for number in (1, 2):
        yield without(number, has_watermark=False)
    yield without(3)


def refuses_damage():
    """Tell whether all of these stop a start."""
    return all(is_refused(disk) for disk in damaged_disks())


def is_refused(disk):
    try:
        payloads(disk)
    except Corruption:
        return True
    return False


RIGHT_NEXT = FrameReader._next


def skips_a_bad_frame(reading, end):
    """Look for the next frame that is whole and go on from there."""
    frame = None
    with suppress(Corruption):
        frame = RIGHT_NEXT(reading, end)
    if frame is not None:
        return frame
    rest = reading._peek(1 << 20)
    place = rest.find(FRAME_MAGIC, 1)
    while place >= 0:
        header = decode_frame_header(JOURNAL_ID, rest, place)
        if header is not None:
            reading._start += place
            reading.offset += place
            reading.next_lsn = header.lsn
            return RIGHT_NEXT(reading, end)
        place = rest.find(FRAME_MAGIC, place + 1)
    return None


def drops_an_unopenable_file(reader):
    """Leave out a file whose header is bad."""
    found = []
    for number in numbers(reader._disk, FOLDER):
        size_bytes, header = reader._header(file_path(FOLDER, number))
        if header is not None:
            found.append((file_path(FOLDER, number), header, size_bytes))
    ends = [header.previous_end for _, header, _ in found[1:]]
    return [JournalFile(*file, end) for file, end in zip_longest(found, ends)]


def test_the_right_reader_refuses_all_damage():
    assert refuses_damage()
    assert payloads(written_disk()) == [b"row %d" % number for number in range(9)]


@pytest.mark.parametrize(
    ("where", "name", "mutant"),
    [
        (FrameReader, "_next", skips_a_bad_frame),
        (JournalReader, "_cut", lambda reader, reading: reading.cut_bytes),
        (JournalReader, "_chained", drops_an_unopenable_file),
        (JournalReader, "_check_present", lambda reader, found, known: None),
    ],
)
def test_W12_W13_a_reader_that_makes_do_with_less_is_caught(where, name, mutant, monkeypatch):
    monkeypatch.setattr(where, name, mutant)
    assert not refuses_damage()


def recycled_disk():
    """Return a disk whose last file ends in bytes of an earlier one that fit in every number."""
    disk = journal_disk()
    opened(disk).append([entry(b"mine")])
    other = SimDisk.thaw(disk.freeze())
    opened(other, file_bytes_max=1).append([entry(b"never mine")])
    stale = other.read(file_path(FOLDER, 2))[64:]
    path = file_path(FOLDER, 1)
    disk.overwrite(path, disk.read(path) + stale)
    return disk


def test_W06_frames_of_another_file_are_no_frames_of_this_one(monkeypatch):
    assert payloads(recycled_disk()) == [b"mine"]
    monkeypatch.setattr(FrameReader, "_place", lambda reading: (reading.next_lsn, AnyNumber()))
    assert payloads(recycled_disk()) == [b"mine", b"never mine"], "the mutant is not caught"


class AnyNumber(int):
    """Equal to every number: a frame without the identity of its file."""

    __hash__ = int.__hash__

    def __eq__(self, other):
        return True
