"""Words said for their effect are answered by the last of them, or by the first that fails."""

import psycopg
import pytest
from psycopg import errors

from thermocline.hot.postgres.session.postgres_errors import is_lost
from thermocline.hot.postgres.session.transaction import execute_simple


@pytest.fixture
def connection(postgres_dsn):
    with psycopg.connect(postgres_dsn, autocommit=True) as made:
        yield made


def test_the_answer_is_that_to_the_last_statement(connection):
    answer = execute_simple(connection, b"select 1; select 2, 'two'")
    assert [answer.get_value(0, column) for column in range(2)] == [b"2", b"two"]
    assert execute_simple(connection, b"begin; set local lock_timeout = 1").ntuples == 0
    assert execute_simple(connection, b"commit").command_status == b"COMMIT"


def test_what_comes_after_a_statement_that_fails_is_not_done(connection):
    with pytest.raises(errors.DivisionByZero) as caught:
        execute_simple(connection, b"begin; select 1 / 0; commit")
    assert caught.value.sqlstate == "22012"
    assert not is_lost(caught.value)
    assert execute_simple(connection, b"commit").command_status == b"ROLLBACK"


def test_a_connection_that_was_ended_is_told_as_lost(connection, postgres_dsn):
    with psycopg.connect(postgres_dsn, autocommit=True) as other:
        process = connection.info.backend_pid
        other.execute("select pg_terminate_backend(%s, 60000)", [process])
    for _ in range(2):
        with pytest.raises(psycopg.OperationalError) as caught:
            execute_simple(connection, b"select 1")
        assert is_lost(caught.value)
    assert connection.closed
