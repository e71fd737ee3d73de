"""Validates documents: decodes them, checks them and converts them to canonical form.

In:   a schema with its kind, and documents as values, as bytes or as lines of bytes
Out:  documents in canonical form, or an `Invalid` with every problem at once

- Most documents fit and are canonical: one pass of a compiled schema proves both. Only their
  numbers are checked again, because a schema cannot tell 5 from 5.0.
- Counting colons proves that no key is given twice: a text has one for every pair, and those inside
  its strings. If the count equals the keys plus the known colons in strings, no other pair exists.
- A document that would cost too much to validate is refused before it is (`match_cost.py`).
- A document that fails the quick check is checked completely; every problem is reported.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from thermocline.contract.document.canonical import json_form, to_canonical
from thermocline.contract.document.kind import ColumnKind, KindField
from thermocline.contract.document.match_cost import MatchCost
from thermocline.contract.document.narrow import COLONS_IN_TIMESTAMP, narrow_schema
from thermocline.contract.document.text import (
    BACKSLASH,
    DECODE_ERRORS,
    DOCUMENT_BYTES_MAX,
    check_each_key_once,
    check_value,
    decode,
    decode_as_doubles,
    decode_lines,
    decode_unchecked,
)
from thermocline.contract.document.validation import compile_schema, problems_of
from thermocline.contract.schema.pointer import (
    PROBLEMS_MAX,
    DocumentProblem,
    problem_error,
    steps_of,
)
from thermocline.contract.schema.subschema import Json
from thermocline.errors import Invalid

LINES_AT_ONCE = 1_000

# A property, the type of its values that need no conversion, and its kind.
_NumberCheck: TypeAlias = tuple[str, type | None, ColumnKind]


class DocumentChecker:
    """The compiled form of one contract's schema. Thread-safe."""

    def __init__(self, schema: Json, kind: ColumnKind, *, is_open: bool) -> None:
        self.parts: dict[str, KindField] = {part.name: part for part in kind.fields}
        self.is_open = is_open
        self.is_exact = is_open or any(_needs_digits(part.kind) for part in kind.fields)
        self._match_cost = MatchCost(schema)
        self._validator = compile_schema(narrow_schema(schema, kind, is_strict=False))
        strict = narrow_schema(schema, kind, is_strict=True)
        self._is_strict = compile_schema(strict).is_valid
        self._number_checks = tuple(
            _number_check(part) for part in kind.fields if _has_numbers(part.kind)
        )
        self._all_checks = tuple((name, None, part.kind) for name, part in self.parts.items())
        self.validate_bytes: Callable[[bytes], Json] = self._validate_exactly
        """Validates JSON text and returns its document."""
        if not self.is_exact:
            self.validate_bytes = self._make_quick_validator()

    def validate(self, document: Any) -> Json:
        """Validate a document given as values, and return its canonical form."""
        check_value(document)
        return self._canonicalize(dict(document) if isinstance(document, dict) else document)

    def _validate_exactly(self, data: bytes) -> Json:
        return self._canonicalize(decode(data))

    def _make_quick_validator(self) -> Callable[[bytes], Json]:
        """Return a validator of JSON text for contracts whose numbers all fit doubles.

        It is one closure: each further call or attribute lookup would add a fiftieth to its time.
        """
        is_strict, exactly = self._is_strict, self._validate_exactly
        bytes_max = self._match_cost.bytes_max
        care = tuple((name, plain) for name, plain, _ in self._number_checks)
        instants = tuple(name for name, part in self.parts.items() if part.kind.name == "timestamp")

        def validate(data: bytes) -> Json:
            # With a backslash, a colon may be written as \\u003a, and the text may have a NUL.
            is_odd = BACKSLASH in data or len(data) > DOCUMENT_BYTES_MAX
            try:
                document: Json = decode_as_doubles(data) if is_odd else decode_unchecked(data)
            except DECODE_ERRORS:
                return exactly(data)
            if len(data) > bytes_max or not is_strict(document):
                return exactly(data)
            read = document.get
            if not is_odd:
                more_pairs_max = data.count(b":") - len(document)
                for name in instants:
                    if read(name) is not None:
                        more_pairs_max -= COLONS_IN_TIMESTAMP
                if more_pairs_max:
                    check_each_key_once(data, document)
            for name, plain in care:
                value = read(name)
                if type(value) is not plain and value is not None:
                    # An integer written as 9007199254740993.0 has more digits than a double.
                    return exactly(data)
            return document

        return validate

    def validate_lines(self, data: bytes) -> list[Json]:
        """Return the documents of lines of JSON text, or raise `Invalid` with all problems."""
        lines = [line for line in data.split(b"\n") if line and not line.isspace()]
        made: list[Json] = []
        problems: list[DocumentProblem] = []
        for start in range(0, len(lines), LINES_AT_ONCE):
            some = lines[start : start + LINES_AT_ONCE]
            documents = self._validate_at_once(some)
            if documents is None:
                documents = self._validate_one_by_one(some, start, problems)
            made += documents
            if len(problems) > PROBLEMS_MAX:
                break
        if problems:
            raise problem_error(problems)
        return made

    def is_fitting(self, document: Any) -> bool:
        """Tell whether values fit the schema, without a check that columns hold them exactly."""
        if self._match_cost.problems(document):
            return False
        return bool(self._validator.is_valid(document))

    def _canonicalize(self, document: Any) -> Json:
        """Check a document and convert it in place to canonical form; the caller must own it."""
        if costly := self._match_cost.problems(document):
            raise problem_error(costly)
        if self._is_strict(document):
            care: Iterable[_NumberCheck] = self._number_checks
        else:
            found = problems_of(self._validator, document)
            if found:
                raise problem_error(found + self._more_problems(document, found))
            care = self._all_checks
        problems: list[DocumentProblem] = []
        for name, plain, kind in care:
            value = document.get(name)
            if type(value) is not plain and value is not None:
                document[name] = to_canonical(kind, value, (name,), problems)
        if self.is_open:
            for name in document.keys() - self.parts.keys():
                document[name] = json_form(document[name])
        if problems:
            raise problem_error(problems)
        assert isinstance(document, dict)
        return document

    def _more_problems(self, document: Any, found: list[DocumentProblem]) -> list[DocumentProblem]:
        """Return problems of canonical form in the properties that have no problem yet."""
        more: list[DocumentProblem] = []
        if isinstance(document, dict):
            named = {steps_of(problem.pointer)[0] for problem in found if problem.pointer}
            for name, part in self.parts.items():
                if name in document and name not in named:
                    to_canonical(part.kind, document[name], (name,), more)
        return more

    def _validate_at_once(self, lines: list[bytes]) -> list[Json] | None:
        """Return the documents if all lines pass the quick check, else None."""
        try:
            documents: list[Json] = decode_lines(b"\n".join(lines), is_exact=self.is_exact)
        except Invalid:
            return None
        is_cheap = max(map(len, lines), default=0) <= self._match_cost.bytes_max
        is_whole = is_cheap and len(documents) == len(lines)
        if not is_whole or not all(map(self._is_strict, documents)):
            return None
        problems: list[DocumentProblem] = []
        for name, plain, kind in self._number_checks:
            for document in documents:
                value = document.get(name)
                if type(value) is plain or value is None:
                    continue
                if plain is int and not self.is_exact:
                    return None
                document[name] = to_canonical(kind, value, (name,), problems)
        if self.is_open:
            for document in documents:
                for name in document.keys() - self.parts.keys():
                    document[name] = json_form(document[name])
        return None if problems else documents

    def _validate_one_by_one(
        self, lines: list[bytes], start: int, problems: list[DocumentProblem]
    ) -> list[Json]:
        made: list[Json] = []
        for number, line in enumerate(lines, start):
            try:
                made.append(self.validate_bytes(line))
            except Invalid as error:
                other = DocumentProblem("", "a document that can be read", error.message).as_json()
                for problem in error.facts.get("problems", [other]):
                    pointer = f"/{number}{problem['pointer']}"
                    problems.append(DocumentProblem(pointer, problem["expected"], problem["got"]))
            if len(problems) > PROBLEMS_MAX:
                break
        return made


def _number_check(part: KindField) -> _NumberCheck:
    kind = part.kind
    plain: type | None = None
    if kind.name == "integer":
        plain = int
    elif kind.name == "number" and kind.bits == 64:
        plain = float
    return part.name, plain, kind


def _needs_digits(kind: ColumnKind) -> bool:
    """Tell whether a property's numbers need more digits than a double has."""
    if kind.name in ("json", "struct", "list", "map"):
        return _has_numbers(kind)
    return kind.name == "decimal" and not kind.is_text


def _has_numbers(kind: ColumnKind) -> bool:
    """Tell whether a property may have numbers, whose form a schema cannot check."""
    if kind.name == "decimal":
        return not kind.is_text
    is_one = kind.name in ("integer", "number", "json")
    return is_one or any(_has_numbers(part) for part in kind.parts())
