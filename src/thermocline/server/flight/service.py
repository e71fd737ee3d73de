"""The calls of Arrow Flight SQL: queries, prepared statements, questions about tables, cancels.

In:   the messages of a call; its `authorization`, as a key or as Basic with the key as password
Out:  messages; or a status of gRPC that says what a client can do

- The key is checked before a message is read. Every call needs the scope `query`.
- A query runs when its ticket is read, through the gate, the queue and the workers of the HTTP API.
- What writes is refused as unimplemented. There are no transactions and no sessions.
- A handle and a running query belong to a tenant; for another one they do not exist.
"""

import asyncio
import base64
import binascii
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc  # type: ignore[import-untyped]
import pyarrow as pa

from thermocline.error_table import CANCELLED, INTERNAL, find_answer
from thermocline.errors import Invalid, ThermoclineError, Unavailable, Unsupported
from thermocline.server.access.guard import Caller
from thermocline.server.api.context import ApiContext
from thermocline.server.api.http.incoming import ClientGone
from thermocline.server.api.http.problem import problem_of
from thermocline.server.api.http.rows import arrow_rows, join_messages
from thermocline.server.flight import messages
from thermocline.server.flight.answer import FlightQuery, StreamEncoder, describe, send_in_time
from thermocline.server.flight.catalog import answer_command, encode_schema, find_schema
from thermocline.server.flight.statement import (
    FlightStatement,
    PreparedQueries,
    check_size,
    decode_ticket,
    encode_ticket,
)

LISTENER = "flight"
SERVICE = "/arrow.flight.protocol.FlightService/"
SCOPE = "query"
READ_WAIT_S = 30.0
PARAMETER_BYTES_MAX = 4 << 20
CATALOG_ROWS_MAX = 200  # of one message: a row may have the schema of a table
WORDS_LENGTH_MAX = 2_000
AUTHORIZATION_LENGTH_MAX = 1_024
_QUERIES = ("CommandStatementQuery", "CommandPreparedStatementQuery")
_CANCELLED, _NOT_CANCELLABLE = 1, 3
_CLOSED = 1
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_ACTIONS: Mapping[str, str] = {
    "CreatePreparedStatement": "prepare a query",
    "ClosePreparedStatement": "forget a prepared query",
    "CancelFlightInfo": "end a running query",
    "CancelQuery": "end a running query",
    "CloseSession": "end the session, of which the node keeps nothing",
}

Run = Callable[["FlightCall"], Awaitable[None]]


class FlightCall:
    """One call: its messages as they come, its caller, and the way to its client."""

    def __init__(self, incoming: AsyncIterator[bytes], context: Any) -> None:
        self._incoming = incoming
        self.context = context
        self.caller = Caller("", "", frozenset())
        self.key: str | None = None

    async def read(self) -> bytes | None:
        """Return the next message, or None after the last; `Unavailable` if it comes too late."""
        try:
            async with asyncio.timeout(READ_WAIT_S):
                return await anext(self._incoming, None)
        except TimeoutError:
            hint = "send the message in less time"
            raise Unavailable("the message did not arrive in time", hint=hint) from None

    async def read_one(self, name: str) -> Any:
        """Return the one message of the call; `Invalid` if there is none."""
        data = await self.read()
        if data is None:
            raise Invalid("the call has no message", hint="use a client of Arrow Flight SQL")
        return messages.decode(name, data)

    async def send(self, data: bytes) -> None:
        """Send a message; `ClientGone` when the client does not take it in time."""
        await send_in_time(self.context.write, data)


class FlightService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The service; each call runs as a task of the event loop, which a cancel of its client ends.

    gRPC reads the message of a unary call before it calls the handler. Handlers of streams read it
    themselves, after the key was checked; on the wire both are the same.
    """

    def __init__(self, parts: ApiContext) -> None:
        self._parts = parts
        self._prepared = PreparedQueries()
        runs: Mapping[str, Run] = {
            "Handshake": self._handshake,
            "GetFlightInfo": self._plan_query,
            "GetSchema": self._describe_answer,
            "DoGet": self._send_rows,
            "DoPut": self._take_parameters,
            "DoAction": self._run_action,
            "ListActions": self._list_actions,
            "ListFlights": self._list_flights,
        }
        self._handlers = {
            SERVICE + name: grpc.stream_stream_rpc_method_handler(self._guard_call(name, run))
            for name, run in runs.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call of this service."""
        return self._handlers.get(handler_call_details.method)

    def _guard_call(self, name: str, run: Run) -> Callable[[Any, Any], Awaitable[None]]:
        async def answer(incoming: AsyncIterator[bytes], context: Any) -> None:
            began_s = time.monotonic()
            call = FlightCall(incoming, context)
            refusal: tuple[int, str] | None = None
            try:
                call.key = _read_key(context.invocation_metadata())
                bearer = None if call.key is None else f"Bearer {call.key}"
                _ = self._parts.node  # before the key: a node that starts has not read its keys
                peer = str(context.peer())
                call.caller = self._parts.guard.caller(bearer, SCOPE, peer=peer)
                await run(call)
            except ClientGone:
                refusal = (CANCELLED, "the client does not read")
            except Exception as error:  # noqa: BLE001  one place answers every error
                refusal = self._refuse(error)
            code = 0 if refusal is None else refusal[0]
            self._parts.metrics.count_request(
                LISTENER, SERVICE + name, code, time.monotonic() - began_s
            )
            if refusal is not None:
                await context.abort(_CODES[refusal[0]], refusal[1])

        return answer

    def _refuse(self, error: Exception) -> tuple[int, str]:
        """Return the status and the words of an error, which say nothing about the machine."""
        if not isinstance(error, ThermoclineError):
            about = {"message": "a call of Flight failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(about)
            return INTERNAL, "the node has an internal error"
        problem = problem_of(error)
        facts = ", ".join(f"{name}={fact}" for name, fact in problem.facts.items())
        words = problem.detail + (f" ({facts})" if facts else "")
        words += f": {problem.hint}" if problem.hint else ""
        # The words travel in a header of HTTP/2, whose size is limited.
        return find_answer(error).flight_code, words[:WORDS_LENGTH_MAX]

    # Calls

    async def _handshake(self, call: FlightCall) -> None:
        """Return the key as a token: JDBC and ADBC exchange a password for one."""
        if call.key is not None:
            token = (("authorization", f"Bearer {call.key}"),)
            await call.context.send_initial_metadata(token)

    async def _plan_query(self, call: FlightCall) -> None:
        descriptor = await call.read_one("FlightDescriptor")
        name, command = messages.unpack(descriptor.cmd)
        if name in _QUERIES:
            statement = self._find_statement(call, name, command)
            ticket = messages.pack(
                "TicketStatementQuery", statement_handle=encode_ticket(statement)
            )
            # With parameters the types of the answer may depend on their values.
            schema = b"" if statement.names else statement.schema
        else:
            ticket, schema = descriptor.cmd, encode_schema(find_schema(name, command))
        endpoint = messages.make("FlightEndpoint", ticket=messages.make("Ticket", ticket=ticket))
        await call.send(
            messages.encode(
                "FlightInfo",
                schema=schema,
                flight_descriptor=descriptor,
                endpoint=[endpoint],
                total_records=-1,
                total_bytes=-1,
            )
        )

    def _find_statement(self, call: FlightCall, name: str, command: Any) -> FlightStatement:
        if name == "CommandStatementQuery":
            return check_size(FlightStatement(command.query))
        handle = command.prepared_statement_handle
        return self._prepared.find(call.caller.tenant, handle)

    async def _describe_answer(self, call: FlightCall) -> None:
        descriptor = await call.read_one("FlightDescriptor")
        name, command = messages.unpack(descriptor.cmd)
        if name in _QUERIES:
            statement = self._find_statement(call, name, command)
            if not statement.schema:
                statement = await describe(self._parts, call.caller, statement.sql)
            schema = statement.schema
        else:
            schema = encode_schema(find_schema(name, command))
        await call.send(messages.encode("SchemaResult", schema=schema))

    async def _send_rows(self, call: FlightCall) -> None:
        ticket = await call.read_one("Ticket")
        name, command = messages.unpack(ticket.ticket)
        if name == "TicketStatementQuery":
            query_id, statement = decode_ticket(command.statement_handle)
            query = FlightQuery(self._parts, call.caller, statement)
            await query.send_answer(query_id, call.send)
            return
        lake = self._parts.node.lake(call.caller.tenant)
        found = await self._parts.work.run(
            lambda: answer_command(name, command, lake), tenant=call.caller.tenant
        )
        encoder = StreamEncoder(found.schema)
        await call.send(encoder.head())
        for batch in found.to_batches(max_chunksize=CATALOG_ROWS_MAX):
            for message in encoder.encode(batch):
                await call.send(message)

    async def _take_parameters(self, call: FlightCall) -> None:
        """Take the parameters of a prepared statement; refuse everything that writes."""
        data = await call.read()
        first = messages.decode("FlightData", data or b"")
        name, command = messages.unpack(first.flight_descriptor.cmd)
        if name != "CommandPreparedStatementQuery":
            raise Unsupported(
                "this node takes no writes over Flight SQL",
                hint="write through the HTTP API, the Python client or OTLP",
                command=name,
            )
        handle = command.prepared_statement_handle
        self._prepared.find(call.caller.tenant, handle)
        table = await self._read_parameters(call, first)
        self._prepared.bind(call.caller.tenant, handle, table)
        answer = messages.encode("DoPutPreparedStatementResult", prepared_statement_handle=handle)
        await call.send(messages.encode("PutResult", app_metadata=answer))

    async def _read_parameters(self, call: FlightCall, first: Any) -> pa.Table:
        """Return the rows of a stream, which arrow_rows validates before their values are used."""
        parts: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        one: Any = first
        while True:
            if one.data_header:
                parts.append((one.data_header, one.data_body))
                size_bytes += len(one.data_header) + len(one.data_body)
            if size_bytes > PARAMETER_BYTES_MAX:
                raise Invalid(
                    "the parameters are too large",
                    hint="put long lists into a table",
                    bytes_max=PARAMETER_BYTES_MAX,
                )
            data = await call.read()
            if data is None:
                return arrow_rows(join_messages(parts))
            one = messages.decode("FlightData", data)

    async def _run_action(self, call: FlightCall) -> None:
        action = await call.read_one("Action")
        if action.type == "CreatePreparedStatement":
            _, request = messages.unpack(action.body)
            statement = await describe(
                self._parts, call.caller, check_size(FlightStatement(request.query)).sql
            )
            handle = self._prepared.keep(call.caller.tenant, statement)
            answer = messages.pack(
                "ActionCreatePreparedStatementResult",
                prepared_statement_handle=handle,
                dataset_schema=statement.schema,
                parameter_schema=statement.parameters,
            )
        elif action.type == "ClosePreparedStatement":
            _, request = messages.unpack(action.body)
            self._prepared.drop(call.caller.tenant, request.prepared_statement_handle)
            return
        elif action.type == "CancelFlightInfo":
            info = messages.decode("CancelFlightInfoRequest", action.body).info
            answer = messages.encode("CancelFlightInfoResult", status=self._cancel(call, info))
        elif action.type == "CancelQuery":
            _, request = messages.unpack(action.body)
            info = messages.decode("FlightInfo", request.info)
            answer = messages.pack("ActionCancelQueryResult", result=self._cancel(call, info))
        elif action.type == "CloseSession":
            answer = messages.encode("CloseSessionResult", status=_CLOSED)
        else:
            hint = f"use one of {', '.join(_ACTIONS)}"
            raise Unsupported("the node has no such action", hint=hint, action=action.type[:100])
        await call.send(messages.encode("Result", body=answer))

    def _cancel(self, call: FlightCall, info: Any) -> int:
        """End the query of a FlightInfo if it waits or runs."""
        is_cancelled = False
        for endpoint in info.endpoint:
            name, command = messages.unpack(endpoint.ticket.ticket)
            if name == "TicketStatementQuery":
                query_id, _ = decode_ticket(command.statement_handle)
                queue = self._parts.node.query_pool.queue
                is_cancelled |= queue.cancel(query_id, call.caller.tenant)
        return _CANCELLED if is_cancelled else _NOT_CANCELLABLE

    async def _list_actions(self, call: FlightCall) -> None:
        for name, description in _ACTIONS.items():
            await call.send(messages.encode("ActionType", type=name, description=description))

    async def _list_flights(self, call: FlightCall) -> None:
        """Send nothing: tables are listed by GetTables of Flight SQL."""
        del call


def _read_key(metadata: Any) -> str | None:
    """Return the key of a call: that of Bearer, or the password of Basic; None without one."""
    given = [value for name, value in metadata or () if name.lower() == "authorization"]
    # Two keys count as no key: the node must not choose between them.
    if len(given) != 1 or len(given[0]) > AUTHORIZATION_LENGTH_MAX:
        return None
    text = given[0] if isinstance(given[0], str) else given[0].decode("latin-1")
    kind, _, value = text.partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() != "basic":
        return None
    value = value.strip()
    try:
        # The client of Go omits the padding.
        pair = base64.b64decode(value + "=" * (-len(value) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return pair.partition(":")[2]
