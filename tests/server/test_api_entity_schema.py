"""Contracts over HTTP: registered version by version, refused with reasons, given to models."""

import pytest

from fixtures.api import SCOPES, serving
from fixtures.entities import ORDER, database, entity_node, new_type, serving_entities
from fixtures.postgres import postgres_run, postgres_server
from thermocline.config import QuotaSettings
from thermocline.server.api.types.routes import ROUTES

__all__ = ["entity_node", "new_type", "postgres_run", "postgres_server"]

WIDER = {**ORDER, "properties": {**ORDER["properties"], "urgent": {"type": "boolean"}}}
NARROWER = {**ORDER, "required": ["status", "note"]}


@pytest.fixture
def client(entity_node):
    with entity_node.client() as client:
        yield client


@pytest.fixture
def path(new_type):
    return f"/api/v1/entities/{new_type}/schema"


def test_a_contract_is_registered_version_by_version(client, path, new_type):
    made = client.post(path, json=ORDER)
    assert made.status_code == 200
    assert (made.json()["type"], made.json()["version"]) == (new_type, 1)
    assert made.json()["document"] == ORDER
    assert {"id": 1, "name": "status", "type": "string", "is_hot": True} in made.json()["columns"]
    assert client.post(path, json=ORDER).json()["version"] == 1
    assert client.post(path, json=WIDER).json()["version"] == 2
    assert client.get(path).json()["document"] == WIDER
    assert client.get(path, params={"version": 1}).json()["document"] == ORDER
    assert client.get(path, params={"version": 3}).status_code == 404
    listed = client.get(f"{path}/versions").json()["versions"]
    assert [(one["version"], one["document"]) for one in listed] == [(1, ORDER), (2, WIDER)]
    assert new_type in client.get("/api/v1/entities").json()["types"]


def test_a_contract_that_may_not_follow_is_refused_with_pointer_and_reason(client, path):
    client.post(path, json=ORDER)
    answer = client.post(path, json=NARROWER)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert answer.json()["problems"] == [
        {"pointer": "/properties/note", "reason": answer.json()["problems"][0]["reason"]}
    ]
    assert "required" in answer.json()["problems"][0]["reason"]
    assert answer.json()["facts"]["mode"] == "backward"
    assert client.get(path).json()["version"] == 1


def test_a_check_tells_what_registering_would_and_changes_nothing(client, path):
    first = client.post(f"{path}/check", json=ORDER).json()
    assert first == {"is_sound": True, "registered": None, "problems": [], "changes": []}
    assert client.get(path).status_code == 404
    client.post(path, json=ORDER)
    wider = client.post(f"{path}/check", json=WIDER).json()
    assert (wider["is_sound"], wider["registered"]) == (True, 1)
    assert wider["changes"] == [
        {"pointer": "/properties/urgent", "change": "added", "after": {"type": "boolean"}}
    ]
    narrower = client.post(f"{path}/check", json=NARROWER).json()
    assert not narrower["is_sound"]
    assert narrower["problems"][0]["pointer"] == "/properties/note"
    unsound = client.post(f"{path}/check", json={"type": "nothing"}).json()
    assert not unsound["is_sound"]
    assert client.get(path).json()["version"] == 1
    assert client.post(f"{path}/check", json=[1]).status_code == 400


@pytest.mark.parametrize("document", [{"type": "array"}, [], {"type": "object", "allOf": 1}])
def test_what_is_no_contract_is_refused(client, path, document):
    answer = client.post(path, json=document)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), answer.text
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", ["Upper", "1st", "a-b", "é", "x" * 64])
def test_what_cannot_be_a_types_name_is_refused(client, name):
    answer = client.post(f"/api/v1/entities/{name}/schema", json=ORDER)
    assert answer.status_code == 400


def test_a_type_does_not_take_the_name_of_a_table(client):
    client.post("/api/v1/tables", json={"name": "taken", "time_column": "ts", "bucket": "1h"})
    answer = client.post("/api/v1/entities/taken/schema", json=ORDER)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_a_contract_is_a_tool_for_language_models(client, path, new_type):
    client.post(path, json=ORDER)
    client.post(path, json=WIDER)
    tool = client.get(f"{path}/tool").json()
    assert (tool["name"], tool["description"]) == (new_type, ORDER["description"])
    assert "urgent" in tool["input_schema"]["properties"]
    assert "x-hot" not in str(tool)
    other = client.get(f"{path}/tool", params={"form": "openai", "version": 1}).json()
    assert other["type"] == "function"
    assert "urgent" not in other["function"]["parameters"]["properties"]
    assert client.get(f"{path}/tool", params={"form": "other"}).status_code == 400


def test_tenants_have_types_of_the_same_name_and_meet_nothing_of_each_other(entity_node, new_type):
    entities = f"/api/v1/entities/{new_type}"
    for number, tenant in enumerate(("left", "right")):
        entity_node.node.create_tenant(tenant)
        with entity_node.client(entity_node.new_key(tenant, SCOPES)) as own:
            assert own.get("/api/v1/entities").json() == {"types": []}
            assert own.get(f"{entities}/a").status_code == 404
            assert own.post(f"{entities}/schema", json=ORDER).json()["version"] == 1
            assert own.get(f"{entities}/a").status_code == 404
            assert own.put(f"{entities}/a", json={"status": tenant}).json()["ver"] == 1
            found = own.get(entities).json()["entities"]
            assert [one["document"] for one in found] == [{"status": tenant}], number


def test_types_count_as_tables(tmp_path, postgres_server):
    quota = QuotaSettings(tables_max=1)
    with (
        database(postgres_server) as dsn,
        serving_entities(tmp_path, dsn, quota=quota) as served,
        served.client() as client,
    ):
        assert client.post("/api/v1/entities/one/schema", json=ORDER).status_code == 200
        assert client.post("/api/v1/entities/one/schema", json=WIDER).status_code == 200
        assert client.post("/api/v1/entities/two/schema", json=ORDER).status_code == 429


def test_a_lake_without_postgres_says_so_on_every_route_of_entities(tmp_path):
    places = ("/api/v1/entities", "/api/v1/transaction", "/api/v1/feed")
    routes = [route for route in ROUTES if route.path.startswith(places)]
    assert len(routes) >= 22
    with serving(tmp_path) as served, served.client() as client:
        for route in routes:
            path = route.path.replace("{type}", "order").replace("{id}", "a")
            body = {} if route.body is None else {"json": {"operations": []}}
            if route.name == "entity_scan":
                body = {"json": {}}
            elif route.name == "entity_keep_history":
                body = {"json": {"kept_s": None}}
            elif route.name == "entity_diff":
                body = {"params": {"old": 1, "new": 2}}
            answer = client.request(route.method, path, **body)
            assert answer.status_code == 400, (route.name, answer.text)
            assert answer.json()["detail"] == "this lake has no entities"
            assert "postgres" in answer.json()["hint"]
