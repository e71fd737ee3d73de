"""One worker process as the pool sees it: started, spoken to, killed, cleared away.

In:   settings; messages
Out:  messages; `Gone` once the process is

- The process is a fresh interpreter that imports this package and nothing of the caller's
  program, in a session of its own: a Ctrl-C at the terminal does not reach it.
- It ends when its socket ends, so it never outlives the process that started it.
- Its folder for spilled rows is made before it starts and removed after it ended, however it did.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

from thermocline.errors import ThermoclineError, Unavailable
from thermocline.query import spill
from thermocline.query.request import Settings, TableNote
from thermocline.query.wire import WORN, Gone, Kind, packed, receive, send, send_files, unpacked

START_S_MAX = 30.0
END_S_MAX = 2.0
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from thermocline.query.worker import serve; serve(int(sys.argv[1]))"
)
# What a query took must come back, or the next one meets the wall early: the engine's, Arrow's and
# the C library's allocators each keep freed memory to themselves. After a group by of 4,000,000
# texts a worker kept 505 MiB of private memory, with these 218 MiB, as when it was new.
_ALLOCATORS = {
    "DUCKDB_JE_MALLOC_CONF": "retain:false,dirty_decay_ms:0,muzzy_decay_ms:0",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "MALLOC_ARENA_MAX": "2",
}


class WorkerProcess:
    """A process that answers one query at a time; it is ready when this object is made.

    `Unavailable` when it does not start. `tables` are those that it was last told.
    """

    def __init__(self, settings: Settings) -> None:
        self.tables: tuple[TableNote, ...] | None = None
        self._sending = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel, theirs = _pair()
        self._folder = ""
        try:
            self._folder = spill.new_folder()
            with theirs:
                self._process = self._spawn(theirs.fileno())
            self._channel.settimeout(START_S_MAX)
            send(self._channel, Kind.REQUEST, packed(replace(settings, folder=self._folder)))
            kind, data = receive(self._channel)
            if kind is Kind.FAILED:
                error: ThermoclineError = unpacked(data[len(WORN) :])
                raise error
            self._channel.settimeout(None)
        except (Gone, OSError, ValueError) as error:
            self.discard()
            raise _not_started(self._process) from error
        except BaseException:
            self.discard()
            raise

    def _spawn(self, descriptor: int) -> "subprocess.Popen[bytes]":
        paths = [os.path.abspath(path) for path in sys.path]
        command = [sys.executable, "-I", "-c", _PROGRAM, str(descriptor), json.dumps(paths)]
        environment = {**os.environ, **_ALLOCATORS, "TMPDIR": self._folder}
        return subprocess.Popen(  # noqa: S603  # our own interpreter and program
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
        """Whether the process was alive when asked."""
        return self._process is not None and self._process.poll() is None

    def send(self, kind: Kind, *parts: Any) -> None:
        """Send one message; waits while the worker does not read."""
        with self._sending:
            send(self._channel, kind, *parts)

    def send_with(self, kind: Kind, data: bytes, files: list[int]) -> None:
        """Send a message and the open files that it speaks of."""
        with self._sending:
            send(self._channel, kind, data)
            send_files(self._channel, files)

    def receive(self) -> tuple[Kind, bytearray]:
        """Return the next message of the worker."""
        return receive(self._channel)

    def interrupt(self) -> None:
        """Ask the engine to stop, without ever waiting; whether it hears is not known."""
        # A message half sent by somebody else is not worth waiting for: what follows is a kill.
        if self._sending.acquire(blocking=False):
            try:
                with suppress(Gone):
                    send(self._channel, Kind.INTERRUPT, flags=socket.MSG_DONTWAIT)
            finally:
                self._sending.release()

    def kill(self) -> None:
        """End the process at once; whoever waits for its messages learns that it is gone."""
        if self._process is not None:
            self._process.kill()

    def cause_of_end(self) -> str:
        """Return the name of the signal that ended the process, or its exit code, or nothing."""
        if self._process is None:
            return ""
        try:
            # The socket of a process ends a moment before the process has.
            code = self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            return ""
        return signal.Signals(-code).name if code < 0 else f"exit {code}"

    def discard(self) -> None:
        """End the process and clear away what it had, its spilled rows above all."""
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S_MAX)
        self._channel.close()
        spill.remove(self._folder)


def _pair() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair()
    except OSError as error:
        raise _not_started(None) from error


def _not_started(process: "subprocess.Popen[bytes] | None") -> Unavailable:
    return Unavailable(
        "a query worker does not start",
        hint="check the limits of processes, memory and open files; then that "
        "`python -c 'import thermocline.query.worker'` says nothing",
        exit_code=None if process is None else process.returncode,
    )
