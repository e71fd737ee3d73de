"""Generates the OpenAPI 3.1 document from the table of routes.

In:   `ROUTES` and the types of `request_types.py` and `response_types.py`
Out:  the document as JSON, with nothing written by hand
"""

import re
from functools import cache
from typing import Any

import msgspec

from thermocline import __version__
from thermocline.server.api.http.problem import PROBLEM_TYPE, TITLES
from thermocline.server.api.types.response_types import ProblemResponse
from thermocline.server.api.types.route import JSON, PROMETHEUS, ApiRoute
from thermocline.server.api.types.routes import ROUTES

REF = "#/components/schemas/{name}"
BINARY = {"type": "string", "contentMediaType": "application/octet-stream"}
TEXT = {"type": "string"}
OBJECT = {"type": "object"}
ANY_ROWS = {"anyOf": [{"type": "array", "items": OBJECT}, OBJECT]}
PROMETHEUS_ERROR = {
    "type": "object",
    "required": ["status", "errorType", "error"],
    "properties": {"status": {"const": "error"}, "errorType": TEXT, "error": TEXT},
}
_PARAMETER = re.compile(r"\{(\w+)\}")
HEADERS = {
    "X-Query-Id": "the id of the query, to cancel it by",
    "X-Thermocline-Report": "the tables that the query read, as JSON: version, freshness, rows",
    "X-Thermocline-Truncated": "whether there are more rows than were asked for",
    "ETag": "the version of the entity, for If-Match",
    "Location": "the address of the entity",
    "Thermocline-As-Of": "the answer has every change committed by this instant",
    "Thermocline-Version": "the version of the lake, if the answer was read from it",
    "Thermocline-Warning": "why the answer may lack later changes",
}
ASKED_HEADERS: dict[str, dict[str, Any]] = {
    "Idempotency-Key": {
        "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"}
    },
    "Last-Event-ID": {
        "description": "the id of the last event that the client has, as browsers send it",
        "schema": {"type": "string", "maxLength": 20_000},
    },
    "If-Match": {
        "description": "the version that the entity must have, as in `ETag`",
        "schema": {"type": "string", "pattern": '^"[0-9]{1,18}"$'},
    },
    "If-None-Match": {
        "description": "a version that the client has; on PUT `*`: the entity must not exist",
        "schema": {"type": "string", "pattern": '^("[0-9]{1,18}"|\\*)$'},
    },
}


@cache
def document_bytes() -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(document(ROUTES))


def document(routes: tuple[ApiRoute, ...]) -> dict[str, Any]:
    """Return the document of these routes."""
    types = [ProblemResponse, *{t for route in routes for t in _types(route)}]
    found, components = msgspec.json.schema_components(types, ref_template=REF)
    schemas = dict(zip(types, found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, schemas, components)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    asked = {route.params_type.__name__ for route in routes}
    kept = {name: schema for name, schema in components.items() if name not in asked}
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Thermocline",
            "version": __version__,
            "summary": "Hot rows and cold ones in one SQL, exactly once.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": kept,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "bearerFormat": "tck_<id>_<secret>"}
            },
        },
    }
    return _publish_names(whole, kept)


def _publish_names(whole: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """Return the document with components that are named without `Request` and `Response`.

    Clients generate their types from these names, so they stay when our classes are renamed.
    """
    published = {name: name.removesuffix("Response").removesuffix("Request") for name in components}
    references = {REF.format(name=old): REF.format(name=new) for old, new in published.items()}

    def rename_references(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: rename_references(value) for key, value in node.items()}
        if isinstance(node, list):
            return [rename_references(value) for value in node]
        return references.get(node, node) if isinstance(node, str) else node

    schemas = {published[name]: rename_references(schema) for name, schema in components.items()}
    whole["components"]["schemas"] = schemas
    return {**rename_references(whole), "components": whole["components"]}


def _types(route: ApiRoute) -> list[Any]:
    given = [route.body, route.answer, route.params_type]
    return [t for t in given if isinstance(t, type) and issubclass(t, msgspec.Struct)]


def _operation(
    route: ApiRoute, schemas: dict[Any, Any], components: dict[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "x-scope": route.scope,
        "security": [] if route.scope is None else [{"key": []}],
    }
    if route.is_operator_only:
        operation["x-operator-only"] = True
    if route.description:
        operation["description"] = route.description
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    parameters += _query_parameters(components[route.params_type.__name__])
    parameters += [
        {"name": name, "in": "header", **ASKED_HEADERS[name]} for name in route.request_headers
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schema = schemas.get(route.body, OBJECT)
        content = {media: {"schema": schema} for media in route.body_types}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.stream is not None and route.method != "GET":
        content = {media: {"schema": _media_schema(media, ANY_ROWS)} for media in route.body_types}
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = _responses(route, schemas)
    return operation


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(one)}
        for name, one in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema without null, which a query string cannot express."""
    if "anyOf" in schema:
        others = [one for one in schema["anyOf"] if one != {"type": "null"}]
        if len(others) == 1:
            return dict(others[0])
    return schema


def _responses(route: ApiRoute, schemas: dict[Any, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "done" if route.status == 204 else "the answer"}
    if route.status != 204:
        schema = schemas.get(route.answer, OBJECT)
        good["content"] = {media: {"schema": _media_schema(media, schema)} for media in route.forms}
    if route.headers:
        good["headers"] = {
            name: {"description": HEADERS[name], "schema": TEXT} for name in route.headers
        }
    errors = {400, *route.errors}
    errors |= {401, 403} if route.scope is not None else set()
    errors |= {413, 415} if route.body is not None else set()
    problem = {PROBLEM_TYPE: {"schema": schemas[ProblemResponse]}}
    if route.error_form == PROMETHEUS:
        problem = {JSON: {"schema": PROMETHEUS_ERROR}}
    responses = {str(route.status): good}
    if 304 in errors:
        errors.remove(304)
        responses["304"] = {"description": "the client has this version already"}
    if 201 in errors:
        errors.remove(201)
        responses["201"] = good
    for status in sorted(errors):
        responses[str(status)] = {"description": TITLES[status], "content": problem}
    if route.path.startswith("/health/"):
        responses["503"] = {"description": "the check fails", "content": {JSON: {"schema": OBJECT}}}
    responses["default"] = {"description": "an error", "content": problem}
    return responses


def _media_schema(media: str, schema: Any) -> Any:
    if media == JSON:
        return schema
    is_text = media.startswith("text/") or "json" in media
    return TEXT if is_text else BINARY
