"""Verbs for the receivers: a real node with both listeners, on free ports."""

import asyncio
import http.client
import socket
import threading
from contextlib import contextmanager

import uvloop
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from thermocline.config import LakeSettings
from thermocline.errors import Forbidden, Unauthenticated
from thermocline.node import Node
from thermocline.server.access.guard import Caller
from thermocline.server.otlp.grpc import OtlpGrpc
from thermocline.server.otlp.http import OtlpHttp
from thermocline.server.otlp.http1.route import HttpLimits
from thermocline.server.otlp.ingest_queue import IngestQueue, Receiver
from thermocline.server.otlp.memory_budget import MemoryBudget


class Keys:
    """Who may send, by key: `Bearer <tenant>`, without any key the default tenant."""

    node = None
    """A gateway's node; that it can be read says that the node is open."""

    def __init__(self, *tenants, readers=()):
        self.tenants, self.readers = tenants, readers

    def caller(self, authorization, scope, *, peer=""):
        """Return the caller that a key stands for."""
        if not self.tenants:
            return Caller("default", "anonymous", frozenset({scope}))
        name = (authorization or "").removeprefix("Bearer ")
        if name in self.readers:
            raise Forbidden("the key may not do this", hint="use one that may")
        if name not in self.tenants:
            raise Unauthenticated("no valid key", hint="send one")
        return Caller(name, name, frozenset({scope}))


class Counts:
    """What the receivers counted."""

    def __init__(self):
        self.requests, self.rows, self.bytes, self.refused = [], {}, {}, {}

    def count_request(self, listener, route, status, seconds):
        """Count a request."""
        assert seconds >= 0
        self.requests.append((listener, route, status))

    def count_ingested(self, signal, rows, size_bytes):
        """Count rows."""
        self.rows[signal] = self.rows.get(signal, 0) + rows
        self.bytes[signal] = self.bytes.get(signal, 0) + size_bytes

    def count_rejected(self, signal, rows):
        """Count refused rows."""
        self.refused[signal] = self.refused.get(signal, 0) + rows


class Served:
    """A node and its listeners; `call` runs something on their loop."""

    def __init__(
        self,
        root,
        *,
        keys=None,
        settings=None,
        budget=None,
        http=None,
        sink=None,
        origins=(),
        **lane,
    ):
        self.node = Node(str(root), settings or LakeSettings())
        self.counts = Counts()
        self.keys = keys or Keys()
        self._sink = sink(self.node) if sink else self.node
        self.budget = budget or MemoryBudget()
        self._origins = origins
        self._limits, self._lane_options = http or HttpLimits(), lane
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.call(self._start())

    def call(self, coroutine, timeout_s=180):
        """Run a coroutine on the loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    async def _start(self):
        self.lane = IngestQueue(self._sink, **{"is_compiled": False, **self._lane_options})
        await self.lane.start()
        receiver = Receiver(self.lane, self.budget, self.keys, None, self.counts)
        is_open = not self.keys.tenants
        web = {"is_open": lambda: is_open, "origins": self._origins}
        self.http = OtlpHttp(receiver, port=0, limits=self._limits, **web)
        bytes_max = self._limits.body_bytes_max
        self.grpc = OtlpGrpc(receiver, port=0, message_bytes_max=bytes_max)
        await self.http.start()
        await self.grpc.start()

    async def _stop(self, deadline_s):
        await asyncio.gather(self.http.stop(deadline_s), self.grpc.stop(deadline_s))
        await self.lane.stop(deadline_s)

    def stop(self, deadline_s=30.0):
        """Stop the listeners, then the lane, and end the loop."""
        if self._thread.is_alive():
            self.call(self._stop(deadline_s))
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def close(self):
        """Stop everything."""
        self.stop()
        self.node.close()

    def url(self, signal):
        """Return where a signal is sent to."""
        return f"http://127.0.0.1:{self.http.port}/v1/{signal}"

    def sql(self, query, tenant="default"):
        """Return the rows of a query."""
        return self.node.lake(tenant).sql(query).to_pylist()

    def count(self, table, tenant="default"):
        """Return how many rows a table has; none when there is no such table."""
        if table not in self.node.lake(tenant).tables():
            return 0
        return self.sql(f"select count(*) as n from {table}", tenant)[0]["n"]


@contextmanager
def served(root, **options):
    """Serve a node under a folder while the block runs."""
    made = Served(root, **options)
    try:
        yield made
    finally:
        made.close()


def post(served, path, body, **headers):
    """Send one request by a well-behaved client; return status, headers, body."""
    given = {"content-type": "application/x-protobuf"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    client = http.client.HTTPConnection("127.0.0.1", served.http.port, timeout=90)
    try:
        client.request("POST", path, body, given)
        answer = client.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, answer.read()
    finally:
        client.close()


def preflight(served, path, **headers):
    """Ask as a browser does before a page sends; return status and headers."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    client = http.client.HTTPConnection("127.0.0.1", served.http.port, timeout=90)
    try:
        client.request("OPTIONS", path, headers=given)
        answer = client.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        client.close()


def status_of(body):
    """Return the code and message of a `google.rpc.Status`, and its `RetryInfo` seconds."""
    status = Status.FromString(body)
    waits = []
    for detail in status.details:
        info = RetryInfo()
        assert detail.Unpack(info)
        waits.append(info.retry_delay.seconds)
    return status.code, status.message, waits


# Bytes over a socket, as no well-behaved client would send them.


def connected(port):
    """Return a socket to a port of this machine."""
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def head(path="/v1/metrics", length=0, *, method="POST", **headers):
    """Return the head of a request; `headers` with underscores for dashes, None for absent."""
    given = {
        "host": "localhost",
        "content_type": "application/x-protobuf",
        "content_length": str(length),
        **headers,
    }
    lines = [
        f"{name.replace('_', '-')}: {value}" for name, value in given.items() if value is not None
    ]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


def answered(sock):
    """Return status, headers and body of the next answer; None when the connection ended."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65_536)
        if not part:
            return None
        data += part
    top, _, body = data.partition(b"\r\n\r\n")
    lines = top.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines[1:])}
    while len(body) < int(headers.get("content-length", 0)):
        body += sock.recv(65_536)
    return int(lines[0].split()[1]), headers, body


def sent(port, *parts):
    """Send bytes on a new connection and return the answer."""
    with connected(port) as sock:
        for part in parts:
            sock.sendall(part)
        return answered(sock)


def is_closed(sock):
    """Tell whether the other side has closed, waiting for it a while."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
