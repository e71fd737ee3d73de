"""A breaker opens on failures in a row, lets one try, and closes on the first success."""

import pytest

from thermocline.errors import Unavailable
from thermocline.hot.postgres.session.breaker import Breaker, BreakerSettings


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return Breaker(BreakerSettings(failures_max=3, open_s=1.0, open_max_s=4.0), clock)


def fail(breaker, times):
    for _ in range(times):
        with breaker.attempt():
            breaker.record_failure()


def succeed(breaker):
    with breaker.attempt():
        breaker.record_success()


def refused(breaker):
    with pytest.raises(Unavailable) as caught, breaker.attempt():
        pass
    return caught.value


def test_it_opens_after_failures_in_a_row_and_says_when_to_come_back(breaker):
    fail(breaker, 3)
    assert breaker.state == "open"
    assert 0 < refused(breaker).facts["retry_after_s"] <= 1.0


def test_a_success_in_between_starts_the_count_again(breaker):
    fail(breaker, 2)
    succeed(breaker)
    fail(breaker, 2)
    assert breaker.state == "closed"


def test_after_a_while_one_may_try_and_the_others_may_not(breaker, clock):
    fail(breaker, 3)
    clock.now_s += 1.0
    assert breaker.state == "half_open"
    with breaker.attempt():
        assert refused(breaker)
        breaker.record_success()
    assert breaker.state == "closed"
    succeed(breaker)


def test_an_attempt_that_learned_nothing_leaves_the_next_one_free(breaker, clock):
    fail(breaker, 3)
    clock.now_s += 1.0
    with breaker.attempt():
        assert refused(breaker)
    succeed(breaker)
    assert breaker.state == "closed"


def test_a_try_that_fails_opens_it_for_twice_as_long_up_to_a_limit(breaker, clock):
    fail(breaker, 3)
    for open_s in (1.0, 2.0, 4.0, 4.0):
        clock.now_s += open_s - 0.01
        assert refused(breaker)
        clock.now_s += 0.02
        fail(breaker, 1)


def test_a_clock_that_is_set_back_keeps_nobody_out(breaker, clock):
    # The clock given in production is monotonic: this is what would happen with another.
    fail(breaker, 3)
    clock.now_s += 1.0
    succeed(breaker)
    assert breaker.state == "closed"
