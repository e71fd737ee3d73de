"""Metrics: what is counted, what is told of the node, and what never is a label."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fixtures.timing import at_best
from fixtures.wal import calm, ticks
from thermocline.config import LakeSettings
from thermocline.node import Node
from thermocline.server.observe.metrics import LABELS_MAX, Metrics


def samples(metrics):
    """Return every sample of a scrape by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics, name, **labels):
    return samples(metrics)[(name, tuple(sorted(labels.items())))]


@pytest.fixture
def node(tmp_path):
    with Node(str(tmp_path / "lake"), calm()) as node:
        yield node


def test_requests_rows_and_queries_are_counted():
    metrics = Metrics()
    metrics.count_request("http", "/v1/metrics", 200, 0.003)
    metrics.count_request("http", "/v1/metrics", 200, 0.003)
    metrics.count_request("http", "/v1/metrics", 429, 0.001)
    metrics.count_ingested("metrics", 1_000, 50_000)
    metrics.count_rejected("logs", 3)
    metrics.count_query("ok", 0.2)
    labels = {"listener": "http", "route": "/v1/metrics"}
    assert value(metrics, "thermocline_requests_total", **labels, status="200") == 2
    assert value(metrics, "thermocline_requests_total", **labels, status="429") == 1
    assert value(metrics, "thermocline_request_seconds_count", listener="http") == 3
    assert value(metrics, "thermocline_ingested_rows_total", signal="metrics") == 1_000
    assert value(metrics, "thermocline_ingested_bytes_total", signal="metrics") == 50_000
    assert value(metrics, "thermocline_rejected_rows_total", signal="logs") == 3
    assert value(metrics, "thermocline_queries_total", outcome="ok") == 1
    assert value(metrics, "thermocline_query_seconds_count") == 1


def test_two_nodes_in_a_process_do_not_share_counters():
    one, two = Metrics(), Metrics()
    one.count_query("ok", 0.1)
    two.count_query("error", 0.1)
    assert ("thermocline_queries_total", (("outcome", "ok"),)) not in samples(two)


def test_the_node_is_told_as_it_is_at_the_scrape(node):
    metrics = Metrics()
    metrics.watch(node, lambda: True)
    table = node.lake().create_table("m", time_column="ts", bucket="1h")
    before = value(metrics, "thermocline_journal_next_lsn")
    table.write(ticks(1, 2, 3))
    assert value(metrics, "thermocline_journal_next_lsn") == before + 1
    assert value(metrics, "thermocline_hot_bytes") == node.tier.hot_bytes > 0
    assert value(metrics, "thermocline_hot_bytes_max") == node.tier.hot_bytes_max
    assert value(metrics, "thermocline_flush_age_seconds") > 0
    assert value(metrics, "thermocline_ready") == 1
    assert value(metrics, "thermocline_flush_failing") == 0
    assert value(metrics, "thermocline_journal_failed") == 0
    assert value(metrics, "process_resident_memory_bytes") > 1 << 20
    node.flush()
    assert value(metrics, "thermocline_hot_bytes") == 0
    assert value(metrics, "thermocline_flush_age_seconds") == 0


def test_the_processes_that_run_queries_are_counted(tmp_path):
    with Node(str(tmp_path / "lake"), LakeSettings(query_workers=1)) as node:
        metrics = Metrics()
        metrics.watch(node)
        node.lake().create_table("m", time_column="ts", bucket="1h").write(ticks(1))
        before = value(metrics, "thermocline_query_workers")
        node.lake().sql("select n from m")
        assert (before, value(metrics, "thermocline_query_workers")) == (0, 1)


def test_a_node_that_was_closed_can_still_be_scraped(tmp_path):
    metrics = Metrics()
    with Node(str(tmp_path / "lake"), calm()) as node:
        metrics.watch(node, lambda: False)
    assert value(metrics, "thermocline_ready") == 0


def test_before_the_node_is_open_a_scrape_says_that_it_is_not_ready():
    metrics = Metrics()
    assert value(metrics, "thermocline_ready") == 0
    assert "thermocline_hot_bytes " not in metrics.render().decode()


def test_O08_no_tenant_table_or_key_is_in_a_scrape(node):
    metrics = Metrics()
    metrics.watch(node)
    lake = node.create_tenant("secretive")
    lake.create_table("hush", time_column="ts", bucket="1h").write(ticks(1))
    text = metrics.render().decode()
    assert "secretive" not in text
    assert "hush" not in text


def test_O08_labels_have_a_limit_whatever_they_are_called():
    metrics = Metrics()
    for number in range(LABELS_MAX * 2):
        metrics.count_request("api", f"/made/{number}", 404, 0.001)
    made = [key for key in samples(metrics) if key[0] == "thermocline_requests_total"]
    assert len(made) <= LABELS_MAX
    other = {"listener": "other", "route": "other", "status": "other"}
    assert value(metrics, "thermocline_requests_total", **other) >= LABELS_MAX


def test_O08_a_scraper_that_hammers_gets_the_same_answer_for_a_while():
    now = [0.0]
    metrics = Metrics(keep_s=1.0, now_s=lambda: now[0])
    first = metrics.render()
    metrics.count_query("ok", 0.1)
    assert metrics.render() is first
    now[0] += 1.0
    assert metrics.render() != first


def test_counting_takes_microseconds():
    metrics = Metrics()

    def act():
        began_s = time.thread_time()
        for _ in range(2_000):
            metrics.count_request("http", "/v1/metrics", 200, 0.003)
        return (time.thread_time() - began_s) / 2_000

    assert at_best(act, lambda each_s: each_s < 100e-6) < 100e-6
