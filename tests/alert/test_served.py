"""Alerts of a real node: set over HTTP, sent to a real receiver, through a kill -9."""

import http.server
import json
import threading
import time
from datetime import UTC, datetime

import pytest

from fixtures.served import ServedNode
from thermocline.alert.keeper import tenant_key
from thermocline.alert.webhook import is_signed
from thermocline.cli.main import run

WAIT_S = 180


@pytest.fixture
def receiver():
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((json.loads(body), self.headers["X-Thermocline-Signature"], body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", seen
    server.shutdown()
    server.server_close()


def wait_until(what):
    end_s = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < end_s
        time.sleep(0.2)
    return found


def test_a_firing_is_delivered_signed_and_not_again_after_a_kill(tmp_path, receiver, capfd):
    url, seen = receiver
    data = str(tmp_path / "data")
    words = ("--set", "alert_hosts=127.0.0.1", "--set", "alert_signing_key=secret")
    node = ServedNode(data, *words).ready()
    try:
        table = {"name": "t", "time_column": "ts", "bucket": "1h", "entity_columns": ["host"]}
        assert node.ask("/api/v1/tables", table)[0] == 201
        row = {"ts": datetime.now(UTC).isoformat(), "host": "a"}
        assert node.ask("/api/v1/tables/t/rows", [row])[0] == 200
        rule = {
            "kind": "sql",
            "every": "10s",
            "query": "select host, count(*) as value from t where ts <= $now group by host",
            "annotations": {"summary": "{host} has {value}"},
            "webhooks": [url],
        }
        status, answer, _ = node.ask("/api/v1/alerts/rules/rows", rule, method="PUT")
        assert (status, answer["rule"]["every"]) == (200, "10s")
        elsewhere = {**rule, "webhooks": ["http://169.254.169.254/latest"]}
        assert node.ask("/api/v1/alerts/rules/bad", elsewhere, method="PUT")[0] == 400
        wait_until(lambda: seen)
        body, signature, raw = seen[0]
        (alert,) = body["alerts"]
        assert (alert["status"], alert["labels"]["host"]) == ("firing", "a")
        assert alert["annotations"] == {"summary": "a has 1"}
        assert is_signed(tenant_key("secret", "default"), raw, signature, now_s=time.time())
        found = node.ask("/api/v1/alerts/signing_key")[1]
        assert found == {"key": tenant_key("secret", "default").decode()}
        asked = wait_until(
            lambda: (got := node.ask("/api/v1/alerts")[1]) and got["delivered"] and got
        )
        assert asked["rules"][0]["state"] == "firing"
        node.kill()
        node = ServedNode(data, *words).ready()
        wait_until(
            lambda: (got := node.ask("/api/v1/alerts")[1]["rules"]) and got[0]["evaluations"] >= 2
        )
        assert node.ask("/api/v1/alerts")[1]["rules"][0]["state"] == "firing"
        assert len(seen) == 1
        text = node.ask("/metrics")[1]
        assert "thermocline_alerts_firing 1.0" in str(text)
        assert "secret" not in json.dumps(node.ask("/api/v1/config")[1])
        test = {"name": "rows", "start": row["ts"], "end": datetime.now(UTC).isoformat()}
        changes = node.ask("/api/v1/alerts/test", test)[1]
        assert [one["state"] for one in changes["rows"]] == ["firing"]
        address = f"http://127.0.0.1:{node.port('api')}"
        capfd.readouterr()
        assert run(["alert", "list", address, "--json"]) == 0
        listed = json.loads(capfd.readouterr().out)
        assert [(one["rule"], one["state"]) for one in listed["alerts"]] == [("rows", "firing")]
        assert run(["alert", "remove", address, "rows"]) == 0
        wait_until(lambda: len(seen) == 2)
        assert seen[1][0]["alerts"][0]["status"] == "resolved"
    finally:
        node.kill()
