"""Rows of CSV by the line: where each begins, what its text is, and what its fields are.

In:   the bytes of a file
Out:  records; one that cannot be read has a reason in the place of its fields

- Lines are counted from 1 as an editor does; a row may have several, inside of quotes.
- A quote that is not closed, or closed in the middle of another field, costs its own line, not all
  lines up to there: what looked like one long row is read again from its second line.
- Bytes that are no text are carried as they are, for whoever makes values of them to refuse.
"""

import csv
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

LINES_PER_ROW_MAX = 1_000
FIELD_LENGTH_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """One row of CSV: the line it begins in, its text, and its fields or why it has none."""

    line: int
    raw: str
    fields: list[str] | None
    reason: str = ""


class _Unclosed(Exception):
    """A quote was not closed for so many lines that it will not be."""


def records(data: BinaryIO, delimiter: str) -> Iterator[Record]:
    """Yield the rows of CSV with their lines; a row that cannot be read costs one line."""
    csv.field_size_limit(FIELD_LENGTH_MAX)
    lines, taken = _Lines(data), list[str]()
    reader = csv.reader(lines.fed(taken), delimiter=delimiter)
    while True:
        taken.clear()
        line = lines.number + 1
        try:
            fields = next(reader)
            if lines.is_over or not _is_sound(taken, delimiter):
                raise _Unclosed("a quote is not closed")
        except StopIteration:
            return
        except (csv.Error, _Unclosed) as error:
            lines.put_back(taken[1:])
            reader = csv.reader(lines.fed(taken), delimiter=delimiter)
            yield Record(line, taken[0], None, str(error))
            continue
        if fields:
            yield Record(line, "".join(taken), fields)


def _is_sound(lines: list[str], delimiter: str) -> bool:
    """Tell whether a row of several lines ends its quotes where fields end."""
    if len(lines) == 1:
        return True
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    return True


class _Lines:
    """Lines of text, of which some may be put back; `number` is that of the last one taken.

    `is_over` says that a line was asked for and there was none: a row was not complete.
    """

    def __init__(self, data: BinaryIO) -> None:
        self._data = data
        self._back: deque[str] = deque()
        self.number = 0
        self.is_over = False

    def fed(self, taken: list[str]) -> Iterator[str]:
        while True:
            if len(taken) >= LINES_PER_ROW_MAX:
                raise _Unclosed("a quote is not closed")
            line = self._back.popleft() if self._back else self._read()
            self.is_over = not line
            if not line:
                return
            self.number += 1
            taken.append(line)
            yield line

    def put_back(self, lines: list[str]) -> None:
        self._back.extendleft(reversed(lines))
        self.number -= len(lines)
        self.is_over = False

    def _read(self) -> str:
        text = self._data.readline().decode("utf-8", "surrogateescape")
        return text.removeprefix("\ufeff") if self.number == 0 else text
