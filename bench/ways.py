"""Counts the steps and files of Thermocline on the main path of each of the four ways of data.

In:   a source tree: this one, or another of `--source`
Out:  a table on stdout: steps, files and functions of each way; with `--list` the steps' names

    python bench/ways.py                                  under a minute
    python bench/ways.py entity --list                    one way: otlp, sql, entity or append
    git worktree add /tmp/before COMMIT; python bench/ways.py --source /tmp/before

The ways, each on a warm node with default settings that runs in a process of its own:

- `otlp`: a metrics request over HTTP in protobuf, on an open connection, until its answer.
- `sql`: a SELECT over hot and cold rows over HTTP, until the last byte of its answer. Each round
  asks for other values, as people and dashboards do; the worker process is part of the way.
- `entity`: an entity is replaced over HTTP (PUT), with embedded PostgreSQL.
- `append`: `append_parquet` with a file of a new bucket, in this process, until the commit.

What counts:

- A function is a `def` of the package `thermocline`: also a method, a nested one and a coroutine.
  It is on the way if it runs in every one of `ROUNDS` equal rounds after `WARM` others, in any
  thread or process of the node. So the work of clocks, health checks and caches that fill up,
  which runs in some rounds by chance, is not. On a busy machine the standby worker of the ingest
  queue polls in every round, which adds one step and one file to `sql` and `entity`.
- A step is a function on the way that another file calls, or the event loop, or a new thread: here
  a reader who follows the way has to open another file. Frames of other packages between the
  caller and the function are ignored.
- Not counted as steps: `FOUNDATION`, the values and the disk, which every way uses everywhere.
- Counted as neither: properties, dunder methods, lambdas, comprehensions, generated code
  (dataclasses), compiled code (numba), and other packages.
- A file counts if it has a step.
"""

import argparse
import ast
import functools
import http.client
import json
import mmap
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WAYS = ("otlp", "sql", "entity", "append")
PACKAGE = "/thermocline/"
WARM = 8
ROUNDS = 8
SETTLE_S = 0.05  # what runs after the answer, such as the end of a group, is part of its round
READY_S = 300.0
FOLDER_VARIABLE = "THERMOCLINE_BENCH_WAYS"
START_NS = 1_763_200_000_000_000_000
POINTS = 100
FOUNDATION = (
    *("format/", "disk.py", "errors.py", "error_table.py", "names.py", "config.py"),
    *("extras.py", "machine.py"),
)
NOT_STEPS = (
    *("property", "cached_property", "setter"),
    *("compile_native", "inline_native", "compiled", "inlined"),  # the compiler reports their calls
)
ORDER = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}

Function = tuple[str, str]


# In the node: what runs is written to a file for each process, with the number of the round.


class Recorder:
    """Writes each function that runs in a round; byte 0 of the file `round` is its number."""

    def __init__(self, folder: str) -> None:
        with open(f"{folder}/round", "r+b") as file:
            self._round = mmap.mmap(file.fileno(), 2)
        self._file = os.open(
            f"{folder}/calls.{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )
        self._seen: set[tuple[int, CodeType, str]] = set()
        threading.Thread(target=self._report_compiling, name="ways", daemon=True).start()
        threading.setprofile(self.record)
        sys.setprofile(self.record)

    def record(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record the function of a call, and its caller: it may be a loop that began long ago."""
        number = self._round[0]
        if not number or event not in ("call", "c_call"):
            return
        caller = next(_frames(frame.f_back), None)
        if caller is not None and caller is frame.f_back:
            self._write(number, caller.f_code, next(_frames(caller.f_back), None))
        if PACKAGE in frame.f_code.co_filename:
            self._write(number, frame.f_code, caller)

    def _write(self, number: int, code: CodeType, caller: FrameType | None) -> None:
        file = "" if caller is None else caller.f_code.co_filename
        call = (number, code, file)
        if call not in self._seen:
            self._seen.add(call)
            place = f"{code.co_filename}\t{code.co_firstlineno}\t{code.co_qualname}"
            os.write(self._file, f"{number}\t{place}\t{file}\n".encode())

    def _report_compiling(self) -> None:
        """Keep byte 1 of the file `round` at 1 while the node compiles its decoders."""
        while True:
            names = [thread.name for thread in threading.enumerate()]
            self._round[1] = "thermocline-warm-up" in names
            time.sleep(0.02)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the package on a stack, from the inside."""
    while frame is not None:
        if PACKAGE in frame.f_code.co_filename:
            yield frame
        frame = frame.f_back


def record_workers() -> None:
    """Record in Python processes that this one starts, too: query workers."""
    begin = subprocess.Popen.__init__
    prefix = (
        f"import runpy; runpy.run_path({__file__!r})['Recorder']({os.environ[FOLDER_VARIABLE]!r}); "
    )

    def begin_recorded(self: Any, args: Any, *more: Any, **named: Any) -> None:
        if isinstance(args, list) and args[0] == sys.executable and "-c" in args:
            place = args.index("-c") + 1
            args = [*args[:place], prefix + args[place], *args[place + 1 :]]
        begin(self, args, *more, **named)

    subprocess.Popen.__init__ = begin_recorded  # type: ignore[method-assign]


def serve() -> None:
    """Be `thermocline serve`, recorded."""
    record_workers()
    Recorder(os.environ[FOLDER_VARIABLE])
    sys.argv[:2] = ["thermocline"]
    runpy.run_module("thermocline.cli.main", run_name="__main__")


def append(folder: str) -> None:
    """Append a Parquet file in each round, recorded; the rounds count themselves here."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import thermocline as tc

    recording = os.environ[FOLDER_VARIABLE]
    Recorder(recording)
    rounds = Rounds(recording)
    table = tc.TimeSeriesTable.create(f"{folder}/table", time_column="time", bucket="1h")
    number = 0

    def step() -> None:
        path = f"{folder}/{number}.parquet"
        table.append_parquet(path)

    def write_file() -> None:
        nonlocal number
        number += 1
        times = [START_NS // 1000 + number * 3_600_000_000 + row for row in range(100)]
        rows = {"time": pa.array(times, pa.timestamp("us", "UTC")), "value": list(range(100))}
        pq.write_table(pa.table(rows), f"{folder}/{number}.parquet")

    rounds.run("append", step, before=write_file)


# The driver: it starts the node, runs the rounds, and reads what the processes have recorded.


class Rounds:
    """The rounds of all ways; sets the number that the recorders read."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        path = Path(folder, "round")
        if not path.exists():
            path.write_bytes(bytes(2))
        with path.open("r+b") as file:
            self._round = mmap.mmap(file.fileno(), 2)

    @property
    def is_compiling(self) -> bool:
        """Whether the node still compiles its decoders."""
        return bool(self._round[1])

    def run(
        self, way: str, step: Callable[[], None], before: Callable[[], None] = lambda: None
    ) -> None:
        """Run a step in several rounds, of which the last are recorded."""
        for turn in range(-WARM, ROUNDS):
            before()
            if turn >= 0:
                self._round[0] = 1 + WAYS.index(way) * ROUNDS + turn
            step()
            time.sleep(SETTLE_S)
            self._round[0] = 0

    def functions(self, way: str) -> dict[Function, bool]:
        """Return the functions on a way, in order: (file, name), and whether it is a step."""
        rounds: dict[Function, set[int]] = {}
        entered = set()
        first = 1 + WAYS.index(way) * ROUNDS
        for path in sorted(Path(self._folder).glob("calls.*")):
            for line in path.read_text().splitlines():
                number, file, start, name, caller = line.split("\t")
                if first <= int(number) < first + ROUNDS and is_function(file, int(start), name):
                    function = file.rpartition(PACKAGE)[2], name
                    rounds.setdefault(function, set()).add(int(number))
                    if caller != file:
                        entered.add(function)
        return {
            one: one in entered and not one[0].startswith(FOUNDATION)
            for one, numbers in rounds.items()
            if len(numbers) == ROUNDS
        }


def is_function(file: str, start: int, name: str) -> bool:
    """Tell whether code is a function that counts."""
    last = name.rpartition(".")[2]
    is_noise = last.startswith("<") or (last.startswith("__") and last.endswith("__"))
    return not is_noise and start not in not_steps(file)


@functools.cache
def not_steps(file: str) -> frozenset[int]:
    """Return the first lines of a file's properties and compiled functions: of their decorators."""
    found = set()
    for node in ast.walk(ast.parse(Path(file).read_bytes())):
        if isinstance(node, ast.FunctionDef):
            names = {
                one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")
                for one in node.decorator_list
            }
            if names & set(NOT_STEPS):
                found |= {node.decorator_list[0].lineno, node.lineno}
    return frozenset(found)


def environment(recording: str, source: Path) -> dict[str, str]:
    """Return the environment of a process that runs the package of a source tree, recorded."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("THERMOCLINE_")}
    return {**kept, FOLDER_VARIABLE: recording, "PYTHONPATH": str(source / "src")}


@contextmanager
def node(
    folder: str, recording: str, source: Path, *settings: str
) -> Iterator[dict[str, http.client.HTTPConnection]]:
    """Serve a node while the block runs; yield a connection to each of its HTTP listeners."""
    address = "127.0.0.1:0"
    command = [sys.executable, __file__, "--serve", "serve", "--data", f"{folder}/node"]
    command += ["--http", address, "--api", address, "--grpc", "off", "--flight", "off"]
    command += [word for one in settings for word in ("--set", one)]
    log_path = Path(folder, "log")
    with log_path.open("wb") as log:
        env = environment(recording, source)
        process = subprocess.Popen(command, stderr=log, stdout=log, env=env)
    try:
        end_s = time.monotonic() + READY_S
        events: dict[str, dict[str, int]] = {}
        while "ready" not in events:
            if process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit(f"the node did not start: {log_path.read_text()}")
            time.sleep(0.05)
            lines = [line for line in log_path.read_text().splitlines() if line.startswith("{")]
            events = {one["event"]: one for one in map(json.loads, lines) if "event" in one}
        ports = events["listening"]
        yield {
            name: http.client.HTTPConnection("127.0.0.1", ports[name], timeout=READY_S)
            for name in ("http", "api")
        }
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(READY_S)


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object = None,
    content_type: str = "application/json",
) -> bytes:
    """Send one request and return the body of its answer; exit if it is refused."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, data, {"Content-Type": content_type})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status not in (200, 201):
        raise SystemExit(f"{method} {path}: {answer.status} {text.decode(errors='replace')}")
    return text


def metrics_request(turn: int) -> bytes:
    """Return a metrics request in protobuf."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest()
    group = request.resource_metrics.add()
    group.resource.attributes.add(key="service.name").value.string_value = "shop"
    metric = group.scope_metrics.add().metrics.add(name="shop.load", unit="1")
    for number in range(POINTS):
        point = metric.gauge.data_points.add(
            time_unix_nano=START_NS + turn * 1_000_000 + number, as_double=number / 3
        )
        point.attributes.add(key="host").value.string_value = f"host-{number % 7}"
    return request.SerializeToString()


def run_node(ways: list[str], folder: str, recording: str, source: Path) -> None:
    """Run the ways that need a node."""
    rounds = Rounds(recording)
    settings = ["postgres=embedded"] if "entity" in ways else []
    with node(folder, recording, source, *settings) as connections:
        otlp, api = connections["http"], connections["api"]
        turns = iter(range(1 << 30))

        def send() -> None:
            body = metrics_request(next(turns))
            ask(otlp, "POST", "/v1/metrics", body, "application/x-protobuf")

        def query() -> None:
            sql = f"select count(*) as n from metric_points where value > {next(turns) / 7}"
            ask(api, "POST", "/api/v1/query", {"sql": sql})

        def replace() -> None:
            ask(api, "PUT", "/api/v1/entities/way/one", {"status": f"step {next(turns)}"})

        send()
        while rounds.is_compiling:
            time.sleep(0.1)
        otlp.close()  # compiling may take longer than the node keeps an idle connection
        if "otlp" in ways:
            rounds.run("otlp", send)
        if "sql" in ways:
            ask(api, "POST", "/api/v1/flush", {})
            send()
            rounds.run("sql", query)
        if "entity" in ways:
            ask(api, "POST", "/api/v1/entities/way/schema", ORDER)
            ask(api, "POST", "/api/v1/entities/way?id=one", {"status": "new"})
            rounds.run("entity", replace)


def main() -> None:
    """Run the ways and print the table."""
    if sys.argv[1:2] == ["--serve"]:
        serve()
        return
    if sys.argv[1:2] == ["--append"]:
        append(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description="Count the steps and files on the four ways.")
    parser.add_argument("ways", nargs="*", help=f"of {', '.join(WAYS)}; all if none is named")
    parser.add_argument("--source", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--list", action="store_true", help="name the steps, by file")
    options = parser.parse_args()
    ways = [way for way in WAYS if way in options.ways] or list(WAYS)
    source = options.source.resolve()
    with tempfile.TemporaryDirectory(prefix="ways-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)  # PostgreSQL runs as another user where this one is root
        recording = f"{folder}/recording"
        os.mkdir(recording)
        rounds = Rounds(recording)
        if set(ways) - {"append"}:
            run_node(ways, folder, recording, source)
        if "append" in ways:
            command = [sys.executable, __file__, "--append", folder]
            subprocess.run(command, env=environment(recording, source), check=True)
        print("| way | steps | files | functions |\n|---|---:|---:|---:|")
        for way in ways:
            functions = rounds.functions(way)
            steps = [one for one, is_step in functions.items() if is_step]
            files = dict.fromkeys(file for file, _ in steps)
            print(f"| {way} | {len(steps)} | {len(files)} | {len(functions)} |")
            for file in files if options.list else ():
                print(f"    {file}: {', '.join(name for where, name in steps if where == file)}")


if __name__ == "__main__":
    main()
