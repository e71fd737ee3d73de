"""The declaration of a rollup, in TOML or Python, checked before anything runs.

In:   `name`, `source`, `every`, `by`, `aggregates` as short SQL, and a condition `where`
Out:  a `Rollup`; with the columns of its source, the columns of its result

    count(*)  count(c)  count(distinct c)      whole numbers
    sum(c)                                     of numbers: whole, decimal or float, as c is
    avg(c)  stddev(c)  median(c)               of numbers, as float64; stddev is that of a sample
    percentile(c, 0.95)                        exact, interpolated, as float64
    min(c)  max(c)                             as c is; NaN is the greatest number
    first(c)  last(c)                          by time, without nulls; equal times by value

- No other aggregates exist, and a mistake is reported before the rollup runs.
- Two declarations with different digests are different rollups.
- A window is a bucket of the result: from one second to one day, in UTC.
"""

import difflib
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.types as kinds

from thermocline.errors import Invalid, NotFound
from thermocline.format.bucket import INT64, Bucket, parse_bucket
from thermocline.format.schema import Schema, TableColumn
from thermocline.format.types import plain_type
from thermocline.names import is_table_name

AGGREGATES_MAX = 200
_SHAPE = re.compile(
    r"\s*([a-z_]+)\s*\(\s*(distinct\s)?\s*(?:(\*)|\"([^\"]+)\"|([^\s\",()*]+))\s*"
    r"(?:,\s*([0-9.]+)\s*)?\)\s*",
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"\b(now|today|random|uuid|get_current_\w+|current_\w+|localtime\w*|transaction_timestamp)\b",
    re.IGNORECASE,
)
_LITERAL = re.compile(r"'(?:[^']|'')*'")
_NUMBERS = ("sum", "avg", "stddev", "median", "percentile")
FUNCTIONS = ("count", *_NUMBERS, "min", "max", "first", "last")
_DECLARED = ("name", "source", "every", "by", "aggregates", "where")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One column of a result: a function of a column; `share` is that of a percentile."""

    name: str
    function: str
    column: str | None = None
    is_distinct: bool = False
    share: float | None = None

    def __str__(self) -> str:
        """Return the aggregate as it is declared."""
        of = "*" if self.column is None else f'"{self.column}"'
        share = "" if self.share is None else f", {self.share!r}"
        return f"{self.function}({'distinct ' * self.is_distinct}{of}{share})"


@dataclass(frozen=True, slots=True)
class Rollup:
    """A declared rollup: a table `name` made of windows of another."""

    name: str
    source: str
    every: Bucket
    by: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    where: str | None = None

    def on_index(self, source: Bucket) -> "Rollup":
        """Return the rollup of a source with these buckets: its windows count the same index."""
        if self.every.is_time != source.is_time:
            raise Invalid(
                "the windows of a rollup count another index than its source",
                hint="write every = '1h' for times, and every = 1000 for whole numbers",
                rollup=self.name,
                every=str(self.every),
                index_type=source.index_type,
            )
        return (
            self if source.is_time else replace(self, every=Bucket(self.every.count, source.unit))
        )

    @property
    def declaration(self) -> dict[str, Any]:
        """The declaration in its canonical form."""
        return {
            "source": self.source,
            "every": str(self.every),
            "by": list(self.by),
            "aggregates": {one.name: str(one) for one in self.aggregates},
            "where": self.where,
        }

    @property
    def digest(self) -> str:
        """A digest of the declaration: equal declarations have equal digests."""
        return hashlib.sha256(orjson.dumps(self.declaration)).hexdigest()[:32]

    @property
    def columns(self) -> list[str]:
        """The columns that it reads from the source, without those of time and condition."""
        named = [one.column for one in self.aggregates if one.column is not None]
        return list(dict.fromkeys([*self.by, *named]))


def rollup(
    name: str,
    source: str,
    every: str,
    *,
    by: Sequence[str] = (),
    aggregates: Mapping[str, str],
    where: str | None = None,
) -> Rollup:
    """Return a rollup that is declared in Python; `Invalid` says what is wrong with it."""
    if not (isinstance(name, str) and is_table_name(name)) or name == source:
        raise Invalid(
            "invalid name of a rollup",
            hint="use letters, digits and underscores, and not the name of its source",
            name=name,
        )
    if isinstance(by, str) or not all(isinstance(one, str) for one in by):
        hint = 'write by = ["host"]'
        raise Invalid("`by` must be a list of columns", hint=hint, rollup=name, by=by)
    if not isinstance(aggregates, Mapping) or not 0 < len(aggregates) <= AGGREGATES_MAX:
        raise Invalid(
            "a rollup needs at least one aggregate, and at most `aggregates_max`",
            hint='write aggregates = { n = "count(*)", mean = "avg(value)" }',
            rollup=name,
            aggregates_max=AGGREGATES_MAX,
        )
    parsed = tuple(_parse_aggregate(name, one, str(text)) for one, text in aggregates.items())
    _check_where(name, where)
    index_type = INT64 if str(every).strip().isdigit() else None
    width = parse_bucket(every, "every", index_type)
    return Rollup(name, source, width, tuple(by), parsed, where)


def parse_rollup(entry: Mapping[str, Any]) -> Rollup:
    """Return the rollup of one `[[rollup]]` of a TOML file."""
    unknown = sorted(entry.keys() - {*_DECLARED})
    if unknown:
        near = difflib.get_close_matches(unknown[0], _DECLARED, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use {', '.join(_DECLARED)}"
        raise Invalid("unknown setting of a rollup", hint=hint, setting=unknown[0])
    missing = [name for name in ("name", "source", "every", "aggregates") if name not in entry]
    if missing:
        hint = "a rollup has name, source, every and aggregates"
        raise Invalid("a rollup lacks settings", hint=hint, missing=missing)
    where = entry.get("where")
    return rollup(
        entry["name"],
        str(entry["source"]),
        str(entry["every"]),
        by=entry.get("by", ()),
        aggregates=entry["aggregates"],
        where=None if where is None else str(where),
    )


def _parse_aggregate(rollup_name: str, name: str, text: str) -> Aggregate:
    found = _SHAPE.fullmatch(text)
    facts = {"rollup": rollup_name, "aggregate": name, "got": text}
    if not found:
        hint = f"write one function of one column: {', '.join(FUNCTIONS)}"
        raise Invalid("invalid aggregate", hint=hint, **facts)
    word, distinct, star, quoted, bare, number = found.groups()
    function = word.lower()
    if function not in FUNCTIONS:
        near = [one for one in FUNCTIONS if one in function]
        near = near or difflib.get_close_matches(function, FUNCTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(FUNCTIONS)}"
        raise Invalid("unknown function of a rollup", hint=hint, **facts)
    if (star or distinct) and (function != "count" or (star and distinct)):
        hint = "use `*` and `distinct` for count only: count(*), count(distinct column)"
        raise Invalid("invalid aggregate", hint=hint, **facts)
    share = _parse_share(number, facts) if function == "percentile" else None
    if function != "percentile" and number is not None:
        raise Invalid("invalid aggregate", hint="only percentile takes a number", **facts)
    return Aggregate(name, function, quoted or bare, bool(distinct), share)


def _parse_share(number: str | None, facts: Mapping[str, Any]) -> float:
    hint = "write percentile(column, 0.95), with a share from 0 to 1"
    try:
        share = float(number or "")
    except ValueError as error:
        raise Invalid("a percentile needs a share", hint=hint, **facts) from error
    if not 0 <= share <= 1:
        raise Invalid("a percentile's share is out of range", hint=hint, **facts)
    return share


def _check_where(name: str, where: str | None) -> None:
    found = _CLOCK.search(_LITERAL.sub("", where or ""))
    if found:
        raise Invalid(
            "the condition of a rollup depends on when it runs",
            hint="compare columns with constants: unchanged windows are not computed again",
            rollup=name,
            word=found.group(),
        )


def result_columns(rollup: Rollup, schema: Schema, time_column: str) -> pa.Schema:
    """Return the columns of the result for a source with these columns.

    `NotFound` and `Invalid` name the rollup, the aggregate and the wrong column.
    """
    fields = [pa.field(time_column, plain_type(schema.column(time_column).type), nullable=False)]
    for name in rollup.by:
        kind = _find_column(rollup, schema, name, "by").type
        if not _is_key(kind):
            hint = "group by texts, whole numbers, decimals, dates, times or booleans"
            raise _unsuitable_type(rollup, "by", name, kind, hint)
        fields.append(pa.field(name, plain_type(kind)))
    fields += [pa.field(one.name, _result_type(rollup, one, schema)) for one in rollup.aggregates]
    seen: set[str] = set()
    for one_field in fields:
        if not one_field.name or one_field.name.lower() in seen:
            hint = "use each name once: aggregates, `by` and time column need different names"
            raise Invalid("a name is used twice", hint=hint, rollup=rollup.name, got=one_field.name)
        seen.add(one_field.name.lower())
    if rollup.where is not None:
        from thermocline.query.sql.predicate import compile_predicate

        compile_predicate(rollup.where, schema.arrow)
    return pa.schema(fields)


def _find_column(rollup: Rollup, schema: Schema, name: str, where: str) -> TableColumn:
    if name not in schema.by_name:
        raise NotFound(
            "the source of a rollup has no such column",
            hint="name one of the source's columns",
            rollup=rollup.name,
            aggregate=where,
            column=name,
            columns=list(schema.by_name)[:20],
        )
    return schema.by_name[name]


def _result_type(rollup: Rollup, one: Aggregate, schema: Schema) -> pa.DataType:
    if one.column is None:
        return pa.int64()
    kind = plain_type(_find_column(rollup, schema, one.column, one.name).type)
    is_number = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal128(kind)
    if one.function == "count":
        if one.is_distinct and not (_is_key(kind) or kinds.is_floating(kind)):
            raise _unsuitable_type(rollup, one.name, one.column, kind, "count plain values")
        return pa.int64()
    if one.function in _NUMBERS:
        if not is_number:
            hint = f"{one.function} needs numbers; count, first and last take any plain value"
            raise _unsuitable_type(rollup, one.name, one.column, kind, hint)
        if one.function != "sum" or kinds.is_floating(kind):
            return pa.float64()
        return pa.int64() if kinds.is_integer(kind) else pa.decimal128(38, kind.scale)
    if not (_is_key(kind) or kinds.is_floating(kind)):
        hint = f"{one.function} needs plain values, not lists, maps or structs"
        raise _unsuitable_type(rollup, one.name, one.column, kind, hint)
    return kind


def _is_key(kind: pa.DataType) -> bool:
    kind = plain_type(kind)
    tests = (kinds.is_integer, kinds.is_string, kinds.is_binary, kinds.is_boolean)
    return (
        any(test(kind) for test in (*tests, kinds.is_decimal128))
        or kinds.is_fixed_size_binary(kind)
        or (kinds.is_temporal(kind) and not kinds.is_interval(kind))
    )


def _unsuitable_type(
    rollup: Rollup, where: str, name: str, kind: pa.DataType, hint: str
) -> Invalid:
    return Invalid(
        "a column's type does not suit the rollup",
        hint=hint,
        rollup=rollup.name,
        aggregate=where,
        column=name,
        type=str(kind),
    )
