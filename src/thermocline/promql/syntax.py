"""PromQL text to a tree of frozen nodes.

In:   the text of an expression
Out:  its tree; `Invalid` with the parser's reason where the text is no expression

- Only this module knows the parser. The nodes have times in milliseconds and names as texts.
- What the parser takes and the evaluation does not is refused here, by name.
"""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from thermocline.errors import Invalid, Unsupported
from thermocline.extras import require_extra
from thermocline.promql.labels import NAME, Matcher

with require_extra("server", feature="PromQL"):
    import promql_parser

TEXT_BYTES_MAX = 64 << 10
DEPTH_MAX = 100
_NEGATIVE_AT = re.compile(r"@\s*-")
_STRINGS = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`", re.DOTALL)
_COMMENTS = re.compile(r"#[^\n]*")
_OPERATORS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
_CARDINALITIES = {
    "OneToOne": "one-to-one",
    "ManyToOne": "many-to-one",
    "OneToMany": "one-to-many",
    "ManyToMany": "many-to-many",
}


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class String:
    """A string."""

    text: str


@dataclass(frozen=True, slots=True)
class When:
    """The `@` and `offset` of a selector: `at` is a time, `start`, `end` or None."""

    at: float | str | None = None
    offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class Selector:
    """Series by their labels; with `range_ms` their samples of that long."""

    matchers: tuple[Matcher, ...]
    alternatives: tuple[tuple[Matcher, ...], ...]
    when: When
    range_ms: int = 0


@dataclass(frozen=True, slots=True)
class Subquery:
    """An expression evaluated at steps of a range."""

    inner: "Node"
    range_ms: int
    step_ms: int | None
    when: When


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function."""

    name: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation over groups of series."""

    operator: str
    inner: "Node"
    parameter: "Node | None"
    names: tuple[str, ...]
    is_by: bool


@dataclass(frozen=True, slots=True)
class Matching:
    """How the series of two vectors are paired."""

    cardinality: str = "one-to-one"
    names: tuple[str, ...] = ()
    is_on: bool = False
    included: tuple[str, ...] = ()
    fill_left: float | None = None
    fill_right: float | None = None


@dataclass(frozen=True, slots=True)
class Binary:
    """An operation on two values."""

    operator: str
    left: "Node"
    right: "Node"
    returns_bool: bool = False
    matching: Matching = field(default_factory=Matching)


@dataclass(frozen=True, slots=True)
class Negation:
    """The negative of a value."""

    inner: "Node"


Node = Number | String | Selector | Subquery | Call | Aggregation | Binary | Negation


def parse_expression(text: str) -> Node:
    """Return the tree of an expression; `Invalid` when it is none."""
    if len(text.encode(errors="replace")) > TEXT_BYTES_MAX:
        raise Invalid("the query is longer than the limit", bytes_max=TEXT_BYTES_MAX)
    plain = _COMMENTS.sub("", _STRINGS.sub('""', text))
    if _NEGATIVE_AT.search(plain):
        raise Unsupported(
            "the modifier @ with a time before 1970 is not supported", hint="use offset"
        )
    if _nesting(plain) > DEPTH_MAX:
        raise Invalid("the query is nested too deep", hint="nest less", depth_max=DEPTH_MAX)
    try:
        return _convert(promql_parser.parse(text))
    except ValueError as error:
        raise Invalid(
            "the query is not valid PromQL", hint="fix the query", why=str(error)
        ) from error
    except RecursionError as error:
        raise Invalid("the query is nested too deep", hint="nest less") from error
    except BaseException as error:
        # A panic of the parser's code arrives as an exception that is no `Exception`.
        if type(error).__name__ != "PanicException":
            raise
        raise Invalid("the parser cannot read the query", hint="write it differently") from error


def _nesting(plain: str) -> int:
    """Return how deep brackets are nested, plus the longest run of signs."""
    depth = deepest = 0
    for letter in plain:
        if letter in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in ")]}":
            depth -= 1
    signs = max((len(run) for run in re.findall(r"(?:[+-]\s*)+", plain)), default=0)
    return max(deepest, signs)


def parse_matchers(text: str) -> Selector:
    """Return the selector of an expression that is one selector without a range."""
    node = parse_expression(text)
    if not isinstance(node, Selector) or node.range_ms:
        raise Invalid("this is not a selector of series", hint='use one as {job="api"}', match=text)
    return node


def _convert(node: Any) -> Node:
    return _CONVERTERS[type(node)](node)


def _selector(node: Any, range_ms: int = 0) -> Selector:
    found = node.matchers
    named = (Matcher(NAME, "=", node.name),) if node.name else ()
    matchers = named + tuple(map(_matcher, found.matchers))
    alternatives = tuple(named + tuple(map(_matcher, one)) for one in found.or_matchers)
    return Selector(matchers, alternatives, _when(node), range_ms)


def _matcher(one: Any) -> Matcher:
    operator = _OPERATORS[str(one.op).rpartition(".")[2]]
    return Matcher(one.name, operator, one.value)


def _when(node: Any) -> When:
    at: float | str | None = None
    if node.at is not None:
        kind = str(node.at.type).rpartition(".")[2]
        at = kind.lower() if kind in ("Start", "End") else float(str(node.at).removeprefix("@"))
    return When(at, _milliseconds(node.offset) if node.offset else 0)


def _milliseconds(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))


def _matrix(node: Any) -> Node:
    return _selector(node.vector_selector, _milliseconds(node.range))


def _subquery(node: Any) -> Node:
    step = None if node.step is None else _milliseconds(node.step)
    return Subquery(_convert(node.expr), _milliseconds(node.range), step, _when(node))


def _call(node: Any) -> Node:
    return Call(node.func.name, tuple(map(_convert, node.args)))


def _aggregation(node: Any) -> Node:
    modifier = node.modifier
    kind = "" if modifier is None else str(modifier.type)
    return Aggregation(
        str(node.op),
        _convert(node.expr),
        None if node.param is None else _convert(node.param),
        () if modifier is None else tuple(modifier.labels),
        not kind.endswith("Without"),
    )


def _binary(node: Any) -> Node:
    modifier, operator = node.modifier, str(node.op)
    is_set = operator in ("and", "or", "unless")
    matching, returns_bool = Matching("many-to-many" if is_set else "one-to-one"), False
    if modifier is not None:
        returns_bool = modifier.return_bool
        found, fill = modifier.matching, modifier.fill_values
        matching = Matching(
            _CARDINALITIES[str(modifier.card).rpartition(".")[2]],
            () if found is None else tuple(found.labels),
            found is not None and str(found.type).endswith("Include"),
            tuple(modifier.group_labels or ()),
            None if fill is None else fill.lhs,
            None if fill is None else fill.rhs,
        )
    return Binary(operator, _convert(node.lhs), _convert(node.rhs), returns_bool, matching)


_CONVERTERS: dict[type, Any] = {
    promql_parser.NumberLiteral: lambda node: Number(node.val),
    promql_parser.StringLiteral: lambda node: String(node.val),
    promql_parser.VectorSelector: _selector,
    promql_parser.MatrixSelector: _matrix,
    promql_parser.SubqueryExpr: _subquery,
    promql_parser.Call: _call,
    promql_parser.AggregateExpr: _aggregation,
    promql_parser.BinaryExpr: _binary,
    promql_parser.UnaryExpr: lambda node: Negation(_convert(node.expr)),
    promql_parser.ParenExpr: lambda node: _convert(node.expr),
}
