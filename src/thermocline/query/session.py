"""SQL over registered tables: each query sees one exact version of every table it names.

In:   names with tables or roots; SQL with parameters
Out:  Arrow tables and streams; errors of this package only

- A query reads the newest version of each table at its start, or the one its `AS OF` names, and
  reads that version to its end, regardless of later commits.
- If a file of the version cannot be read, the error names it. A stream that fails raises an error;
  it never ends early without one.
- The session's queries share one warm engine; each uses a separate cursor, so a session is
  thread-safe.

`run_prepared` is the only place that gives SQL to an engine in this process.
"""

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import duckdb
import pyarrow as pa

from thermocline.cold.care.pin import Pin
from thermocline.cold.segment.row_reader import RowReader
from thermocline.cold.storage.open_storage import open_storage
from thermocline.cold.table import ColdTable
from thermocline.errors import NotFound, Overloaded, ThermoclineError, Unavailable
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
from thermocline.query.report import QueryReport
from thermocline.query.source import Source, check_table_name, unknown_table_error
from thermocline.query.sql.gate import admit
from thermocline.query.sql.prepare import OutOfReach, PreparedQuery, StatementCache, prepare
from thermocline.query.sql.rewrite import guess_proof_text

BATCH_ROWS_DEFAULT = 131_072
STATEMENTS_KEPT_MAX = 256

Params = Sequence[Any] | Mapping[str, Any] | None


class Session:
    """Tables under names, and SQL over them."""

    def __init__(
        self,
        *,
        threads: int | None = None,
        memory_limit_bytes: int = MEMORY_BYTES_DEFAULT,
        spill_limit_bytes: int = SPILL_BYTES_DEFAULT,
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
        """Register one plain Parquet file under a name; it replaces the name's old entry."""
        check_table_name(name)
        absolute = os.path.abspath(check_path(path, "path"))
        if not os.path.isfile(absolute):
            raise NotFound("no such file", hint="check the path", path=absolute)
        self._register(Source(name, path=absolute))

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

        Parameters are `?` or `$1` with a list, or `$name` with a mapping. `Invalid` when the
        query is not one SELECT or cannot be run, `NotFound` for a table that is not registered.
        """
        with self._open_query(query, params) as prepared, _translate_read_errors(prepared):
            answer: pa.Table = run_prepared(prepared).to_arrow_table()
            return answer

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
            prepared = stack.enter_context(self._open_query(query, params))
            for table, state in prepared.versions:
                stack.callback(self._release, self._pin(table, state.version))
            with _translate_read_errors(prepared):
                reader = run_prepared(prepared).to_arrow_reader(batch_rows)
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
    def _open_query(self, query: str, params: Params) -> Iterator[PreparedQuery]:
        """Prepare a query on a cursor that the block's end gives back or closes."""
        check_text(query, "query")
        prepared = None
        while prepared is None:
            with self._lock:
                self._check_open()
                sources = dict(self._sources)
                engine = self._engine_for(sources)
                cursor = engine.cursor()
                self._busy_cursors.add(cursor)
            is_clean = False
            try:
                statement = self._statements.get(query)
                if statement is None:
                    with engine.lend_parser(cursor) as parser:
                        admitted = admit(parser, query, guess_proof_text(query, sources))
                    statement = self._statements.put(query, StatementCache(admitted))
                prepared = prepare(cursor, statement, sources, params, engine.may_read)
                yield prepared
                is_clean = prepared.leaves_nothing
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

    def _engine_for(self, sources: Mapping[str, Source]) -> Engine:
        folders = {
            source.folder for source in sources.values() if source.folder
        } | self._copy_folders
        files = {source.path for source in sources.values() if source.path}
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

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
