"""The HTTP/1.1 server under the receiver: what is on the wire, and what hostile senders get."""

import asyncio
import socket
import threading
import time

import pytest
import uvloop

from fixtures.timing import wait_until
from ingest.otlp_requests import gauge_request
from server.otlp_node import answered, connected, head, is_closed, post, sent, served
from thermocline.server.otlp.http1.route import Http1Response, Http1Route, HttpLimits
from thermocline.server.otlp.http1.server import Http1Server
from thermocline.server.otlp.memory_budget import MemoryBudget

SHORT = HttpLimits(head_timeout_s=2.0, body_timeout_s=2.0, discard_timeout_s=2.0)
WAIT_S = 60  # far more than a busy machine takes


class Echo:
    """A server that gives back what it gets; `gate` holds answers until it is set."""

    def __init__(self, limits=None, budget=None):
        self.gate = threading.Event()
        self.gate.set()
        self.bodies = []
        self.budget = budget or MemoryBudget()
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        routes = {("POST", "/"): Http1Route(self._answer), ("POST", "/bug"): Http1Route(self._bug)}
        self.server = Http1Server(routes, budget=self.budget, limits=limits)
        self.call(self.server.start())

    @property
    def port(self):
        return self.server.port

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(3 * WAIT_S)

    async def _answer(self, request):
        self.bodies.append(bytes(request.body))
        while not self.gate.is_set():
            await asyncio.sleep(0.01)
        return Http1Response(200, bytes(request.body))

    async def _bug(self, request):
        raise ZeroDivisionError

    def close(self):
        self.gate.set()
        self.call(self.server.stop(WAIT_S))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def echoing():
    """Return a verb that starts an echo server with limits."""
    made = []

    def start(limits=None, budget=None):
        made.append(Echo(limits, budget))
        return made[-1]

    yield start
    for one in made:
        one.close()


def chunked(*parts):
    lines = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head("/", content_length=None, transfer_encoding="chunked") + lines + b"0\r\n\r\n"


def test_a_connection_serves_one_request_after_another(echoing):
    echo = echoing()
    with connected(echo.port) as sock:
        for body in (b"one", b"", b"three" * 100_000):
            sock.sendall(head("/", len(body)) + body)
            status, headers, found = answered(sock)
            assert (status, found) == (200, body)
            assert "connection" not in headers
            assert headers["date"].endswith("GMT")
    assert echo.budget.held_bytes == 0


@pytest.mark.parametrize("size", [1, 4_095, 4_096, 70_000, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_a_body_of_any_size_in_any_pieces_arrives_whole(echoing, size):
    echo = echoing()
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    request = head("/", size) + body
    with connected(echo.port) as sock:
        for step in (len(request), 60_001, 3_000):
            if step < 10_000 < size and size > 100_000:
                continue
            for at in range(0, len(request), step):
                sock.sendall(request[at : at + step])
            assert answered(sock)[2] == body


def test_a_head_in_single_bytes_is_read(echoing):
    echo = echoing()
    with connected(echo.port) as sock:
        for byte in head("/", 2) + b"ok":
            sock.sendall(bytes([byte]))
        assert answered(sock)[2] == b"ok"


def test_requests_sent_ahead_are_answered_in_their_order(echoing):
    echo = echoing()
    bodies = [b"%d" % number * (number * 1_000) for number in range(1, 9)]
    with connected(echo.port) as sock:
        sock.sendall(b"".join(head("/", len(body)) + body for body in bodies))
        found = b""
        while len(found) < sum(map(len, bodies)):
            part = sock.recv(65_536)
            assert part
            found += part
        assert [found.count(body) > 0 for body in bodies] == [True] * 8
    assert echo.bodies == bodies


def test_a_chunked_body_is_joined(echoing):
    echo = echoing()
    with connected(echo.port) as sock:
        for parts in ([b"ab", b"c" * 100_000, b"d"], [b"x"]):
            sock.sendall(chunked(*parts))
            assert answered(sock)[2] == b"".join(parts)


def test_what_follows_a_chunked_body_at_once_ends_the_connection_after_the_answer(echoing):
    echo = echoing()
    with connected(echo.port) as sock:
        sock.sendall(chunked(b"one") + chunked(b"two"))
        status, headers, body = answered(sock)
        assert (status, body, headers["connection"]) == (200, b"one", "close")
        assert is_closed(sock)
    assert echo.bodies == [b"one"]


@pytest.mark.parametrize("chunks", [b"zz\r\nab\r\n0\r\n\r\n", b"2\nab\r\n0\r\n\r\n", b"-1\r\n"])
def test_I18_malformed_chunks_are_400(echoing, chunks):
    echo = echoing()
    request = head("/", content_length=None, transfer_encoding="chunked") + chunks
    assert sent(echo.port, request)[0] == 400
    assert echo.bodies == []


SMUGGLED = b"0\r\n\r\nPOST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        head("/", 5, transfer_encoding="chunked") + SMUGGLED,
        head("/", content_length=None, transfer_encoding="gzip, chunked") + SMUGGLED,
        head("/", content_length=None, transfer_encoding="chunked, identity") + SMUGGLED,
        head("/", content_length=None, transfer_encoding="xchunked") + SMUGGLED,
        head("/", 5).replace(b"\r\n\r\n", b"\r\ncontent-length: 6\r\n\r\n") + b"123456",
        head("/", 5).replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n") + b"12345",
        head("/", "+5") + b"12345",
        head("/", "0x5") + b"12345",
        head("/", "5, 5") + b"12345",
        head("/", 0).replace(b"\r\n", b"\n"),
        head("/", 0).replace(b"host", b"x: y\nhost"),
        head("/", 0).replace(b"host", b"x: y\rhost"),
        head("/", 0).replace(b"host:", b"host :"),
        head("/", 0).replace(b"host: localhost", b"host: a\r\n folded"),
        head("/", 0).replace(b"HTTP/1.1", b"HTTP/1.1\r\nhost: b"),
        head("/", 0, host=None),
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        head("/", 0, upgrade="h2c", connection="upgrade").replace(b"h2c", b"h2c\r\n folded"),
        b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n",
    ],
)
def test_I18_what_two_parsers_could_read_differently_is_refused(echoing, request_):
    echo = echoing()
    with connected(echo.port) as sock:
        sock.sendall(request_)
        status, headers, _ = answered(sock)
        assert status in (400, 505)
        assert headers["connection"] == "close"
        assert is_closed(sock)
    assert echo.bodies == []


def test_an_offer_to_upgrade_is_ignored_and_the_body_is_taken(echoing):
    echo = echoing()
    offer = {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAEAAEAA",
    }
    with connected(echo.port) as sock:
        for _ in range(2):
            sock.sendall(head("/", 5, **offer) + b"12345")
            assert answered(sock)[::2] == (200, b"12345")
        chunks = head("/", content_length=None, transfer_encoding="chunked", **offer)
        sock.sendall(chunks + b"3\r\nabc\r\n0\r\n\r\n")
        assert answered(sock)[::2] == (200, b"abc")


def test_headers_behind_a_body_are_not_the_requests(echoing):
    echo = echoing()
    heads = []

    async def answer(request):
        heads.append(dict(request.head.headers))
        return Http1Response(200, bytes(request.body))

    echo.server._shared.routes[("POST", "/")] = Http1Route(answer)
    with connected(echo.port) as sock:
        sock.sendall(chunked(b"abc")[:-2] + b"authorization: Bearer x\r\n\r\n")
        assert answered(sock)[::2] == (200, b"abc")
    assert b"authorization" not in heads[0]


@pytest.mark.parametrize("line", [b"a: " + b"x" * 1_000 + b"\r\n", b"x" * 1_000])
def test_headers_behind_a_body_have_a_limit(echoing, line):
    echo = echoing(HttpLimits(body_bytes_max=10_000))
    with connected(echo.port) as sock:
        sock.sendall(chunked(b"abc")[:-2])
        for _ in range(2_000):
            sock.sendall(line)
        assert answered(sock)[0] == 413
    assert echo.bodies == []


def test_a_head_that_is_too_long_or_has_too_many_lines_is_431(echoing):
    echo = echoing()
    assert sent(echo.port, head("/", x="y" * 40_000))[0] == 431
    many = {f"x{number}": "y" for number in range(101)}
    assert sent(echo.port, head("/", **many))[0] == 431


def test_expect_100_is_answered_before_the_body_and_another_expectation_is_417(echoing):
    echo = echoing()
    with connected(echo.port) as sock:
        sock.sendall(head("/", 3, expect="100-continue"))
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"abc")
        assert answered(sock)[2] == b"abc"
    assert sent(echo.port, head("/", 0, expect="200-ok"))[0] == 417


def test_a_body_over_the_limit_is_413_while_it_arrives(echoing):
    echo = echoing(HttpLimits(body_bytes_max=100_000))
    assert sent(echo.port, head("/", 100_001))[0] == 413
    with connected(echo.port) as sock:
        sock.sendall(head("/", content_length=None, transfer_encoding="chunked"))
        sock.sendall(b"30000\r\n" + bytes(120_000))  # promises 196,608
        assert answered(sock)[0] == 413
    assert echo.bodies == []
    assert sent(echo.port, head("/", 100_000), bytes(100_000))[0] == 200


def test_a_sender_that_is_refused_midway_can_finish_sending_and_read_why(echoing):
    echo = echoing(HttpLimits(body_bytes_max=1_000))
    with connected(echo.port) as sock:
        sock.sendall(head("/", 20_000_000))
        sock.sendall(bytes(20_000_000))
        assert answered(sock)[0] == 413


def test_I06_a_slow_head_and_a_slow_body_are_ended_and_hold_nobody_up(echoing):
    echo = echoing(SHORT)
    with connected(echo.port) as slow_head, connected(echo.port) as slow_body:
        slow_head.sendall(b"POST / HT")
        slow_body.sendall(head("/", 1_000))
        end_s = time.monotonic() + WAIT_S
        statuses = {}
        while len(statuses) < 2 and time.monotonic() < end_s:
            for name, sock in (("head", slow_head), ("body", slow_body)):
                if name not in statuses:
                    sock.settimeout(0.05)
                    try:
                        statuses[name] = answered(sock)[0]
                    except TimeoutError:
                        sock.sendall(b"x")
            assert sent(echo.port, head("/", 2), b"ok")[0] == 200
        # 408 is final for senders of telemetry: they would drop what came too slowly.
        assert statuses == {"head": 408, "body": 503}
    wait_until(lambda: echo.budget.held_bytes == 0)


def test_I06_a_body_that_comes_fast_enough_is_not_ended(echoing):
    limits = HttpLimits(body_timeout_s=2.0, body_bytes_per_s_min=20)  # 500 bytes: 25 s more
    echo = echoing(limits)
    with connected(echo.port) as sock:
        sock.sendall(head("/", 1_500) + bytes(500))
        for _ in range(2):
            time.sleep(1.2)
            sock.sendall(bytes(500))
        assert answered(sock)[0] == 200


def test_a_connection_that_says_nothing_is_closed(echoing):
    echo = echoing(HttpLimits(idle_timeout_s=2.0))
    with connected(echo.port) as sock:
        sock.sendall(head("/", 2) + b"ok")
        assert answered(sock)[0] == 200
        assert is_closed(sock)


def test_I07_a_body_that_is_cut_is_400_and_nothing_is_answered_for_it(echoing):
    echo = echoing()
    for request in (head("/", 10) + b"12345", chunked(b"12345")[:-6]):
        with connected(echo.port) as sock:
            sock.sendall(request)
            sock.shutdown(socket.SHUT_WR)
            assert answered(sock)[0] == 400
        with connected(echo.port) as sock:
            sock.sendall(request)
    assert sent(echo.port, head("/", 2), b"ok")[0] == 200
    assert echo.bodies == [b"ok"]
    wait_until(lambda: echo.budget.held_bytes == 0)


def test_I07_a_cut_body_stores_no_part_of_its_batch(tmp_path):
    data = gauge_request(100).SerializeToString()
    with served(tmp_path / "node") as node:
        for cut in (1, 500, len(data) - 1):
            with connected(node.http.port) as sock:
                sock.sendall(head(length=len(data)) + data[:cut])
        assert post(node, "/v1/metrics", data)[0] == 200
        assert node.count("metric_points") == 100


def test_a_sender_that_closes_its_side_still_gets_its_answer(echoing):
    echo = echoing()
    echo.gate.clear()
    with connected(echo.port) as sock:
        sock.sendall(head("/", 2) + b"ok")
        sock.shutdown(socket.SHUT_WR)
        time.sleep(0.05)
        echo.gate.set()
        status, headers, _ = answered(sock)
        assert (status, headers["connection"]) == (200, "close")


def test_I20_connections_past_the_limit_are_told_and_closed(echoing):
    echo = echoing(HttpLimits(connections_max=5))
    held = [connected(echo.port) for _ in range(5)]
    for sock in held:
        sock.sendall(head("/", 1) + b"x")
        assert answered(sock)[0] == 200
    for _ in range(50):
        status, headers, _ = sent(echo.port)
        assert (status, headers["retry-after"]) == (503, "1")
    held[0].sendall(head("/", 1) + b"x")
    assert answered(held[0])[0] == 200
    for sock in held:
        sock.close()
    wait_until(lambda: not echo.server.connection_count)
    assert sent(echo.port, head("/", 1), b"x")[0] == 200


def test_large_promises_hold_only_what_has_arrived(echoing):
    echo = echoing(budget=MemoryBudget(64 << 20))
    held = [connected(echo.port) for _ in range(30)]
    for sock in held:
        sock.sendall(head("/", 60 << 20) + b"x")
    assert sent(echo.port, head("/", 2), b"ok")[0] == 200
    assert echo.budget.held_bytes < 40 << 20
    for sock in held:
        sock.close()


def test_without_room_a_large_body_is_refused_midway_and_the_room_is_given_back(echoing):
    echo = echoing(budget=MemoryBudget(3 << 20))
    with connected(echo.port) as other:
        other.sendall(head("/", 100) + b"x")
        wait_until(lambda: echo.budget.held_bytes)
        status, headers, _ = sent(echo.port, head("/", 8 << 20), bytes(8 << 20))
        assert (status, headers["retry-after"]) == (429, "1")
        other.sendall(bytes(99))
        assert answered(other)[0] == 200
    assert echo.budget.held_bytes == 0
    assert sent(echo.port, head("/", 8 << 20), bytes(8 << 20))[0] == 200  # alone it may


def test_an_answer_that_fails_by_a_bug_is_503_and_the_connection_lives(echoing):
    echo = echoing()
    with connected(echo.port) as sock:
        sock.sendall(head("/bug", 0))
        status, headers, body = answered(sock)
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"Zero" not in body
        sock.sendall(head("/", 2) + b"ok")
        assert answered(sock)[0] == 200


def test_I21_a_stop_answers_what_has_begun_and_takes_nothing_new(echoing):
    echo = echoing()
    echo.gate.clear()
    with connected(echo.port) as busy, connected(echo.port) as idle:
        busy.sendall(head("/", 2) + b"ok")
        wait_until(lambda: echo.bodies)
        stopping = asyncio.run_coroutine_threadsafe(echo.server.stop(WAIT_S), echo.loop)
        assert is_closed(idle)
        with pytest.raises(ConnectionRefusedError):
            connected(echo.port)
        assert not stopping.done()
        echo.gate.set()
        status, headers, _ = answered(busy)
        assert (status, headers["connection"]) == (200, "close")
        stopping.result(WAIT_S)


def test_I21_a_stop_ends_at_its_deadline(echoing):
    echo = echoing()
    echo.gate.clear()
    with connected(echo.port) as busy:
        busy.sendall(head("/", 2) + b"ok")
        wait_until(lambda: echo.bodies)
        echo.call(echo.server.stop(0.2))  # the answer would not come for longer than this waits
        assert is_closed(busy)


def test_I21_a_stop_that_is_cancelled_cuts_what_is_left(echoing):
    echo = echoing()
    echo.gate.clear()
    with connected(echo.port) as busy:
        busy.sendall(head("/", 2) + b"ok")
        wait_until(lambda: echo.bodies)

        async def cancelled():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(echo.server.stop(60), 0.1)

        echo.call(cancelled())
        assert is_closed(busy)


def test_http_1_0_is_answered_and_closed(echoing):
    echo = echoing()
    with connected(echo.port) as sock:
        sock.sendall(b"POST / HTTP/1.0\r\ncontent-length: 2\r\n\r\nok")
        status, headers, body = answered(sock)
        assert (status, body, headers["connection"]) == (200, b"ok", "close")
        assert is_closed(sock)
