"""The gate of a listener: who gets a place when strangers take all of them."""

import asyncio
import resource
import socket
import ssl

import pytest
import uvloop

from server.test_serve import certificate as make_pair
from thermocline.errors import Overloaded
from thermocline.server.access import accept_gate as module
from thermocline.server.access.accept_gate import (
    AcceptGate,
    ConnectionPlaces,
    GatedProtocol,
    reserve_files,
)


class Hello(GatedProtocol, asyncio.Protocol):
    """Says hello to every line; a line with a key charges its connection to the tenant."""

    transport = None

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, error):
        self.place.release()

    def data_received(self, data):
        try:
            if data != b"?":
                self.place.admit(data.decode())
            self.transport.write(b"hello")
        except Overloaded:
            self.transport.write(b"share")

    def abort(self):
        if self.transport is not None:
            self.transport.abort()


def gated(during, places_max, **options):
    """Return what `during(port, places)` returns, run in a thread beside the gate."""

    async def main():
        listening = socket.create_server(("127.0.0.1", 0))
        port, places = listening.getsockname()[1], ConnectionPlaces(places_max)
        gate = AcceptGate(listening, Hello, places, **options)
        try:
            return await asyncio.to_thread(during, port, places)
        finally:
            gate.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def ask(sock, word=b"?"):
    sock.sendall(word)
    return sock.recv(100)


def test_silent_connections_displace_each_other_and_never_one_with_a_key():
    def during(port, places):
        known = [connected(port) for _ in range(3)]
        assert [ask(one, b"tenant") for one in known] == [b"hello"] * 3
        silent = [connected(port) for _ in range(40)]
        probes = []
        for _ in range(10):
            with connected(port) as probe:
                probes.append(ask(probe))
        still = [ask(one, b"tenant") for one in known]
        for one in (*known, *silent):
            one.close()
        return probes, still, places.count

    probes, still, count = gated(during, 8)
    assert probes == [b"hello"] * 10
    assert still == [b"hello"] * 3
    assert count <= 8


def test_when_every_place_has_a_key_a_stranger_is_refused():
    def during(port, places):
        known = [connected(port) for _ in range(4)]
        assert [ask(one, b"tenant") for one in known] == [b"hello"] * 4
        with connected(port) as late:
            told = late.recv(100)
        for one in known:
            one.close()
        return told

    assert gated(during, 4, refusal=b"full") == b"full"


def admit_all(places, tenant):
    for one in places:
        one.admit(tenant)


def test_a_tenant_gets_its_share_of_the_connections():
    places = ConnectionPlaces(64)
    quiet = places.enter("10.0.0.1", lambda: None)
    quiet.admit("quiet")
    for _ in range(35):
        places.enter("10.0.0.2", lambda: None).admit("loud")
    beyond = [places.enter("10.0.0.2", lambda: None) for _ in range(10)]
    with pytest.raises(Overloaded, match="share"):
        admit_all(beyond, "loud")
    places.enter("10.0.0.1", lambda: None).admit("quiet")


def test_the_peer_with_most_silent_connections_gives_up_its_oldest():
    closed = []
    places = ConnectionPlaces(4)
    places.enter("10.0.0.1", lambda: closed.append("honest"))
    for number in range(5):
        places.enter("2001:db8::1" + str(number), lambda number=number: closed.append(number))
    assert closed == [0, 1]
    assert len(places.silent) == 2, "addresses of one IPv6 site are one peer"


def test_half_open_handshakes_hold_their_places_for_seconds_only(tmp_path, monkeypatch):
    certificate, key = make_pair(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cafile=certificate)
    client.check_hostname = False

    def during(port, places):
        silent = [connected(port) for _ in range(30)]
        with client.wrap_socket(connected(port)) as sock:  # 30 handshakes hang, and 8 have places
            told = ask(sock)
        ended = [one.recv(10) for one in silent[:1]]
        for one in silent:
            one.close()
        return told, ended

    monkeypatch.setattr(module, "HANDSHAKE_WAIT_S", 60.0)
    assert gated(during, 8, tls=context) == (b"hello", [b""])

    def wait_for_end(port, places):
        with connected(port) as one:
            return one.recv(10)

    assert gated(wait_for_end, 8, tls=context, handshake_wait_s=0.2) == b""


def test_descriptors_stay_free_for_files():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = reserve_files(1_000_000, 3)
    assert each * 3 <= soft - min(module.FILES_RESERVED, soft // 2)
    assert reserve_files(5, 3) == 5
