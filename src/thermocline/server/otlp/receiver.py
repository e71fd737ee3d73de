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
from thermocline.ingest.otlp.batch_decode import RequestBody
from thermocline.ingest.otlp.outcome import DecodedRequest
from thermocline.names import OTLP_IDEMPOTENCY_KEY_LENGTH_MAX
from thermocline.server.otlp.ingest_queue import IngestQueue, IngestRequest
from thermocline.server.otlp.memory_budget import MemoryBudget

SCOPE = "ingest"


class SenderIdentity(Protocol):
    """The client of a request."""

    @property
    def tenant(self) -> str:
        """The tenant that the rows belong to."""
        ...


class KeyGate(Protocol):
    """Authenticates a client by its key."""

    def caller(self, authorization: str | None, scope: str) -> SenderIdentity:
        """Return the caller; `Unauthenticated`, `Forbidden`."""
        ...


class IngestQuotas(Protocol):
    """The tenants' limits on incoming bytes."""

    def take_ingest(self, tenant: str, size_bytes: int) -> None:
        """Count incoming bytes; `Overloaded` when the tenant exceeds its rate."""
        ...


class IngestMeter(Protocol):
    """Counts requests and rows for the metrics."""

    def count_request(self, listener: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        ...

    def count_ingested(self, signal: str, rows: int, size_bytes: int) -> None:
        """Count rows that are durable."""
        ...

    def count_rejected(self, signal: str, rows: int) -> None:
        """Count refused rows."""
        ...


@dataclass(frozen=True, slots=True)
class Receiver:
    """The ingest queue, with the checks that precede it."""

    queue: IngestQueue
    room: MemoryBudget
    gate: KeyGate
    quotas: IngestQuotas | None = None
    meter: IngestMeter | None = None

    def tenant(self, authorization: str | None) -> str:
        """Return the tenant of a client's key; `Unauthenticated`, `Forbidden`."""
        return self.gate.caller(authorization, SCOPE).tenant

    async def ingest(
        self, tenant: str, signal: str, body: RequestBody, request_id: str | None = None
    ) -> DecodedRequest:
        """Return the counts of a body once its rows are durable; raise the client's error."""
        if request_id is not None and not 0 < len(request_id) <= OTLP_IDEMPOTENCY_KEY_LENGTH_MAX:
            raise Invalid(
                "an idempotency key is empty or too long",
                hint="send a random key with each request, such as a UUID",
                length_max=OTLP_IDEMPOTENCY_KEY_LENGTH_MAX,
            )
        size_bytes = len(body.data)
        if self.quotas is not None:
            self.quotas.take_ingest(tenant, size_bytes)
        taken = await self.queue.offer(IngestRequest(tenant, signal, body, request_id))
        if self.meter is not None:
            self.meter.count_ingested(signal, max(0, taken.accepted), size_bytes)
            if taken.rejected > 0:
                self.meter.count_rejected(signal, taken.rejected)
        return taken

    def observe(self, listener: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        if self.meter is not None:
            self.meter.count_request(listener, route, status, seconds)
