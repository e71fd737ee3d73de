"""A connection is cut when its time is up, whatever the thread that cuts was waiting for."""

import time

import psycopg
import pytest

from thermocline.hot.postgres.session.deadline import Deadlines

LONG_S = 300.0
SHORT_S = 0.2


@pytest.fixture
def deadlines():
    made = Deadlines()
    yield made
    made.close()


@pytest.fixture
def connection(postgres_dsn):
    with psycopg.connect(postgres_dsn, autocommit=True) as made:
        yield made


def cut_in(deadlines, connection):
    """Wait for an answer that does not come; return how long that was."""
    started_s = time.monotonic()
    with deadlines.within(connection, SHORT_S) as deadline, pytest.raises(psycopg.OperationalError):
        connection.execute("select pg_sleep(200)")
    assert deadline.is_past
    return time.monotonic() - started_s


def test_a_deadline_is_kept_while_a_later_one_waits(deadlines, connection, postgres_dsn):
    with psycopg.connect(postgres_dsn) as other, deadlines.within(other, LONG_S):
        assert cut_in(deadlines, connection) >= SHORT_S
        other.execute("select 1")


def test_a_deadline_is_kept_after_a_later_one_that_was_not_needed(
    deadlines, connection, postgres_dsn
):
    with psycopg.connect(postgres_dsn) as other:
        with deadlines.within(other, LONG_S):
            other.execute("select 1")
        assert cut_in(deadlines, connection) >= SHORT_S


def test_a_deadline_is_kept_after_an_earlier_one_has_passed(deadlines, connection, postgres_dsn):
    with psycopg.connect(postgres_dsn, autocommit=True) as other:
        cut_in(deadlines, other)
    assert cut_in(deadlines, connection) >= SHORT_S


def test_a_block_that_ends_in_time_is_not_cut_later(deadlines, connection, postgres_dsn):
    limit_s = SHORT_S * 10
    with deadlines.within(connection, limit_s):
        connection.execute("select 1")
    with psycopg.connect(postgres_dsn, autocommit=True) as other:
        cut_in(deadlines, other)
        time.sleep(limit_s)
    connection.execute("select 1")
