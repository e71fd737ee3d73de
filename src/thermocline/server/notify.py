"""Tells systemd how the node is: started, stopping, reloading, still there.

In:   `NOTIFY_SOCKET`, where the service manager set one
Out:  datagrams such as `READY=1`

- Nobody who listens is no error: the node runs the same without a service manager.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """The way to the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.get("NOTIFY_SOCKET", "")
        # A name in the abstract space begins with a NUL, which is written as an @.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        period = environment.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(period) / 2e6 if period.isdigit() else None

    def tell(self, *lines: str) -> bool:
        """Send one message; tell whether somebody took it."""
        if not self._address:
            return False
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)
            return True
        return False
