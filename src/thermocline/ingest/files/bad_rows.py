"""Separates bad rows from good ones, and collects the bad rows up to a limit.

In:   rows to convert, and a function that converts a range of them
Out:  the converted rows; each `BadRow` with its file, line and reason

- Bisection separates a bad row from its neighbours: the good rows around it are converted.
- A bad row keeps its text, cut at a limit; file, line and column lead to the rest.
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
class BadRow:
    """A row that does not fit; without a line it is the whole file, or the rest of it."""

    file: str
    line: int | None
    reason: str
    raw: str | None = None
    column: str | None = None


@dataclass(slots=True)
class BadRowCollector:
    """Collects bad rows; fails at the first one if `on_bad` is `fail`, or above the limit."""

    on_bad: str
    rows_max: int
    bad: list[BadRow] = field(default_factory=list)

    def refuse(
        self,
        file: str,
        line: int | None,
        reason: str,
        raw: str | None = None,
        column: str | None = None,
    ) -> None:
        """Add a bad row; `Invalid` if it stops the job, `Overloaded` if there are too many."""
        kept = None if raw is None else raw.rstrip("\r\n")[:RAW_LENGTH_MAX]
        self.bad.append(BadRow(file, line, reason[:REASON_LENGTH_MAX], kept, column))
        if self.on_bad == "fail":
            raise Invalid(
                "a row does not fit the table" if line is not None else "a file cannot be read",
                hint="fix it; a backfill with --on-bad quarantine sets such rows aside",
                file=file,
                line=line,
                reason=reason,
            )
        check_count(self.bad, self.rows_max)


def check_count(bad: Sequence[BadRow], rows_max: int) -> None:
    """Raise `Overloaded` if there are more than `rows_max` bad rows."""
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
"""Converts the rows from a first to an end, or raises `Invalid`."""

Refuse: TypeAlias = Callable[[int, str, str | None], None]
"""Receives the index of a bad row, the reason, and the column if one column is the reason."""


def convert_good_rows(
    first: int, end: int, convert: Convert, refuse: Refuse
) -> Iterator[pa.RecordBatch]:
    """Yield the rows from `first` to `end` that `convert` converts; pass bad rows to `refuse`.

    If `convert` raises `Invalid` for a range, it is called again for each half of the range.
    """
    if first >= end:
        return
    try:
        yield convert(first, end)
        return
    except Invalid as error:
        if end - first == 1:
            refuse(first, describe_reason(error), find_column(error))
            return
    middle = (first + end) // 2
    yield from convert_good_rows(first, middle, convert, refuse)
    yield from convert_good_rows(middle, end, convert, refuse)


def describe_reason(error: ThermoclineError) -> str:
    """Return an error as a reason in one line."""
    facts = [f"{name} {error.facts[name]}" for name in ("column", "why") if name in error.facts]
    if "column" in error.facts and "expected" in error.facts:
        facts[0] += f" ({error.facts['expected']})"
    return ": ".join([error.message, *facts])


def find_column(error: ThermoclineError) -> str | None:
    """Return the column that an error names, or None."""
    found = error.facts.get("column")
    return None if found is None else str(found)
