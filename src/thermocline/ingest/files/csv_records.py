"""Reads CSV rows line by line: the first line of each, its text, and its fields.

In:   the bytes of a file
Out:  records; a record that cannot be read has a reason instead of fields

- Lines are counted from 1 as in an editor; a row has several lines if a quoted field has.
- A quote that is not closed, or closed in the middle of another field, costs one line, not all
  lines up to there: the supposed row is read again from its second line.
- Bytes that are not UTF-8 are kept; the conversion to values refuses them.
"""

import csv
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

LINES_PER_ROW_MAX = 1_000
FIELD_LENGTH_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class CsvRecord:
    """One CSV row: its first line, its text, and its fields, or the reason why it has none."""

    line: int
    raw: str
    fields: list[str] | None
    reason: str = ""


class _UnclosedQuote(Exception):
    """A quote is not closed within `LINES_PER_ROW_MAX` lines or where a field ends."""


def read_records(data: BinaryIO, delimiter: str) -> Iterator[CsvRecord]:
    """Yield the rows of CSV with their lines; an unreadable row costs one line."""
    csv.field_size_limit(FIELD_LENGTH_MAX)
    lines, taken = _Lines(data), list[str]()
    reader = csv.reader(lines.feed(taken), delimiter=delimiter)
    while True:
        taken.clear()
        line = lines.number + 1
        try:
            fields = next(reader)
            if lines.is_over or not _is_sound(taken, delimiter):
                raise _UnclosedQuote("a quote is not closed")
        except StopIteration:
            return
        except (csv.Error, _UnclosedQuote) as error:
            lines.put_back(taken[1:])
            reader = csv.reader(lines.feed(taken), delimiter=delimiter)
            yield CsvRecord(line, taken[0], None, str(error))
            continue
        if fields:
            yield CsvRecord(line, "".join(taken), fields)


def _is_sound(lines: list[str], delimiter: str) -> bool:
    """Tell whether the quotes of a row of several lines are closed where fields end."""
    if len(lines) == 1:
        return True
    try:
        list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    return True


class _Lines:
    """Lines of text that may be put back; `number` is the number of the last line taken.

    `is_over` is true if the reader requested a line after the last one: a row was not complete.
    """

    def __init__(self, data: BinaryIO) -> None:
        self._data = data
        self._back: deque[str] = deque()
        self.number = 0
        self.is_over = False

    def feed(self, taken: list[str]) -> Iterator[str]:
        while True:
            if len(taken) >= LINES_PER_ROW_MAX:
                raise _UnclosedQuote("a quote is not closed")
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
