"""What both of OpenTelemetry's receivers do with a request: who sends, how much, and into the lane.

In:   a key, a body
Out:  what was taken of it, counted; or the error that the sender is told

- A body is taken for a tenant only when its key may ingest, and within the tenant's quota.
- Rows are counted when they are durable. Nothing fails any more then: a sender that is told of an
  error sends again, and the rows would be there twice.
"""

from dataclasses import dataclass
from typing import Protocol

from thermocline.errors import Invalid
from thermocline.ingest.otlp.outcome import Decoded
from thermocline.ingest.otlp.together import Body
from thermocline.server.lane import Delivery, Lane
from thermocline.server.room import Room

SCOPE = "ingest"
REQUEST_ID_LENGTH_MAX = 255


class Caller(Protocol):
    """Who sends."""

    @property
    def tenant(self) -> str:
        """Whose rows they become."""
        ...


class Gate(Protocol):
    """Says who sends, by the key that is shown."""

    def caller(self, authorization: str | None, scope: str) -> Caller:
        """Return the caller; `Unauthenticated`, `Forbidden`."""
        ...


class Quotas(Protocol):
    """Each tenant's share of what the node can take."""

    def take_ingest(self, tenant: str, size_bytes: int) -> None:
        """Count bytes that come in; `Overloaded` when they are too many."""
        ...


class Meter(Protocol):
    """Counts what the receivers do."""

    def request(self, listener: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        ...

    def ingested(self, signal: str, rows: int, size_bytes: int) -> None:
        """Count rows that are durable."""
        ...

    def rejected(self, signal: str, rows: int) -> None:
        """Count rows that were refused."""
        ...


@dataclass(frozen=True, slots=True)
class Receiver:
    """The lane, and what stands before it."""

    lane: Lane
    room: Room
    gate: Gate
    quotas: Quotas | None = None
    meter: Meter | None = None

    def tenant(self, authorization: str | None) -> str:
        """Return whose rows a sender's are; `Unauthenticated`, `Forbidden`."""
        return self.gate.caller(authorization, SCOPE).tenant

    async def take(
        self, tenant: str, signal: str, body: Body, request_id: str | None = None
    ) -> Decoded:
        """Return what was taken of a body, when it is durable; raise what the sender is told."""
        if request_id is not None and not 0 < len(request_id) <= REQUEST_ID_LENGTH_MAX:
            raise Invalid(
                "an idempotency key is empty or too long",
                hint="send a random one for each request, such as a UUID",
                length_max=REQUEST_ID_LENGTH_MAX,
            )
        size_bytes = len(body.data)
        if self.quotas is not None:
            self.quotas.take_ingest(tenant, size_bytes)
        taken = await self.lane.offer(Delivery(tenant, signal, body, request_id))
        if self.meter is not None:
            self.meter.ingested(signal, max(0, taken.accepted), size_bytes)
            if taken.rejected > 0:
                self.meter.rejected(signal, taken.rejected)
        return taken

    def observe(self, listener: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        if self.meter is not None:
            self.meter.request(listener, route, status, seconds)
