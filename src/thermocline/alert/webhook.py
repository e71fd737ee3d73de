"""Webhooks: whether an address may be asked, and one attempt to deliver to it.

In:   a URL, a body; the hosts that the node's settings allow
Out:  nothing if the receiver accepted it; `WebhookError` says why not

- A tenant writes the address, and the node asks it: so an address inside the node's network would
  be asked with the node's rights (SSRF). Only hosts that `alert_hosts` names are asked. A pattern
  such as `*.example.com` or `*` allows public addresses only; a loopback or private address needs
  its host written out in full.
- The name is resolved once, every address is checked, and the connection goes to a checked one, so
  that a second answer of the name server cannot lead elsewhere. Redirects are not followed.
- Time and the answer are bounded: a receiver cannot hold a thread or fill the memory.
"""

import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

SEND_S_MAX = 10.0
ANSWER_BYTES_MAX = 4_096
ADDRESSES_MAX = 16
SIGNATURE_HEADER = "X-Thermocline-Signature"
DELIVERY_HEADER = "X-Thermocline-Delivery"


class WebhookError(Exception):
    """An attempt failed; `is_final` says that another attempt cannot succeed."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_final = is_final


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The hosts that webhooks may have: names, addresses, and patterns with a star."""

    patterns: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> "AllowedHosts":
        """Return the hosts of a setting: a list with commas."""
        return AllowedHosts(tuple(one.strip().lower() for one in text.split(",") if one.strip()))

    def is_named(self, host: str) -> bool:
        """Tell whether a host is allowed, at least at a public address."""
        return any(fnmatchcase(host.lower(), one) for one in self.patterns)

    def is_written_out(self, host: str) -> bool:
        """Tell whether a host is allowed at any address, also a private one."""
        return host.lower() in self.patterns


def check_host(url: str, allowed: AllowedHosts) -> str:
    """Return the host of a URL; `WebhookError` unless the settings allow it."""
    host = urlsplit(url).hostname or ""
    if not allowed.is_named(host):
        raise WebhookError("alert_hosts does not name the host of this webhook", is_final=True)
    return host


def resolve(url: str, allowed: AllowedHosts) -> str:
    """Return the address to connect to; `WebhookError` for one that is not allowed."""
    host = check_host(url, allowed)
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[:ADDRESSES_MAX]
    except (OSError, UnicodeError) as error:
        raise WebhookError("the name of the host cannot be resolved") from error
    addresses = [str(one[4][0]) for one in found]
    if not addresses:
        raise WebhookError("the name of the host has no address")
    if not allowed.is_written_out(host) and not all(map(is_public, addresses)):
        why = "the host has a private address: write it out in alert_hosts"
        raise WebhookError(why, is_final=True)
    return addresses[0]


def is_public(address: str) -> bool:
    """Tell whether an address is one of the public internet."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    if mapped is not None:
        found = mapped
    return found.is_global and not found.is_multicast


def sign(key: bytes, body: bytes, time_s: int) -> str:
    """Return the value of the signature's header: a time, and the HMAC of time and body."""
    text = f"{time_s}.".encode() + body
    return f"t={time_s},v1={hmac.new(key, text, hashlib.sha256).hexdigest()}"


def is_signed(
    key: bytes, body: bytes, header: str, *, now_s: float, age_s_max: float = 300.0
) -> bool:
    """Tell whether a header is the signature of a body, and not too old: for receivers."""
    parts = dict(one.split("=", 1) for one in header.split(",") if "=" in one)
    if not parts.get("t", "").isdigit():
        return False
    expected = sign(key, body, int(parts["t"]))
    return hmac.compare_digest(expected, header) and abs(now_s - int(parts["t"])) <= age_s_max


class _PinnedConnection(http.client.HTTPConnection):
    """A connection to a checked address, whatever its name resolves to now."""

    def __init__(self, host: str, port: int, address: str, context: ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=SEND_S_MAX)
        self._address = address
        self._context = context
        self.is_late = False

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), SEND_S_MAX)
        self.sock = (
            plain
            if self._context is None
            else self._context.wrap_socket(plain, server_hostname=self.host)
        )

    def abort(self) -> None:
        """End a call that runs in another thread: a receiver may send a byte now and then."""
        self.is_late = True
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


def send(url: str, body: bytes, headers: Mapping[str, str], allowed: AllowedHosts) -> None:
    """Make one attempt to deliver a body; return when the receiver has accepted it."""
    address = resolve(url, allowed)
    parts = urlsplit(url)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if context else 80)
    assert parts.hostname is not None
    connection = _PinnedConnection(parts.hostname, port, address, context)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    begun_s = time.monotonic()
    deadline = threading.Timer(SEND_S_MAX, connection.abort)
    deadline.daemon = True
    deadline.start()
    try:
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        answer.read(ANSWER_BYTES_MAX)
        status = answer.status
    except (OSError, http.client.HTTPException, ValueError) as error:
        took_s = time.monotonic() - begun_s
        why = f"{type(error).__name__} after {took_s:.1f} s"
        raise WebhookError(f"the receiver cannot be reached: {why}") from error
    finally:
        deadline.cancel()
        connection.close()
    if connection.is_late:
        raise WebhookError(f"the receiver took longer than {SEND_S_MAX:g} s")
    if not 200 <= status < 300:
        raise WebhookError(f"the receiver answered {status}")


def target_headers(delivery_id: str, body: bytes, key: bytes, time_s: int) -> dict[str, str]:
    """Return the headers of an attempt; without a key it is not signed."""
    headers = {"Content-Type": "application/json", DELIVERY_HEADER: delivery_id}
    headers |= {"Idempotency-Key": delivery_id, "User-Agent": "thermocline"}
    if key:
        headers[SIGNATURE_HEADER] = sign(key, body, time_s)
    return headers
