"""Maps errors to the answers of both OTLP protocols: status, code, and when to try again.

In:   an error
Out:  a `Verdict`

- A client sends again after 429, 502, 503, 504 or `UNAVAILABLE`, and drops its rows after any other
  answer. So an error that the request does not cause is 503 and `UNAVAILABLE`, never 500: the
  client has the only copy. A missing tenant is the client's error (404); any other `NotFound` is
  internal and becomes 503.
- A wait is 1 to 5 seconds: clients give up after 10.
- For a client's error the message says what to fix. For an error of the node it says only the
  kind.
"""

from dataclasses import dataclass

from thermocline.errors import (
    BodyTooLarge,
    Forbidden,
    Invalid,
    Overloaded,
    TenantNotFound,
    ThermoclineError,
    Unauthenticated,
)

RETRY_AFTER_S = (1, 5)
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 5, 7, 8
UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 12, 14, 16

_CLIENT_FAULTS: tuple[tuple[type[ThermoclineError], int, int], ...] = (
    (BodyTooLarge, 413, RESOURCE_EXHAUSTED),  # before `Invalid`, which it is
    (Invalid, 400, INVALID_ARGUMENT),
    (Unauthenticated, 401, UNAUTHENTICATED),
    (Forbidden, 403, PERMISSION_DENIED),
    (TenantNotFound, 404, NOT_FOUND),
)


@dataclass(frozen=True, slots=True)
class OtlpStatus:
    """An error in the terms of both protocols; without `retry_after_s` it is final."""

    status: int
    code: int
    message: str
    retry_after_s: int | None = None


def otlp_status(error: BaseException) -> OtlpStatus:
    """Return the answer for an error."""
    for kind, status, code in _CLIENT_FAULTS:
        if isinstance(error, kind):
            return OtlpStatus(status, code, str(error))
    low, high = RETRY_AFTER_S
    if not isinstance(error, ThermoclineError):
        return OtlpStatus(503, UNAVAILABLE, "the node cannot take this now", low)
    wish = error.facts.get("retry_after_s", low)
    wait_s = min(max(int(wish), low), high) if isinstance(wish, int | float) else low
    status = 429 if isinstance(error, Overloaded) else 503
    return OtlpStatus(status, UNAVAILABLE, error.message, wait_s)
