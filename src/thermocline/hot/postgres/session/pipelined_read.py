"""Runs one query in one read-only transaction in one round trip: libpq's pipeline mode.

In:   a connection, and a `PipelinedQuery`: the opening statements, a query and its values by name
Out:  the converted rows of the query

- Statement by statement, a transaction takes three round trips: a third of the time of a page of
  entities. Only a read of one statement can be pipelined, because no step depends on another.
- The caller converts the first rows while the server produces the next ones: reading a page's JSON
  takes half as long as the server's writing of it.
- After a failed statement PostgreSQL skips the rest, also the commit: the transaction is rolled
  back here, and the connection can be used again.
- An interrupted read leaves its connection inside the pipeline; the pool closes it.
- It uses libpq's pipeline directly. The driver's costs as much as the round trips it saves.
- A connection prepares a query at its first use, up to `PREPARED_MAX` queries.
"""

import functools
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from psycopg import OperationalError, capabilities, errors, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from thermocline.hot.postgres.session.connect import Connection, Row
from thermocline.hot.postgres.session.transaction import SUCCESS_STATUSES, error_of, execute_simple

PREPARED_MAX = 200
PIECE_ROWS = 25

T = TypeVar("T")
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")
_IN_PIECES = capabilities.has_stream_chunked()


@dataclass(frozen=True, slots=True)
class PipelinedQuery(Generic[T]):
    """A query, and the conversion `made` of a chunk of its rows.

    `made` is called again for the same rows if the read is repeated. Its exception is raised after
    all results have arrived.
    """

    opening: Sequence[bytes]
    query: str
    values: Mapping[str, Any]
    convert: Callable[[list[Row]], Sequence[T]]


@dataclass(slots=True)
class PreparedStatements:
    """The prepared statements of one connection: names by tenant, text and types."""

    names: dict[tuple[object, ...], bytes] = field(default_factory=dict)
    count: int = 0


class PipelinedRead(Generic[T]):
    """One pipelined read: begun, then finished. It raises the driver's errors."""

    def __init__(
        self, connection: Connection, prepared: PreparedStatements, question: PipelinedQuery[T]
    ) -> None:
        self._connection = connection
        self._prepared = prepared
        self._question = question
        self._text, names = _number_parameters(question.query)
        self._converting = Transformer(connection)
        formats = [PyFormat.AUTO] * len(names)
        given = [question.values[name] for name in names]
        self._values = self._converting.dump_sequence(given, formats)
        self._key = (*question.opening, self._text, self._converting.types)
        self._name: bytes | None = None
        self._query_step = 0
        self._first: PGresult | None = None

    def begin(self) -> Self:
        """Send all statements; return when the first result arrives: the server is alive."""
        pgconn = self._connection.pgconn
        pgconn.enter_pipeline_mode()
        begin, *words = self._question.opening
        pgconn.send_query_params(begin, None)
        pgconn.send_flush_request()  # else the server would send the first result with the last
        for one in words:
            pgconn.send_query_params(one, None)
        self._query_step = 1 + len(words)
        self._send_query()
        pgconn.send_query_params(b"commit", None)
        pgconn.pipeline_sync()
        self._first = self._next_result()
        return self

    def finish(self) -> list[T]:
        """Return all converted rows, in order."""
        known = self._prepared.names.get(self._key)
        try:
            return self._receive()
        except errors.InvalidSqlStatementName:
            # The driver deallocates all prepared statements when types may have changed.
            self._prepared.names.clear()
        except errors.FeatureNotSupported:
            if known is None:
                raise
            # The table was created again, and its columns have other types.
            execute_simple(self._connection, b"deallocate " + known)
            del self._prepared.names[self._key]
        self.begin()
        return self._receive()

    def _send_query(self) -> None:
        pgconn, converting, prepared = self._connection.pgconn, self._converting, self._prepared
        self._name = prepared.names.get(self._key)
        if self._name is None and len(prepared.names) < PREPARED_MAX:
            prepared.count += 1
            self._name = b"trip_%d" % prepared.count
            pgconn.send_prepare(self._name, self._text, converting.types)
            self._query_step += 1
        if self._name is None:
            types, formats = converting.types, converting.formats
            pgconn.send_query_params(self._text, self._values, types, formats, pq.Format.BINARY)
        else:
            formats = converting.formats
            pgconn.send_query_prepared(self._name, self._values, formats, pq.Format.BINARY)

    def _receive(self) -> list[T]:
        """Receive all results; return the converted rows of the query."""
        found: list[T] = []
        failure: PGresult | None = None
        own_failure: Exception | None = None
        number = 0
        answer = self._first
        while answer is None or answer.status != pq.ExecStatus.PIPELINE_SYNC:
            if answer is None:  # between the results of two statements
                number += 1
                if number == self._query_step and failure is None:
                    self._expect_query()
            elif answer.status not in SUCCESS_STATUSES:
                failure = failure or answer
            elif number == self._query_step and own_failure is None:
                try:
                    found += self._question.convert(self._load_rows(answer))
                except Exception as error:  # noqa: BLE001 (raised below)
                    own_failure = error
            answer = self._next_result()
        pgconn = self._connection.pgconn
        pgconn.exit_pipeline_mode()
        if pgconn.transaction_status == pq.TransactionStatus.INERROR:
            execute_simple(self._connection, b"rollback")
        if failure is not None:
            raise error_of(failure, self._connection)
        if own_failure is not None:
            raise own_failure
        return found

    def _expect_query(self) -> None:
        if self._name is not None:  # it is prepared, even if the query fails
            self._prepared.names[self._key] = self._name
        if _IN_PIECES:
            self._connection.pgconn.set_chunked_rows_mode(PIECE_ROWS)

    def _load_rows(self, piece: PGresult) -> list[Row]:
        self._converting.set_pgresult(piece)
        return self._converting.load_rows(0, piece.ntuples, tuple)

    def _next_result(self) -> PGresult | None:
        """Return the next result, or None at the end of a statement's results."""
        pgconn = self._connection.pgconn
        if pgconn.is_busy():
            self._connection.wait(self._wait_for_result())
        answer = pgconn.get_result()
        if answer is None and pgconn.status == pq.ConnStatus.BAD:
            # Otherwise libpq returns None without end.
            raise OperationalError(pgconn.get_error_message(self._connection.info.encoding))
        return answer

    def _wait_for_result(self) -> Generator[Wait, Ready | int, None]:
        """Wait like the driver until a whole result has arrived."""
        pgconn = self._connection.pgconn
        while pgconn.is_busy():
            ready = yield (Wait.RW if pgconn.flush() else Wait.R)
            if ready & Ready.R:
                pgconn.consume_input()


@functools.lru_cache(maxsize=1_024)
def _number_parameters(query: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a query with numbered parameters, and their names in that order."""
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        return "%" if name is None else f"${names.setdefault(name, len(names) + 1)}"

    return _PARAMETER.sub(number, query).encode(), tuple(names)
