"""The live tail of a node's table, read as events.

In:   the connections to a node, the path of the tail, its parameters
Out:  each row as a mapping; the event that says why the stream has ended

- A stream that ends without its last event was cut: `Unavailable`. Rows may have been missed since.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx2

from thermocline.client.http import Wire
from thermocline.errors import Unavailable

QUIET_S_MAX = 45.0
"""A node sends something every few seconds; after this long without a byte it counts as gone."""


class TailEnd(Exception):
    """The stream has ended as it says: `reason` is `time`, `slow`, `stopping` or `error`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message = message


def read_tail(wire: Wire, path: str, **params: Any) -> Iterator[dict[str, Any]]:
    """Yield rows as they become durable; `TailEnd` at the end of the stream."""
    response = wire.open_stream(path, QUIET_S_MAX, **params)
    try:
        event = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                value = json.loads(line.removeprefix("data: "))
                if event == "end":
                    raise TailEnd(str(value["reason"]), str(value["message"]))
                yield value
    except httpx2.HTTPError as error:
        raise wire.lost_error(error, is_read=True) from error
    finally:
        response.close()
    raise Unavailable("the stream was cut", hint="ask again, and query the rows since then")
