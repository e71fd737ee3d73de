"""What Grafana is given asks what a node answers: each request, made as Grafana makes it."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from fixtures.served import ServedNode

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "thermocline.json").read_text())
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
    yield served
    served.stop()


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
    (source,) = SOURCES["datasources"]
    for panel in BOARD["panels"]:
        assert panel["datasource"] == {"type": source["type"], "uid": source["uid"]}
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
