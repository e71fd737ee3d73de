"""Turns errors into problem documents (RFC 9457) that disclose nothing about the machine.

In:   an error, a request's id
Out:  a `ProblemResponse`, its bytes, its headers

- An error of this package gives its message, hint and facts; any other exception only an id.
- No absolute path, key or traceback is sent: every text is scrubbed. A path keeps its last part,
  so that an error about a missing file can name it.
- Problems of a document are sent unscrubbed, each with its pointer: the document is the client's.
- A problem has the same shape on every route, and for an unknown path.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from thermocline.error_table import find_answer, retry_after_s
from thermocline.errors import Invalid, ThermoclineError
from thermocline.server.api.types.response_types import ProblemResponse
from thermocline.show.scrub import hide_keys, scrub

PROBLEM_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:thermocline:error:"
VALUES_MAX = 100
DEPTH_MAX = 4

TITLES = {
    400: "the request is invalid",
    401: "a valid key is required",
    403: "the key may not do this",
    404: "not found",
    405: "the address does not support this method",
    406: "the answer's format is not supported",
    408: "the request arrived too slowly",
    410: "changes after this position are gone",
    409: "the request conflicts with another change",
    412: "the version differs from the one in the request",
    413: "the body is too large",
    415: "the body's format is not supported",
    421: "this node does not answer to that name",
    429: "a limit is reached",
    500: "the node has an internal error",
    501: "a newer Thermocline is needed",
    503: "the node cannot answer now",
    504: "the query exceeded its timeout",
}
_PRIVATE = frozenset({"folder", "root", "pid", "process", "owner", "host"})
"""Names of facts about the machine, which are not sent."""
_POINTERS = frozenset({"id", "field", "pointer", "property"})
"""Facts from the request: a JSON pointer looks like a path but is not one of the machine."""


class HttpStatusError(Invalid):
    """An error with an explicit HTTP status: wrong method, media type, host name, slow body."""

    def __init__(self, message: str, *, status: int = 400, hint: str = "", **facts: Any) -> None:
        super().__init__(message, hint=hint, **facts)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_error, (self.message, self.status, self.hint, self.facts)


def _unpickle_error(message: str, status: int, hint: str, facts: dict[str, Any]) -> HttpStatusError:
    return HttpStatusError(message, status=status, hint=hint, **facts)


def problem_of(error: BaseException, request_id: str = "") -> ProblemResponse:
    """Return the problem document of an error."""
    status = error.status if isinstance(error, HttpStatusError) else find_answer(error).http_status
    if not isinstance(error, ThermoclineError):
        return ProblemResponse(
            f"{TYPE_PREFIX}internal",
            TITLES[500],
            500,
            "the node has an internal error",
            "internal",
            "search the node's log for the request id",
            request_id=request_id,
        )
    return ProblemResponse(
        TYPE_PREFIX + error.code,
        TITLES.get(status, "an error"),
        status,
        scrub(error.message),
        error.code,
        scrub(error.hint),
        {
            name: _without_keys(fact) if name in _POINTERS else _fact_as_json(fact)
            for name, fact in error.facts.items()
            if name not in _PRIVATE and name != "problems"
        },
        request_id,
        _problems(error),
    )


def _problems(error: ThermoclineError) -> list[dict[str, str]]:
    """Return the problems of a document: pointer, and expected and got, or the reason."""
    found = error.facts.get("problems")
    if not isinstance(found, list):
        return []
    return [{name: _without_keys(text) for name, text in one.items()} for one in found[:VALUES_MAX]]


def _without_keys(value: Any) -> str:
    text = str(value).encode("utf-8", "replace").decode()
    return hide_keys(text)


def problem_bytes(problem: ProblemResponse) -> bytes:
    """Return the document."""
    return msgspec.json.encode(problem)


def problem_headers(error: BaseException, problem: ProblemResponse) -> dict[str, str]:
    """Return the headers that a problem needs beside its type."""
    headers: dict[str, str] = {}
    if find_answer(error).is_retried:
        headers["Retry-After"] = str(retry_after_s(error))
    if problem.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="thermocline"'
    return headers


def _fact_as_json(fact: Any, depth: int = 0) -> Any:
    """Return a fact as a JSON value, scrubbed and within limits."""
    if fact is None or isinstance(fact, bool):
        return fact
    if isinstance(fact, int):
        return fact if -(1 << 63) <= fact < 1 << 64 else str(fact)
    if isinstance(fact, float):
        return fact if math.isfinite(fact) else str(fact)
    if depth < DEPTH_MAX and isinstance(fact, Mapping):
        pairs = list(fact.items())[:VALUES_MAX]
        return {scrub(str(key)): _fact_as_json(value, depth + 1) for key, value in pairs}
    is_list = isinstance(fact, Sequence | set | frozenset) and not isinstance(fact, str | bytes)
    if depth < DEPTH_MAX and is_list:
        return [_fact_as_json(value, depth + 1) for value in list(fact)[:VALUES_MAX]]
    return scrub(str(fact).encode("utf-8", "replace").decode())
