"""Reports the node's state to systemd: ready, stopping, reloading, watchdog.

In:   `NOTIFY_SOCKET`, if the service manager set it
Out:  datagrams such as `READY=1`

- If no service manager listens, notifications are silently dropped.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Sends notifications to the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.get("NOTIFY_SOCKET", "")
        # A name in the abstract namespace begins with a NUL, which is written as an @.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        period = environment.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(period) / 2e6 if period.isdigit() else None

    def send(self, *lines: str) -> bool:
        """Send one message; return whether it was sent."""
        if not self._address:
            return False
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)
            return True
        return False
