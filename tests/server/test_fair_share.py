"""Shares of memory, threads and turns: what one tenant holds never refuses another's small request.

The model is the promise itself; two wrong designs, without shares and with fixed ones, must break.
"""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.errors import Overloaded
from thermocline.server.access.fair_share import FLOOR_PARTS, WEIGHT, FairShare, FairTurns
from thermocline.server.api.http.incoming import ClientGone
from thermocline.server.api.threads import WorkerThreads
from thermocline.server.otlp.memory_budget import MemoryBudget

TOTAL = 3_200
FLOOR = TOTAL // FLOOR_PARTS
REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, TOTAL)), max_size=40)


class FirstComeShare(FairShare):
    """The wrong design: whatever is free goes to the first that asks."""

    def fits(self, owner, amount):
        return self.held + amount <= self.total


class FixedShare(FairShare):
    """The wrong design: each owner has a third, also while it is alone."""

    def fits(self, owner, amount):
        return self.held_by.get(owner, 0) + amount <= self.total // 3


def broken_promises(kind, requests):
    """Return what a share promises and does not keep while these requests hold their amounts."""
    share, broken = kind(TOTAL), set()
    if not share.fits("a", TOTAL):
        broken.add("an owner that is alone gets less than everything")
    for owner, amount in requests:
        if share.fits(owner, amount):
            share.take(owner, amount)
    if not share.fits("small", FLOOR):
        broken.add("a small request is refused")
    known = len({owner for owner, _ in requests})
    most = max(share.held_by.values(), default=0)
    if known > 1 and most > TOTAL:
        broken.add("one owner holds more than the total")
    if share.held > 2 * TOTAL:
        broken.add("the ceiling is broken")
    return broken


@given(REQUESTS)
def test_no_history_of_other_tenants_refuses_a_small_request(requests):
    assert not broken_promises(FairShare, requests)


@pytest.mark.parametrize(
    ("wrong", "harm"), [(FirstComeShare, "a small request"), (FixedShare, "an owner that is alone")]
)
def test_simpler_shares_break_a_promise(wrong, harm):
    full = [("a", TOTAL // 2), ("b", TOTAL // 2), ("c", 1)]
    assert any(one.startswith(harm) for one in broken_promises(wrong, full))


def test_what_is_returned_can_be_taken_again_to_the_last_byte():
    share = FairShare(TOTAL)
    for _ in range(3):
        share.take("a", TOTAL)
        share.take("b", FLOOR)
        share.give_back("a", TOTAL)
        share.give_back("b", FLOOR)
    assert (share.held, share.held_by) == (0, {})
    share.take("a", 100)
    share.take("b", 100)
    assert share.fits("a", WEIGHT * (TOTAL - 200) // (WEIGHT + 1) - 100)
    assert not share.fits("a", WEIGHT * TOTAL // (WEIGHT + 1))


def test_two_uploads_of_one_tenant_leave_the_memory_of_the_others():
    budget = MemoryBudget(128 << 20)
    quiet = budget.reserve(1_000, tenant="quiet")
    held = [budget.reserve(60 << 20, tenant="loud")]
    with pytest.raises(Overloaded):
        budget.reserve(60 << 20, tenant="loud")
    others = [budget.reserve(1 << 20, tenant="quiet") for _ in range(20)]
    for one in (quiet, *held, *others):
        one.release()
    assert budget.held_bytes == 0


def test_turns_rotate_by_tenant_and_one_is_always_left():
    turns, begun = FairTurns(4, waiting_max=6), []
    assert turns.take("a")
    assert turns.take("b")
    assert not turns.take("a") or not turns.take("a"), "the last turn is for a newcomer"
    assert turns.take("c")
    for number in range(6):
        assert turns.wait("a", f"a{number}")
    assert not turns.wait("a", "a6"), "its queue is full"
    assert turns.wait("b", "b0"), "a tenant without waiting work may always wait"
    while turns.waiting:
        turns.give_back("a" if turns.use_of("a") else "b", begun.append)
    assert begun.index("b0") <= 2, "it waits for no more than the work before it"
    assert [one for one in begun if one.startswith("a")] == [f"a{number}" for number in range(6)]


def start_all(threads, gate):
    for _ in range(10):
        threads.start(lambda: gate.wait(60), tenant="loud")


def test_work_of_a_tenant_on_all_threads_does_not_delay_another_tenants():
    gate = threading.Event()

    async def main():
        threads = WorkerThreads("test", threads=4, waiting_max=8)
        assert await threads.run(lambda: "known", tenant="quiet") == "known"
        blocked = [threads.start(lambda: gate.wait(60), tenant="loud") for _ in range(10)]
        with pytest.raises(Overloaded):
            start_all(threads, gate)
        answers = [await threads.run(lambda: 7, tenant="quiet") for _ in range(20)]
        gate.set()
        await asyncio.gather(*blocked)
        threads.close()
        return answers

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [7] * 20


def test_waiting_work_is_dropped_when_its_client_disconnects():
    gate, begun = threading.Event(), []

    async def main():
        threads = WorkerThreads("test", threads=1, waiting_max=8)
        first = threads.start(lambda: gate.wait(60), tenant="a")

        async def receive():
            await asyncio.sleep(0)
            return {"type": "http.disconnect"}

        with pytest.raises(ClientGone):
            await threads.run(lambda: begun.append(1), tenant="a", receive=receive)
        gate.set()
        await first
        assert await threads.run(lambda: 1, tenant="a") == 1
        threads.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert not begun
