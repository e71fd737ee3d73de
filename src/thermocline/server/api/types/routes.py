"""Every route of the API, as data.

In:   the handler functions
Out:  `ROUTES`, which the router, the guard and the OpenAPI document use

- `bulk`, `search`, `scan` and `export` below a type are reserved for POST only; with other methods
  they address entities with those ids. `GET .../schema` returns the contract, so an entity with id
  `schema` is only reachable through search.
- The libraries of entities are loaded when a request needs them: a node without entities serves
  without them.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from thermocline.server.api.handle import (
    admin,
    alerts,
    api_docs,
    between_nodes,
    blocks,
    console,
    entity,
    feed,
    freshness,
    promql,
    query,
    table,
    table_writes,
    tail,
)
from thermocline.server.api.types import request_types, response_types
from thermocline.server.api.types.route import (
    API,
    EVERY_FORMAT,
    JSON,
    PROMETHEUS,
    ApiRequest,
    ApiRoute,
)
from thermocline.server.console.asset import MEDIA_TYPES
from thermocline.server.observe.metrics import CONTENT_TYPE

TABLE = f"{API}/tables/{{name}}"
ROW_WAIT = "When the answer arrives, the change is durable and visible to every later query."
ENTITIES = f"{API}/entities"
TYPE = f"{ENTITIES}/{{type}}"
ENTITY = f"{TYPE}/{{id}}"
MERGE_PATCH = "application/merge-patch+json"
WRITTEN = "When the answer arrives, the write is durable and visible to every later read."
WORTH = ("Thermocline-As-Of", "Thermocline-Warning")


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
        ("retention", "Set how long a table keeps its rows", table_writes.set_retention,
         request_types.RetentionRequest,
         response_types.ChangedResponse),
        ("compact", "Rewrite small segments as few large ones", table_writes.compact,
         request_types.CompactRequest,
         response_types.CompactedResponse),
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


def _tail_routes() -> Iterator[ApiRoute]:
    yield ApiRoute(
        "GET",
        f"{TABLE}/tail",
        "query",
        "tail",
        "Send rows as they become durable, as server-sent events",
        bytes,
        stream=tail.tail,
        params_type=request_types.TailParams,
        forms=(tail.MEDIA_TYPE,),
        errors=(404, 429, 503),
        description="Events `rows` have JSON lines; the event `end` says why the stream ends. A "
        "client that reads too slowly gets `end` with the reason `slow`, never a gap.",
    )


def _alert_routes() -> Iterator[ApiRoute]:
    yield ApiRoute(
        "GET",
        f"{API}/alerts",
        "query",
        "alerts",
        "List the rules of alerts with their states",
        alerts.Alerts,
        run=alerts.alerts,
        errors=(429, 503),
    )
    one = f"{API}/alerts/rules/{{rule}}"
    yield ApiRoute(
        "PUT",
        one,
        "admin",
        "put_alert_rule",
        "Set a rule of alerts",
        alerts.RuleAnswer,
        run=alerts.put_alert_rule,
        body=request_types.RuleRequest,
        errors=(409, 429, 501, 503),
        description="When the answer arrives, the rule is durable; the node evaluates it within "
        "seconds.",
    )
    yield ApiRoute(
        "DELETE",
        one,
        "admin",
        "remove_alert_rule",
        "Remove a rule of alerts",
        None,
        run=alerts.remove_alert_rule,
        status=204,
        errors=(404, 409, 429, 503),
    )
    yield ApiRoute(
        "POST",
        f"{API}/alerts/test",
        "query",
        "test_alert_rule",
        "Run a rule of alerts over the past",
        response_types.RowsResponse,
        run=alerts.run_alert_test,
        body=request_types.RuleTestRequest,
        forms=EVERY_FORMAT,
        errors=(404, 406, 409, 429, 501, 503),
        headers=("X-Thermocline-Truncated",),
        description="Nothing is stored or sent.",
    )
    yield ApiRoute(
        "GET",
        f"{API}/alerts/signing_key",
        "admin",
        "signing_key",
        "Return the key that signs webhooks",
        alerts.SigningKey,
        run=alerts.signing_key,
    )


def _verb_routes() -> Iterator[ApiRoute]:
    verbs: tuple[tuple[str, str, Any, type, int], ...] = (
        ("rename", "Give a table another name", table.rename_table,
         request_types.RenameTableRequest, 200),
        ("copy", "Make a new table with the rows of another", table.copy_table,
         request_types.CopyTableRequest, 201),
        ("undrop", "Bring back a dropped table", table.undrop_table,
         request_types.UndropTableRequest, 200),
    )  # fmt: skip
    for name, summary, run, body, status in verbs:
        yield ApiRoute(
            "POST",
            f"{TABLE}/{name}",
            "admin",
            f"{name}_table",
            summary,
            response_types.TableInfo,
            run=run,
            body=body,
            status=status,
            errors=(404, 409, 429, 503),
        )
    yield ApiRoute(
        "DELETE",
        TABLE,
        "admin",
        "drop_table",
        "Drop a table; it can be brought back until a vacuum",
        None,
        run=table.drop_table,
        status=204,
        errors=(404, 409, 429, 503),
        description="Hot rows are flushed first. Queries that run read on.",
    )
    yield ApiRoute(
        "GET",
        f"{API}/dropped",
        "query",
        "dropped_tables",
        "List the dropped tables that can be brought back",
        response_types.RowsResponse,
        run=table.dropped_tables,
        forms=EVERY_FORMAT,
        errors=(406, 429),
        headers=("X-Thermocline-Truncated",),
    )
    yield ApiRoute(
        "POST",
        f"{API}/dropped/vacuum",
        "admin",
        "vacuum_dropped",
        "Remove the files of dropped tables",
        response_types.PurgedResponse,
        run=table.vacuum_dropped,
        body=request_types.VacuumRequest,
        errors=(503,),
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


def _lazy_handler(name: str) -> Callable[[ApiRequest], Any]:
    """Return a handler of contracts that is imported at its first call."""

    def run(call: ApiRequest) -> Any:
        _ = call.lake.entities  # `Invalid` if the lake has no PostgreSQL
        return getattr(import_module("thermocline.server.api.handle.schema"), name)(call)

    return run


def _contract_routes() -> Iterator[ApiRoute]:
    yield ApiRoute(
        "GET",
        ENTITIES,
        "query",
        "entity_types",
        "List the entity types",
        response_types.EntityTypesResponse,
        run=_lazy_handler("types"),
        errors=(503,),
    )
    looks: tuple[tuple[str, str, str, str, Any, type], ...] = (
        ("", "contract", "Return a version of a type's contract", "contract",
         response_types.ContractResponse, request_types.VersionParams),
        ("/versions", "contract_versions", "List every version of a contract", "versions",
         response_types.Contracts, request_types.NoParams),
        ("/tool", "contract_tool", "Return a contract as a tool for language models", "tool",
         dict, request_types.ToolParams),
    )  # fmt: skip
    for path, name, summary, run, answer, asked in looks:
        yield ApiRoute(
            "GET",
            f"{TYPE}/schema{path}",
            "query",
            name,
            summary,
            answer,
            run=_lazy_handler(run),
            params_type=asked,
            errors=(404, 503),
        )
    changes: tuple[tuple[str, str, str, str, Any, str], ...] = (
        ("", "register", "Register a contract, or its next version", "register",
         response_types.ContractResponse, "admin"),
        ("/check", "check_contract", "Tell what registering a contract would do", "check",
         response_types.CheckedResponse, "query"),
    )  # fmt: skip
    for path, name, summary, run, answer, scope in changes:
        yield ApiRoute(
            "POST",
            f"{TYPE}/schema{path}",
            scope,
            name,
            summary,
            answer,
            run=_lazy_handler(run),
            body=dict,
            is_raw=True,
            errors=(409, 429, 503),
            description="The body is a JSON Schema, draft 2020-12. A refusal has `problems`, each "
            "with its `pointer` and `reason`.",
        )


def _collection_routes() -> Iterator[ApiRoute]:
    page = "Read one page of entities: filter, sort, fields, references"
    reading: dict[str, Any] = {"errors": (404, 429, 501, 503)}
    yield ApiRoute(
        "GET", TYPE, "query", "entity_page", page, response_types.EntityPage,
        run=entity.page,
        params_type=request_types.PageParams, **reading,
    )  # fmt: skip
    yield ApiRoute(
        "POST", f"{TYPE}/search", "query", "entity_search", page, response_types.EntityPage,
        run=entity.search, body=request_types.SearchRequest, is_raw=True,
        **reading,
    )  # fmt: skip
    yield ApiRoute(
        "POST",
        f"{TYPE}/scan",
        "query",
        "entity_scan",
        "Read all rows of a type; an inexact answer says so",
        response_types.RowsResponse,
        run=entity.scan,
        body=request_types.ScanRequest,
        forms=EVERY_FORMAT,
        errors=(404, 406, 429, 503),
        headers=(*WORTH, "Thermocline-Version"),
    )
    yield ApiRoute(
        "POST",
        f"{TYPE}/bulk",
        "ingest",
        "entity_bulk",
        "Write many entities: all or none, or each independently",
        response_types.BulkDone,
        run=entity.bulk,
        body=request_types.BulkRequest,
        is_raw=True,
        errors=(404, 409, 412, 429, 503),
        request_headers=("Idempotency-Key",),
        description=f"{WRITTEN} With `atomic` a failure names its `item` and nothing is done.",
    )
    yield ApiRoute(
        "POST",
        f"{TYPE}/export",
        "admin",
        "entity_export",
        "Export every committed change into the lake",
        response_types.ExportDone,
        run=entity.export,
        errors=(404, 409, 503),
    )


def _entity_read_routes() -> Iterator[ApiRoute]:
    yield ApiRoute(
        "GET",
        ENTITY,
        "query",
        "entity",
        "Read an entity, now or as it was",
        response_types.EntityAnswerResponse,
        run=entity.read,
        params_type=request_types.EntityParams,
        errors=(304, 404, 503),
        headers=("ETag", *WORTH),
        request_headers=("If-None-Match",),
    )
    yield ApiRoute(
        "GET",
        f"{ENTITY}/history",
        "query",
        "entity_history",
        "List every recorded change of an entity, or the one of an instant",
        response_types.Revisions,
        run=entity.history,
        params_type=request_types.RevisionParams,
        errors=(404, 503),
    )
    yield ApiRoute(
        "GET",
        f"{ENTITY}/diff",
        "query",
        "entity_diff",
        "Compare two versions of an entity",
        response_types.EntityDiff,
        run=entity.diff,
        params_type=request_types.DiffVersionParams,
        errors=(404, 503),
    )

    yield ApiRoute(
        "POST",
        f"{TYPE}/history",
        "admin",
        "entity_keep_history",
        "Set for how long the changes of a type are kept",
        response_types.HistoryKept,
        run=entity.keep_history,
        body=request_types.KeepHistoryRequest,
        errors=(404, 503),
    )


def _feed_routes() -> Iterator[ApiRoute]:
    yield ApiRoute(
        "POST",
        f"{API}/transaction",
        "ingest",
        "transaction",
        "Write entities of several types: all or none",
        response_types.BulkDone,
        run=entity.transact,
        body=request_types.TransactionRequest,
        is_raw=True,
        errors=(404, 409, 412, 429, 503),
        request_headers=("Idempotency-Key",),
        description=f"{WRITTEN} A failure names its `item` and nothing is done.",
    )
    yield ApiRoute(
        "GET",
        f"{API}/feed",
        "query",
        "feed",
        "Read the next committed changes of entities; wait for one",
        response_types.Changes,
        stream=feed.changes,
        params_type=request_types.FeedParams,
        errors=(404, 410, 429, 503),
        description="Each change after the position comes exactly once, in one order. 410: changes "
        "after the position are no longer kept; begin with a snapshot.",
    )
    yield ApiRoute(
        "GET",
        f"{API}/feed/stream",
        "query",
        "feed_stream",
        "Follow the committed changes of entities as server-sent events",
        bytes,
        stream=feed.events,
        params_type=request_types.FeedStreamParams,
        forms=(feed.EVENT_STREAM,),
        errors=(404, 410, 429, 503),
        request_headers=("Last-Event-ID",),
        description="The id of an event is its position; `data` is a change as in `feed`.",
    )
    yield ApiRoute(
        "GET",
        f"{API}/feed/position",
        "query",
        "feed_position",
        "Return the position of now in the feed",
        response_types.FeedPlace,
        run=feed.position,
        errors=(503,),
    )


def _entity_write_routes() -> Iterator[ApiRoute]:
    writing: dict[str, Any] = {"is_raw": True, "body": dict, "description": WRITTEN}
    yield ApiRoute(
        "POST",
        TYPE,
        "ingest",
        "entity_create",
        "Create an entity",
        response_types.EntityWritten,
        run=entity.create,
        params_type=request_types.CreateParams,
        status=201,
        errors=(404, 409, 429, 503),
        headers=("ETag", "Location"),
        request_headers=("Idempotency-Key",),
        **writing,
    )
    yield ApiRoute(
        "PUT",
        ENTITY,
        "ingest",
        "entity_replace",
        "Replace an entity's document, or create the entity",
        response_types.EntityWritten,
        run=entity.replace,
        errors=(201, 404, 409, 412, 429, 503),
        headers=("ETag",),
        request_headers=("If-Match", "If-None-Match", "Idempotency-Key"),
        **writing,
    )
    yield ApiRoute(
        "PATCH",
        ENTITY,
        "ingest",
        "entity_patch",
        "Merge a patch (RFC 7386) into an entity",
        response_types.EntityWritten,
        run=entity.patch,
        params_type=request_types.PatchParams,
        body_types=(MERGE_PATCH, JSON),
        errors=(201, 404, 409, 412, 429, 503),
        headers=("ETag",),
        request_headers=("If-Match", "Idempotency-Key"),
        **writing,
    )
    yield ApiRoute(
        "DELETE",
        ENTITY,
        "ingest",
        "entity_delete",
        "Delete an entity",
        response_types.EntityWritten,
        run=entity.delete,
        errors=(404, 409, 412, 429, 503),
        request_headers=("If-Match", "Idempotency-Key"),
        description=WRITTEN,
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
        f"{API}/usage",
        "query",
        "usage",
        "Tell what the tenant uses, its quotas, and what they have refused",
        response_types.Usage,
        run=admin.usage,
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


def _console_routes() -> Iterator[ApiRoute]:
    """Yield the routes of the console: its files, and data that no other client needs."""
    yield ApiRoute(
        "GET",
        "/",
        None,
        "console",
        "The console",
        bytes,
        run=console.page,
        forms=("text/html",),
        errors=(304,),
    )
    yield ApiRoute(
        "GET",
        "/console/{file}",
        None,
        "console_file",
        "A file of the console",
        bytes,
        run=console.file,
        forms=MEDIA_TYPES,
        errors=(304, 404),
    )
    yield ApiRoute(
        "GET",
        f"{API}/words",
        "query",
        "words",
        "List the tables, columns and functions that a query may name",
        console.Words,
        run=console.words,
    )
    yield ApiRoute(
        "GET",
        f"{API}/freshness",
        "query",
        "freshness",
        "Tell how fresh each table is, stage by stage",
        freshness.Freshness,
        run=freshness.freshness,
        params_type=request_types.NoParams,
        errors=(503,),
    )
    yield ApiRoute(
        "GET",
        f"{API}/tables/{{name}}/blocks",
        "query",
        "blocks",
        "Tell coverage as blocks, entity by time: held, missing, unflushed",
        blocks.Blocks,
        run=blocks.blocks,
        params_type=blocks.BlocksParams,
        errors=(404, 503),
    )


def _prometheus_routes() -> Iterator[ApiRoute]:
    """Yield Prometheus' routes for queries; the parameters are in the address or in a form."""
    base = f"{API}/prom/api/v1"
    shared: dict[str, Any] = {
        "params_type": request_types.PrometheusParams,
        "error_form": PROMETHEUS,
        "errors": (404, 429, 501, 503, 504),
    }
    for path, name, summary, stream in (
        ("query", "query", "Evaluate PromQL at one time", promql.query),
        ("query_range", "query_range", "Evaluate PromQL at the steps of a range",
         promql.query_range),
        ("series", "series", "List the series that match", promql.series),
        ("labels", "labels", "List the names of labels", promql.labels),
    ):  # fmt: skip
        for method, way in (("GET", ""), ("POST", "_form")):
            yield ApiRoute(
                method, f"{base}/{path}", "query", f"prometheus_{name}{way}", summary, dict,
                stream=stream, body_types=(promql.FORM,), **shared,
            )  # fmt: skip
    for path, name, summary, stream in (
        ("label/{label}/values", "label_values", "List the values of a label",
         promql.label_values),
        ("metadata", "metadata", "List the metrics with their type and unit", promql.metadata),
    ):  # fmt: skip
        yield ApiRoute(
            "GET", f"{base}/{path}", "query", f"prometheus_{name}", summary, dict,
            stream=stream, **shared,
        )  # fmt: skip
    yield ApiRoute(
        "GET", f"{base}/status/buildinfo", "query", "prometheus_buildinfo",
        "Tell which Prometheus the routes are like", dict, run=promql.build_info,
        error_form=PROMETHEUS,
    )  # fmt: skip


def _node_routes() -> Iterator[ApiRoute]:
    """Yield the routes for other nodes of the same lake, which check the node's token."""
    yield ApiRoute(
        "POST",
        f"{API}/node/hot",
        None,
        "node_hot",
        "Hot rows of a table, for another node of the lake",
        bytes,
        run=between_nodes.hot,
        body=request_types.HotRequest,
        forms=(between_nodes.MEDIA_TYPE,),
        errors=(404, 503),
        is_between_nodes=True,
    )
    yield ApiRoute(
        "POST",
        f"{API}/node/flush",
        None,
        "node_flush",
        "Flush a table, for another node of the lake",
        None,
        run=between_nodes.flush,
        body=request_types.HotRequest,
        status=204,
        errors=(404, 503),
        is_between_nodes=True,
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
        run=api_docs.document,
    )
    for path, name, media in (
        ("/api/docs", "docs", "text/html"),
        ("/api/docs.css", "docs_style", "text/css"),
        ("/api/docs.js", "docs_script", "text/javascript"),
    ):
        yield ApiRoute(
            "GET", path, None, name, "The API as a page", bytes, run=api_docs.asset, forms=(media,)
        )


ROUTES: tuple[ApiRoute, ...] = (
    *_query_routes(),
    *_prometheus_routes(),
    *_table_routes(),
    *_row_routes(),
    *_change_routes(),
    *_verb_routes(),
    *_tail_routes(),
    *_alert_routes(),
    *_contract_routes(),
    *_collection_routes(),
    *_feed_routes(),
    *_entity_read_routes(),
    *_entity_write_routes(),
    *_admin_routes(),
    *_console_routes(),
    *_node_routes(),
    *_public_routes(),
)
