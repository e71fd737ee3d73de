"""The facts that a request's head gives, and the refusal of a request as HTTP has it."""

from dataclasses import dataclass

from thermocline.errors import ThermoclineError
from thermocline.server.otlp.http1.head import RequestRefused
from thermocline.server.otlp.status import otlp_status


@dataclass(frozen=True, slots=True)
class Admitted:
    """The facts from a request's head: the tenant, and the form of the body."""

    tenant: str
    encoding: str
    coding: str
    request_id: str | None


def refuse(error: ThermoclineError) -> RequestRefused:
    """Return the refusal of a request for an error."""
    refusal = otlp_status(error)
    headers = (("WWW-Authenticate", "Bearer"),) if refusal.status == 401 else ()
    return RequestRefused(
        refusal.status, refusal.message, retry_after_s=refusal.retry_after_s, headers=headers
    )
