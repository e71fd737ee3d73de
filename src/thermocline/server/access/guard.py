"""Authentication: from a request's `Authorization` header to a caller and its scopes.

In:   the header, the required scope
Out:  a `Caller`; `Unauthenticated`, `Forbidden`; `Unavailable` while the keys cannot be read

- A change of the keys by another process takes effect within `KEYS_CHECK_S`.
- A node that never had a key and that only this machine can reach serves every request. After the
  first key this never returns: not when the key is revoked, not when the file is removed while the
  node runs, not when it is removed while the node is stopped (`keys.py`).
- If the keys cannot be read, the last known keys serve for `STALE_S`; then every request is
  refused.
- The error for a wrong key discloses nothing about valid keys.
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
from thermocline.format.instant import NS_PER_S
from thermocline.lake import Lake
from thermocline.names import DEFAULT_TENANT, SCOPES
from thermocline.node import Node
from thermocline.server.access.audit import Audit
from thermocline.server.access.keys import Key, KeySet, KeyStore
from thermocline.server.observe.log import EventLog

KEYS_CHECK_S = 0.25
STALE_S = 5.0
HEADER_LENGTH_MAX = 256
ANONYMOUS_ID = "anonymous"
_HINT = "send the header `Authorization: Bearer tck_…` with a valid key"


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request: its tenant, its key, and the scopes of that key."""

    tenant: str
    key_id: str
    scopes: frozenset[str]

    @property
    def is_operator(self) -> bool:
        """Whether the caller may create tenants, and keys of any tenant."""
        return self.tenant == DEFAULT_TENANT and "admin" in self.scopes


ANONYMOUS = Caller(DEFAULT_TENANT, ANONYMOUS_ID, frozenset(SCOPES))


class Guard:
    """Checks keys. Safe to use from any thread; a check takes microseconds."""

    def __init__(
        self,
        store: KeyStore,
        audit: Audit | None = None,
        log: EventLog | None = None,
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
        self._keys = KeySet()
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
        """Whether requests need no key, because the node never had one."""
        self._refresh_keys()
        return self._may_be_open and not self._has_had_keys and self._trouble is None

    def caller(self, authorization: str | None, scope: str, *, peer: str = "") -> Caller:
        """Return the caller; `Unauthenticated` without a valid key, `Forbidden` without scope."""
        assert scope in SCOPES, scope
        if self.is_open:
            return ANONYMOUS
        try:
            return self._authenticate(authorization, scope)
        except (Unauthenticated, Forbidden) as error:
            if self._audit is not None:
                actor = str(error.facts.get("key_id", "unknown"))
                self._audit.record_refusal(error.code, actor, scope=scope, peer=peer)
            raise

    def _authenticate(self, authorization: str | None, scope: str) -> Caller:
        self._check_readable()
        if not authorization:
            raise Unauthenticated("there is no key in the request", hint=_HINT)
        kind, _, text = authorization[: HEADER_LENGTH_MAX + 1].partition(" ")
        key = self._keys.find(text.strip())
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

    def _check_readable(self) -> None:
        if self._trouble is not None and self._now_s() - self._good_s > STALE_S:
            hint = "see the node's log for why it cannot read its file of keys"
            raise Unavailable("the keys cannot be read", hint=hint, retry_after_s=5)

    def is_valid(self, key_id: str, tenant: str, scope: str) -> bool:
        """Tell whether a key that was shown before is still valid, for this tenant and scope.

        `Unavailable` if the keys cannot be read.
        """
        if self.is_open:
            return key_id == ANONYMOUS_ID and tenant == ANONYMOUS.tenant
        self._check_readable()
        key = self._keys.by_id.get(key_id)
        if key is None or key.state(self._now_ns()) != "valid":
            return False
        return key.tenant == tenant and scope in key.scopes

    def reload(self) -> None:
        """Read the keys now; raise the error if they cannot be read."""
        self._looked_s = self._now_s() - 2 * KEYS_CHECK_S
        self._stamp, self._is_fresh = None, False
        self._refresh_keys()
        if self._trouble is not None:
            raise self._trouble

    def _refresh_keys(self) -> None:
        if self._now_s() - self._looked_s < KEYS_CHECK_S:
            return
        with self._lock:
            now_s = self._now_s()
            if now_s - self._looked_s < KEYS_CHECK_S:
                return
            try:
                self._load_keys(self.store.stamp())
            except ThermoclineError as error:
                if self._trouble is None and self._log is not None:
                    self._log.error("keys unreadable", error=error)
                self._trouble = error
            else:
                self._trouble, self._good_s = None, now_s
            self._looked_s = now_s

    def _load_keys(self, stamp: tuple[int, ...] | None) -> None:
        # Without a file nothing can be compared: keys may have come and gone since the last look.
        if self._is_fresh and stamp == self._stamp and stamp is not None:
            return
        # A file that is removed while the node runs ends every key at once.
        keys = KeySet() if stamp is None and self._has_had_keys else self.store.read()
        self._callers = {key.key_id: _caller(key) for key in keys.by_id.values()}
        self._keys = keys
        self._has_had_keys = self._has_had_keys or bool(keys.by_id)
        # A file written within the clock's resolution may change again under the same stamp.
        is_settled = stamp is None or self._now_ns() - stamp[0] > NS_PER_S
        self._stamp, self._is_fresh = stamp, is_settled

    def write_uses(self) -> None:
        """Write to disk when each key was last used; a thread calls this periodically."""
        used = dict(self._used_ns)
        if used != self._used_written:
            self.store.write_uses(used)
            self._used_written = used


def _caller(key: Key) -> Caller:
    return Caller(key.tenant, key.key_id, key.scopes)


def exposed_listeners(node: NodeSettings) -> list[str]:
    """Return the settings of the listeners that other machines can reach."""
    return [name for name, address in node.listeners().items() if not address.is_loopback]


class NodeGateway:
    """The way of all listeners to the node; `Unavailable` before it opens and after it closes."""

    def __init__(self, guard: Guard, node: Node | None = None) -> None:
        self._guard = guard
        self._node = node
        self._is_closed = False

    def open(self, node: Node) -> None:
        """Let requests reach the node."""
        self._node = node

    def close(self) -> None:
        """Refuse every later request with `Unavailable`, so that clients retry."""
        self._node, self._is_closed = None, True

    @property
    def node(self) -> Node:
        """The node; `Unavailable` while it starts or stops."""
        if self._is_closed:
            raise Unavailable("the node is stopping", hint="try again later", retry_after_s=2)
        if self._node is None:
            hint = "wait until /health/ready answers 200"
            raise Unavailable("the node is starting", hint=hint, retry_after_s=2)
        return self._node

    def caller(self, authorization: str | None, scope: str, *, peer: str = "") -> Caller:
        """Return the client of a request, as `Guard.caller` does, once the node is open."""
        _ = self.node
        return self._guard.caller(authorization, scope, peer=peer)

    def lake(self, tenant: str) -> Lake:
        """Return a tenant's lake."""
        return self.node.lake(tenant)


def check_exposure(node: NodeSettings, *, has_keys: bool) -> None:
    """Raise `Invalid` if other machines can reach the node without keys and TLS.

    The setting `allow_insecure` permits it.
    """
    names = exposed_listeners(node)
    has_tls = bool(node.tls_certificate)
    if not names or node.allow_insecure or (has_keys and has_tls):
        return
    missing = [*([] if has_keys else ["keys"]), *([] if has_tls else ["TLS"])]
    raise Invalid(
        "other machines could reach the node unprotected",
        hint="make a key (`thermocline key create --first`) and set tls_certificate and tls_key; "
        "or use --allow-insecure if something else protects the node",
        listeners=names,
        missing=missing,
    )
