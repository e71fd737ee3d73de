"""The routes of entities and their contracts, as data.

In:   the handler functions
Out:  routes for the table of all routes

- `bulk`, `search`, `scan` and `export` below a type are reserved for POST only; with other methods
  they address entities with those ids. `GET .../schema` returns the contract, so an entity with id
  `schema` is only reachable through search.
- The libraries of entities are loaded when a request needs them: a node without entities serves
  without them.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from thermocline.server.api.handle import entity
from thermocline.server.api.types import request_types, response_types
from thermocline.server.api.types.route import API, EVERY_FORMAT, JSON, ApiRequest, ApiRoute

ENTITIES = f"{API}/entities"
TYPE = f"{ENTITIES}/{{type}}"
ENTITY = f"{TYPE}/{{id}}"
MERGE_PATCH = "application/merge-patch+json"
WRITTEN = "When the answer arrives, the write is durable and visible to every later read."
WORTH = ("Thermocline-As-Of", "Thermocline-Warning")


def _lazy_handler(name: str) -> Callable[[ApiRequest], Any]:
    """Return a handler of contracts that is imported at its first call."""

    def run(call: ApiRequest) -> Any:
        _ = call.lake.entities  # `Invalid` if the lake has no PostgreSQL
        return getattr(import_module("thermocline.server.api.handle.schema"), name)(call)

    return run


def contract_routes() -> Iterator[ApiRoute]:
    """Yield the routes of types and their contracts."""
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


def entity_routes() -> Iterator[ApiRoute]:
    """Yield the routes of entities."""
    yield from _collection_routes()
    yield from _read_routes()
    yield from _write_routes()


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


def _read_routes() -> Iterator[ApiRoute]:
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
        "List an entity's revisions: at each export, and now",
        response_types.Revisions,
        run=entity.history,
        errors=(404, 503),
    )


def _write_routes() -> Iterator[ApiRoute]:
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
        request_headers=("If-Match", "If-None-Match"),
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
        body_types=(MERGE_PATCH, JSON),
        errors=(404, 409, 412, 429, 503),
        headers=("ETag",),
        request_headers=("If-Match",),
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
        request_headers=("If-Match",),
        description=WRITTEN,
    )
