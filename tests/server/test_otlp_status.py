"""What senders of telemetry are told: only what is their own fault is final."""

import pickle

import pytest

from thermocline.error_table import ERROR_TABLE, UNAVAILABLE, find_answer
from thermocline.errors import (
    Conflict,
    CoverageOverlapError,
    EntityLimitReached,
    EntityNotFound,
    NotFound,
    Overloaded,
    PreconditionFailed,
    QueryCancelled,
    QueryTimeout,
    TenantNotFound,
)
from thermocline.server.otlp.status import otlp_status


def test_only_a_tenant_that_is_not_found_is_the_senders_fault():
    assert otlp_status(TenantNotFound("no such tenant", tenant="x")).status == 404
    missing = otlp_status(NotFound("no such object", path="segment"))
    assert (missing.status, missing.retry_after_s) == (503, 1)


def test_every_class_of_error_is_rebuilt_by_pickle():
    for kind in {*ERROR_TABLE, *(sub for one in ERROR_TABLE for sub in one.__subclasses__())}:
        again = pickle.loads(pickle.dumps(kind("no", hint="so", timeout_s=1.5)))
        assert (type(again), again.facts) == (kind, {"timeout_s": 1.5})


@pytest.mark.parametrize(
    ("error", "http", "otlp", "retry_after_s"),
    [
        (QueryTimeout("slow", timeout_s=1), 504, 429, 1),
        (Overloaded("much", timeout_s=1, retry_after_s=60), 429, 429, 5),
        (PreconditionFailed("other"), 412, 503, 1),
        (Conflict("other", if_match=1, retry_after_s=-1), 409, 503, 1),
        (EntityLimitReached("many", retry_after_s="soon"), 429, 429, 1),
        (EntityNotFound("no such entity"), 404, 503, 1),
        (QueryCancelled("over", retry_after_s=2.5), 503, 503, 2),
        (CoverageOverlapError("held"), 409, 503, 1),
        (ValueError("a bug"), 500, 503, 1),
    ],
)
def test_the_class_decides_and_no_fact(error, http, otlp, retry_after_s):
    row, answer = find_answer(error), otlp_status(error)
    assert (row.http_status, row.otlp_status) == (http, otlp)
    assert row.is_retried == (http in (429, 503))
    assert (answer.status, answer.code, answer.retry_after_s) == (otlp, UNAVAILABLE, retry_after_s)
