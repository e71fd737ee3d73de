"""The steps that both OTLP listeners share: check the key, charge the quota, queue the body.

In:   a key, a body
Out:  the counts of accepted and rejected rows; or the client's error

- A body is accepted only with a key that may ingest, and within the tenant's quota.
- Rows are counted when they are durable. No later step may fail: a client that gets an error sends
  again, and the rows would be stored twice.
"""

from dataclasses import dataclass
from typing import Protocol

from thermocline.errors import Invalid
from thermocline.ingest.otlp.batch_decode import Body
from thermocline.ingest.otlp.outcome import Decoded
from thermocline.server.otlp.ingest_queue import Delivery, Lane
from thermocline.server.otlp.memory_budget import Room

SCOPE = "ingest"
REQUEST_ID_LENGTH_MAX = 255


class Caller(Protocol):
    """The client of a request."""

    @property
    def tenant(self) -> str:
        """The tenant that the rows belong to."""
        ...


class Gate(Protocol):
    """Authenticates a client by its key."""

    def caller(self, authorization: str | None, scope: str) -> Caller:
        """Return the caller; `Unauthenticated`, `Forbidden`."""
        ...


class Quotas(Protocol):
    """The tenants' limits on incoming bytes."""

    def take_ingest(self, tenant: str, size_bytes: int) -> None:
        """Count incoming bytes; `Overloaded` when the tenant exceeds its rate."""
        ...


class Meter(Protocol):
    """Counts requests and rows for the metrics."""

    def request(self, listener: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        ...

    def ingested(self, signal: str, rows: int, size_bytes: int) -> None:
        """Count rows that are durable."""
        ...

    def rejected(self, signal: str, rows: int) -> None:
        """Count refused rows."""
        ...


@dataclass(frozen=True, slots=True)
class Receiver:
    """The ingest queue, with the checks that precede it."""

    lane: Lane
    room: Room
    gate: Gate
    quotas: Quotas | None = None
    meter: Meter | None = None

    def tenant(self, authorization: str | None) -> str:
        """Return the tenant of a client's key; `Unauthenticated`, `Forbidden`."""
        return self.gate.caller(authorization, SCOPE).tenant

    async def take(
        self, tenant: str, signal: str, body: Body, request_id: str | None = None
    ) -> Decoded:
        """Return the counts of a body once its rows are durable; raise the client's error."""
        if request_id is not None and not 0 < len(request_id) <= REQUEST_ID_LENGTH_MAX:
            raise Invalid(
                "an idempotency key is empty or too long",
                hint="send a random key with each request, such as a UUID",
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
        """Count an answered request."""
        if self.meter is not None:
            self.meter.request(listener, route, status, seconds)
