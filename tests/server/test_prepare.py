"""What is done before a node is served: the certificate."""

import socket
import ssl
import threading

import pytest

from server.test_serve import certificate
from thermocline.config import node_settings
from thermocline.errors import Invalid
from thermocline.server.prepare import tls_context


def greeted(context, pem):
    """Tell whether a client that trusts a certificate gets a connection."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    theirs.settimeout(10)
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
