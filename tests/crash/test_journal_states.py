"""The journal under power cuts, kills and failing calls, one after the other; and wrong journals.

A cut before call k + 1 is the cut after call k, so that cuts before every call, and one after the
last, are all there are. What is found each time is held against the ledger of what was answered.
"""

import errno
import random
from contextlib import suppress
from itertools import zip_longest

import google_crc32c
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
from fixtures.sim_node import SECTOR_BYTES
from thermocline.config import Sync
from thermocline.errors import Corruption, ThermoclineError, Unavailable
from thermocline.hot.wal import frame
from thermocline.hot.wal.folder import DURABLE_NAME, file_path, list_file_numbers
from thermocline.hot.wal.frame import (
    CHECKSUM_BYTES,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    decode_file_header,
    decode_frame_header,
)
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

    def _sync_file(self):
        self._note_durable()


class RetriesTheSync(Journal):
    """Syncs the same file again, and believes the second answer."""

    def _sync_file(self):
        try:
            self._writer.sync()
        except OSError:
            self._writer.sync()
        self._note_durable()


class NeverSyncsTheFolder(Journal):
    """Answers from a file whose name is not durable."""

    def _link(self, temporary, path):
        self._disk.link(temporary, path)


class NamesBeforeSyncing(Journal):
    """Gives a new file its name before its header is durable."""

    def _create_file(self, path, data):
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

    def _rewrite_unproved(self, frames):
        with_sync = file_path(self._folder, frames[-1].number)
        self._disk.sync_file(with_sync)


class LeavesHalfAGroup(Journal):
    """Does not cut off what a failed write left behind."""

    def _undo_failed_write(self, error):
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


RIGHT_NEXT = FrameReader._read_next


def skips_a_bad_frame(reading, end):
    """Look for the next frame that is whole and go on from there."""
    frame = None
    with suppress(Corruption):
        frame = RIGHT_NEXT(reading, end)
    if frame is not None:
        return frame
    reading._fill_buffer(1 << 20)
    rest = reading._buffer[reading._start :]
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
    for number in list_file_numbers(reader._disk, FOLDER):
        size_bytes, header = reader._read_header(file_path(FOLDER, number))
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
        (FrameReader, "_read_next", skips_a_bad_frame),
        (JournalReader, "_count_cut_bytes", lambda reader, reading: reading.cut_bytes),
        (JournalReader, "_chain_files", drops_an_unopenable_file),
        (JournalReader, "_check_present", lambda reader, found, known: None),
    ],
)
def test_W12_W13_a_reader_that_makes_do_with_less_is_caught(where, name, mutant, monkeypatch):
    monkeypatch.setattr(where, name, mutant)
    assert not refuses_damage()


# --- what the disk had in that place before -------------------------------------------------------


class Unsalted(Journal):
    """Draws the same salt for every file: its frames know nothing of the file they are in."""

    def __init__(self, *tail, **options):
        super().__init__(*tail, **options, new_salt=lambda: 7)


class WritesOnBehindACut(Journal):
    """Goes on in a file that a refused group was cut off from."""

    def _give_up(self):
        if self._end != self._durable_end:
            super()._give_up()


def frames_shown(disk, number, start, stale):
    """Return what a start finds when a file shows stale bytes from an offset on."""
    left, path = disk.clone(), file_path(FOLDER, number)
    left.overwrite(path, left.read(path)[:start] + stale)
    left.remove(f"{FOLDER}/{DURABLE_NAME}")
    return payloads(left)


def shown_of_another_number(kind):
    """Let the last file end in the next frame as it was written into a file of another number."""
    disk = journal_disk()
    opened(disk, kind).append([entry(b"mine")])
    other = SimDisk.thaw(disk.freeze())
    opened(other, kind, file_bytes_max=1).append([entry(b"refused")])
    stale = other.read(file_path(FOLDER, 2))[FILE_HEADER_BYTES:]
    return frames_shown(disk, 1, disk.size(file_path(FOLDER, 1)), stale)


def shown_of_a_lost_file(kind):
    """Let the last file end in bytes of a file of its number whose name a power cut took.

    Both have the same journal, the same number, the same first lsn and the same offsets.
    """
    lost, disk = journal_disk(), journal_disk()
    for one, names in ((lost, [b"lost", b"refused"]), (disk, [b"mine"])):
        journal = opened(one, kind)
        for name in names:
            journal.append([entry(name)])
    stale = lost.read(file_path(FOLDER, 1))
    start = FILE_HEADER_BYTES + len(b"lost") + FRAME_HEADER_BYTES + CHECKSUM_BYTES
    assert disk.size(file_path(FOLDER, 1)) == start
    return frames_shown(disk, 1, start, stale[start:])


def shown_of_a_cut(kind):
    """Let the last file show, in the place of the next group, the refused one that was cut off."""
    disk, cut_off = journal_disk(), []
    journal = opened(disk, kind)
    journal.append([entry(b"mine")])
    start = disk.size(file_path(FOLDER, 1))

    def note(operation, path):
        if operation == "cut":
            cut_off.append(disk._visible(file_path(FOLDER, 1))[start:])

    disk.hooks = note
    disk.fail(1, errno.ENOSPC, landed=True, mutating_only=True)
    with pytest.raises(ThermoclineError):
        journal.append([entry(b"refused")])
    disk.hooks = None
    journal.append([entry(b"after")])
    assert cut_off
    start = start if journal.number == 1 else FILE_HEADER_BYTES
    return frames_shown(disk, journal.number, start, cut_off[0])


@pytest.mark.parametrize(
    ("shown", "mutant"),
    [
        (shown_of_another_number, Unsalted),
        (shown_of_a_lost_file, Unsalted),
        (shown_of_a_cut, WritesOnBehindACut),
    ],
)
def test_W06_frames_of_an_earlier_time_are_no_frames_of_this_file(shown, mutant):
    assert shown(Journal) == [b"mine"]
    assert shown(mutant) == [b"mine", b"refused"], "the mutant is not caught"


def shown_of_half_a_frame():
    """Let the second half of a frame, checksum and all, be that of another with the same begin."""
    disk = journal_disk()
    journal = opened(disk, file_bytes_max=1)
    for end in (b"answered", b"mine too"):
        journal.append([entry(b"the same in both, " * 40 + end)])
    stale = disk.read(file_path(FOLDER, 1))
    assert len(stale) == disk.size(file_path(FOLDER, 2))
    found = frames_shown(disk, 2, SECTOR_BYTES, stale[SECTOR_BYTES:])
    return [payload[-8:] for payload in found]


def test_W06_the_end_of_an_older_frame_does_not_make_a_torn_one_whole(monkeypatch):
    assert shown_of_half_a_frame() == [b"answered"]
    of_payload_alone = lambda header, header_crc, payload: google_crc32c.value(payload)  # noqa: E731
    monkeypatch.setattr(frame, "_payload_crc", of_payload_alone)
    assert shown_of_half_a_frame() == [b"answered"] * 2, "the mutant is not caught"


def refused_in_a_new_file():
    """Return a disk whose journal refused a group at the beginning of its second file."""
    disk = journal_disk()
    journal = opened(disk)
    journal.append([entry(b"mine")])
    journal.rotate()
    refuse(disk, journal)
    return disk, journal


def refuse(disk, journal):
    disk.fail(1, errno.ENOSPC, torn=True, mutating_only=True)
    with pytest.raises(Unavailable):
        journal.append([entry(b"refused")])
    disk.heal()


def test_W10_groups_refused_one_after_the_other_leave_one_file_without_frames():
    disk, journal = refused_in_a_new_file()
    salts = set()
    for _ in range(5):
        journal.rotate()
        refuse(disk, journal)
        assert list_file_numbers(disk, FOLDER) == [1, 2]
        salts.add(decode_file_header(disk.read(file_path(FOLDER, 2))).salt)
    assert len(salts) == 5
    assert journal.append([entry(b"after")]) == [2]
    assert list_file_numbers(disk, FOLDER) == [1, 2]
    assert payloads(disk) == [b"mine", b"after"]


RENEWAL_CALLS = ["create", "write", "sync", "rename", "sync_folder", "unlink", "write", "sync"]


def test_W10_W19_a_file_that_takes_the_place_of_one_without_frames_is_cut_at_every_call():
    disk, journal = refused_in_a_new_file()
    disk.calls.clear()
    journal.append([entry(b"after")])
    assert [call for call, _ in disk.mutations][: len(RENEWAL_CALLS)] == RENEWAL_CALLS
    for call in range(1, len(RENEWAL_CALLS) + 1):
        disk, journal = refused_in_a_new_file()
        disk.die(call, mutating_only=True)
        with pytest.raises(Died):
            journal.append([entry(b"after")])
        for left in [disk.killed(), *disk.crash_states(STATES_PER_CALL, seed=call)]:
            assert payloads(left) in ([b"mine"], [b"mine", b"after"])
            again = opened(left)
            again.append([entry(b"again")])
            assert payloads(left.crash(random.Random(call)))[-1] == b"again"


@pytest.mark.parametrize("landed", [False, True])
def test_W10_W19_a_file_that_cannot_take_the_place_of_one_without_frames_is_tried_again(landed):
    for call in range(1, len(RENEWAL_CALLS) + 1):
        disk, journal = refused_in_a_new_file()
        disk.fail(call, errno.EIO, landed=landed, mutating_only=True)
        known = [b"mine"]
        with suppress(ThermoclineError):
            journal.append([entry(b"first")])
            known.append(b"first")
        assert disk.struck
        journal.append([entry(b"second")])
        for left in [disk.killed(), *disk.crash_states(STATES_PER_CALL, seed=call)]:
            assert payloads(left) == [*known, b"second"]
