"""Rewrites `AS OF`, as users write it, to the `AT` clause that the engine's parser reads.

In:   SQL text with `FROM t AS OF VERSION 3` or `FROM t p AS OF TIMESTAMP '2024-06-01'`
Out:  the same text with `AT (VERSION => 3)`, and a mapping back to the positions of the user's text

- The engine's own tokenizer finds the words, so the text inside strings, comments and quoted names
  never changes. A text without the separate word OF is not tokenized at all.
- Only the sequence AS, OF, VERSION or TIMESTAMP, and one number, string or parameter is
  replaced. No other SQL has these four in a row, so no other text changes its meaning.
- An alias after the clause is moved before it, where the parser expects it.

This module does not validate its output: the parser reports a clause in a wrong place.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import duckdb

_UNITS = {b"version": b"VERSION", b"timestamp": b"TIMESTAMP"}
_CLAUSE_TOKENS_MAX = 7  # AS OF VERSION $ name AS alias
# AS comes before OF and VERSION or TIMESTAMP after it, so OF has a word boundary on both sides.
_HAS_OF = re.compile(r"\bof\b", re.ASCII | re.IGNORECASE).search


class SqlToken(NamedTuple):
    """One token: its bytes, where they begin, and the engine's name for its kind."""

    start: int
    text: bytes
    kind: str

    @property
    def end(self) -> int:
        """Where the token ends, without the white space after it."""
        return self.start + len(self.text)

    def is_keyword(self, keyword: bytes) -> bool:
        """Tell whether this is the keyword, in upper or lower case."""
        return self.kind == "keyword" and self.text.lower() == keyword


class _ClauseEdit(NamedTuple):
    start: int
    end: int
    new: bytes


@dataclass(frozen=True, slots=True)
class RewrittenText:
    """SQL text for the parser; `original_position` maps its byte positions to the user's."""

    text: str
    edits: tuple[_ClauseEdit, ...] = ()

    def original_position(self, position: int) -> int:
        """Return the byte of the user's text that a byte of this text stands for."""
        shift = 0
        for edit in self.edits:
            begin = edit.start + shift
            if position < begin:
                break
            if position < begin + len(edit.new):
                return edit.start
            shift += len(edit.new) - (edit.end - edit.start)
        return position - shift


def tokenize(text: str) -> list[SqlToken]:
    """Return the tokens of SQL text without comments; positions are in bytes of UTF-8."""
    data = text.encode()
    tokens = duckdb.tokenize(text)
    ends = [start for start, _ in tokens[1:]] + [len(data)]
    found = [
        SqlToken(start, data[start:end].rstrip(), str(kind).rpartition(".")[2])
        for (start, kind), end in zip(tokens, ends, strict=True)
    ]
    return [word for word in found if word.kind != "comment"]


def rewrite_as_of(text: str) -> RewrittenText:
    """Return the text with every `AS OF` clause written as an `AT` clause."""
    if not _HAS_OF(text):
        return RewrittenText(text)
    tokens = tokenize(text)
    edits = []
    at = 0
    while at < len(tokens):
        edit, used = _parse_clause(tokens[at : at + _CLAUSE_TOKENS_MAX])
        edits += [edit] if edit else []
        at += used
    if not edits:
        return RewrittenText(text)
    data, pieces, done = text.encode(), [], 0
    for edit in edits:
        pieces += [data[done : edit.start], edit.new]
        done = edit.end
    return RewrittenText(b"".join([*pieces, data[done:]]).decode(), tuple(edits))


def _parse_clause(tokens: list[SqlToken]) -> tuple[_ClauseEdit | None, int]:
    """Return the edit that the tokens begin with, if any, and how many of them it uses."""
    if len(tokens) < 4 or not (tokens[0].is_keyword(b"as") and tokens[1].is_keyword(b"of")):
        return None, 1
    unit = _UNITS.get(tokens[2].text.lower()) if tokens[2].kind == "keyword" else None
    value, count = _parse_value(
        tokens[3:], "numeric_const" if unit == b"VERSION" else "string_const"
    )
    if unit is None or value is None:
        return None, 1
    used = 3 + count
    alias, more = _parse_alias(tokens[used:])
    new = (b"AS " + alias + b" " if alias else b"") + b"AT (" + unit + b" => " + value + b")"
    last = tokens[used + more - 1]
    return _ClauseEdit(tokens[0].start, last.end, new), used + more


def _parse_value(tokens: list[SqlToken], literal: str) -> tuple[bytes | None, int]:
    """Return the literal or parameter that the tokens begin with, and how many it takes."""
    first = tokens[0]
    if first.kind == literal:
        return first.text, 1
    if first.kind != "operator" or first.text not in (b"?", b"$"):
        return None, 0
    if len(tokens) > 1 and tokens[1].start == first.end:
        name = tokens[1]
        if name.kind in ("numeric_const", "identifier", "keyword"):
            return first.text + name.text, 2
    return (first.text, 1) if first.text == b"?" else (None, 0)


def _parse_alias(tokens: list[SqlToken]) -> tuple[bytes | None, int]:
    """Return the alias that the tokens begin with, and how many of them it takes."""
    if tokens and tokens[0].kind == "identifier":
        return tokens[0].text, 1
    is_named = len(tokens) > 1 and tokens[0].is_keyword(b"as") and not tokens[1].is_keyword(b"of")
    if is_named and tokens[1].kind in ("identifier", "keyword"):
        return tokens[1].text, 2
    return None, 0
