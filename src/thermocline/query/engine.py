"""One warm in-memory DuckDB that can read only the registered folders and files.

In:   the folders and files that are registered; limits
Out:  cursors that run SQL; errors of this package only

- File access is configured before the configuration lock and cannot grow after it: another set of
  folders needs another engine. SQL that gets past the gate still cannot read other paths.
- The time zone is UTC on every machine.
- Rows spill to a private folder of bounded size, which `close` removes.
- Some connections only parse. They run one row of constants, for which the optimizer takes longer
  than the parser, so it is switched off for them. This must happen before the lock.
- A cursor's views and variables end when it is closed. A cursor without any may be given back for
  reuse: a new one costs a short query 1 % of its time.
"""

import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from thermocline.errors import (
    Corruption,
    Invalid,
    NotFound,
    Overloaded,
    ThermoclineError,
    Unavailable,
)
from thermocline.machine import core_count
from thermocline.query import spill
from thermocline.query.series.quantile import MACROS
from thermocline.query.sql.engine_types import quote_text
from thermocline.query.sql.scan import file_pattern
from thermocline.query.sql.token_search import TOKEN_MACROS

MEMORY_BYTES_DEFAULT = 2 << 30
SPILL_BYTES_DEFAULT = 16 << 30
ERROR_LENGTH_MAX = 1_000
CURSORS_KEPT_MAX = 8
PARSERS = 2


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Resource limits of an engine; with `spill_bytes` 0 it never spills to disk."""

    threads: int = 0
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    spill_bytes: int = SPILL_BYTES_DEFAULT


def _version_text() -> str:
    own = sys.modules["thermocline"].__version__  # to import the package would be a cycle
    return f"Thermocline {own} on DuckDB {duckdb.__version__}"


class Engine:
    """A database in memory; `cursor` gives one connection for one query."""

    def __init__(self, folders: Iterable[str], files: Iterable[str], limits: EngineLimits) -> None:
        self.folders = frozenset(folders)
        self.files = frozenset(files)
        # Only this user can read the folder: spilled rows are as private as the table's.
        self._spill = spill.make_folder() if limits.spill_bytes else ""
        self._idle: deque[duckdb.DuckDBPyConnection] = deque(maxlen=CURSORS_KEPT_MAX)
        self._remove_spill = weakref.finalize(self, spill.remove_folder, self._spill)
        try:
            self._database = duckdb.connect(":memory:")
            for macro in (*MACROS, *TOKEN_MACROS):
                self._database.execute(macro)
            self._parsers = deque(self._open_parser() for _ in range(PARSERS))
            self._database.execute(f"CREATE MACRO version() AS {quote_text(_version_text())}")
            settings = self._settings(limits)
            self._database.execute("; ".join(f"SET GLOBAL {setting}" for setting in settings))
        except duckdb.Error as error:
            self._remove_spill()
            raise Unavailable(
                "the query engine does not start", hint="check the limits", error=str(error)
            ) from error

    def _open_parser(self) -> duckdb.DuckDBPyConnection:
        parser = self._database.cursor()
        parser.execute("SET SESSION enable_optimizer = false")
        return parser

    def _settings(self, limits: EngineLimits) -> list[str]:
        # Set for the whole database: cursors do not inherit the settings of a connection.
        # The engine expands a path as a pattern before it checks it, so both forms are allowed.
        folders = {name for folder in self.folders for name in (folder, file_pattern(folder))}
        files = {name for file in self.files for name in (file, file_pattern(file))}
        return [
            "TimeZone = 'UTC'",
            f"threads = {limits.threads or core_count()}",
            f"memory_limit = '{limits.memory_bytes}B'",
            f"temp_directory = {quote_text(self._spill)}",
            f"max_temp_directory_size = '{limits.spill_bytes}B'",
            "preserve_insertion_order = false",
            "default_transaction_invalidation_policy = 'SYNTACTIC_ERRORS_DO_NOT_INVALIDATE'",
            # A cached footer is stale when a file is rewritten within a second. Segments are never
            # rewritten; plain files may be.
            f"parquet_metadata_cache = {'false' if self.files else 'true'}",
            "late_materialization_max_rows = 10000",
            "python_enable_replacements = false",
            "autoload_known_extensions = false",
            "autoinstall_known_extensions = false",
            "allow_community_extensions = false",
            "allow_persistent_secrets = false",
            f"allowed_directories = [{', '.join(quote_text(name) for name in sorted(folders))}]",
            f"allowed_paths = [{', '.join(quote_text(name) for name in sorted(files))}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ]

    def may_read(self, path: str) -> bool:
        """Tell whether this engine is allowed to read a file."""
        return path in self.files or any(path.startswith(f"{name}/") for name in self.folders)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a separate connection to the database, without views, variables or rows."""
        with suppress(IndexError):
            return self._idle.pop()
        return self._database.cursor()

    def give_back(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Keep a cursor for reuse; it has no view, variable, transaction or unread answer."""
        self._idle.append(cursor)

    @contextmanager
    def lend_parser(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
        """Lend a connection that parses quickly, or `cursor` itself when all are in use."""
        try:
            parser = self._parsers.pop()
        except IndexError:
            yield cursor
            return
        try:
            yield parser
        finally:
            self._parsers.append(parser)

    def close(self) -> None:
        """Close the database; open cursors keep it alive until they are closed."""
        self._parsers.clear()
        self._idle.clear()
        self._database.close()
        self._remove_spill()


@contextmanager
def translate_errors(files: Mapping[str, str] | None = None) -> Iterator[None]:
    """Translate errors of the engine into errors of this package, with the file they concern.

    `files` maps the paths that the engine reads to the paths in the log.
    """
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise convert_error(error, files or {}) from error


def convert_error(error: Exception, files: Mapping[str, str]) -> ThermoclineError:
    """Return the error of this package for an error of the engine."""
    text = " ".join(str(error).split("\n\nLINE ")[0].split())[:ERROR_LENGTH_MAX]
    for known, path in files.items():
        if known in str(error) or file_pattern(known) in str(error):
            return _file_error(error, path, text, is_live=known != path)
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        return Overloaded(
            "the query needs more memory than the limit",
            hint="select fewer rows or columns, or raise the memory limit",
            error=text,
        )
    if isinstance(error, duckdb.InterruptException):
        return Unavailable("the query was interrupted", hint="run the query again")
    if isinstance(error, duckdb.IOException | duckdb.FatalException | duckdb.InternalException):
        return Unavailable("the query engine failed", hint="run the query again", error=text)
    return Invalid("the query cannot be run", hint="fix the SQL", error=text)


def _file_error(error: Exception, path: str, text: str, *, is_live: bool) -> ThermoclineError:
    if "No such file" in text or "No files found" in text:
        if not is_live:
            return NotFound("no such file", hint="check the path", path=path)
        hint = "restore it from a backup; `thermocline table fsck` lists all missing files"
        return Corruption("a live file is missing", hint=hint, path=path)
    if isinstance(error, duckdb.IOException | OSError):
        hint = "check the disk, then run the query again"
        return Unavailable("a live file cannot be read", hint=hint, path=path, error=text)
    hint = "restore the file from a copy"
    return Corruption("a segment cannot be read as Parquet", hint=hint, path=path, error=text)
