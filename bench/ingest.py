"""Times receivers of OTLP: points a second, latency, processor time and memory, under load.

In:   requests made here: points with 6 attributes of a resource with 8; log records
Out:  the section "ingest" of the results

- The load is `senders.py` beside the receiver on the same cores: requests that are encoded
  beforehand, over connections that stay open, each sending when it has its answer.
- `thermocline` answers when the rows are synced to the disk, and flushes to Parquet meanwhile.
- A receiver that refuses anything is told so in the table.
- Processor time is the receiver's own and tells more than the clock where others use the cores.
- `others` is the share of the cores that other processes, and the machine's host, used meanwhile.
- Memory is looked at twice a second; `grown` is the last look less the one at a third of the time.
- The second table is a minute of the middle load on `thermocline` alone, without and with somebody
  who asks: the highest memory, its slope by least squares over the last two thirds of the looks,
  and what the queries do to the senders' latency.
"""

import argparse
import gzip
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import fhvhv
import measure
import receivers
from otlp_decode import NOW_NS, attributes, request
from receivers import Receiver, available

SENDERS = Path(__file__).with_name("senders.py")
BODIES = 16
POINTS = 1_000
POINTS_MIN = 1_000_000
P99_MAX_MS = 50.0
AIM = f"{POINTS_MIN:,}/s, p99 under {P99_MAX_MS:.0f} ms"
MINUTE_S = 60.0
ASKED = (
    "select count(*) as n, avg(value) as mean from metric_points",
    "select metric, max(value) as most from metric_points group by 1 order by 1",
    "select service_name, count(distinct metric) as n from metric_points group by 1",
)
MB = 1 << 20
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: a name, items in a request, and how one is made of a turn's number."""

    name: str
    items: int
    path: str
    body: Callable[[int], bytes]
    content_type: str = "application/x-protobuf"
    coding: str = ""

    def http(self, turn: int) -> bytes:
        """Return one whole request."""
        body = self.body(turn)
        if self.coding == "gzip":
            body = gzip.compress(body, 6)
        lines = [
            f"POST {self.path} HTTP/1.1",
            "Host: localhost",
            f"Content-Type: {self.content_type}",
            *([f"Content-Encoding: {self.coding}"] if self.coding else []),
            f"Content-Length: {len(body)}",
            "\r\n",
        ]
        return "\r\n".join(lines).encode() + body


def log_body(records: int, turn: int) -> bytes:
    """Return a request of log records with 6 attributes of a resource with 8."""
    made = ExportLogsServiceRequest()
    group = made.resource_logs.add()
    resource: dict[str, str | int] = {f"resource.key.{n}": f"value-{n}" for n in range(7)}
    group.resource.attributes.extend(attributes({"service.name": "shop", **resource}))
    scope = group.scope_logs.add()
    for place in range(records):
        record = scope.log_records.add(time_unix_nano=NOW_NS + place, severity_text="INFO")
        record.severity_number = 9  # type: ignore[assignment]
        record.body.string_value = f"order {turn * records + place} was paid in {place % 97} ms"
        fields: dict[str, str | int] = {f"key.{n}": f"value-{place % (n + 3)}" for n in range(6)}
        record.attributes.extend(attributes(fields))
    return made.SerializeToString()


def prometheus_body(points: int, turn: int) -> bytes:
    """Return the points of `request` as lines of Prometheus' text format."""
    shared = ",".join(f'resource_key_{n}="value-{n}"' for n in range(7))
    lines = []
    for number in range(min(20, points)):
        for place in range(points // min(20, points)):
            own = (
                f'http_method="GET",http_route="/api/v{turn}/{place}",http_status_code="200",'
                f'host="host-{number}",zone="eu-1",pod="pod-{place % 7}"'
            )
            time_ms = (NOW_NS + place * 1_000_000) // 1_000_000
            series = f'shop_metric_{number}{{service_name="shop",{shared},{own}}}'
            lines.append(f"{series} {place / 3} {time_ms}")
    return "\n".join(lines).encode()


def loads(receiver: str, *, is_quick: bool) -> list[Load]:
    """Return what a receiver is sent."""
    if receiver == "victoria-metrics":
        path, kind = "/api/v1/import/prometheus", "text/plain"
        made = [
            Load(f"{n:,} points", n, path, lambda turn, n=n: prometheus_body(n, turn), kind)
            for n in (50, 1_000, 5_000)
        ]
    else:
        made = [
            Load(f"{n:,} points", n, "/v1/metrics", lambda turn, n=n: request(n, turn))
            for n in (50, 1_000, 5_000)
        ]
        thousand = made[1]
        made.append(Load("1,000 points, gzip", 1_000, thousand.path, thousand.body, coding="gzip"))
        made.append(
            Load("1,000 log records", 1_000, "/v1/logs", lambda turn: log_body(1_000, turn))
        )
    return made[1:2] if is_quick else made


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one load came to."""

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    memory_mb: float
    grown_mb: float
    slope_mb: float
    refused: int
    others: float

    def verdict(self) -> str:
        """Tell whether it is what is aimed at, for points by the thousand."""
        return "met" if self.rate >= POINTS_MIN and self.p99_ms < P99_MAX_MS else "not met"


class Look:
    """Looks at a receiver's memory while the load lasts."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._told = threading.Event()
        self.looks: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._told.wait(LOOK_S):
            self.looks.append(self._receiver.memory_bytes())

    def end(self) -> list[int]:
        """Return all looks."""
        self._told.set()
        self._thread.join()
        return self.looks or [0]


def slope(looks: list[int], step_s: float) -> float:
    """Return by how much looks grow in a second, by the line that fits them best."""
    middle, mean = (len(looks) - 1) / 2, statistics.fmean(looks)
    square = sum((place - middle) ** 2 for place in range(len(looks)))
    if not square:
        return 0.0
    together = sum((place - middle) * (look - mean) for place, look in enumerate(looks))
    return together / square / step_s


class Asking:
    """Asks one query after the other of a node, until it is told to end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._told = threading.Event()
        self.latencies_ms: list[float] = []
        self.refused = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        turn = 0
        while not self._told.is_set():
            began_s = time.perf_counter()
            status = self._status(ASKED[turn % len(ASKED)])
            if status == http.HTTPStatus.OK:
                self.latencies_ms.append((time.perf_counter() - began_s) * 1e3)
            else:
                self.refused += 1
                self._told.wait(0.2)
            turn += 1

    def _status(self, sql: str) -> int:
        one = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            body, kind = json.dumps({"sql": sql}), {"Content-Type": "application/json"}
            one.request("POST", "/api/v1/query", body, kind)
            answer = one.getresponse()
            answer.read()
            return answer.status
        except OSError:
            return 0
        finally:
            one.close()

    def end(self) -> list[float]:
        """Return what each query took."""
        self._told.set()
        self._thread.join()
        return sorted(self.latencies_ms) or [0.0]


def run(receiver: Receiver, load: Load, options: argparse.Namespace, folder: Path) -> Outcome:
    """Send one load to a receiver and return what it came to."""
    files = []
    for turn in range(BODIES):
        path = folder / f"request-{turn}"
        path.write_bytes(load.http(turn))
        files.append(str(path))
    command = [sys.executable, str(SENDERS), "--port", str(receiver.port)]
    command += ["--connections", str(options.connections), "--warm", str(options.warm)]
    command += ["--seconds", str(options.seconds), *files]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(options.warm + 0.2)  # what it takes to learn the attributes is not counted
    start_s, cpu_s = time.monotonic(), receiver.cpu_s()
    look = Look(receiver)
    with measure.Noise() as noise:
        said = process.communicate()[0]
    spent_s, cpu_s = time.monotonic() - start_s, receiver.cpu_s() - cpu_s
    looks = look.end()
    if process.returncode:
        raise SystemExit(f"{receiver.name}: the load failed at {load.name}")
    found = json.loads(said)
    latencies = sorted(found["latencies_ms"]) or [0.0]
    good = sum(count for status, count in found["statuses"].items() if status.startswith("2"))
    rate = good * load.items / found["seconds"]
    return Outcome(
        rate,
        statistics.median(latencies),
        latencies[int(len(latencies) * 0.99)],
        cpu_s / (rate * spent_s) * 1e6 if rate else 0.0,
        max(looks) / MB,
        (looks[-1] - looks[len(looks) // 3]) / MB,
        slope(looks[len(looks) // 3 :], LOOK_S) * 60 / MB,
        sum(found["statuses"].values()) - good,
        noise.share,
    )


def table(options: argparse.Namespace, folder: Path) -> str:
    """Run every load on every receiver; return the table."""
    rows = []
    for name in measure.chosen(available(), options.only):
        with tempfile.TemporaryDirectory(dir=folder) as data, Receiver(name, Path(data)) as one:
            for load in loads(name, is_quick=options.quick):
                measure.await_quiet(options.patience)
                found = run(one, load, options, folder)
                is_aim = (name, load.name) == ("thermocline", "1,000 points")
                met = found.verdict() if is_aim else ""
                shown = [f"{found.rate:,.0f}", f"{found.p50_ms:.1f}", f"{found.p99_ms:.1f}"]
                shown += [f"{found.cpu_us:.2f}", f"{found.memory_mb:,.0f}"]
                shown += [
                    f"{found.grown_mb:+,.0f}",
                    f"{found.refused:,}",
                    f"{found.others:.0%}",
                    met,
                ]
                rows.append([name, load.name, *shown])
                measure.progress(" | ".join(rows[-1]))
    headers = ["receiver", "request", "items/s", "p50 ms", "p99 ms", "CPU us an item"]
    return measure.markdown_table([*headers, "MB", "MB grown", "refused", "others", AIM], rows)


def minute(options: argparse.Namespace, folder: Path) -> str:
    """Run the middle load for a minute, without and with queries beside it; return the table."""
    load = next(one for one in loads("thermocline", is_quick=False) if one.items == POINTS)
    given = argparse.Namespace(**vars(options))
    given.seconds = options.seconds if options.quick else MINUTE_S
    rows = []
    for name, is_asked in (("nobody", False), ("one who asks", True)):
        api = receivers.free_port()
        command, port = receivers.COMMANDS["thermocline"](folder / f"minute-{is_asked}")
        command[command.index("--api") + 1] = f"127.0.0.1:{api}"
        known = receivers.COMMANDS | {"thermocline": lambda _, c=command, p=port: (c, p)}
        kept, receivers.COMMANDS = receivers.COMMANDS, known
        try:
            with Receiver("thermocline", folder) as one:
                measure.await_quiet(options.patience)
                asking = Asking(api) if is_asked else None
                found = run(one, load, given, folder)
                waits = [0.0] if asking is None else asking.end()
        finally:
            receivers.COMMANDS = kept
        shown = [f"{found.rate:,.0f}", f"{found.p50_ms:.1f}", f"{found.p99_ms:.1f}"]
        shown += [f"{found.memory_mb:,.0f}", f"{found.slope_mb:+,.1f}", f"{found.refused:,}"]
        shown += [f"{len(waits):,}" if is_asked else ""]
        shown += [f"{statistics.median(waits):.0f}" if is_asked else ""]
        shown += [f"{waits[int(len(waits) * 0.99)]:.0f}" if is_asked else ""]
        rows.append([name, *shown, f"{found.others:.0%}", "" if is_asked else found.verdict()])
        measure.progress(" | ".join(rows[-1]))
    headers = ["beside it", "points/s", "p50 ms", "p99 ms", "MB at most", "MB a minute", "refused"]
    headers += ["queries", "their p50 ms", "p99 ms", "others", AIM]
    return measure.markdown_table(headers, rows)


def main() -> None:
    """Run the bench and write its section."""
    parser = measure.options("Time receivers of OTLP under load.")
    parser.add_argument("--connections", type=int, default=24, help="connections that send")
    parser.add_argument("--seconds", type=float, default=12.0, help="counted, for each load")
    parser.add_argument("--warm", type=float, default=6.0, help="seconds before that")
    parser.add_argument("--only", help="receivers to run, separated by commas")
    options = parser.parse_args()
    if options.quick:
        options.connections, options.seconds, options.warm = 4, 1.0, 0.5
    scratch = fhvhv.data_folder() / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name, measure.Noise() as noise:
        found = table(options, Path(name))
        lasting = minute(options, Path(name))
    setup = (
        f"{options.connections} connections from one process on the same {os.cpu_count()} cores, "
        f"{options.seconds:.0f} s for each load after {options.warm:.0f} s that are not counted, "
        f"{BODIES} different requests in turns. `thermocline` has synced the rows to disk when it "
        "answers, and flushes them to Parquet meanwhile; `rotel` drops what it decoded; "
        "`victoria-metrics` gets the same points as text and does not sync."
    )
    after = "A minute of 1,000 points a request, with flushes, and somebody who asks all of it:"
    about = measure.provenance("ingest.py", {})
    parts = ["## Ingest", about, setup, found, after, lasting, noise.line()]
    body = "\n\n".join(parts)
    measure.write_section(options.results, "ingest", body)
    print(body)


if __name__ == "__main__":
    main()
