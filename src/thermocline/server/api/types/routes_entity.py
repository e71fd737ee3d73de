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

from thermocline.server.api.types import request_types, response_types
from thermocline.server.api.types.route import EVERY_FORMAT, JSON, Call, Route

ENTITIES = "/api/v1/entities"
TYPE = f"{ENTITIES}/{{type}}"
ENTITY = f"{TYPE}/{{id}}"
MERGE_PATCH = "application/merge-patch+json"
WRITTEN = "When the answer arrives, the write is durable and visible to every later read."
WORTH = ("Thermocline-As-Of", "Thermocline-Warning")


def _late(module: str, name: str) -> Callable[[Call], Any]:
    """Return a handler that is imported at its first call."""

    def run(call: Call) -> Any:
        _ = call.lake.entities  # `Invalid` if the lake has no PostgreSQL
        return getattr(import_module(f"thermocline.server.api.{module}"), name)(call)

    return run


def contract_routes() -> Iterator[Route]:
    """Yield the routes of types and their contracts."""
    yield Route(
        "GET",
        ENTITIES,
        "query",
        "entity_types",
        "List the entity types",
        response_types.EntityTypes,
        run=_late("schema", "types"),
        errors=(503,),
    )
    looks: tuple[tuple[str, str, str, str, Any, type], ...] = (
        ("", "contract", "Return a version of a type's contract", "contract",
         response_types.Contract, request_types.VersionAsked),
        ("/versions", "contract_versions", "List every version of a contract", "versions",
         response_types.Contracts, request_types.Nothing),
        ("/tool", "contract_tool", "Return a contract as a tool for language models", "tool",
         dict, request_types.ToolAsked),
    )  # fmt: skip
    for path, name, summary, run, answer, asked in looks:
        yield Route(
            "GET",
            f"{TYPE}/schema{path}",
            "query",
            name,
            summary,
            answer,
            run=_late("schema", run),
            asked=asked,
            errors=(404, 503),
        )
    changes: tuple[tuple[str, str, str, str, Any, str], ...] = (
        ("", "register", "Register a contract, or its next version", "register",
         response_types.Contract, "admin"),
        ("/check", "check_contract", "Tell what registering a contract would do", "check",
         response_types.Checked, "query"),
    )  # fmt: skip
    for path, name, summary, run, answer, scope in changes:
        yield Route(
            "POST",
            f"{TYPE}/schema{path}",
            scope,
            name,
            summary,
            answer,
            run=_late("schema", run),
            body=dict,
            is_raw=True,
            errors=(409, 429, 503),
            description="The body is a JSON Schema, draft 2020-12. A refusal has `problems`, each "
            "with its `pointer` and `reason`.",
        )


def entity_routes() -> Iterator[Route]:
    """Yield the routes of entities."""
    yield from _many()
    yield from _looking()
    yield from _writing()


def _many() -> Iterator[Route]:
    page = "Read one page of entities: filter, sort, fields, references"
    reading: dict[str, Any] = {"errors": (404, 429, 501, 503)}
    yield Route(
        "GET", TYPE, "query", "entity_page", page, response_types.EntityPage, run=_late("entity", "page"),
        asked=request_types.PageAsked, **reading,
    )  # fmt: skip
    yield Route(
        "POST", f"{TYPE}/search", "query", "entity_search", page, response_types.EntityPage,
        run=_late("entity", "search"), body=request_types.Search, is_raw=True, **reading,
    )  # fmt: skip
    yield Route(
        "POST",
        f"{TYPE}/scan",
        "query",
        "entity_scan",
        "Read all rows of a type; an inexact answer says so",
        response_types.Rows,
        run=_late("entity", "scan"),
        body=request_types.Scan,
        forms=EVERY_FORMAT,
        errors=(404, 406, 429, 503),
        headers=(*WORTH, "Thermocline-Version"),
    )
    yield Route(
        "POST",
        f"{TYPE}/bulk",
        "ingest",
        "entity_bulk",
        "Write many entities: all or none, or each independently",
        response_types.BulkDone,
        run=_late("entity", "bulk"),
        body=request_types.Bulk,
        is_raw=True,
        errors=(404, 409, 412, 429, 503),
        description=f"{WRITTEN} With `atomic` a failure names its `item` and nothing is done.",
    )
    yield Route(
        "POST",
        f"{TYPE}/export",
        "admin",
        "entity_export",
        "Export every committed change into the lake",
        response_types.ExportDone,
        run=_late("entity", "export"),
        errors=(404, 409, 503),
    )


def _looking() -> Iterator[Route]:
    yield Route(
        "GET",
        ENTITY,
        "query",
        "entity",
        "Read an entity, now or as it was",
        response_types.EntityAnswer,
        run=_late("entity", "read"),
        asked=request_types.EntityAsked,
        errors=(304, 404, 503),
        headers=("ETag", *WORTH),
        asked_headers=("If-None-Match",),
    )
    yield Route(
        "GET",
        f"{ENTITY}/history",
        "query",
        "entity_history",
        "List an entity's revisions: at each export, and now",
        response_types.Revisions,
        run=_late("entity", "history"),
        errors=(404, 503),
    )


def _writing() -> Iterator[Route]:
    writing: dict[str, Any] = {"is_raw": True, "body": dict, "description": WRITTEN}
    yield Route(
        "POST",
        TYPE,
        "ingest",
        "entity_create",
        "Create an entity",
        response_types.EntityWritten,
        run=_late("entity", "create"),
        asked=request_types.CreateAsked,
        status=201,
        errors=(404, 409, 429, 503),
        headers=("ETag", "Location"),
        **writing,
    )
    yield Route(
        "PUT",
        ENTITY,
        "ingest",
        "entity_replace",
        "Replace an entity's document, or create the entity",
        response_types.EntityWritten,
        run=_late("entity", "replace"),
        errors=(201, 404, 409, 412, 429, 503),
        headers=("ETag",),
        asked_headers=("If-Match", "If-None-Match"),
        **writing,
    )
    yield Route(
        "PATCH",
        ENTITY,
        "ingest",
        "entity_patch",
        "Merge a patch (RFC 7386) into an entity",
        response_types.EntityWritten,
        run=_late("entity", "patch"),
        body_types=(MERGE_PATCH, JSON),
        errors=(404, 409, 412, 429, 503),
        headers=("ETag",),
        asked_headers=("If-Match",),
        **writing,
    )
    yield Route(
        "DELETE",
        ENTITY,
        "ingest",
        "entity_delete",
        "Delete an entity",
        response_types.EntityWritten,
        run=_late("entity", "delete"),
        errors=(404, 409, 412, 429, 503),
        asked_headers=("If-Match",),
        description=WRITTEN,
    )
