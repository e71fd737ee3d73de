"""One transaction: begins it, runs statements without parameters, finds out whether it committed.

In:   a connection; the tenant, the isolation, whether the transaction only reads
Out:  the result of the last statement, or an error of the driver when one of them failed; the
      transaction's id; after a lost answer to COMMIT: committed, aborted, or None for unknown

- BEGIN, SET and COMMIT use libpq directly, by its simple query protocol. The driver's cursor would
  convert nothing here, but takes 100 of the 160 us that a transaction's begin and end cost.
- It waits without the interpreter's lock until the connection ends: the caller sets a deadline,
  which cuts the connection.
- After a crash and recovery, a server reuses the ids of transactions that left no trace, even with
  the same server process. Recovery ends with a checkpoint: while the last checkpoint is that of the
  transaction's begin, its id still means the same transaction.
- After another checkpoint, "committed" may be another transaction with this id, so the outcome is
  unknown. "Aborted" holds in any case: the id of a committed transaction is never reused.
"""

import enum
import functools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, Error, OperationalError, errors, pq, sql
from psycopg.pq.abc import PGresult

from thermocline.hot.postgres.schema.tenant import Tenant

OUTCOME_POLL_S = 0.05
CHECKPOINT = "(select checkpoint_lsn::text from pg_control_checkpoint())"
TRANSACTION_ID_QUERY = f"select pg_current_xact_id()::text, {CHECKPOINT}"
SUCCESS_STATUSES = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.TUPLES_CHUNK)


class Isolation(enum.Enum):
    """The isolation level of a transaction."""

    READ_COMMITTED = "read committed"
    REPEATABLE_READ = "repeatable read"
    SERIALIZABLE = "serializable"


@dataclass(frozen=True, slots=True)
class TransactionId:
    """The id of a transaction, which is unique until the server recovers from a crash."""

    xid: str
    checkpoint: str


@functools.lru_cache(maxsize=1_024)
def opening_statements(
    tenant: Tenant | None, isolation: Isolation, *, is_read_only: bool
) -> tuple[bytes, ...]:
    """Return the statements before the work; for a writer, the last one returns its id."""
    access = "read only" if is_read_only else "read write"
    statements: list[sql.Composable] = [
        sql.SQL(f"begin isolation level {isolation.value} {access}")
    ]
    if tenant is not None:
        statements += tenant.role_statements()
    if not is_read_only:
        statements.append(sql.SQL(TRANSACTION_ID_QUERY))
    return tuple(one.as_bytes() for one in statements)


def begin_transaction(connection: Connection[Any], opening: bytes) -> TransactionId | None:
    """Begin a transaction; return its id, or None for a read-only one."""
    answer = execute_simple(connection, opening)
    if not answer.ntuples:
        return None
    xid, checkpoint = (answer.get_value(0, column) or b"" for column in range(2))
    return TransactionId(xid.decode(), checkpoint.decode())


def execute_simple(connection: Connection[Any], words: bytes) -> PGresult:
    """Return the result of the last statement; statements after a failed one are not run."""
    answer = connection.pgconn.exec_(words)
    if answer.status in SUCCESS_STATUSES:
        return answer
    raise error_of(answer, connection)


def error_of(answer: PGresult, connection: Connection[Any]) -> Error:
    """Return the driver's error for a failed result."""
    encoding = connection.info.encoding
    if answer.error_field(pq.DiagnosticField.SQLSTATE) is None:
        # The message is libpq's, not the server's: the connection is lost.
        return OperationalError(answer.get_error_message(encoding))
    return errors.error_from_result(answer, encoding)


def find_outcome(
    ticket: TransactionId, connected: Callable[[], Connection[Any]], *, timeout_s: float
) -> str | None:
    """Return the outcome of a transaction: committed, aborted, or None if it is unknown."""
    end_s = time.monotonic() + timeout_s
    while True:
        with suppress(Error), connected() as connection:
            # One statement: both values are of the same run of the server.
            query = f"select pg_xact_status(%s::xid8), {CHECKPOINT}"
            row = connection.execute(query, [ticket.xid]).fetchone()
            status, checkpoint = row if row else (None, None)
            if status == "committed" and checkpoint != ticket.checkpoint:
                return None
            if status != "in progress":
                return None if status is None else str(status)
        if time.monotonic() > end_s:
            return None
        time.sleep(OUTCOME_POLL_S)
