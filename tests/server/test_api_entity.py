"""Entities over HTTP: written with conditions, read as of a version, many at once, page by page."""

import json
import threading

import pytest

from fixtures.api import ask
from fixtures.entities import CUSTOMER, ORDER, entity_node, new_type
from fixtures.postgres import postgres_run, postgres_server

__all__ = ["entity_node", "new_type", "postgres_run", "postgres_server"]

JSON = {"Content-Type": "application/json"}
MERGE = {"Content-Type": "application/merge-patch+json"}


class Orders:
    """The orders of one test, over HTTP."""

    def __init__(self, client, name):
        self.client = client
        self.name = name
        self.path = f"/api/v1/entities/{name}"

    def create(self, document, key=None, **headers):
        content = document if isinstance(document, str | bytes) else json.dumps(document)
        params = {} if key is None else {"id": key}
        return self.client.post(self.path, content=content, params=params, headers=JSON | headers)

    def read(self, key, headers=None, **params):
        return self.client.get(f"{self.path}/{key}", params=params, headers=headers or {})

    def replace(self, key, document, **headers):
        return self.client.put(f"{self.path}/{key}", json=document, headers=named(headers))

    def patch(self, key, change, **headers):
        content = json.dumps(change)
        return self.client.patch(
            f"{self.path}/{key}", content=content, headers=MERGE | named(headers)
        )

    def delete(self, key, **headers):
        return self.client.delete(f"{self.path}/{key}", headers=named(headers))

    def post(self, word, body=None):
        return self.client.post(f"{self.path}/{word}", json={} if body is None else body)

    def history(self, key):
        return self.client.get(f"{self.path}/{key}/history").json()["revisions"]


def named(headers):
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
def client(entity_node):
    with entity_node.client() as client:
        yield client


@pytest.fixture
def orders(client, new_type):
    answer = client.post(f"/api/v1/entities/{new_type}/schema", json=ORDER)
    assert answer.status_code == 200, answer.text
    return Orders(client, new_type)


def test_an_entity_is_created_read_replaced_patched_and_deleted(orders):
    made = orders.create({"status": "open", "quantity": 2}, "a")
    assert (made.status_code, made.headers["etag"]) == (201, '"1"')
    assert made.json() == {"id": "a", "ver": 1, "deed": "created"}
    assert orders.client.get(made.headers["location"]).json()["document"]["quantity"] == 2
    replaced = orders.replace("a", {"status": "paid"})
    assert (replaced.status_code, replaced.headers["etag"]) == (200, '"2"')
    patched = orders.patch("a", {"note": "x", "quantity": 3})
    assert patched.json() == {"id": "a", "ver": 3, "deed": "patched"}
    found = orders.read("a")
    assert found.json()["document"] == {"status": "paid", "quantity": 3, "note": "x"}
    assert found.headers["etag"] == '"3"'
    assert found.json()["as_of"] == found.headers["thermocline-as-of"]
    assert "thermocline-warning" not in found.headers
    assert found.json()["warning"] == ""
    gone = orders.delete("a")
    assert (gone.status_code, gone.json()["deed"]) == (200, "deleted")
    assert orders.read("a").status_code == 404
    assert orders.delete("a").status_code == 404
    assert orders.patch("a", {"note": "y"}).status_code == 404
    assert orders.replace("a", {"status": "again"}).status_code == 201


def test_an_entity_without_a_key_gets_one(orders):
    keys = {orders.create({"status": "open"}).json()["id"] for _ in range(3)}
    assert len(keys) == 3
    assert all(orders.read(key).status_code == 200 for key in keys)


def test_a_key_of_the_callers_own_is_created_once(orders):
    assert orders.create({"status": "open"}, "mine").status_code == 201
    again = orders.create({"status": "open"}, "mine")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    only = {"If-None-Match": "*"}
    assert orders.replace("mine", {"status": "x"}, **only).status_code == 412
    assert orders.replace("other", {"status": "x"}, **only).status_code == 201
    assert orders.read("mine").json()["ver"] == 1


@pytest.mark.parametrize(
    "key", ["a/b", "bulk", "search", "é ü", "100%", "a%2Fb", "?x=1#y", "a//b/history", "export"]
)
def test_every_key_has_an_address_of_its_own(orders, key):
    place = orders.create({"status": key}, key).headers["location"]
    assert orders.client.get(place).json()["id"] == key
    assert orders.client.get(f"{place}/history").json()["revisions"][0]["ver"] == 1
    merged = orders.client.patch(place, content='{"note": "seen"}', headers=MERGE)
    assert merged.json()["id"] == key
    assert orders.client.delete(place).json() == {"id": key, "ver": 3, "deed": "deleted"}


def test_every_digit_comes_back(orders):
    text = '{"status": "open", "price": 1234567890123456.70, "weight": 0.1, '
    text += '"quantity": 9007199254740993}'
    assert orders.create(text, "a").status_code == 201
    found = orders.read("a").text
    assert '"price":1234567890123456.70' in found
    assert '"quantity":9007199254740993' in found
    assert '"weight":0.1' in found
    patched = orders.client.patch(
        f"{orders.path}/a", content='{"price": 9999999999999999.99}', headers=MERGE
    )
    assert patched.status_code == 200
    page = orders.client.get(orders.path, params={"fields": "price"}).text
    assert '"price":9999999999999999.99' in page


# Conditions


def test_a_write_on_a_version_that_is_gone_is_refused_and_names_the_current_one(orders):
    orders.create({"status": "open"}, "a")
    orders.replace("a", {"status": "paid"})
    for answer in (
        orders.replace("a", {"status": "x"}, If_Match='"1"'),
        orders.patch("a", {"status": "x"}, If_Match='"1"'),
        orders.delete("a", If_Match='"1"'),
        orders.replace("b", {"status": "x"}, If_Match='"1"'),
        orders.delete("a", If_Match='W/"2"'),
        orders.delete("a", If_Match='"none"'),
    ):
        assert answer.status_code == 412, answer.text
        assert answer.json()["code"] == "conflict"
    assert orders.delete("a", If_Match='"1"').json()["facts"]["ver"] == 2
    assert orders.replace("a", {"status": "y"}, If_Match='"2"').headers["etag"] == '"3"'
    assert orders.delete("a", If_Match="*").status_code == 200


@pytest.mark.parametrize("tag", ["1", '"1", "2"', '""a', "*"])
def test_a_condition_that_is_none_is_named(orders, tag):
    orders.create({"status": "open"}, "a")
    answer = orders.replace("a", {"status": "x"}, If_Match=tag)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    assert orders.read("a").json()["ver"] == 1


def test_a_version_that_is_known_is_not_sent_again(orders):
    orders.create({"status": "open"}, "a")
    for tag in ('"1"', 'W/"1"', '"7", "1"', "*"):
        answer = orders.read("a", headers={"If-None-Match": tag})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == '"1"'
    assert orders.read("a", headers={"If-None-Match": '"2"'}).status_code == 200


def test_of_many_writers_of_one_version_one_wins(orders, entity_node):
    orders.create({"status": "open", "quantity": 0}, "a")
    statuses = []

    def race():
        with entity_node.client() as own:
            mine = Orders(own, orders.name)
            for _ in range(5):
                ver = mine.read("a").json()["ver"]
                statuses.append(mine.patch("a", {"quantity": ver}, If_Match=f'"{ver}"').status_code)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(statuses) <= {200, 412}
    found = orders.read("a").json()
    assert found["ver"] == 1 + statuses.count(200)
    assert found["document"]["quantity"] == found["ver"] - 1


# What is wrong


def test_all_that_is_wrong_with_a_document_is_told_at_once(orders):
    answer = orders.create({"quantity": "two", "address": {"city": 7}, "unknown": 1})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    problems = {one["pointer"]: one for one in answer.json()["problems"]}
    assert problems.keys() == {"/status", "/quantity", "/address/city", "/unknown"}
    assert problems["/address/city"] == {
        "pointer": "/address/city",
        "expected": "string",
        "got": "7",
    }
    assert "problems" not in answer.json()["facts"]
    orders.create({"status": "open"}, "a")
    for answer in (
        orders.replace("a", {"status": 1}),
        orders.patch("a", {"status": None}),
        orders.create("{", "b"),
        orders.create('{"status": "a", "status": "b"}', "b"),
        orders.create("", "b"),
        orders.create("[]", "b"),
        orders.create({"status": "x"}, " b"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), answer.text
    assert orders.read("a").json()["ver"] == 1
    assert orders.read("b").status_code == 404


def test_a_patch_is_one_by_its_type(orders):
    orders.create({"status": "open"}, "a")
    answer = orders.client.patch(
        f"{orders.path}/a", content="{}", headers={"Content-Type": "text/plain"}
    )
    assert answer.status_code == 415


def test_what_does_not_exist_is_not_found(orders):
    client = orders.client
    for path in ("nothing", "nothing/a", "nothing/schema", "nothing/a/history"):
        answer = client.get(f"/api/v1/entities/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert client.put("/api/v1/entities/nothing/a", json={}).status_code == 404
    assert client.post("/api/v1/entities/nothing/bulk", json={"operations": []}).status_code == 404


# Many


def test_bulk_is_all_or_nothing_and_names_the_one_that_failed(orders):
    wrong = [
        {"op": "create", "id": "a", "document": {"status": "open"}},
        {"op": "create", "id": "b", "document": {"status": 1}},
    ]
    answer = orders.post("bulk", {"operations": wrong})
    assert (answer.status_code, answer.json()["facts"]["item"]) == (400, 1)
    assert answer.json()["problems"][0]["pointer"] == "/status"
    assert orders.read("a").status_code == 404
    right = [
        {"op": "create", "id": "a", "document": {"status": "open"}},
        {"op": "create", "document": {"status": "made"}},
        {"op": "patch", "id": "a", "document": {"note": "n"}, "if_match": 1},
        {"op": "replace", "id": "c", "document": {"status": "new"}},
        {"op": "delete", "id": "c"},
    ]
    results = orders.post("bulk", {"operations": right}).json()["results"]
    assert [one["deed"] for one in results] == [
        *("created", "created", "patched", "created", "deleted")
    ]
    assert [one["status"] for one in results] == [201, 201, 200, 201, 200]
    assert orders.read(results[1]["id"]).json()["document"] == {"status": "made"}


def test_bulk_by_item_does_what_it_can_and_says_what_became_of_each(orders):
    orders.create({"status": "open"}, "held")
    operations = [
        {"op": "create", "id": "held", "document": {"status": "x"}},
        {"op": "replace", "id": "held", "document": {"status": "x"}, "if_match": 9},
        {"op": "patch", "id": "nobody", "document": {"status": "x"}},
        {"op": "create", "id": "new", "document": {"status": 7}},
        {"op": "create", "id": " blank", "document": {"status": "x"}},
        {"op": "fly", "id": "new"},
        {"op": "create", "id": "new"},
        {"op": "create", "id": "good", "document": {"status": "x"}},
    ]
    answer = orders.post("bulk", {"operations": operations, "atomic": False})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [one["status"] for one in results] == [409, 412, 404, 400, 400, 400, 400, 201]
    assert results[3]["error"]["problems"][0]["pointer"] == "/status"
    assert results[7] == {
        "status": 201, "id": "good", "ver": 1, "deed": "created", "error": None,
    }  # fmt: skip
    assert orders.read("held").json()["ver"] == 1


def walked(orders, **how):
    """Return the keys of every page, one list a page."""
    pages, after = [], None
    while True:
        params = how | ({} if after is None else {"after": after})
        answer = orders.client.get(orders.path, params=params)
        assert answer.status_code == 200, answer.text
        pages.append([one["id"] for one in answer.json()["entities"]])
        after = answer.json()["after"]
        if after is None:
            return pages


def test_pages_over_ties_have_every_entity_once(orders):
    operations = [
        {"op": "create", "id": f"k{n:02d}", "document": {"status": "ab"[n % 2], "quantity": n}}
        for n in range(25)
    ]
    orders.post("bulk", {"operations": operations})
    pages = walked(orders, sort="status", limit=4)
    assert [len(page) for page in pages] == [4, 4, 4, 4, 4, 4, 1]
    keys = [key for page in pages for key in page]
    assert keys == [f"k{n:02d}" for n in range(0, 25, 2)] + [f"k{n:02d}" for n in range(1, 25, 2)]
    assert walked(orders, sort="-status,-quantity", limit=7)[0][0] == "k23"
    wanted = json.dumps({"and": [
        {"field": "quantity", "op": "ge", "value": 20},
        {"not": {"field": "status", "op": "eq", "value": "a"}},
    ]})  # fmt: skip
    assert walked(orders, filter=wanted, limit=1) == [["k21"], ["k23"]]
    counted = orders.client.get(orders.path, params={"limit": 1, "total": "true"}).json()
    assert counted["total"] == 25
    body = {"sort": ["-quantity"], "fields": ["quantity"], "limit": 2}
    found = orders.post("search", body).json()
    assert [one["document"] for one in found["entities"]] == [{"quantity": 24}, {"quantity": 23}]
    again = orders.post("search", body | {"after": found["after"]}).json()
    assert again["entities"][0]["id"] == "k22"


@pytest.mark.parametrize(
    "body",
    [
        {"filter": {"field": "nothing", "op": "eq", "value": 1}},
        {"filter": {"field": "status", "op": "like", "value": "x"}},
        {"filter": {"status": "open"}},
        {"sort": ["nothing"]},
        {"after": "made-up"},
        {"limit": 0},
        {"limit": 1_001},
        {"unknown": 1},
        {"refs": ["status"]},
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(orders, body):
    answer = orders.post("search", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), answer.text


def test_a_page_brings_what_it_refers_to(orders):
    orders.client.post("/api/v1/entities/customer/schema", json=CUSTOMER)
    customers = Orders(orders.client, "customer")
    customers.replace("c1", {"name": "Ada"})
    orders.create({"status": "open", "customer": "c1"}, "a")
    found = orders.post("search", {"refs": ["customer"]}).json()
    assert found["refs"]["customer"]["c1"]["document"] == {"name": "Ada"}


# The past


def test_an_entity_has_a_history_and_can_be_read_as_it_was(orders):
    orders.create({"status": "open"}, "a")
    first = orders.post("export").json()["exported"]
    assert (first["keys"], first["rows"]) == (1, 1)
    orders.replace("a", {"status": "paid"})
    second = orders.post("export").json()["exported"]
    orders.delete("a")
    third = orders.post("export").json()["exported"]
    orders.create({"status": "again"}, "a")
    found = orders.history("a")
    assert [(one["ver"], one["version"]) for one in found] == [
        (1, first["version"]),
        (2, second["version"]),
        (3, third["version"]),
        (4, None),
    ]
    assert [one["document"] and one["document"]["status"] for one in found] == [
        *("open", "paid", None, "again")
    ]
    assert orders.post("export").json()["exported"]["changes"] == 1
    assert orders.post("export").json() == {"exported": None}
    then = orders.read("a", at=first["version"])
    assert (then.json()["document"], then.headers["etag"]) == ({"status": "open"}, '"1"')
    assert then.json()["as_of"] is None
    place = f"{orders.path}/a/history"
    (then,) = orders.client.get(place, params={"at": found[1]["at"]}).json()["revisions"]
    assert then["document"] == {"status": "paid"}
    assert orders.read("a", at=third["version"]).status_code == 404
    assert orders.read("a", at=999).status_code == 404
    assert orders.history("nobody") == []


def test_entities_are_rows_of_sql_and_of_a_scan(orders):
    orders.create({"status": "open", "quantity": 1}, "a")
    orders.post("export")
    orders.replace("a", {"status": "open", "quantity": 2})
    orders.create({"status": "paid", "quantity": 5}, "b")
    found = ask(orders.client, f"select sum(quantity) as n from {orders.name}")
    assert found["rows"] == [{"n": 7}]
    answer = orders.post("scan", {"columns": ["_id", "quantity"]})
    rows = sorted(answer.json()["rows"], key=lambda row: row["_id"])
    assert rows == [{"_id": "a", "quantity": 2}, {"_id": "b", "quantity": 5}]
    assert "thermocline-as-of" in answer.headers
    assert "thermocline-warning" not in answer.headers
    assert orders.post("scan", {"columns": ["nothing"]}).status_code == 400


def test_a_write_with_an_idempotency_key_happens_once(orders):
    key = {"Idempotency-Key": "req-1"}
    first = orders.create({"status": "open"}, **key)
    again = orders.create({"status": "open"}, **key)
    assert (first.status_code, again.json()) == (201, first.json())
    other = orders.create({"status": "late"}, **key)
    assert (other.status_code, "another request" in other.json()["detail"]) == (400, True)
    assert orders.client.get(orders.path, params={"total": True}).json()["total"] == 1
    assert orders.create({"status": "open"}, **{"Idempotency-Key": "a b"}).status_code == 400


def test_a_patch_with_upsert_creates_a_missing_entity(orders):
    def upsert(change):
        return orders.client.patch(
            f"{orders.path}/a", params={"upsert": True}, json=change, headers={}
        )

    assert (upsert({"status": "open"}).status_code, upsert({"quantity": 1}).status_code) == (
        201,
        200,
    )
    assert orders.read("a").json()["document"] == {"status": "open", "quantity": 1}
    assert orders.patch("b", {"status": "open"}).status_code == 404


def test_a_transaction_writes_several_types_or_nothing(orders, client, new_type):
    customers = f"{new_type[:40]}_c"
    assert client.post(f"/api/v1/entities/{customers}/schema", json=CUSTOMER).status_code == 200

    def transact(*operations, **headers):
        return client.post(
            "/api/v1/transaction", json={"operations": operations}, headers=named(headers)
        )

    customer = {"type": customers, "op": "create", "id": "ada", "document": {"name": "Ada"}}
    order = {"type": new_type, "op": "upsert", "id": "o", "document": {"status": "open"}}
    failed = transact(customer, order, {"type": new_type, "op": "check", "id": "p"})
    assert (failed.status_code, failed.json()["facts"]["item"]) == (404, 2)
    assert orders.read("o").status_code == 404
    for _ in range(2):
        done = transact(customer, order, Idempotency_Key="t-1")
        assert [one["deed"] for one in done.json()["results"]] == ["created", "created"]
    assert transact({**order, "type": "no_such"}).status_code == 404
    assert transact({"op": "delete", "id": "o"}).status_code == 400


def test_a_change_names_its_key_and_request_and_is_in_history_and_feed(orders, client):
    place = client.get("/api/v1/feed/position").json()["position"]
    orders.create({"status": "open", "price": 1.10}, "a", **{"X-Request-Id": "req-a"})
    orders.patch("a", {"status": "paid"})
    found = orders.history("a")
    assert (found[0]["op"], found[0]["request_id"]) == ("created", "req-a")
    assert found[0]["key"]
    at = orders.client.get(f"{orders.path}/a/history", params={"at": found[0]["at"]})
    assert [one["ver"] for one in at.json()["revisions"]] == [1]
    diff = orders.client.get(f"{orders.path}/a/diff", params={"old": 1, "new": 2}).json()
    assert [one["pointer"] for one in diff["changes"]] == ["/status"]
    feed = client.get("/api/v1/feed", params={"after": place, "types": orders.name}).json()
    assert [(one["id"], one["ver"], one["op"]) for one in feed["changes"]] == [
        ("a", 1, "created"),
        ("a", 2, "updated"),
    ]
    rest = client.get("/api/v1/feed", params={"after": feed["changes"][0]["position"]}).json()
    assert [one["ver"] for one in rest["changes"]] == [2]
    kept = orders.client.post(f"{orders.path}/history", json={"kept_s": 86_400})
    assert kept.json() == {"kept_s": 86_400.0}


def test_a_request_to_the_feed_waits_for_the_next_change(orders, client):
    place = client.get("/api/v1/feed/position").json()["position"]
    asked = {"after": place, "types": orders.name, "wait_s": 60}
    answers = []
    waiting = threading.Thread(
        target=lambda: answers.append(client.get("/api/v1/feed", params=asked, timeout=90).json())
    )
    waiting.start()
    orders.create({"status": "open"}, "a")
    waiting.join(90)
    assert [one["id"] for one in answers[0]["changes"]] == ["a"]


def test_a_position_of_another_server_is_gone(client):
    place = client.get("/api/v1/feed/position").json()["position"]
    answer = client.get("/api/v1/feed", params={"after": f"{'0' * 16}{place[16:]}"})
    assert (answer.status_code, answer.json()["code"]) == (410, "not_found")
    for path in ("/api/v1/feed", "/api/v1/feed/stream"):
        assert client.get(path, params={"after": "x"}).status_code == 400


def read_events(client, name, count, **headers):
    """Read this many server-sent events; return the id of each with the key that changed."""
    found, place = [], ""
    path = f"/api/v1/feed/stream?types={name}"
    with client.stream("GET", path, headers=named(headers)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        while len(found) < count:
            word, _, value = next(lines).partition(": ")
            if word == "id":
                place = value
            elif word == "data":
                found.append((place, json.loads(value)["id"]))
    return found


def test_changes_come_as_server_sent_events_and_resume_by_their_ids(orders, client):
    for key in ("a", "b"):
        orders.create({"status": "open"}, key)
    (first,) = read_events(client, orders.name, 1)
    orders.create({"status": "open"}, "c")
    rest = read_events(client, orders.name, 2, Last_Event_ID=first[0])
    assert [first[1], *(key for _, key in rest)] == ["a", "b", "c"]


def test_a_page_is_filtered_by_query_parameters(orders):
    orders.client.post(f"{orders.path}/schema", json=ORDER)
    for number, city in enumerate(("Rome", "Oslo", "10")):
        document = {"status": "open", "quantity": number, "price": number + 0.5}
        orders.create({**document, "address": {"city": city}}, f"k{number}")
    orders.create({"status": "paid", "quantity": 9}, "k9")

    def keys(words):
        answer = orders.client.get(f"{orders.path}?{words}")
        assert answer.status_code == 200, answer.text
        return [one["id"] for one in answer.json()["entities"]]

    assert keys("status=open&quantity[gt]=0&sort=-quantity") == ["k2", "k1"]
    assert keys("price[le]=1.5&price[ge]=1.5") == ["k1"]
    assert keys("quantity[in]=0,9") == ["k0", "k9"]
    assert keys("price[is_null]=true") == ["k9"]
    assert keys("/address/city=10") == ["k2"]
    assert keys("_id[starts_with]=k&_ver=1&status[ne]=open") == ["k9"]
    small = json.dumps({"field": "quantity", "op": "lt", "value": 2})
    assert keys(f"status=open&filter={small}") == ["k0", "k1"]
    for words in ("quantity=many", "quantity[near]=1", "colour=red", "status=a&status=b", "[x]=1"):
        answer = orders.client.get(f"{orders.path}?{words}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), words
