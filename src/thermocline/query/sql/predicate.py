"""Evaluates a SQL condition on the rows of Arrow batches.

In:   one boolean SQL expression; the schema of the batches
Out:  a `Predicate`: a mask for every batch, the columns it reads, the constraints it implies

- The expression passes the same gate as a query, and has no subquery, table, aggregate or
  parameter.
- The mask has the length and order of the batch; where the expression is null, it is false.
- The engine returns only the mask, so the caller filters a batch with its exact Arrow types.
- `now()` is the same instant for every batch of a predicate.
- A text that the engine would change before it compares it with a number or time is refused.
- The engine compares a whole number or a decimal with a double as doubles. A row with a number that
  no double stands for alone is refused, because another number would match in its place.
"""

import threading
from functools import lru_cache

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thermocline.errors import Invalid, NotFound
from thermocline.format.argument import check_text
from thermocline.format.types import plain_type
from thermocline.query.engine import Engine, EngineLimits, translate_errors
from thermocline.query.sql.allowed_functions import CLOCK_WORDS
from thermocline.query.sql.constant import evaluate_constants
from thermocline.query.sql.engine_types import check_engine_holds, shape_of
from thermocline.query.sql.exact_constant import (
    EXACT_WHOLE_MAX,
    check_constant_fits,
    compared_sides,
    find_constant_comparisons,
    inexact_limit,
    number_of,
)
from thermocline.query.sql.gate import (
    INTERNAL_PREFIX,
    WHOLE,
    Statement,
    admit,
    check_digits,
)
from thermocline.query.sql.plan import Constraint, conditions_on, derive_constraint, time_window
from thermocline.query.sql.syntax import Tree, check_long_text, expression_text, tree_nodes

_BATCH = f"{INTERNAL_PREFIX}batch"
_ROW = f"{INTERNAL_PREFIX}row"
_EMPTY_PARTS = ("where_clause", "having", "sample", "qualify", "group_expressions", "modifiers")
_REFUSED = {
    "SUBQUERY": "subquery",
    "STAR": "star",
    "PARAMETER": "parameter",
    "WINDOW": "window function",
    "DEFAULT": "default",
    "POSITIONAL_REFERENCE": "position",
}


class Predicate:
    """A compiled condition on batches. Thread-safe.

    `columns` are the names it reads; every row for which it is true satisfies `constraints`.
    """

    def __init__(self, where: str, schema: pa.Schema) -> None:
        self._cursor = _engine().cursor()
        self._lock = threading.Lock()
        self._cursor.execute("BEGIN")
        statement = _admit_condition(self._cursor, where)
        expression: Tree = statement.tree["node"]["select_list"][0]
        self.columns = _columns(expression, schema)
        for name in self.columns:
            check_engine_holds(name, schema.field(name).type)
        check_digits(tree_nodes(expression), WHOLE)
        self._sql = statement.text
        self._inexact: list[str] = []
        self._types = shape_of(schema).types
        self._check_condition(where, expression, schema)
        self.constraints = self._implied_constraints(expression, schema)

    def __call__(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return what `mask` returns."""
        return self.mask(batch)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether the expression is true; the batch has at least `columns`."""
        arrays = [_convert_for_engine(batch.column(name)) for name in self.columns]
        arrays.append(pa.array(np.zeros(batch.num_rows, dtype=np.int8)))
        rows = pa.table(arrays, names=[*self.columns, _ROW])
        with self._lock, translate_errors():
            self._cursor.register(_BATCH, rows)
            self._check_numbers()
            relation = self._cursor.sql(self._sql)
            answer = relation.to_arrow_table().column(0)
            self._cursor.unregister(_BATCH)
        if len(answer) != batch.num_rows:
            raise Invalid(
                "the condition does not give one value for each row",
                hint="compare columns of a row with values",
            )
        mask = pc.fill_null(answer.cast(pa.bool_()), fill_value=False).combine_chunks()
        return mask if isinstance(mask, pa.BooleanArray) else pa.concat_arrays(mask.chunks)

    def window(self, time_column: str) -> tuple[int | None, int | None]:
        """Return the half-open time range outside which the condition is never true."""
        low, high = time_window(time_column, [self.constraints])
        return low, None if high is None else high + 1

    def bounds(self, schema: pa.Schema) -> dict[str, tuple[int | None, int | None]]:
        """Return `window` for each column that can be a table's index and has one."""
        may_be_index = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_date)
        found = {
            field.name: self.window(field.name)
            for field in schema
            if any(is_kind(field.type) for is_kind in may_be_index)
        }
        return {name: bounds for name, bounds in found.items() if bounds != (None, None)}

    def _check_condition(self, where: str, expression: Tree, schema: pa.Schema) -> None:
        """Bind the expression in a WHERE clause, which accepts only a condition on a row."""
        columns = [
            _convert_for_engine(pa.array([], schema.field(name).type)) for name in self.columns
        ]
        empty = pa.table([*columns, pa.array([], pa.int8())], names=[*self.columns, _ROW])
        with translate_errors():
            self._cursor.register(_BATCH, empty)
            self._cursor.execute(_select_text("SELECT 1", where)).fetchall()
            self._check_constants(expression)
            self._inexact = self._find_inexact(expression)
            kind = str(self._cursor.sql(self._sql).types[0])
            self._cursor.unregister(_BATCH)
        if kind not in ("BOOLEAN", '"NULL"'):
            raise Invalid(
                "the condition is not boolean", hint="compare columns with values", type=kind
            )

    def _check_constants(self, expression: Tree) -> None:
        """Raise `Invalid` for a constant that the engine would change to compare it."""
        for compared in find_constant_comparisons(tree_nodes(expression)):
            for other in compared.others:
                kind = self._type_of(other)
                for one in (*compared.texts, *compared.numbers) if kind else ():
                    check_constant_fits(one, str(kind))

    def _find_inexact(self, expression: Tree) -> list[str]:
        """Return conditions on rows whose numbers are compared as doubles, and inexactly."""
        found = []
        for part in tree_nodes(expression):
            sides = compared_sides(part)
            numbers = [one for one in map(number_of, sides) if isinstance(one, float)]
            others = [side for side in sides if not isinstance(side.get("literal"), dict)]
            kinds = [kind for kind in map(self._type_of, others) if kind]
            is_constant = bool(numbers) and not any(kind in EXACT_WHOLE_MAX for kind in kinds)
            every = [*kinds, "DOUBLE"] if numbers else kinds
            for side in others:
                limit = inexact_limit(every, self._type_of(side) or "")
                if limit is None:
                    continue
                if is_constant and all(abs(one) < float(limit) for one in numbers):
                    continue
                text = expression_text(self._cursor, side)
                found.append(f"({text}) NOT BETWEEN -{limit} AND {limit}")
        return found

    def _type_of(self, side: Tree) -> str | None:
        """Return the engine's type of a part, or None if it cannot be bound alone."""
        if side["class"] == "COLUMN_REF" and len(side["column_names"]) == 1:
            known = self._types.get(side["column_names"][0].lower())
            if known is not None:
                return known
        try:
            text = expression_text(self._cursor, side)
            (kind,) = self._cursor.sql(_select_text(f"SELECT {text}", "true")).types
        except duckdb.Error:
            return None  # a part of a lambda
        return str(kind)

    def _check_numbers(self) -> None:
        """Raise `Invalid` if the registered rows have a number that is compared inexactly."""
        for inexact in self._inexact:
            if self._cursor.execute(f"{_select_text('SELECT 1', inexact)} LIMIT 1").fetchall():
                raise Invalid(
                    "a number of a row would be compared as a double, which stands for several",
                    hint="compare it with a whole number or a decimal, or cast it to double",
                    condition=inexact,
                )

    def _implied_constraints(self, expression: Tree, schema: pa.Schema) -> tuple[Constraint, ...]:
        conditions = conditions_on(self._cursor, expression, shape_of(schema))
        wanted = [(one, c.column.type) for c in conditions for one in c.constants]
        values = evaluate_constants(self._cursor, wanted, {})
        if values is None:
            return ()
        left = iter(values)
        found = [
            derive_constraint(c.column, c.operator, c.constants, [next(left) for _ in c.constants])
            for c in conditions
        ]
        return tuple(one for one in found if one is not None)


def compile_predicate(where: str, schema: pa.Schema) -> Predicate:
    """Return the predicate of one boolean SQL expression over columns of this schema.

    `Invalid` for any other expression, `NotFound` for a column that the schema does not have.
    """
    return Predicate(check_text(where, "where"), schema)


@lru_cache(maxsize=1)
def _engine() -> Engine:
    # One thread keeps the rows in order and is fast enough for one batch.
    return Engine((), (), EngineLimits(threads=1, spill_bytes=0))


def _select_text(chosen: str, where: str) -> str:
    """Return a SELECT of `chosen` where the condition holds; of the condition if it is empty."""
    if chosen:
        return f"{chosen} FROM {_BATCH} WHERE (\n{where}\n)"
    return f"SELECT\n{where}\nFROM {_BATCH}"  # gated before it runs


def _admit_condition(cursor: duckdb.DuckDBPyConnection, where: str) -> Statement:
    try:
        check_long_text(where)
        statement = admit(cursor, _select_text("", where))
    except Invalid as error:
        if "position" in error.facts:
            error.facts["position"] -= _select_text("", where).index(where)
        raise
    node = statement.tree["node"]
    is_one = (
        node["type"] == "SELECT_NODE"
        and len(node["select_list"]) == 1
        and not node["select_list"][0]["alias"]
        and node["from_table"]["type"] == "BASE_TABLE"
        and node["from_table"]["table_name"] == _BATCH
        and not node["cte_map"]["map"]
        and not any(node[part] for part in _EMPTY_PARTS)
    )
    if not is_one or len(statement.references) != 1 or statement.calls:
        raise Invalid("expected one condition", hint="write only the text that follows WHERE")
    for part in tree_nodes(node["select_list"]):
        refused = _REFUSED.get(part.get("class", ""))
        if refused:
            hint = "a condition compares columns of a row with values"
            raise Invalid("this cannot be part of a condition", hint=hint, part=refused)
    return statement


def _convert_for_engine(column: pa.Array) -> pa.Array:
    """Return a column in a type that the engine accepts, as it would read it from Parquet."""
    kind = column.type
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if pa.types.is_duration(kind):
        return column.cast(pa.int64())
    if pa.types.is_decimal(kind):
        return column.cast(plain_type(kind))  # the same digits in the type that the engine accepts
    return column


def _columns(expression: Tree, schema: pa.Schema) -> tuple[str, ...]:
    """Return the schema's columns that an expression reads, in the schema's order."""
    by_lower = {name.lower(): name for name in schema.names}
    named, has_lambda = set(), False
    for part in tree_nodes(expression):
        has_lambda = has_lambda or part.get("class") == "LAMBDA"
        if part.get("class") == "COLUMN_REF":
            named.add(part["column_names"][0].lower())
    unknown = named - by_lower.keys() - CLOCK_WORDS
    if unknown and not has_lambda:
        raise NotFound(
            "no such column",
            hint="name one of the table's columns",
            column=sorted(unknown)[0],
            columns=schema.names,
        )
    return tuple(name for name in schema.names if name.lower() in named)
