"""Errors as problem documents (RFC 9457) that tell a stranger nothing about the machine.

In:   an error, a request's id
Out:  a `Problem`, its bytes, the headers that go with it

- An error of this package says its message, hint and facts; any other says only that it happened.
- No absolute path, key or traceback leaves: texts are scrubbed whatever fact they are in. A path
  keeps its last part, because an answer that names a missing file must name it.
- What is wrong with a document is told pointer by pointer, as it is: that is the caller's own.
- A problem has the same shape on every route, and before any route is found.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from thermocline.errors import Invalid, ThermoclineError
from thermocline.server.api.shape import Problem
from thermocline.server.status import retry_after_s, status_of

PROBLEM_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:thermocline:error:"
TEXT_CHARACTERS_MAX = 2_000
VALUES_MAX = 100
DEPTH_MAX = 4

TITLES = {
    400: "the request cannot be right",
    401: "a valid key is needed",
    403: "the key may not do this",
    404: "there is no such thing",
    405: "this method is not for this address",
    406: "no such form of answer",
    408: "the request came too slowly",
    409: "something else was first",
    412: "it is not the version that was seen",
    413: "the body is too large",
    415: "no such form of request",
    421: "this node does not answer to that name",
    429: "a limit is reached",
    500: "the node has a problem",
    501: "a newer Thermocline is needed",
    503: "try again later",
    504: "the query took too long",
}
_KEY = re.compile(r"tck_[A-Za-z0-9]{1,16}_[A-Za-z0-9_-]{8,}")
_WORD = r"[^\s/'\"`,;:()\[\]{}<>]"
_PATH = re.compile(rf"(?<![\w.:<~/-])/(?!(?:api|health)/)(?:{_WORD}+/)+(?={_WORD})")
_PRIVATE = frozenset({"folder", "root", "pid", "process", "owner", "host"})
"""Facts that are about the machine by their name."""
_POINTERS = frozenset({"id", "field", "pointer", "property"})
"""Facts that came with the request: a JSON pointer is no path of a machine."""


class Refused(Invalid):
    """A request that HTTP has a status of its own for: wrong method, type, name or pace."""

    def __init__(self, message: str, *, status: int = 400, hint: str = "", **facts: Any) -> None:
        super().__init__(message, hint=hint, **facts)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return _refused, (self.message, self.status, self.hint, self.facts)


def _refused(message: str, status: int, hint: str, facts: dict[str, Any]) -> Refused:
    return Refused(message, status=status, hint=hint, **facts)


def problem_of(error: BaseException, request_id: str = "") -> Problem:
    """Return what may be told of an error."""
    status = error.status if isinstance(error, Refused) else status_of(error)
    if not isinstance(error, ThermoclineError):
        return Problem(
            f"{TYPE_PREFIX}internal",
            TITLES[500],
            500,
            "something went wrong inside the node",
            "internal",
            "look for the request id in the node's log",
            request_id=request_id,
        )
    return Problem(
        TYPE_PREFIX + error.code,
        TITLES.get(status, "an error"),
        status,
        scrubbed(error.message),
        error.code,
        scrubbed(error.hint),
        {
            name: _without_keys(fact) if name in _POINTERS else _told(fact)
            for name, fact in error.facts.items()
            if name not in _PRIVATE and name != "problems"
        },
        request_id,
        _problems(error),
    )


def _problems(error: ThermoclineError) -> list[dict[str, str]]:
    """Return what is wrong with a document: pointer, and expected and got, or the reason."""
    found = error.facts.get("problems")
    if not isinstance(found, list):
        return []
    return [{name: _without_keys(text) for name, text in one.items()} for one in found[:VALUES_MAX]]


def _without_keys(value: Any) -> str:
    text = str(value).encode("utf-8", "replace").decode()
    return _KEY.sub("tck_...", text[:TEXT_CHARACTERS_MAX])


def scrubbed(text: str) -> str:
    """Return a text without keys and without the folders of absolute paths."""
    cut = text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
    return _PATH.sub(".../", _KEY.sub("tck_...", cut))


def problem_bytes(problem: Problem) -> bytes:
    """Return the document."""
    return msgspec.json.encode(problem)


def problem_headers(error: BaseException, problem: Problem) -> dict[str, str]:
    """Return the headers that a problem needs beside its type."""
    headers: dict[str, str] = {}
    wait_s = retry_after_s(error)
    if wait_s is not None:
        headers["Retry-After"] = str(wait_s)
    if problem.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="thermocline"'
    return headers


def _told(fact: Any, depth: int = 0) -> Any:
    """Return a fact as JSON can hold it, scrubbed, and within limits."""
    if fact is None or isinstance(fact, bool):
        return fact
    if isinstance(fact, int):
        return fact if -(1 << 63) <= fact < 1 << 64 else str(fact)
    if isinstance(fact, float):
        return fact if math.isfinite(fact) else str(fact)
    if depth < DEPTH_MAX and isinstance(fact, Mapping):
        pairs = list(fact.items())[:VALUES_MAX]
        return {scrubbed(str(key)): _told(value, depth + 1) for key, value in pairs}
    is_list = isinstance(fact, Sequence | set | frozenset) and not isinstance(fact, str | bytes)
    if depth < DEPTH_MAX and is_list:
        return [_told(value, depth + 1) for value in list(fact)[:VALUES_MAX]]
    return scrubbed(str(fact).encode("utf-8", "replace").decode())
