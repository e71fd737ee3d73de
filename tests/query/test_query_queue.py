"""The queue of a pool: whose turn is next, who waits too long, what the watchdog ends."""

import threading
import time

import pytest

from thermocline.errors import Conflict, Overloaded, QueryCancelled, Unavailable
from thermocline.query.worker import query_queue
from thermocline.query.worker.query_queue import QueryQueue

PATIENCE_S = 60


@pytest.fixture
def queue():
    """A queue for one worker, in which queries wait for longer than a test takes."""
    return QueryQueue(1, wait_s=10 * PATIENCE_S)


def test_tenants_take_turns_and_each_ones_queries_run_in_their_order(queue):
    running = queue.admit("first", "busy")
    for name in ("busy-1", "busy-2", "busy-3", "calm-1", "calm-2", "late-1"):
        queue.admit(name, name.partition("-")[0])
    order = []
    while running is not None:
        assert running.turn.result(0) is None
        order.append(running.query_id)
        queue.leave(running)
        has_turn = [one for one in queue._queries.values() if one.turn.done()]
        running = has_turn[0] if has_turn else None
    assert order == ["first", "busy-1", "calm-1", "late-1", "busy-2", "calm-2", "busy-3"]
    assert queue.waiting == 0
    assert queue.admit("next").turn.done()


def test_a_waiting_query_is_cancelled_at_once_and_keeps_no_place(queue):
    queue.admit("first")
    waits, behind = queue.admit("waits"), queue.admit("behind")
    assert queue.cancel("waits")
    with pytest.raises(QueryCancelled):
        waits.turn.result(0)
    assert not queue.cancel("waits")
    assert queue.waiting == 1
    queue.leave(waits)  # its owner may do so later
    queue.leave(queue.find("first"))
    assert behind.turn.result(0) is None


def test_a_query_that_was_cancelled_before_its_worker_came_passes_its_turn_on(queue):
    has_turn, waits = queue.admit("has_turn"), queue.admit("waits")
    assert queue.cancel("has_turn")
    assert not waits.turn.done()  # the owner of the first query may be starting a worker
    queue.leave(has_turn)
    assert waits.turn.result(0) is None


def test_an_id_belongs_to_one_query_of_a_tenant_and_other_tenants_cannot_cancel_it(queue):
    mine = queue.admit("same", "alpha")
    queue.admit("same", "beta")
    with pytest.raises(Conflict):
        queue.admit("same", "alpha")
    assert queue.find("same", "alpha") is mine
    assert not queue.cancel("same", "gamma")
    assert [one.tenant for one in queue.of_tenant("beta")] == ["beta"]


def test_a_query_that_waits_too_long_or_finds_no_place_is_refused(monkeypatch):
    monkeypatch.setattr(query_queue, "WAITING_MAX", 1)
    queue = QueryQueue(1, wait_s=0.2)
    queue.admit("first")
    waits, no_place = queue.admit("waits"), queue.admit("no-place")
    with pytest.raises(Overloaded, match="busy"):
        no_place.turn.result(0)
    with pytest.raises(Overloaded, match="busy") as raised:
        waits.turn.result(PATIENCE_S)
    assert raised.value.facts["wait_s"] == 0.2
    assert queue.find("waits") is None
    assert queue.find("no-place") is None


def test_closing_ends_those_that_wait(queue):
    queue.admit("first")
    waits = queue.admit("waits")
    queue.stop_all(Unavailable("closed"))
    with pytest.raises(Unavailable, match="closed"):
        waits.turn.result(0)


class Watched:
    """A query that has only a deadline, and is over when it is checked after that."""

    def __init__(self, query_id, time_s):
        self.query_id = query_id
        self.tenant = ""
        self.deadline_s = time.monotonic() + time_s
        self.is_over = threading.Event()

    def check_deadline(self, now_s):
        if now_s < self.deadline_s:
            return self.deadline_s
        self.is_over.set()
        return None


def test_Q05_a_query_that_comes_while_the_watchdog_lingers_is_checked_in_time(monkeypatch, queue):
    def watch(query):
        queue._queries["", query.query_id] = query
        queue.watch(query)
        assert query.is_over.wait(PATIENCE_S)
        del queue._queries["", query.query_id]

    monkeypatch.setattr(query_queue, "LINGER_S", 3_600.0)
    watch(Watched("first", 0.0))
    with queue._changed:
        queue._changed.notify_all()
    time.sleep(0.2)  # until it lingers
    watch(Watched("second", 0.5))
    monkeypatch.undo()
    with queue._changed:
        thread = queue._watchdog
        queue._changed.notify_all()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert queue._watchdog is None


def test_A13_the_last_worker_is_kept_for_a_tenant_that_has_none():
    queue = QueryQueue(2, wait_s=10 * PATIENCE_S)
    queue.is_shared = lambda: True
    first, second = queue.admit("1", "busy"), queue.admit("2", "busy")
    assert (first.turn.done(), second.turn.done()) == (True, False)
    calm = queue.admit("1", "calm")
    assert calm.turn.done(), "the first query of another tenant starts at once"
    queue.leave(calm)
    assert not second.turn.done()
    queue.leave(first)
    assert second.turn.done()


def test_A13_one_tenant_alone_uses_every_worker():
    queue = QueryQueue(2, wait_s=10 * PATIENCE_S)
    assert [queue.admit(name, "only").turn.done() for name in "123"] == [True, True, False]


def test_A13_a_tenant_cannot_fill_the_line_for_others(monkeypatch):
    monkeypatch.setattr(query_queue, "WAITING_MAX", 2)
    queue = QueryQueue(1, wait_s=10 * PATIENCE_S)
    for name in "123":
        queue.admit(name, "busy")
    with pytest.raises(Overloaded):
        queue.admit("4", "busy").turn.result(0)
    calm = queue.admit("1", "calm")
    assert not calm.turn.done()
    queue.leave(queue.find("1", "busy"))
    queue.leave(queue.find("2", "busy"))
    assert calm.turn.done()
