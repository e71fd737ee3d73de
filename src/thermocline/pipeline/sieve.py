"""Tells rows that do not fit from those that do, and takes them up to a limit.

In:   rows that are to be converted, and what converts them
Out:  the rows that fit; `Bad` ones with their file, their line and the reason

- A bad row is told apart from its neighbours by halving: the good ones around it go on.
- What is kept of a row is its text, cut at a limit; file, line and column lead to the rest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from thermocline.errors import Invalid, Overloaded, ThermoclineError

RAW_LENGTH_MAX = 4_096
REASON_LENGTH_MAX = 500
BAD_ROWS_MAX_DEFAULT = 10_000
BAD_ROWS_MAX_LIMIT = 1_000_000
ON_BAD = ("quarantine", "fail")


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that does not fit; without a line it is the whole file, or the rest of it."""

    file: str
    line: int | None
    reason: str
    raw: str | None = None
    column: str | None = None


@dataclass(slots=True)
class Sieve:
    """Takes bad rows until there are too many, or the first one where none is allowed."""

    on_bad: str
    rows_max: int
    bad: list[Bad] = field(default_factory=list)

    def refuse(
        self,
        file: str,
        line: int | None,
        reason: str,
        raw: str | None = None,
        column: str | None = None,
    ) -> None:
        """Take a bad row; `Invalid` when it stops the job, `Overloaded` when they are too many."""
        kept = None if raw is None else raw.rstrip("\r\n")[:RAW_LENGTH_MAX]
        self.bad.append(Bad(file, line, reason[:REASON_LENGTH_MAX], kept, column))
        if self.on_bad == "fail":
            raise Invalid(
                "a row cannot be taken in" if line is not None else "a file cannot be read",
                hint="fix it, or let bad rows go to quarantine (--on-bad quarantine)",
                file=file,
                line=line,
                reason=reason,
            )
        check_count(self.bad, self.rows_max)


def check_count(bad: Sequence[Bad], rows_max: int) -> None:
    """Raise `Overloaded` when there are more bad rows than a job may have."""
    if len(bad) > rows_max:
        first = bad[0]
        raise Overloaded(
            "too many rows cannot be taken in",
            hint="look at the first of them; declare another type of its column (--column-type), "
            "or raise bad_rows_max if that is how the files are",
            bad_rows_max=rows_max,
            file=first.file,
            line=first.line,
            reason=first.reason,
        )


Convert: TypeAlias = Callable[[int, int], pa.RecordBatch]
"""Makes rows of a stretch, from a first up to an end, or raises `Invalid`."""

Refuse: TypeAlias = Callable[[int, str, str | None], None]
"""Takes the place of a bad row, the reason, and the column where one column is the reason."""


def sifted(first: int, end: int, convert: Convert, refuse: Refuse) -> Iterator[pa.RecordBatch]:
    """Yield what `convert` makes of rows from `first` to `end`, without those it cannot.

    `convert` raises `Invalid` for a stretch that has a bad row; it is then asked for its halves.
    """
    if first >= end:
        return
    try:
        yield convert(first, end)
        return
    except Invalid as error:
        if end - first == 1:
            refuse(first, reason_of(error), column_of(error))
            return
    middle = (first + end) // 2
    yield from sifted(first, middle, convert, refuse)
    yield from sifted(middle, end, convert, refuse)


def reason_of(error: ThermoclineError) -> str:
    """Return an error in one line, as a reason."""
    facts = [f"{name} {error.facts[name]}" for name in ("column", "why") if name in error.facts]
    if "column" in error.facts and "expected" in error.facts:
        facts[0] += f" ({error.facts['expected']})"
    return ": ".join([error.message, *facts])


def column_of(error: ThermoclineError) -> str | None:
    """Return the column that an error names, None where it names no single one."""
    found = error.facts.get("column")
    return None if found is None else str(found)
