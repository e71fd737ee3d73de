"""Whose rows are erased, and how they are found in rows, files and bytes.

In:   columns and values
Out:  tests of rows; words to look for where nothing is decoded

- A row is the subject's when the column has the value. Of tables that keep rows as texts, such as
  those set aside by a backfill, it is when any text has the value in it.
- Numbers are looked for in their column alone: as bytes they would be found everywhere.
- Several subjects are one whom several columns name: a row is theirs when it is any one's.
- A subject is never a condition: what a log, a coverage or a text must not say is found by a value.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from thermocline.errors import Invalid, Overloaded

SUBJECTS_MAX = 100
"""How many values one erasure takes: every file is searched for each."""

PLAIN_WORD_LENGTH_MIN = 6
"""A shorter text is looked for in quotes only: without, it would be part of other words."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Rows of one subject: those whose `column` has the `value`."""

    column: str
    value: str | int

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, str | int):
            raise Invalid("not a value that names a subject", hint="use a text or a whole number")
        if not self.column or self.value == "":
            raise Invalid("a subject needs a column and a value", hint="name both")

    @property
    def words(self) -> tuple[str, ...]:
        """The texts by which bytes that are not decoded are searched; none for a number."""
        if not isinstance(self.value, str):
            return ()
        quoted = orjson.dumps(self.value).decode()
        is_long = len(self.value) >= PLAIN_WORD_LENGTH_MIN
        return (self.value, quoted[1:-1]) if is_long else (quoted,)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The value as a number, where it is one."""
        number = _as_number(self.value)
        return () if number is None else (number,)

    @property
    def digest(self) -> str:
        """What a certificate has instead of the value: it proves who is meant, and names nobody."""
        return hashlib.sha256(orjson.dumps([self.column, self.value])).hexdigest()

    def matches(self, values: pa.Array) -> pa.Array:
        """Tell for each value of the column whether it is the subject's."""
        kind = values.type.value_type if kinds.is_dictionary(values.type) else values.type
        has_texts = is_text(kind)
        # A number may have been given as a text, as on a command line, and the other way round.
        value = str(self.value) if has_texts else _as_number(self.value)
        try:
            wanted = pa.array([value], kind)
        except (pa.ArrowException, OverflowError):
            wanted = None  # no value of this type is it
        if wanted is None or value is None:
            return pa.array([False] * len(values), pa.bool_())
        plain = pa.string() if has_texts else kind
        decoded = values.dictionary_decode() if kinds.is_dictionary(values.type) else values
        return pc.equal(decoded.cast(plain), wanted.cast(plain)[0]).fill_null(False)

    def row_test(self, batch: pa.RecordBatch) -> pa.Array:
        """Tell for each row of a batch that has the column whether it is the subject's."""
        return self.matches(batch.column(self.column))

    def mentions(self, batch: pa.RecordBatch) -> pa.Array:
        """Tell for each row whether it is the subject's, or a text of it has the value in it."""
        found = pa.array([False] * batch.num_rows, pa.bool_())
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if field.name == self.column:
                found = pc.or_(found, self.matches(column))
            if is_text(field.type) and isinstance(self.value, str):
                text = column.dictionary_decode() if kinds.is_dictionary(field.type) else column
                hit = pc.match_substring(text.cast(pa.string()), self.value)
                found = pc.or_(found, hit.fill_null(False))
        return found


def distinct(subjects: Sequence[Subject]) -> tuple[Subject, ...]:
    """Return each subject once, in order; `Invalid` where there is none."""
    found = tuple(dict.fromkeys(subjects))
    if not found:
        raise Invalid("an erasure needs a subject", hint="name a column and its value")
    if len(found) > SUBJECTS_MAX:
        hint = "erase them by several runs"
        raise Overloaded("too many subjects for one erasure", hint=hint, subjects_max=SUBJECTS_MAX)
    return found


def _as_number(value: str | int) -> int | None:
    if isinstance(value, int):
        return value
    is_one = value.isascii() and value.removeprefix("-").isdigit() and str(int(value)) == value
    return int(value) if is_one else None


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a type holds texts, as they are or as a dictionary."""
    if kinds.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def text_columns(schema: pa.Schema, *others: str) -> Sequence[str]:
    """Return the columns that hold texts, and the others that are there."""
    return [f.name for f in schema if is_text(f.type) or f.name in others]
