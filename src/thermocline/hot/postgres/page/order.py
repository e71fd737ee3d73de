"""The sort order of a page of entities, and the cursor where the page begins.

In:   names of fields, `-` before one for descending; the cursor of the previous page
Out:  ORDER BY and the condition "after that row"; the cursor of the next page

- The key is always the last sort term. So no two rows are equal, and a page neither repeats nor
  omits a row, whatever ties there are.
- Null, or an absent value, is greater than every value: last ascending, first descending.
- The index (value, key) serves one field in both directions: the key sorts in the same direction.
- A cursor holds the sort values of the last row in PostgreSQL's text form, which PostgreSQL reads
  back to the same values. It is validated: a forged cursor returns only rows that its sender may
  see.
"""

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from thermocline.errors import Invalid
from thermocline.hot.postgres.page.condition import ROW, Binds, field_expression
from thermocline.hot.postgres.schema.layout import Layout

FIELDS_MAX = 8
CURSOR_BYTES_MAX = 16_384


@dataclass(frozen=True, slots=True)
class SortTerm:
    """One sort term."""

    expression: str
    pg_type: str
    is_descending: bool


@dataclass(frozen=True, slots=True)
class SortOrder:
    """A whole order; the last term is the key."""

    terms: tuple[SortTerm, ...]
    signature: int

    @property
    def text(self) -> str:
        """The terms of ORDER BY."""
        ways = {False: "asc nulls last", True: "desc nulls first"}
        return ", ".join(f"{term.expression} {ways[term.is_descending]}" for term in self.terms)

    @property
    def values(self) -> str:
        """The sort values of a row as texts for its cursor, each after a comma.

        The key is not among them: every row has it, and it is a text.
        """
        return "".join(f", ({term.expression})::text" for term in self.terms[:-1])

    def ranges(self, cursor: str | None, binds: Binds) -> list[str]:
        """Return the conditions for rows after the cursor, to be queried one by one.

        Each selects a range of the order; rows of the second range come after all of the first.
        With one field, a range is one range of its index, despite ties or nulls before it.
        """
        if cursor is None:
            return ["true"]
        found = self._decode_cursor(cursor)
        if len(self.terms) != 2:
            return [self._after_condition(found, binds)]
        field, key = self.terms
        sign = "<" if field.is_descending else ">"
        given = f"{binds.add(found[1])}::text"
        if found[0] is None:
            tail = f"({field.expression} is null and {key.expression} {sign} {given})"
            return [tail, f"{field.expression} is not null"] if field.is_descending else [tail]
        value = f"{binds.add(found[0])}::{field.pg_type}"
        near = f"(({field.expression}, {key.expression}) {sign} ({value}, {given}))"
        return [near] if field.is_descending else [near, f"{field.expression} is null"]

    def encode_cursor(self, values: Sequence[str | None]) -> str:
        """Return the cursor of a row from its sort values as texts."""
        data = msgspec.json.encode([self.signature, *values])
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    def _after_condition(self, found: Sequence[str | None], binds: Binds) -> str:
        parts = []
        for last in range(len(self.terms)):
            same = [self._equal_condition(self.terms[n], found[n], binds) for n in range(last)]
            parts.append(" and ".join([*same, self._beyond_condition(last, found[last], binds)]))
        return "((" + ") or (".join(parts) + "))"

    def _equal_condition(self, term: SortTerm, value: str | None, binds: Binds) -> str:
        if value is None:
            return f"{term.expression} is null"
        return f"{term.expression} = {binds.add(value)}::{term.pg_type}"

    def _beyond_condition(self, number: int, value: str | None, binds: Binds) -> str:
        term = self.terms[number]
        if value is None:
            return f"{term.expression} is not null" if term.is_descending else "false"
        given = f"{binds.add(value)}::{term.pg_type}"
        if term.is_descending:
            return f"{term.expression} < {given}"
        if number + 1 == len(self.terms):  # the key is never null
            return f"{term.expression} > {given}"
        return f"({term.expression} > {given} or {term.expression} is null)"

    def _decode_cursor(self, cursor: str) -> list[str | None]:
        error = Invalid(
            "the cursor does not fit this sort order",
            hint="use the cursor of the previous page with the same sort",
        )
        if not isinstance(cursor, str) or len(cursor) > CURSOR_BYTES_MAX:
            raise error
        try:
            data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
            signature, *values = msgspec.json.decode(data, type=list[int | str | None])
        except (binascii.Error, ValueError, msgspec.MsgspecError) as cause:
            raise error from cause
        texts = [value for value in values if not isinstance(value, int)]
        is_whole = len(texts) == len(values) == len(self.terms) and texts[-1] is not None
        if signature != self.signature or not is_whole:
            raise error
        return texts


def order_of(layout: Layout, sort: Sequence[str], binds: Binds) -> SortOrder:
    """Return the order of these fields; `Invalid` for an unknown field."""
    if len(sort) > FIELDS_MAX:
        raise Invalid("too many fields to sort by", hint="use fewer", fields_max=FIELDS_MAX)
    terms = []
    for word in sort:
        name = word.removeprefix("-")
        place, pg_type = field_expression(layout, name, binds)
        if pg_type == "jsonb":
            place = f"nullif({place}, 'null')"
        terms.append(SortTerm(place, pg_type, word.startswith("-")))
    is_descending = terms[-1].is_descending if terms else False
    terms.append(SortTerm(f"{ROW}.id", "text", is_descending))
    signature = zlib.crc32(repr((layout.type_id, tuple(sort))).encode())
    return SortOrder(tuple(terms), signature)
