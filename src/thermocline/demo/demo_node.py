"""The demonstration's node: a `thermocline serve` process, started, killed and started again.

In:   a folder
Out:  a process that listens on loopback, and its addresses

- It uses the usual ports if they are free, otherwise others. After a kill it uses the same ports
  again, as a node under systemd does.
"""

import random
import socket
import subprocess
import sys
import time as clock
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import orjson

from thermocline.errors import Unavailable

START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
POLL_S = 0.05
LINES_SHOWN_MAX = 5
PORTS = MappingProxyType({"http": 4318, "grpc": 4317, "api": 4320, "flight": 4322})
# Below the ephemeral ports, so that no other process gets the port between two starts.
OTHER_PORTS = range(20_000, 32_000)
TRIES_MAX = 100


class ServedNode:
    """A node in a separate process."""

    def __init__(self, folder: Path, settings: Path) -> None:
        self._folder = folder
        self._settings = settings
        self._log = folder / "node.log"
        self._ports = {name: _find_free_port(port) for name, port in PORTS.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """The folder of the node's lake."""
        return self._folder / "lake"

    @property
    def url(self) -> str:
        """The address of its API and its console."""
        return f"http://127.0.0.1:{self._ports['api']}"

    @property
    def otlp(self) -> str:
        """The address of its OTLP receiver."""
        return f"http://127.0.0.1:{self._ports['http']}"

    def command(self) -> list[str]:
        """Return the arguments of `thermocline` that start it."""
        ports = [
            w for name, port in self._ports.items() for w in (f"--{name}", f"127.0.0.1:{port}")
        ]
        return ["serve", "--data", str(self.data), "--config", str(self._settings), *ports]

    def start(self) -> float:
        """Start it; return the seconds until it was ready."""
        began_s = clock.monotonic()
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  our own command
                [sys.executable, "-m", "thermocline.cli.main", *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        seen = self._log.stat().st_size
        while clock.monotonic() - began_s < START_LIMIT_S:
            if self._process.poll() is not None:
                break
            if self._is_ready(seen):
                return clock.monotonic() - began_s
            clock.sleep(POLL_S)
        self.kill()
        lines = self._log.read_bytes()[seen:].decode(errors="replace").splitlines()
        lines = lines[:LINES_SHOWN_MAX]
        raise Unavailable("the node did not start", hint="see its last lines", last_lines=lines)

    def _is_ready(self, seen: int) -> bool:
        with open(self._log, "rb") as log:
            log.seek(seen)
            for line in log.read().splitlines():
                with suppress(ValueError):
                    if orjson.loads(line).get("event") == "ready":
                        return True
        return False

    def kill(self) -> None:
        """End it with SIGKILL, as a power cut or the kernel would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Stop it with SIGTERM, and wait until it has ended."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def wait(self) -> None:
        """Wait until it ends or Ctrl-C is pressed."""
        if self._process is not None:
            with suppress(KeyboardInterrupt):
                self._process.wait()


def _find_free_port(port: int) -> int:
    """Return the port if it is free, otherwise another."""
    chosen = random.SystemRandom()
    for _ in range(TRIES_MAX):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
        port = chosen.choice(OTHER_PORTS)
    raise Unavailable("there is no free port", hint="stop a process that listens", tries=TRIES_MAX)
