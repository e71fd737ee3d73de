"""Writing a journal: every call fails once or for long, and the answers stay true."""

import errno
from contextlib import suppress

import pytest

from crash.journal_core import (
    FOLDER,
    JOURNAL_ID,
    Ledger,
    Story,
    check,
    entry,
    frames,
    journal_disk,
    opened,
    payloads,
    tail,
)
from fixtures.sim_disk import SimDisk
from fixtures.sim_fault import MUTATING
from thermocline.config import Sync
from thermocline.disk import OsDisk
from thermocline.errors import OutcomeUnknown, Overloaded, ThermoclineError, Unavailable
from thermocline.hot.wal.folder import (
    DURABLE_NAME,
    IDENTITY_NAME,
    JournalIdentity,
    file_path,
    list_file_numbers,
    read_identity,
    read_watermark,
    write_identity,
)
from thermocline.hot.wal.frame import FILE_HEADER_BYTES
from thermocline.hot.wal.journal import Journal

CODES = [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EINTR, errno.EDQUOT]
STORY = [
    *[("append", 2), ("append", 1), ("append", 3), ("rotate", 0), ("append", 1), ("trim", 1)],
    *[("append", 2), ("sync", 0), ("append", 1)],
]
CALLS_MAX = 200
STATES_PER_CALL = 6


def path(number):
    return file_path(FOLDER, number)


def told(disk, fault, *, sync=Sync.ALWAYS):
    """Tell the story on a disk with a fault, heal the disk, and go on in the same process."""
    ledger = Ledger()
    story = Story(disk, ledger, sync=sync)
    disk.fail(**fault)
    story.play(STORY)
    disk.heal()
    before = len(ledger.answered)
    story.append(2)
    assert len(ledger.answered) == before + 2, "the disk healed and the journal did not"
    return story, ledger


def check_everywhere(disk, ledger):
    """Hold the ledger against the same disk, a killed process, and power cuts."""
    check(frames(disk), ledger, is_power_cut=False)
    check(frames(disk.killed()), ledger, is_power_cut=False)
    for left in disk.crash_states(STATES_PER_CALL):
        check(frames(left), ledger, is_power_cut=True)


def watched(disk):
    """Assert at each call that a file whose sync failed is neither written nor synced again."""
    seen = 0
    given_up = set()

    def look(operation, where):
        nonlocal seen
        given_up.update(path for name, path in disk.struck[seen:] if name == "sync")
        seen = len(disk.struck)
        assert operation not in ("write", "sync", "sync_file", "cut") or where not in given_up

    disk.hooks = look


@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("sticky", [False, True])
def test_W07_W10_W11_W23_whatever_call_fails_the_answers_are_true(code, sticky, sync):
    for call in range(1, CALLS_MAX):
        disk = journal_disk()
        _, ledger = told(disk, {"call": call, "code": code, "sticky": sticky}, sync=sync)
        check_everywhere(disk, ledger)
        if not disk.struck:
            assert call > 30
            return
    pytest.fail("the story makes too many calls")


@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize(("torn", "landed"), [(True, False), (False, True)])
@pytest.mark.parametrize("sticky", [False, True])
def test_W09_a_write_that_failed_half_way_or_afterwards_leaves_no_half_frame(
    sync, torn, landed, sticky
):
    for call in range(1, CALLS_MAX):
        disk = journal_disk()
        fault = {"call": call, "code": errno.EIO, "sticky": sticky, "torn": torn, "landed": landed}
        _, ledger = told(disk, {**fault, "mutating_only": True}, sync=sync)
        check_everywhere(disk, ledger)
        if not disk.struck:
            return
    pytest.fail("the story makes too many calls")


@pytest.mark.parametrize("sync", list(Sync))
def test_W07_a_failed_sync_is_never_followed_by_a_write_or_a_sync_of_that_file(sync):
    failed = 0
    for call in range(1, CALLS_MAX):
        disk = journal_disk()
        watched(disk)
        told(disk, {"call": call, "code": errno.EIO}, sync=sync)
        failed += [operation for operation, _ in disk.struck] == ["sync"]
        if not disk.struck:
            break
    assert failed >= 3


def test_W07_what_a_failed_sync_lost_is_answered_from_a_new_file():
    disk = journal_disk()
    journal = opened(disk)
    journal.append([entry(b"one")])
    disk.fail(2, errno.EIO, mutating_only=True)
    assert journal.append([entry(b"two")]) == [2]
    assert disk.struck[0][0] == "sync"
    assert journal.number == 2
    assert {tuple(payloads(left)) for left in disk.crash_states(100)} == {(b"one", b"two")}


def test_W08_a_close_that_fails_takes_nothing_with_it():
    disk = journal_disk()
    journal = opened(disk, file_bytes_max=1)
    for name in (b"one", b"two"):
        journal.append([entry(name)])
    closes = [place for place, call in enumerate(disk.mutations) if call[0] == "close"]
    assert closes
    for sync in Sync:
        for call in range(1, CALLS_MAX):
            disk = journal_disk()
            journal = opened(disk, file_bytes_max=1, sync=sync)
            disk.fail(call, errno.EIO)
            try:
                journal.append([entry(b"one")])
                journal.append([entry(b"two")])
                journal.close()
            except ThermoclineError:
                continue
            if [operation for operation, _ in disk.struck] == ["close"]:
                for left in disk.crash_states(20):
                    assert payloads(left) == [b"one", b"two"]
            if not disk.struck:
                break


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_W10_a_full_disk_refuses_writes_for_certain_and_takes_them_again_when_there_is_room(code):
    disk = journal_disk()
    journal = opened(disk)
    journal.append([entry(b"before")])
    for _ in range(3):
        disk.fail(1, code, torn=True, mutating_only=True)
        with pytest.raises(Unavailable, match="the disk is full") as caught:
            journal.append([entry(b"refused")])
        assert not isinstance(caught.value, OutcomeUnknown)
        assert payloads(disk) == [b"before"]
        disk.heal()
    assert journal.append([entry(b"after")]) == [2]
    assert payloads(disk) == [b"before", b"after"]
    assert journal.number == 2, "a file that was cut is not written to again"


def test_W11_a_full_disk_at_a_rotation_leaves_no_file_that_stops_a_start():
    for call in range(1, 8):
        disk = journal_disk()
        journal = opened(disk, file_bytes_max=1)
        journal.append([entry(b"before")])
        disk.fail(call, errno.ENOSPC, sticky=True, torn=True, mutating_only=True)
        with pytest.raises(Unavailable):
            journal.append([entry(b"refused")])
        for left in [disk.killed(), *disk.crash_states(30)]:
            assert payloads(left)[:1] == [b"before"]
            assert all(
                left.size(path(n)) >= FILE_HEADER_BYTES for n in list_file_numbers(left, FOLDER)
            )
            assert opened(left).append([entry(b"after")])
            assert payloads(left)[-1] == b"after"
        disk.heal()
        journal.append([entry(b"after")])
        assert payloads(disk) == [b"before", b"after"]


def test_W23_a_folder_that_is_read_only_is_said_so_and_reads_go_on():
    disk = journal_disk()
    journal = opened(disk)
    journal.append([entry(b"before")])
    disk.fail(1, errno.EROFS, sticky=True)
    with pytest.raises(Unavailable):
        journal.append([entry(b"refused")])
    assert payloads(disk) == [b"before"]
    fresh = disk.killed()
    fresh.fail(1, errno.EROFS, sticky=True, mutating_only=True)
    with pytest.raises(Unavailable, match="does not allow"):
        opened(fresh).append([entry(b"refused")])
    assert payloads(fresh) == [b"before"]


def test_too_many_open_files_is_the_callers_to_mend():
    disk = journal_disk()
    journal = opened(disk)
    disk.fail(1, errno.EMFILE, sticky=True)
    with pytest.raises(Overloaded, match="too many open files"):
        journal.append([entry(b"refused")])


def test_W15_a_name_that_is_taken_is_neither_appended_to_nor_replaced():
    disk = journal_disk()
    journal = opened(disk)
    journal.append([entry(b"one")])
    disk.overwrite(path(2), b"somebody else's")
    with pytest.raises(ThermoclineError):
        journal.rotate()
    assert disk.read(path(2)) == b"somebody else's"
    disk.remove(path(2))
    assert journal.append([entry(b"two")]) == [2]
    assert payloads(disk) == [b"one", b"two"]


def test_W15_rotations_within_one_moment_have_names_of_their_own():
    disk = journal_disk()
    journal = Journal(disk, FOLDER, JournalIdentity(JOURNAL_ID), tail(disk), now_ns=lambda: 42)
    for number in range(5):
        journal.append([entry(b"%d" % number)])
        journal.rotate()
    assert list_file_numbers(disk, FOLDER) == [1, 2, 3, 4, 5, 6]
    assert payloads(disk) == [b"0", b"1", b"2", b"3", b"4"]


def test_W19_no_answer_comes_from_a_file_before_its_name_is_durable():
    disk = journal_disk()
    journal = opened(disk, file_bytes_max=1)
    for number in range(4):
        journal.append([entry(b"%d" % number)])
        assert {len(payloads(left)) for left in disk.crash_states(200)} == {number + 1}


def test_nobody_touches_a_file_once_the_next_one_has_its_name():
    disk = journal_disk()
    journal = opened(disk, file_bytes_max=1)
    seen = {}
    for number in range(6):
        journal.append([entry(b"%d" % number)])
        sealed = {n: disk.read(path(n)) for n in list_file_numbers(disk, FOLDER)[:-1]}
        assert all(sealed[n] == data for n, data in seen.items())
        seen = sealed
    assert len(seen) == 5


# --- lsns, groups, trims ------------------------------------------------------------------------


def test_a_group_is_one_write_and_one_sync():
    disk = journal_disk()
    journal = opened(disk, file_bytes_max=10**6)
    journal.append([entry(b"first")])
    count = len(disk.mutations)
    assert journal.append([entry(b"%d" % number) for number in range(50)]) == list(range(2, 52))
    assert [operation for operation, _ in disk.mutations[count:]] == ["write", "sync", "put_slot"]


def test_lsns_go_on_over_restarts_and_trims():
    disk = journal_disk()
    expected = 1
    for _ in range(4):
        journal = opened(disk, file_bytes_max=1)
        assert journal.append([entry(b"x"), entry(b"y")]) == [expected, expected + 1]
        expected += 2
        journal.trim(journal.number)
        journal.close()
        assert tail(disk).next_lsn == expected
    assert disk.handles == []


def test_a_trim_writes_down_the_oldest_file_before_it_removes_any():
    disk = journal_disk()
    journal = opened(disk, file_bytes_max=1)
    for number in range(5):
        journal.append([entry(b"%d" % number)])
    for call in range(1, 20):
        twin = disk.clone()
        again = opened(twin)
        twin.fail(call, errno.EIO, mutating_only=True)
        with suppress(ThermoclineError):
            again.trim(4)
        for left in twin.crash_states(60):
            assert payloads(left) in ([b"0", b"1", b"2", b"3", b"4"], [b"3", b"4"])
        if not twin.struck:
            assert list_file_numbers(twin, FOLDER) == [4, 5]
            assert read_identity(twin, FOLDER).oldest == 4
            return
    pytest.fail("a trim makes too many calls")


def test_a_trim_never_takes_the_file_that_is_written():
    disk = journal_disk()
    journal = opened(disk)
    journal.append([entry(b"one")])
    journal.trim(99)
    assert payloads(disk) == [b"one"]
    journal.trim(0)
    journal.append([entry(b"two")])
    assert payloads(disk) == [b"one", b"two"]


def test_temporary_names_of_the_dead_are_removed_and_nothing_else():
    disk = journal_disk()
    opened(disk).append([entry(b"one")])
    disk.overwrite(f"{FOLDER}/.0123.tmp", b"half a file")
    disk.overwrite(f"{FOLDER}/notes.txt", b"mine")
    opened(disk)
    assert sorted(name for name in disk.tree() if name != FOLDER) == [
        f"{FOLDER}/00000000000000000001.wal",
        f"{FOLDER}/{DURABLE_NAME}",
        f"{FOLDER}/{IDENTITY_NAME}",
        f"{FOLDER}/notes.txt",
    ]


# --- laxer policies -----------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [Sync.INTERVAL, Sync.OS])
def test_a_laxer_policy_answers_before_and_keeps_everything_after_a_sync(sync):
    disk = journal_disk()
    journal = opened(disk, sync=sync)
    journal.append([entry(b"one")])
    journal.append([entry(b"two")])
    assert payloads(disk.killed()) == [b"one", b"two"]
    assert [] in [payloads(left) for left in disk.crash_states(50)]
    journal.sync()
    mark = read_watermark(disk, FOLDER, JOURNAL_ID)
    assert (mark.visible, mark.durable) == (2, 2)
    journal.append([entry(b"three")])
    mark = read_watermark(disk, FOLDER, JOURNAL_ID)
    assert (mark.visible, mark.durable) == (3, 2)
    for left in disk.crash_states(50):
        assert payloads(left)[:2] == [b"one", b"two"]


@pytest.mark.parametrize("sync", [Sync.INTERVAL, Sync.OS])
def test_a_failed_sync_in_the_background_moves_the_frames_to_a_new_file(sync):
    disk = journal_disk()
    journal = opened(disk, sync=sync)
    journal.append([entry(b"one")])
    journal.append([entry(b"two")])
    disk.fail(1, errno.EIO)
    journal.sync()
    assert disk.struck[0][0] == "sync"
    assert {tuple(payloads(left)) for left in disk.crash_states(100)} == {(b"one", b"two")}
    assert journal.append([entry(b"three")]) == [3]


@pytest.mark.parametrize("sync", [Sync.INTERVAL, Sync.OS])
def test_frames_that_could_not_be_moved_are_moved_at_the_next_chance(sync):
    """The new file fails at each of its calls; what was answered is in none but memory then."""
    for call in range(2, 9):
        for act in ("sync", "append"):
            disk = journal_disk()
            journal = opened(disk, sync=sync)
            journal.append([entry(b"one")])
            disk.fail(1, errno.EIO)
            disk.fail(call, errno.ENOSPC, torn=True)
            try:
                journal.sync()
            except OutcomeUnknown:
                assert payloads(disk.killed()) == [b"one"]
            expected = [b"one"]
            if act == "append":
                journal.append([entry(b"two")])
                expected.append(b"two")
            journal.sync()
            for left in disk.crash_states(100):
                assert payloads(left) == expected, (call, act)


def test_a_sync_with_nothing_to_sync_does_nothing():
    disk = journal_disk()
    journal = opened(disk, sync=Sync.INTERVAL)
    journal.append([entry(b"one")])
    journal.sync()
    count = len(disk.calls)
    journal.sync()
    assert len(disk.calls) == count


def test_what_a_killed_process_left_unproved_is_durable_once_the_journal_is_open():
    disk = journal_disk()
    opened(disk, sync=Sync.INTERVAL).append([entry(b"one"), entry(b"two")])
    next_one = disk.killed()
    assert [] in [payloads(left) for left in next_one.crash_states(50)]
    journal = opened(next_one)
    assert {tuple(payloads(left)) for left in next_one.crash_states(50)} == {(b"one", b"two")}
    assert journal.append([entry(b"three")]) == [3]
    assert payloads(next_one) == [b"one", b"two", b"three"]


# --- the real disk ------------------------------------------------------------------------------


def test_a_journal_on_a_real_disk_is_read_back(tmp_path):
    disk, folder = OsDisk(), str(tmp_path)
    write_identity(disk, folder, JournalIdentity(JOURNAL_ID))
    for start in range(0, 60, 20):
        journal = opened(disk, folder=folder, file_bytes_max=1000)
        for number in range(start, start + 20):
            journal.append([entry(b"row %d" % number)])
        journal.trim(2)
        journal.close()
    found = payloads(disk, folder)
    assert found == [b"row %d" % number for number in range(60 - len(found), 60)]
    assert len(found) > 40
    assert not list(tmp_path.glob(".*"))


def test_every_mutating_call_of_the_story_is_one_the_faults_can_strike():
    disk = SimDisk([FOLDER])
    write_identity(disk, FOLDER, JournalIdentity(JOURNAL_ID))
    Story(disk, Ledger()).play(STORY)
    struck = {operation for operation, _ in disk.mutations}
    assert struck >= {"create", "write", "sync", "link", "unlink", "rename", "sync_folder"}
    assert struck <= MUTATING
