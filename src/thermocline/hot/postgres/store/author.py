"""Who writes: the key and the id of the request, which the history stores with each change.

In:   a key's id and a request's id, from the interface that took the request
Out:  the author of the writes in a block of code

- A context variable carries it, so that threads and requests do not mix.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

AUTHOR_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True)
class Author:
    """The key that wrote, and the request; None for a program that wrote without a node."""

    key: str | None = None
    request_id: str | None = None


_NO_AUTHOR = Author()
_author: ContextVar[Author] = ContextVar("thermocline_author", default=_NO_AUTHOR)


def current_author() -> Author:
    """Return the author of the writes that this thread or task makes now."""
    return _author.get()


@contextmanager
def write_as(key: str | None, request_id: str | None = None) -> Iterator[None]:
    """Name the author of all writes in the block."""
    token = _author.set(Author(_shorten(key), _shorten(request_id)))
    try:
        yield
    finally:
        _author.reset(token)


def _shorten(text: str | None) -> str | None:
    return None if text is None else text.replace("\0", "")[:AUTHOR_LENGTH_MAX]
