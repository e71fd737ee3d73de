"""Opens the PostgreSQL to use: the server at an address, or an embedded server in a folder.

In:   a DSN, or a folder
Out:  a `Server`: the DSN to connect with; from here on both kinds are the same

    <folder>/lock           locked while a process starts or stops the server
    <folder>/server.json    port and passwords, readable by this user only
    <folder>/data/          PostgreSQL's data folder
    <folder>/programs/      a copy of its programs, only if the server's user needs one

- Many processes may start the server at once: one starts it, the others find it running.
- The server outlives the process that started it. After a kill it recovers every acknowledged
  write at the next start: fsync is on.
- It listens on loopback only. Its passwords (scram) are generated once and stored only here.
- Only this module connects as the superuser. All other connections use a role that owns the
  database and inherits nothing, so a connection without a tenant's role sees no tenant's rows.
- A cluster is whole or absent: it is created under another name and renamed.
"""

import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from thermocline.disk import OsDisk, translate_errors
from thermocline.errors import Corruption, Invalid, NotFound, Unavailable
from thermocline.hot.postgres.server.binaries import (
    Programs,
    allow_traversal,
    installed_programs,
    is_reachable,
)
from thermocline.hot.postgres.server.postmaster import clear_foreign_pid, process_of
from thermocline.hot.postgres.server.server_note import (
    DATABASE,
    LOGIN,
    NOTE_NAME,
    OWNER,
    ServerNote,
    fit_note,
    new_note,
    read_note,
    write_note,
    write_private,
)

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 3
LOCK_POLL_S = 0.05
STARTS_MAX = 5
LOG_TAIL_BYTES = 2_000
VERSION_NAME = "PG_VERSION"
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "jit": "off",
    "fsync": "on",
    "synchronous_commit": "on",
    # The server's log is kept for a week; it never has statements, which contain values.
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "server-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_min_error_statement": "panic",
}


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A PostgreSQL to connect to; `folder` is that of an embedded server, else None."""

    dsn: str
    folder: str | None = None
    owner_dsn: str | None = None


def open_server(
    *, dsn: str | None = None, folder: str | None = None, settings: Mapping[str, str] | None = None
) -> PostgresServer:
    """Return the server at an address, or create and start the embedded server of a folder.

    When this returns, an embedded server accepts connections; a server at an address is not
    contacted. `settings` are PostgreSQL's, and apply only if this call starts the server.
    """
    if (dsn is None) == (folder is None):
        hint = "give either the address of a PostgreSQL, or a folder for an embedded one"
        raise Invalid("PostgreSQL needs an address or a folder, not both", hint=hint)
    if dsn is not None:
        return PostgresServer(dsn)
    assert folder is not None
    return _EmbeddedServer(os.path.abspath(folder)).ensure_started(settings or {})


def running_server(folder: str) -> PostgresServer | None:
    """Return the embedded server of a folder if it runs and answers, else None."""
    return _EmbeddedServer(os.path.abspath(folder)).find_running()


def is_dead(folder: str) -> bool:
    """Tell whether the embedded server of a folder has no process any more."""
    return _EmbeddedServer(os.path.abspath(folder)).process_id() is None


def is_elsewhere(folder: str, dsn: str) -> bool:
    """Tell whether the embedded server of a folder was last started at another address."""
    note = read_note(folder)
    return note is not None and note.dsn != dsn


def stop_server(folder: str, *, mode: str = "fast") -> bool:
    """Stop the embedded server of a folder; return whether it was running.

    `fast` ends its sessions and writes a checkpoint; `immediate` is a deliberate crash.
    """
    return _EmbeddedServer(os.path.abspath(folder)).stop(mode)


class _EmbeddedServer:
    """The embedded server of one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._data = os.path.join(folder, "data")
        self._disk = OsDisk()

    def ensure_started(self, settings: Mapping[str, str]) -> PostgresServer:
        self._make_folder()
        with self._hold_lock():
            found, note = self.find_running(), read_note(self._folder)
            if found is not None:
                return found
            programs = installed_programs(self._path("programs"))
            self._check_reach(programs)
            if not self._has_data(note):
                note = self._make_cluster(programs)
            assert note is not None
            note = self._start(programs, note, {**SETTINGS, **settings})
            _make_database(note)
            return self._server(note)

    def _has_data(self, note: ServerNote | None) -> bool:
        """Tell whether there is a cluster to start; `Corruption` when there was one, or half is."""
        has_version = self._disk.size(os.path.join(self._data, VERSION_NAME)) is not None
        if note is not None and has_version:
            return True
        is_there = self._disk.size(self._data) is not None
        if is_there and note is None:
            raise Corruption(
                "the server's note is missing beside its data",
                hint="restore server.json from a copy: it holds the server's passwords",
                path=self._path(NOTE_NAME),
            )
        if is_there or (note is not None and note.was_started):
            raise Corruption(
                "the data of the lake's PostgreSQL is missing",
                hint="restore the folder from a copy; a disk that is not mounted looks like this",
                path=os.path.join(self._data, VERSION_NAME),
            )
        return False

    def find_running(self) -> PostgresServer | None:
        note = read_note(self._folder)
        # A copied folder has the original's note, and the original's server may run and answer.
        if note is None or self.process_id() is None:
            return None
        return self._server(note) if _can_connect(note.dsn) else None

    def _server(self, note: ServerNote) -> PostgresServer:
        return PostgresServer(note.dsn, self._folder, note.owner_dsn)

    def stop(self, mode: str) -> bool:
        if self._disk.size(self._path(NOTE_NAME)) is None and not self._has_data(None):
            raise NotFound(
                "there is no PostgreSQL server in this folder",
                hint="check the folder",
                path=self._folder,
            )
        with self._hold_lock():
            if self.process_id() is None:
                return False
            arguments = ["-D", self._data, "-m", mode, "-w", "-t", str(int(STOP_TIMEOUT_S)), "stop"]
            programs = installed_programs(self._path("programs"))
            try:
                programs.run("pg_ctl", arguments, timeout_s=STOP_TIMEOUT_S + 10)
            except Unavailable:
                # The server was killed, or stopped by another process: it is stopped all the same.
                if self.process_id() is not None:
                    raise
                return False
            return True

    def _start(
        self, programs: Programs, note: ServerNote, settings: Mapping[str, str]
    ) -> ServerNote:
        end_s = time.monotonic() + START_TIMEOUT_S
        is_port_bad = False
        for turn in range(STARTS_MAX):
            if self._wait_for_process(note, end_s):
                return note
            clear_foreign_pid(self._data)
            note = fit_note(note, self._folder, is_port_bad=is_port_bad)
            note = replace(note, was_started=True)
            write_note(self._folder, note)
            given = {**settings, "port": str(note.port)}
            options = " ".join(f"-c {shlex.quote(f'{k}={v}')}" for k, v in given.items())
            first_words, before = os.path.join(self._data, "start.log"), self._log_tail()
            try:
                arguments = ["-D", self._data, "-w", "-t", str(int(START_TIMEOUT_S)), "-s"]
                arguments += ["-l", first_words, "-o", options, "start"]
                programs.run("pg_ctl", arguments, timeout_s=START_TIMEOUT_S + 10)
            except Unavailable as error:
                said = self._log_tail()
                is_port_bad = "already in use" in said or "bind" in said
                # Right after a kill, the dead server's children may hold its shared memory for a
                # moment, and another process may have taken the port. A server that ended without
                # a log line was killed from outside: it logs its own errors.
                may_pass = is_port_bad or "shared memory" in said or said == before
                if turn + 1 == STARTS_MAX or time.monotonic() > end_s or not may_pass:
                    raise self._unavailable("the server does not start", error) from error
                time.sleep(0.2 * (turn + 1))
            else:
                return note
        raise AssertionError("unreachable")

    def _wait_for_process(self, note: ServerNote, end_s: float) -> bool:
        """Wait for an existing server process, which is in recovery or about to end.

        Return True once it answers, False once it has ended.
        """
        while self.process_id() is not None:
            if _can_connect(note.owner_dsn):
                return True
            if time.monotonic() > end_s:
                raise self._unavailable("the server runs but does not answer")
            time.sleep(LOCK_POLL_S)
        return False

    def _make_cluster(self, programs: Programs) -> ServerNote:
        note = new_note(self._folder)
        part, password = self._path("data.part"), self._path("password")
        with translate_errors(self._folder):
            shutil.rmtree(part, ignore_errors=True)
            with suppress(FileNotFoundError):
                self._disk.unlink(password)
            self._disk.make_folder(part, is_private=True)
            write_private(password, note.owner_password.encode())
            if programs.account:
                for path in (part, password):
                    os.chown(path, programs.account.user_id, programs.account.group_id)
            # Order matters: the note with the passwords is durable before the cluster has its name.
            write_note(self._folder, note)
            arguments = ["-D", part, "-U", OWNER, "-A", "scram-sha-256", f"--pwfile={password}"]
            arguments += ["-E", "UTF8", "--locale=C.UTF-8", "--no-instructions", "--data-checksums"]
            programs.run("initdb", arguments, timeout_s=START_TIMEOUT_S)
            self._disk.unlink(password)
            self._disk.rename(part, self._data)
            self._disk.sync_folder(self._folder)
        return note

    def _check_reach(self, programs: Programs) -> None:
        if programs.account is None:
            return
        # The lake's folder is private, but PostgreSQL, which never runs as root, is inside it.
        for folder in (os.path.dirname(self._folder), self._folder):
            allow_traversal(folder, programs.account)
        if not is_reachable(self._folder, programs.account):
            raise Invalid(
                "the user that runs PostgreSQL cannot reach the folder",
                hint="let other users traverse its parent folders (chmod o+x), choose another "
                "folder, or do not run as root",
                path=self._folder,
            )

    def _make_folder(self) -> None:
        with translate_errors(self._folder):
            missing = []
            path = self._folder
            while self._disk.size(path) is None:
                missing.append(path)
                path = os.path.dirname(path)
            for path in reversed(missing):
                with suppress(FileExistsError):
                    self._disk.make_folder(path)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        end_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with translate_errors(self._folder):
                    lock = self._disk.lock(self._path("lock"), str(os.getpid()).encode())
                break
            except Unavailable as error:
                busy = isinstance(error.__cause__, BlockingIOError)
                if not busy or time.monotonic() > end_s:
                    raise
                time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            lock.release()

    def process_id(self) -> int | None:
        """Return the id of the process that uses the data folder, or None if none is alive."""
        return process_of(self._data)

    def _unavailable(self, message: str, cause: Unavailable | None = None) -> Unavailable:
        hint = "the tail of the server's log is in the facts; the whole log is in the folder"
        facts = {} if cause is None else {"program": cause.facts}
        return Unavailable(message, hint=hint, path=self._folder, said=self._log_tail(), **facts)

    def _log_tail(self) -> str:
        """Return the tails of the server's start output and of its newest log file."""
        said = b""
        with suppress(OSError):
            said = self._disk.read(os.path.join(self._data, "start.log"))[-LOG_TAIL_BYTES:]
        with suppress(OSError, ValueError):
            logs = self._disk.entries(os.path.join(self._data, "log"))
            newest = max(logs, key=lambda entry: entry.modified_ns)
            path = os.path.join(self._data, "log", newest.name)
            said += self._disk.read(path)[-LOG_TAIL_BYTES:]
        return said.decode(errors="replace").strip()

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _make_database(note: ServerNote) -> None:
    """Create or update the role that all connections use, and the database that it owns."""
    try:
        with psycopg.connect(note.owner_dsn, autocommit=True) as connection:
            roles = connection.execute("select from pg_roles where rolname = %s", [LOGIN])
            verb = "alter" if roles.rowcount else "create"
            text = sql.SQL(verb + " role {} login createrole noinherit password {}")
            connection.execute(text.format(sql.Identifier(LOGIN), sql.Literal(note.password)))
            found = connection.execute("select from pg_database where datname = %s", [DATABASE])
            if not found.rowcount:
                text = sql.SQL("create database {} owner {}")
                connection.execute(text.format(sql.Identifier(DATABASE), sql.Identifier(LOGIN)))
    except psycopg.Error as error:
        hint = "read the server's log in its folder"
        raise Unavailable("the server's database could not be created", hint=hint) from error


def _can_connect(dsn: str) -> bool:
    try:
        with psycopg.connect(dsn, connect_timeout=PROBE_TIMEOUT_S) as connection:
            connection.execute("select 1")
    except psycopg.Error:
        return False
    return True
