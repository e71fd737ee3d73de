"""Quotas: what a tenant may take, and that its neighbours do not pay for it."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.config import NodeSettings, QuotaSettings
from thermocline.errors import Overloaded
from thermocline.server.access.quota import Quota, Quotas


class Clock:
    def __init__(self):
        self.s = 0.0

    def __call__(self):
        return self.s


def made(clock=None, **limits):
    return Quota(QuotaSettings(**limits), clock or Clock())


def wait_of(quota, size_bytes):
    """Return how long a refused request is told to wait, or 0 when it is taken."""
    try:
        quota.take_ingest(size_bytes)
    except Overloaded as error:
        return error.facts["retry_after_s"]
    return 0


def test_A13_a_burst_passes_and_then_the_rate_holds():
    clock = Clock()
    quota = made(clock, ingest_bytes_per_s=100, ingest_burst_bytes=1_000)
    assert [wait_of(quota, 500) for _ in range(3)] == [0, 0, 1]
    clock.s += 1
    assert [wait_of(quota, 100), wait_of(quota, 100)] == [0, 1]


@given(st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 3)), min_size=1, max_size=60))
def test_A13_no_sender_gets_more_than_burst_and_rate_allow(sent):
    clock = Clock()
    quota = made(clock, ingest_bytes_per_s=1_000, ingest_burst_bytes=2_000)
    taken, largest = 0, 0
    for size_bytes, pause_s in sent:
        clock.s += pause_s
        wait_s = wait_of(quota, size_bytes)
        assert 0 <= wait_s <= 5
        if not wait_s:
            taken, largest = taken + size_bytes, max(largest, size_bytes)
        assert taken <= 2_000 + 1_000 * clock.s + largest + 1


def test_I10_a_request_larger_than_the_burst_passes_once_and_is_paid_back():
    clock = Clock()
    quota = made(clock, ingest_bytes_per_s=100, ingest_burst_bytes=10)
    assert wait_of(quota, 1_000) == 0
    assert wait_of(quota, 1) == 5
    clock.s += 9.8
    assert wait_of(quota, 1) == 2
    clock.s += 1
    assert wait_of(quota, 1) == 0


def test_without_a_rate_nothing_is_refused():
    quota = made()
    assert not any(wait_of(quota, 1 << 40) for _ in range(10))


def test_A13_as_many_queries_run_as_may_and_no_more():
    quota = made(queries_max=2)
    with quota.count_query(), quota.count_query():
        with pytest.raises(Overloaded) as caught, quota.count_query():
            pass
        assert caught.value.facts["retry_after_s"] == 1
        assert quota.queries == 2
    assert quota.queries == 0
    with quota.count_query():
        pass


def test_a_query_that_fails_gives_its_place_back():
    quota = made(queries_max=1)
    with pytest.raises(ValueError, match="no"), quota.count_query():
        raise ValueError("no")
    with quota.count_query():
        pass


def test_threads_count_together():
    quota = made(queries_max=4)
    inside, most, refused = 0, 0, 0
    lock = threading.Lock()
    start = threading.Barrier(8)

    def run():
        nonlocal inside, most, refused
        start.wait()
        for _ in range(200):
            try:
                with quota.count_query():
                    with lock:
                        inside += 1
                        most = max(most, inside)
                    with lock:
                        inside -= 1
            except Overloaded:
                refused += 1

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most <= 4
    assert quota.queries == 0


def test_rows_tables_and_entities_have_limits_and_0_is_none():
    quota = made(rows_max=10, tables_max=2, entities_max=3)
    quota.check_rows(10)
    quota.check_tables(2)
    quota.check_entities(3)
    for check, count in (
        (quota.check_rows, 11),
        (quota.check_tables, 3),
        (quota.check_entities, 4),
    ):
        with pytest.raises(Overloaded):
            check(count)
    free = made(rows_max=0, tables_max=0, entities_max=0, queries_max=0)
    free.check_rows(1 << 60)
    free.check_tables(1 << 60)
    free.check_entities(1 << 60)
    with free.count_query():
        assert free.queries == 1


def test_A13_one_tenants_use_is_no_others():
    small = QuotaSettings(queries_max=1, ingest_bytes_per_s=1, ingest_burst_bytes=1)
    quotas = Quotas(NodeSettings(tenants={"acme": small}))
    quotas.take_ingest("acme", 100)
    with pytest.raises(Overloaded):
        quotas.take_ingest("acme", 1)
    quotas.take_ingest("other", 1 << 30)
    with quotas.of("acme").count_query():
        with pytest.raises(Overloaded), quotas.of("acme").count_query():
            pass
        with quotas.of("other").count_query():
            pass
    assert quotas.of("acme") is quotas.of("acme")


def test_O05_limits_that_change_hold_from_then_on_and_what_runs_goes_on():
    quotas = Quotas(NodeSettings())
    with quotas.of("acme").count_query(), quotas.of("acme").count_query():
        quotas.change(NodeSettings(quota=QuotaSettings(queries_max=2)))
        with pytest.raises(Overloaded), quotas.of("acme").count_query():
            pass
    assert quotas.of("new").settings.queries_max == 2
