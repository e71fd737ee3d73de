"""What senders of telemetry are told: only what is their own fault is final."""

from thermocline.errors import NotFound, TenantNotFound
from thermocline.server.otlp.status import otlp_status


def test_only_a_tenant_that_is_not_found_is_the_senders_fault():
    assert otlp_status(TenantNotFound("no such tenant", tenant="x")).status == 404
    missing = otlp_status(NotFound("no such object", path="segment"))
    assert (missing.status, missing.retry_after_s) == (503, 1)
