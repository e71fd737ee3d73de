"""The page about alerts: its rules are rules, its queries run, its receiver checks signatures."""

import re
from pathlib import Path

import thermocline as tc
from thermocline.alert import alerter, evaluate, rule, rule_book, state, webhook
from thermocline.alert.evaluate import ask_lake
from thermocline.alert.history import HISTORY, AlertHistory
from thermocline.alert.rule import read_rules
from thermocline.alert.rule_book import put_rule, read_rule_book
from thermocline.config import AlertSettings
from thermocline.ingest.otlp.tables import LOGS, METRIC_POINTS

PAGE = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_rules_and_queries_of_the_page_run(tmp_path):
    path = tmp_path / "rules.toml"
    (text,) = blocks("toml")
    path.write_text(text)
    rules = read_rules(str(path))
    assert {one.kind for one in rules} == set(rule.KINDS)
    with tc.connect(tmp_path / "lake") as lake:
        for table in (LOGS, METRIC_POINTS):
            made = lake.create_table(table.name, **table.creation_options(), schema=table.schema)
            assert made.schema() is not None
        for one in rules:
            put_rule(lake, one)
            found = evaluate.evaluate(lake, one, 1_717_200_000_000_000_000, ask_lake(lake))
            assert isinstance(found, dict)
        assert read_rule_book(lake)[0].keys() == {one.name for one in rules}
        beat = alerter.LakeAlerts(lake, lambda *_: None, ask_lake(lake))
        beat.set_rules({one.name: (one, "") for one in rules})
        beat.evaluate_due()
        (query,) = blocks("sql")
        assert "watchdog" in lake.sql(query).column("rule").to_pylist()
        assert AlertHistory(lake).load()[0].keys() >= {"watchdog"}
        assert HISTORY in lake.tables()


def test_the_receiver_of_the_page_accepts_what_is_signed_and_nothing_else():
    (program,) = blocks("python")
    names = {}
    exec(program, names)
    header = webhook.sign(b"key", b"{}", 1_700_000_000)
    assert names["is_genuine"]("key", header, b"{}")
    assert not names["is_genuine"]("key", header, b"{} ")
    assert not names["is_genuine"]("other", header, b"{}")


def test_the_numbers_of_the_page_are_those_of_the_code():
    assert f"{evaluate.ALERTS_MAX:,} alerts" in PAGE
    assert f"at most {rule.WEBHOOKS_MAX} addresses" in PAGE
    assert (rule.EVERY_S_MIN, rule.EVERY_S_MAX) == (10, 86_400)
    assert (alerter.RETRY_S, alerter.RETRY_S_MAX, alerter.DELIVER_S_MAX) == (2, 300, 86_400)
    assert AlertSettings().alert_rules_max == rule_book.RULES_MAX_DEFAULT
    for word in (state.PENDING, state.FIRING, state.RESOLVED, state.CLEARED):
        assert f"| `{word}` |" in PAGE
