"""The routes of entities on a node that has some: as the document says, whatever comes."""

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from fixtures.entities import ORDER, entity_node
from fixtures.postgres import postgres_run, postgres_server
from server.test_api_openapi import (
    CHECKS,
    ENTITY_PATHS,
    EXAMPLES_MAX,
    check_examples,
    page_examples,
)
from thermocline.server.api.types.openapi import document
from thermocline.server.api.types.routes import ROUTES

__all__ = ["entity_node", "postgres_run", "postgres_server"]

PATH = "/api/v1/entities/order"
ENDLESS = ("feed_stream",)
MINE = [
    route for route in ROUTES if route.path.startswith(ENTITY_PATHS) and route.name not in ENDLESS
]


@pytest.fixture(scope="module")
def node(entity_node):
    with entity_node.client() as client:
        client.post(f"{PATH}/schema", json=ORDER)
        for key in ("a", "b"):
            client.put(f"{PATH}/{key}", json={"status": "open", "price": 1.5})
        client.post(f"{PATH}/export")
        client.put(f"{PATH}/a", json={"status": "paid"})
    return entity_node


@pytest.fixture(scope="module")
def schema(node):
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", node.app)


@pytest.mark.parametrize("has_names", [False, True], ids=["made up", "real"])
@pytest.mark.parametrize("route", MINE, ids=[route.name for route in MINE])
def test_L11_no_request_about_entities_breaks_the_node(node, schema, route, has_names):
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
        if has_names and "{type}" in route.path:
            case.path_parameters |= {"type": "order"}
            if "{id}" in route.path:
                case.path_parameters |= {"id": "b"}
        response = case.call(headers={"Authorization": f"Bearer {node.key}"})
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    fuzzed()
    assert not statuses & {401, 403}
    reads = ("entity_page", "entity_search", "contract", "contract_versions", "entity_export")
    if has_names and route.name in reads:
        assert 200 in statuses, statuses


def test_answers_about_entities_are_what_the_document_says(node):
    told = document(ROUTES)
    with node.client() as client:
        for route in MINE:
            if route.method != "GET":
                continue
            path = route.path.replace("{type}", "order").replace("{id}", "a")
            answer = client.get(
                path, params={"diff": {"old": 1, "new": 2}}.get(path.split("/")[-1])
            )
            assert answer.status_code == 200, (route.name, answer.text)
            good = told["paths"][route.path]["get"]["responses"]["200"]
            whole = {
                **good["content"]["application/json"]["schema"],
                "components": told["components"],
            }
            jsonschema.validate(answer.json(), whole)
            for name in good.get("headers", {}):
                assert name in answer.headers or name == "Thermocline-Warning"


def test_the_page_in_the_documents_has_requests_about_entities_that_are_so(node):
    examples = page_examples(is_entity=True)
    assert len(examples) >= 7
    check_examples(node, examples)
