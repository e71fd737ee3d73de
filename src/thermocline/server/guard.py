"""Who asks, and what they may do: from a request's `Authorization` header to a caller.

In:   the header, the scope that is needed
Out:  a `Caller`; `Unauthenticated`, `Forbidden`; `Unavailable` while the keys cannot be read

- The keys are looked at again at most `LOOK_S` after another process changed them.
- A node without any key serves everybody where only this machine reaches it. As soon as there has
  been a key there is no way back: not by revoking it, not by removing the file while it runs, not
  by removing it while it is stopped (`keys.py`).
- Keys that cannot be read are not guessed: what was known serves for `STALE_S`, then nobody.
- What is said of a wrong key tells nothing about the right one.
"""

import threading
import time as clock
from collections.abc import Callable
from dataclasses import dataclass

from thermocline.config import NodeSettings
from thermocline.errors import (
    Forbidden,
    Invalid,
    ThermoclineError,
    Unauthenticated,
    Unavailable,
)
from thermocline.lake.tenants import DEFAULT_TENANT
from thermocline.server.audit import Audit
from thermocline.server.keys import NS_PER_S, SCOPES, Key, Keys, KeyStore
from thermocline.server.log import Log

LOOK_S = 0.25
STALE_S = 5.0
HEADER_LENGTH_MAX = 256
ANONYMOUS_ID = "anonymous"
_HINT = "send the header `Authorization: Bearer tck_…` with a key that is valid"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever asks: the tenant they are of, the key they showed, what it allows."""

    tenant: str
    key_id: str
    scopes: frozenset[str]

    @property
    def is_operator(self) -> bool:
        """Whether they may do what concerns all tenants: make them, and keys for them."""
        return self.tenant == DEFAULT_TENANT and "admin" in self.scopes


ANONYMOUS = Caller(DEFAULT_TENANT, ANONYMOUS_ID, frozenset(SCOPES))


class Guard:
    """Checks keys. Safe to use from any thread; a check takes microseconds."""

    def __init__(
        self,
        store: KeyStore,
        audit: Audit | None = None,
        log: Log | None = None,
        *,
        may_be_open: bool = True,
        now_s: Callable[[], float] = clock.monotonic,
        now_ns: Callable[[], int] = clock.time_ns,
    ) -> None:
        self.store = store
        self._audit = audit
        self._log = log
        self._may_be_open = may_be_open
        self._now_s = now_s
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._keys = Keys()
        self._callers: dict[str, Caller] = {}
        self._has_had_keys = False
        self._stamp: tuple[int, ...] | None = None
        self._is_fresh = False
        self._looked_s = self._good_s = now_s() - 2 * STALE_S
        self._trouble: ThermoclineError | None = None
        self._used_ns: dict[str, int] = {}
        self._used_written: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether everybody is served, because there has never been a key."""
        self._look()
        return self._may_be_open and not self._has_had_keys and self._trouble is None

    def caller(self, authorization: str | None, scope: str, *, peer: str = "") -> Caller:
        """Return who asks; `Unauthenticated` without a valid key, `Forbidden` without the scope."""
        assert scope in SCOPES, scope
        if self.is_open:
            return ANONYMOUS
        try:
            return self._checked(authorization, scope)
        except (Unauthenticated, Forbidden) as error:
            if self._audit is not None:
                actor = str(error.facts.get("key_id", "unknown"))
                self._audit.refused(error.code, actor, scope=scope, peer=peer)
            raise

    def _checked(self, authorization: str | None, scope: str) -> Caller:
        if self._trouble is not None and self._now_s() - self._good_s > STALE_S:
            hint = "look at the node's log; its file of keys cannot be read"
            raise Unavailable("the keys cannot be read", hint=hint, retry_after_s=5)
        if not authorization:
            raise Unauthenticated("there is no key in the request", hint=_HINT)
        kind, _, text = authorization[: HEADER_LENGTH_MAX + 1].partition(" ")
        key = self._keys.found(text.strip())
        if key is None or kind.lower() != "bearer" or len(authorization) > HEADER_LENGTH_MAX:
            raise Unauthenticated("the key is not valid", hint=_HINT)
        now_ns = self._now_ns()
        state = key.state(now_ns)
        if state != "valid":
            hint = "ask an administrator for another key"
            raise Unauthenticated(f"the key is {state}", hint=hint, key_id=key.key_id)
        self._used_ns[key.key_id] = now_ns
        if scope not in key.scopes:
            hint = "use a key with this scope"
            raise Forbidden("the key may not do this", hint=hint, key_id=key.key_id, scope=scope)
        return self._callers.get(key.key_id) or _caller(key)

    def reload(self) -> None:
        """Look at the keys now; what is wrong with them is raised."""
        self._looked_s = self._now_s() - 2 * LOOK_S
        self._stamp, self._is_fresh = None, False
        self._look()
        if self._trouble is not None:
            raise self._trouble

    def _look(self) -> None:
        if self._now_s() - self._looked_s < LOOK_S:
            return
        with self._lock:
            now_s = self._now_s()
            if now_s - self._looked_s < LOOK_S:
                return
            try:
                self._take(self.store.stamp())
            except ThermoclineError as error:
                if self._trouble is None and self._log is not None:
                    self._log.error("keys unreadable", error=error)
                self._trouble = error
            else:
                self._trouble, self._good_s = None, now_s
            self._looked_s = now_s

    def _take(self, stamp: tuple[int, ...] | None) -> None:
        if self._is_fresh and stamp == self._stamp:
            return
        # A file that is removed while the node runs ends every key at once.
        keys = Keys() if stamp is None and self._has_had_keys else self.store.read()
        self._callers = {key.key_id: _caller(key) for key in keys.by_id.values()}
        self._keys = keys
        self._has_had_keys = self._has_had_keys or bool(keys.by_id)
        # A file that is younger than its clock can tell may change without its stamp changing.
        is_settled = stamp is None or self._now_ns() - stamp[0] > NS_PER_S
        self._stamp, self._is_fresh = stamp, is_settled

    def write_uses(self) -> None:
        """Write down when keys were last used; for a thread, every so often."""
        used = dict(self._used_ns)
        if used != self._used_written:
            self.store.note_uses(used)
            self._used_written = used


def _caller(key: Key) -> Caller:
    return Caller(key.tenant, key.key_id, key.scopes)


def exposed(node: NodeSettings) -> list[str]:
    """Return the listeners that other machines can reach, by the names of their settings."""
    return [name for name, address in node.listeners().items() if not address.is_loopback]


def check_exposure(node: NodeSettings, *, has_keys: bool) -> None:
    """Refuse to be reached by other machines without keys and TLS, unless told otherwise."""
    names = exposed(node)
    has_tls = bool(node.tls_certificate)
    if not names or node.allow_insecure or (has_keys and has_tls):
        return
    missing = [*([] if has_keys else ["keys"]), *([] if has_tls else ["TLS"])]
    raise Invalid(
        "other machines could reach the node unprotected",
        hint="make a key (`thermocline key create --first`) and set tls_certificate and tls_key; "
        "or say --allow-insecure where something else protects it",
        listeners=names,
        missing=missing,
    )
