"""The pool's handle of one worker process: starts it, exchanges messages, kills it, cleans up.

In:   settings; messages
Out:  messages; `PeerGone` when the process has ended

- The process is a new interpreter that imports this package and nothing of the caller's program.
  It runs in a separate session, so that a Ctrl-C at the terminal does not reach it.
- Where all tables are in folders, its environment is empty and `sandbox.py` confines it to them.
- It exits when its socket is closed, so it never outlives the process that started it.
- Its folder for spilled rows is created before it starts and removed after it ends, even by a kill.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from thermocline.errors import Unavailable
from thermocline.query import spill
from thermocline.query.worker.protocol import (
    WORN,
    MessageKind,
    PeerGone,
    TableLocation,
    WorkerSettings,
    pack_value,
    receive,
    send,
    send_files,
    unpack_error,
)

START_S_MAX = 30.0
END_S_MAX = 2.0
LEAVE_S_MAX = 0.5
# Order matters: the walls stand before any library starts a thread, which would be outside of them.
_PROGRAM = (
    "import json, sys; sys.path[:], folders, spill = json.loads(sys.argv[2]); "
    "from thermocline.query.worker.sandbox import confine_worker; confine_worker(folders, spill); "
    "from thermocline.query.worker.worker import serve; serve(int(sys.argv[1]))"
)
_KEPT_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ")
# Memory of a finished query must be returned to the system, or the next query reaches the limit too
# early: the allocators of the engine, Arrow and the C library each retain freed memory. After a
# group by of 4,000,000 texts a worker retained 505 MiB of private memory; with these settings it
# retained 218 MiB, the same as a new worker.
_ALLOCATORS = {
    "DUCKDB_JE_MALLOC_CONF": "retain:false,dirty_decay_ms:0,muzzy_decay_ms:0",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "MALLOC_ARENA_MAX": "2",
}


class WorkerProcess:
    """A process that answers one query at a time; it is ready when the constructor returns.

    `Unavailable` when it does not start. `tables` are those of the last request sent to it.
    """

    def __init__(self, settings: WorkerSettings, folders: Sequence[str] = ()) -> None:
        """With `folders`, the process gets no environment, and reads and writes only below them."""
        self._folders = list(folders)
        self.tables: tuple[TableLocation, ...] | None = None
        self._sending = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel, theirs = _open_socket_pair()
        self._folder = ""
        try:
            self._folder = spill.make_folder()
            with theirs:
                self._process = self._spawn(theirs.fileno())
            self._channel.settimeout(START_S_MAX)
            send(
                self._channel,
                MessageKind.REQUEST,
                pack_value(replace(settings, folder=self._folder)),
            )
            kind, data = receive(self._channel)
            if kind is MessageKind.FAILED:
                raise unpack_error(data[len(WORN) :])
            self._channel.settimeout(None)
        except (PeerGone, OSError, ValueError) as error:
            self.discard()
            raise _start_error(self._process) from error
        except BaseException:
            self.discard()
            raise

    def _spawn(self, descriptor: int) -> "subprocess.Popen[bytes]":
        paths = [os.path.abspath(path) for path in sys.path]
        about = json.dumps([paths, self._folders, self._folder])
        command = [sys.executable, "-I", "-c", _PROGRAM, str(descriptor), about]
        # A worker of object stores needs their credentials, which may be in the environment.
        kept = [name for name in _KEPT_VARIABLES if name in os.environ]
        inherited = {name: os.environ[name] for name in (kept if self._folders else os.environ)}
        environment = {**inherited, **_ALLOCATORS, "TMPDIR": self._folder}
        return subprocess.Popen(  # noqa: S603  # this interpreter with a fixed program
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=(descriptor,),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def send(self, kind: MessageKind, *parts: Any) -> None:
        """Send one message; blocks while the worker does not read."""
        with self._sending:
            send(self._channel, kind, *parts)

    def send_with_files(self, kind: MessageKind, data: bytes, files: list[int]) -> None:
        """Send a message and the open files that it announces."""
        with self._sending:
            send(self._channel, kind, data)
            send_files(self._channel, files)

    def receive(self) -> tuple[MessageKind, bytearray]:
        """Return the next message of the worker."""
        return receive(self._channel)

    def interrupt(self) -> None:
        """Ask the engine to stop, without blocking; the request may be lost."""
        # If another thread is in the middle of a message, do not wait for it: a kill follows.
        if self._sending.acquire(blocking=False):
            try:
                with suppress(PeerGone):
                    send(self._channel, MessageKind.INTERRUPT, flags=socket.MSG_DONTWAIT)
            finally:
                self._sending.release()

    def leave(self) -> None:
        """Ask the process to release its pins and end, without waiting; no message follows."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill the process; a thread that waits for its messages gets `PeerGone`."""
        if self._process is not None:
            self._process.kill()

    def cause_of_end(self) -> str:
        """Return the name of the signal that ended the process, its exit code, or an empty text."""
        if self._process is None:
            return ""
        try:
            # The system closes the socket of a process a moment before the process has ended.
            code = self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            return ""
        return signal.Signals(-code).name if code < 0 else f"exit {code}"

    def discard(self) -> None:
        """End the process and release its pins; close its socket and remove its spilled rows."""
        if self._process is not None:
            self.leave()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S_MAX)
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S_MAX)
        self._channel.close()
        spill.remove_folder(self._folder)


def _open_socket_pair() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair()
    except OSError as error:
        raise _start_error(None) from error


def _start_error(process: "subprocess.Popen[bytes] | None") -> Unavailable:
    return Unavailable(
        "a query worker does not start",
        hint="check the limits of processes, memory and open files; then check that "
        "`python -c 'import thermocline.query.worker.worker'` prints nothing",
        exit_code=None if process is None else process.returncode,
    )
