"""The API's listener: bounded connections, bounded heads, and a stop that waits for answers."""

import asyncio
import socket
import time

import pytest
import uvloop

from thermocline.config import Address
from thermocline.errors import Conflict
from thermocline.server import listener as module
from thermocline.server.listener import ApiListener


async def app(scope, receive, send):
    """Answers with 204; `/slow` after half a second."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["path"] == "/slow":
        await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def serving(during, **options):
    """Return what `during(port, stop)` returns, run in a thread beside the listener."""
    settings = {"connections_max": 20, **options}

    async def main():
        listener = ApiListener(app, Address("127.0.0.1", 0), **settings)
        await listener.start()
        loop = asyncio.get_running_loop()

        def stop(deadline_s):
            return asyncio.run_coroutine_threadsafe(listener.stop(deadline_s), loop)

        try:
            return await asyncio.to_thread(during, listener.port, stop)
        finally:
            await listener.stop(1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def connected(port):
    made = socket.create_connection(("127.0.0.1", port), timeout=10)
    made.settimeout(10)
    return made


def answer(connection, path="/"):
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection.recv(65_536)


def is_closed(connection):
    try:
        return connection.recv(65_536) == b""
    except OSError:
        return True


def test_I20_connections_past_the_limit_are_closed_and_the_others_served():
    def during(port, stop):
        held = [connected(port) for _ in range(5)]
        assert all(b"204" in answer(one) for one in held)
        late = [connected(port) for _ in range(5)]
        refused = [is_closed(one) for one in late]
        served = [b"204" in answer(one) for one in held]
        for one in (*held, *late):
            one.close()
        time.sleep(0.2)
        with connected(port) as again:
            return refused, served, answer(again)

    refused, served, again = serving(during, connections_max=5)
    assert all(refused)
    assert all(served)
    assert b"204" in again


def test_a_head_without_end_is_refused():
    def during(port, stop):
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
    monkeypatch.setattr(module, "HEAD_TIMEOUT_S", 0.3)

    def during(port, stop):
        with connected(port) as one, connected(port) as second:
            one.sendall(begun)
            assert b"204" in answer(second)
            second.sendall(b"GET / HTTP/1.1\r\nHost: lo")
            began_s = time.monotonic()
            closed = [is_closed(one), is_closed(second)]
            return closed, time.monotonic() - began_s

    closed, took_s = serving(during)
    assert closed == [True, True]
    assert took_s < 5


def test_a_large_body_is_not_taken_for_a_head():
    def during(port, stop):
        with connected(port) as one:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
            one.sendall(head + b"x" * 200_000)
            return one.recv(65_536)

    assert b"204" in serving(during)


@pytest.mark.parametrize("line", [b"a: " + b"x" * 1_000 + b"\r\n", b"x" * 1_000])
def test_headers_behind_a_body_end_the_connection(line):
    def during(port, stop):
        with connected(port) as one:
            head = b"POST /slow HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            one.sendall(head + b"3\r\nabc\r\n0\r\n")
            time.sleep(0.1)
            with pytest.raises(ConnectionError):
                one.sendall(line * 50_000)
        with connected(port) as other:
            return answer(other)

    assert b"204" in serving(during)


def test_I21_a_stop_waits_for_what_has_begun_and_takes_nothing_new():
    def during(port, stop):
        with connected(port) as one:
            one.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            time.sleep(0.1)
            stopping = stop(5)
            told = one.recv(65_536)
            stopping.result(10)
        with pytest.raises(OSError, match="refused"):
            connected(port)
        return told

    assert b"204" in serving(during)


def test_an_address_that_is_taken_is_a_conflict_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(Conflict) as caught:
            asyncio.run(ApiListener(app, address, connections_max=1).start())
    assert caught.value.facts["address"] == str(address)
