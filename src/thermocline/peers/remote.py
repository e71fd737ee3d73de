"""One other node: its hot rows, and flushes, over HTTP.

In:   the claim of a source; a table
Out:  the hot snapshot of that source at this moment; `Unavailable` that names the source

- What a reader has already is not sent again: parts are kept until the source no longer has them.
- Every request has a deadline and a limit of bytes. There is no second try: the caller decides.
"""

import http.client
import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

import orjson

from thermocline.errors import Corruption, ThermoclineError, Unavailable
from thermocline.hot.tier import HotPart, HotSnapshot
from thermocline.peers.registry import Claim
from thermocline.peers.wire import PartName, decode_snapshot, name_part

HOT_PATH = "/api/v1/node/hot"
FLUSH_PATH = "/api/v1/node/flush"
TOKEN_HEADER = "Thermocline-Node"  # noqa: S105  the name of a header
DEADLINE_S = 10.0
FLUSH_DEADLINE_S = 120.0
ANSWER_BYTES_MAX = 1 << 30


class RemoteSource:
    """The hot rows of another node. Safe to use from many threads."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self._lock = threading.Lock()
        self._kept: dict[str, dict[PartName, HotPart]] = {}  # by table id

    def snapshot(self, table_id: str) -> HotSnapshot:
        """Return every row of a table that the source had acknowledged before this call."""
        with self._lock:
            known = dict(self._kept.get(table_id, {}))
        data = self._post(HOT_PATH, {"table": table_id, "known": list(known)}, DEADLINE_S)
        found = decode_snapshot(data, known)
        if found.source != self.claim.source:
            raise Corruption(
                "another source answers at the address of a node",
                hint="check the setting advertise of the nodes",
                source=self.claim.label,
                found=found.source,
            )
        with self._lock:
            self._kept[table_id] = {name_part(part): part for part in found.parts}
        return found

    def flush(self, table_id: str) -> None:
        """Have the source flush what is hot of a table now."""
        self._post(FLUSH_PATH, {"table": table_id}, FLUSH_DEADLINE_S)

    def _post(self, path: str, body: dict[str, Any], deadline_s: float) -> bytes:
        place = urlsplit(self.claim.url)
        if not place.hostname:
            raise self._missing_error("its process serves no address")
        try:
            connection = _connect(place.scheme, place.hostname, place.port, deadline_s)
            try:
                headers = {"Content-Type": "application/json", TOKEN_HEADER: self.claim.token}
                connection.request("POST", path, orjson.dumps(body), headers)
                answer = connection.getresponse()
                data = answer.read(ANSWER_BYTES_MAX + 1)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise self._missing_error(str(error) or type(error).__name__) from error
        if answer.status not in (http.client.OK, http.client.NO_CONTENT):
            raise self._missing_error(f"it answered {answer.status}")
        if len(data) > ANSWER_BYTES_MAX:
            raise self._missing_error("its hot rows are more than one answer takes")
        return data

    def _missing_error(self, why: str) -> ThermoclineError:
        return Unavailable(
            "a node of this lake cannot be reached, and rows may be only in its journal",
            hint="start the node again with its data folder; or ask with mode best_effort for an "
            "answer that says what may be missing",
            source=self.claim.label,
            why=why[:200],
        )


def _connect(
    scheme: str, host: str, port: int | None, deadline_s: float
) -> http.client.HTTPConnection:
    if scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=deadline_s, context=context)
    return http.client.HTTPConnection(host, port, timeout=deadline_s)
