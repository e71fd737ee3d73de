"""The feed of changes over HTTP: pages with long polling, and server-sent events.

In:   a position, names of types
Out:  committed changes in the order of the feed, each with the position to resume after it

- A waiting request holds no thread: the loop asks PostgreSQL again every `FEED_POLL_S`.
- Server-sent events have the position as their id, so that a browser resumes by itself: it sends
  the last id as `Last-Event-ID`. A comment line every `BEAT_S` keeps proxies from closing.
- At most `CONSUMERS_MAX` requests of a tenant wait at once; more are 429.
- A client that does not read for `SEND_WAIT_S` counts as disconnected; nothing is kept for it. It
  resumes where it was, until the retention of the type removes the changes: then it gets 410.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from starlette.types import Send

from thermocline.contract.document.text import encode_text
from thermocline.errors import Overloaded, ThermoclineError
from thermocline.format.instant import format_instant, from_datetime
from thermocline.hot.postgres.revision.change import FEED_POLL_S, EntityChange, FeedPage
from thermocline.server.api.http.incoming import ClientGone, wait_for_disconnect
from thermocline.server.api.http.problem import problem_bytes, problem_of
from thermocline.server.api.http.reply import exact_json, send_answer, send_in_time
from thermocline.server.api.types import response_types
from thermocline.server.api.types.route import ApiRequest

CONSUMERS_MAX = 100
EVENTS_PAGE = 200
BEAT_S = 15.0
EVENT_STREAM = "text/event-stream"

_waiting: Counter[str] = Counter()
_lock = threading.Lock()


async def changes(call: ApiRequest, send: Send) -> None:
    """Answer with the next changes; wait for one if there is none yet."""
    asked = call.params
    end_s = time.monotonic() + asked.wait_s
    with _count_consumer(call.caller.tenant):
        while True:
            page = await call.parts.work.run(
                partial(_read, call, asked.after, asked.limit), tenant=call.caller.tenant
            )
            left_s = end_s - time.monotonic()
            if page.changes or left_s <= 0:
                break
            await asyncio.sleep(min(FEED_POLL_S, left_s))
    listed = [_change(one) for one in page.changes]
    await send_answer(send, exact_json(response_types.Changes(listed, page.position)))


async def events(call: ApiRequest, send: Send) -> None:
    """Send changes as server-sent events until the client disconnects."""
    after = call.headers.get("last-event-id") or call.params.after
    with _count_consumer(call.caller.tenant):
        page = await call.parts.work.run(
            partial(_read, call, after, EVENTS_PAGE), tenant=call.caller.tenant
        )
        headers = [(b"content-type", EVENT_STREAM.encode()), (b"cache-control", b"no-store")]
        await send_in_time(send, {"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.ensure_future(wait_for_disconnect(call.receive))
        try:
            await _send_events(call, send, page, gone)
        finally:
            gone.cancel()


async def _send_events(
    call: ApiRequest, send: Send, page: FeedPage, gone: "asyncio.Future[None]"
) -> None:
    sent_s = time.monotonic()
    while not gone.done():
        data = b"".join(_event(one) for one in page.changes)
        if not data and time.monotonic() - sent_s > BEAT_S:
            data = b": no change\n\n"
        if data:
            await send_in_time(
                send, {"type": "http.response.body", "body": data, "more_body": True}
            )
            sent_s = time.monotonic()
        if not page.changes:
            await asyncio.wait([gone], timeout=FEED_POLL_S)
        try:
            page = await call.parts.work.run(
                partial(_read, call, page.position, EVENTS_PAGE), tenant=call.caller.tenant
            )
        except ThermoclineError as error:
            # The status is sent, so the error is the last event.
            data = b"event: error\ndata: " + problem_bytes(problem_of(error, call.request_id))
            await send_in_time(send, {"type": "http.response.body", "body": data + b"\n\n"})
            return
    raise ClientGone


def position(call: ApiRequest) -> response_types.FeedPlace:
    """Return the position of now."""
    return response_types.FeedPlace(call.lake.feed_position())


def _read(call: ApiRequest, after: str | None, limit: int) -> FeedPage:
    names = call.params.types
    types = None if names is None else [name.strip() for name in names.split(",")]
    return call.lake.changes(types, after, limit)


def _change(one: EntityChange) -> response_types.ChangeResponse:
    return response_types.ChangeResponse(
        one.position,
        one.type,
        one.id,
        one.ver,
        one.op,
        format_instant(from_datetime(one.at)),
        one.document,
        one.key,
        one.request_id,
        one.schema_version,
    )


def _event(one: EntityChange) -> bytes:
    text = encode_text(_change(one)).encode()
    return b"id: " + one.position.encode() + b"\nevent: change\ndata: " + text + b"\n\n"


@contextmanager
def _count_consumer(tenant: str) -> Iterator[None]:
    """Count a consumer of a tenant; `Overloaded` above `CONSUMERS_MAX`."""
    with _lock:
        if _waiting[tenant] >= CONSUMERS_MAX:
            hint = "close other connections to the feed"
            raise Overloaded("too many consumers wait", hint=hint, consumers_max=CONSUMERS_MAX)
        _waiting[tenant] += 1
    try:
        yield
    finally:
        with _lock:
            _waiting[tenant] -= 1
