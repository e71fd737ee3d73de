"""The room of a request's body: held until the work on it is done, then given back."""

import asyncio

import pytest

from thermocline.errors import Invalid
from thermocline.server.api.app import _Address, make_app
from thermocline.server.api.route import Route
from thermocline.server.guard import Guard
from thermocline.server.keys import KeyStore
from thermocline.server.log import Log
from thermocline.server.metrics import Metrics
from thermocline.server.quota import Quotas

BODY_BYTES = 100_000


def test_the_bytes_of_a_body_have_their_room_while_the_work_runs(tmp_path):
    with open(tmp_path / "log", "ab") as file:
        guard = Guard(KeyStore(str(tmp_path)))
        log = Log(file.fileno())
        parts = make_app(None, guard, Quotas(), Metrics(), log).state.parts
        held = []

        def run(call):
            held.append((len(call.body), parts.room.held_bytes))
            raise Invalid("seen")

        route = Route("POST", "/", None, "seen", "", None, run=run, body=dict, is_raw=True)

        async def receive():
            return {"type": "http.request", "body": bytes(BODY_BYTES)}

        async def send(message):
            raise AssertionError(message)

        scope = {
            "type": "http",
            "method": "POST",
            "headers": [(b"content-type", b"application/json")],
            "thermocline.request_id": "one",
        }
        with pytest.raises(Invalid, match="seen"):
            asyncio.run(_Address(parts, {"POST": route})(scope, receive, send))
        parts.close()
        log.flush()
    ((size_bytes, held_bytes),) = held
    assert size_bytes == BODY_BYTES
    assert held_bytes >= BODY_BYTES
    assert parts.room.held_bytes == 0
