"""Who may do what: every route by every kind of caller, made from the OpenAPI document itself."""

import json
import re
import threading
import time

import httpx2
import pytest

from fixtures.api import ENDLESS, SCOPES, ask, make_prices, price, serving
from fixtures.entities import ORDER, database, serving_entities
from fixtures.postgres import postgres_run, postgres_server
from fixtures.timing import at_best, wait_until
from thermocline.errors import Corruption, Invalid, Unavailable
from thermocline.server.api.http.problem import problem_bytes, problem_of
from thermocline.server.api.types.openapi import document
from thermocline.server.api.types.routes import ROUTES

__all__ = ["postgres_run", "postgres_server"]

OPEN_PATHS = {
    "/health/live",
    "/health/ready",
    "/health/startup",
    "/api/v1/openapi.json",
    "/api/docs",
    "/api/docs.css",
    "/api/docs.js",
    "/",
    "/console/{file}",
    "/api/v1/node/hot",  # these two need the token of the node
    "/api/v1/node/flush",
}
SECRET = "secret_of_alpha"
SECRET_TYPE = "type_of_alpha"
BODIES = {
    "query": {"sql": f"select * from {SECRET}"},
    "create_table": {"name": "made_by_matrix", "time_column": "ts", "bucket": "1h"},
    "delete": {"where": "true"},
    "restore": {"at": 1},
    "create_key": {"scopes": ["query"], "tenant": "alpha"},
    "create_tenant": {"name": "made_by_matrix"},
    "entity_bulk": {"operations": [{"op": "delete", "id": "one"}]},
    "register": {"type": "object", "properties": {}},
    "check_contract": {"type": "object", "properties": {}},
    "rename_table": {"to": "renamed_by_matrix"},
    "copy_table": {"to": "copied_by_matrix"},
    "put_alert_rule": {"kind": "deadman"},
    "entity_keep_history": {"kept_s": 60},
}
# The name in the path is one that the caller may give to something new, or that of a label.
MAKES = {"register", "check_contract", "put_alert_rule", "prometheus_label_values"}
STREAMS = {"feed_stream"}
ASKED = {
    "silent": {"start": "2024-06-01"},
    "window": {"length": "1h"},
    "diff": {"old": "1"},
    "entity_diff": {"old": "1", "new": "2"},
}


def operations():
    """Return every operation of the document: method, path, what it says of itself."""
    return [
        (method.upper(), path, told)
        for path, methods in document(ROUTES)["paths"].items()
        for method, told in methods.items()
    ]


GUARDED = [one for one in operations() if one[2]["x-scope"] is not None]
guarded = pytest.mark.parametrize(
    "operation", GUARDED, ids=[f"{one[2]['operationId']}" for one in GUARDED]
)


@pytest.fixture(scope="module")
def node(tmp_path_factory, postgres_server):
    folder = tmp_path_factory.mktemp("node")
    with (
        database(postgres_server) as dsn,
        serving_entities(folder, dsn, has_keys=True) as served,
    ):
        served.node.create_tenant("alpha")
        served.node.create_tenant("beta")
        with served.client(served.new_key("alpha")) as client:
            make_prices(client, SECRET)
            rows = json.dumps([price(0, "ALPHA")])
            headers = {"Content-Type": "application/json"}
            client.post(f"/api/v1/tables/{SECRET}/rows", content=rows, headers=headers)
            client.post(f"/api/v1/entities/{SECRET_TYPE}/schema", json=ORDER)
            client.put(f"/api/v1/entities/{SECRET_TYPE}/one", json={"status": "ALPHA"})
        with httpx2.Client(base_url=served.url, timeout=30) as served.stranger:
            yield served


def sent(node, operation, authorization, path_values=None):
    """Send a request that is right but for who sends it."""
    method, path, told = operation
    values = {"name": SECRET, "query_id": "query-of-alpha", "key_id": "nobodys1"}
    values |= {"type": SECRET_TYPE, "id": "one"}
    for name, value in (values | (path_values or {})).items():
        path = path.replace(f"{{{name}}}", value)
    headers = list(authorization)
    content = None
    if "requestBody" in told:
        is_rows = told["operationId"] == "write_rows"
        body = [price(1, "INTRUDER")] if is_rows else BODIES.get(told["operationId"], {})
        content = json.dumps(body).encode()
        headers.append(("Content-Type", "application/json"))
    params = ASKED.get(told["operationId"], {})
    how = {"headers": headers, "content": content, "params": params}
    if told["operationId"] in STREAMS:
        return sent_without_end(node, method, path, how)
    return node.stranger.request(method, path, **how)


def sent_without_end(node, method, path, how):
    """Return the answer, of a stream that never ends only what it begins with."""
    with node.stranger.stream(method, path, **how) as answer:
        is_stream = answer.headers["content-type"].startswith("text/event-stream")
        begin = next(answer.iter_bytes(), b"") if is_stream else answer.read()
    headers = {k: v for k, v in answer.headers.items() if k != "content-encoding"}
    return httpx2.Response(answer.status_code, headers=headers, content=begin)


def bearer(key):
    return [("Authorization", f"Bearer {key}")]


def rows_of_alpha(node):
    lake = node.node.lake("alpha")
    found = lake.entity(SECRET_TYPE).page().entities
    assert [(one.ver, one.document) for one in found] == [(1, {"status": "ALPHA"})]
    assert len(lake.entities.registry.versions(SECRET_TYPE)) == 1
    return lake.sql(f"select symbol from {SECRET}").to_pylist()


def test_A02_every_route_declares_a_scope_or_is_one_of_the_few_open_ones():
    for route in ROUTES:
        if route.scope is None:
            assert route.path in OPEN_PATHS, route
        else:
            assert route.scope in SCOPES, route
    assert {route.path for route in ROUTES if route.scope is None} == OPEN_PATHS
    assert len(GUARDED) > 25


@guarded
def test_A02_without_a_valid_key_nothing_is_answered(node, operation):
    key = node.new_key()
    revoked = node.store.create("default", SCOPES)
    node.store.revoke(revoked.key.key_id)
    expired = node.store.create("default", SCOPES, lifetime_s=0.001)
    time.sleep(0.01)
    node.guard.reload()
    callers = {
        "no key": [],
        "an empty header": [("Authorization", "")],
        "a key of nobody": bearer("tck_nobodys1_" + "A" * 43),
        "half a key": bearer(key[:-1]),
        "another scheme": [("Authorization", f"Basic {key}")],
        "a revoked key": bearer(revoked.text),
        "an expired key": bearer(expired.text),
        "two keys": bearer(key) * 2,
    }
    for who, authorization in callers.items():
        answer = sent(node, operation, authorization)
        assert answer.status_code == 401, (who, answer.text)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert SECRET not in answer.text
        assert not any(text[13:] in answer.text for text in (key, revoked.text))
    assert rows_of_alpha(node) == [{"symbol": "ALPHA"}]


@guarded
def test_A02_a_key_without_the_scope_is_refused(node, operation):
    scope = operation[2]["x-scope"]
    others = [one for one in SCOPES if one != scope]
    for scopes in ([others[0]], [others[1]], others):
        answer = sent(node, operation, bearer(node.new_key("alpha", scopes)))
        assert answer.status_code == 403, answer.text
        error = answer.json()
        # Prometheus' routes answer errors in its own form.
        is_prometheus = operation[2]["operationId"].startswith("prometheus_")
        assert error["errorType" if is_prometheus else "code"] == "forbidden"
    assert rows_of_alpha(node) == [{"symbol": "ALPHA"}]


@guarded
def test_A01_another_tenants_things_do_not_exist(node, operation):
    _, path, told = operation
    alphas = node.store.create("alpha", SCOPES).key.key_id
    node.guard.reload()
    answer = sent(node, operation, bearer(node.new_key("beta")), {"key_id": alphas})
    assert "ALPHA" not in answer.text
    names_a_thing = "{" in path or told["operationId"] in ("query", "create_key")
    names_a_thing = names_a_thing and told["operationId"] not in MAKES
    if names_a_thing or told.get("x-operator-only"):
        assert answer.status_code == 404, answer.text
        assert answer.json()["code"] == "not_found"
    else:
        assert answer.status_code < 500
        assert SECRET not in answer.text
        assert alphas not in answer.text
        assert SECRET_TYPE not in answer.text or told["operationId"] in MAKES
    assert rows_of_alpha(node) == [{"symbol": "ALPHA"}]
    assert node.store.read().by_id[alphas].revoked_ns is None


def test_A01_a_query_of_another_tenant_is_neither_seen_nor_cancelled_nor_in_the_way(node):
    alpha, beta = (node.new_key(name) for name in ("alpha", "beta"))
    answers = []

    def run():
        body = {"sql": ENDLESS, "query_id": "shared-id", "timeout_s": 4}
        with node.client(alpha) as client:
            answers.append(client.post("/api/v1/query", json=body))

    thread = threading.Thread(target=run)
    thread.start()
    with node.client(beta) as beta:
        wait_until(lambda: node.node.pool.queue.of_tenant("alpha"))
        time.sleep(0.3)
        assert beta.get("/api/v1/queries/shared-id").status_code == 404
        assert beta.delete("/api/v1/queries/shared-id").status_code == 404
        assert beta.delete("/api/v1/queries/alpha.shared-id").status_code == 404
        assert beta.get("/api/v1/queries").json() == {"queries": []}
        thread.join(120)
        assert answers[0].status_code == 504  # no other tenant cancelled it
        answer = beta.post("/api/v1/query", json={"sql": "select 1", "query_id": "shared-id"})
        assert answer.status_code == 200


def test_A03_tenants_write_and_read_the_same_names_and_meet_nothing_of_each_other(node):
    clients = {name: node.client(node.new_key(name)) for name in ("alpha", "beta")}
    for name, client in clients.items():
        with client:
            make_prices(client, "shared")
            rows = json.dumps([price(hour, name.upper()) for hour in range(5)])
            headers = {"Content-Type": "application/json", "Idempotency-Key": "the-same-key"}
            answer = client.post("/api/v1/tables/shared/rows", content=rows, headers=headers)
            assert answer.json() == {"rows": 5}
            found = ask(client, "select distinct symbol from shared")["rows"]
            assert found == [{"symbol": name.upper()}]


def came_s(client, status):
    """Return how long it took until a client was answered with a status."""
    began_s = time.monotonic()
    while client.get("/api/v1/tables").status_code != status:
        assert time.monotonic() < began_s + 60
    return time.monotonic() - began_s


def test_A02_a_key_works_until_it_is_revoked_and_not_a_second_longer(node):
    def made_and_revoked():
        with node.client() as operator:
            made = operator.post("/api/v1/keys", json={"scopes": ["query"], "note": "for a test"})
            assert made.status_code == 201
            key, info = made.json()["key"], made.json()["info"]
            assert info["note"] == "for a test"
            with node.client(key) as client:
                works_s = came_s(client, 200)
                assert operator.delete(f"/api/v1/keys/{info['key_id']}").status_code == 204
                refused_s = came_s(client, 401)
            listed = {one["key_id"]: one for one in operator.get("/api/v1/keys").json()["keys"]}
            assert listed[info["key_id"]]["state"] == "revoked"
            assert key not in json.dumps(listed)
            return max(works_s, refused_s)

    assert at_best(made_and_revoked, lambda took_s: took_s < 1) < 1


def test_A02_an_administrator_makes_no_key_with_more_rights_than_their_own(node):
    with node.client(node.new_key("alpha", ["admin"])) as client:
        answer = client.post("/api/v1/keys", json={"scopes": ["query"]})
        assert answer.status_code == 403
        assert client.post("/api/v1/keys", json={"scopes": []}).status_code == 400
        assert client.post("/api/v1/keys", json={"scopes": ["admin"]}).status_code == 201
        mine = client.get("/api/v1/keys").json()["keys"]
        assert {one["tenant"] for one in mine} == {"alpha"}


def test_A10_the_first_key_of_an_open_node_is_an_administrators(tmp_path):
    with serving(tmp_path) as served, served.client() as client:
        assert client.post("/api/v1/keys", json={"scopes": ["query"]}).status_code == 400
        served.guard.reload()
        assert client.get("/api/v1/tables").status_code == 200  # no tenant is locked out
        made = client.post("/api/v1/keys", json={"scopes": ["admin", "query"]})
        served.guard.reload()
        assert client.get("/api/v1/tables").status_code == 401
        with served.client(made.json()["key"]) as administrator:
            assert administrator.get("/api/v1/tables").status_code == 200


def test_an_operator_makes_tenants_and_their_keys(node):
    with node.client() as operator:
        assert operator.post("/api/v1/tenants", json={"name": "gamma"}).status_code == 201
        assert operator.post("/api/v1/tenants", json={"name": "gamma"}).status_code == 409
        assert operator.post("/api/v1/tenants", json={"name": "../x"}).status_code == 400
        assert "gamma" in operator.get("/api/v1/tenants").json()["tenants"]
        body = {"scopes": ["query"], "tenant": "gamma"}
        key = operator.post("/api/v1/keys", json=body).json()["key"]
        nobody = operator.post("/api/v1/keys", json={"scopes": ["query"], "tenant": "nobody"})
        assert nobody.status_code == 404
        node.guard.reload()
        with node.client(key) as client:
            assert client.get("/api/v1/tables").json() == {"tables": []}
        settings = {
            one["setting"]: one for one in operator.get("/api/v1/config").json()["settings"]
        }
        assert settings["sync"] == {"setting": "sync", "value": "always", "origin": "default"}
    with open(f"{node.store.folder}/audit.jsonl") as file:
        audited = file.read()
    assert '"create tenant"' in audited
    assert key not in audited


def test_A08_no_key_is_in_a_log_line_or_an_error(node):
    key = node.new_key("alpha")
    with node.client(key) as client:
        client.post("/api/v1/query", json={"sql": f"select '{key}' from nowhere"})
        client.get(f"/api/v1/tables/{SECRET}?key={key}")
        answer = client.post("/api/v1/query", json={"sql": f'select "{key}" from {SECRET}'})
        assert answer.status_code >= 400
        assert key not in answer.text
        assert client.get("/api/v1/tables", headers={"X-Request-Id": key}).status_code == 200
    assert key not in node.logged()
    with httpx2.Client(base_url=node.url, timeout=90) as stranger:
        assert stranger.get("/api/v1/tables", params={"api_key": key}).status_code == 401


# Names and pages (DNS rebinding)


@pytest.fixture(scope="module")
def open_node(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("open")) as served:
        yield served


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:4320", 200),
        ("[::1]:4320", 200),
        ("LOCALHOST:1", 200),
        ("evil.example", 421),
        ("evil.example:4320", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil.example@localhost", 200),
        ("", 421),
        ("[", 421),
    ],
)
def test_A17_a_node_without_keys_answers_to_names_of_this_machine_alone(open_node, host, status):
    with open_node.client() as client:
        answer = client.get("/api/v1/tables", headers={"Host": host})
    assert answer.status_code in (status, 400) if status != 200 else answer.status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:4320", 200),
        ("https://evil.example", 403),
        ("http://localhost:9999", 403),
        ("null", 403),
        ("http://localhost:4320.evil.example", 403),
    ],
)
def test_A17_a_page_from_elsewhere_may_not_ask_a_node_without_keys(open_node, origin, status):
    headers = {"Host": "localhost:4320", "Origin": origin}
    with open_node.client() as client:
        body = {"sql": "select 1"}
        assert client.post("/api/v1/query", json=body, headers=headers).status_code == status


def test_with_keys_any_name_will_do(node):
    with node.client() as client:
        answer = client.get("/api/v1/tables", headers={"Host": "lake.example"})
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]


# What every answer has


@pytest.mark.parametrize("path", ["/api/v1/tables", "/nowhere", "/health/live", "/api/docs"])
def test_A15_every_answer_keeps_a_browser_from_making_more_of_it(open_node, path):
    with open_node.client() as client:
        headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [("my-id_1.2:3", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("<a>", False)],
)
def test_a_sane_request_id_is_kept_and_any_other_replaced(open_node, given, is_kept):
    with open_node.client() as client:
        answer = client.get("/nowhere", headers={"X-Request-Id": given})
    assert (answer.headers["x-request-id"] == given) == is_kept
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert re.fullmatch(r"[\w.:-]{1,128}", answer.headers["x-request-id"])


def test_a_wrong_method_is_told_the_right_ones(open_node):
    with open_node.client() as client:
        answer = client.delete("/api/v1/tables")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, POST"
        assert client.head("/api/v1/tables").status_code == 200
        assert client.get("/api/v1/tables/").status_code == 404


def test_a_problem_tells_nothing_of_the_machine():
    root = "/srv/lake-data/tables/ab12"
    key = "tck_abcdefgh_" + "s3cr3t" * 8
    error = Corruption(
        "a live file is missing",
        hint="restore it",
        path=f"{root}/data/2024/5e90.parquet",
        folder=root,
        why=f"[Errno 2] No such file: '{root}/data/2024/5e90.parquet'",
        nested={"paths": [f"{root}/a.parquet", {"deeper": key}]},
        number=2**70,
        nan=float("nan"),
    )
    text = problem_bytes(problem_of(error, "r1")).decode()
    assert "/srv" not in text
    assert "lake-data" not in text
    assert "s3cr3t" not in text
    assert "5e90.parquet" in text
    assert json.loads(text)["facts"]["number"] == str(2**70)
    told = json.loads(problem_bytes(problem_of(ZeroDivisionError(f"in {root}"), "r2")))
    assert told["status"] == 500
    assert "srv" not in str(told)
    assert told["request_id"] == "r2"
    kept = problem_of(Invalid("x", why="a / b and a/b and 1/2", path="data/x.parquet"))
    assert kept.facts == {"why": "a / b and a/b and 1/2", "path": "data/x.parquet"}


def test_a_failure_that_is_not_ours_is_logged_and_not_told(open_node, monkeypatch):
    lake = open_node.node.lake()

    def broken(*_):
        raise RuntimeError("/etc/secret-path is broken")

    monkeypatch.setattr(lake, "tables", broken)
    with open_node.client() as client:
        answer = client.get("/api/v1/tables")
    assert answer.status_code == 500
    assert "secret-path" not in answer.text
    assert open_node.app.state.parts.log.flush(60)
    assert answer.json()["request_id"] in open_node.logged()


def test_errors_that_may_pass_say_when_to_come_back(open_node, monkeypatch):
    lake = open_node.node.lake()

    def busy(*_):
        raise Unavailable("the disk is away", hint="wait", retry_after_s=60)

    monkeypatch.setattr(lake, "tables", busy)
    with open_node.client() as client:
        answer = client.get("/api/v1/tables")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_health_answers_without_a_key_and_while_the_node_starts(tmp_path):
    from fixtures.api import on_wire
    from thermocline.server.access.guard import Guard, NodeGateway
    from thermocline.server.access.keys import KeyStore
    from thermocline.server.access.quota import Quotas
    from thermocline.server.api.http.app import make_app
    from thermocline.server.observe.log import EventLog
    from thermocline.server.observe.metrics import Metrics

    guard = Guard(KeyStore(str(tmp_path)))
    app = make_app(NodeGateway(guard), guard, Quotas(), Metrics(), EventLog())
    with (
        on_wire(app) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=90) as client,
    ):
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/startup").status_code == 503
        assert client.get("/health/ready").status_code == 503
        answer = client.get("/api/v1/tables")
        assert (answer.status_code, answer.json()["detail"]) == (503, "the node is starting")
