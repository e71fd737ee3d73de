"""The API's listener: bounded connections, bounded heads, and a stop that waits for answers."""

import asyncio
import socket
import threading
import time

import pytest
import uvloop

from thermocline.config import Address
from thermocline.errors import Conflict
from thermocline.server.api.types.route import ADMIT_CONNECTION
from thermocline.server.start import api_listener as module
from thermocline.server.start.api_listener import ApiListener

LARGE_BYTES = 64 << 20  # more than the system buffers for a client that does not read


class App:
    """Answers with 204; `/slow` after half a second, and sets `begun` before; `/large` with MBs."""

    def __init__(self):
        self.begun = threading.Event()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        if scope["path"] != "/stranger" and (admit := scope.get(ADMIT_CONNECTION)):
            admit("tenant")
        if scope["path"] == "/slow":
            self.begun.set()
            await asyncio.sleep(0.5)
        large = LARGE_BYTES if scope["path"] == "/large" else 0
        await send({"type": "http.response.start", "status": 200 if large else 204, "headers": []})
        await send({"type": "http.response.body", "body": bytes(large)})


def serving(during, **options):
    """Return what `during(port, stop, begun)` returns, run in a thread beside the listener."""
    settings, app = {"connections_max": 20, **options}, App()

    async def main():
        listener = ApiListener(app, Address("127.0.0.1", 0), **settings)
        await listener.start()
        loop = asyncio.get_running_loop()

        def stop(deadline_s):
            return asyncio.run_coroutine_threadsafe(listener.stop(deadline_s), loop)

        try:
            return await asyncio.to_thread(during, listener.port, stop, app.begun)
        finally:
            await listener.stop(10)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def connected(port):
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.settimeout(60)
    return made


def answer(connection, path="/"):
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection.recv(65_536)


def is_closed(connection):
    try:
        return connection.recv(65_536) == b""
    except ConnectionError:
        return True


def is_served(port):
    with connected(port) as one:
        try:
            return b"204" in answer(one)
        except ConnectionError:
            return False


def test_I20_connections_past_the_limit_are_closed_and_the_others_served():
    def during(port, stop, begun):
        held = [connected(port) for _ in range(5)]
        assert all(b"204" in answer(one) for one in held)
        late = [connected(port) for _ in range(5)]
        refused = [is_closed(one) for one in late]
        served = [b"204" in answer(one) for one in held]
        for one in (*held, *late):
            one.close()
        end_s = time.monotonic() + 60
        while not is_served(port):  # until the listener has seen them go
            assert time.monotonic() < end_s
            time.sleep(0.01)
        return refused, served

    refused, served = serving(during, connections_max=5)
    assert all(refused)
    assert all(served)


def test_a_head_without_end_is_refused():
    def during(port, stop, begun):
        with connected(port) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            told = b""
            try:
                for _ in range(100):
                    one.sendall(b"x" * 8_192)
                told = one.recv(65_536)
            except OSError:
                told = told or one.recv(65_536)
        with connected(port) as other:
            return told, answer(other)

    told, other = serving(during)
    assert told.startswith(b"HTTP/1.1 400") or told == b""
    assert b"204" in other


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: lo"])
def test_a_head_that_does_not_come_loses_its_place(monkeypatch, begun):
    def during(port, stop, _):
        with connected(port) as second:
            assert b"204" in answer(second)
            # Only now: what was to be answered had as long as it took.
            monkeypatch.setattr(module, "HEAD_TIMEOUT_S", 0.3)
            with connected(port) as one:
                one.sendall(begun)
                second.sendall(b"GET / HTTP/1.1\r\nHost: lo")
                return [is_closed(one), is_closed(second)]

    assert serving(during) == [True, True]


def test_a_large_body_is_not_taken_for_a_head():
    def during(port, stop, begun):
        with connected(port) as one:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
            one.sendall(head + b"x" * 200_000)
            return one.recv(65_536)

    assert b"204" in serving(during)


@pytest.mark.parametrize("line", [b"a: " + b"x" * 1_000 + b"\r\n", b"x" * 1_000])
def test_headers_behind_a_body_end_the_connection(line):
    def during(port, stop, begun):
        with connected(port) as one:
            head = b"POST /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            one.sendall(head + b"3\r\nabc\r\n0\r\n")
            assert begun.wait(60)
            with pytest.raises(ConnectionError):
                one.sendall(line * 50_000)
        with connected(port) as other:
            return answer(other)

    assert b"204" in serving(during)


def read_slowly(port):
    """Return how many bytes of a large answer a slow client gets."""
    size_bytes = 0
    with connected(port) as one:
        one.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        try:
            for _ in range(25):  # longer than anybody may take who does not read at all
                size_bytes += len(one.recv(4 << 20))
                time.sleep(0.1)
            while part := one.recv(4 << 20):
                size_bytes += len(part)
        except ConnectionError:
            return size_bytes
    return size_bytes


def test_an_answer_that_nobody_reads_loses_its_place_and_one_that_is_read_does_not(monkeypatch):
    monkeypatch.setattr(module, "SEND_WAIT_S", 1.0)

    def during(port, stop, begun):
        # A machine that is busy for a second may take a reader for none; not six times in a row.
        is_whole = any(read_slowly(port) > LARGE_BYTES for _ in range(6))
        with connected(port) as ignores:
            ignores.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            end_s = time.monotonic() + 60
            while not is_served(port):  # there is one place, and this one has it
                assert time.monotonic() < end_s
                time.sleep(0.05)
        return is_whole

    assert serving(during, connections_max=1)


def test_I21_a_stop_waits_for_what_has_begun_and_takes_nothing_new():
    def during(port, stop, begun):
        with connected(port) as one:
            one.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert begun.wait(60)
            stopping = stop(60)
            told = one.recv(65_536)
            stopping.result(90)
        with pytest.raises(OSError, match="refused"):
            connected(port)
        return told

    assert b"204" in serving(during)


def test_an_address_that_is_taken_is_a_conflict_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(Conflict) as caught:
            asyncio.run(ApiListener(App(), address, connections_max=1).start())
    assert caught.value.facts["address"] == str(address)
