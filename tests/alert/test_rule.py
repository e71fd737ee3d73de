"""Rules: read strictly, kept exactly, and run over the past."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from fixtures.wal import opened
from thermocline.alert.backtest import run_over
from thermocline.alert.evaluate import ask_lake, evaluate, find_alerts
from thermocline.alert.payload import encode_payload, fill
from thermocline.alert.rule import parse_rule, read_rules, rule_fields
from thermocline.alert.rule_book import put_rule, read_rule_book, remove_rule
from thermocline.errors import Invalid, NotFound, Overloaded
from thermocline.format.instant import from_datetime
from thermocline.ingest.otlp.tables import METRIC_POINTS

BASE = datetime(2024, 6, 1, tzinfo=UTC)
SQL_RULE = {
    "name": "errors",
    "kind": "sql",
    "every": "1m",
    "for": "2m",
    "query": "select host, count(*) as value from t where ts > $now - interval '1 minute' "
    "and ts <= $now group by host having count(*) >= 3",
    "labels": {"severity": "page"},
    "annotations": {"summary": "{host} has {value} errors"},
    "webhooks": ["https://hooks.example.com/x"],
}
GAP_RULE = {"name": "gap", "kind": "gap", "table": "t", "within": "1h", "lag": "5m"}
SILENCE_RULE = {"name": "silent", "kind": "silence", "table": "t", "within": "30m"}


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("rules") / "lake") as made:
        table = made.create_table("t", time_column="ts", bucket="1m", entity_columns=["host"])
        rows = []
        for minute in range(120):
            for host in ("a", "b"):
                is_silent = host == "b" and 30 <= minute < 75
                burst = 4 if host == "a" and 60 <= minute < 66 else 1
                if not is_silent:
                    at = BASE + timedelta(minutes=minute)
                    rows += [
                        {"ts": at + timedelta(seconds=n + 1), "host": host} for n in range(burst)
                    ]
        table.write(rows)
        yield made


def test_a_rule_is_kept_as_it_was_written():
    for given in (SQL_RULE, GAP_RULE, SILENCE_RULE):
        rule = parse_rule(given)
        assert parse_rule(rule_fields(rule)) == rule


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "magic"}, Invalid),
        ({"name": "a b"}, Invalid),
        ({"every": "1s"}, Invalid),
        ({"every": True}, Invalid),
        ({"quary": "x"}, Invalid),
        ({"table": "t"}, Invalid),
        ({"query": ""}, Invalid),
        ({"labels": {"a b": "x"}}, Invalid),
        ({"labels": [1]}, Invalid),
        ({"webhooks": ["ftp://x"]}, Invalid),
        ({"webhooks": ["http://user:pw@x/"]}, Invalid),
        ({"webhooks": ["http://x/\nHost: y"]}, Invalid),
        ({"webhooks": "https://x"}, Invalid),
        ({"webhooks": ["https://x"] * 6}, Invalid),
    ],
)
def test_a_wrong_rule_is_refused(change, error):
    with pytest.raises(error):
        parse_rule({**SQL_RULE, **change})


def test_a_file_of_rules_is_read_whole_or_refused(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nname = "a"\nkind = "deadman"\nrepeat = "5m"\n')
    assert [one.name for one in read_rules(str(path))] == ["a"]
    for text in ("rules = 1", "x = 1", "[[rules]]", path.read_text() * 2, "[["):
        path.write_text(text)
        with pytest.raises(Invalid):
            read_rules(str(path))
    with pytest.raises(NotFound):
        read_rules(str(tmp_path / "missing"))


def minutes(found):
    return [
        (one.state, one.labels, (one.at_ns - from_datetime(BASE)) // 60_000_000_000)
        for one in found
    ]


def run(lake, given, end=150):
    rule = parse_rule(given)
    start_ns, end_ns = (from_datetime(BASE + timedelta(minutes=n)) for n in (10, end))
    return minutes(run_over(lake, rule, start_ns, end_ns, ask_lake(lake)))


def test_a_test_over_the_past_says_when_a_query_would_have_fired(lake):
    host_a = '{"host":"a"}'
    assert run(lake, SQL_RULE) == [
        ("pending", host_a, 61),
        ("firing", host_a, 63),
        ("resolved", host_a, 67),
    ]


def test_a_test_over_the_past_says_when_an_entity_was_silent(lake):
    found = run(lake, SILENCE_RULE, end=115)
    assert [(state, labels) for state, labels, _ in found] == [
        ("firing", '{"host":"b"}'),
        ("resolved", '{"host":"b"}'),
    ]
    assert [at for _, _, at in found] == [60, 76]


def test_a_test_over_the_past_says_when_buckets_were_missing(lake):
    found = run(lake, GAP_RULE, end=118)
    assert found[0][:2] == ("firing", '{"host":"b"}')
    assert (found[0][2], found[-1][0]) == (36, "firing")


def test_a_rule_that_cannot_be_run_over_the_past_is_refused(lake):
    for change in ({"query": "select host from t where ts > now()"},):
        with pytest.raises(Invalid, match="takes"):
            run(lake, {**SQL_RULE, **change})
    with pytest.raises(Overloaded):
        run(lake, {**SQL_RULE, "every": "10s"}, end=10_000)


def test_labels_are_texts_and_whole_numbers_and_tell_alerts_apart():
    rows = pa.table({"host": ["a", None], "code": [500, 501], "value": [1, 2], "x": [0.5, 0.5]})
    assert find_alerts(rows) == {'{"code":"500","host":"a"}': 1.0, '{"code":"501","host":""}': 2.0}
    with pytest.raises(Invalid, match="same labels"):
        find_alerts(pa.table({"host": ["a", "a"]}))
    with pytest.raises(Overloaded):
        find_alerts(pa.table({"host": [str(n) for n in range(1_001)]}))


def test_a_rule_passes_the_same_gate_as_a_query(lake):
    rule = parse_rule({**SQL_RULE, "query": "select * from read_text('/etc/passwd')"})
    with pytest.raises(Invalid):
        evaluate(lake, rule, from_datetime(BASE), ask_lake(lake))


def test_rules_in_the_table_are_limited_replaced_and_removed(lake):
    put_rule(lake, parse_rule(SQL_RULE), rules_max=1)
    put_rule(lake, parse_rule({**SQL_RULE, "every": "2m"}), rules_max=1)
    with pytest.raises(Overloaded):
        put_rule(lake, parse_rule(GAP_RULE), rules_max=1)
    rules, wrong = read_rule_book(lake)
    assert ({name: one.every_s for name, one in rules.items()}, wrong) == ({"errors": 120}, {})
    lake.table("alert_rules").write(
        [{"ts": BASE, "seq": 1, "name": "odd", "rule": '{"kind": 1}', "is_removed": False}]
    )
    assert read_rule_book(lake)[1].keys() == {"odd"}
    remove_rule(lake, "errors")
    assert read_rule_book(lake)[0] == {}
    with pytest.raises(NotFound):
        remove_rule(lake, "errors")


def test_texts_of_an_alert_have_its_labels_and_value():
    assert fill("{host}: {value} {other}", {"host": "{value}"}, 2.5) in (
        "2.5: 2.5 {other}",
        "{value}: 2.5 {other}",
    )
    assert callable(encode_payload)


def test_each_series_of_a_promql_rule_is_an_alert(tmp_path):
    with opened(tmp_path / "lake") as lake:
        options = METRIC_POINTS.creation_options()
        table = lake.create_table("metric_points", schema=METRIC_POINTS.schema, **options)
        rows = []
        for second in range(0, 600, 15):
            at = BASE + timedelta(seconds=second)
            for place, (host, value) in enumerate(
                (("a", 5.0), ("b", 90.0 if second > 300 else 1.0))
            ):
                rows.append(
                    {
                        "ts": at,
                        "ts_ns": from_datetime(at),
                        "series_id": place,
                        "metric": "queue.depth",
                        "type": "gauge",
                        "attributes": f'{{"host":"{host}"}}',
                        "resource": "{}",
                        "service_name": "shop",
                        "value": value,
                        "flags": 0,
                    }
                )
        table.write(rows)
        rule = {"name": "deep", "kind": "promql", "query": "queue_depth > 50", "every": "1m"}
        start_ns, end_ns = (from_datetime(BASE + timedelta(minutes=n)) for n in (1, 9))
        found = list(run_over(lake, parse_rule(rule), start_ns, end_ns, ask_lake(lake)))
        assert [(one.state, json.loads(one.labels)["host"], one.value) for one in found] == [
            ("firing", "b", 90.0)
        ]
        assert (found[0].at_ns - from_datetime(BASE)) // 60_000_000_000 == 6
        scalar = parse_rule({**rule, "query": "1 > bool 0"})
        with pytest.raises(Invalid, match="instant vector"):
            evaluate(lake, scalar, end_ns, ask_lake(lake))
