"""Runs a write at most once for each idempotency key, and answers a retry with the first results.

In:   a client's idempotency key, the operations, the transaction that will write them
Out:  the results of the operations: of this run, or of the run that was committed before

- The key and the results are committed in the transaction of the write: either all is committed or
  nothing. So a retry after a lost answer, a crash or a restart writes nothing twice.
- The key is claimed by an insert before anything else: of two concurrent requests with one key, the
  second waits until the first commits or fails, and then answers with its results or runs.
- A write of which nothing was done has left no key: a retry runs it again.
- A key that comes with other operations than before is `Invalid`: its client has mixed up keys.
- A key is remembered for `KEPT_S`; older ones are removed.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from thermocline import errors
from thermocline.contract.document.text import decode, encode_text
from thermocline.errors import Invalid, OutcomeUnknown, ThermoclineError
from thermocline.hot.postgres.session.connect import Connection
from thermocline.hot.postgres.store.operation import Operation, OperationKind, WriteResult
from thermocline.names import parse_idempotency_key

KEPT_S = 86_400.0
REMOVED_MAX = 10_000
_DIGEST_BYTES = 16

T = TypeVar("T")
Results = list[WriteResult | ThermoclineError]


class KeyReused(Invalid):
    """The idempotency key came with other operations before."""


@dataclass(frozen=True, slots=True)
class EntityWriteRequest:
    """A write with an idempotency key; the fingerprint identifies its operations."""

    key: str
    fingerprint: bytes

    def key_of(self, place: int) -> str:
        """Return the key of one of its operations, if each one runs in a separate transaction."""
        digest = hashlib.blake2b(self.key.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        return f"{digest}#{place}"


def parse_request(
    idempotency_key: str | None, operations: Sequence[tuple[str, Operation]]
) -> EntityWriteRequest | None:
    """Return the request of operations, each with its type; None without a key.

    Keys that were generated for new entities do not count: a retry generates others.
    """
    if idempotency_key is None:
        return None
    parse_idempotency_key(idempotency_key)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for type_name, one in operations:
        key = "" if one.has_new_key else one.id
        head = f"{type_name}\0{one.kind.verb}\0{key}\0{one.if_match}\0".encode()
        digest.update(head + _document_bytes(one) + b"\0")
    return EntityWriteRequest(idempotency_key, digest.digest())


def _document_bytes(operation: Operation) -> bytes:
    """Return a document in one form for JSON text and values; its own bytes if it is not JSON."""
    try:
        return encode_text(operation.value).encode()
    except (Invalid, TypeError, ValueError, RecursionError):
        document = operation.document
        return document if isinstance(document, bytes) else repr(document).encode()


def run_once(
    connection: Connection, request: EntityWriteRequest | None, write: Callable[[], Results]
) -> Results:
    """Write in the running transaction, unless the request's key is known; return the results."""
    if request is None:
        return write()
    claimed = connection.execute(
        "insert into write_request (request, fingerprint) values (%s, %s) "
        "on conflict (request) do nothing returning true",
        [request.key, request.fingerprint],
    ).fetchone()
    if claimed is None:
        return _read_results(connection, request)
    results = write()
    if not any(isinstance(one, WriteResult) for one in results):
        # Nothing was written, so a retry may run again: the reason may have gone.
        connection.execute("delete from write_request where request = %s", [request.key])
        return results
    connection.execute(
        "update write_request set results = %s where request = %s",
        [encode_text([_result_json(one) for one in results]), request.key],
    )
    return results


def repeat_if_unknown(request: EntityWriteRequest | None, write: Callable[[], T]) -> T:
    """Write; if the outcome is unknown and the request has a key, ask once more by repeating it."""
    try:
        return write()
    except OutcomeUnknown:
        if request is None:
            raise
    return write()


def remove_old_requests(connection: Connection, kept_s: float = KEPT_S) -> int:
    """Remove the keys that are older than this, at most `REMOVED_MAX`; return how many."""
    return connection.execute(
        "delete from write_request where request in (select request from write_request "
        "where made_at < clock_timestamp() - make_interval(secs => %s) "
        "order by made_at limit %s for update skip locked)",
        [kept_s, REMOVED_MAX],
    ).rowcount


def _read_results(connection: Connection, request: EntityWriteRequest) -> Results:
    """Return the results that were committed with the key; `KeyReused` for other operations."""
    row = connection.execute(
        "select fingerprint, results::text from write_request where request = %s", [request.key]
    ).fetchone()
    if row is None:
        hint = "send the request again"
        raise errors.Conflict("the idempotency key was removed meanwhile", hint=hint)
    if bytes(row[0]) != request.fingerprint:
        raise KeyReused(
            "the idempotency key was used for another request",
            hint="use a new key for each request, and the same key only for its retries",
            idempotency_key=request.key[:80],
        )
    return [_parse_result(one) for one in decode(row[1].encode())]


def _result_json(result: WriteResult | ThermoclineError) -> Any:
    if isinstance(result, WriteResult):
        return [result.id, result.ver, result.deed.value]
    facts = {name: _fact_json(value) for name, value in result.facts.items()}
    kind = type(result).__name__
    return {"kind": kind, "message": result.message, "hint": result.hint, "facts": facts}


def _fact_json(value: Any) -> Any:
    try:
        encode_text(value)
    except (Invalid, TypeError, ValueError, RecursionError):
        return str(value)
    return value


def _parse_result(given: Any) -> WriteResult | ThermoclineError:
    if isinstance(given, list):
        key, ver, deed = given
        return WriteResult(key, ver, OperationKind(deed))
    kind = getattr(errors, given["kind"], ThermoclineError)
    return kind(given["message"], hint=given["hint"], **given["facts"])
