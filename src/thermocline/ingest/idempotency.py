"""Remembers the idempotency keys of a table's requests, so that a resend writes nothing.

In:   a client's idempotency key
Out:  a hash of bounded length; whether the request is new, and its outcome if it is not

- If the outcome of a request is unknown, the next request reads the journal and the log again.
- If two requests with one key arrive at the same time, one is executed and the other waits for its
  outcome. A request that failed may be sent again.
- The keys come from the journal and the table's log, so a restart changes nothing. The last
  `REQUESTS_KEPT_MAX` keys are known; a resend of an older request is written again.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from thermocline.errors import Invalid, OutcomeUnknown
from thermocline.format.argument import check_text
from thermocline.format.log.state import REQUESTS_KEPT_MAX
from thermocline.names import IDEMPOTENCY_KEY_LENGTH_MAX

_KEY_BYTES = 16


def request_key(request_id: str) -> str:
    """Return the hash of a client's idempotency key; `Invalid` when it is empty or too long."""
    if not 0 < len(check_text(request_id, "request_id")) <= IDEMPOTENCY_KEY_LENGTH_MAX:
        raise Invalid(
            "an idempotency key is empty or too long",
            hint="use a random id, such as a UUID, for each request",
            length=len(request_id),
            length_max=IDEMPOTENCY_KEY_LENGTH_MAX,
        )
    return hashlib.blake2b(request_id.encode(), digest_size=_KEY_BYTES).hexdigest()


class RequestLedger:
    """The known requests of a table; `load` is called at the first request."""

    def __init__(self, load: Callable[[], Mapping[str, int]]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._known: dict[str, int] | None = None
        self._pending: dict[str, Future[int]] = {}

    def begin(self, key: str) -> "Future[int] | None":
        """Return None for a new request, or the future outcome of a request that is known.

        After None, the caller must call `end`, whether it succeeded or failed.
        """
        with self._lock:
            if self._known is None:
                self._known = dict(self._load())
            if key in self._known:
                done = _new_future()
                done.set_result(self._known[key])
                return done
            if key in self._pending:
                return self._pending[key]
            self._pending[key] = _new_future()
            return None

    def end(self, key: str, outcome: "Future[int]") -> None:
        """Record the outcome of a request and give it to all callers that wait for it."""
        error = outcome.exception()
        with self._lock:
            waiting = self._pending.pop(key)
            if isinstance(error, OutcomeUnknown):
                self._known = None
            elif error is None and self._known is not None:
                self._known[key] = outcome.result()
                while len(self._known) > REQUESTS_KEPT_MAX:
                    del self._known[next(iter(self._known))]
        if error is None:
            waiting.set_result(outcome.result())
        else:
            waiting.set_exception(error)


def _new_future() -> "Future[int]":
    """Return a future that a caller cannot cancel, because several callers may share it."""
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    return future
