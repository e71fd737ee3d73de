"""A pool of connections to PostgreSQL, and transactions with a known outcome.

In:   a DSN, the tenant, the work
Out:  committed, or an error whose kind says whether the transaction definitely did not commit

- Every transaction has one tenant's role from its first statement to its end (`set local`): a
  connection that returns to the pool keeps nothing of its last tenant.
- At most `connections_max` connections; at most `waiting_max` callers wait for one, each at most
  `wait_timeout_s`. Every wait has a timeout: connecting, a statement, a lock, an idle transaction,
  and the answer itself.
- If the answer to a COMMIT is lost, the pool asks PostgreSQL for the outcome of the transaction's
  id. If no server answers, or the id may have been reused, the error is `OutcomeUnknown`.
- A read-only transaction has no outcome to lose.
- A caller that finds the server down gets the reason in its own thread; the breaker refuses others.

A library's pool would connect in the background, and a caller would notice a dead server only by a
timeout of its wait for a connection. So this pool is written here.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg

from thermocline.errors import (
    Invalid,
    OutcomeUnknown,
    Overloaded,
    ThermoclineError,
    Unavailable,
)
from thermocline.hot.postgres.schema.tenant import Tenant
from thermocline.hot.postgres.session.breaker import Breaker
from thermocline.hot.postgres.session.connect import Connection, Row, open_connection
from thermocline.hot.postgres.session.deadline import Deadline, Deadlines
from thermocline.hot.postgres.session.pipelined_read import (
    PipelinedQuery,
    PipelinedRead,
    PreparedStatements,
)
from thermocline.hot.postgres.session.pool_settings import PoolSettings
from thermocline.hot.postgres.session.postgres_errors import (
    is_lost,
    is_transient,
    translate_postgres_error,
)
from thermocline.hot.postgres.session.transaction import (
    Isolation,
    TransactionId,
    begin_transaction,
    execute_simple,
    find_outcome,
    opening_statements,
)

T = TypeVar("T")
RETRY_PAUSE_S = 0.005
RETRY_PAUSE_MAX_S = 0.5


@dataclass(slots=True)
class _PooledConnection:
    """A connection with its age, and the pool's era: how often the pool had been emptied."""

    connection: Connection
    made_s: float
    era: int
    prepared: PreparedStatements = field(default_factory=PreparedStatements)


class Pool:
    """Connections to one PostgreSQL. Any thread may use it; `close` when done."""

    def __init__(self, dsn: str, settings: PoolSettings | None = None) -> None:
        self.settings = settings or PoolSettings()
        self.breaker = Breaker(self.settings.breaker)
        self.dsn = dsn
        self._changed = threading.Condition()
        self._idle: list[_PooledConnection] = []
        self._in_use = 0
        self._waiting = 0
        self._era = 0
        self._is_closed = False
        self._deadlines = Deadlines()
        self._random = random.Random()  # noqa: S311

    def move_to(self, dsn: str) -> None:
        """Connect to another address from now on: the server was restarted at another port."""
        self.dsn = dsn
        self._forget_idle(self._era)
        self.breaker.record_success()

    def close(self, *, force: bool = False) -> None:
        """Close every idle connection; those in use are closed when they are returned.

        With `force` those in use are cut: callers that wait on one get a connection error.
        """
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for held in idle:
            held.connection.close()
        self._deadlines.close(force=force)

    def run(
        self,
        tenant: Tenant | None,
        work: Callable[[Connection], T],
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        is_read_only: bool = False,
        limit_s: float | None = None,
    ) -> T:
        """Return what `work` returns, from one committed transaction.

        Serialization failures, deadlocks and lost connections are retried with a growing, random
        back-off, `retries_max` and `reconnects_max` times: `work` may run more than once, but at
        most one run is committed. `OutcomeUnknown` is never retried.
        """

        def attempt() -> T:
            with self.transaction(
                tenant, isolation=isolation, is_read_only=is_read_only, limit_s=limit_s
            ) as connection:
                return work(connection)

        return self._retry(attempt)

    def run_query(
        self,
        tenant: Tenant,
        query: str,
        values: Mapping[str, Any],
        made: Callable[[list[Row]], Sequence[T]],
    ) -> list[T]:
        """Return the converted rows of one query, in one round trip; see `pipelined_read.py`.

        It runs in a separate read-only transaction, and is retried like `run`.
        """
        before = opening_statements(tenant, Isolation.READ_COMMITTED, is_read_only=True)
        question = PipelinedQuery(before, query, values, made)

        def attempt() -> list[T]:
            held, trip = self._begin(lambda held: _begin_read(held, question))
            deadline: Deadline | None = None
            limit_s = self.settings.transaction_timeout_s
            try:
                with self._deadlines.within(held.connection, limit_s) as deadline:
                    return trip.finish()
            except psycopg.Error as error:
                raise self._translate(error, deadline) from error
            finally:
                if deadline is not None and deadline.is_past:
                    held.connection.close()  # it was cut, but the answer had arrived before
                self._release(held)

        return self._retry(attempt)

    def _retry(self, attempt: Callable[[], T]) -> T:
        retries = reconnects = 0
        while True:
            try:
                return attempt()
            except OutcomeUnknown:
                raise
            except ThermoclineError as error:
                cause = error.__cause__
                if is_transient(cause) and retries < self.settings.retries_max:
                    retries += 1
                elif (
                    isinstance(cause, psycopg.Error)
                    and is_lost(cause)
                    and reconnects < self.settings.reconnects_max
                ):
                    reconnects += 1
                else:
                    raise
            longest_s = min(RETRY_PAUSE_S * 2 ** (retries + reconnects), RETRY_PAUSE_MAX_S)
            time.sleep(self._random.uniform(0, longest_s))

    @contextmanager
    def transaction(
        self,
        tenant: Tenant | None,
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
        is_read_only: bool = False,
        limit_s: float | None = None,
    ) -> Iterator[Connection]:
        """Yield a connection in a transaction that commits when the block ends without an error.

        After `limit_s` (default: `transaction_timeout_s`) the connection is cut. Errors of
        PostgreSQL leave the block as errors of this package.
        """
        before = b"; ".join(opening_statements(tenant, isolation, is_read_only=is_read_only))
        held, ticket = self._begin(lambda held: begin_transaction(held.connection, before))
        connection = held.connection
        limit = self.settings.transaction_timeout_s if limit_s is None else limit_s
        deadline: Deadline | None = None
        try:
            with self._deadlines.within(connection, limit) as deadline:
                try:
                    yield connection
                except BaseException:
                    if not connection.closed:
                        with suppress(psycopg.Error):
                            connection.execute("rollback", prepare=False)
                    raise
                self._commit(connection, ticket)
        except psycopg.Error as error:
            raise self._translate(error, deadline) from error
        finally:
            self._release(held)

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """Yield a new connection without transaction, tenant or timeouts.

        For work that cannot run in one transaction: migrations, and indexes built concurrently.
        """
        try:
            with self._connect() as connection:
                connection.execute("set statement_timeout = 0")
                connection.execute("set lock_timeout = 0")
                yield connection
        except psycopg.Error as error:
            raise translate_postgres_error(error) from error

    def _begin(self, first: Callable[[_PooledConnection], T]) -> tuple[_PooledConnection, T]:
        """Return a connection and the result of `first` on it.

        An idle connection may have been lost; `first` changes nothing, so another one is tried.
        """
        while True:
            with self.breaker.attempt():
                begun = self._try_begin(first)
            if begun is not None:
                return begun

    def _try_begin(
        self, first: Callable[[_PooledConnection], T]
    ) -> tuple[_PooledConnection, T] | None:
        try:
            held = self._acquire()
        except psycopg.Error as error:
            self.breaker.record_failure()
            raise translate_postgres_error(error) from error
        was_idle = held.made_s < time.monotonic() - self.settings.connect_timeout_s
        limit_s = self.settings.connect_timeout_s
        deadline: Deadline | None = None
        try:
            with self._deadlines.within(held.connection, limit_s) as deadline:
                answer = first(held)
        except psycopg.Error as error:
            is_silent = deadline is not None and deadline.is_past
            self._release(held)
            if not is_lost(error):
                self.breaker.record_success()  # a refusal is an answer
            else:
                self._forget_idle(held.era)
                if was_idle and not is_silent:
                    return None
                self.breaker.record_failure()
            raise self._translate(error, deadline) from error
        except BaseException:
            self._release(held)
            raise
        self.breaker.record_success()
        return held, answer

    def _commit(self, connection: Connection, ticket: TransactionId | None) -> None:
        try:
            said = execute_simple(connection, b"commit").command_status
        except psycopg.Error as error:
            if not is_lost(error):
                raise
            connection.close()
            self.breaker.record_failure()
            if ticket is None:
                return  # it only read, and has its rows
            timeout_s = self.settings.outcome_timeout_s
            outcome = find_outcome(ticket, self._connect, timeout_s=timeout_s)
            if outcome == "committed":
                return
            if outcome == "aborted":
                raise
            raise OutcomeUnknown(
                "the answer to a commit was lost, and PostgreSQL cannot say whether it committed",
                hint="read the rows before writing them again",
                transaction=ticket.xid,
            ) from error
        if said != b"COMMIT":
            raise Invalid(
                "the transaction had failed before its end",
                hint="do not catch PostgreSQL's errors inside the transaction",
            )

    def _translate(self, error: psycopg.Error, deadline: Deadline | None) -> ThermoclineError:
        if deadline is not None and deadline.is_past:
            limit_hint = "try again later; the limits are in the pool's settings"
            return Unavailable("PostgreSQL did not answer in time", hint=limit_hint)
        return translate_postgres_error(error)

    def _acquire(self) -> _PooledConnection:
        """Return an idle connection or a new one; waits while all are in use."""
        now_s = time.monotonic()
        end_s = now_s + self.settings.wait_timeout_s
        with self._changed:
            while not self._is_closed and self._in_use >= self.settings.connections_max:
                if self._waiting >= self.settings.waiting_max or time.monotonic() >= end_s:
                    raise Overloaded(
                        "every connection to PostgreSQL is in use",
                        hint="send less, or later",
                        connections_max=self.settings.connections_max,
                        waiting=self._waiting,
                    )
                self._waiting += 1
                try:
                    self._changed.wait(end_s - time.monotonic())
                finally:
                    self._waiting -= 1
            if self._is_closed:
                raise Unavailable("the pool is closed", hint="open the lake again")
            self._in_use += 1
            era = self._era
            while self._idle:
                held = self._idle.pop()
                if held.made_s > now_s - self.settings.lifetime_s:
                    return held
                held.connection.close()
        try:
            return _PooledConnection(self._connect(), time.monotonic(), era)
        except BaseException:
            with self._changed:
                self._in_use -= 1
                self._changed.notify()
            raise

    def _release(self, held: _PooledConnection) -> None:
        pgconn = held.connection.pgconn
        is_good = (
            not held.connection.closed
            and pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
            and pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF
        )
        if not is_good and not held.connection.closed:
            held.connection.close()
        with self._changed:
            self._in_use -= 1
            if is_good and not self._is_closed and held.era == self._era:
                self._idle.append(held)
                is_good = False
            self._changed.notify()
        if is_good:
            held.connection.close()

    def _forget_idle(self, era: int) -> None:
        """Close the idle connections of a server that is down, once per era."""
        with self._changed:
            if era != self._era:
                return
            self._era += 1
            idle, self._idle = self._idle, []
        for held in idle:
            held.connection.close()

    def _connect(self) -> Connection:
        return open_connection(self.dsn, self.settings, self._deadlines)


def _begin_read(held: _PooledConnection, question: PipelinedQuery[T]) -> PipelinedRead[T]:
    return PipelinedRead(held.connection, held.prepared, question).begin()
