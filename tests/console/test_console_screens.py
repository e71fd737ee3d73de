"""Every screen of the page: at both widths, in both themes, for everybody, and from one host."""

import re
from contextlib import closing
from urllib.parse import quote

import pytest

from console.conftest import Watched
from console.filled import MARKUP, fill, fill_entities, fill_jobs
from console.usable import THEMES, check_usable, found
from fixtures.entities import database, serving_entities
from fixtures.postgres import postgres_run, postgres_server

__all__ = ["postgres_run", "postgres_server"]

QUERY = "#/query?sql=select%20*%20from%20prices%20order%20by%20ts"
SCREENS = {
    "query": (QUERY, "[role=grid]"),
    "chart": (f"{QUERY}&view=chart", ".canvas canvas"),
    "syntax error": ("#/query?sql=selec%201", "[data-state=error]"),
    "tables": ("#/tables", "td"),
    "one table": ("#/tables/prices", "[aria-labelledby=preview] td"),
    "coverage": ("#/coverage/prices", ".heat canvas"),
    "coverage as a table": ("#/coverage/prices?view=table", "td"),
    "freshness": ("#/freshness", ".stages"),
    "history": ("#/history/prices?version=3", ".travel td"),
    "entities": ("#/entities", "td"),
    "contract": ("#/entities/order?view=schema", "pre"),
    "one entity": ("#/entities/order/o-3", ".revisions li"),
    "jobs": ("#/jobs", "[aria-labelledby=pipeline] td"),
    "keys": ("#/keys", "form"),
    "nothing": ("#/nonsense", "[data-state=empty]"),
}


@pytest.fixture(scope="module")
def node(tmp_path_factory, postgres_server):
    """A node without keys, with tables, hot rows, versions and entities."""
    folder = tmp_path_factory.mktemp("node")
    with (
        database(postgres_server) as dsn,
        serving_entities(folder, dsn, flush_age_s=3_600.0) as served,
    ):
        with served.client() as client:
            fill(client)
            fill_entities(client)
        fill_jobs(served.node.lake())
        yield served


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_is_usable_at_both_widths_and_in_both_themes(watched, screen):
    check_usable(watched, *SCREENS[screen])


def test_what_axe_looks_for_is_found_in_both_themes(watched):
    with watched() as one:
        page = one.open("#/keys")
        page.locator("form").wait_for()
        page.evaluate("document.querySelector('main').append(document.createElement('button'))")
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            one.until(f"document.documentElement.dataset.theme === '{theme}'")
            assert [rule for rule, *_ in found(page)] == ["button-name"], theme


def test_the_first_load_asks_this_node_alone_and_the_policy_refuses_nothing(watched):
    with watched() as one:
        page = one.open()
        page.locator(".cm-content").wait_for()
        assert any(url.endswith("/console/index.js") for url in one.requests)


def test_the_policy_refuses_another_host_a_style_and_markup_and_the_watch_sees_it(browser, node):
    with closing(browser.new_page()) as page:
        one = Watched(page, node.url)
        one.open("#/keys").locator("form").wait_for()
        for tried in (
            "fetch('http://localhost:9/').catch(() => 0)",
            "document.body.setAttribute('style', 'color: red')",
            "(() => { try { document.body.innerHTML = '<b>' } catch { return 0 } })()",
        ):
            page.evaluate(tried)
        one.until("window.refused.length >= 3")
        told = {line.split()[0] for line in one.refused()}
        assert told == {"connect-src", "style-src-attr", "require-trusted-types-for"}
        with pytest.raises(AssertionError):
            one.check()


def test_every_screen_is_reached_by_the_keyboard_from_the_first(watched):
    with watched() as one:
        page = one.open("#/jobs")
        page.locator("td").first.wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.get_by_role("link", name="Coverage", exact=True).focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Coverage").wait_for()
        page.locator(".blocks").focus()
        page.keyboard.press("ArrowRight")
        page.get_by_text(re.compile("\\d+ buckets? held")).wait_for()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Missing of").wait_for()


def test_the_switch_keeps_a_theme_over_a_reload(watched):
    with watched(theme="light") as one:
        page = one.open("#/keys")
        for _ in range(2):  # from the system's to light, and to dark
            page.get_by_role("button", name="Theme:").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.reload()
        page.locator("form").wait_for()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


NAMED = 'select distinct symbol, 1 as "<img src=x onerror=alert()>" from prices'


@pytest.mark.parametrize(
    "address",
    [
        "#/tables/prices",
        "#/coverage/prices?view=table",
        f"#/query?sql={quote(NAMED)}&view=chart",
        "#/query?sql=select%20distinct%20symbol%20from%20prices%20order%20by%20symbol",
        "#/entities/order/o-3",
        "#/jobs",
    ],
)
def test_A15_a_label_that_is_markup_is_shown_as_text(watched, address):
    with watched() as one:
        page = one.open(address)
        one.settled()
        text = "<img src=x onerror=alert()>" if "view=chart" in address else MARKUP
        shown = page.get_by_text(text).or_(page.get_by_text(text.replace('"', '\\"')))
        shown.first.wait_for()
        assert page.locator("main img").count() == 0
        assert page.title().endswith("Thermocline")


def test_the_gap_of_an_entity_is_found_on_the_picture_and_copied_as_sql_that_finds_it_and_command(
    watched, node
):
    with watched(permissions=["clipboard-read", "clipboard-write"]) as one:
        page = one.open("#/coverage/prices?find=AMD")
        canvas = page.locator(".heat canvas")
        canvas.wait_for()
        box = page.locator(".blocks").bounding_box()
        # Hours 36 to 59 of 130 are missing.
        page.mouse.move(box["x"] + box["width"] * 48 / 130, box["y"] + 10)
        page.get_by_text("AMD, 2024-06-03").wait_for()
        page.mouse.down()
        page.mouse.up()
        page.get_by_role("button", name="Copy as SQL").first.click()
        page.get_by_text("Copied").first.wait_for()
        sql = page.evaluate("navigator.clipboard.readText()")
        assert "symbol = 'AMD'" in sql
        with node.client() as client:
            answer = client.post("/api/v1/query", json={"sql": sql})
        assert answer.status_code == 200, answer.text
        (gap,) = answer.json()["rows"]
        assert (gap["symbol"], gap["start"][:10], gap["end"][:10]) == (
            "AMD",
            "2024-06-03",
            "2024-06-03",
        )
        page.get_by_role("button", name="Copy backfill").first.click()
        one.until("navigator.clipboard.readText().then((text) => text.includes('backfill'))")
        page.get_by_role("button", name="Zoom in here").click()
        one.until("location.hash.includes('start=')")
        one.settled()


def test_after_a_zoom_nothing_is_said_of_a_time_that_is_not_shown(watched):
    with watched() as one:
        page = one.open("#/coverage/prices")
        page.locator(".heat canvas").wait_for()
        one.settled()
        box = page.locator(".blocks").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 10)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 10, steps=5)
        page.mouse.up()
        one.until("location.hash.includes('start=')")
        one.until("document.querySelector('.reading').textContent.startsWith('Drag across')")
        page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + 10)
        one.until("document.querySelector('.reading').textContent.includes('UTC: ')")
        said = page.locator(".reading").inner_text()
        shown = page.locator(".legend .quiet").inner_text()
        assert shown.split(" to ")[1].split(" UTC")[0] in said


def test_the_slider_runs_the_query_at_another_version(watched):
    with watched() as one:
        page = one.open("#/history/prices")
        rows = page.locator(".travel tbody td").first
        rows.wait_for()
        newest = int(rows.inner_text())
        slider = page.get_by_role("slider")
        slider.focus()
        slider.press("ArrowLeft")
        cell = "document.querySelector('.travel tbody td')"
        one.until(f"{cell} && Number({cell}.textContent) < {newest}")
        assert "version=" in page.evaluate("location.hash")
