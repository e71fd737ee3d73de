"""Answers reads when PostgreSQL or the lake is down: an error, or an answer with a warning.

In:   the read mode, and a function per way to answer
Out:  an answer; `Unavailable` rather than an old answer without a warning

    strict        both halves, or `Unavailable`
    best_effort   without PostgreSQL, the lake: exact as of its last export. Without the lake,
                  PostgreSQL's rows: exact, except for rows that were evicted to the lake
    cached        like strict; if that fails, the last good answer to the same query, with a warning

- An answer that may lack committed rows has a warning, and the time of which it is exact.
- Damage is not downtime: `Corruption` is raised in every mode.
- The cache for `cached` is bounded by answers and by bytes.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from thermocline.entity.model import FindAnswer, ReadMode, ScanAnswer
from thermocline.errors import NotFound, Unavailable

ANSWERS_KEPT_MAX = 32
ANSWERS_BYTES_MAX = 64 << 20
ENTITIES_KEPT_MAX = 1_000
LAKE_ALONE = "PostgreSQL is down: these rows are the lake's, as of its last export"
POSTGRES_ALONE = "the lake is down: rows that were evicted to it are missing"
OLD_ANSWER = "PostgreSQL or the lake is down: this is an earlier answer"


class FindAnswerCache:
    """A cache of good answers about single entities, for `cached`. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, FindAnswer] = OrderedDict()

    def remember(self, key: str, answer: FindAnswer) -> None:
        """Store an answer; above the limit, drop the oldest."""
        with self._lock:
            self._kept[key] = answer
            self._kept.move_to_end(key)
            if len(self._kept) > ENTITIES_KEPT_MAX:
                self._kept.popitem(last=False)

    def last(self, key: str) -> FindAnswer | None:
        """Return the last good answer about a key, with a warning."""
        with self._lock:
            found = self._kept.get(key)
        return None if found is None else replace(found, warning=OLD_ANSWER)


class ScanAnswerCache:
    """A cache of good answers by query, for `cached`. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, ScanAnswer] = OrderedDict()

    def remember(self, question: Hashable, answer: ScanAnswer) -> None:
        """Store an answer; above the limits of number and bytes, drop the oldest."""
        if answer.rows.nbytes > ANSWERS_BYTES_MAX:
            return
        with self._lock:
            self._kept[question] = answer
            self._kept.move_to_end(question)
            while len(self._kept) > ANSWERS_KEPT_MAX or self._size() > ANSWERS_BYTES_MAX:
                self._kept.popitem(last=False)

    def last(self, question: Hashable) -> ScanAnswer | None:
        """Return the last good answer to a query, with a warning."""
        with self._lock:
            found = self._kept.get(question)
        return None if found is None else replace(found, warning=OLD_ANSWER)

    def _size(self) -> int:
        return sum(answer.rows.nbytes for answer in self._kept.values())


def find_best_answer(
    mode: ReadMode,
    exact: Callable[[], ScanAnswer],
    *,
    lake_alone: Callable[[], ScanAnswer],
    postgres_alone: Callable[[], ScanAnswer],
    remembered: Callable[[], ScanAnswer | None],
) -> ScanAnswer:
    """Return the best answer that the mode allows; raise the first error if every way fails."""
    try:
        return exact()
    except (Unavailable, NotFound) as error:
        for way in _fallbacks(mode, lake_alone, postgres_alone, remembered):
            found = _try_fallback(way)
            if found is not None:
                return found
        if isinstance(error, NotFound):
            raise _lake_unavailable(error) from error
        raise


def _fallbacks(
    mode: ReadMode, *ways: Callable[[], ScanAnswer | None]
) -> Iterator[Callable[[], ScanAnswer | None]]:
    lake_alone, postgres_alone, remembered = ways
    if mode is ReadMode.BEST_EFFORT:
        yield from (lake_alone, postgres_alone)
    elif mode is ReadMode.CACHED:
        yield remembered


def _try_fallback(way: Callable[[], ScanAnswer | None]) -> ScanAnswer | None:
    try:
        return way()
    except (Unavailable, NotFound):
        return None


def _lake_unavailable(error: NotFound) -> Unavailable:
    """Return the error for a lake without its files, such as one on a disk that is not mounted."""
    return Unavailable(error.message, hint=error.hint, **error.facts)
