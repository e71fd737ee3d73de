"""What OpenTelemetry's clients are told of an error: status, code, and when to try again.

In:   an error
Out:  a `Verdict`

- A client sends again what gets 429, 502, 503 or 504, or `UNAVAILABLE`, and drops everything else.
  So whatever is not the request's own fault is 503 and `UNAVAILABLE`, never 500: the client has the
  only copy. What is not found is the sender's fault only where it is its tenant.
- A wait is 1 to 5 seconds: clients give up when it passes their patience of 10.
- A message says what the sender can mend. Of the node's own troubles it says only the kind.
"""

from dataclasses import dataclass

from thermocline.errors import (
    BodyTooLarge,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    ThermoclineError,
    Unauthenticated,
)

RETRY_AFTER_S = (1, 5)
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 5, 7, 8
UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 12, 14, 16

_OWN_FAULT: tuple[tuple[type[ThermoclineError], int, int], ...] = (
    (BodyTooLarge, 413, RESOURCE_EXHAUSTED),  # before `Invalid`, which it is
    (Invalid, 400, INVALID_ARGUMENT),
    (Unauthenticated, 401, UNAUTHENTICATED),
    (Forbidden, 403, PERMISSION_DENIED),
    (NotFound, 404, NOT_FOUND),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """An error as both protocols say it; without `retry_after_s` it is final."""

    status: int
    code: int
    message: str
    retry_after_s: int | None = None


def verdict(error: BaseException) -> Verdict:
    """Return what a client is told of an error."""
    for kind, status, code in _OWN_FAULT:
        if isinstance(error, kind) and not _is_of_the_node(error):
            return Verdict(status, code, str(error))
    low, high = RETRY_AFTER_S
    if not isinstance(error, ThermoclineError):
        return Verdict(503, UNAVAILABLE, "the node cannot take this now", low)
    wish = error.facts.get("retry_after_s", low)
    wait_s = min(max(int(wish), low), high) if isinstance(wish, int | float) else low
    status = 429 if isinstance(error, Overloaded) else 503
    return Verdict(status, UNAVAILABLE, error.message, wait_s)


def _is_of_the_node(error: ThermoclineError) -> bool:
    """Tell whether something of the node's own is missing, such as a file."""
    return isinstance(error, NotFound) and "tenant" not in error.facts
