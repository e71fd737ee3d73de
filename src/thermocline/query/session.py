"""SQL over registered tables: each query sees one exact version of every table it names.

In:   names with tables or roots; SQL with parameters
Out:  Arrow tables and streams; errors of this package only

- A query reads the newest version of each table at its start, or the one its `AS OF` names, and
  reads that version to its end, regardless of later commits.
- If a file of the version cannot be read, the error names it. A stream that fails raises an error;
  it never ends early without one.
- Views and macros of the session pass the gate when they are defined and at every use. They are
  created on the cursor of the query that needs them, which is then closed.
- The session's queries share one warm engine; each uses a separate cursor, so a session is
  thread-safe.

`run_prepared` is the only place that gives SQL to an engine in this process.
"""

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from thermocline.cold.care.pin import Pin
from thermocline.cold.segment.row_reader import RowReader
from thermocline.cold.storage.local import LocalStorage
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid, NotFound, Overloaded, ThermoclineError, Unavailable
from thermocline.format.argument import check_count, check_path, check_text
from thermocline.format.layout import Version
from thermocline.hot.tier import HotSnapshot
from thermocline.query.cache import LruCache
from thermocline.query.engine import (
    MEMORY_BYTES_DEFAULT,
    SPILL_BYTES_DEFAULT,
    Engine,
    EngineLimits,
    translate_errors,
)
from thermocline.query.explain import explain
from thermocline.query.report import QueryReport
from thermocline.query.source import Source, check_table_name, unknown_table_error
from thermocline.query.sql.engine_types import quote_text
from thermocline.query.sql.gate import admit
from thermocline.query.sql.parameter_hints import find_hints
from thermocline.query.sql.prepare import OutOfReach, PreparedQuery, StatementCache, prepare
from thermocline.query.sql.rewrite import guess_proof_text
from thermocline.query.sql.script import (
    Definition,
    Definitions,
    Explains,
    OpenPivot,
    Script,
    admit_definition,
    apply_change,
    names_of,
    open_pivot,
    read_script,
)

BATCH_ROWS_DEFAULT = 131_072
STATEMENTS_KEPT_MAX = 256
KEPT_TEXT_LENGTH_MAX = 100_000  # the tree of a longer text takes too much memory to be kept
PLAIN_FILES_MAX = 10_000
"""The most files of one registered folder."""

Params = Sequence[Any] | Mapping[str, Any] | None


class Session:
    """Tables under names, and SQL over them.

    Views and macros that its queries define last until it is closed; with `keeps_definitions=False`
    they last as long as the text that defines them.
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        memory_limit_bytes: int = MEMORY_BYTES_DEFAULT,
        spill_limit_bytes: int = SPILL_BYTES_DEFAULT,
        keeps_definitions: bool = True,
    ) -> None:
        self._limits = EngineLimits(
            0 if threads is None else check_count(threads, "threads"),
            check_count(memory_limit_bytes, "memory_limit_bytes"),
            check_count(spill_limit_bytes, "spill_limit_bytes"),
        )
        self._lock = threading.RLock()
        self._sources: dict[str, Source] = {}
        self._copy_folders: set[str] = set()  # folders of local copies of an object store's files
        self._engine: Engine | None = None
        self._busy_cursors: set[duckdb.DuckDBPyConnection] = set()  # cursors of running queries
        self._readers: weakref.WeakSet[RowReader] = weakref.WeakSet()
        self._pins: set[Pin] = set()  # of streams that are open
        self._is_closed = False
        self._statements: LruCache[str, StatementCache] = LruCache(STATEMENTS_KEPT_MAX)
        self._keeps_definitions = keeps_definitions
        self._definitions: Definitions = {}

    def register_tstable(
        self, name: str, table: Any, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Register a table, or the root of one, under a name; it replaces the name's old entry.

        A root is a folder or an object store's URL. `NotFound` when it has no table.
        """
        check_table_name(name)
        opened = getattr(table, "cold", table)
        if not isinstance(opened, ColdTable):
            opened = ColdTable(open_storage(table, storage_options, "table"))
        opened.state()
        self.register_view(name, opened)

    def register_view(
        self, name: str, table: ColdTable, hot: Callable[[], HotSnapshot] | None = None
    ) -> None:
        """Register a table together with a function that returns its hot rows.

        Every query calls it once for each table it names, then reads the newest version.
        """
        self._register(Source(check_table_name(name), table=table, hot=hot))

    def register_parquet(self, name: str, path: "str | os.PathLike[str]") -> None:
        """Register plain Parquet files under a name: one, or all `*.parquet` below a folder.

        The files of a folder are those of this moment; columns are matched by name. It replaces the
        name's old entry.
        """
        check_table_name(name)
        paths = _list_parquet_files(os.path.abspath(check_path(path, "path")))
        self._register(Source(name, paths=paths))

    def register_broken(self, name: str, error: ThermoclineError) -> None:
        """Register the name of a table that cannot be opened; queries that need it raise this."""
        self._register(Source(check_table_name(name), error=error))

    def _register(self, source: Source) -> None:
        with self._lock:
            self._check_open()
            self._sources[source.name.lower()] = source

    def deregister(self, name: str) -> None:
        """Remove a name; `NotFound` when it is not registered."""
        key = check_text(name, "name").lower()
        with self._lock:
            if self._sources.pop(key, None) is None:
                raise unknown_table_error(name, [source.name for source in self._sources.values()])

    def tables(self) -> list[str]:
        """Return the registered names in order."""
        with self._lock:
            return sorted(source.name for source in self._sources.values())

    def sql(self, query: str, params: Params = None) -> pa.Table:
        """Return the answer of one SELECT as a table.

        Parameters are `?` or `$1` with a list, or `$name` with a mapping. The text may also be
        EXPLAIN, SHOW TABLES, or definitions of temporary views and macros before the query.
        `Invalid` when the query cannot be run, `NotFound` for a table that is not registered.
        """
        with self._open_query(query, params) as task, _translate_read_errors(task.prepared):
            return task.answer()

    def sql_reader(
        self, query: str, params: Params = None, batch_rows: int = BATCH_ROWS_DEFAULT
    ) -> RowReader:
        """Return the answer of one SELECT as a stream of batches.

        The versions it reads stay pinned, and its cursor stays open, until the stream is read to
        its end, fails, is closed or dropped, or the session is closed.
        """
        return self.read(query, params, batch_rows)[0]

    def read(
        self, query: str, params: Params = None, batch_rows: int = BATCH_ROWS_DEFAULT
    ) -> tuple[RowReader, QueryReport]:
        """Return the answer of one SELECT as a stream, and a report of what it reads."""
        check_count(batch_rows, "batch_rows", least=1)
        with ExitStack() as stack:
            task = stack.enter_context(self._open_query(query, params))
            prepared = task.prepared
            for table, state in prepared.versions:
                stack.callback(self._release, self._pin(table, state.version))
            with _translate_read_errors(prepared):
                reader = task.stream(batch_rows)
            batches = _stream_batches(reader, prepared, stack.pop_all())
            next(batches)  # from here on, closing it releases the pins and the cursor
            rows = RowReader(reader.schema, batches)
            self._readers.add(rows)
            return rows, prepared.report()

    def _pin(self, table: ColdTable, version: Version) -> Pin:
        pin = Pin(table, version)
        self._pins.add(pin)
        return pin

    def _release(self, pin: Pin) -> None:
        pin.release()
        self._pins.discard(pin)

    def release_pins(self) -> None:
        """Release the pins of every stream, without waiting for the streams, before an exit."""
        for pin in self._pins.copy():
            pin.release()

    @contextmanager
    def _open_query(self, query: str, params: Params) -> Iterator["_Task"]:
        """Prepare a query on a cursor that the block's end gives back or closes."""
        script = read_script(check_text(query, "query"))
        task = None
        while task is None:
            with self._lock:
                self._check_open()
                sources = dict(self._sources)
                engine = self._engine_for(sources)
                cursor = engine.cursor()
                self._busy_cursors.add(cursor)
            is_clean = False
            try:
                with engine.lend_parser(cursor) as parser:
                    planned = self._plan(parser, script, sources)
                prepared = prepare(
                    cursor,
                    planned.statement,
                    sources,
                    params,
                    engine.may_read,
                    planned.needed,
                    [one.name for one in planned.definitions.values() if one.kind == "view"],
                )
                self._keep_definitions(script)
                task = _Task(prepared, script.explains, planned.pivot)
                yield task
                is_clean = prepared.leaves_nothing and not task.is_special
            except OutOfReach as error:
                with self._lock:
                    self._copy_folders.add(error.folder)
            finally:
                self._busy_cursors.discard(cursor)
                if is_clean:
                    engine.give_back(cursor)
                else:
                    with suppress(duckdb.Error):
                        cursor.close()

    def _plan(
        self, parser: duckdb.DuckDBPyConnection, script: Script, sources: Mapping[str, Source]
    ) -> "_Plan":
        """Admit the query of a text, and every view and macro that it defines or needs."""
        definitions = self._definitions
        for change in script.changes:
            definitions = apply_change(definitions, change)
        query, changed = script.query, [change.name.lower() for change in script.changes]
        if query is None:
            if not self._keeps_definitions:
                raise Invalid(
                    "a definition lasts as long as its session, and this query has none",
                    hint="write the query behind it: CREATE TEMP VIEW v AS ...; SELECT * FROM v",
                )
            query = f"SELECT {quote_text(script.changes[-1].name)} AS changed"
        pivot = open_pivot(parser, query)
        names = names_of(definitions)
        if pivot is not None:
            if script.explains:
                raise Invalid("EXPLAIN needs a PIVOT with a list", hint="write ON a IN ('x', 'y')")
            statement = StatementCache(admit(parser, pivot.text, None, names))
            pivot.check(statement.statement)
        elif definitions:
            statement = StatementCache(admit(parser, query, None, names))
        else:
            statement = self._admit_plain(parser, query, sources)
        wanted = [*statement.statement.defined, *(name for name in changed if name in definitions)]
        needed = _admit_definitions(parser, definitions, wanted)
        return _Plan(statement, needed, definitions, pivot)

    def hint_parameters(self, query: bytes) -> bytes:
        """Return what a query says about its parameters, and the tables it names, as JSON."""
        script = read_script(check_text(query.decode(), "query"))
        if script.query is None or script.changes:
            return orjson.dumps({"hints": [], "tables": []})
        with self._lock:
            self._check_open()
            sources = dict(self._sources)
            engine = self._engine_for(sources)
            cursor = engine.cursor()
        try:
            with engine.lend_parser(cursor) as parser:
                statement = self._admit_plain(parser, script.query, sources).statement
        finally:
            engine.give_back(cursor)
        hints = [(one.parameter, one.column, one.type) for one in find_hints(statement.nodes)]
        return orjson.dumps({"hints": hints, "tables": sorted(statement.tables)})

    def _admit_plain(
        self, parser: duckdb.DuckDBPyConnection, query: str, sources: Mapping[str, Source]
    ) -> StatementCache:
        """Return the statement of a query without definitions, from the cache if it is there."""
        known = self._statements.get(query)
        if known is not None:
            return known
        found = StatementCache(admit(parser, query, guess_proof_text(query, sources)))
        if len(query) > KEPT_TEXT_LENGTH_MAX:
            return found
        return self._statements.put(query, found)

    def _keep_definitions(self, script: Script) -> None:
        if script.changes and self._keeps_definitions:
            with self._lock:
                for change in script.changes:
                    self._definitions = apply_change(self._definitions, change)

    def _engine_for(self, sources: Mapping[str, Source]) -> Engine:
        folders = {
            source.folder for source in sources.values() if source.folder
        } | self._copy_folders
        files = {path for source in sources.values() for path in source.paths}
        engine = self._engine
        if engine is None or engine.folders != folders or engine.files != files:
            # The folders of an engine cannot change, so other folders need another engine.
            self._engine = Engine(folders, files, self._limits)
            if engine is not None:
                engine.close()
        assert self._engine is not None
        return self._engine

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the session is closed", hint="open another session")

    def interrupt(self) -> None:
        """Ask every running query to stop; each stops at the engine's next interrupt check."""
        for cursor in list(self._busy_cursors):
            cursor.interrupt()

    def close(self) -> None:
        """Close the engine and every stream; a later read of a stream raises `Invalid`."""
        with self._lock:
            self._is_closed = True
            engine, self._engine = self._engine, None
            readers = list(self._readers)
        for reader in readers:
            reader.close()
        if engine is not None:
            engine.close()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"tables={self.tables()}"
        return f"Session({state})"

    def _repr_html_(self) -> str:
        from thermocline.show import list_html

        with self._lock:
            sources = sorted(self._sources.values(), key=lambda one: one.name)
        lines = [
            (one.name, one.table.storage.root if one.table else ", ".join(one.paths[:3]))
            for one in sources
        ]
        return list_html("SQL session", "closed" if self._is_closed else "", lines)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Plan:
    """An admitted query, with the views and macros that it needs, each after those it needs."""

    statement: StatementCache
    needed: list[tuple[Definition, StatementCache]]
    definitions: Definitions
    pivot: OpenPivot | None


def _admit_definitions(
    parser: duckdb.DuckDBPyConnection, definitions: Definitions, wanted: Iterable[str]
) -> list[tuple[Definition, StatementCache]]:
    """Admit the wanted definitions and those they need; return them in the order of creation."""
    names = names_of(definitions)
    found: dict[str, tuple[Definition, StatementCache]] = {}
    needs: dict[str, frozenset[str]] = {}
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name not in found:
            definition = definitions[name]
            statement = admit_definition(parser, definition, names)
            found[name] = (definition, StatementCache(statement))
            needs[name] = statement.defined
            waiting += statement.defined
    try:
        return [found[name] for name in TopologicalSorter(needs).static_order()]
    except CycleError as error:
        hint = "define it without itself"
        raise Invalid("a view or macro needs itself", hint=hint, names=error.args[1]) from error


@dataclass(frozen=True, slots=True)
class _Task:
    """A prepared query, and what to do with it: return its rows, or explain it."""

    prepared: PreparedQuery
    explains: Explains
    pivot: OpenPivot | None

    @property
    def is_special(self) -> bool:
        """Whether the cursor is left with more than the query."""
        return bool(self.explains) or self.pivot is not None

    def answer(self) -> pa.Table:
        """Return the whole answer."""
        if self.explains:
            return explain(self.prepared, runs=self.explains == "run")
        answer: pa.Table = self._relation().to_arrow_table()
        return answer

    def stream(self, batch_rows: int) -> pa.RecordBatchReader:
        """Return the answer as the engine computes it."""
        if self.explains:
            return self.answer().to_reader()
        return self._relation().to_arrow_reader(batch_rows)

    def _relation(self) -> duckdb.DuckDBPyRelation:
        if self.pivot is None:
            return run_prepared(self.prepared)
        text = self.pivot.remove_lists(self.prepared.text)
        return run_prepared(replace(self.prepared, text=text))


def _list_parquet_files(path: str) -> tuple[str, ...]:
    """Return a file, or the Parquet files below a folder; `NotFound` when there is none."""
    if os.path.isfile(path):
        return (path,)
    found = [
        os.path.join(path, os.path.normpath(stored.path))
        for stored in LocalStorage(path).list(".")
        if stored.path.endswith(".parquet")
        and not stored.path.rpartition("/")[2].startswith((".", "_"))
    ]
    if len(found) > PLAIN_FILES_MAX:
        hint = "append them to a table, which reads only the files that a query needs"
        raise Overloaded("too many files", hint=hint, path=path, files_max=PLAIN_FILES_MAX)
    if not found:
        hint = "check the path; a folder is read with all `*.parquet` files below it"
        raise NotFound("no such Parquet file, and no folder with one", hint=hint, path=path)
    return tuple(sorted(found))


def run_prepared(prepared: PreparedQuery) -> duckdb.DuckDBPyRelation:
    """Give a prepared query to the engine of this process; reading the relation runs it."""
    relation = prepared.cursor.sql(prepared.text, params=prepared.parameters or None)
    assert relation is not None
    return relation


@contextmanager
def _translate_read_errors(prepared: PreparedQuery) -> Iterator[None]:
    """Translate the engine's errors; if a file of the query changed, raise `Corruption`."""
    try:
        with translate_errors(prepared.files):
            yield
    except Overloaded:
        raise
    except ThermoclineError:
        prepared.recheck()
        raise


def _stream_batches(
    reader: pa.RecordBatchReader, prepared: PreparedQuery, stack: ExitStack
) -> Generator[pa.RecordBatch, None, None]:
    with stack:
        yield None
        while True:
            with _translate_read_errors(prepared):
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            yield batch
