"""Finds out what became of a transaction whose answer was lost.

In:   the transaction's id, and the server's last checkpoint when it began
Out:  committed, aborted, or that nobody can say

- A server that crashed and recovered gives the ids of transactions that left nothing behind to
  others, though its process is the same. Recovery ends with a checkpoint: while the last one is
  the one of the beginning, an id is still the same transaction.
- Committed by somebody else looks like committed by us, so after another checkpoint it says
  nothing. Aborted is aborted either way: an id that was committed is never given again.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from thermocline.hot.postgres.exchange import exchanged

FATE_POLL_S = 0.05
CHECKPOINT = "(select checkpoint_lsn::text from pg_control_checkpoint())"
TICKET = f"select pg_current_xact_id()::text, {CHECKPOINT}"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A transaction by its id, which is its own until the server recovers from a crash."""

    xid: str
    checkpoint: str


def fate_of(
    ticket: Ticket, connected: Callable[[], psycopg.Connection[Any]], *, timeout_s: float
) -> str | None:
    """Return what became of a transaction: committed, aborted, or None if nobody can say."""
    end_s = time.monotonic() + timeout_s
    while True:
        with suppress(psycopg.Error), connected() as connection:
            # One statement: both are of the same run of the server.
            query = f"select pg_xact_status(%s::xid8), {CHECKPOINT}"
            row = connection.execute(query, [ticket.xid]).fetchone()
            fate, checkpoint = row if row else (None, None)
            if fate == "committed" and checkpoint != ticket.checkpoint:
                return None
            if fate != "in progress":
                return None if fate is None else str(fate)
        if time.monotonic() > end_s:
            return None
        time.sleep(FATE_POLL_S)


def ticket_of(connection: psycopg.Connection[Any], opening: bytes) -> Ticket | None:
    """Begin a transaction; return its ticket, None if it asked for none."""
    answer = exchanged(connection, opening)
    if not answer.ntuples:
        return None
    xid, checkpoint = (answer.get_value(0, column) or b"" for column in range(2))
    return Ticket(xid.decode(), checkpoint.decode())
