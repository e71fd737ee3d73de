"""Shows that the simulated disk answers as the real one, copies cheaply and serves threads."""

import errno
import io
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.sim_disk import SimDisk
from fixtures.sim_verbs import refusal, write
from thermocline.disk import Disk, FileWriter, OsDisk

NAMES = st.sampled_from(["a", "b", "a/b", "a/c", "b/c", "a/b/c", "a/../b", ""])
STEPS = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                "read",
                "size",
                "reader",
                "create",
                "unlink",
                "make_folder",
                "sync_folder",
                "sync_file",
                "entries",
                "input",
            ]
        ),
        NAMES,
    ),
    st.tuples(st.sampled_from(["link", "rename"]), NAMES, NAMES),
)
# Asked about a folder, each file system has its own size and its own moment to refuse.
FILE_QUESTIONS = ("size", "reader", "input")


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(["/lake"])


# --- the same answers as the operating system ---------------------------------------------------


def answer(disk: Disk, root: str, step: tuple[str, ...]) -> object:
    """Return what one step gives a caller: a value, or the number of the error."""
    operation, *names = step
    paths = [f"{root}/{name}".rstrip("/") for name in names]
    try:
        return call(disk, operation, *paths)
    except OSError as error:
        return type(error), error.errno


def call(disk: Disk, operation: str, path: str, target: str = "") -> object:
    match operation:
        case "link":
            disk.link(path, target)
        case "rename":
            disk.rename(path, target)
        case "create":
            write(disk, path, b"bytes of ", memoryview(path[-1:].encode()))
        case "reader":
            reader = disk.open_reader(path)
            parts = [reader.read(4), reader.read(400), reader.read(4)]
            reader.close()
            return parts
        case "input":
            return disk.open_input(path).read()
        case "entries":
            return sorted((entry.name, entry.is_folder) for entry in disk.entries(path))
        case _:
            return getattr(disk, operation)(path)
    return None


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_every_answer_and_every_error_is_that_of_the_operating_system(
    steps: list[tuple[str, ...]],
) -> None:
    simulated = SimDisk(["/lake"])
    real = OsDisk()
    with tempfile.TemporaryDirectory() as root:
        for step in steps:
            if step[0] in FILE_QUESTIONS and os.path.isdir(f"{root}/{step[1]}"):
                continue
            assert answer(simulated, "/lake", step) == answer(real, root, step), step
        found = {str(path.relative_to(root)) for path in Path(root).rglob("*")}
    assert {path.removeprefix("/lake/") for path in simulated.tree()} - {"/lake"} == found


def test_a_rename_onto_another_name_of_the_same_file_leaves_both(disk: SimDisk) -> None:
    write(disk, "/lake/one", b"x")
    disk.link("/lake/one", "/lake/two")
    disk.rename("/lake/one", "/lake/two")
    assert disk.tree() == {"/lake": None, "/lake/one": b"x", "/lake/two": b"x"}


def test_parquet_is_read_through_its_input(disk: SimDisk) -> None:
    writer = disk.create("/lake/1.parquet")
    pq.write_table(pa.table({"n": [1, 2, 3]}), pa.PythonFile(Sink(writer), mode="w"))
    source = disk.open_input("/lake/1.parquet")
    assert isinstance(source, pa.BufferReader)
    assert pq.read_table(source).to_pydict() == {"n": [1, 2, 3]}


class Sink(io.RawIOBase):
    """A writer as a Python file."""

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._writer.write(memoryview(data))


def test_a_closed_writer_and_a_closed_reader_refuse(disk: SimDisk) -> None:
    writer = disk.create("/lake/a")
    writer.close()
    writer.close()
    reader = disk.open_reader("/lake/a")
    reader.close()
    for refused in (lambda: writer.write(b"x"), writer.sync, lambda: reader.read(1), reader.close):
        with refusal(errno.EBADF):
            refused()
    assert [name for name, _ in disk.calls] == ["create", "close", "open_reader", "close_reader"]


def test_handles_left_open_are_named(disk: SimDisk) -> None:
    first, second = disk.create("/lake/a"), disk.open_reader("/lake/a")
    assert disk.handles == ["/lake/a", "/lake/a"]
    first.close()
    second.close()
    assert disk.handles == []


def test_entries_come_neither_sorted_nor_in_the_order_of_making(disk: SimDisk) -> None:
    made = [f"{number:020}.json" for number in range(20)]
    for name in made:
        disk.create(f"/lake/{name}").close()
    listed = [entry.name for entry in disk.entries("/lake")]
    assert sorted(listed) == made
    assert listed != made
    assert listed != made[::-1]


def test_times_go_on_with_each_change_or_come_from_the_clock_given(disk: SimDisk) -> None:
    write(disk, "/lake/a", b"x")
    write(disk, "/lake/b", b"x")
    times = {entry.name: entry.modified_ns for entry in disk.entries("/lake")}
    assert times["a"] < times["b"]
    disk.age("/lake/b", 3600)
    aged = {entry.name: entry.modified_ns for entry in disk.entries("/lake")}
    assert aged == {"a": times["a"], "b": times["b"] - 3600 * 10**9}
    clocked = SimDisk(["/lake"], clock=lambda: 42)
    write(clocked, "/lake/a", b"x")
    assert [entry.modified_ns for entry in clocked.entries("/lake")] == [42]


# --- files written over, cut back, held -----------------------------------------------------------


@pytest.mark.parametrize("is_real", [False, True])
def test_a_cut_drops_the_end_and_the_next_write_goes_on_there(
    disk: SimDisk, tmp_path: Path, is_real: bool
) -> None:
    used: Disk = OsDisk() if is_real else disk
    path = f"{tmp_path if is_real else '/lake'}/a"
    writer = used.create(path)
    writer.write(b"whole")
    writer.write(b" and half")
    writer.cut(5)
    assert used.read(path) == b"whole"
    writer.write(b" again")
    writer.sync()
    writer.close()
    assert used.read(path) == b"whole again"


def test_a_cut_takes_durable_bytes_too_and_keeps_pending_ones_pending(disk: SimDisk) -> None:
    writer = disk.create("/lake/a")
    disk.sync_folder("/lake")
    writer.write(b"durable")
    writer.sync()
    writer.write(b"pending")
    writer.cut(9)
    assert disk.read("/lake/a") == b"durablepe"
    assert {state.read("/lake/a")[:7] for state in disk.crash_states(50)} == {b"durable"}
    assert b"durable" in {state.read("/lake/a") for state in disk.crash_states(50)}
    writer.cut(3)
    assert {state.read("/lake/a") for state in disk.crash_states(50)} == {b"dur"}


def test_a_cut_that_fails_has_cut_nothing_and_a_closed_writer_does_not_cut(disk: SimDisk) -> None:
    writer = disk.create("/lake/a")
    writer.write(b"whole")
    disk.fail(1, errno.EIO)
    with refusal(errno.EIO):
        writer.cut(0)
    assert disk.read("/lake/a") == b"whole"
    assert disk.mutations[-1] == ("cut", "/lake/a")
    writer.close()
    with refusal(errno.EBADF):
        writer.cut(0)


@pytest.mark.parametrize("is_real", [False, True])
def test_a_slot_is_made_once_and_written_over(disk: SimDisk, tmp_path: Path, is_real: bool) -> None:
    used: Disk = OsDisk() if is_real else disk
    path = f"{tmp_path if is_real else '/lake'}/slot"
    slot = used.open_slot(path)
    assert used.read(path) == b""
    for data in (b"first", b"other"):
        slot.put(data)
        assert used.read(path) == data
    slot.close()
    again = used.open_slot(path)
    assert used.read(path) == b"other"
    again.close()


def test_what_is_put_into_a_slot_may_be_lost_whole_and_a_failed_put_changes_nothing(
    disk: SimDisk,
) -> None:
    slot = disk.open_slot("/lake/slot")
    disk.sync_folder("/lake")
    slot.put(b"first")
    found = {state.read("/lake/slot") for state in disk.crash_states(50)}
    assert {b"", b"first"} <= found
    disk.fail(1, errno.EIO)
    with refusal(errno.EIO):
        slot.put(b"other")
    assert disk.read("/lake/slot") == b"first"
    assert disk.mutations[-1] == ("put_slot", "/lake/slot")
    slot.close()
    with refusal(errno.EBADF):
        slot.put(b"other")
    assert disk.handles == []


@pytest.mark.parametrize("is_real", [False, True])
def test_a_lock_is_held_by_one_until_it_lets_go(
    disk: SimDisk, tmp_path: Path, is_real: bool
) -> None:
    used: Disk = OsDisk() if is_real else disk
    path = f"{tmp_path if is_real else '/lake'}/lock"
    held = used.lock(path, b"a longer note")
    with pytest.raises(BlockingIOError):
        used.lock(path, b"two")
    assert used.read(path) == b"a longer note"
    held.release()
    used.lock(path, b"two").release()
    assert used.read(path) == b"two"


def test_a_lock_does_not_outlive_its_process_and_fails_when_asked_to(disk: SimDisk) -> None:
    disk.fail(1, errno.EMFILE)
    with refusal(errno.EMFILE):
        disk.lock("/lake/lock", b"one")
    held = disk.lock("/lake/lock", b"one")
    for other in (disk.killed(), disk.crash(random.Random(1)), disk.clone()):
        other.lock("/lake/lock", b"two")
    with refusal(errno.EWOULDBLOCK):
        disk.lock("/lake/lock", b"two")
    held.release()
    with refusal(errno.EBADF):
        held.release()


# --- copies and damage --------------------------------------------------------------------------


def test_a_clone_goes_its_own_way_without_faults(disk: SimDisk) -> None:
    write(disk, "/lake/a", b"x")
    disk.fail(1, errno.EIO, sticky=True)
    twin = disk.clone()
    write(twin, "/lake/b", b"y")
    twin.unlink("/lake/a")
    assert disk.tree() == {"/lake": None, "/lake/a": b"x"}
    assert twin.tree() == {"/lake": None, "/lake/b": b"y"}
    assert [name for name, _ in twin.calls] == ["create", "write", "sync", "close", "unlink"]


def test_a_frozen_state_can_be_gone_back_to(disk: SimDisk) -> None:
    write(disk, "/lake/a", b"x")
    frozen = disk.freeze()
    disk.unlink("/lake/a")
    for _ in range(2):
        again = SimDisk.thaw(frozen)
        again.unlink("/lake/a")
    assert SimDisk.thaw(frozen).tree() == {"/lake": None, "/lake/a": b"x"}


def test_cloning_fifty_files_takes_less_than_a_millisecond(disk: SimDisk) -> None:
    for number in range(50):
        write(disk, f"/lake/{number}", bytes(4000))
    times = []
    for _ in range(50):
        start = time.perf_counter()
        disk.clone()
        times.append(time.perf_counter() - start)
    assert min(times) < 0.001


def test_damage_is_seen_at_once_and_in_every_crash_state(disk: SimDisk) -> None:
    for name in ("flipped", "cut", "replaced", "gone", "kept"):
        disk.overwrite(f"/lake/deep/{name}", b"0123456789")
    disk.flip_byte("/lake/deep/flipped", 1)
    disk.flip_byte("/lake/deep/flipped", -1)
    disk.truncate("/lake/deep/cut", 4)
    disk.overwrite("/lake/deep/replaced", b"other")
    disk.remove("/lake/deep/gone")
    expected = {
        "/lake": None,
        "/lake/deep": None,
        "/lake/deep/cut": b"0123",
        "/lake/deep/flipped": b"0\xce2345678\xc6",
        "/lake/deep/kept": b"0123456789",
        "/lake/deep/replaced": b"other",
    }
    assert disk.tree() == expected
    assert [state.tree() for state in disk.crash_states(100)] == [expected]
    assert disk.calls == []
    disk.remove("/lake/deep")
    assert disk.tree() == {"/lake": None}


def test_damage_makes_nothing_durable(disk: SimDisk) -> None:
    writer = disk.create("/lake/a")
    writer.write(b"durable")
    writer.sync()
    disk.sync_folder("/lake")
    writer.write(b"pending")
    disk.flip_byte("/lake/a", 0)
    disk.flip_byte("/lake/a", 7)
    assert disk.read("/lake/a") == b"\x9burable\x8fending"
    assert next(disk.crash_states(1)).read("/lake/a") == b"\x9burable"


# --- threads ------------------------------------------------------------------------------------


def test_hooks_come_before_each_call_with_its_name(disk: SimDisk) -> None:
    seen: list[tuple[str, str, bool]] = []
    disk.hooks = lambda operation, path: seen.append((operation, path, path in disk.tree()))
    write(disk, "/lake/a", b"x")
    assert seen == [
        ("create", "/lake/a", False),
        ("write", "/lake/a", True),
        ("sync", "/lake/a", True),
        ("close", "/lake/a", True),
    ]


@pytest.mark.parametrize("winner", ["first", "second"])
def test_a_scheduler_in_the_hooks_decides_who_wins_a_race(disk: SimDisk, winner: str) -> None:
    """Both writers stand before their link; the loser is held there until the winner is done."""
    write(disk, "/lake/first", b"first")
    write(disk, "/lake/second", b"second")
    is_linked = threading.Event()
    lost: list[str] = []

    def hold_the_loser(operation: str, path: str) -> None:
        if operation == "link" and threading.current_thread().name != winner:
            assert is_linked.wait(timeout=10)

    def race(name: str) -> None:
        try:
            disk.link(f"/lake/{name}", "/lake/7.json")
            is_linked.set()
        except FileExistsError:
            lost.append(name)

    disk.hooks = hold_the_loser
    run_together([lambda: race("first"), lambda: race("second")], ["first", "second"])
    assert disk.read("/lake/7.json") == winner.encode()
    assert lost == [{"first": "second", "second": "first"}[winner]]


def test_a_call_is_over_before_another_thread_begins_one() -> None:
    """The clock is read in the middle of a call; there the second thread gets its chance."""
    is_tried, is_made = threading.Event(), threading.Event()
    lost: list[str] = []

    def hesitate() -> int:
        if threading.current_thread().name == "first" and not is_tried.is_set():
            is_tried.set()
            is_made.wait(timeout=0.2)
        return 0

    def create_second() -> None:
        assert is_tried.wait(timeout=10)
        try:
            shared.create("/lake/a")
            is_made.set()
        except FileExistsError:
            lost.append("second")

    shared = SimDisk(["/lake"], clock=hesitate)
    run_together([lambda: shared.create("/lake/a").close(), create_second], ["first", "second"])
    assert lost == ["second"]


def test_calls_of_many_threads_are_all_counted_and_one_creator_wins(disk: SimDisk) -> None:
    won: list[int] = []

    def work(number: int) -> None:
        for turn in range(50):
            write(disk, f"/lake/{number}-{turn}", b"x", b"y")
            try:
                disk.create(f"/lake/shared-{turn}").close()
                won.append(turn)
            except FileExistsError:
                continue

    run_together([partial(work, number) for number in range(4)], ["a", "b", "c", "d"])
    assert sorted(won) == list(range(50))
    assert len(disk.calls) == 4 * 50 * 6 + 50
    assert [data for path, data in disk.tree().items() if "-" in path].count(b"xy") == 200


def run_together(acts: list[Callable[[], None]], names: list[str]) -> None:
    threads = [threading.Thread(target=a, name=n) for a, n in zip(acts, names, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
