"""The screens of metrics, logs and traces, over what a real node took over OTLP."""

import time
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from console.filled import MARKUP
from console.telemetry import ORPHANS, TRACE, send_telemetry
from console.usable import check_usable
from fixtures.served import ServedNode

WAIT_S = 180
SCREENS = {
    "metrics": ("#/metrics", "td a"),
    "one metric": ("#/metrics/shop_visits_total?range=6+h", ".canvas canvas"),
    "logs": ("#/logs", ".loglines li"),
    "traces": ("#/traces", "td a"),
    "one trace": (f"#/traces/{TRACE}", ".waterfall li"),
    "alerts": ("#/alerts", "[aria-labelledby=changes] td"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with ServedNode(str(tmp_path_factory.mktemp("telemetry"))).ready() as served:
        send_telemetry(served)
        set_rules(served)
        yield SimpleNamespace(url=f"http://127.0.0.1:{served.port('api')}")


def set_rules(served):
    """Set a rule that fires at once and one that cannot be evaluated, and wait for both."""
    refused = f"""
        select service_name, '{MARKUP}' as markup, count(*) as value from logs
        where has_token(body, 'refused') group by all"""
    for name, query in (("refused", refused), ("broken", "select nothing from nowhere")):
        rule = {"kind": "sql", "every": "10s", "query": query}
        assert served.ask(f"/api/v1/alerts/rules/{name}", rule, method="PUT")[0] == 200
    end_s = time.monotonic() + WAIT_S
    states = {}
    while states != {"refused": "firing", "broken": "error"}:
        assert time.monotonic() < end_s, states
        time.sleep(0.2)
        states = {one["name"]: one["state"] for one in served.ask("/api/v1/alerts")[1]["rules"]}


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_of_telemetry_is_usable_at_both_widths_and_in_both_themes(watched, screen):
    check_usable(watched, *SCREENS[screen])


def test_a_counter_is_drawn_as_a_rate_and_a_histogram_as_a_quantile(watched):
    with watched() as one:
        page = one.open("#/metrics")
        page.get_by_role("link", name="shop_visits_total").click()
        canvas = page.locator(".canvas")
        canvas.wait_for()
        assert page.get_by_label("PromQL").input_value().startswith("sum by (job) (rate(")
        assert canvas.get_attribute("data-lines") == "1"
        page.get_by_text("Rate of each series").click()
        one.until("document.querySelector('.canvas')?.dataset.lines === '2'")
        legend = page.locator(".legend").inner_text()
        assert 'route="/pay"' in legend
        one.go("#/metrics/shop_latency_milliseconds?range=6+h")
        one.until("document.querySelector('.canvas')?.ariaLabel.startsWith('{}')")
        page.get_by_label("PromQL").fill("sum(")
        page.get_by_role("button", name="Draw").click()
        page.locator("[data-state=error]").wait_for()


def test_a_search_of_logs_finds_words_and_levels_and_leads_to_the_trace(watched):
    with watched() as one:
        page = one.open("#/logs")
        lines = page.locator(".loglines li")
        lines.first.wait_for()
        assert lines.count() == 60
        assert page.locator(".bars rect.kind-error").count() >= 1
        page.get_by_label("Whole words").fill("refused")
        page.get_by_role("button", name="Search").click()
        one.until("document.querySelectorAll('.loglines li').length === 6")
        page.get_by_label("At least").select_option("error")
        one.settled()
        page.get_by_role("button", name="order 10 refused").click()
        about = page.locator(".about")
        assert MARKUP in about.inner_text()  # as text: the page has no such element
        about.get_by_role("link", name="Its trace").click()
        page.locator(".waterfall li").first.wait_for()
        assert TRACE in page.url


def test_the_lines_around_one_are_those_of_two_minutes(watched):
    with watched() as one:
        page = one.open(f"#/logs?q={quote('order 10')}")
        page.locator(".loglines .line").first.click()
        page.get_by_role("link", name="minute before and after").click()
        one.until("document.querySelectorAll('.loglines li').length === 60")
        page.get_by_role("button", name="Leave the minute").click()
        one.settled()
        assert "around=2" not in page.url


def test_a_trace_is_a_waterfall_with_parents_above_their_children(watched):
    with watched() as one:
        page = one.open("#/traces")
        page.locator("td a").first.wait_for()
        page.get_by_text("Errors only").click()
        page.get_by_role("button", name="Search").click()
        one.until("document.querySelectorAll('tbody tr').length === 1")
        page.locator("td a").click()
        page.locator(".waterfall li").first.wait_for()
        names = page.locator(".waterfall .who").all_inner_texts()
        assert [name.strip() for name in names] == [
            f"GET /pay {MARKUP}", "check basket", "error charge",
        ]  # fmt: skip
        bars = page.evaluate(
            "[...document.querySelectorAll('.extent')]"
            ".map((bar) => [bar.style.left, bar.style.width])"
        )
        assert bars[0] == ["0%", "100%"]
        assert bars[2][0].startswith("33.3")
        page.get_by_role("button", name="charge").click()
        assert "timeout" in page.locator(".about").inner_text()


def test_a_trace_id_leads_to_its_trace_and_an_orphan_is_shown(watched):
    with watched() as one:
        page = one.open("#/traces")
        page.get_by_label("Name, or a trace id").fill(ORPHANS)
        page.get_by_role("button", name="Search").click()
        page.locator(".waterfall li").nth(1).wait_for()
        names = page.locator(".waterfall .who").all_inner_texts()
        assert [name.strip() for name in names] == ["GET /", "orphan"]


def test_an_alert_is_shown_with_its_labels_and_a_broken_rule_with_its_error(watched):
    with watched() as one:
        page = one.open("#/alerts")
        row = page.locator("[aria-labelledby=active] tbody tr")
        row.wait_for()
        assert "firing" in row.inner_text()
        assert "onerror" in row.inner_text()  # a label that is markup is text
        rules = page.locator("[aria-labelledby=rules] tbody tr").all_inner_texts()
        assert ["refused" in rules[0], "broken" in rules[1]] == [True, True]
        assert "nowhere" in rules[1]


def test_a_node_without_telemetry_says_how_to_send_some(browser, tmp_path):
    from console.conftest import Watched
    from fixtures.api import serving

    with serving(tmp_path) as served:
        one = Watched(browser.new_page(), served.url)
        page = one.open("#/traces")
        page.get_by_text("Send your first data").wait_for()
        assert "OTEL_EXPORTER_OTLP_ENDPOINT" in page.locator("main").inner_text()
        one.go("#/alerts")
        page.get_by_text("Set your first rule").wait_for()
        one.check()
        page.close()


def test_a_trace_id_in_a_grid_leads_to_its_trace(watched):
    with watched() as one:
        asked = quote("select trace_id, body from logs where trace_id is not null")
        page = one.open(f"#/query?sql={asked}")
        page.locator("[role=grid] a").click()
        page.locator(".waterfall li").first.wait_for()
        assert page.url.endswith(f"#/traces/{TRACE}")
