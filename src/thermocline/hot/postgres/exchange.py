"""Words said to PostgreSQL for their effect alone, in one message and one answer.

In:   a connection, statements without parameters
Out:  the answer to the last of them; an error of the driver when one of them failed

- It goes through libpq as it is. A cursor of the driver would convert nothing here, and takes 100
  of the 160 us that the two ends of a transaction cost.
- It waits without the interpreter's lock, for as long as the connection lasts: whoever calls has
  given it a deadline, which cuts it.
"""

from typing import Any

from psycopg import Connection, Error, OperationalError, errors, pq
from psycopg.pq.abc import PGresult

GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.TUPLES_CHUNK)


def exchanged(connection: Connection[Any], words: bytes) -> PGresult:
    """Return the answer to the last of some statements; those after one that fails are not run."""
    answer = connection.pgconn.exec_(words)
    if answer.status in GOOD:
        return answer
    raise error_of(answer, connection)


def error_of(answer: PGresult, connection: Connection[Any]) -> Error:
    """Return the error that an answer is."""
    encoding = connection.info.encoding
    if answer.error_field(pq.DiagnosticField.SQLSTATE) is None:
        # Not the server's word but libpq's own: the connection is lost.
        return OperationalError(answer.get_error_message(encoding))
    return errors.error_from_result(answer, encoding)
