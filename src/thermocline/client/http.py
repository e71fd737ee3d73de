"""Sends requests to a node; returns answers, or raises errors of the same kinds as embedded.

In:   methods, paths, bodies
Out:  JSON values, Arrow tables, open answers; errors of this package only

- Reads, and writes with an `Idempotency-Key`, are retried with a back-off until the timeout. No
  other request is sent twice.
- A request that was sent and not answered is `OutcomeUnknown`. If it only reads, it is
  `Unavailable`: it has changed nothing.
- An error answer of the node names its kind; facts and hint come with it.
- Background requests are bounded, and `close` waits for them.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
import pyarrow as pa

from thermocline import errors
from thermocline.errors import Invalid, OutcomeUnknown, ThermoclineError, Unavailable
from thermocline.format.argument import check_text

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
TRIES_MAX = 6
PAUSE_S_MAX = 5.0
CONNECT_S_MAX = 10.0
GRACE_S = 10.0
BACKGROUND_SENDS_MAX = 8

T = TypeVar("T")

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
KINDS: Mapping[str, type[ThermoclineError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ThermoclineError) and "code" in vars(kind)
}
# The classes that share the code of the class above them, each by a fact that a node sends with it.
SUBCLASSES: Mapping[tuple[str, str], type[ThermoclineError]] = {
    ("not_found", "tenant"): errors.TenantNotFound,
    ("not_found", "tables"): errors.TableNotFound,
    ("not_found", "id"): errors.EntityNotFound,
    ("not_found", "after"): errors.FeedExpired,
    ("conflict", "if_match"): errors.PreconditionFailed,
    ("overloaded", "timeout_s"): errors.QueryTimeout,
    ("overloaded", "entities_max"): errors.EntityLimitReached,
}


class Wire:
    """The HTTP connections to one node. Safe to use from many threads."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float) -> None:
        headers = {"User-Agent": "thermocline-client"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._is_closing = False
        self._pool: ThreadPoolExecutor | None = None
        self._slots = threading.BoundedSemaphore(2 * BACKGROUND_SENDS_MAX)
        timeout = httpx2.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S_MAX))
        try:
            self._http = httpx2.Client(
                base_url=self.url, headers=headers, timeout=timeout, follow_redirects=False
            )
        except (httpx2.InvalidURL, ValueError, UnicodeError) as error:
            hint = "use a URL like http://127.0.0.1:4320"
            raise Invalid("the address is not the URL of a node", hint=hint) from error

    def read_json(self, path: str, **params: Any) -> Any:
        """Return the JSON answer of a GET."""
        return _parse_json(self.send("GET", path, params=params, is_repeatable=True))

    def read_health(self, path: str) -> dict[str, Any]:
        """Return the report of a health route; a node that is not ready answers with one, too."""
        self._check_open()
        try:
            response = self._http.get(path)
        except httpx2.HTTPError as error:
            raise self.lost_error(error, is_read=True) from error
        report = _parse_json(response)
        if not isinstance(report, dict) or "status" not in report:
            raise response_error(response)
        return report

    def read_rows(self, path: str, **params: Any) -> pa.Table:
        """Return the answer of a GET as an Arrow table, with the node's types."""
        headers = {"Accept": ARROW}
        data = self.send("GET", path, params=params, headers=headers, is_repeatable=True).content
        try:
            return pa.ipc.open_stream(data).read_all()
        except pa.ArrowException as error:
            raise Unavailable("the answer cannot be read", hint="try again") from error

    def change(self, path: str, body: Any = None, *, method: str = "POST") -> Any:
        """Send a change once and return its JSON answer."""
        return _parse_json(self.send(method, path, json_body=body))

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json_body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        is_repeatable: bool = False,
        is_read: bool = False,
    ) -> httpx2.Response:
        """Send a request, with retries if `is_repeatable`, and return its successful answer.

        `is_read` says that the request changes nothing, even if its method is POST.
        """
        self._check_open()
        sent = dict(headers or {})
        if content is None and method != "GET":
            content, sent["Content-Type"] = (
                json_text({} if json_body is None else json_body),
                JSON,
            )
        request = self._http.build_request(
            method, path, params=_query_params(params or {}), content=content, headers=sent
        )
        until_s = time.monotonic() + self.timeout_s
        for count in range(1, TRIES_MAX + 1):
            error, wait_s = self._try_once(request, is_read=is_read or method == "GET")
            if not isinstance(error, ThermoclineError):
                return error
            pause_s = _pause_s(count) if wait_s is None else wait_s
            is_last = count == TRIES_MAX or time.monotonic() + pause_s > until_s
            is_passing = isinstance(error, errors.Overloaded | Unavailable)
            is_final = not is_passing or isinstance(error, errors.QueryTimeout)
            if is_final or is_last or not is_repeatable:
                raise error
            time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _try_once(
        self, request: httpx2.Request, *, is_read: bool
    ) -> tuple[httpx2.Response | ThermoclineError, float | None]:
        """Return the successful answer, or the error and the node's `Retry-After`."""
        try:
            response = self._http.send(request)
        except httpx2.HTTPError as error:
            return self.lost_error(error, is_read=is_read), None
        if response.is_success:
            return response, None
        return response_error(response), _retry_after_s(response)

    def open_answer(self, path: str, body: Any, *, timeout_s: float = 0.0) -> httpx2.Response:
        """Send a query and return its answer with the body still to come.

        `timeout_s` is the query's timeout, which the node enforces; the client waits longer.
        """
        self._check_open()
        headers = {"Accept": ARROW, "Content-Type": JSON}
        wait_s = max(self.timeout_s, timeout_s + GRACE_S)
        request = self._http.build_request(
            "POST",
            path,
            content=json_text(body),
            headers=headers,
            timeout=httpx2.Timeout(wait_s, connect=min(self.timeout_s, CONNECT_S_MAX)),
        )
        try:
            response = self._http.send(request, stream=True)
            if response.is_success:
                return response
            response.read()
        except httpx2.HTTPError as error:
            raise self.lost_error(error, is_read=True) from error
        raise response_error(response)

    def open_stream(self, path: str, quiet_s_max: float, **params: Any) -> httpx2.Response:
        """Return an answer without an end that is known, with the body still to come.

        Reading it fails when nothing comes for `quiet_s_max`.
        """
        self._check_open()
        request = self._http.build_request(
            "GET",
            path,
            params=_query_params(params),
            timeout=httpx2.Timeout(quiet_s_max, connect=min(self.timeout_s, CONNECT_S_MAX)),
        )
        try:
            response = self._http.send(request, stream=True)
            if response.is_success:
                return response
            response.read()
        except httpx2.HTTPError as error:
            raise self.lost_error(error, is_read=True) from error
        raise response_error(response)

    def lost_error(self, error: httpx2.HTTPError, *, is_read: bool) -> ThermoclineError:
        """Return the error of a request that was not answered."""
        facts = {"url": self.url, "why": type(error).__name__}
        if isinstance(error, _NOT_SENT):
            hint = "check that the node runs and that this is its address"
            return _with_cause(error, Unavailable("the node cannot be reached", hint=hint, **facts))
        if is_read:
            hint = "try again, or allow more time"
            return _with_cause(error, Unavailable("the node did not answer", hint=hint, **facts))
        hint = "check whether the change was made before you repeat it"
        return _with_cause(error, OutcomeUnknown("the node did not answer", hint=hint, **facts))

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise _closed_error()

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Run work in the background and return its future.

        `BACKGROUND_SENDS_MAX` run at once and as many wait; past that this call blocks.
        """
        with self._lock:
            if self._is_closing:
                raise _closed_error()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(BACKGROUND_SENDS_MAX, "thermocline-send")
            pool = self._pool
        self._slots.acquire()
        try:
            doing = pool.submit(work)
        except RuntimeError as error:  # the pool was closed meanwhile
            self._slots.release()
            raise _closed_error() from error
        doing.add_done_callback(lambda _: self._slots.release())
        return doing

    def close(self) -> None:
        """Wait for the background work, and close the connections."""
        with self._lock:
            self._is_closing = True  # work submitted before is still done
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        self._http.close()


def response_error(response: httpx2.Response) -> ThermoclineError:
    """Return the error in an answer."""
    try:
        return problem_error(json.loads(response.content))
    except (ValueError, KeyError, TypeError, AttributeError):
        hint = "check the address, and proxies between the client and the node"
        return Unavailable(
            "the answer does not come from a node", hint=hint, status=response.status_code
        )


def problem_error(problem: Mapping[str, Any]) -> ThermoclineError:
    """Return the error of a problem document, of the kind that an embedded lake raises."""
    code = problem["code"]
    facts = {k: v for k, v in (problem.get("facts") or {}).items() if k not in ("hint", "message")}
    if problem.get("problems"):
        facts["problems"] = problem["problems"]
    subclasses = (SUBCLASSES[code, fact] for fact in facts if (code, fact) in SUBCLASSES)
    kind = next(subclasses, KINDS.get(code, ThermoclineError))
    if kind is ThermoclineError:
        facts["request_id"] = problem.get("request_id", "")
    return kind(str(problem["detail"]), hint=str(problem.get("hint", "")), **facts)


def json_text(value: Any) -> bytes:
    """Return strict JSON."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        hint = "use texts, numbers, times and lists of them"
        raise Invalid("a value cannot be sent", hint=hint, why=str(error)) from error


def quote_part(name: str) -> str:
    """Return a name quoted as one part of a URL path."""
    if not check_text(name, "name"):
        raise Invalid("a name is empty", hint="pass a name", argument="name")
    return quote(name, safe="")


def _query_params(params: Mapping[str, Any]) -> dict[str, str]:
    words = {True: "true", False: "false"}
    return {
        name: words[value] if isinstance(value, bool) else str(value)
        for name, value in params.items()
        if value is not None
    }


def _parse_json(response: httpx2.Response) -> Any:
    if not response.content:
        return None
    try:
        return json.loads(response.content)
    except ValueError as error:
        hint = "check the address, and proxies between the client and the node"
        raise Unavailable("the answer does not come from a node", hint=hint) from error


def _closed_error() -> Unavailable:
    return Unavailable("the lake is closed", hint="connect again")


def _with_cause(cause: Exception, error: ThermoclineError) -> ThermoclineError:
    error.__cause__ = cause
    return error


def _pause_s(count: int) -> float:
    longest_s = min(0.1 * 2**count, PAUSE_S_MAX)
    return random.uniform(longest_s / 2, longest_s)  # noqa: S311  so that retries spread out


def _retry_after_s(response: httpx2.Response) -> float | None:
    given = response.headers.get("retry-after", "")
    return min(float(given), PAUSE_S_MAX) if given.isdecimal() else None
