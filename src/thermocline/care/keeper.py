"""The node's handle of its care process: starts it, reads its reports, restarts it, stops it.

In:   a data folder, settings
Out:  `CareStatus`: whether the process runs, which tasks fail, and the sums over all tables

- The process is a new interpreter in a separate session. When the node is killed, its standard
  input ends, and it ends too.
- A process that dies is started again after `RESTART_S`, then after twice that, up to
  `RESTART_S_MAX`; a round that was reported resets the wait.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from thermocline.config import CareSettings

RESTART_S = 1.0
RESTART_S_MAX = 300.0
STOP_S_MAX = 8.0
FAILED = "failed"
LINE_BYTES_MAX = 1 << 20
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from thermocline.care.worker import serve; serve(sys.argv[1])"
)
_ALLOCATORS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",  # Arrow's threads
    "ARROW_IO_THREADS": "1",
}

Listener = Callable[[dict[str, Any]], None]
"""Receives each event that the process reports."""


@dataclass(frozen=True, slots=True)
class CareStatus:
    """What the care process does: failing tasks by job and table, counts of tasks, and sums."""

    is_on: bool = False
    is_running: bool = False
    starts: int = 0
    rounds: int = 0
    failing: tuple[str, ...] = ()
    tasks: tuple[tuple[str, str, int], ...] = ()
    sums: tuple[tuple[str, int], ...] = ()


class CareKeeper:
    """Keeps the care process running. Safe to use from any thread."""

    def __init__(
        self, root: str, settings: CareSettings, listen: Listener = lambda event: None
    ) -> None:
        self._root = root
        self._settings = settings
        self._listen = listen
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._starts = self._rounds = 0
        self._failing: dict[tuple[str, str, str], str] = {}
        self._tasks: dict[tuple[str, str], int] = {}
        self._sums: dict[str, int] = {}

    def start(self) -> None:
        """Start the process, unless care is turned off."""
        if self._settings.care_every_s:
            self._thread = threading.Thread(target=self._run, name="thermocline-care", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the process; its running task may finish first, for a few seconds."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            self._end(process)
        if self._thread is not None:
            self._thread.join(STOP_S_MAX)

    def status(self) -> CareStatus:
        """Return what the process has reported."""
        with self._lock:
            process = self._process
            failing = (
                f"{job} of {table or 'all tables'}: {why}"
                for (_, job, table), why in sorted(self._failing.items())
            )
            tasks = ((job, state, count) for (job, state), count in sorted(self._tasks.items()))
            return CareStatus(
                is_on=bool(self._settings.care_every_s),
                is_running=process is not None and process.poll() is None,
                starts=self._starts,
                rounds=self._rounds,
                failing=tuple(failing),
                tasks=tuple(tasks),
                sums=tuple(self._sums.items()),
            )

    def _run(self) -> None:
        # A node that starts has better things to do, and one that ends soon needs no care.
        self._stopping.wait(self._settings.care_every_s)
        wait_s = RESTART_S
        while not self._stopping.is_set():
            rounds = self._rounds
            try:
                process = self._spawn()
            except OSError as error:
                self._note({"error": f"the care process does not start: {error.strerror}"})
            else:
                self._read(process)
                self._end(process)
                if not self._stopping.is_set():
                    why = f"the care process ended with {process.returncode}"
                    self._note({"error": why})
            wait_s = RESTART_S if self._rounds > rounds else min(wait_s * 2, RESTART_S_MAX)
            self._stopping.wait(wait_s)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        paths = json.dumps([os.path.abspath(path) for path in sys.path])
        asked = json.dumps({"root": self._root, "settings": asdict(self._settings)})
        process = subprocess.Popen(  # noqa: S603  # this interpreter with a fixed program
            [sys.executable, "-I", "-c", _PROGRAM, asked, paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **_ALLOCATORS},
            start_new_session=True,
        )
        with self._lock:
            self._process = process
            self._starts += 1
        if self._stopping.is_set():
            self._end(process)
        return process

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        while line := process.stdout.readline(LINE_BYTES_MAX):
            with suppress(ValueError, KeyError, TypeError):
                self._note(json.loads(line))

    def _note(self, said: dict[str, Any]) -> None:
        with self._lock:
            if "sums" in said:
                self._sums = {str(name): int(number) for name, number in said["sums"].items()}
                self._rounds += 1
                self._failing.pop(("", "care", ""), None)
            if "error" in said:
                self._failing["", "care", ""] = str(said["error"])
            if "event" in said:
                self._note_event(said["event"])
        if "event" in said:
            self._listen(said["event"])

    def _note_event(self, event: dict[str, Any]) -> None:
        job, state = str(event["job"]), str(event["state"])
        key = str(event["tenant"]), job, str(event["table"])
        self._tasks[job, state] = self._tasks.get((job, state), 0) + 1
        self._failing.pop(key, None)
        if state == FAILED:
            self._failing[key] = str(event["error"])
        else:
            self._failing.pop((key[0], job, ""), None)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None and threading.current_thread() is self._thread:
            process.stdout.close()
