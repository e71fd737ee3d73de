"""The names that an open node answers to, so that no page elsewhere reaches it (DNS rebinding).

In:   the `Host` and `Origin` headers of a request
Out:  what is wrong with them, if anything

- A name is one of this machine's, named once. A browser that was led here by another name is told
  so: whoever made that name could read what the node answers.
- A page may ask only the host and port that it came from.
- Ports are nobody's name: a tunnel has another one.
"""

from collections.abc import Collection, Sequence
from enum import Enum
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Stranger(Enum):
    """What is strange about a request."""

    NAME = "the node does not answer to this name"
    PAGE = "a page from elsewhere may not ask"


def stranger(names: Collection[str], hosts: Sequence[str], origin: str | None) -> Stranger | None:
    """Return why a request to an open node is refused; None when it is not."""
    if len(hosts) != 1 or host_of(f"//{hosts[0]}") not in names:
        return Stranger.NAME
    if origin is not None and _netloc(origin) != hosts[0].lower():
        return Stranger.PAGE
    return None


def host_of(address: str) -> str:
    """Return the host in an address, in lower case; nothing when there is none."""
    try:
        return (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
