"""Finds out whether a transaction committed when the answer to its COMMIT was lost.

In:   the transaction's id, and the server's last checkpoint when it began
Out:  committed, aborted, or None for unknown

- After a crash and recovery, a server reuses the ids of transactions that left no trace, even with
  the same server process. Recovery ends with a checkpoint: while the last checkpoint is that of the
  transaction's begin, its id still means the same transaction.
- After another checkpoint, "committed" may be another transaction with this id, so the outcome is
  unknown. "Aborted" holds in any case: the id of a committed transaction is never reused.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from thermocline.hot.postgres.session.simple_query import execute_simple

OUTCOME_POLL_S = 0.05
CHECKPOINT = "(select checkpoint_lsn::text from pg_control_checkpoint())"
TRANSACTION_ID_QUERY = f"select pg_current_xact_id()::text, {CHECKPOINT}"


@dataclass(frozen=True, slots=True)
class TransactionId:
    """The id of a transaction, which is unique until the server recovers from a crash."""

    xid: str
    checkpoint: str


def find_outcome(
    ticket: TransactionId, connected: Callable[[], psycopg.Connection[Any]], *, timeout_s: float
) -> str | None:
    """Return the outcome of a transaction: committed, aborted, or None if it is unknown."""
    end_s = time.monotonic() + timeout_s
    while True:
        with suppress(psycopg.Error), connected() as connection:
            # One statement: both values are of the same run of the server.
            query = f"select pg_xact_status(%s::xid8), {CHECKPOINT}"
            row = connection.execute(query, [ticket.xid]).fetchone()
            fate, checkpoint = row if row else (None, None)
            if fate == "committed" and checkpoint != ticket.checkpoint:
                return None
            if fate != "in progress":
                return None if fate is None else str(fate)
        if time.monotonic() > end_s:
            return None
        time.sleep(OUTCOME_POLL_S)


def begin_transaction(connection: psycopg.Connection[Any], opening: bytes) -> TransactionId | None:
    """Begin a transaction; return its id, or None for a read-only one."""
    answer = execute_simple(connection, opening)
    if not answer.ntuples:
        return None
    xid, checkpoint = (answer.get_value(0, column) or b"" for column in range(2))
    return TransactionId(xid.decode(), checkpoint.decode())
