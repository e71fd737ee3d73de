"""Keys, tenants, settings, jobs and health over HTTP.

In:   a call on a route
Out:  typed values; every change is written to the audit trail

- An administrator sees and changes keys of their tenant. Administrators of tenant `default` are
  the node's operators: they see all tenants' keys and create tenants.
- A new key may not have a scope that its creator's key lacks.
- Only the answer that creates a key has its text.
- An administrator's key that no operator made ends with the key that made it.
"""

import time as clock
from dataclasses import asdict

import msgspec

from thermocline.errors import Forbidden, Invalid, NotFound, TenantNotFound
from thermocline.format.instant import format_instant, from_datetime
from thermocline.names import DEFAULT_TENANT
from thermocline.pipeline.run.history import NAME as HISTORY
from thermocline.pipeline.run.history import last_runs
from thermocline.server.access.keys import Key
from thermocline.server.api.http.problem import problem_of
from thermocline.server.api.types import response_types
from thermocline.server.api.types.route import JSON, ApiRequest, ApiResponse
from thermocline.server.observe.health import HealthReport
from thermocline.server.observe.metrics import CONTENT_TYPE

NO_JOBS = "no job of the pipeline has ended yet; `thermocline pipeline run` and `worker` run them"


def keys(call: ApiRequest) -> response_types.KeysResponse:
    """List keys, without their secrets."""
    store = call.parts.guard.store
    found, used = store.read().by_id.values(), store.read_uses()
    may_see_all = call.caller.is_operator
    mine = [key for key in found if may_see_all or key.tenant == call.caller.tenant]
    return response_types.KeysResponse([_key_info(key, used.get(key.key_id)) for key in mine])


def create_key(call: ApiRequest) -> response_types.MadeKey:
    """Create a key, and return its text for the only time."""
    body, caller = call.body, call.caller
    tenant = caller.tenant if body.tenant is None else body.tenant
    if tenant != caller.tenant and not caller.is_operator:
        hint = "an operator can create tenants, and keys of any tenant"
        raise TenantNotFound("no such tenant", hint=hint, tenant=tenant[:80])
    beyond = set(body.scopes) - caller.scopes
    if beyond:
        hint = "use a key that has these scopes"
        message = "a new key cannot have scopes that its creator's key lacks"
        raise Forbidden(message, hint=hint, scopes=beyond)
    if call.parts.guard.is_open and (tenant != DEFAULT_TENANT or "admin" not in body.scopes):
        # After the first key the node refuses requests without one: only an administrator's key
        # can create the next.
        hint = "make a key with the scope admin of tenant default first"
        raise Invalid("the first key of a node must be an administrator's", hint=hint)
    call.parts.node.lake(tenant)  # `NotFound` when there is no such tenant
    # An administrator's key would outlive the revocation of the one that made it.
    is_bound = "admin" in body.scopes and not caller.is_operator
    made = call.parts.guard.store.create(
        tenant,
        body.scopes,
        lifetime_s=body.lifetime_s,
        note=body.note,
        made_by=caller.key_id if is_bound else None,
    )
    _record_action(
        call, "create key", key=made.key.key_id, tenant=tenant, scopes=sorted(body.scopes)
    )
    return response_types.MadeKey(made.text, _key_info(made.key, None))


def revoke_key(call: ApiRequest) -> None:
    """Revoke a key; the node refuses it within a second."""
    tenant = None if call.caller.is_operator else call.caller.tenant
    key = call.parts.guard.store.revoke(call.path["key_id"], tenant=tenant)
    _record_action(call, "revoke key", key=key.key_id, tenant=key.tenant)


def tenants(call: ApiRequest) -> response_types.TenantsResponse:
    """List the tenants of the node."""
    return response_types.TenantsResponse(call.parts.node.tenants())


def create_tenant(call: ApiRequest) -> response_types.TenantsResponse:
    """Create a tenant."""
    node = call.parts.node
    node.create_tenant(call.body.name)
    _record_action(call, "create tenant", tenant=call.body.name)
    return response_types.TenantsResponse(node.tenants())


def config(call: ApiRequest) -> response_types.Config:
    """Return every setting with its value and the origin of the value."""
    settings = call.parts.settings
    described = [] if settings is None else settings.describe()
    return response_types.Config([response_types.Setting(**one) for one in described])


def jobs(call: ApiRequest) -> response_types.Jobs:
    """Return the caller's hot rows by table, the last errors, and the newest job runs."""
    node, lake = call.parts.node, call.lake
    now_s = clock.monotonic()
    flushes = []
    for name in lake.tables():
        hot = lake.table(name).hot()
        rows = sum(part.batch.num_rows for part in hot.snapshot().parts)
        since_s = hot.hot_since_s
        hot_s = None if since_s is None else round(now_s - since_s, 3)
        flushes.append(response_types.FlushJob(name, rows, hot.buffer.size_bytes, hot_s))
    runs = _job_runs(call)
    flush_error, export_error = (
        None if error is None else problem_of(error, call.request_id)
        for error in node.errors_of(call.caller.tenant)
    )
    return response_types.Jobs(
        flushes,
        flush_error,
        export_error,
        node.tier.hot_bytes,
        node.tier.hot_bytes_max,
        runs,
        [] if runs else [NO_JOBS],
    )


def usage(call: ApiRequest) -> response_types.Usage:
    """Return what the caller's tenant uses, its quotas, and what they have refused."""
    tenant, lake = call.caller.tenant, call.lake
    quota = call.parts.quota.of(tenant)
    names = lake.tables()
    hot_bytes = sum(lake.table(name).hot().buffer.size_bytes for name in names)
    shares = {
        name: response_types.Use(one.use_of(tenant), one.held, one.total)
        for name, one in call.parts.shares.items()
    }
    return response_types.Usage(
        tenant=tenant,
        queries=quota.queries,
        tables=len(names),
        hot_bytes=hot_bytes,
        quotas=asdict(quota.settings),
        refused=dict(quota.refusals),
        shares=shares,
    )


def _job_runs(call: ApiRequest) -> list[response_types.JobRun]:
    try:
        table = call.lake.table(HISTORY)
    except NotFound:
        return []
    return [
        response_types.JobRun(
            started_at=format_instant(from_datetime(row["started_at"])),
            job=row["job"],
            table=row["table_name"],
            state=row["state"],
            took_ms=row["took_ms"],
            version=row["version"],
            numbers=msgspec.json.decode(row["numbers"] or "{}"),
            error_code=row["error_code"],
            error_message=row["error_message"],
            master=row["master"],
        )
        for row in last_runs(table.cold, call.params.limit)
    ]


def live(call: ApiRequest) -> ApiResponse:
    """Report that the process answers."""
    return _health_response(call.parts.health.live())


def ready(call: ApiRequest) -> ApiResponse:
    """Report whether the node takes requests, and if not, why."""
    return _health_response(call.parts.health.check())


def startup(call: ApiRequest) -> ApiResponse:
    """Report whether the start is complete."""
    return _health_response(call.parts.health.startup())


def metrics(call: ApiRequest) -> ApiResponse:
    """Return the node's metrics for Prometheus."""
    return ApiResponse(call.parts.metrics.render(), media_type=CONTENT_TYPE)


def _health_response(report: HealthReport) -> ApiResponse:
    return ApiResponse(msgspec.json.encode(report.body()), report.status_code, JSON)


def _key_info(key: Key, used_ns: int | None) -> response_types.KeyInfo:
    return response_types.KeyInfo(
        key_id=key.key_id,
        tenant=key.tenant,
        scopes=sorted(key.scopes),
        state=key.state(clock.time_ns()),  # type: ignore[arg-type]  # it is one of the three
        note=key.note,
        created=format_instant(key.created_ns),
        expires=_time(key.expires_ns),
        revoked=_time(key.revoked_ns),
        last_used=_time(used_ns),
    )


def _time(time_ns: int | None) -> str | None:
    return None if time_ns is None else format_instant(time_ns)


def _record_action(call: ApiRequest, action: str, **facts: object) -> None:
    if call.parts.audit is not None:
        call.parts.audit.record_action(
            action, call.caller.key_id, request_id=call.request_id, **facts
        )
