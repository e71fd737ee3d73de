"""A node served by a real process: started, signalled, killed; nothing acknowledged is lost."""

import os
import signal
import socket
import ssl
import stat
import threading
import time
import urllib.request
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path

import pytest

from fixtures.served import ServedNode
from fixtures.wal import calm
from thermocline.format.sealed_json import seal
from thermocline.node import Node
from thermocline.server.access.keys import KeyStore

QUIET = ("--grpc", "off")


def numbers(root, tenant="default"):
    """Return how often each number is in the table of logs, read by a separate process."""
    with Node(str(root), calm()) as node:
        if "logs" not in node.lake(tenant).tables():
            return Counter()
        bodies = node.lake(tenant).sql("select body from logs").column("body").to_pylist()
    return Counter(int(body) for body in bodies)


class Load:
    """Threads that send numbers until they are told to stop, and what was acknowledged."""

    def __init__(self, node, threads=3):
        self.acknowledged, self.refused, self.other = [], [], []
        self._node = node
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(place, threads)) for place in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, place, step):
        number = place
        while not self._is_over.is_set():
            try:
                status, _, headers = self._node.send_log(number)
            except OSError:
                self.other.append(number)
                if self._node.process.poll() is not None:
                    return
                continue
            if status == 200:
                self.acknowledged.append(number)
            else:
                self.refused.append((status, headers.get("Retry-After")))
            number += step

    def wait_for(self, count):
        end_s = time.monotonic() + 180
        while len(self.acknowledged) < count and time.monotonic() < end_s:
            time.sleep(0.01)
        assert len(self.acknowledged) >= count

    def end(self):
        self._is_over.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()


def test_a_node_starts_tells_its_health_takes_rows_answers_sql_and_stops_with_0(tmp_path):
    with ServedNode(tmp_path / "data") as node:
        node.ready()
        for name in ("live", "startup", "ready"):
            assert node.ask(f"/health/{name}")[0] == 200
        assert node.send_log(7)[0] == 200
        status, answer, _ = node.ask("/api/v1/query", {"sql": "select body from logs"})
        assert (status, answer["rows"]) == (200, [{"body": "7"}])
        counted, end_s = 'thermocline_ingested_rows_total{signal="logs"} 1.0', time.monotonic() + 60
        while counted not in (text := node.ask("/metrics")[1]):
            assert time.monotonic() < end_s, text
            time.sleep(0.05)
        assert "thermocline_ready 1.0" in text
        assert node.stop() == 0
        assert node.wait_for("stopped")["is_clean"]
    assert numbers(tmp_path / "data") == {7: 1}


def test_A14_all_that_a_node_writes_is_this_users_alone(tmp_path):
    before = os.umask(0)
    try:
        with ServedNode(tmp_path / "data", *QUIET) as node:
            node.ready().send_log(1)
            assert node.stop() == 0
    finally:
        os.umask(before)
    found = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert len(found) > 10
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
def test_I21_O05_a_stop_under_load_ends_with_0_and_loses_nothing(tmp_path, signals):
    with ServedNode(tmp_path / "data", *QUIET) as node:
        load = Load(node.ready())
        load.wait_for(50)
        began_s = time.monotonic()
        for number in signals:
            node.send(number)
        assert node.wait(90) == 0
        assert time.monotonic() - began_s < 25
        load.end()
    found = numbers(tmp_path / "data")
    assert set(load.acknowledged) - set(found) == set()
    assert {number for number, count in found.items() if count > 1} == set()
    # Each refused client was asked to retry soon.
    assert all(status in (429, 503) and 1 <= int(wait) <= 5 for status, wait in load.refused)


def test_a_node_that_is_killed_under_load_has_all_that_it_acknowledged_when_it_is_back(tmp_path):
    acknowledged = []
    for _ in range(2):
        with ServedNode(tmp_path / "data", *QUIET, "--set", "flush_age_s=200ms") as node:
            load = Load(node.ready(), threads=2)
            load.wait_for(40)
            node.kill()
            load.end()
            acknowledged += load.acknowledged
    with ServedNode(tmp_path / "data", *QUIET) as node:
        node.ready()
        query = {"sql": "select body, count(*) as n from logs group by 1"}
        rows = node.ask("/api/v1/query", query)[1]["rows"]
        found = {int(row["body"]): row["n"] for row in rows}
        assert node.stop() == 0
    sent = Counter(acknowledged)
    assert all(found.get(number, 0) >= count for number, count in sent.items())


def test_a_second_node_on_the_same_data_is_refused_with_the_first_ones_process(tmp_path):
    with ServedNode(tmp_path / "data", *QUIET) as node:
        node.ready()
        with ServedNode(tmp_path / "data", *QUIET) as second:
            assert second.wait() == 4
            told = "".join(second.lines)
            assert "another process writes this journal" in told
            assert str(node.process.pid) in told
            assert "Traceback" not in told
        assert node.ask("/health/ready")[0] == 200


def test_an_address_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option in ("--api", "--http"):
            words = (*QUIET, option, f"127.0.0.1:{port}")
            with ServedNode(tmp_path / "data", *words) as node:
                assert node.wait() == 4
                assert f"127.0.0.1:{port}" in "".join(node.lines)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--api", "0.0.0.0:0"), 2, "unprotected"),
        (("--set", "flush_age=3"), 2, "flush_age_s"),
        (("--set", "hot_bytes_max=lots"), 2, "64MB"),
        (("--config", "nothing.toml"), 3, "nothing.toml"),
        (("--set", "lake_id=0123"), 2, "not the expected lake"),
        (("--tls-certificate", "no.pem", "--tls-key", "no.key"), 2, "no.pem"),
    ],
)
def test_O06_O10_what_cannot_be_right_keeps_a_node_from_starting(tmp_path, words, code, told):
    with ServedNode(tmp_path / "data", *words) as node:
        assert node.wait() == code
        assert told in "".join(node.lines)
        said = [line for line in node.lines if not line.startswith("{")]
        assert [line.split()[0] for line in said] == ["error:", "why:", "do:"]
    assert not (tmp_path / "data" / "lake.json").exists()


def test_O10_O13_a_folder_that_is_no_lake_or_of_a_newer_version_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.jpg").write_text("x")
    with ServedNode(tmp_path / "other", *QUIET) as node:
        assert node.wait() == 2
        assert "not a lake" in "".join(node.lines)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["photo.jpg"]
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "lake.json").write_bytes(seal({"format": 9, "lake_id": "a"}))
    with ServedNode(tmp_path / "newer", *QUIET) as node:
        assert node.wait() == 7
        assert "newer" in "".join(node.lines)


def test_a_damaged_journal_keeps_a_node_from_starting_and_is_named(tmp_path):
    with Node(str(tmp_path / "data"), calm()) as node:
        table = node.lake().create_table("logs", time_column="ts", bucket="1h")
        for n in range(3):
            table.write([{"ts": datetime(2024, 6, 1, tzinfo=UTC), "n": n}])
        node.close(flush=False)
    victim = sorted((tmp_path / "data" / "journal").glob("*.wal"))[0]
    data = bytearray(victim.read_bytes())
    data[200] ^= 0xFF
    victim.write_bytes(data)
    with ServedNode(tmp_path / "data", *QUIET) as served:
        assert served.wait() == 8
        assert served.events("start failed")
        assert victim.name in "".join(served.lines)


def test_A02_a_key_works_when_it_is_made_and_not_a_second_after_it_is_revoked(tmp_path):
    with ServedNode(tmp_path / "data", *QUIET) as node:
        node.ready()
        assert node.send_log(1)[0] == 200
        store = KeyStore(str(tmp_path / "data"))
        made = store.create_first()
        time.sleep(1)  # a request one second later needs a key
        assert node.send_log(2)[0] == 401
        assert node.send_log(3, key=made.text)[0] == 200
        query = {"sql": "select count(*) as n from logs"}
        assert node.ask("/api/v1/query", query)[0] == 401
        assert node.ask("/api/v1/query", query, key=made.text)[1]["rows"] == [{"n": 2}]
        store.revoke(made.key.key_id)
        time.sleep(1)
        assert node.send_log(4, key=made.text)[0] == 401
        assert node.ask("/api/v1/query", query, key=made.text)[0] == 401
        assert node.ask("/health/ready")[0] == 200
        # A08: nothing secret in the log, the audit or what other users of the machine see.
        seen = "".join(node.lines) + (tmp_path / "data" / "audit.jsonl").read_text()
        seen += Path(f"/proc/{node.process.pid}/cmdline").read_text()
        assert made.text[13:] not in seen
        assert node.stop() == 0
        assert made.text[13:] not in "".join(node.lines)
    assert store.read_uses()[made.key.key_id] > made.key.created_ns


def test_O05_a_reload_takes_new_quotas_and_keeps_the_old_ones_when_the_file_is_wrong(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text("queries_max = 5")
    with ServedNode(tmp_path / "data", *QUIET, "--config", str(file)) as node:
        node.ready()
        assert [node.send_log(n)[0] for n in range(3)] == [200] * 3
        file.write_text("ingest_bytes_per_s = 1\ningest_burst_bytes = 1\nflush_age_s = 7")
        node.send(signal.SIGHUP)
        node.wait_for("reloaded")
        assert node.wait_for("settings wait for a restart")["settings"] == ["flush_age_s"]
        statuses = [node.send_log(n) for n in range(3, 6)]
        assert [status for status, _, _ in statuses][1:] == [429, 429]
        assert 1 <= int(statuses[2][2]["Retry-After"]) <= 5
        file.write_text("ingest_bytes_per_s = 'much'")
        node.send(signal.SIGHUP)
        assert node.wait_for("not reloaded")["setting"] == "ingest_bytes_per_s"
        assert node.send_log(9)[0] == 429
        assert node.stop() == 0


def test_O07_a_node_whose_stderr_is_closed_goes_on(tmp_path):
    with ServedNode(tmp_path / "data", *QUIET) as node:
        node.ready()
        node.port("api")
        node.is_deaf = True
        node.send(signal.SIGHUP)
        assert node.wait_until_over()  # the next line was written to a closed pipe
        for _ in range(5):
            node.send(signal.SIGHUP)
        time.sleep(0.2)
        assert node.send_log(1)[0] == 200
        assert node.ask("/health/ready")[0] == 200
        assert node.stop() == 0
    assert numbers(tmp_path / "data") == {1: 1}


def test_the_service_manager_is_told_when_the_node_is_ready_and_when_it_stops(tmp_path):
    address = f"\0thermocline-test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        environment = {"NOTIFY_SOCKET": f"@{address[1:]}", "WATCHDOG_USEC": "400000"}
        with ServedNode(tmp_path / "data", *QUIET, environment=environment) as node:
            assert manager.recv(1_000).startswith(b"READY=1")
            assert node.ask("/health/ready")[0] == 200
            assert manager.recv(1_000) == b"WATCHDOG=1"
            node.send(signal.SIGTERM)
            told = b""
            while told != b"STOPPING=1":
                told = manager.recv(1_000)
            assert node.wait() == 0


def certificate(folder):
    """Write a certificate for this machine and its key; return their paths."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "node.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    secret = folder / "node.key"
    encoding = serialization.Encoding.PEM
    secret.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
    return pem, secret


def test_with_a_key_and_tls_another_address_is_served_and_a_reload_takes_a_new_certificate(
    tmp_path,
):
    import grpc

    pem, secret = certificate(tmp_path)
    with Node(str(tmp_path / "data"), calm()):
        pass
    made = KeyStore(str(tmp_path / "data")).create_first()
    words = ("--tls-certificate", str(pem), "--tls-key", str(secret))
    names = ("http", "api", "grpc", "flight")
    words += tuple(word for name in names for word in (f"--{name}", "0.0.0.0:0"))
    with ServedNode(tmp_path / "data", *words) as node:
        node.ready()
        context = ssl.create_default_context(cafile=str(pem))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        headers = {"Authorization": f"Bearer {made.text}", "Content-Type": "application/json"}
        url = f"https://localhost:{node.port('http')}/v1/logs"
        request = urllib.request.Request(url, b'{"resourceLogs": []}', headers)
        assert opener.open(request, timeout=30).status == 200
        url = f"https://localhost:{node.port('api')}/health/ready"
        assert opener.open(url, timeout=30).status == 200
        with pytest.raises((OSError, HTTPException)):
            opener.open(url.replace("https", "http"), timeout=30)
        credentials = grpc.ssl_channel_credentials(pem.read_bytes())
        with grpc.secure_channel(f"localhost:{node.port('grpc')}", credentials) as channel:
            export = channel.unary_unary(
                "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
            )
            export(b"", metadata=[("authorization", f"Bearer {made.text}")], timeout=30)
            with pytest.raises(grpc.RpcError) as caught:
                export(b"", timeout=30)
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert select_over_flight(node.port("flight"), pem, made.text) == [(1,)]
        (tmp_path / "new").mkdir()
        for new, old in zip(certificate(tmp_path / "new"), (pem, secret), strict=True):
            old.write_bytes(new.read_bytes())
        node.send(signal.SIGHUP)
        node.wait_for("reloaded")
        credentials = grpc.ssl_channel_credentials(pem.read_bytes())
        with grpc.secure_channel(f"localhost:{node.port('grpc')}", credentials) as channel:
            export = channel.unary_unary(
                "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
            )
            export(b"", metadata=[("authorization", f"Bearer {made.text}")], timeout=90)
        assert select_over_flight(node.port("flight"), pem, made.text) == [(1,)]
        assert node.stop() == 0


def select_over_flight(port, pem, key):
    """Return the rows of a query over Flight SQL with TLS and a key as the password."""
    import adbc_driver_flightsql.dbapi as flight_sql

    options = {
        "username": "anyone",
        "password": key,
        "adbc.flight.sql.client_option.tls_root_certs": pem.read_text(),
    }
    with (
        closing(
            flight_sql.connect(f"grpc+tls://localhost:{port}", options, autocommit=True)
        ) as connection,
        closing(connection.cursor()) as cursor,
    ):
        cursor.execute("select 1 as a")
        return cursor.fetchall()


def is_taken(node, number):
    """Tell whether a node takes a log record; it may be cut off, or told to come again."""
    try:
        return node.send_log(number, timeout_s=10)[0] == 200
    except OSError:
        return False


def test_I20_a_storm_of_connections_leaves_health_and_others_alone(tmp_path):
    with ServedNode(tmp_path / "data", *QUIET, "--set", "connections_max=40") as node:
        node.ready()
        held = []
        try:
            address = ("127.0.0.1", node.port("http"))
            held += [socket.create_connection(address, timeout=60) for _ in range(300)]
            assert node.ask("/health/ready")[0] == 200
        finally:
            for one in held:
                one.close()
        end_s = time.monotonic() + 60
        while not is_taken(node, 1):
            assert time.monotonic() < end_s
            time.sleep(0.05)
        assert node.stop() == 0


def test_O03_a_node_without_free_file_descriptors_refuses_and_recovers(tmp_path):
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with ServedNode(tmp_path / "data", *QUIET) as node:
        node.ready()
        assert node.send_log(1)[0] == 200
        used = len(os.listdir(f"/proc/{node.process.pid}/fd"))
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (used + 8, hard))
        held = []
        try:
            address = ("127.0.0.1", node.port("http"))
            held += [socket.create_connection(address, timeout=60) for _ in range(30)]
            time.sleep(0.5)
        finally:
            for one in held:
                one.close()
        end_s = time.monotonic() + 90
        while not is_taken(node, 2):
            assert time.monotonic() < end_s
            time.sleep(0.1)
        assert node.process.poll() is None
        assert node.stop() == 0
    assert numbers(tmp_path / "data")[1] == 1
