"""Derives what a query needs of each table: bounds for its columns, and the segments within them.

In:   a `Statement`, the shapes of its tables, its parameters; segments with their bounds
Out:  for each reference to a table, `Constraint`s that every row it contributes must satisfy; the
      segments that may have such rows

- Sound by construction: a condition that is not fully understood is omitted, never guessed.
- Only conjuncts of WHERE, and of ON of inner joins, that compare a plain column with constants
  count. Such a condition is never true of null, so it also applies to a table below an outer join:
  a row that it removes leaves at most a row of nulls, which the query's WHERE removes again.
- No constraint is derived for the right side of an ASOF join, where another row would become the
  nearest; for the sides of positional joins and samples, where the position of a row counts; for
  tables hidden by a semi or anti join; or for a table whose name is also a common table expression.
- A column name without a table is resolved as the engine does. If two tables have the name, the
  engine reports an error, and this module ignores the condition unless USING merged the columns.
- A constraint may admit too much, never too little. Where the engine compares in another type
  than the column's, the bounds are widened by more than any rounding error.
- Times are nanoseconds since 1970 and whole numbers are Python's. Texts compare by code point,
  which is the order of their UTF-8 bytes and the engine's order.
- A segment without bounds for a column is kept, and so is one without a token sidecar.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import duckdb

from thermocline.format.log.action import Segment
from thermocline.format.log.state import TableState
from thermocline.query.sql.allowed_functions import CLOCK_WORDS
from thermocline.query.sql.constant import (
    Constant,
    ConstantValue,
    Parameters,
    evaluate_constants,
    is_constant,
    parse_constant,
)
from thermocline.query.sql.engine_types import INTEGER, TEXT, TIME, Shape, ShapeColumn
from thermocline.query.sql.gate import Statement
from thermocline.query.sql.syntax import Tree
from thermocline.query.sql.token_search import SEARCHES, check_needle, hash_needle, split_search

CONSTANTS_MAX = 1_000  # of one condition; a longer IN list is not used for pruning

_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OUTER_JOINS = frozenset({"INNER", "LEFT", "RIGHT", "FULL"})
_HIDING_JOINS = frozenset({"SEMI", "ANTI"})
# Below these limits, the type of the comparison holds every whole number near the constant exactly.
FLOAT_EXACT_MAX = 2**24 - 2
DOUBLE_EXACT_MAX = 2**53 - 2

MayHoldTokens = Callable[[Segment, Mapping[int, Sequence[int]]], bool]
"""Tells whether a segment may have a row whose columns, by id, hold all these tokens."""

_TIMES = frozenset(
    {
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_S",
        "TIMESTAMP_MS",
        "TIMESTAMP_NS",
        "TIMESTAMP WITH TIME ZONE",
        "TIMESTAMPTZ_NS",
    }
)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A column's values lie between `low` and `high`; with `values`, are among them too.

    `tokens` are hashes of tokens that each of its values has.
    """

    column: str
    low: Any = None
    high: Any = None
    low_inclusive: bool = True
    high_inclusive: bool = True
    values: tuple[Any, ...] | None = None
    tokens: tuple[int, ...] = ()

    def admits(self, least: Any, greatest: Any) -> bool:
        """Tell whether some value from `least` to `greatest` may satisfy this."""
        if self.low is not None and (
            greatest < self.low or (greatest == self.low and not self.low_inclusive)
        ):
            return False
        if self.high is not None and (
            least > self.high or (least == self.high and not self.high_inclusive)
        ):
            return False
        return self.values is None or any(least <= value <= greatest for value in self.values)


@dataclass(frozen=True, slots=True)
class Condition:
    """One conjunct about one column of one reference, its constants not yet evaluated."""

    reference: int
    column: ShapeColumn
    operator: str
    constants: tuple[Constant, ...]


@dataclass(eq=False)
class _KeptConditions:
    """The conditions for the last shapes of a statement; values too if they cannot change."""

    shapes: tuple[Shape | None, ...]
    conditions: list[Condition]
    values: list[ConstantValue] | None = None


@dataclass(eq=False)
class ConditionCache:
    """The conditions of a statement that `find_constraints` found last. Threads may share it."""

    last: _KeptConditions | None = None


@dataclass(eq=False)
class _FromItem:
    """An item of a FROM clause. Without a shape, it may have any column."""

    alias: str
    reference: int | None
    shape: Shape | None
    is_pushable: bool
    is_visible: bool = True


@dataclass(eq=False)
class _FromClause:
    """A FROM clause: its items, its joins, and the ON conditions with the items below them."""

    items: list[_FromItem] = field(default_factory=list)
    merges: list[tuple[frozenset[str] | None, list[_FromItem], list[_FromItem]]] = field(
        default_factory=list
    )
    conditions: list[tuple[Tree, list[_FromItem]]] = field(default_factory=list)


def find_constraints(
    cursor: duckdb.DuckDBPyConnection,
    statement: Statement,
    shapes: Sequence[Shape | None],
    parameters: Parameters,
    cache: ConditionCache,
) -> list[list[Constraint]]:
    """Return the constraints on each reference and call of the statement, in their order.

    `shapes` are those of the references, then those of the calls; None for one that is not pruned.
    `cache` is the one of this statement. When a constant
    reads the clock, the cursor must be in the transaction that the query will run in.
    """
    kept = cache.last
    if kept is None or not _are_same(kept.shapes, shapes):
        kept = _KeptConditions(tuple(shapes), _find_conditions(cursor, statement, shapes))
        cache.last = kept
    found: list[list[Constraint]] = [[] for _ in shapes]
    for condition, values in _evaluate_conditions(cursor, kept, parameters):
        constraint = derive_constraint(
            condition.column, condition.operator, condition.constants, values
        )
        if constraint is not None:
            found[condition.reference].append(constraint)
    return found


def _are_same(kept: Sequence[Shape | None], shapes: Sequence[Shape | None]) -> bool:
    return all(one is other for one, other in zip(kept, shapes, strict=True))


def _evaluate_conditions(
    cursor: duckdb.DuckDBPyConnection, kept: _KeptConditions, parameters: Parameters
) -> Iterator[tuple[Condition, list[ConstantValue]]]:
    values = kept.values
    if values is None:
        wanted = [(one, c.column.type) for c in kept.conditions for one in c.constants]
        values = evaluate_constants(cursor, wanted, parameters)
        if values is None:
            return
        if not any(one.asks_clock or one.parameters for one, _ in wanted):
            kept.values = values
    left = iter(values)
    for condition in kept.conditions:
        yield condition, [next(left) for _ in condition.constants]


def _find_conditions(
    cursor: duckdb.DuckDBPyConnection, statement: Statement, shapes: Sequence[Shape | None]
) -> list[Condition]:
    """Return the conditions of a statement on its references."""
    known = {
        id(reference.node): place
        for place, reference in enumerate(statement.references)
        if reference.table not in statement.expressions
    }
    calls = enumerate(statement.calls, len(statement.references))
    known |= {id(call.node): place for place, call in calls}
    root = statement.tree["node"]
    found: list[Condition] = []
    for node in statement.nodes:
        if node.get("type") == "SELECT_NODE" and "class" not in node and not node["sample"]:
            source = _FromClause()
            _collect_items(node["from_table"], source, known, shapes, is_pushable=True)
            aliases = _aliases(node["select_list"])
            clock_words = node is root and _has_no_clock_columns(source.items)
            for tree, leaves in [(node["where_clause"], source.items), *source.conditions]:
                for conjunct in _conjuncts(tree):
                    found += _parse_conjunct(cursor, conjunct, source, leaves, aliases, clock_words)
    return found


def conditions_on(
    cursor: duckdb.DuckDBPyConnection, expression: Tree, shape: Shape
) -> list[Condition]:
    """Return the conditions of an expression on the columns of one shape."""
    leaf = _FromItem("", 0, shape, is_pushable=True)
    source = _FromClause([leaf])
    clock_words = _has_no_clock_columns([leaf])
    found: list[Condition] = []
    for conjunct in _conjuncts(expression):
        found += _parse_conjunct(cursor, conjunct, source, [leaf], frozenset(), clock_words)
    return found


def _collect_items(
    node: Tree,
    source: _FromClause,
    known: Mapping[int, int],
    shapes: Sequence[Shape | None],
    *,
    is_pushable: bool,
) -> list[_FromItem]:
    """Add the FROM items below this node to `source`, and return them."""
    is_pushable = is_pushable and not node["sample"]
    if node["type"] != "JOIN":
        leaf = _make_item(node, known, shapes, is_pushable=is_pushable)
        source.items.append(leaf)
        return [leaf]
    kind, style = node["join_type"], node["ref_type"]
    is_plain = kind in _OUTER_JOINS | _HIDING_JOINS and not node["ranking_expression"]
    goes_left = is_pushable and is_plain and style in ("REGULAR", "CROSS", "NATURAL", "ASOF")
    goes_right = goes_left and style != "ASOF" and kind not in _HIDING_JOINS
    left = _collect_items(node["left"], source, known, shapes, is_pushable=goes_left)
    right = _collect_items(node["right"], source, known, shapes, is_pushable=goes_right)
    if kind in _HIDING_JOINS:
        for leaf in right:
            leaf.is_visible = False
    names = frozenset(name.lower() for name in node["using_columns"])
    source.merges.append((None if style == "NATURAL" else names, left, right))
    if node["condition"] and kind == "INNER" and style == "REGULAR":
        source.conditions.append((node["condition"], left + right))
    return left + right


def _make_item(
    node: Tree, known: Mapping[int, int], shapes: Sequence[Shape | None], *, is_pushable: bool
) -> _FromItem:
    called = node["function"]["function_name"] if node["type"] == "TABLE_FUNCTION" else ""
    alias = (node["alias"] or node.get("table_name") or called).lower()
    place = known.get(id(node))
    if node["type"] == "EMPTY":
        return _FromItem("", None, Shape({}, {}), is_pushable)
    if place is None or node["column_name_alias"]:
        return _FromItem(alias, None, None, is_pushable)
    return _FromItem(alias, place, shapes[place], is_pushable)


def _aliases(select_list: list[Tree]) -> frozenset[str]:
    """Return the aliases in the SELECT list that do not stand for the column of that name."""
    return frozenset(
        item["alias"].lower()
        for item in select_list
        if item["alias"]
        and not (
            item["class"] == "COLUMN_REF"
            and item["column_names"][-1].lower() == item["alias"].lower()
        )
    )


def _has_no_clock_columns(leaves: list[_FromItem]) -> bool:
    return all(
        leaf.shape is not None and not any(word in leaf.shape.columns for word in CLOCK_WORDS)
        for leaf in leaves
    )


def _conjuncts(tree: Tree | None) -> Iterator[Tree]:
    waiting = [tree] if tree else []
    while waiting:
        part = waiting.pop()
        if part["type"] == "CONJUNCTION_AND":
            waiting.extend(part["children"])
        else:
            yield part


def split_comparison(part: Tree) -> tuple[Tree, str, list[Tree]] | None:
    """Return column, operator and operands of a comparison with a column, else None."""
    kind = part["type"]
    if kind in _COMPARISONS:
        left, right, operator = part["left"], part["right"], _COMPARISONS[kind]
        if left["class"] != "COLUMN_REF":
            left, right, operator = right, left, _MIRRORED[operator]
        found = left, operator, [right]
    elif kind == "COMPARE_BETWEEN" and part["class"] == "BETWEEN":
        found = part["input"], "between", [part["lower"], part["upper"]]
    elif kind == "COMPARE_IN" and part["class"] == "OPERATOR":
        found = part["children"][0], "in", part["children"][1:]
    else:
        return None
    return found if found[0]["class"] == "COLUMN_REF" else None


def _parse_conjunct(
    cursor: duckdb.DuckDBPyConnection,
    conjunct: Tree,
    source: _FromClause,
    leaves: list[_FromItem],
    aliases: frozenset[str],
    clock_words: bool,
) -> list[Condition]:
    """Return the conditions of one conjunct on references among `leaves`; none if in doubt."""
    parted = split_comparison(conjunct) or split_search(conjunct)
    if parted is None:
        return []
    column, operator, others = parted
    if len(others) > CONSTANTS_MAX:
        return []
    if not all(is_constant(other, clock_words=clock_words) for other in others):
        return []
    owners = [leaf for leaf in _owners(column, source, leaves, aliases) if leaf.is_pushable]
    name = column["column_names"][-1].lower()
    asked = []
    for leaf in owners:
        described = leaf.shape.columns.get(name) if leaf.shape else None
        if described is not None and leaf.reference is not None:
            asked.append((leaf.reference, described))
    constants = tuple(parse_constant(cursor, other) for other in others) if asked else ()
    return [Condition(*one, operator, constants) for one in asked]


def _owners(
    column: Tree, source: _FromClause, leaves: list[_FromItem], aliases: frozenset[str]
) -> list[_FromItem]:
    names = [name.lower() for name in column["column_names"]]
    seen = [leaf for leaf in leaves if leaf.is_visible]
    if len(names) == 2:
        named = [leaf for leaf in seen if leaf.alias == names[0]]
        return named if len(named) == 1 and _has_column(named[0], names[1]) else []
    if len(names) != 1 or names[0] in aliases:
        return []
    owners = [leaf for leaf in seen if _has_column(leaf, names[0])]
    joins = [merge for merge in source.merges if merge[0] is None or names[0] in merge[0]]
    if not joins:
        return owners if len(owners) == 1 else []
    return owners if _is_merged(names[0], owners, seen, source) else []


def _is_merged(
    name: str, owners: list[_FromItem], seen: list[_FromItem], source: _FromClause
) -> bool:
    """Tell whether USING merges the columns of this name of all owners into one."""
    if any(leaf.shape is None for leaf in seen):
        return False
    for using, left, right in source.merges:
        is_shared = any(leaf in owners for leaf in left) and any(leaf in owners for leaf in right)
        if is_shared and (using is None or name not in using):
            return False
    types = {leaf.shape.columns[name] for leaf in owners if leaf.shape}
    return len({None if one is None else one.type for one in types}) == 1


def _has_column(leaf: _FromItem, name: str) -> bool:
    return leaf.shape is not None and name in leaf.shape.columns


def derive_constraint(
    column: ShapeColumn,
    operator: str,
    constants: Sequence[Constant],
    values: Sequence[ConstantValue],
) -> Constraint | None:
    """Return the constraint of `column operator constants`, or None when it is not certain."""
    if operator in SEARCHES:
        return _derive_search(column, operator, constants[0], values[0])
    types = {value.type for value in values}
    if "VARCHAR" in types and len(types) > 1:
        return None  # the engine casts the texts to the type of the other values
    ranges = [_range(column, *pair) for pair in zip(constants, values, strict=True)]
    found = [one for one in ranges if one is not None]
    if len(found) != len(ranges):
        return None
    exact = all(low == high for low, high in found)
    lows, highs = [low for low, _ in found], [high for _, high in found]
    match operator:
        case "=":
            tokens = hash_needle("=", lows[0]) if column.sort == TEXT else ()
            return Constraint(column.name, lows[0], highs[0], tokens=tokens)
        case "<" | "<=":
            inclusive = operator == "<=" or not exact
            return Constraint(column.name, high=highs[0], high_inclusive=inclusive)
        case ">" | ">=":
            inclusive = operator == ">=" or not exact
            return Constraint(column.name, low=lows[0], low_inclusive=inclusive)
        case "between":
            return Constraint(column.name, lows[0], highs[1])
        case "in" if found:
            among = tuple(sorted(set(lows))) if exact else None
            return Constraint(column.name, min(lows), max(highs), values=among)
    return None


def _derive_search(
    column: ShapeColumn, operator: str, constant: Constant, value: ConstantValue
) -> Constraint | None:
    """Return the constraint of a search for a needle: the tokens that every match has."""
    is_text = column.sort == TEXT and value.type == "VARCHAR" and isinstance(value.value, str)
    if is_text:
        check_needle(operator, value.value)
    if not is_text or not constant.is_direct:
        return None
    tokens = hash_needle(operator, value.value)
    return Constraint(column.name, tokens=tokens) if tokens else None


def _range(column: ShapeColumn, constant: Constant, value: ConstantValue) -> tuple[Any, Any] | None:
    """Return the least and greatest value of the column that may equal the constant."""
    exact: Any = None
    if column.sort == TIME:
        exact = _instant_of(constant, value)
    elif column.sort == TEXT:
        exact = value.value if value.type == "VARCHAR" and constant.is_direct else None
    elif column.sort == INTEGER and type(value.value) is int:
        exact = value.value
    elif column.sort == INTEGER and isinstance(value.value, float | Decimal):
        return _widen_range(value)
    return None if exact is None else (exact, exact)


def _instant_of(constant: Constant, value: ConstantValue) -> int | None:
    if value.type == "VARCHAR":
        # A text is cast to the column's type, which may read or ignore a zone in it.
        return value.instant_as_column if constant.is_direct else None
    return value.instant if value.type in _TIMES else None


def _widen_range(value: ConstantValue) -> tuple[int, int] | None:
    limit = FLOAT_EXACT_MAX if value.type == "FLOAT" else DOUBLE_EXACT_MAX
    if not math.isfinite(value.value) or abs(value.value) > limit:
        return None
    return math.floor(value.value) - 1, math.ceil(value.value) + 1


def time_window(column: str, alternatives: Iterable[Sequence[Constraint]]) -> tuple[Any, Any]:
    """Return the least and greatest time any alternative admits; None where one is unbounded."""
    lows: list[Any] = []
    highs: list[Any] = []
    for constraints in alternatives:
        mine = [one for one in constraints if one.column == column]
        lows.append(max((one.low for one in mine if one.low is not None), default=None))
        highs.append(min((one.high for one in mine if one.high is not None), default=None))
    low: Any = None if None in lows else min(lows, default=None)
    high: Any = None if None in highs else max(highs, default=None)
    return low, high


def prune_segments(
    state: TableState,
    alternatives: Sequence[Sequence[Constraint]],
    may_hold: MayHoldTokens | None = None,
) -> list[Segment]:
    """Return the segments of a state that may have rows for at least one alternative.

    An alternative is one reference of the query to the table: all its constraints hold together.
    `may_hold` asks the token sidecar of a segment; without it, tokens are not used.
    """
    time_column = state.spec.time_column
    low, high = time_window(time_column, alternatives)
    found = state.segments.overlapping(low, None if high is None else high + 1)
    ids = {column.name: str(column.id) for column in state.schema.columns}
    if not all(alternatives):
        return found
    return [
        segment
        for segment in found
        if any(
            all(_may_have_rows(segment, one, time_column, ids[one.column]) for one in constraints)
            and _may_have_tokens(segment, constraints, ids, may_hold)
            for constraints in alternatives
        )
    ]


def _may_have_tokens(
    segment: Segment,
    constraints: Sequence[Constraint],
    ids: Mapping[str, str],
    may_hold: MayHoldTokens | None,
) -> bool:
    wanted = {int(ids[one.column]): one.tokens for one in constraints if one.tokens}
    if may_hold is None or not wanted or not segment.tokens_path:
        return True
    for one in constraints:  # a column may have several conditions
        if one.tokens:
            key = int(ids[one.column])
            wanted[key] = tuple(dict.fromkeys((*wanted[key], *one.tokens)))
    return may_hold(segment, wanted)


def _may_have_rows(segment: Segment, constraint: Constraint, time_column: str, key: str) -> bool:
    if constraint.low is None and constraint.high is None:
        return True
    if constraint.column == time_column:
        return constraint.admits(segment.ts_min, segment.ts_max)
    bounds = segment.stats.get(key)
    if bounds is None:
        return True
    asked = constraint.high if constraint.low is None else constraint.low
    # Bounds of other types than whole numbers and texts are stored as texts.
    if type(bounds[0]) is not type(asked) or type(bounds[1]) is not type(asked):
        return True
    return constraint.admits(*bounds)
