"""The queries for the person on call, on telemetry whose answers are known."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import thermocline as tc
from thermocline.ingest.otlp.tables import TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "sre.md").read_text()
QUERIES = {
    int(number): text
    for number, text in re.findall(r"^```sql\n-- (\d+)\. [^\n]*\n(.*?)^```", PAGE, re.S | re.M)
}
LINES_MAX = 5


class Telemetry:
    """Rows of one shop and one bank, from half an hour ago on, at full minutes."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        self.start = now.replace(second=0, microsecond=0) - timedelta(minutes=30)
        self.rows: dict[str, list[dict]] = {name: [] for name in TABLES}

    def add(self, table, minute, **columns):
        moment = self.start + timedelta(minutes=minute)
        row = {"ts": moment, "ts_ns": int(moment.timestamp()) * 10**9, **columns}
        self.rows[table].append(row)

    def at(self, minute):
        return self.start + timedelta(minutes=minute)

    def start_ns(self, minute=-60):
        return int(self.at(minute).timestamp()) * 10**9


def add_metrics(sent):
    """Add a counter with a restart and a hole, a gauge, and histograms of requests."""
    visits = {"metric": "shop.visits", "type": "sum", "temporality": "cumulative"}
    for minute, value, began in ((0, 60, -60), (1, 180, -60), (4, 30, 3), (5, 90, 3)):
        sent.add(
            "metric_points",
            minute,
            service_name="shop",
            host_name="a",
            series_id=1,
            is_monotonic=True,
            value=float(value),
            start_ns=sent.start_ns(began),
            **visits,
        )
    for host, values in (("a", (10.0, 30.0)), ("b", (50.0, 45.0))):
        for minute, value in zip((20, 25), values, strict=True):
            sent.add(
                "metric_points",
                minute,
                service_name="shop",
                host_name=host,
                series_id=ord(host),
                metric="queue.length",
                type="gauge",
                value=value,
            )
    for series, code, counts in ((10, 200, (80, 20, 0)), (11, 503, (0, 0, 25))):
        for minute in (10, 11):
            sent.add(
                "metric_histograms",
                minute,
                service_name="shop",
                series_id=series,
                metric="http.server.request.duration",
                type="histogram",
                temporality="delta",
                attributes=f'{{"http.response.status_code":{code},"http.route":"/basket"}}',
                bounds=[0.1, 1.0],
                bucket_counts=list(counts),
                count=sum(counts),
                sum=sum(counts) * 0.5,
                start_ns=sent.start_ns(minute - 1),
            )


@pytest.fixture
def sent():
    made = Telemetry()
    add_metrics(made)
    for minute, service, severity in ((20, "shop", 17), (29, "shop", 21), (29, "bank", 9)):
        made.add("logs", minute, service_name=service, severity_number=severity)
    for minute, name, ms in (
        (25, "GET /basket", 120),
        (26, "GET /basket", 20),
        (27, "POST /pay", 50),
    ):
        made.add(
            "spans",
            minute,
            service_name="shop",
            name=name,
            duration_ns=ms * 10**6,
            trace_id=bytes([ms]) * 16,
        )
    return made


@pytest.fixture
def ask(tmp_path, sent):
    """Answer a query of the page over half flushed and half hot rows."""
    with tc.connect(tmp_path / "lake") as lake:
        for table in TABLES.values():
            made = lake.create_table(table.name, **table.creation_options())
            made.cold.adopt_columns(table.schema, evolve=True)
            rows = sent.rows[table.name]
            made.write(rows[::2])
            made.flush()
            made.write(rows[1::2])
        yield lambda number: lake.sql(QUERIES[number]).to_pylist()


def test_the_page_has_ten_queries_of_at_most_five_lines():
    assert sorted(QUERIES) == list(range(1, 11))
    lengths = {number: len(text.splitlines()) for number, text in QUERIES.items()}
    assert max(lengths.values()) <= LINES_MAX, lengths


def test_1_visits_a_second_mind_a_restart_and_a_hole(ask, sent):
    found = [(one["ts"], one["service_name"], one["visits_per_second"]) for one in ask(1)]
    assert found == [
        (sent.at(0), "shop", None),  # it began an hour before: what came when is not known
        (sent.at(1), "shop", 2.0),
        (sent.at(4), "shop", 0.5),
        (sent.at(5), "shop", 1.0),
    ]


def test_2_requests_a_second_by_route(ask, sent):
    assert [tuple(one.values()) for one in ask(2)] == [
        (sent.at(minute), "shop", "/basket", pytest.approx(125 / 60)) for minute in (10, 11)
    ]


def test_3_the_share_that_failed(ask):
    assert ask(3) == [{"service_name": "shop", "requests": 250.0, "failed": 0.2}]


def test_4_how_long_requests_took(ask, sent):

    found = ask(4)
    assert [(one["ts"], one["mean"]) for one in found] == [(sent.at(10), 0.5), (sent.at(11), 0.5)]
    assert {one["p95"] for one in found} == {1.0}


def test_5_which_gauges_grew(ask):
    assert [(one["host_name"], one["growth"]) for one in ask(5)][:2] == [("a", 20.0), ("b", -5.0)]


def test_6_a_chart_without_holes(ask, sent):
    assert [(one["ts"], one["visits_per_second"]) for one in ask(6)] == [
        (sent.at(minute), rate)
        for minute, rate in ((0, None), (1, 2.0), (2, None), (3, None), (4, 0.5), (5, 1.0))
    ]


def test_7_errors_by_service(ask):
    assert ask(7) == [{"service_name": "shop", "errors": 2}]


def test_8_the_slowest_routes(ask):
    found = [(one["name"], one["spans"], one["worst"]) for one in ask(8)]
    assert found == [("GET /basket", 2, bytes([120]) * 16), ("POST /pay", 1, bytes([50]) * 16)]


def test_9_what_stopped_sending(ask, sent):
    found = {(one["service_name"], one["host_name"]): one["last_seen"] for one in ask(9)}
    assert found in ({}, {("shop", "a"): sent.at(25), ("shop", "b"): sent.at(25)})
    assert found or datetime.now(UTC) - sent.at(25) < timedelta(minutes=6)


def test_10_minutes_without_logs(ask, sent):
    gaps = {(one["start"], one["end"]) for one in ask(10) if one["service_name"] == "shop"}
    assert gaps == {(sent.at(21), sent.at(29))}
