"""The node's certificate, on every listener, and a new one without a restart.

In:   the paths of two PEM files, as the settings have them
Out:  a context for HTTP; credentials for gRPC; from a reload on both show the new certificate

- A pair that does not belong together is refused, at the start and at a reload: then the old one
  goes on.
- Connections that there are keep the certificate they began with.
"""

from typing import Any

from thermocline.config import NodeSettings
from thermocline.server.prepare import tls_context, unreadable


class Certificate:
    """The certificate and its key, as they were when they were last read."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._pair = _pair(settings)
        self.context = tls_context(settings)

    def reload(self) -> None:
        """Read the files again; `Invalid`, and the old pair at work, when they are no pair."""
        pair = _pair(self._settings)
        tls_context(self._settings, self.context)
        self._pair = pair

    def grpc_credentials(self) -> Any:
        """Return credentials that are looked up again for each new connection."""
        import grpc  # type: ignore[import-untyped]

        shown = [self._pair]

        def changed() -> Any:
            """Return the configuration when it is another one than before, on grpc's threads."""
            pair = self._pair
            if pair is shown[0]:
                return None
            shown[0] = pair
            return grpc.ssl_server_certificate_configuration([pair])

        first = grpc.ssl_server_certificate_configuration([self._pair])
        return grpc.dynamic_ssl_server_credentials(first, changed)


def _pair(settings: NodeSettings) -> tuple[bytes, bytes]:
    """Return the key and the certificate, in the order that gRPC takes them."""
    try:
        return _read(settings.tls_key), _read(settings.tls_certificate)
    except OSError as error:
        raise unreadable(settings, error) from error


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
