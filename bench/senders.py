"""Sends OTLP requests that are encoded beforehand, over connections that stay open.

In:   a port, files that each hold one whole HTTP request, a number of connections, seconds
Out:  one JSON line: answers by status, seconds, and the latency of each answer in milliseconds

- One process and one thread, so that it takes as little as possible of what it measures: a
  connection that has its answer sends the next request at once.
- Latency is from the first byte sent to the last byte of the answer.
- The first `--warm` seconds are not counted.
"""

import argparse
import json
import select
import socket
import time
from pathlib import Path


class Connection:
    """One connection and the request it is in."""

    def __init__(self, port: int, requests: list[memoryview], turn: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._requests, self._turn = requests, turn
        self._left = memoryview(b"")
        self._answer = b""
        self.began_s = 0.0

    def begin(self) -> bool:
        """Send the next request; tell whether all of it is sent."""
        self._turn += 1
        self._left = self._requests[self._turn % len(self._requests)]
        self.began_s = time.perf_counter()
        return self.go_on()

    def go_on(self) -> bool:
        """Send more of the request; tell whether all of it is sent."""
        while self._left:
            try:
                self._left = self._left[self.socket.send(self._left) :]
            except BlockingIOError:
                return False
        return True

    def status(self) -> int | None:
        """Read; return the status of the answer when it is whole."""
        part = self.socket.recv(65_536)
        if not part:
            raise SystemExit("the server closed a connection")
        self._answer += part
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return None
        length = 0
        for line in head.split(b"\r\n")[1:]:
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        if len(body) < length:
            return None
        self._answer = b""
        return int(head[9:12])


def run(options: argparse.Namespace) -> dict[str, object]:
    """Send for a while and return what came back."""
    requests = [memoryview(Path(name).read_bytes()) for name in options.files]
    poll = select.epoll()
    connections = {}
    for place in range(options.connections):
        made = Connection(options.port, requests, place * 7)
        connections[made.socket.fileno()] = made
        poll.register(made.socket.fileno(), select.EPOLLIN)
    start_s = time.perf_counter() + options.warm
    end_s = start_s + options.seconds
    statuses: dict[int, int] = {}
    latencies = []
    for number, one in connections.items():
        _send(poll, number, one.begin())
    while (now_s := time.perf_counter()) < end_s:
        for number, event in poll.poll(1.0):
            one = connections[number]
            if event & select.EPOLLOUT:
                _send(poll, number, one.go_on())
            if event & select.EPOLLIN and (status := one.status()) is not None:
                now_s = time.perf_counter()
                if one.began_s >= start_s:
                    statuses[status] = statuses.get(status, 0) + 1
                    latencies.append(round((now_s - one.began_s) * 1e3, 3))
                _send(poll, number, one.begin())
    spent_s = time.perf_counter() - start_s
    return {
        "statuses": statuses,
        "seconds": spent_s,
        "latencies_ms": latencies,
        "cpu_s": time.process_time(),
    }


def _send(poll: select.epoll, number: int, is_sent: bool) -> None:
    poll.modify(number, select.EPOLLIN if is_sent else select.EPOLLIN | select.EPOLLOUT)


def main() -> None:
    """Run, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("files", nargs="+")
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
