"""The HTTP status of every error kind.

In:   an error
Out:  a status code; seconds to wait before a retry, where one helps

- The kind decides, and two facts: a query past its time is a gateway's timeout, because trying
  again at once is no help and fewer requests are none either. A conflict with the version that a
  caller said to have seen is a failed precondition.
- What is no error of this package is 500, and whoever answers says nothing of it.
"""

from thermocline.errors import (
    BodyTooLarge,
    Conflict,
    Corruption,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
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
    (Conflict, 409),
    (Overloaded, 429),
    (Unavailable, 503),
    (Unsupported, 501),
    (Corruption, 500),
)
TIMEOUT_STATUS = 504
PRECONDITION_STATUS = 412
RETRY_AFTER_S = range(1, 6)


def status_of(error: BaseException) -> int:
    """Return the status that tells this error; 500 for one that is not ours."""
    if isinstance(error, Overloaded) and "timeout_s" in error.facts:
        return TIMEOUT_STATUS
    if isinstance(error, Conflict) and "if_match" in error.facts:
        return PRECONDITION_STATUS
    for kind, status in STATUSES:
        if isinstance(error, kind):
            return status
    return 500


def retry_after_s(error: BaseException) -> int | None:
    """Return how long to wait before trying again, 1 to 5 s; None where a retry is no help."""
    if status_of(error) not in (429, 503):
        return None
    facts = error.facts if isinstance(error, ThermoclineError) else {}
    wish = facts.get("retry_after_s", RETRY_AFTER_S[0])
    wish_s = int(wish) if isinstance(wish, int | float) else RETRY_AFTER_S[0]
    return min(max(wish_s, RETRY_AFTER_S[0]), RETRY_AFTER_S[-1])
