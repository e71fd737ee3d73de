"""Follows the feed of changes: waits for the next ones, page by page, in this process or over HTTP.

In:   a function that reads the page after a position
Out:  `EntityChange`s, each once, in the order of the feed

- The position of the last change that the caller has taken is all that a consumer must store. If it
  stores it in one transaction with its own work, each change is processed exactly once.
"""

import time
from collections.abc import Callable, Iterator

from thermocline.errors import Invalid
from thermocline.hot.postgres.revision.change import (
    FEED_POLL_S,
    FEED_WAIT_MAX_S,
    EntityChange,
    FeedPage,
)

FOLLOW_PAGE = 500
FOLLOW_WAIT_S = 5.0

PageReader = Callable[[str | None], FeedPage]


def wait_for_page(read: PageReader, after: str | None, wait_s: float) -> FeedPage:
    """Return the page after a position; if it is empty, read again until `wait_s` is over."""
    if not 0 <= wait_s <= FEED_WAIT_MAX_S:
        hint = f"use 0 to {FEED_WAIT_MAX_S:g} seconds"
        raise Invalid("the wait is out of range", hint=hint, wait_s=wait_s)
    end_s = time.monotonic() + wait_s
    while True:
        page = read(after)
        left_s = end_s - time.monotonic()
        if page.changes or left_s <= 0:
            return page
        time.sleep(min(FEED_POLL_S, left_s))


def follow_pages(
    read: PageReader, after: str | None, idle_s: float | None
) -> Iterator[EntityChange]:
    """Yield changes after a position; end when none came for `idle_s`, or never if it is None."""
    place = after
    last_s = time.monotonic()
    while True:
        page = read(place)
        yield from page.changes
        place = page.position
        if page.changes:
            last_s = time.monotonic()
        elif idle_s is not None and time.monotonic() - last_s >= idle_s:
            return
