"""A node that starts slowly or stops slowly: what is answered meanwhile, and when it gives up."""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request

import pytest
import uvloop

from fixtures.timing import WAIT_S, wait_until
from fixtures.wal import ticks
from thermocline.config import node_settings
from thermocline.errors import Unavailable
from thermocline.node import Node
from thermocline.server.observe.log import EventLog
from thermocline.server.start import serve as module
from thermocline.server.start import startup_checks
from thermocline.server.start.serve import NodeServer

LOCAL = dict.fromkeys(("http", "grpc", "api", "flight"), "127.0.0.1:0")


def asked(port, path, body=None):
    """Return status, body and headers; 0 when the port is closed."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=90) as answer:
            return answer.status, json.loads(answer.read() or b"{}"), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"{}"), error.headers
    except OSError:
        return 0, {}, {}


@pytest.fixture
def run(tmp_path):
    """Serve in this process while `during(server, ask)` runs in a thread; return what it did."""

    def serve(during, **options):
        settings = node_settings({"data": str(tmp_path / "data"), **LOCAL, **options})
        with open(tmp_path / "log", "ab") as file:
            log = EventLog(file.fileno())

            async def main():
                server = NodeServer(settings, log=log)
                serving = asyncio.ensure_future(server.run())
                while "api" not in server.listeners and not serving.done():
                    await asyncio.sleep(0.01)
                loop = asyncio.get_running_loop()

                def ask(listener, path, body=None):
                    return asked(server.listeners[listener].port, path, body)

                def stop():
                    loop.call_soon_threadsafe(server.stop)

                done = await asyncio.to_thread(during, server, ask, stop)
                return done, await serving, server

            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    return runner.run(main())
            finally:  # the next file may get this number: no line may be on its way to it
                assert log.flush(WAIT_S)

    return serve


@pytest.fixture
def slow_start(monkeypatch):
    """Let the opening of a node wait until it is told to go on."""
    go_on = threading.Event()
    real = startup_checks.open_node

    def opened(*given):
        go_on.wait(WAIT_S)
        return real(*given)

    monkeypatch.setattr(module, "open_node", opened)
    yield go_on
    go_on.set()


LOGS = b'{"resourceLogs": []}'


def test_O09_while_the_journal_is_replayed_every_listener_says_503_and_when_to_come_again(
    run, slow_start
):
    def during(server, ask, stop):
        replaying = {
            "live": ask("api", "/health/live")[0],
            "startup": ask("api", "/health/startup"),
            "ready": ask("api", "/health/ready"),
            "query": ask("api", "/api/v1/query", b'{"sql": "select 1"}'),
            "otlp": ask("http", "/v1/logs", LOGS),
            "metrics": asked_text(server.listeners["api"].port),
            "grpc": exported(server.listeners["grpc"].port),
        }
        slow_start.set()
        wait_until(lambda: ask("api", "/health/ready")[0] == 200)
        opened = [ask("http", "/v1/logs", LOGS)[0], exported(server.listeners["grpc"].port)]
        stop()
        return replaying, opened

    (replaying, opened), code, server = run(during)
    assert replaying["live"] == 200
    for name in ("startup", "ready", "query", "otlp"):
        assert replaying[name][0] == 503, name
    assert replaying["startup"][1]["phase"] == "replaying the journal"
    assert replaying["ready"][1]["reasons"] == ["the node is replaying the journal"]
    for name in ("query", "otlp"):
        assert 1 <= int(replaying[name][2]["Retry-After"]) <= 5
    assert "thermocline_ready 0.0" in replaying["metrics"]
    assert replaying["grpc"] == "UNAVAILABLE"
    assert opened == [200, "OK"]
    assert (code, server.is_clean) == (0, True)


def asked_text(port):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=90) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def exported(port):
    """Return the status of an empty export over gRPC."""
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")
        try:
            export(b"", timeout=90)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def test_O05_a_stop_while_the_journal_is_replayed_does_not_wait_for_it(run, slow_start):
    def during(server, ask, stop):
        assert ask("api", "/health/live")[0] == 200
        stop()

    _, code, server = run(during)
    assert not slow_start.is_set()  # it is still at it
    assert (code, server.is_clean) == (0, False)


def test_O05_a_second_signal_does_not_wait_for_a_slow_flush_and_loses_nothing(
    run, monkeypatch, tmp_path
):
    is_flushing, go_on = threading.Event(), threading.Event()

    def slow(node):
        is_flushing.set()
        go_on.wait(2 * WAIT_S)

    def during(server, ask, stop):
        wait_until(lambda: server.health.startup().is_ok)
        table = server.gateway.node.lake().create_table("m", time_column="ts", bucket="1h")
        table.write(ticks(1, 2, 3))
        monkeypatch.setattr(Node, "flush", slow)
        stop()
        assert is_flushing.wait(WAIT_S)
        stop()
        return time.monotonic()

    began_s, code, server = run(during, stop_deadline_s=2 * WAIT_S)
    assert time.monotonic() - began_s < WAIT_S
    assert (code, server.is_clean) == (0, False)
    go_on.set()
    monkeypatch.undo()
    with Node(str(tmp_path / "data")) as node:
        assert node.lake().sql("select sum(n) as n from m").column("n").to_pylist() == [6]


def test_I21_a_stop_does_not_take_longer_than_it_may_whatever_hangs(run, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(Node, "flush", lambda node: go_on.wait(WAIT_S))

    def during(server, ask, stop):
        wait_until(lambda: server.health.startup().is_ok)
        stop()
        return time.monotonic()

    began_s, code, server = run(during, stop_deadline_s=1)
    assert time.monotonic() - began_s < WAIT_S / 2
    assert (code, server.is_clean) == (0, False)
    go_on.set()


def test_I21_a_flush_that_fails_at_the_stop_is_told_and_the_stop_goes_on(
    run, monkeypatch, tmp_path
):
    def fails(node):
        raise Unavailable("the disk is full")

    monkeypatch.setattr(Node, "flush", fails)

    def during(server, ask, stop):
        wait_until(lambda: server.health.startup().is_ok)
        stop()

    _, code, server = run(during)
    assert (code, server.is_clean) == (0, True)
    assert "rows not flushed" in (tmp_path / "log").read_text()


def test_O09_readiness_that_is_lost_and_comes_back_is_told(run, monkeypatch, tmp_path):
    def during(server, ask, stop):
        wait_until(lambda: server.health.startup().is_ok)
        monkeypatch.setattr(server.health, "_flush_failing_s", 0.0)
        server.gateway.node.flush_error = None
        statuses = []
        monkeypatch.setattr(server.gateway.node, "_flush_each", fails)
        for wanted, line in ((503, '"not ready"'), (200, '"ready again"')):
            wait_until(lambda: ask("api", "/health/ready")[0] == wanted)  # noqa: B023
            statuses.append(wanted)
            wait_until(lambda: line in (tmp_path / "log").read_text())  # noqa: B023
            monkeypatch.setattr(server.gateway.node, "_flush_each", lambda due: None)
        stop()
        return statuses

    def fails(due):
        raise Unavailable("the disk is full")

    statuses, code, _ = run(during)
    assert (statuses, code) == ([503, 200], 0)
    told = (tmp_path / "log").read_text()
    assert '"not ready"' in told
    assert '"ready again"' in told


def test_O11_a_file_system_that_breaks_a_promise_keeps_the_node_from_starting(run, monkeypatch):
    from thermocline.disk import OsDisk
    from thermocline.errors import Unsupported

    class Nobody:
        def release(self):
            return None

    real = OsDisk.lock

    def lock(self, path, note):
        return Nobody() if ".probe-" in path else real(self, path, note)

    monkeypatch.setattr(OsDisk, "lock", lock)
    with pytest.raises(Unsupported, match="locks have no effect"):
        run(lambda server, ask, stop: None)


def test_a_listener_that_is_off_is_not_made_and_the_rest_is(run):
    def during(server, ask, stop):
        wait_until(lambda: server.health.startup().is_ok)
        found = sorted(server.listeners)
        stop()
        return found

    found, code, _ = run(during, http="off", grpc="off", flight="off")
    assert (found, code) == (["api"], 0)


def test_I21_a_thread_of_the_api_that_hangs_does_not_keep_the_process(run):
    hanging = threading.Event()

    def during(server, ask, stop):
        wait_until(lambda: ask("api", "/health/ready")[0] == 200)
        work = server.listeners["api"].parts.work
        loop = server.listeners["api"]._listener._serving.get_loop()
        loop.call_soon_threadsafe(work.start, lambda: hanging.wait(WAIT_S))
        stop()

    try:
        _, code, server = run(during)
    finally:
        hanging.set()
    assert (code, server.is_clean) == (0, False)


def test_after_the_stop_the_door_says_to_come_again(run):
    def during(server, ask, stop):
        wait_until(lambda: ask("api", "/health/ready")[0] == 200)
        stop()

    _, _, server = run(during)
    with pytest.raises(Unavailable, match="stopping"):
        server.gateway.lake("default")


def test_a_reload_that_fails_by_a_bug_still_ends_as_ready(tmp_path):
    told = []

    class Manager:
        watchdog_s = None

        def send(self, *words):
            told.extend(words)

    def broken():
        raise ZeroDivisionError

    async def main():
        settings = node_settings({"data": str(tmp_path / "data"), **LOCAL})
        server = NodeServer(
            settings, reread=broken, log=EventLog(file.fileno()), notifier=Manager()
        )
        server._on_reload()
        assert server.log.flush(WAIT_S)

    with open(tmp_path / "log", "ab") as file:
        asyncio.run(main())
    assert told == ["RELOADING=1", "READY=1"]
    assert "not reloaded" in (tmp_path / "log").read_text()
