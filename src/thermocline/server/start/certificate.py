"""The node's TLS certificate for every listener, replaceable without a restart.

In:   the paths of two PEM files, from the settings
Out:  a context for HTTP and credentials for gRPC; after a reload both use the new certificate

- A certificate and key that do not match are refused at the start and at a reload. A failed reload
  keeps the old pair.
- Open connections keep the certificate they began with.
"""

from typing import Any

from thermocline.config import NodeSettings
from thermocline.server.start.startup_checks import certificate_error, tls_context


class TlsCertificate:
    """The certificate and its key, as last read from disk."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._pair = _read_pair(settings)
        self.context = tls_context(settings)

    def reload(self) -> None:
        """Read the files again; `Invalid` if they do not match, and the old pair stays in use."""
        pair = _read_pair(self._settings)
        tls_context(self._settings, self.context)
        self._pair = pair

    def grpc_credentials(self) -> Any:
        """Return credentials that gRPC asks for again at each new connection."""
        import grpc  # type: ignore[import-untyped]

        shown = [self._pair]

        def read_change() -> Any:
            """Return the configuration if it changed since the last call, on gRPC's threads."""
            pair = self._pair
            if pair is shown[0]:
                return None
            shown[0] = pair
            return grpc.ssl_server_certificate_configuration([pair])

        first = grpc.ssl_server_certificate_configuration([self._pair])
        return grpc.dynamic_ssl_server_credentials(first, read_change)


def _read_pair(settings: NodeSettings) -> tuple[bytes, bytes]:
    """Return the key and the certificate, in gRPC's order."""
    try:
        return _read(settings.tls_key), _read(settings.tls_certificate)
    except OSError as error:
        raise certificate_error(settings, error) from error


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
