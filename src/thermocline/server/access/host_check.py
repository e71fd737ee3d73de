"""Checks the host names that a node without keys answers to, against DNS rebinding.

In:   the `Host` and `Origin` headers of a request
Out:  the reason to refuse the request, if there is one

- The `Host` header must come once and name this machine. Another name is refused: an attacker who
  points a domain of theirs at this machine could otherwise read the node's answers in a browser.
- A web page may only send requests to the host and port it was loaded from.
- The port in `Host` is ignored: a tunnel may expose the node on a different one.
"""

from collections.abc import Collection, Sequence
from enum import Enum
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class HostRefusal(Enum):
    """Why a request to a node without keys is refused."""

    NAME = "the node does not answer to this name"
    PAGE = "a page from elsewhere may not ask"


def host_refusal(
    names: Collection[str], hosts: Sequence[str], origin: str | None
) -> HostRefusal | None:
    """Return why to refuse a request to a node without keys; None to accept it."""
    if len(hosts) != 1 or host_of(f"//{hosts[0]}") not in names:
        return HostRefusal.NAME
    if origin is not None and _netloc(origin) != hosts[0].lower():
        return HostRefusal.PAGE
    return None


def host_of(address: str) -> str:
    """Return the host in an address, in lower case; empty when there is none."""
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
