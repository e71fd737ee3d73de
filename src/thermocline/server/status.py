"""The HTTP status of every error kind.

In:   an error
Out:  a status code; the seconds to wait, if a retry can help

- A query past its timeout is 504: an immediate retry does not help, and neither do fewer requests.
- Any other exception is a 500, and its details are not disclosed.
"""

from thermocline.errors import (
    BodyTooLarge,
    Conflict,
    Corruption,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    PreconditionFailed,
    QueryTimeout,
    ThermoclineError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)

STATUSES: tuple[tuple[type[ThermoclineError], int], ...] = (
    (BodyTooLarge, 413),  # before `Invalid`, which it is
    (Invalid, 400),
    (Unauthenticated, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (PreconditionFailed, 412),  # before `Conflict`, which it is
    (Conflict, 409),
    (QueryTimeout, 504),  # before `Overloaded`, which it is
    (Overloaded, 429),
    (Unavailable, 503),
    (Unsupported, 501),
    (Corruption, 500),
)
PRECONDITION_STATUS = 412
RETRY_AFTER_S = range(1, 6)


def status_of(error: BaseException) -> int:
    """Return an error's status; 500 for an exception of another package."""
    for kind, status in STATUSES:
        if isinstance(error, kind):
            return status
    return 500


def retry_after_s(error: BaseException) -> int | None:
    """Return how long to wait before a retry, 1 to 5 s; None if a retry cannot help."""
    if status_of(error) not in (429, 503):
        return None
    facts = error.facts if isinstance(error, ThermoclineError) else {}
    wish = facts.get("retry_after_s", RETRY_AFTER_S[0])
    wish_s = int(wish) if isinstance(wish, int | float) else RETRY_AFTER_S[0]
    return min(max(wish_s, RETRY_AFTER_S[0]), RETRY_AFTER_S[-1])
