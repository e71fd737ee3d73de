"""Webhooks: signed, pinned to a checked address, bounded."""

import http.server
import json
import socket
import threading
import time

import pytest

from thermocline.alert import webhook
from thermocline.alert.webhook import (
    AllowedHosts,
    WebhookError,
    is_public,
    is_signed,
    resolve,
    send,
    sign,
    target_headers,
)


@pytest.fixture
def receiver():
    """An HTTP server on this machine; `answers` are the statuses that it gives, then 200."""
    seen, answers = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, dict(self.headers), body))
            self.send_response(answers.pop(0) if answers else 200)
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.seen, server.answers = seen, answers
    server.url = f"http://127.0.0.1:{server.server_port}/hook?a=1"
    yield server
    server.shutdown()
    server.server_close()


HERE = AllowedHosts.parse("127.0.0.1, localhost")


def test_a_delivery_arrives_with_its_id_and_a_signature_that_can_be_checked(receiver):
    body = json.dumps({"a": "ä"}).encode()
    send(receiver.url, body, target_headers("f00d:firing", body, b"key", 1_000), HERE)
    ((path, headers, got),) = receiver.seen
    assert (path, got, headers["Idempotency-Key"]) == ("/hook?a=1", body, "f00d:firing")
    header = headers["X-Thermocline-Signature"]
    assert is_signed(b"key", got, header, now_s=1_100)
    assert not is_signed(b"key", got, header, now_s=1_400)  # too old
    assert not is_signed(b"other", got, header, now_s=1_100)
    assert not is_signed(b"key", got + b" ", header, now_s=1_100)
    assert not is_signed(b"key", got, "v1=1", now_s=1_100)


@pytest.mark.parametrize("status", [301, 400, 404, 500, 503])
def test_another_answer_than_success_is_a_failed_attempt_and_is_not_followed(receiver, status):
    receiver.answers.append(status)
    with pytest.raises(WebhookError, match=f"answered {status}") as caught:
        send(receiver.url, b"{}", {}, HERE)
    assert not caught.value.is_final
    assert len(receiver.seen) == 1


@pytest.mark.parametrize("allowed", ["", "*", "example.com", "127.*", "*.0.0.1"])
def test_this_machine_is_asked_only_if_its_host_is_written_out(receiver, allowed):
    with pytest.raises(WebhookError) as caught:
        send(receiver.url, b"{}", {}, AllowedHosts.parse(allowed))
    assert caught.value.is_final
    assert receiver.seen == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
    ],
)
def test_private_addresses_are_not_public(address):
    assert not is_public(address)


def test_public_addresses_are_public():
    assert is_public("93.184.216.34")
    assert is_public("2606:4700:4700::1111")


def test_a_public_name_with_a_private_address_is_refused(monkeypatch):
    def answer(host, port, **_):
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with pytest.raises(WebhookError, match="private address"):
        resolve("https://hooks.example.com/x", AllowedHosts.parse("*.example.com"))
    assert resolve("https://h.example.com", AllowedHosts.parse("h.example.com")) == "93.184.216.34"


def test_a_receiver_that_sends_a_byte_now_and_then_ends_at_the_deadline(monkeypatch):
    monkeypatch.setattr(webhook, "SEND_S_MAX", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip():
        other, _ = listener.accept()
        other.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not stop.wait(0.05):
            try:
                other.sendall(b"x")
            except OSError:
                break
        other.close()

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    began_s = time.monotonic()
    with pytest.raises(WebhookError, match=r"longer than|cannot be reached"):
        send(f"http://127.0.0.1:{listener.getsockname()[1]}/", b"{}", {}, HERE)
    assert time.monotonic() - began_s < 60
    stop.set()
    listener.close()
    thread.join()


def test_the_signature_is_the_hmac_of_the_time_and_the_body():
    assert sign(b"key", b"{}", 1_700_000_000) == (
        "t=1700000000,v1=9d713ed406bb7076d4123f0dc2c39d2df5c654ed4b0cd56b52c8b4c940bd63ae"
    )
