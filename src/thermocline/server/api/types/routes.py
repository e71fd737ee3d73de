"""Every route of the API, as data.

In:   the handler functions
Out:  `ROUTES`, which the router, the guard and the OpenAPI document use
"""

from collections.abc import Iterator
from typing import Any

from thermocline.server.api.handle import admin, page, query, table, table_writes
from thermocline.server.api.types import request_types, response_types
from thermocline.server.api.types.route import API, EVERY_FORMAT, ApiRoute
from thermocline.server.api.types.routes_console import console_routes
from thermocline.server.api.types.routes_entity import contract_routes, entity_routes
from thermocline.server.observe.metrics import CONTENT_TYPE

TABLE = f"{API}/tables/{{name}}"
ROW_WAIT = "When the answer arrives, the change is durable and visible to every later query."


def _query_routes() -> Iterator[ApiRoute]:
    yield ApiRoute(
        "POST",
        f"{API}/query",
        "query",
        "query",
        "Run one SELECT and stream its answer",
        response_types.RowsResponse,
        stream=query.query,
        body=request_types.QueryRequest,
        forms=EVERY_FORMAT,
        errors=(404, 406, 409, 429, 503, 504),
        headers=("X-Query-Id", "X-Thermocline-Report", "X-Thermocline-Truncated"),
        description="Hot and cold rows alike. An error after the first byte ends the connection "
        "without the body's end; `GET /api/v1/queries/{query_id}` returns the error.",
    )
    yield ApiRoute(
        "GET",
        f"{API}/queries",
        "query",
        "queries",
        "List the queries that run",
        response_types.Queries,
        run=query.queries,
    )
    one = f"{API}/queries/{{query_id}}"
    yield ApiRoute(
        "GET",
        one,
        "query",
        "query_state",
        "Tell whether a query runs, or how it failed",
        response_types.QueryState,
        run=query.query_state,
        errors=(404,),
    )
    yield ApiRoute(
        "DELETE",
        one,
        "query",
        "cancel",
        "End a query within a second",
        None,
        run=query.cancel,
        status=204,
        errors=(404,),
    )


def _table_routes() -> Iterator[ApiRoute]:
    yield ApiRoute(
        "GET",
        f"{API}/tables",
        "query",
        "tables",
        "List the tables",
        response_types.Tables,
        run=table.tables,
    )
    looks: tuple[tuple[str, str, str, Any, Any, type], ...] = (
        ("", "table", "Return a table's properties and contents", table.table,
         response_types.TableInfo,
         request_types.AtParams),
        ("/ratio", "ratio", "Return the share of buckets that are held", table.ratio,
         response_types.Ratio,
         request_types.StretchParams),
        ("/window", "window", "Find the newest window that is held in full", table.window,
         response_types.WindowResponse, request_types.WindowParams),
        ("/diff", "diff", "Return the changes between two versions", table.diff,
         response_types.DiffResponse,
         request_types.DiffParams),
    )  # fmt: skip
    for path, name, summary, run, answer, asked in looks:
        yield ApiRoute(
            "GET",
            TABLE + path,
            "query",
            name,
            summary,
            answer,
            run=run,
            params_type=asked,
            errors=(404,),
        )
    rows: tuple[tuple[str, str, Any, type], ...] = (
        ("schema", "List the columns; the rows are empty", table.schema, request_types.AtParams),
        ("coverage", "List the stretches of time that are held", table.coverage,
         request_types.CoverageParams),
        ("gaps", "List the stretches of time that are missing", table.gaps,
         request_types.StretchParams),
        ("silent", "List the entities without a row in a stretch", table.silent,
         request_types.SilentParams),
        ("history", "List the commits, the newest first", table.history,
         request_types.HistoryParams),
        ("holes", "List writes that were lost before their flush", table.holes,
         request_types.NoParams),
    )  # fmt: skip
    for name, summary, run, asked in rows:
        yield ApiRoute(
            "GET",
            f"{TABLE}/{name}",
            "query",
            name,
            summary,
            response_types.RowsResponse,
            run=run,
            params_type=asked,
            forms=EVERY_FORMAT,
            errors=(404, 406, 429),
            headers=("X-Thermocline-Truncated",),
        )


def _change_routes() -> Iterator[ApiRoute]:
    yield ApiRoute(
        "POST",
        f"{API}/tables",
        "admin",
        "create_table",
        "Make a table",
        response_types.TableInfo,
        run=table.create_table,
        body=request_types.NewTableRequest,
        status=201,
        errors=(409, 429),
    )
    changes: tuple[tuple[str, str, Any, type, Any], ...] = (
        ("delete", "Delete rows by a condition or a stretch", table_writes.delete,
         request_types.DeleteRequest,
         response_types.ChangedResponse),
        ("restore", "Restore a table to a version or an instant", table_writes.restore,
         request_types.RestoreRequest,
         response_types.ChangedResponse),
        ("retain", "Delete the rows past the retention", table_writes.retain,
         request_types.RetainRequest,
         response_types.ChangedResponse),
        ("vacuum", "Remove files that no kept version names", table_writes.vacuum,
         request_types.VacuumRequest,
         response_types.VacuumedResponse),
    )  # fmt: skip
    for name, summary, run, body, answer in changes:
        yield ApiRoute(
            "POST",
            f"{TABLE}/{name}",
            "admin",
            name,
            summary,
            answer,
            run=run,
            body=body,
            errors=(404, 409, 503),
            description=ROW_WAIT,
        )


def _row_routes() -> Iterator[ApiRoute]:
    yield ApiRoute(
        "POST",
        f"{TABLE}/rows",
        "ingest",
        "write_rows",
        "Write rows, all of them or none",
        response_types.WrittenResponse,
        stream=table_writes.write_rows,
        params_type=request_types.RowsParams,
        body_types=table_writes.ROW_TYPES,
        errors=(404, 408, 409, 413, 415, 429, 503),
        request_headers=("Idempotency-Key",),
        description=f"{ROW_WAIT} An `Idempotency-Key` header makes a resend a no-op.",
    )
    for name, summary, stream in (
        ("update", "Give rows new values by their keys", table_writes.update_rows),
        ("upsert", "Update rows by their keys, and insert the others", table_writes.upsert_rows),
    ):
        yield ApiRoute(
            "POST",
            f"{TABLE}/{name}",
            "admin",
            f"{name}_rows",
            summary,
            response_types.UpdatedResponse,
            stream=stream,
            params_type=request_types.UpdateParams,
            body_types=table_writes.ROW_TYPES,
            errors=(404, 408, 409, 413, 415, 429, 503),
            description="Hot rows are flushed first. A key is the entity columns and the index.",
        )
    for path, name, summary, run in (
        (f"{TABLE}/flush", "flush_table", "Flush a table's hot rows into the lake",
         table_writes.flush_table),
        (f"{API}/flush", "flush", "Flush the hot rows of all tables into the lake",
         table_writes.flush),
    ):  # fmt: skip
        yield ApiRoute(
            "POST",
            path,
            "ingest",
            name,
            summary,
            response_types.Flushed,
            run=run,
            errors=(404, 503),
        )


def _admin_routes() -> Iterator[ApiRoute]:
    admin_only: dict[str, Any] = {"is_operator_only": True}
    rows: tuple[tuple[str, str, str, str, Any, Any, dict[str, Any]], ...] = (
        ("GET", f"{API}/keys", "keys", "List keys, without their secrets",
         response_types.KeysResponse,
         admin.keys, {}),
        ("POST", f"{API}/keys", "create_key", "Make a key; its text is shown once",
         response_types.MadeKey, admin.create_key,
         {"body": request_types.NewKeyRequest, "status": 201, "errors": (404, 429)}),
        ("DELETE", f"{API}/keys/{{key_id}}", "revoke_key", "Revoke a key", None,
         admin.revoke_key, {"status": 204, "errors": (404,)}),
        ("GET", f"{API}/tenants", "tenants", "List the tenants", response_types.TenantsResponse,
         admin.tenants, admin_only),
        ("POST", f"{API}/tenants", "create_tenant", "Make a tenant", response_types.TenantsResponse,
         admin.create_tenant,
         {"body": request_types.NewTenantRequest, "status": 201, "errors": (409,)} | admin_only),
        ("GET", f"{API}/config", "config", "List every setting and who set it",
         response_types.Config,
         admin.config, admin_only),
    )  # fmt: skip
    for method, path, name, summary, answer, run, more in rows:
        yield ApiRoute(method, path, "admin", name, summary, answer, run=run, **more)
    yield ApiRoute(
        "GET",
        f"{API}/jobs",
        "query",
        "jobs",
        "Tell what is hot, whether flushes fail, and what jobs did",
        response_types.Jobs,
        run=admin.jobs,
        params_type=request_types.JobsParams,
        description="The newest rows of the table `pipeline_jobs`, which SQL reads as well.",
    )
    yield ApiRoute(
        "GET",
        "/metrics",
        "query",
        "metrics",
        "The node's numbers, for Prometheus",
        bytes,
        run=admin.metrics,
        forms=(CONTENT_TYPE.split(";")[0],),
        is_operator_only=True,
    )


def _public_routes() -> Iterator[ApiRoute]:
    """Yield the routes without a scope: they disclose no tenant's data."""
    for name, summary, run in (
        ("live", "Whether the process answers", admin.live),
        ("ready", "Whether requests are taken, and if not, why", admin.ready),
        ("startup", "Whether the start is over", admin.startup),
    ):
        yield ApiRoute(
            "GET", f"/health/{name}", None, f"health_{name}", summary, dict, run=run, errors=(503,)
        )
    yield ApiRoute(
        "GET",
        f"{API}/openapi.json",
        None,
        "openapi",
        "This document",
        dict,
        run=page.document,
    )
    for path, name, media in (
        ("/api/docs", "docs", "text/html"),
        ("/api/docs.css", "docs_style", "text/css"),
        ("/api/docs.js", "docs_script", "text/javascript"),
    ):
        yield ApiRoute(
            "GET", path, None, name, "The API as a page", bytes, run=page.asset, forms=(media,)
        )


ROUTES: tuple[ApiRoute, ...] = (
    *_query_routes(),
    *_table_routes(),
    *_row_routes(),
    *_change_routes(),
    *contract_routes(),
    *entity_routes(),
    *_admin_routes(),
    *console_routes(),
    *_public_routes(),
)
