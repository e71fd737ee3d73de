"""The subject of an erasure, and how its rows are found in tables, files and bytes.

In:   columns and values
Out:  tests of rows; words to search in bytes that are not decoded

- A row belongs to the subject if the column has the value. In a table that stores rows as texts,
  such as the quarantine of a backfill, it does if any text contains the value.
- Numbers are searched in their column only: as bytes they would be found everywhere.
- Several subjects are one person whom several columns identify: a row that belongs to any of them
  is erased.
- A subject is never a condition: logs, coverages and texts can only be searched for a value.
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
"""The number of values in one erasure: every file is searched for each."""

PLAIN_WORD_LENGTH_MIN = 6
"""A shorter text is searched with quotes only: without, it would be found in other words."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject, identified by a `value` in a `column`."""

    column: str
    value: str | int

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, str | int):
            raise Invalid("the value of a subject has the wrong type", hint="use text or integer")
        if not self.column or self.value == "":
            raise Invalid("a subject needs a column and a value", hint="name both")

    @property
    def words(self) -> tuple[str, ...]:
        """The texts to search in bytes that are not decoded; none for a number."""
        if not isinstance(self.value, str):
            return ()
        quoted = orjson.dumps(self.value).decode()
        is_long = len(self.value) >= PLAIN_WORD_LENGTH_MIN
        return (self.value, quoted[1:-1]) if is_long else (quoted,)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The value as a number, if it is one."""
        number = _parse_number(self.value)
        return () if number is None else (number,)

    @property
    def digest(self) -> str:
        """The hash that a certificate contains instead of the value: it identifies the subject."""
        return hashlib.sha256(orjson.dumps([self.column, self.value])).hexdigest()

    def match_values(self, values: pa.Array) -> pa.Array:
        """Tell for each value of the column whether it is the subject's value."""
        kind = values.type.value_type if kinds.is_dictionary(values.type) else values.type
        has_texts = is_text(kind)
        # A command line gives a number as a text; a text column may hold a given number.
        value = str(self.value) if has_texts else _parse_number(self.value)
        try:
            wanted = pa.array([value], kind)
        except (pa.ArrowException, OverflowError):
            wanted = None  # no value of this type is equal to it
        if wanted is None or value is None:
            return pa.array([False] * len(values), pa.bool_())
        plain = pa.string() if has_texts else kind
        decoded = values.dictionary_decode() if kinds.is_dictionary(values.type) else values
        return pc.equal(decoded.cast(plain), wanted.cast(plain)[0]).fill_null(False)

    def match_rows(self, batch: pa.RecordBatch) -> pa.Array:
        """Tell for each row of a batch with the column whether it belongs to the subject."""
        return self.match_values(batch.column(self.column))

    def match_mentions(self, batch: pa.RecordBatch) -> pa.Array:
        """Tell for each row whether it is the subject's, or whether a text contains the value."""
        found = pa.array([False] * batch.num_rows, pa.bool_())
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if field.name == self.column:
                found = pc.or_(found, self.match_values(column))
            if is_text(field.type) and isinstance(self.value, str):
                text = column.dictionary_decode() if kinds.is_dictionary(field.type) else column
                hit = pc.match_substring(text.cast(pa.string()), self.value)
                found = pc.or_(found, hit.fill_null(False))
        return found


def distinct_subjects(subjects: Sequence[Subject]) -> tuple[Subject, ...]:
    """Return each subject once, in order; `Invalid` if there is none."""
    found = tuple(dict.fromkeys(subjects))
    if not found:
        raise Invalid("an erasure needs a subject", hint="name a column and its value")
    if len(found) > SUBJECTS_MAX:
        hint = "erase them in several runs"
        raise Overloaded("too many subjects for one erasure", hint=hint, subjects_max=SUBJECTS_MAX)
    return found


def _parse_number(value: str | int) -> int | None:
    if isinstance(value, int):
        return value
    is_one = value.isascii() and value.removeprefix("-").isdigit() and str(int(value)) == value
    return int(value) if is_one else None


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a type holds texts, plain or as a dictionary."""
    if kinds.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def text_columns(schema: pa.Schema, *others: str) -> Sequence[str]:
    """Return the columns that hold texts, and those of `others` that exist."""
    return [f.name for f in schema if is_text(f.type) or f.name in others]
