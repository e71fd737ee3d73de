"""The certificate: taken, and taken again when it is another one."""

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from server.test_serve import certificate
from thermocline.config import node_settings
from thermocline.errors import Invalid
from thermocline.server.start.certificate import TlsCertificate
from thermocline.server.start.startup_checks import tls_context


def greeted(context, pem):
    """Tell whether a client that trusts a certificate gets a connection."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    theirs.settimeout(60)
    client = ssl.create_default_context(cafile=str(pem))

    def serve():
        try:
            context.wrap_socket(ours, server_side=True).close()
        except OSError:
            ours.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(theirs, server_hostname="localhost").close()
    except OSError:
        return False
    finally:
        theirs.close()
        thread.join()
    return True


def settings(folder, pem, secret):
    return node_settings(
        {"data": str(folder / "data"), "tls_certificate": str(pem), "tls_key": str(secret)}
    )


def test_a_reload_of_a_pair_that_does_not_belong_together_leaves_the_old_one_at_work(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    pem, secret = certificate(tmp_path / "a")
    other, other_secret = certificate(tmp_path / "b")
    context = tls_context(settings(tmp_path, pem, secret))
    assert greeted(context, pem)
    with pytest.raises(Invalid):
        tls_context(settings(tmp_path, other, secret), context)
    assert greeted(context, pem)
    assert tls_context(settings(tmp_path, other, other_secret), context) is context
    assert greeted(context, other)


def shows(port, pem):
    """Tell whether a gRPC client that trusts a certificate gets a connection."""
    trusted = grpc.ssl_channel_credentials(pem.read_bytes())
    with grpc.secure_channel(f"localhost:{port}", trusted) as channel:
        try:
            channel.unary_unary("/nobody/serves")(b"", timeout=60)
        except grpc.RpcError as error:
            return error.code() == grpc.StatusCode.UNIMPLEMENTED
    return False


def test_a_new_certificate_is_shown_over_grpc_after_a_reload(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    pem, secret = certificate(tmp_path / "a")
    other, other_secret = certificate(tmp_path / "b")
    held = TlsCertificate(settings(tmp_path, pem, secret))
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        port = server.add_secure_port("localhost:0", held.grpc_credentials())
        server.start()
        found = [shows(port, pem)]
        first = pem.read_bytes()
        pem.write_bytes(other.read_bytes())
        with pytest.raises(Invalid):
            held.reload()  # its key is not there yet
        (tmp_path / "first.pem").write_bytes(first)
        found.append(shows(port, tmp_path / "first.pem"))
        secret.write_bytes(other_secret.read_bytes())
        held.reload()
        found += [shows(port, other), shows(port, tmp_path / "first.pem")]
        server.stop(None).wait(60)
    assert found == [True, True, True, False]
    assert greeted(held.context, other)
