"""A node answers Prometheus' own requests: a counter sent over OTLP is a rate over HTTP."""

import time
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus

import orjson
import pytest

from fixtures.served import ServedNode

BASE = "/api/v1/prom/api/v1"
STEP_S = 15


@pytest.fixture(scope="module")
def began_s():
    return int(time.time()) // 60 * 60 - 600


@pytest.fixture(scope="module")
def node(tmp_path_factory, began_s):
    with ServedNode(str(tmp_path_factory.mktemp("prometheus"))).ready() as served:
        points = [
            {
                "timeUnixNano": str((began_s + second) * 10**9),
                "startTimeUnixNano": str((began_s - 60) * 10**9),
                "asInt": str(2 * second),
                "attributes": [{"key": "http.route", "value": {"stringValue": route}}],
            }
            for route in ("/a", "/b")
            for second in range(0, 601, STEP_S)
        ]
        metric = {
            "name": "shop.visits",
            "unit": "{visit}",
            "sum": {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": points},
        }
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
        body = {
            "resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]
        }
        assert served.ask("/v1/metrics", body, listener="http")[0] == HTTPStatus.OK
        yield served


def ask(node, route, *, form=False, **given):
    """Return the status and the document of a request."""
    fields = [(key.replace("match", "match[]"), value) for key, value in given.items()]
    text = urllib.parse.urlencode(fields, doseq=True)
    url = f"http://127.0.0.1:{node.port('api')}{BASE}/{route}"
    request = urllib.request.Request(url, text.encode()) if form else f"{url}?{text}"
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, orjson.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, orjson.loads(error.read())


@pytest.mark.parametrize("form", [False, True])
def test_an_instant_and_a_range_are_answered(node, began_s, form):
    at = {"time": began_s + 600, "query": "sum(round(rate(shop_visits_total[5m])))", "form": form}
    status, found = ask(node, "query", **at)
    assert status == HTTPStatus.OK
    assert found == {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [{"metric": {}, "value": [began_s + 600.0, "4"]}],
        },
    }
    status, found = ask(
        node, "query_range", query='shop_visits_total{http_route="/a"}', start=began_s,
        end=began_s + 120, step="1m", form=form,
    )  # fmt: skip
    (series,) = found["data"]["result"]
    assert series["metric"] == {
        "__name__": "shop_visits_total", "http_route": "/a", "job": "shop",
    }  # fmt: skip
    assert series["values"] == [[began_s, "0"], [began_s + 60, "120"], [began_s + 120, "240"]]


def test_series_labels_values_and_metadata_are_listed(node, began_s):
    match = {"match": ['shop_visits_total{http_route=~"/[ab]"}', "nothing"]}
    _, found = ask(node, "series", **match)
    assert [one["http_route"] for one in found["data"]] == ["/a", "/b"]
    assert ask(node, "labels", form=True)[1]["data"] == ["__name__", "http_route", "job"]
    assert ask(node, "label/http_route/values")[1]["data"] == ["/a", "/b"]
    assert "shop_visits_total" in ask(node, "label/__name__/values")[1]["data"]
    assert ask(node, "series", limit=1, **match)[1]["warnings"] == [
        "results truncated due to limit"
    ]
    assert ask(node, "metadata")[1]["data"] == {
        "shop_visits_total": [{"type": "counter", "unit": "{visit}", "help": ""}]
    }
    assert ask(node, "status/buildinfo")[1]["data"]["version"].startswith("2.")


@pytest.mark.parametrize(
    ("route", "given", "status", "words"),
    [
        ("query", {"query": "rate(x)"}, 400, "not valid PromQL"),
        ("query", {}, 400, 'invalid parameter "query"'),
        ("query", {"query": "1", "time": "noon"}, 400, 'invalid parameter "time"'),
        ("query_range", {"query": "1", "start": 0, "end": 1e7, "step": 1}, 400, "11,000 points"),
        ("query", {"query": "info(x)"}, 501, "the function info is not supported"),
        ("series", {}, 400, "no match[] parameter provided"),
        ("query", {"query": "1", "limit": "x"}, 400, "the parameters do not match"),
    ],
)
def test_errors_have_the_form_of_prometheus(node, route, given, status, words):
    found_status, found = ask(node, route, **given)
    assert (found_status, found["status"], found["errorType"]) == (status, "error", "bad_data")
    assert words in found["error"]
