"""The room of a request's body: held until the work on it is done, then given back."""

import asyncio

import pytest

from thermocline.errors import Invalid
from thermocline.server.access.guard import Guard, NodeGateway
from thermocline.server.access.keys import KeyStore
from thermocline.server.access.quota import Quotas
from thermocline.server.api.http import reply
from thermocline.server.api.http.app import _PathHandler, make_app
from thermocline.server.api.http.incoming import ClientGone
from thermocline.server.api.types.route import ApiResponse, ApiRoute
from thermocline.server.observe.log import EventLog
from thermocline.server.observe.metrics import Metrics

BODY_BYTES = 100_000


def test_the_bytes_of_a_body_have_their_room_while_the_work_runs(tmp_path):
    with open(tmp_path / "log", "ab") as file:
        guard = Guard(KeyStore(str(tmp_path)))
        log = EventLog(file.fileno())
        parts = make_app(NodeGateway(guard), guard, Quotas(), Metrics(), log).state.parts
        held = []

        def run(call):
            held.append((len(call.body), parts.budget.held_bytes))
            raise Invalid("seen")

        route = ApiRoute("POST", "/", None, "seen", "", None, run=run, body=dict, is_raw=True)

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
            asyncio.run(_PathHandler(parts, {"POST": route})(scope, receive, send))
        parts.close()
        log.flush()
    ((size_bytes, held_bytes),) = held
    assert size_bytes == BODY_BYTES
    assert held_bytes >= BODY_BYTES
    assert parts.budget.held_bytes == 0


def test_an_answer_is_handed_over_in_parts_and_whole():
    data, parts = bytes(range(256)) * 4_000, []

    async def send(message):
        parts.append(message)

    asyncio.run(reply.send_answer(send, ApiResponse(data, media_type="x/y")))
    head, *bodies = parts
    assert (b"content-length", b"1024000") in head["headers"]
    assert b"".join(one["body"] for one in bodies) == data
    assert max(len(one["body"]) for one in bodies) <= reply.PART_BYTES
    assert [one.get("more_body", False) for one in bodies] == [True] * (len(bodies) - 1) + [False]


def test_a_client_that_takes_nothing_of_an_answer_has_gone(monkeypatch):
    monkeypatch.setattr(reply, "SEND_WAIT_S", 0.05)
    taken = []

    async def send(message):
        if len(taken) == 2:
            await asyncio.Event().wait()  # the client never reads, so no memory is released
        taken.append(message["type"])

    with pytest.raises(ClientGone):
        asyncio.run(reply.send_answer(send, ApiResponse(bytes(2 << 20))))
    assert taken == ["http.response.start", "http.response.body"]
