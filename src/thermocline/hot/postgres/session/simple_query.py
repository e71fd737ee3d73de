"""Runs statements without parameters (BEGIN, SET, COMMIT) by libpq's simple query protocol.

In:   a connection, statements without parameters
Out:  the result of the last one; an error of the driver when one of them failed

- It uses libpq directly. The driver's cursor would convert nothing here, but takes 100 of the
  160 us that the begin and the end of a transaction cost.
- It waits without the interpreter's lock until the connection ends: the caller sets a deadline,
  which cuts the connection.
"""

from typing import Any

from psycopg import Connection, Error, OperationalError, errors, pq
from psycopg.pq.abc import PGresult

SUCCESS_STATUSES = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.TUPLES_CHUNK)


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
