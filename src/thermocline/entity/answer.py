"""What a reading is given when a half is down: refused, or marked with the moment it is true of.

In:   how a caller wants to be answered, the ways there are to answer
Out:  an `Answer`; `Unavailable` rather than an unmarked old one

    strict        both halves, or `Unavailable`
    best_effort   without PostgreSQL, the lake: exact as of its last export. Without the lake,
                  what PostgreSQL has: exact, except for rows that were evicted to the lake
    cached        as strict; if that fails, the last good answer to the same question, marked

- An answer that may lack something committed has a warning and the moment it is true of.
- Damage is no half that is down: `Corruption` is raised in every mode.
- What is remembered for `cached` is bounded, by answers and by bytes.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from thermocline.entity.mode import Mode
from thermocline.errors import NotFound, Unavailable
from thermocline.format.layout import Version
from thermocline.hot.postgres.operation import Entity

ANSWERS_KEPT_MAX = 32
ANSWERS_BYTES_MAX = 64 << 20
ENTITIES_KEPT_MAX = 1_000
LAKE_ALONE = "PostgreSQL is not there: this is the lake alone, as of its last export"
POSTGRES_ALONE = "the lake is not there: rows that were evicted to it are missing"
REMEMBERED = "a half is not there: this is an answer from before"


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows, and what they are worth: all that was committed before `as_of` is in them.

    `warning` is empty for an exact answer. `version` is the lake's, None where it was not read.
    """

    rows: pa.Table
    as_of: datetime
    version: Version | None
    warning: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether this is all that was committed when it was asked."""
        return not self.warning

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as an Arrow stream."""
        return self.rows.__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True)
class EntityAnswer:
    """One entity, or that there is none, and what that is worth: as `Answer` says it of rows."""

    entity: Entity | None
    as_of: datetime
    warning: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether this is what was committed when it was asked."""
        return not self.warning


class LastEntities:
    """The last good answers about single entities, for `cached`. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, EntityAnswer] = OrderedDict()

    def remember(self, key: str, answer: EntityAnswer) -> None:
        """Keep an answer, and let the oldest go when there are too many."""
        with self._lock:
            self._kept[key] = answer
            self._kept.move_to_end(key)
            if len(self._kept) > ENTITIES_KEPT_MAX:
                self._kept.popitem(last=False)

    def last(self, key: str) -> EntityAnswer | None:
        """Return the last good answer about a key, marked as one from before."""
        with self._lock:
            found = self._kept.get(key)
        return None if found is None else replace(found, warning=REMEMBERED)


class Answers:
    """The last good answers, by question, for `cached`. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Answer] = OrderedDict()

    def remember(self, question: Hashable, answer: Answer) -> None:
        """Keep an answer, and let the oldest go when there are too many or they are too large."""
        if answer.rows.nbytes > ANSWERS_BYTES_MAX:
            return
        with self._lock:
            self._kept[question] = answer
            self._kept.move_to_end(question)
            while len(self._kept) > ANSWERS_KEPT_MAX or self._size() > ANSWERS_BYTES_MAX:
                self._kept.popitem(last=False)

    def last(self, question: Hashable) -> Answer | None:
        """Return the last good answer to a question, marked as one from before."""
        with self._lock:
            found = self._kept.get(question)
        return None if found is None else replace(found, warning=REMEMBERED)

    def _size(self) -> int:
        return sum(answer.rows.nbytes for answer in self._kept.values())


def answered(
    mode: Mode,
    exact: Callable[[], Answer],
    *,
    lake_alone: Callable[[], Answer],
    postgres_alone: Callable[[], Answer],
    remembered: Callable[[], Answer | None],
) -> Answer:
    """Return the best answer that the mode allows; the first error when there is none."""
    try:
        return exact()
    except (Unavailable, NotFound) as error:
        for way in _ways(mode, lake_alone, postgres_alone, remembered):
            found = _tried(way)
            if found is not None:
                return found
        if isinstance(error, NotFound):
            raise _lake_gone(error) from error
        raise


def _ways(mode: Mode, *ways: Callable[[], Answer | None]) -> Iterator[Callable[[], Answer | None]]:
    lake_alone, postgres_alone, remembered = ways
    if mode is Mode.BEST_EFFORT:
        yield from (lake_alone, postgres_alone)
    elif mode is Mode.CACHED:
        yield remembered


def _tried(way: Callable[[], Answer | None]) -> Answer | None:
    try:
        return way()
    except (Unavailable, NotFound):
        return None


def _lake_gone(error: NotFound) -> Unavailable:
    """Return what a reader is told whose lake lacks files: a disk that is not mounted does."""
    return Unavailable(error.message, hint=error.hint, **error.facts)
