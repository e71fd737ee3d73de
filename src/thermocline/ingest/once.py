"""The requests of one table that were taken already, so that a resend of one does nothing.

In:   what a client names its request by
Out:  a key of bounded length; whether the request is new, and what came of it otherwise

- Where nobody knows what came of a request, the journal and the log are asked at the next one.
- Of two that come at once, one is taken and the other one waits for what comes of it. A request
  that failed may be sent again.
- What is known is what the journal and the table's log know, so a restart changes nothing. The
  last `REQUESTS_KEPT_MAX` are known; an older one would be taken again.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from thermocline.errors import Invalid, OutcomeUnknown
from thermocline.format.argument import check_text
from thermocline.format.state import REQUESTS_KEPT_MAX

REQUEST_ID_LENGTH_MAX = 256
_KEY_BYTES = 16


def request_key(request_id: str) -> str:
    """Return the key that stands for a client's name of a request; `Invalid` for no name."""
    if not 0 < len(check_text(request_id, "request_id")) <= REQUEST_ID_LENGTH_MAX:
        raise Invalid(
            "an idempotency key is empty or too long",
            hint="use a random id, such as a UUID, for each request",
            length=len(request_id),
            length_max=REQUEST_ID_LENGTH_MAX,
        )
    return hashlib.blake2b(request_id.encode(), digest_size=_KEY_BYTES).hexdigest()


class Once:
    """What is known of a table's requests; `load` is asked once, when it is first needed."""

    def __init__(self, load: Callable[[], Mapping[str, int]]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._known: dict[str, int] | None = None
        self._pending: dict[str, Future[int]] = {}

    def begin(self, key: str) -> "Future[int] | None":
        """Take a request on, and return None; or return what comes of it, where it is known.

        Whoever takes one on calls `end` in any case.
        """
        with self._lock:
            if self._known is None:
                self._known = dict(self._load())
            if key in self._known:
                done = _promise()
                done.set_result(self._known[key])
                return done
            if key in self._pending:
                return self._pending[key]
            self._pending[key] = _promise()
            return None

    def end(self, key: str, outcome: "Future[int]") -> None:
        """Say what came of a request, to everybody who waits for it too."""
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


def _promise() -> "Future[int]":
    """Return a future that nobody can cancel: others wait for what comes of it, too."""
    future: Future[int] = Future()
    future.set_running_or_notify_cancel()
    return future
