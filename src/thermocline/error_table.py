"""What each interface answers for an error: HTTP status, OTLP status, gRPC codes, exit code, wait.

In:   an error
Out:  its row of the table; the seconds to wait before a retry

- A class without a row has the row of the class above it. An exception of another package is a bug,
  and has the row of `ThermoclineError`.
- An OTLP client sends again after 429, 503 or `UNAVAILABLE`, and drops its rows after any other
  answer. So an error that the request does not cause is 503 and `UNAVAILABLE`, never 500: the
  client has the only copy. A missing tenant is the client's error; anything else that is missing,
  such as a file, is the node's.
- A client of Flight SQL asks and never sends rows, so its codes are those that gRPC has for each
  kind of error.
- A query past its timeout is 504: an immediate retry does not help, and neither do fewer requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from thermocline.errors import (
    BodyTooLarge,
    Conflict,
    Corruption,
    FeedExpired,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    PreconditionFailed,
    QueryCancelled,
    QueryTimeout,
    TenantNotFound,
    ThermoclineError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 5, 7, 8
UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 12, 14, 16
CANCELLED, DEADLINE_EXCEEDED, ABORTED, INTERNAL, DATA_LOSS = 1, 4, 10, 13, 15
RETRY_AFTER_S_MIN, RETRY_AFTER_S_MAX = 1, 5  # OTLP clients stop retrying after 10


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The answer of each interface for an error of one class."""

    http_status: int
    otlp_status: int
    grpc_code: int
    exit_code: int
    flight_code: int

    @property
    def is_retried(self) -> bool:
        """Whether the answer asks a client of the HTTP API to try again."""
        return self.http_status in (429, 503)

    @property
    def is_retried_by_otlp(self) -> bool:
        """Whether the answer asks an OTLP client to try again, so that it keeps its rows."""
        return self.grpc_code == UNAVAILABLE


ERROR_TABLE: Mapping[type[ThermoclineError], ErrorAnswer] = {
    #                             HTTP OTLP  gRPC              exit  Flight SQL
    ThermoclineError: ErrorAnswer(500, 503, UNAVAILABLE, 1, INTERNAL),
    Invalid: ErrorAnswer(400, 400, INVALID_ARGUMENT, 2, INVALID_ARGUMENT),
    BodyTooLarge: ErrorAnswer(413, 413, RESOURCE_EXHAUSTED, 2, INVALID_ARGUMENT),
    Unauthenticated: ErrorAnswer(401, 401, UNAUTHENTICATED, 9, UNAUTHENTICATED),
    Forbidden: ErrorAnswer(403, 403, PERMISSION_DENIED, 9, PERMISSION_DENIED),
    NotFound: ErrorAnswer(404, 503, UNAVAILABLE, 3, NOT_FOUND),
    TenantNotFound: ErrorAnswer(404, 404, NOT_FOUND, 3, NOT_FOUND),
    FeedExpired: ErrorAnswer(410, 503, UNAVAILABLE, 3, NOT_FOUND),
    Conflict: ErrorAnswer(409, 503, UNAVAILABLE, 4, ABORTED),
    PreconditionFailed: ErrorAnswer(412, 503, UNAVAILABLE, 4, ABORTED),
    Overloaded: ErrorAnswer(429, 429, UNAVAILABLE, 5, RESOURCE_EXHAUSTED),
    QueryTimeout: ErrorAnswer(504, 429, UNAVAILABLE, 5, DEADLINE_EXCEEDED),
    Unavailable: ErrorAnswer(503, 503, UNAVAILABLE, 6, UNAVAILABLE),
    QueryCancelled: ErrorAnswer(503, 503, UNAVAILABLE, 6, CANCELLED),
    Unsupported: ErrorAnswer(501, 503, UNAVAILABLE, 7, UNIMPLEMENTED),
    Corruption: ErrorAnswer(500, 503, UNAVAILABLE, 8, DATA_LOSS),
}


def find_answer(error: BaseException) -> ErrorAnswer:
    """Return the row of an error's class, or of the nearest class above it."""
    for kind in type(error).__mro__:
        if kind in ERROR_TABLE:
            return ERROR_TABLE[kind]
    return ERROR_TABLE[ThermoclineError]


def retry_after_s(error: BaseException) -> int:
    """Return how long to wait before a retry: its `retry_after_s`, at least 1, at most 5."""
    wish = error.facts.get("retry_after_s") if isinstance(error, ThermoclineError) else None
    wish_s = int(wish) if isinstance(wish, int | float) else RETRY_AFTER_S_MIN
    return min(max(wish_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)
