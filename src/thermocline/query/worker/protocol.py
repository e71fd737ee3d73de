"""Messages between the pool and one of its workers, over one socket, and the values in them.

In:   kinds and bytes; values; open files
Out:  the same at the other end, or `PeerGone` when the other process has ended

    offset  size  what
    0       1     kind
    1       8     length of the payload, little endian
    9       …     payload; that of `ROWS` begins with its row count in 8 bytes; that of `END` and of
                  `FAILED` with one byte, whether the worker can take another query

- The worker trusts the pool, which sends pickled values. The pool does not trust the worker, which
  evaluates a client's text: reports and errors come back as JSON, and rows as bytes.
- A message arrives completely or not at all: a socket that ends inside one raises `PeerGone`.
- Every message has a limit on its length, checked before it is sent and before it is received.
- An answer ends with `END`, which has its row count, or with `FAILED`. A closed socket never counts
  as the end of an answer.
"""

import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import orjson

from thermocline import errors
from thermocline.errors import Overloaded, ThermoclineError, Unavailable
from thermocline.query.report import QueryReport, TableReport

MESSAGE_BYTES_MAX = 256 << 20
REQUEST_BYTES_MAX = 16 << 20
FILES_PER_SEND_MAX = 128
_PARTS_PER_SEND_MAX = 512
_HEADER = struct.Struct("<BQ")
COUNT = struct.Struct("<Q")
FIT, WORN = b"f", b"w"
"""The first byte of `END` and of `FAILED`: whether the worker can take another query."""
FACT_LENGTH_MAX = 300
_KINDS: Mapping[str, type[ThermoclineError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, ThermoclineError)
}


class MessageKind(IntEnum):
    """The kind of a message; three and `BATCH` go to the worker, the others come from it."""

    REQUEST = 1
    INTERRUPT = 2
    HOT = 3
    READY = 4
    ACCEPTED = 5
    HOT_WANTED = 6
    ROWS = 7
    END = 8
    FAILED = 9
    REPORT = 10
    BATCH = 11


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker gets when it starts; `folder` is only for spilled rows."""

    memory_bytes: int
    spill_bytes: int
    threads: int
    folder: str = ""


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table that a query may name: where it is, and whether it has hot rows to request."""

    name: str
    root: str
    storage_options: Mapping[str, str] | None = field(repr=False)
    has_hot: bool


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """How the worker encodes an answer: its format, the query's id, and the most rows of it."""

    form: str
    query_id: str
    rows_max: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """One query; `tables` is None when they are the same as in the previous request.

    With a `schema` (Arrow's message of one), `query` is a condition on the batches that follow.
    With a `task`, `params` are the bytes that it takes. With an `answer`, the rows come as the
    bytes of its format instead of Arrow's.
    """

    query: str
    params: Any
    timeout_s: float
    tables: tuple[TableLocation, ...] | None
    schema: bytes | None = None
    task: str | None = None
    answer: AnswerRequest | None = None


class PeerGone(Exception):
    """The process at the other end of the socket has ended. It never leaves `query/`."""


def send(channel: socket.socket, kind: MessageKind, *parts: Any, flags: int = 0) -> None:
    """Send one message with these parts as its payload."""
    views = [memoryview(part).cast("B") for part in parts]
    length = sum(len(view) for view in views)
    if length > MESSAGE_BYTES_MAX:
        raise Overloaded(
            "a part of the answer is larger than the limit",
            hint="select shorter values",
            bytes=length,
            bytes_max=MESSAGE_BYTES_MAX,
        )
    waiting = [memoryview(_HEADER.pack(kind, length)), *(view for view in views if view)]
    try:
        while waiting:
            sent = channel.sendmsg(waiting[:_PARTS_PER_SEND_MAX], [], flags)
            while waiting and sent >= len(waiting[0]):
                sent -= len(waiting.pop(0))
            if sent:
                waiting[0] = waiting[0][sent:]
    except OSError as error:
        raise PeerGone from error


def receive(channel: socket.socket) -> tuple[MessageKind, bytearray]:
    """Return the next message; waits up to the timeout of the socket."""
    kind, length = _HEADER.unpack(_receive_exactly(channel, _HEADER.size))
    if length > MESSAGE_BYTES_MAX or kind not in MessageKind.__members__.values():
        raise PeerGone
    return MessageKind(kind), _receive_exactly(channel, length)


def _receive_exactly(channel: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    rest = memoryview(data)
    while rest:
        try:
            count = channel.recv_into(rest)
        except OSError as error:
            raise PeerGone from error
        if not count:
            raise PeerGone
        rest = rest[count:]
    return data


def send_files(channel: socket.socket, files: Sequence[int]) -> None:
    """Send open files; the message before them has their number."""
    try:
        for start in range(0, len(files), FILES_PER_SEND_MAX):
            socket.send_fds(channel, [b"."], list(files[start : start + FILES_PER_SEND_MAX]))
    except OSError as error:
        raise PeerGone from error


def receive_files(channel: socket.socket, count: int) -> list[int]:
    """Return the announced open files; fewer when this process reached its limit of open files."""
    found: list[int] = []
    for start in range(0, count, FILES_PER_SEND_MAX):
        wanted = min(FILES_PER_SEND_MAX, count - start)
        try:
            data, files, _, _ = socket.recv_fds(channel, 1, wanted)
        except OSError as error:
            raise PeerGone from error
        if not data:
            raise PeerGone
        found += files
    return found


def pack_report(report: QueryReport, *, is_truncated: bool | None = None) -> bytes:
    """Return a report as bytes for the pool, with whether the answer has only the first rows."""
    return orjson.dumps({"tables": dict(report.tables), "is_truncated": is_truncated})


def unpack_report(data: bytes | bytearray) -> tuple[QueryReport, bool | None]:
    """Return what `pack_report` packed; `PeerGone` if it is something else."""
    try:
        found = orjson.loads(data)
        tables = {str(name): TableReport(**one) for name, one in found["tables"].items()}
        return QueryReport(tables), found["is_truncated"]
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError) as error:
        raise PeerGone from error


def pack_error(error: ThermoclineError) -> bytes:
    """Return an error as bytes for the pool, with its kind, message, hint and facts."""
    kind = next(one.__name__ for one in type(error).__mro__ if one.__name__ in _KINDS)
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    fields = {"kind": kind, "message": error.message, "hint": error.hint}
    try:
        return orjson.dumps({**fields, "facts": error.facts}, default=str, option=options)
    except (TypeError, ValueError):  # a text that is not Unicode, or an integer beyond 64 bits
        facts = {name: ascii(fact)[:FACT_LENGTH_MAX] for name, fact in error.facts.items()}
        fields = {name: text.encode("utf-8", "replace").decode() for name, text in fields.items()}
        return orjson.dumps({**fields, "facts": facts})


def unpack_error(data: bytes | bytearray) -> ThermoclineError:
    """Return the error of `pack_error`; `PeerGone` if the bytes are something else."""
    try:
        found = orjson.loads(data)
        facts = {str(name): fact for name, fact in found["facts"].items()}
        return _KINDS[found["kind"]](str(found["message"]), hint=str(found["hint"]), **facts)
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError) as error:
        raise PeerGone from error


def pack_value(value: Any) -> bytes:
    """Return a value as bytes for a worker; an error keeps kind, message and facts."""
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError):
        if not isinstance(value, ThermoclineError):
            raise
        facts = {name: str(fact) for name, fact in value.facts.items()}
        return pickle.dumps(type(value)(value.message, hint=value.hint, **facts))


def unpack_value(data: bytes | bytearray) -> Any:
    """Return the value of `pack_value`; only a worker calls it, with what its pool sent."""
    return pickle.loads(data)  # noqa: S301  # from the process that started this one


def lost_files_error() -> Unavailable:
    """Return the error of a process that could not open all files it was sent."""
    return Unavailable(
        "too many files are open for the hot rows of this query",
        hint="raise the limit of open files (ulimit -n)",
    )
