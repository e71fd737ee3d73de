"""Follows the feed of changes: waits for the next ones, page by page, in this process or over HTTP.

In:   a function that reads the page after a position
Out:  `EntityChange`s, each once, in the order of the feed

- The position of the last change that the caller has taken is all that a consumer must store. If it
  stores it in one transaction with its own work, each change is processed exactly once.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from thermocline.errors import Invalid
from thermocline.format.argument import check_count, check_seconds, check_text, list_names
from thermocline.hot.postgres.revision.change import (
    FEED_POLL_S,
    FEED_WAIT_MAX_S,
    EntityChange,
    FeedPage,
)

FOLLOW_PAGE = 500
FOLLOW_WAIT_S = 5.0

PageReader = Callable[[str | None], FeedPage]


class FeedArguments(NamedTuple):
    """What a caller asks of one page of the feed; None for `types` means all of them."""

    types: tuple[str, ...] | None
    after: str | None
    limit: int
    wait_s: float


def parse_feed_arguments(
    types: str | Sequence[str] | None, after: str | None, limit: int, wait_s: float
) -> FeedArguments:
    """Return the arguments of `changes`; `Invalid` for values of other kinds."""
    return FeedArguments(
        None if types is None else list_names(types, "types"),
        None if after is None else check_text(after, "after"),
        check_count(limit, "limit", 1),
        check_seconds(wait_s, "wait_s"),
    )


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
    changes: Callable[..., FeedPage],
    types: str | Sequence[str] | None,
    after: str | None,
    idle_s: float | None,
) -> Iterator[EntityChange]:
    """Return the changes after a position, read by a lake's method `changes`.

    They end when none came for `idle_s`, or never if it is None. Wrong arguments are refused here,
    before the first change is read.
    """
    idle_s = None if idle_s is None else check_seconds(idle_s, "idle_s")
    wait_s = FOLLOW_WAIT_S if idle_s is None else min(idle_s, FOLLOW_WAIT_S)
    asked = parse_feed_arguments(types, after, FOLLOW_PAGE, wait_s)
    return _follow(
        lambda at: changes(asked.types, at, asked.limit, wait_s=asked.wait_s), asked.after, idle_s
    )


def _follow(read: PageReader, after: str | None, idle_s: float | None) -> Iterator[EntityChange]:
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
