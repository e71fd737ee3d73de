"""status on the command line: a node's numbers, and its exit code."""

import json

import pytest

from fixtures.api import make_prices, price, serving
from thermocline.cli.node.status import parse_scrape


@pytest.fixture
def node(tmp_path):
    with serving(tmp_path) as served:
        with served.client() as client:
            make_prices(client)
            rows = json.dumps([price(hour) for hour in (0, 1, 4)])
            headers = {"Content-Type": "application/json"}
            client.post("/api/v1/tables/prices/rows", content=rows, headers=headers)
        yield served


def test_a_status_has_what_the_node_says_of_itself_and_of_its_tables(shell, node):
    told = shell.ok("status", "--url", node.url, "--json").json()
    assert (told["is_ready"], told["reasons"], told["warnings"]) == (True, [], [])
    assert told["hot_bytes"] == node.node.tier.hot_bytes > 0
    assert told["hot_bytes_max"] == node.node.tier.hot_bytes_max
    assert [(one["table"], one["hot_rows"]) for one in told["tables"]] == [("prices", 3)]
    lines = shell.ok("status", "--url", node.url).out.splitlines()
    assert lines[0] == f"{node.url}  ready"
    (line,) = [line for line in lines if line.startswith("table ")]
    assert line.startswith("table    prices  3 hot and 0 cold rows, newest 20")


def test_O02_a_node_that_is_not_ready_is_shown_with_its_reasons_and_exit_code_6(shell, node):
    parts = node.app.state.parts
    parts.health.report_stopping()
    ran = shell.run("status", "--url", node.url)
    assert ran.code == 6
    assert ran.out.splitlines()[0] == f"{node.url}  NOT READY: the node is stopping"


def test_a_node_that_does_not_answer_is_an_error_with_exit_code_6(shell):
    ran = shell.run("status", "--url", "http://127.0.0.1:1")
    assert (ran.code, ran.out) == (6, "")
    assert "the node cannot be reached" in ran.err


def test_rates_are_from_sums_over_all_labels():
    text = """# TYPE thermocline_ingested_rows counter
thermocline_info{version="1.2.3"} 1.0
thermocline_ingested_rows_total{signal="logs"} 5.0
thermocline_ingested_rows_total{signal="metrics"} 1e+06
"""
    scrape = parse_scrape(text, at_s=1.0)
    assert scrape.version == "1.2.3"
    assert scrape.sums["thermocline_ingested_rows_total"] == 1_000_005
