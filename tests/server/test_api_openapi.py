"""The API's own description: it is valid, it is what routes do, and fuzzing breaks nothing."""

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from fixtures.api import make_prices, price, serving
from thermocline.server.api.types.openapi import document
from thermocline.server.api.types.routes import ROUTES

REPOSITORY = Path(__file__).parents[2]
EXAMPLES_MAX = 15
ENTITY_PATHS = ("/api/v1/entities", "/api/v1/transaction", "/api/v1/feed")


def breaks_nothing(context, response, case):
    """Fail on an error of the server, but for the one that a request's own time limit brings."""
    if response.status_code != 504:
        not_a_server_error(context, response, case)


CHECKS = (
    breaks_nothing,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    folder = tmp_path_factory.mktemp("node")
    with serving(folder, has_keys=True, query_timeout_s=5.0) as served:
        yield served


def make_prices_again(node):
    """Make the table unless it is there: a request of an earlier test may have dropped it."""
    with node.client() as client:
        if client.get("/api/v1/tables/prices").status_code == 404:
            make_prices(client)
            rows = json.dumps([price(hour) for hour in (0, 1, 4)])
            headers = {"Content-Type": "application/json"}
            client.post("/api/v1/tables/prices/rows", content=rows, headers=headers)


@pytest.fixture(scope="module")
def schema(node):
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", node.app)


@pytest.mark.parametrize("has_names", [False, True], ids=["made up", "real"])
@pytest.mark.parametrize("route", ROUTES, ids=[route.name for route in ROUTES])
def test_L11_no_request_that_fits_the_document_or_nearly_does_breaks_the_node(
    node, schema, route, has_names
):
    if has_names and ("{name}" not in route.path or route.name == "tail"):
        return  # a tail of a table has no end: it has tests of its own
    make_prices_again(node)
    operation = schema[route.path][route.method]
    statuses = set()

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES_MAX,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def fuzzed(case):
        if has_names:
            case.path_parameters["name"] = "prices"
        response = case.call(headers={"Authorization": f"Bearer {node.key}"})
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    fuzzed()
    assert not statuses & {401, 403}  # it was the routes that were tried, and not the guard
    if has_names and route.name in ("table", "schema", "coverage", "gaps", "history", "holes"):
        assert 200 in statuses


def test_the_document_is_made_from_the_routes_and_is_whole(node):
    with node.client() as client:
        told = client.get("/api/v1/openapi.json").json()
    assert told == json.loads(msgspec.json.encode(document(ROUTES)))
    assert told["openapi"] == "3.1.0"
    found = {
        (method.upper(), path) for path, methods in told["paths"].items() for method in methods
    }
    assert found == {(route.method, route.path) for route in ROUTES}
    names = [one["operationId"] for methods in told["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))
    references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(told)))
    assert references <= told["components"]["schemas"].keys()
    for one in told["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(one)


def test_answers_are_what_the_document_says(node):
    make_prices_again(node)
    told = document(ROUTES)
    with node.client() as client:
        for route in ROUTES:
            is_other = "{query_id}" in route.path or route.path.startswith(ENTITY_PATHS)
            if route.method != "GET" or is_other or not route.run:
                continue
            params = {
                "silent": {"start": "2024-06-01"},
                "window": {"length": "1h"},
                "diff": {"old": 1},
            }.get(route.name)
            path = route.path.replace("{name}", "prices").replace("{file}", "index.js")
            answer = client.get(path, params=params)
            assert answer.status_code == 200, (route.name, answer.text)
            media = answer.headers["content-type"].split(";")[0]
            content = told["paths"][route.path]["get"]["responses"]["200"]["content"]
            assert media in content, route.name
            if media == "application/json":
                whole = {**content[media]["schema"], "components": told["components"]}
                jsonschema.validate(answer.json(), whole)


def test_A15_the_page_asks_no_other_host_and_has_no_script_or_style_inside(node):
    with node.client() as client:
        page = client.get("/api/docs")
        script = client.get("/api/docs.js").text
        style = client.get("/api/docs.css").text
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for text in (page.text, script, style):
        assert "://" not in text
        assert not re.search(r"['\"(]//\w", text)
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page.text)
    assert re.findall(r"<script[^>]*>(.*?)</script>", page.text) == [""]
    assert "innerHTML" not in script
    assert "document.write" not in script


def test_the_page_in_the_documents_names_every_route_with_its_scope():
    page = (REPOSITORY / "docs" / "api.md").read_text()
    listed = re.findall(r"^\| `(\w+) (\S+)` \| (\w+)(?:, operator)? \|", page, re.MULTILINE)
    real = [(route.method, route.path, route.scope or "none") for route in ROUTES]
    assert sorted(listed) == sorted(real)


def page_examples(*, is_entity):
    """Return the requests and answers of the page that are about entities, or the others."""
    page = (REPOSITORY / "docs" / "api.md").read_text()
    found = re.findall(r"```http\n(\w+) (\S+)\n(.*?)\n?```\n+```json\n(.*?)```", page, re.DOTALL)
    assert len(found) >= 10
    return [one for one in found if one[1].startswith(ENTITY_PATHS) == is_entity]


def test_the_page_in_the_documents_has_requests_and_answers_that_are_so(node):
    check_examples(node, page_examples(is_entity=False))


def check_examples(node, examples):
    """Send each request, and see that its answer is like the one on the page."""
    with node.client() as client:
        for method, path, body, expected in examples:
            content = body.strip().encode() or None
            media = "application/x-ndjson" if path.endswith("/rows") else "application/json"
            headers = {"Content-Type": media} if content else {}
            answer = client.request(method, path, content=content, headers=headers)
            assert is_like(json.loads(answer.content), json.loads(expected)), answer.text


def is_like(found, expected):
    """Tell whether an answer has what the page says; `"..."` stands for anything."""
    if expected == "...":
        return True
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(
            is_like(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list) and isinstance(found, list):
        return len(found) == len(expected) and all(map(is_like, found, expected))
    return found == expected
