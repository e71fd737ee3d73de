"""Runs one contender in a process of its own and times what it is told to do.

In:   one JSON line for each call: a method's name and its arguments
Out:  one JSON line for each answer: wall seconds, CPU seconds, the value, or the error

- The clock runs around the method alone: neither the start of the process nor the talking counts.
- A contender sees the packages of this environment plus its own folder of peers, nothing of
  another contender's.
- What a contender prints goes to standard error and cannot disturb the answers.

Run as a script it is the contender's side; `Worker` is the bench's side.
"""

import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO

import measure
import peers

CLOSE_TIMEOUT_S = 30.0


class ContenderFailed(RuntimeError):
    """A contender raised; the message is its own traceback."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What one call cost and what it gave."""

    wall_s: float
    cpu_s: float
    value: Any


class Worker:
    """One contender, running; a context manager that ends its process."""

    def __init__(
        self,
        module: str,
        contender: str,
        *,
        peer: str | None = None,
        prefix: list[str] | None = None,
        source: Path | None = None,
    ) -> None:
        """Start a contender. With a `source`, the product is imported from that folder."""
        command = [*(prefix or []), sys.executable, __file__, module, contender]
        self.contender = contender
        environment = peers.environment(peer)
        if source is not None:
            known = environment.get("PYTHONPATH", "")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), known)))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()

    def call(self, method: str, **arguments: Any) -> Timed:
        """Run one method of the contender to its end.

        `ContenderFailed` carries the traceback of the other side; the worker lives on after it.
        """
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ContenderFailed(f"{self.contender} ended without an answer")
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(f"{self.contender} {method}:\n{answer['error']}")
        return Timed(answer["wall_s"], answer["cpu_s"], answer["value"])


def timed(contender: object, method: str, arguments: dict[str, Any]) -> Timed:
    """Call a method here and now, and say what it cost."""
    function = getattr(contender, method)
    cpu_s, start_s = measure.tree_cpu_s(), time.perf_counter()
    value = function(**arguments)
    wall_s = time.perf_counter() - start_s
    return Timed(wall_s, measure.tree_cpu_s() - cpu_s, value)


def serve(contender: object, requests: TextIO, answers: TextIO) -> None:
    """Answer calls until the requests end."""
    for line in requests:
        request = json.loads(line)
        try:
            done = timed(contender, request["method"], request["arguments"])
            answer = {"wall_s": done.wall_s, "cpu_s": done.cpu_s, "value": done.value}
        except Exception:  # noqa: BLE001  whatever it is, the bench's side tells it
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve the contender named on the command line over standard input and output."""
    module, name = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contender = importlib.import_module(module).CONTENDERS[name]()
    serve(contender, sys.stdin, answers)


if __name__ == "__main__":
    main()
