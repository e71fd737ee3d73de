"""One warm DuckDB in memory, locked down to the folders it may read.

In:   the folders and files that are registered; limits
Out:  cursors that run SQL; errors of this package only

- Access is given before the lock and cannot grow after it: another set of folders is another
  engine. Nothing outside the folders can be read, whatever SQL gets past the gate.
- Clocks are in UTC, whatever zone the machine is in.
- Spilled rows go to a folder of the engine's own, of a bounded size, removed at `close`.
- Some connections only parse: what they run is one row of constants, which an optimizer would
  spend longer on than the parser does. They must be set so before the lock.
- A cursor has its own views and variables, and takes them along when it is closed. One that has
  none may be given back and is used again: a new one costs a short query 1 % of its time.
"""

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
from thermocline.query.scan import file_pattern
from thermocline.query.shape import literal

MEMORY_BYTES_DEFAULT = 2 << 30
SPILL_BYTES_DEFAULT = 16 << 30
ERROR_LENGTH_MAX = 1_000
CURSORS_KEPT_MAX = 8
PARSERS = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine may use of the machine; with no `spill_bytes` it stays in memory."""

    threads: int = 0
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    spill_bytes: int = SPILL_BYTES_DEFAULT


class Engine:
    """A database in memory; `cursor` gives one connection for one query."""

    def __init__(self, folders: Iterable[str], files: Iterable[str], limits: Limits) -> None:
        self.folders = frozenset(folders)
        self.files = frozenset(files)
        # A folder of this user alone: spilled rows are as private as the table's.
        self._spill = spill.new_folder() if limits.spill_bytes else ""
        self._idle: deque[duckdb.DuckDBPyConnection] = deque(maxlen=CURSORS_KEPT_MAX)
        self._removed = weakref.finalize(self, spill.remove, self._spill)
        try:
            self._database = duckdb.connect(":memory:")
            self._parsers = deque(self._parser() for _ in range(PARSERS))
            settings = self._settings(limits)
            self._database.execute("; ".join(f"SET GLOBAL {setting}" for setting in settings))
        except duckdb.Error as error:
            self._removed()
            raise Unavailable(
                "the query engine does not start", hint="check the limits", error=str(error)
            ) from error

    def _parser(self) -> duckdb.DuckDBPyConnection:
        parser = self._database.cursor()
        parser.execute("SET SESSION enable_optimizer = false")
        return parser

    def _settings(self, limits: Limits) -> list[str]:
        # Set for the whole database: a setting of one connection does not reach its cursors.
        # The engine takes a path for a pattern before it checks it, so both forms are allowed.
        folders = {name for folder in self.folders for name in (folder, file_pattern(folder))}
        files = {name for file in self.files for name in (file, file_pattern(file))}
        return [
            "TimeZone = 'UTC'",
            f"threads = {limits.threads or core_count()}",
            f"memory_limit = '{limits.memory_bytes}B'",
            f"temp_directory = {literal(self._spill)}",
            f"max_temp_directory_size = '{limits.spill_bytes}B'",
            "preserve_insertion_order = false",
            "default_transaction_invalidation_policy = 'SYNTACTIC_ERRORS_DO_NOT_INVALIDATE'",
            # Footers kept in memory go stale within a second when a file is written again:
            # segments never are, plain files may be.
            f"parquet_metadata_cache = {'false' if self.files else 'true'}",
            "late_materialization_max_rows = 10000",
            "python_enable_replacements = false",
            "autoload_known_extensions = false",
            "autoinstall_known_extensions = false",
            "allow_community_extensions = false",
            "allow_persistent_secrets = false",
            f"allowed_directories = [{', '.join(literal(name) for name in sorted(folders))}]",
            f"allowed_paths = [{', '.join(literal(name) for name in sorted(files))}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ]

    def may_read(self, path: str) -> bool:
        """Tell whether a file is one that this engine was allowed to read."""
        return path in self.files or any(path.startswith(f"{name}/") for name in self.folders)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection of its own to the same database, with nothing on it."""
        with suppress(IndexError):
            return self._idle.pop()
        return self._database.cursor()

    def give_back(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Take a cursor back that has no views, variables, transaction or unread answer."""
        self._idle.append(cursor)

    @contextmanager
    def parsing(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
        """Lend a connection that is quick to parse with; this cursor when all are lent."""
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
        """Let the database go; cursors that are still open keep it until they are closed."""
        self._parsers.clear()
        self._idle.clear()
        self._database.close()
        self._removed()


@contextmanager
def translated(files: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn errors of the engine into kinds of this package, naming the file if it is about one.

    `files` leads from the paths the engine knows to the paths that the log names.
    """
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise translation(error, files or {}) from error


def translation(error: Exception, files: Mapping[str, str]) -> ThermoclineError:
    """Return the error of this package that an error of the engine stands for."""
    text = " ".join(str(error).split("\n\nLINE ")[0].split())[:ERROR_LENGTH_MAX]
    for known, path in files.items():
        if known in str(error) or file_pattern(known) in str(error):
            return _about_file(error, path, text, is_live=known != path)
    if isinstance(error, duckdb.OutOfMemoryException | MemoryError):
        return Overloaded(
            "the query needs more memory than the limit",
            hint="ask for less at once, or raise the memory limit",
            error=text,
        )
    if isinstance(error, duckdb.InterruptException):
        return Unavailable("the query was interrupted", hint="run it again")
    if isinstance(error, duckdb.IOException | duckdb.FatalException | duckdb.InternalException):
        return Unavailable("the query engine failed", hint="run it again", error=text)
    return Invalid("the query cannot be run", hint="mend the SQL", error=text)


def _about_file(error: Exception, path: str, text: str, *, is_live: bool) -> ThermoclineError:
    if "No such file" in text or "No files found" in text:
        if not is_live:
            return NotFound("no such file", hint="check the path", path=path)
        hint = "restore it from a backup; `thermocline table fsck` lists all that are missing"
        return Corruption("a live file is missing", hint=hint, path=path)
    if isinstance(error, duckdb.IOException | OSError):
        hint = "look at the disk, then run it again"
        return Unavailable("a live file cannot be read", hint=hint, path=path, error=text)
    hint = "restore the file from a copy"
    return Corruption("a segment cannot be read as Parquet", hint=hint, path=path, error=text)
