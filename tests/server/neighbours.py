"""Two tenants of one node: one attacks, the other writes, queries and asks for health meanwhile.

Each attack is bounded in count and time and goes to 127.0.0.1 only. The victim's slow answers are
compared with its own while the node is quiet, in the same run, so that a busy machine changes both.
"""

import http.client
import json
import re
import resource
import socket
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fixtures.served import ServedNode

FACTOR_MAX = 3.0
FLOOR_S = 0.25
ATTACK_S = 3.0
QUIET_S = 3.0
MEMORY_BYTES_MAX = 1_500 << 20
"""The node's process: its libraries, twice the hot rows, and twice the bytes in flight."""
NESTED = "select list({'a': i, 'b': [i, i + 1]}) as v from range(400000) t(i)"
ENDLESS = "select count(*) from range(1000000000) a, range(1000) b"


@dataclass(slots=True)
class Findings:
    """What the victim noticed: how long its answers took, and what was refused."""

    times_s: dict[str, list[float]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def slow_s(self, kind: str) -> float:
        """Return the 99th percentile of a kind of request."""
        times = sorted(self.times_s.get(kind, ()))
        return times[min(len(times) - 1, len(times) * 99 // 100)] if times else float("inf")


class Neighbours:
    """A node with the keys of two tenants."""

    def __init__(self, node: ServedNode, operator: str) -> None:
        self.node = node
        self.operator = operator
        self.keys = {}
        for tenant in ("loud", "quiet"):
            made, _, _ = node.ask("/api/v1/tenants", {"name": tenant}, key=operator)
            assert made == 201, made
            asked = {"tenant": tenant, "scopes": ["ingest", "query", "admin"]}
            status, found, _ = node.ask("/api/v1/keys", asked, key=operator)
            assert status == 201, found
            self.keys[tenant] = found["key"]
        for tenant, key in self.keys.items():
            end_s = time.monotonic() + 60
            while node.send_log(1, key=key)[0] != 200:  # until the node has read the key
                assert time.monotonic() < end_s
                time.sleep(0.05)
            self.query(tenant, "select count(*) as n from logs")

    def query(self, tenant: str, sql: str, timeout_s: float = 90) -> tuple[int, Any, dict]:
        """Run SQL as a tenant."""
        body = {"sql": sql}
        return self.node.ask("/api/v1/query", body, key=self.keys[tenant], timeout_s=timeout_s)

    def watch(self, seconds: float) -> Findings:
        """Let the victim write, query and ask for health for so long."""
        found, end_s, number = Findings(), time.monotonic() + seconds, 0
        while time.monotonic() < end_s:
            number += 1
            for kind, act in (
                ("write", partial(self.node.send_log, number, key=self.keys["quiet"])),
                ("query", lambda: self.query("quiet", "select count(*) as n from logs")),
                ("health", lambda: self.node.ask("/health/live")),
            ):
                began_s = time.monotonic()
                try:
                    status, told, _ = act()
                except OSError as error:
                    status, told = 0, repr(error)
                found.times_s.setdefault(kind, []).append(time.monotonic() - began_s)
                if status != 200:
                    found.refused.append(f"{kind}: {status} {told}")
        return found

    def attack(
        self, act: Callable[["Neighbours", threading.Event], Any], seconds: float = ATTACK_S
    ) -> Findings:
        """Return what the victim notices while an attack runs."""
        is_over = threading.Event()
        attacker = threading.Thread(target=_run_quietly, args=(act, self, is_over))
        attacker.start()
        try:
            return self.watch(seconds)
        finally:
            is_over.set()
            attacker.join(60)
            assert not attacker.is_alive()

    def memory_bytes(self) -> int:
        """Return the largest resident memory that the node has had."""
        status = Path(f"/proc/{self.node.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) << 10


def _run_quietly(act: Callable[..., Any], *arguments: Any) -> None:
    with suppress(OSError, http.client.HTTPException):  # the node may end a connection
        act(*arguments)


def post(
    neighbours: Neighbours, path: str, body: bytes, listener: str = "api", **headers: str
) -> int:
    """Send a request of the attacker; return its status."""
    port = neighbours.node.port(listener)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        given = {"Authorization": f"Bearer {neighbours.keys['loud']}", **named}
        connection.request("POST", path, body, given)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@contextmanager
def connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Open connections, as many as the node accepts, and close them at the end."""
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            with suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        yield held
    finally:
        for one in held:
            one.close()


def in_threads(count: int, act: Callable[[], Any]) -> None:
    """Run an act in several threads until each has ended."""
    threads = [threading.Thread(target=_run_quietly, args=(act,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def stalled_uploads(neighbours: Neighbours, is_over: threading.Event) -> None:
    """Row 5: two uploads that stop one byte before their end."""
    size = 60 << 20
    head = (
        f"POST /v1/logs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
        f"Content-Type: application/x-protobuf\r\n"
        f"Authorization: Bearer {neighbours.keys['loud']}\r\n\r\n"
    ).encode()

    def upload() -> None:
        with connections(neighbours.node.port("http"), 1) as (sock,):
            sock.settimeout(30)
            sock.sendall(head + bytes(size - 1))
            is_over.wait(60)

    in_threads(2, upload)


def wide_rows(neighbours: Neighbours, is_over: threading.Event) -> None:
    """Row 6: rows whose keys are all different, with `evolve`."""
    rows = [json.dumps({"ts": "2024-01-01T00:00:00Z", f"k{n % 1_900}": 1}) for n in range(20_000)]
    body = "\n".join(rows).encode()
    neighbours.node.ask(
        "/api/v1/tables",
        {"name": "wide", "time_column": "ts", "bucket": "1h"},
        key=neighbours.keys["loud"],
    )
    path = "/api/v1/tables/wide/rows?evolve=true"
    kind = {"Content_Type": "application/x-ndjson"}
    while not is_over.is_set():
        in_threads(2, lambda: post(neighbours, path, body, **kind))


def bombs(neighbours: Neighbours, is_over: threading.Event) -> None:
    """Row 4: a small body of gzip that holds millions of empty records."""
    records = b"\x12\x00" * 2_000_000
    scope = b"\x12" + _varint(len(records)) + records
    body = b"\x0a" + _varint(len(scope)) + scope
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = packer.compress(body) + packer.flush()
    kinds = {"Content_Type": "application/x-protobuf", "Content_Encoding": "gzip"}
    while not is_over.is_set():
        post(neighbours, "/v1/logs", packed, "http", **kinds)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def endless_queries(neighbours: Neighbours, is_over: threading.Event) -> None:
    """Row 7: more endless queries than there are workers."""
    body = json.dumps({"sql": ENDLESS, "timeout_s": 3_600}).encode()
    port = neighbours.node.port("api")
    head = (
        f"POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {neighbours.keys['loud']}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with connections(port, 6) as held:
        for one in held:
            one.sendall(head + body)
        is_over.wait(60)


def nested_answers(neighbours: Neighbours, is_over: threading.Event) -> None:
    """Row 8: an answer of millions of nested values as JSON."""
    while not is_over.is_set():
        neighbours.query("loud", NESTED)


def silent_connections(neighbours: Neighbours, is_over: threading.Event) -> None:
    """Rows 10 and 11: connections that say nothing take every place of both listeners."""
    with (
        connections(neighbours.node.port("http"), 400),
        connections(neighbours.node.port("api"), 400),
    ):
        is_over.wait(60)


def idle_streams(neighbours: Neighbours, is_over: threading.Event) -> None:
    """Row 12: gRPC streams that send no message."""
    import grpc

    name = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
    metadata = (("authorization", f"Bearer {neighbours.keys['loud']}"),)

    def wait() -> Iterator[bytes]:
        is_over.wait(60)
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{neighbours.node.port('grpc')}") as channel:
        call = channel.stream_unary(name)
        calls = [call.future(wait(), timeout=90, metadata=metadata) for _ in range(100)]
        is_over.wait(60)
        for one in calls:
            one.cancel()


def costly_conditions(neighbours: Neighbours, is_over: threading.Event) -> None:
    """Row 1: conditions that take gigabytes or minutes."""
    wheres = (
        "length(repeat(body, 1500000000)) > 1",
        "levenshtein(repeat(body, 40000), repeat(body, 39999)) > 1",
    )
    for where in wheres:
        if not is_over.is_set():
            body = json.dumps({"where": where}).encode()
            post(neighbours, "/api/v1/tables/logs/delete", body, Content_Type="application/json")


ATTACKS = (
    stalled_uploads,
    wide_rows,
    bombs,
    endless_queries,
    nested_answers,
    silent_connections,
    idle_streams,
    costly_conditions,
)


def raise_file_limit() -> None:
    """Let this process open as many files as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def broken_limits(quiet: Findings, beside: Findings) -> list[str]:
    """Return what the victim may complain about."""
    found = [f"refused {one}" for one in beside.refused[:5]]
    for kind in quiet.times_s:
        most_s = max(FLOOR_S, FACTOR_MAX * quiet.slow_s(kind))
        if beside.slow_s(kind) > most_s:
            found.append(f"{kind}: {beside.slow_s(kind):.3f} s beside {quiet.slow_s(kind):.3f} s")
    return found


def figures(findings: Findings) -> dict[str, float]:
    """Return the median and the slow answers of each kind, in milliseconds."""
    return {
        f"{kind}_{name}_ms": round(1_000 * value, 1)
        for kind, times in findings.times_s.items()
        for name, value in (("p50", statistics.median(times)), ("p99", findings.slow_s(kind)))
    }
