"""PromQL over a lake's metric tables: names, labels, histograms, hot and cold rows."""

import json
from datetime import UTC, datetime

import pytest

import thermocline as tc
from thermocline.errors import Invalid, Overloaded, QueryTimeout
from thermocline.ingest.otlp.tables import TABLES
from thermocline.promql.evaluate import EvaluationLimits, evaluate_instant
from thermocline.promql.labels import Matcher
from thermocline.promql.notes import Notes
from thermocline.promql.reader import evaluate_instant_on, evaluate_range_on, open_source

START_S = 1_717_200_000
SHOP = {
    "service.name": "shop",
    "service.namespace": "eu",
    "service.instance.id": "a-1",
    "host.name": "h1",
}


def row(second, series_id, metric, kind, **columns):
    base = {
        "ts": datetime.fromtimestamp(START_S + second, UTC),
        "ts_ns": (START_S + second) * 10**9 + 123_456,
        "series_id": series_id,
        "metric": metric,
        "type": kind,
        "service_name": "shop",
        "resource": json.dumps(SHOP),
        "attributes": json.dumps({"http.route": "/a", "code": 200}),
        "flags": 0,
    }
    return base | columns


def counter(second, value, **columns):
    return row(
        second, 1, "http.server.requests", "sum", unit="{request}", temporality="cumulative",
        is_monotonic=True, value=value, **columns,
    )  # fmt: skip


def histogram(second, counts, **columns):
    return row(
        second, 9, "http.server.duration", "histogram", unit="s", temporality="cumulative",
        bounds=[0.1, 1.0], bucket_counts=counts, count=sum(counts), sum=float(sum(counts)),
        **columns,
    )  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    points = [counter(second, float(second)) for second in range(0, 601, 15)]
    points += [
        row(
            second, 2, "queue.depth", "gauge", value=None if second == 60 else 5.0,
            flags=int(second == 60), attributes=json.dumps({"0queue": "q", "a.b": "x", "a_b": "y"}),
        )
        for second in (0, 30, 60)
    ]  # fmt: skip
    points += [
        row(
            second, 3, "jobs", "sum", temporality="delta", is_monotonic=True, value=2.0,
            attributes="{}",
        )
        for second in range(0, 601, 60)
    ]  # fmt: skip
    points += [
        row(
            600, 4, "raw.metric", "unknown", scope_name="prometheus.remote_write", value=7.0,
            attributes=json.dumps({"_x": "1"}), resource=json.dumps({"service.name": "raw"}),
        ),
        row(600, 5, "memory.share", "gauge", unit="1", value=0.5),
    ]  # fmt: skip
    histograms = [histogram(second, [second, 2 * second, second]) for second in range(0, 601, 60)]
    histograms += [
        row(
            600, 10, "latency", "summary", unit="ms", count=4, sum=8.0,
            quantiles=[{"quantile": 0.5, "value": 1.5}, {"quantile": 0.9, "value": 3.0}],
        ),
        row(
            600, 11, "sizes", "exponential_histogram", unit="By", temporality="cumulative",
            count=3, sum=9.0, scale=0, positive_offset=0, positive_counts=[1, 2],
        ),
    ]  # fmt: skip
    with tc.connect(tmp_path_factory.mktemp("promql") / "lake") as opened:
        for name, rows in (("metric_points", points), ("metric_histograms", histograms)):
            table = TABLES[name]
            made = opened.create_table(name, **table.creation_options())
            made.cold.adopt_columns(table.schema, evolve=True)
            half = len(rows) // 2
            made.write(rows[:half])
            made.flush()
            made.write(rows[half:])  # hot
        yield opened


def instant(lake, text, second=600):
    value = evaluate_instant_on(lake, text, (START_S + second) * 1000).value
    return {
        tuple(f"{name}={text}" for name, text in labels): float(value.values[place, 0])
        for place, labels in enumerate(value.labels)
    }


SERIES = ("code=200", "http_route=/a", "instance=a-1", "job=eu/shop")


def test_a_counter_has_its_suffix_and_its_resource_as_job_and_instance(lake):
    assert instant(lake, 'http_server_requests_total{job="eu/shop"}') == {
        ("__name__=http_server_requests_total", *SERIES): 600.0
    }


def test_a_rate_reads_hot_and_cold_samples_once(lake):
    assert instant(lake, "rate(http_server_requests_total[5m])") == {SERIES: pytest.approx(1.0)}
    found = evaluate_range_on(
        lake, "sum(increase(http_server_requests_total[1m]))", (START_S + 120) * 1000,
        (START_S + 600) * 1000, 60_000,
    ).value  # fmt: skip
    assert found.values.tolist() == [pytest.approx([60.0] * 9)]


def test_labels_of_a_gauge_are_translated_and_a_mark_ends_its_series(lake):
    assert instant(lake, "queue_depth", 59) == {
        ("__name__=queue_depth", "a_b=x;y", "instance=a-1", "job=eu/shop", "key_0queue=q"): 5.0
    }
    assert instant(lake, "queue_depth", 60) == {}


def test_a_unit_becomes_a_suffix_and_remote_write_keeps_names(lake):
    assert ("__name__=memory_share_ratio", *SERIES) in instant(lake, "memory_share_ratio")
    assert instant(lake, '{__name__="raw.metric"}') == {
        ("__name__=raw.metric", "_x=1", "job=raw"): 7.0
    }


def test_deltas_are_added_up(lake):
    identity = ("instance=a-1", "job=eu/shop")
    assert instant(lake, "rate(jobs_total[5m])") == {identity: pytest.approx(2 / 60)}


def test_an_explicit_histogram_has_buckets_count_and_sum(lake):
    found = instant(lake, "http_server_duration_seconds_bucket")
    assert {key[-1]: value for key, value in found.items()} == {
        "le=0.1": 600.0, "le=1": 1_800.0, "le=+Inf": 2_400.0
    } or sorted(found.values()) == [600.0, 1_800.0, 2_400.0]  # fmt: skip
    assert list(instant(lake, 'http_server_duration_seconds_bucket{le="1"}').values()) == [1_800.0]
    assert list(instant(lake, "http_server_duration_seconds_count").values()) == [2_400.0]
    quantile = instant(
        lake, "histogram_quantile(0.5, rate(http_server_duration_seconds_bucket[5m]))"
    )
    assert quantile == {SERIES: pytest.approx(0.1 + 0.9 * 0.5)}


def test_a_summary_has_quantiles_and_an_exponential_histogram_says_what_it_lacks(lake):
    found = instant(lake, 'latency_milliseconds{quantile="0.9"}')
    assert list(found.values()) == [3.0]
    assert list(instant(lake, "sizes_bytes_count").values()) == [3.0]
    answer = evaluate_instant_on(lake, "sizes_bytes_bucket", (START_S + 600) * 1000)
    assert not answer.value.labels
    assert 'the exponential histogram "sizes_bytes" has no series' in next(
        iter(answer.notes.warnings)
    )


def test_target_info_has_the_rest_of_the_resource(lake):
    assert instant(lake, "target_info", 300) == {
        ("__name__=target_info", "host_name=h1", "instance=a-1", "job=eu/shop"): 1.0
    }
    joined = instant(
        lake, "http_server_requests_total * on(job, instance) group_left(host_name) target_info"
    )
    assert joined == {("code=200", "host_name=h1", *SERIES[1:]): 600.0}


def test_series_are_listed_with_the_bounds_of_histograms(lake):
    with open_source(lake) as (source, _):
        listed = source.list_series(
            [[Matcher("job", "=", "eu/shop")]], START_S * 1000, (START_S + 600) * 1000, Notes()
        )
    names = [dict(labels)["__name__"] for labels in listed]
    assert names.count("http_server_duration_seconds_bucket") == 3
    assert {"queue_depth", "latency_milliseconds", "target_info"} <= set(names)
    assert "raw.metric" not in names


def test_limits_end_a_query_by_name(lake):
    at_ms = (START_S + 600) * 1000
    limits = EvaluationLimits(samples_max=5)
    too_many = pytest.raises(Overloaded, match="more rows than the limit")
    with too_many, open_source(lake, limits=limits) as (source, _):
        evaluate_instant(source, "sum_over_time(http_server_requests_total[10m])", at_ms)
    with pytest.raises(QueryTimeout):
        evaluate_instant_on(lake, "http_server_requests_total", at_ms, timeout_s=0)
    with pytest.raises(Invalid, match="not valid PromQL"):
        evaluate_instant_on(lake, "rate(x)", at_ms)
