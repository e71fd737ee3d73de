"""Prepares a statement to run: chooses table versions, prunes segments, generates the SQL text.

In:   a `Statement`, the registered sources, parameters; a cursor
Out:  a `PreparedQuery`: text with a relation in place of every table, for this cursor

- Every table is opened once for each version that the query names, before anything is read.
- Segments are pruned by the state and by token sidecars, for each reference by its conditions.
  Every remaining file is located before the engine gets the text.
- A query that reads the clock runs in the same transaction as the constants used for pruning.
"""

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from thermocline.cold.segment.parquet import read_rows
from thermocline.cold.segment.token_filter import may_hold_tokens
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid, Overloaded, ThermoclineError
from thermocline.format import instant
from thermocline.format.argument import check_parameters
from thermocline.format.log.action import Segment
from thermocline.format.log.state import TableState
from thermocline.format.schema import Schema
from thermocline.query.cache import LruCache
from thermocline.query.engine import translate_errors
from thermocline.query.information_schema import answer_catalog
from thermocline.query.report import QueryReport, TableReport
from thermocline.query.series.evaluate import RESULT_ROWS_MAX, TimeSlice
from thermocline.query.series.gap_fill import MODES, NULL, fill_gaps
from thermocline.query.source import (
    ARGUMENTS,
    USAGE,
    QuerySnapshot,
    Source,
    answer_function,
    unknown_table_error,
    view_at,
)
from thermocline.query.sql.allowed_functions import (
    CATALOG_FUNCTION,
    FILL_FUNCTION,
    SERIES_FUNCTIONS,
)
from thermocline.query.sql.constant import (
    Constant,
    ConstantValue,
    Parameters,
    convert_parameter,
    evaluate_constants,
    is_constant,
    parse_constant,
)
from thermocline.query.sql.engine_types import Shape, quote_identifier, shape_of
from thermocline.query.sql.exact_constant import (
    ColumnConstants,
    check_compared_constants,
    find_column_constants,
)
from thermocline.query.sql.gate import (
    CATALOG_SCHEMA,
    INTERNAL_PREFIX,
    FunctionCall,
    Statement,
    admit,
    rows_needed,
)
from thermocline.query.sql.plan import (
    ConditionCache,
    Constraint,
    find_constraints,
    prune_segments,
    time_window,
)
from thermocline.query.sql.rewrite import QueryTemplate, call_view_name, make_template
from thermocline.query.sql.scan import (
    ScanRelation,
    build_relation,
    columns_of,
    count_relation,
    file_relation,
    names_needed,
)
from thermocline.query.sql.script import Definition
from thermocline.query.sql.series_call import (
    SeriesCall,
    answer_call,
    find_slices,
    label_constraints,
    parse_call,
    parse_width,
    source_columns,
    wants,
)
from thermocline.query.sql.series_catalog import (
    CATALOG,
    CATALOG_TABLES,
    CatalogSource,
    catalog_columns,
    list_series,
)
from thermocline.query.sql.syntax import Tree, statement_text, with_parameters
from thermocline.snapshot import TableView, hot_pieces, hot_rows, narrow_view

_INSTANT_TYPE = "TIMESTAMPTZ_NS"
_SHAPES_KEPT_MAX = 256
FILL_DEPTH_MAX = 4
"""How deeply calls of `fill_gaps` may be nested: each level is parsed again."""

_shapes: LruCache[int, tuple[Schema, Shape]] = LruCache(_SHAPES_KEPT_MAX)


class OutOfReach(Exception):
    """A file lies in a folder that the engine may not read: another engine is needed.

    The session handles it. It happens once for each folder of local copies.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.folder = os.path.dirname(path)


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A query ready to run: text and parameters for the cursor that has its views.

    It `leaves_nothing` when it adds no view, variable, rows or transaction to the cursor. `report`
    returns what it reads, `table_files` the name of the table, path and bytes of each file of a
    table. `recheck` raises `Corruption` when a file that it reads was replaced or
    changed since it was located.
    """

    cursor: duckdb.DuckDBPyConnection
    text: str
    parameters: Parameters
    files: Mapping[str, str]
    versions: Sequence[tuple[ColdTable, TableState]]
    leaves_nothing: bool
    report: Callable[[], QueryReport]
    recheck: Callable[[], None]
    table_files: Callable[[], list[tuple[str, str, int]]]


def prepare(
    cursor: duckdb.DuckDBPyConnection,
    known: "StatementCache",
    sources: Mapping[str, Source],
    params: Sequence[Any] | Mapping[str, Any] | None,
    may_read: Callable[[str], bool],
    defined: Sequence[tuple[Definition, "StatementCache"]] = (),
    views: Sequence[str] = (),
) -> PreparedQuery:
    """Prepare a query to run on this cursor; when this returns, no row has been read.

    `defined` are the views and macros of the session that the query needs, each after those that
    it needs; the cursor then has them. `views` are the names of all views of the session.
    `OutOfReach` when the cursor's engine may not read a file.
    """
    statement = known.statement
    parameters = bind_parameters(statement, params)
    statements = [statement, *(one.statement for _, one in defined)]
    for one in statements:
        _check_tables(one, sources, defined)
    if any(one.asks_clock for one in statements):
        cursor.execute("BEGIN")
    if known.template is None:
        known.template = make_template(cursor, statement)
    ready = known.template
    preparing = _Preparation(cursor, known, sources, parameters, may_read)
    preparing.views = views
    preparing.open_versions()
    files: dict[str, str] = {}
    for definition, body in defined:
        files |= preparing.define(definition, body)
    preparing.register_calls()
    relations, read = preparing.make_relations(ready)
    files |= read
    return PreparedQuery(
        cursor,
        ready.fill(relations),
        {name: parameters[name] for name in ready.parameters},
        files,
        preparing.versions(),
        preparing.leaves_nothing and not defined,
        preparing.report,
        preparing.recheck,
        preparing.table_files,
    )


def _check_tables(
    statement: Statement,
    sources: Mapping[str, Source],
    defined: Sequence[tuple[Definition, "StatementCache"]],
) -> None:
    """Raise an error for a table that is missing or broken, or has the name of a view."""
    for name, written in statement.tables.items():
        if name not in sources:
            views = [one.name for one, _ in defined if one.kind == "view"]
            known = [*(source.name for source in sources.values()), *views]
            raise unknown_table_error(written, known)
        error = sources[name].error
        if error is not None:
            raise error
    for definition, _ in defined:
        if definition.kind == "view" and definition.name.lower() in sources:
            hint = "drop the view, or define it under another name"
            raise Invalid("a view has the name of a table", hint=hint, name=definition.name)


def bind_parameters(
    statement: Statement, params: Sequence[Any] | Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the parameters by name; `Invalid` when they do not match those of the query."""
    values = check_parameters(params, "params") or {}
    if isinstance(values, dict):
        given = {name.lower(): value for name, value in values.items()}
    else:
        given = {str(place): value for place, value in enumerate(values, 1)}
    wanted = {name.lower(): name for name in statement.parameters}
    missing, excess = wanted.keys() - given.keys(), given.keys() - wanted.keys()
    if missing or excess:
        raise Invalid(
            "the parameters do not match those of the query",
            hint="give exactly one value for each parameter",
            missing=sorted(missing),
            excess=sorted(excess),
        )
    return {written: convert_parameter(given[name], written) for name, written in wanted.items()}


class _TableFile(NamedTuple):
    """A file named by a table's log."""

    table: str
    path: str
    size_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class _KeptText:
    """The generated text of a statement, for reuse with the same table states."""

    states: tuple[TableState | None, ...]
    needed: tuple[_TableFile, ...]
    relations: Mapping[int, str]
    files: Mapping[str, str]
    counts: Mapping[str, "_ReadCounts"]


class _ReadCounts(NamedTuple):
    """What a query reads of a table; the log alone gave the rows of `files_counted`."""

    hot_rows: int = 0
    cold_rows: int = 0
    files: int = 0
    files_counted: int = 0


@dataclass(eq=False)
class StatementCache:
    """A statement with what its earlier preparations found, for the next one.

    Threads may share it: each value is replaced as a whole, by an equally valid one.
    """

    statement: Statement
    template: QueryTemplate | None = None
    constants: dict[int, Constant] = field(default_factory=dict)
    conditions: ConditionCache = field(default_factory=ConditionCache)
    column_constants: list[ColumnConstants] | None = None
    text: _KeptText | None = None


class _Preparation:
    """The intermediate results of preparing one query."""

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        known: StatementCache,
        sources: Mapping[str, Source],
        parameters: Parameters,
        may_read: Callable[[str], bool],
        snapshot: QuerySnapshot | None = None,
        owner: str = "",
        depth: int = 0,
    ) -> None:
        self._depth = depth
        self.views: Sequence[str] = ()
        self._owner = owner
        self._hidden_names: frozenset[str] = frozenset()
        self._may_read = may_read
        self._cursor = cursor
        self._known = known
        self._statement = known.statement
        self._sources = sources
        self._parameters = parameters
        self._snapshot = snapshot or QuerySnapshot()
        self._views: list[TableView | None] = []
        self._located: dict[_TableFile, str] = {}
        self._counts: dict[str, _ReadCounts] = {}
        self._has_extras = False
        self._series: dict[int, SeriesCall] = {}
        self._constraints: list[list[Constraint]] | None = None

    def define(self, definition: Definition, known: StatementCache) -> dict[str, str]:
        """Create a view or macro on the cursor; return the files that it reads.

        It reads the same version of each table as the query.
        """
        owner = definition.name.lower()
        inner = _Preparation(
            self._cursor, known, self._sources, {}, self._may_read, self._snapshot, owner
        )
        inner._located, inner._counts = self._located, self._counts
        inner.views = self.views
        inner._hidden_names = frozenset(name.lower() for name, _ in definition.parameters)
        if known.template is None:
            known.template = make_template(self._cursor, known.statement, owner)
        if len(known.template.slots) < len(known.statement.references):
            hint = "write SELECT * FROM the table, without TABLESAMPLE"
            raise Invalid("a definition cannot read a table in this way", hint=hint, name=owner)
        if definition.parameters and FILL_FUNCTION in [
            one.function for one in known.statement.calls
        ]:
            hint = "call it in the query that uses the macro"
            raise Invalid("fill_gaps runs before the parameters are known", hint=hint, name=owner)
        inner.open_versions()
        inner.register_calls()
        relations, files = inner.make_relations(known.template)
        with translate_errors(files):
            self._cursor.execute(definition.sql(known.template.fill(relations)))
        return files

    def open_versions(self) -> None:
        for reference in self._statement.references:
            source, clause = self._sources[reference.table], reference.node["at_clause"]
            if clause:
                value = self._evaluate_constant(clause["expr"], "AS OF")
                self._views.append(view_at(self._snapshot, source, clause["unit"], value))
            else:
                self._views.append(self._snapshot.newest(source) if source.table else None)

    def register_calls(self) -> None:
        """Answer every call, then register all answers: a subquery may register its calls, too."""
        calls = self._statement.calls
        arguments = [self._evaluate_arguments(call) for call in calls]
        for place, (call, values) in enumerate(zip(calls, arguments, strict=True)):
            if call.function in SERIES_FUNCTIONS:
                self._series[place] = self._parse_series_call(call.function, values)
        answers = [
            self._answer_call(place, call, values)
            for place, (call, values) in enumerate(zip(calls, arguments, strict=True))
        ]
        for place, rows in enumerate(answers):
            with translate_errors():
                self._cursor.register(call_view_name(place, self._owner), rows)

    def _evaluate_arguments(self, call: FunctionCall) -> list[ConstantValue]:
        if call.function.startswith(CATALOG_SCHEMA):
            return []
        least, most = ARGUMENTS[call.function]
        if not least <= len(call.arguments) <= most:
            raise Invalid(
                "wrong number of arguments for this function",
                hint=USAGE[call.function],
                function=call.function,
            )
        given = call.arguments[1:] if call.function == FILL_FUNCTION else call.arguments
        values = [self._evaluate_constant(argument, call.function) for argument in given]
        if call.function == FILL_FUNCTION or not values:
            return values
        name = values[0].value
        if not isinstance(name, str):
            hint = f"write the table's name as a text: {call.function}('name')"
            raise Invalid("the first argument must be the name of a table", hint=hint)
        if name.lower() not in self._sources:
            raise unknown_table_error(name, [source.name for source in self._sources.values()])
        return values

    def _parse_series_call(self, function: str, values: Sequence[ConstantValue]) -> SeriesCall:
        name = values[0].value.lower()
        state = self._snapshot.newest(self._sources[name]).state
        return parse_call(function, values, name, state)

    def _answer_call(
        self, place: int, call: FunctionCall, values: Sequence[ConstantValue]
    ) -> pa.Table:
        schema, _, table = call.function.rpartition(".")
        if schema:
            return answer_catalog(table, self._sources, self.views, self._snapshot)
        if call.function == FILL_FUNCTION:
            return self._answer_fill(call, values)
        if call.function == CATALOG_FUNCTION:
            return self._list_series(place, values)
        if place in self._series:
            constraints = self._find_constraints()[len(self._statement.references) + place]
            return self._answer_series(place, self._series[place], constraints)
        source = self._sources[values[0].value.lower()]
        return answer_function(self._snapshot, source, call.function, values[1:])

    def _answer_fill(self, call: FunctionCall, values: Sequence[ConstantValue]) -> pa.Table:
        """Run the subquery of `fill_gaps` on the same versions, and fill the gaps of its answer."""
        window_ns = parse_width(values[0], "window")
        mode = values[1].value if len(values) > 1 else NULL
        if mode not in MODES:
            raise Invalid(
                "unknown way to fill gaps", hint=f"use one of {', '.join(MODES)}", mode=mode
            )
        if self._depth >= FILL_DEPTH_MAX:
            hint = "fill the gaps of one result, then join or aggregate it"
            raise Invalid("fill_gaps is nested too deeply", hint=hint, depth_max=FILL_DEPTH_MAX)
        tree = call.arguments[0]["subquery"]
        statement = admit(self._cursor, statement_text(self._cursor, with_parameters(tree)))
        return fill_gaps(self._run_subquery(statement), window_ns, str(mode))

    def _run_subquery(self, statement: Statement) -> pa.Table:
        """Return the rows of a query that sees the same versions as this one."""
        for name, written in statement.tables.items():
            if name not in self._sources:
                known = [source.name for source in self._sources.values()]
                raise unknown_table_error(written, known)
        inner = _Preparation(
            self._cursor,
            StatementCache(statement),
            self._sources,
            {name: self._parameters[name] for name in statement.parameters},
            self._may_read,
            self._snapshot,
            self._owner,
            self._depth + 1,
        )
        ready = make_template(self._cursor, statement, self._owner)
        inner.open_versions()
        inner.register_calls()
        relations, files = inner.make_relations(ready)
        parameters = {name: self._parameters[name] for name in ready.parameters}
        self._counts |= inner._counts
        self._located |= inner._located
        text = f"SELECT * FROM ({ready.fill(relations)}) LIMIT {RESULT_ROWS_MAX + 1}"  # noqa: S608
        rows = self._run_text(text, files, parameters)
        if rows.num_rows > RESULT_ROWS_MAX:
            raise Overloaded(
                "the query inside fill_gaps has more rows than the limit",
                hint="group it by windows of time, or select fewer groups",
                rows_max=RESULT_ROWS_MAX,
            )
        return rows

    def _run_text(
        self, text: str, files: Mapping[str, str], parameters: Parameters | None = None
    ) -> pa.Table:
        """Return the rows of a generated text; `Corruption` when a file that it reads changed."""
        try:
            with translate_errors(files):
                relation = self._cursor.sql(text, params=parameters or None)
                rows: pa.Table = relation.to_arrow_table()
                return rows
        except Overloaded:
            raise
        except ThermoclineError:
            self.recheck()
            raise

    def _list_series(self, place: int, values: Sequence[ConstantValue]) -> pa.Table:
        """Return the series of the named table, or of all tables that OpenTelemetry's metrics fill.

        What is read counts as read only if it was not kept from an earlier query.
        """
        names = [values[0].value.lower()] if values else [*CATALOG_TABLES]
        turns = itertools.count()
        found = [CATALOG.empty_table()]
        for name in names:
            source = self._sources.get(name)
            if source is None or (source.table is None and not values):
                continue
            view = self._snapshot.newest(source)
            needed = catalog_columns(view.state)

            def read(
                segment: Segment | None,
                make_text: Callable[[str], str],
                name: str = name,
                view: TableView = view,
                needed: frozenset[str] = needed,
            ) -> pa.Table:
                prefix = f"{INTERNAL_PREFIX}call{place}_{next(turns)}_"
                warm = view if segment is None else TableView(view.state)
                chosen = [] if segment is None else [segment]
                made = self._build_relation(name, view, warm, chosen, prefix, needed)
                before = self._counts.get(name, _ReadCounts())
                self._counts[name] = _ReadCounts(
                    before.hot_rows + sum(part.batch.num_rows for part in warm.parts),
                    before.cold_rows + sum(one.row_count - one.deleted_count for one in chosen),
                    before.files + len(chosen),
                )
                rows = self._run_text(make_text(made.item), made.files)
                for registered in made.rows:
                    self._cursor.unregister(registered)
                return rows

            assert source.table is not None
            segments = prune_segments(view.state, [[]])
            root = source.table.storage.root
            one = CatalogSource(source.name, root, view.state, segments, bool(view.parts), read)
            found.append(list_series(one))
        return pa.concat_tables(found)

    def _answer_series(
        self, place: int, call: SeriesCall, constraints: Sequence[Constraint]
    ) -> pa.Table:
        """Return the rows of `rate` and its like; conditions of the query restrict what is read."""
        source = self._sources[call.table]
        view = self._snapshot.newest(source)
        state, time = view.state, view.state.spec.time_column
        needed = source_columns(call, state)
        labels = label_constraints(constraints)
        segments = prune_segments(state, [labels])
        cold = [(int(one.ts_min), int(one.ts_max), one.row_count) for one in segments]
        hot = hot_pieces(view)
        pieces = [*cold, *hot]
        wants_buckets = call.function.wants_buckets and wants(self._statement.columns, "histogram")
        slices, windows_from = find_slices(call, pieces, constraints, wants_buckets=wants_buckets)
        used: set[str] = set()
        turns = itertools.count()

        def read(part: TimeSlice, make_text: Callable[[str], str]) -> pa.Table:
            high_ns = part.high_ns - 1
            inside = [*labels, Constraint(time, part.low_ns, high_ns)]
            chosen = prune_segments(state, [inside])
            used.update(one.segment_id for one in chosen)
            warm = narrow_view(view, part.low_ns, high_ns)
            prefix = f"{INTERNAL_PREFIX}call{self._owner}_{place}_{next(turns)}_"
            made = self._build_relation(call.table, view, warm, chosen, prefix, needed)
            rows = self._run_text(make_text(made.item), made.files)
            for name in made.rows:
                self._cursor.unregister(name)
            return rows

        mentioned = self._statement.columns
        rows = answer_call(call, state, slices, windows_from, constraints, mentioned, read)
        self._counts[call.table] = _ReadCounts(
            sum(count for _, _, count in hot),
            sum(one.row_count - one.deleted_count for one in segments if one.segment_id in used),
            len(used),
        )
        return rows

    def _evaluate_constant(self, expression: Tree, place: str) -> ConstantValue:
        """Return the value of an argument or `AS OF` expression; `Invalid` if it has none."""
        if not is_constant(expression, clock_words=True):
            hint = "use literals, parameters, now() and intervals"
            raise Invalid("this must be a constant", hint=hint, place=place)
        one = self._known.constants.get(id(expression))
        if one is None:
            one = parse_constant(self._cursor, expression)
            self._known.constants[id(expression)] = one
        values = evaluate_constants(self._cursor, [(one, _INSTANT_TYPE)], self._parameters)
        if values is None:
            raise Invalid("this must be a constant", hint="use a literal", place=place)
        return values[0]

    def make_relations(self, ready: QueryTemplate) -> tuple[dict[int, str], dict[str, str]]:
        """Return the FROM item of every slot, and the files read; create views for other tables."""
        kept = self._known.text
        if kept is not None and self._still_holds(kept):
            self._counts |= kept.counts
            return dict(kept.relations), dict(kept.files)
        if self._known.column_constants is None:
            self._known.column_constants = list(find_column_constants(self._statement))
        if not self._statement.defined:  # columns of views have the same names and other types
            check_compared_constants(self._known.column_constants, self._shapes(), self._parameters)
        found = self._find_constraints()
        relations: dict[int, str] = {}
        files: dict[str, str] = {}
        viewed: dict[str, list[list[Constraint]]] = {}
        for place, reference in enumerate(self._statement.references):
            if place in ready.slots:
                view = self._views[place]
                made = self._make_relation(
                    reference.table, view, [found[place]], place, is_inline=True
                )
                relations[place] = made.item
                files |= made.files
            else:
                viewed.setdefault(reference.table, []).append(found[place])
        for place, (name, alternatives) in enumerate(viewed.items(), len(found)):
            source = self._sources[name]
            view = self._snapshot.newest(source) if source.table else None
            made = self._make_relation(name, view, alternatives, place, is_inline=False)
            with translate_errors(made.files):
                self._cursor.execute(
                    f"CREATE TEMP VIEW {quote_identifier(source.name)} AS {made.sql}"
                )
            files |= made.files
        self._has_extras = self._has_extras or bool(viewed)
        if self._is_reusable:
            needed = tuple(self._located)
            self._known.text = _KeptText(self._states(), needed, relations, files, self._counts)
        return relations, files

    def _find_constraints(self) -> list[list[Constraint]]:
        """Return the constraints on every reference, then on every call."""
        if self._constraints is None:
            # In the body of a macro, the name of a column may be that of a parameter.
            calls = () if self._hidden_names else range(len(self._statement.calls))
            shapes = [
                *self._shapes(),
                *(self._series[place].shape if place in self._series else None for place in calls),
            ]
            shapes += [None] * (len(self._views) + len(self._statement.calls) - len(shapes))
            self._constraints = find_constraints(
                self._cursor, self._statement, shapes, self._parameters, self._known.conditions
            )
        return self._constraints

    @property
    def leaves_nothing(self) -> bool:
        """Whether the query adds no view, variable, rows or transaction to the cursor."""
        statement = self._statement
        is_plain = not (statement.calls or statement.asks_clock or statement.defined)
        return is_plain and not (self._has_extras or self._owner)

    @property
    def _is_reusable(self) -> bool:
        """Whether the same states give the same text: it depends on the tables only."""
        if self._statement.parameters or not self.leaves_nothing:
            return False
        return all(view is not None and not view.parts for view in self._views)

    def _states(self) -> tuple[TableState | None, ...]:
        return tuple(None if view is None else view.state for view in self._views)

    def _still_holds(self, kept: "_KeptText") -> bool:
        """Tell whether a cached text reads the same states, from files that still exist."""
        same = len(kept.states) == len(self._views) and all(
            view is not None and view.state is state and not view.parts
            for view, state in zip(self._views, kept.states, strict=True)
        )
        return same and list(kept.files) == list(
            dict.fromkeys(self._locate(file) for file in kept.needed)
        )

    def _locate(self, file: "_TableFile") -> str:
        """Return the path of a table's file after checking that it has the committed bytes."""
        if file not in self._located:
            table = self._sources[file.table].table
            assert table is not None
            path = table.storage.locate(file.path, file.size_bytes, file.checksum)
            if not self._may_read(path):
                raise OutOfReach(path)
            self._located[file] = path
        return self._located[file]

    def recheck(self) -> None:
        """Locate every file again; a file that changed since is compared again."""
        for file in [*self._located]:
            del self._located[file]
            self._locate(file)

    def _shapes(self) -> list[Shape | None]:
        shapes = [None if state is None else _table_shape(state) for state in self._states()]
        names = self._hidden_names
        if names and any(shape and names & shape.columns.keys() for shape in shapes):
            # In the body of a macro this name is a parameter, and not the column.
            return [None for _ in shapes]
        return shapes

    def _make_relation(
        self,
        name: str,
        view: TableView | None,
        alternatives: list[list[Constraint]],
        place: int,
        *,
        is_inline: bool,
    ) -> ScanRelation:
        """Return the relation of a source, with its variables and rows set on the cursor."""
        source = self._sources[name]
        table = source.table
        if table is None or view is None:
            return file_relation(source.paths)
        state = view.state
        needed = self._statement.columns if is_inline else None
        if needed is not None and not needed:
            return self._count_rows(name, view)
        limit = rows_needed(self._statement) if is_inline else None
        if limit is None:
            may_hold = partial(may_hold_tokens, table.storage)
            segments = prune_segments(state, alternatives, may_hold)
        else:
            segments = state.segments.holding(limit)
        prefix = f"{INTERNAL_PREFIX}{self._owner}_{place}_"
        warm = narrow_view(view, *time_window(state.spec.time_column, alternatives))
        before = self._counts.get(name, _ReadCounts())
        self._counts[name] = _ReadCounts(
            before.hot_rows + sum(part.batch.num_rows for part in warm.parts),
            before.cold_rows + sum(one.row_count - one.deleted_count for one in segments),
            before.files + len(segments),
            before.files_counted,
        )
        return self._build_relation(name, view, warm, segments, prefix, needed)

    def _build_relation(
        self,
        name: str,
        view: TableView,
        warm: TableView,
        segments: Sequence[Segment],
        prefix: str,
        needed: frozenset[str] | None,
    ) -> ScanRelation:
        """Return the relation of these segments and the hot rows of `warm`, set on the cursor."""
        state, table = view.state, self._sources[name].table
        assert table is not None
        storage = table.storage

        def locate(segment: Segment) -> str:
            return self._locate(_TableFile(name, segment.path, segment.file_size, segment.checksum))

        def read(segment: Segment) -> pa.Table:
            rows = read_rows(storage, state, segment)
            return pa.Table.from_batches([part.batch for part in rows], state.schema.arrow)

        hot = hot_rows(warm, names_needed(state, needed)) if warm.parts else None
        made = build_relation(state, segments, locate, read, prefix, needed, hot)
        self._has_extras = self._has_extras or bool(made.bits or made.rows)
        with translate_errors(made.files):
            for variable, bits in made.bits.items():
                self._cursor.execute(
                    f"SET VARIABLE {quote_identifier(variable)} = $1::BLOB::BIT", [bits]
                )
            for registered, rows in made.rows.items():
                self._cursor.register(registered, rows)
        return made

    def _count_rows(self, name: str, view: TableView) -> ScanRelation:
        """Return the relation of a view's rows for a query that names no column."""
        hot = sum(part.batch.num_rows for part in view.parts)
        before, cold = self._counts.get(name, _ReadCounts()), view.state.totals.rows
        self._counts[name] = _ReadCounts(
            before.hot_rows + hot,
            before.cold_rows + cold,
            before.files,
            view.state.totals.segments,
        )
        return count_relation(view.state, hot + cold)

    def table_files(self) -> list[tuple[str, str, int]]:
        """Return the table, the path inside it and the bytes of every file that is read."""
        return [(self._sources[one.table].name, one.path, one.size_bytes) for one in self._located]

    def report(self) -> QueryReport:
        """Return what the query reads, table by table."""
        tables = {}
        for name, view in self._snapshot.opened_views():
            counts = self._counts.get(name, _ReadCounts())
            tables[self._sources[name].name] = TableReport(
                view.state.version,
                instant.format_instant(self._snapshot.as_of(name)),
                counts.hot_rows,
                counts.cold_rows,
                counts.files,
                max(0, view.state.totals.segments - counts.files - counts.files_counted),
                view.warning,
            )
        return QueryReport(tables)

    def versions(self) -> list[tuple[ColdTable, TableState]]:
        """Return the tables that the query reads, with their states."""
        used = [
            (self._sources[name].table, view.state) for name, view in self._snapshot.opened_views()
        ]
        return [(table, state) for table, state in used if table is not None]


def _table_shape(state: TableState) -> Shape:
    if not state.schema.columns:
        return shape_of(pa.schema([(column.name, column.type) for column in columns_of(state)]))
    # Looked up by identity: hashing a schema of 24 columns takes 60 microseconds.
    kept = _shapes.get(id(state.schema))
    if kept is None or kept[0] is not state.schema:
        kept = _shapes.put(id(state.schema), (state.schema, shape_of(state.schema.arrow)))
    return kept[1]
