"""What Grafana is given asks what a node answers: each request, made as Grafana makes it."""

import json
import re
import struct
import time
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fixtures.served import ServedNode
from thermocline.ingest.otlp.varint import encode_bytes, encode_varint

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARDS = DEPLOY / "grafana" / "dashboards"
BOARD = json.loads((DASHBOARDS / "thermocline.json").read_text())
METRIC_BOARDS = [
    json.loads((DASHBOARDS / f"{name}.json").read_text()) for name in ("services", "node")
]
METRIC_TARGETS = [
    (panel["title"], target)
    for board in METRIC_BOARDS
    for panel in board["panels"]
    for target in panel["targets"]
]
SOURCES = yaml.safe_load(
    (DEPLOY / "grafana" / "provisioning" / "datasources" / "thermocline.yaml").read_text()
)
PROVIDERS = yaml.safe_load(
    (DEPLOY / "grafana" / "provisioning" / "dashboards" / "thermocline.yaml").read_text()
)
COMPOSE = yaml.safe_load((DEPLOY / "compose.grafana.yaml").read_text())
TARGETS = [(panel["title"], target) for panel in BOARD["panels"] for target in panel["targets"]]


def nanoseconds(ago_s):
    return str(time.time_ns() - int(ago_s * 1e9))


def filled(text, ago_s):
    """Put the stretch that is looked at into a query, as Grafana does."""
    first_s, last_s = time.time() - ago_s, time.time() + 60
    for name, at_s in (("from", first_s), ("to", last_s)):
        iso = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
        text = text.replace(f"${{__{name}:date:iso}}", iso.replace("+00:00", "Z"))
        text = text.replace(f"${{__{name}}}", str(int(at_s * 1000)))
    assert "${" not in text
    return text


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    served = ServedNode(str(tmp_path_factory.mktemp("grafana"))).ready()
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    ids = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331"}
    now, then = nanoseconds(5), nanoseconds(6)
    sent = {
        "logs": {"timeUnixNano": now, "severityText": "INFO", "body": {"stringValue": "hello"}},
        "traces": {**ids, "name": "GET", "startTimeUnixNano": then, "endTimeUnixNano": now},
        "metrics": {
            "name": "up",
            "gauge": {"dataPoints": [{"timeUnixNano": now, "asInt": "1"}]},
        },
    }
    names = {
        "logs": ("resourceLogs", "scopeLogs", "logRecords"),
        "traces": ("resourceSpans", "scopeSpans", "spans"),
        "metrics": ("resourceMetrics", "scopeMetrics", "metrics"),
    }
    for signal, record in sent.items():
        outer, inner, last = names[signal]
        body = {outer: [{"resource": resource, inner: [{last: [record]}]}]}
        status, _, _ = served.ask(f"/v1/{signal}", body, listener="http")
        assert status == 200
    send_requests_of_a_service(served)
    send_own_numbers(served)
    yield served
    served.stop()


def send_requests_of_a_service(served):
    """Send the histogram of requests that OpenTelemetry's libraries make, at five times."""
    now_s = int(time.time())
    points = [
        {
            "timeUnixNano": str((now_s - 15 * (4 - turn)) * 10**9),
            "startTimeUnixNano": str((now_s - 3_600) * 10**9),
            "count": str(30 * turn),
            "sum": 3.0 * turn,
            "bucketCounts": [str(10 * turn), str(15 * turn), str(5 * turn)],
            "explicitBounds": [0.1, 1.0],
            "attributes": [
                {"key": "http.route", "value": {"stringValue": "/cart"}},
                {"key": "http.response.status_code", "value": {"intValue": status}},
            ],
        }
        for status in ("200", "500")
        for turn in range(5)
    ]
    metric = {
        "name": "http.server.request.duration",
        "unit": "s",
        "histogram": {"aggregationTemporality": 2, "dataPoints": points},
    }
    attributes = {"service.name": "shop", "service.instance.id": "shop-1", "host.name": "h"}
    resource = {
        "attributes": [
            {"key": key, "value": {"stringValue": text}} for key, text in attributes.items()
        ]
    }
    body = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}
    assert served.ask("/v1/metrics", body, listener="http")[0] == 200


def send_own_numbers(served):
    """Send the node's own numbers to it twice, as the scraper does: by remote write."""
    assert served.ask("/api/v1/query", {"sql": "select 1 as one"})[0] == 200
    assert served.ask("/write", "a text", listener="http")[0] == 400  # a row that is refused
    _, text, _ = served.ask("/metrics")
    labels = {"job": "thermocline", "instance": "node:4320"}
    for ago_s in (15, 0):
        series = b""
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                named = {"__name__": one.name, **one.labels, **labels}
                pairs = (
                    encode_bytes(1, encode_bytes(1, key.encode()) + encode_bytes(2, value.encode()))
                    for key, value in named.items()
                )
                sample = b"\x09" + struct.pack("<d", one.value)
                sample += b"\x10" + encode_varint(int((time.time() - ago_s) * 1000))
                series += encode_bytes(1, b"".join(pairs) + encode_bytes(2, sample))
        url = f"http://127.0.0.1:{served.port('http')}/api/v1/write"
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        data = pa.compress(series, codec="snappy", asbytes=True)
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as done:
            assert done.status == 204


def metric_query(text):
    """Put Grafana's variables into an expression, as Grafana does for the last hour."""
    replaced = {"$__rate_interval": "1m", "$__range": "1h", "$job": ".*", "$instance": ".*"}
    for name, value in replaced.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


@pytest.mark.parametrize(
    ("title", "target"), METRIC_TARGETS, ids=[title for title, _ in METRIC_TARGETS]
)
def test_every_panel_of_metrics_gets_an_answer(node, title, target):
    asked = {"query": metric_query(target["expr"]), "time": time.time()}
    route = "query"
    if target["range"]:
        route = "query_range"
        asked |= {"start": time.time() - 120, "end": time.time(), "step": "15"}
    base = f"http://127.0.0.1:{node.port('api')}/api/v1/prom/api/v1/{route}"
    with urllib.request.urlopen(base, urllib.parse.urlencode(asked).encode(), timeout=60) as told:
        found = json.loads(told.read())
    assert found["status"] == "success"
    assert "warnings" not in found
    assert found["data"]["result"], title
    legend = re.findall(r"{{(\w+)}}", target["legendFormat"])
    metric = found["data"]["result"][0]["metric"]
    assert set(legend) <= set(metric), (legend, metric)


def test_the_variables_of_the_boards_have_values(node):
    for board in METRIC_BOARDS:
        for variable in board["templating"]["list"]:
            metric, key = re.fullmatch(
                r"label_values\((\w+), (\w+)\)", variable["definition"]
            ).groups()
            path = f"/api/v1/prom/api/v1/label/{key}/values?match%5B%5D={metric}"
            assert node.ask(path)[1]["data"], variable["name"]


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=[title for title, _ in TARGETS])
def test_every_panel_gets_the_columns_it_names(node, title, target):
    options = target["url_options"]
    assert (options["method"], options["body_content_type"]) == ("POST", "application/json")
    status, answer, _ = node.ask(target["url"], json.loads(filled(options["data"], 3_600)))
    assert status == 200, answer
    rows = answer[target["root_selector"]]
    assert rows
    named = [column["selector"] for column in target["columns"]]
    assert [list(row) for row in rows] == [named] * len(rows)


def test_the_panels_ask_the_data_source_that_is_provisioned():
    source, metrics = SOURCES["datasources"]
    for panel in BOARD["panels"]:
        assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
    for board in METRIC_BOARDS:
        for panel in board["panels"]:
            assert panel["datasource"] == {"type": metrics["type"], "uid": metrics["uid"]}
    assert metrics["url"] == f"{source['url']}/api/v1/prom"
    assert source["url"].endswith(":4320")
    assert source["url"] in source["jsonData"]["allowedHosts"]


def test_the_compose_file_gives_grafana_its_files_and_a_key_that_may_only_query():
    grafana, key = COMPOSE["services"]["grafana"], COMPOSE["services"]["grafana-key"]
    (provider,) = PROVIDERS["providers"]
    mounted = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert provider["options"]["path"] in mounted.values()
    for path in mounted:
        if path.startswith("./"):
            assert (DEPLOY / path).is_dir()
    assert "--scope query" in key["command"][0]
    assert SOURCES["datasources"][0]["type"] in grafana["environment"]["GF_PLUGINS_PREINSTALL_SYNC"]
    assert all(port.startswith("127.0.0.1:") for port in grafana["ports"])
