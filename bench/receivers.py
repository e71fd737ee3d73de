"""The receivers that `ingest` sends to, each in a process of its own on a port of its own.

In:   the name of a receiver, a folder for its data
Out:  `Receiver`: its port, what it has spent of the processors, how much memory it has

- `thermocline` is `thermocline serve`, as anybody would start it.
- `official decoder` is the same listener and the same lane, but every request is decoded by the
  official protobuf library.
- `rotel` (from the package index) forwards to nowhere: it decodes, queues and drops.
- `victoria-metrics` (Debian's) has no OTLP in this version: it gets the same points in the text
  format of Prometheus. It does not sync before it answers.
"""

import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Self

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 30.0
HERE = Path(__file__).parent
ROTEL = "rotel==0.0.1a15"


class Receiver:
    """A running receiver; a context manager that ends its process."""

    def __init__(self, name: str, folder: Path) -> None:
        command, self.port = COMMANDS[name](folder)
        self.name = name
        self._errors = open(folder / f"{name.replace(' ', '-')}.log", "w")  # noqa: SIM115
        self._process = subprocess.Popen(command, stdout=self._errors, stderr=self._errors)

    def __enter__(self) -> Self:
        end_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end_s and self._process.poll() is None:
            if self._is_ready():
                return self
            time.sleep(0.1)
        raise SystemExit(f"{self.name} did not start; see {self._errors.name}")

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _is_ready(self) -> bool:
        """Send nothing in a request; a receiver that takes it is ready."""
        one = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5.0)
        path = "/health" if self.name == "victoria-metrics" else "/v1/metrics"
        method = "GET" if self.name == "victoria-metrics" else "POST"
        try:
            one.request(method, path, b"", {"Content-Type": "application/x-protobuf"})
            return one.getresponse().status == HTTPStatus.OK
        except OSError:
            return False
        finally:
            one.close()

    def cpu_s(self) -> float:
        """Return the processor time that it and its children have spent."""
        return sum(_cpu_s(pid) for pid in self._pids())

    def memory_bytes(self) -> int:
        """Return the memory that it and its children have."""
        return sum(_memory_bytes(pid) for pid in self._pids())

    def _pids(self) -> list[int]:
        return [self._process.pid, *_children(self._process.pid)]


def available() -> list[str]:
    """Return the receivers that can be run here."""
    return [name for name in COMMANDS if NEEDED.get(name, lambda: True)()]


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _thermocline(folder: Path) -> tuple[list[str], int]:
    port = free_port()
    program = str(Path(sys.executable).parent / "thermocline")
    addresses = ["--http", f"127.0.0.1:{port}"]
    addresses += [word for name in ("grpc", "api", "flight") for word in (f"--{name}", "off")]
    return [program, "serve", "--data", str(folder / "lake"), *addresses], port


def _official(folder: Path) -> tuple[list[str], int]:
    port = free_port()
    return [sys.executable, __file__, str(folder / "official"), str(port)], port


def _rotel(_: Path) -> tuple[list[str], int]:
    port = free_port()
    addresses = ["--otlp-http-endpoint", f"127.0.0.1:{port}"]
    other = ["--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"]
    return [str(_rotel_program()), "start", *addresses, *other, "--exporter", "blackhole"], port


def _victoria(folder: Path) -> tuple[list[str], int]:
    port = free_port()
    paths = [f"-storageDataPath={folder / 'victoria'}", f"-httpListenAddr=127.0.0.1:{port}"]
    return [str(shutil.which("victoria-metrics")), *paths], port


def _rotel_program() -> Path:
    import fhvhv

    return fhvhv.data_folder() / "peers" / "rotel" / "rotel" / "rotel-agent"


def _has_rotel() -> bool:
    """Install it beside the other peers if need be; tell whether it is there."""
    program = _rotel_program()
    if not program.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        target = str(program.parents[1])
        subprocess.run([*pip, "--target", target, ROTEL], check=False, capture_output=True)
    if program.exists():
        program.chmod(0o755)
    return program.exists()


COMMANDS: dict[str, Callable[[Path], tuple[list[str], int]]] = {
    "thermocline": _thermocline,
    "official decoder": _official,
    "rotel": _rotel,
    "victoria-metrics": _victoria,
}
NEEDED: dict[str, Callable[[], bool]] = {
    "rotel": _has_rotel,
    "victoria-metrics": lambda: shutil.which("victoria-metrics") is not None,
}


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in listing.read_text().split():
            found += [int(child), *_children(int(child))]
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Anybody:
    """Lets everybody in, as a node without keys does."""

    tenant = "default"

    def caller(self, _authorization: str | None, _scope: str) -> "_Anybody":
        return self


async def _serve_official(root: str, port: int) -> None:
    from thermocline.node import Node
    from thermocline.server.otlp.http import OtlpHttp
    from thermocline.server.otlp.ingest_queue import IngestQueue
    from thermocline.server.otlp.ingest_queue import Receiver as Way
    from thermocline.server.otlp.memory_budget import MemoryBudget

    node = Node(root)
    lane = IngestQueue(node, is_compiled=False)
    await lane.start()
    listener = OtlpHttp(Way(lane, MemoryBudget(), _Anybody()), port=port)
    await listener.start()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    await listener.stop(5.0)
    await lane.stop(5.0)
    node.close(flush=False)


def main() -> None:
    """Serve with the official decoder: `receivers.py ROOT PORT`, or list what can be run here."""
    if len(sys.argv) != 3:
        print(json.dumps(available()))
        return
    import uvloop

    uvloop.run(_serve_official(sys.argv[1], int(sys.argv[2])))


if __name__ == "__main__":
    main()
