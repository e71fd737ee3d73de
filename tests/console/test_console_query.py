"""The query on the page: large answers, charts, errors at their place, links, files, keys."""

import io
import json
import time
from urllib.parse import quote

import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from fixtures.api import make_prices, price, serving

MILLION = "select i, i * 2 as twice, 'row ' || i as name from range(1000000) t(i)"
POINTS = "select i::double as x, sin(i / 500.0) as y from range(100000) t(i)"
LONG = "select count(*) from range(3000000) a, range(3000000) b where a.range % 7 = b.range % 5"


def address(sql, **more):
    """Return the place of a query on the page."""
    settings = "".join(f"&{name}={quote(value)}" for name, value in more.items())
    return f"#/query?sql={quote(sql)}{settings}"


def test_a_million_rows_are_scrolled_to_the_last_with_few_elements(watched):
    with watched() as one:
        page = one.open(address(MILLION, rows="all"))
        grid = page.get_by_role("grid")
        grid.wait_for()
        assert grid.get_attribute("aria-rowcount") == "1000001"
        grid.focus()
        page.keyboard.press("Control+End")
        page.locator("[role=gridcell]").get_by_text("row 999999", exact=True).wait_for()
        assert page.locator("[role=row]").count() < 100
        grid.evaluate("(grid) => { grid.scrollTop = grid.scrollHeight / 2 }")
        middle = "document.querySelector('.body [role=row] .rownumber')?.textContent"
        one.until(f"Math.abs(Number({middle}.replaceAll(',', '')) - 500000) < 2000")
        page.keyboard.press("ArrowUp")
        page.locator("#cell-999998-2").wait_for()
        assert page.locator("#cell-999998-2").inner_text() == "row 999998"
        page.keyboard.press("Control+Home")
        page.keyboard.press("ArrowDown")
        page.locator("#cell-1-0").wait_for()
        assert page.locator("#cell-1-0").inner_text() == "1"


def test_the_first_rows_alone_are_asked_for_unless_all_are_wanted(watched):
    with watched() as one:
        page = one.open(address(MILLION))
        page.get_by_text("first rows only").wait_for()
        assert page.get_by_role("grid").get_attribute("aria-rowcount") == "100001"


def test_a_hundred_thousand_points_are_drawn(watched):
    with watched() as one:
        page = one.open(address(POINTS, view="chart"))
        canvas = page.locator(".canvas canvas")
        canvas.wait_for()
        one.until("document.querySelector('.canvas').dataset.points === '100000'")
        inked = """canvas => {
            const { width, height } = canvas;
            const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
            const hasInk = (x) => {
                for (let y = 0; y < height; y += 1) if (data[(y * width + x) * 4 + 3]) return true;
            };
            return [...Array(width).keys()].filter(hasInk).length / width;
        }"""
        assert canvas.evaluate(inked) > 0.8


INK = """(canvas, [first, end]) => {
    const { width, height } = canvas;
    const data = canvas.getContext("2d").getImageData(first, 0, end - first, height).data;
    return data.some((value, place) => place % 4 === 3 && value > 0);
}"""


@pytest.mark.parametrize("factor", ["1", "12345678.0", "-123456789012.5", "1.5e17", "1.5e300"])
def test_labels_of_the_y_axis_are_whole_however_large_their_numbers(watched, factor):
    with watched() as one:
        sql = f"select i as x, i * {factor}::double as y from range(100) t(i)"
        page = one.open(address(sql, view="chart"))
        canvas = page.locator(".canvas canvas")
        canvas.wait_for()
        one.until("document.querySelector('.canvas').dataset.points === '100'")
        # A label that is cut begins in the first column of the canvas; a whole one further in.
        assert not canvas.evaluate(INK, [0, 2])
        assert canvas.evaluate(INK, [2, 60])


def test_rows_of_several_series_are_a_line_each_in_order_of_time(watched):
    with watched() as one:
        sql = "select ts, symbol, close from prices order by symbol, ts desc"
        page = one.open(address(sql, view="chart"))
        one.until("document.querySelector('.canvas')?.dataset.lines === '6'")
        legend = page.locator(".chart .legend").inner_text()
        assert all(name in legend for name in ("AMD", "ARM", "INTC", "MU", "NVDA"))
        box = page.locator(".canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 100)
        page.get_by_text("ts 2024-06-0").wait_for()
        assert page.locator(".chart .reading").inner_text().count("AMD") == 1
        page.get_by_label("Series").select_option("none")
        one.until("document.querySelector('.canvas').dataset.lines === '1'")


def test_rows_of_one_series_are_one_line_though_a_label_stands_beside(watched):
    with watched() as one:
        sql = "select ts, symbol, close, volume from prices where symbol = 'ARM' order by ts desc"
        one.open(address(sql, view="chart"))
        one.until("document.querySelector('.canvas')?.dataset.lines === '1'")


@pytest.mark.parametrize("more", ["", ", 'message ' || i as message", ", 'the same' as zone"])
def test_rows_of_several_series_at_times_of_their_own_are_a_line_each(watched, more):
    with watched() as one:
        host = "case when i % 2 = 0 then 'one' else 'two' end as host"
        sql = f"select i::double as x, {host}{more}, (i % 2) * 1000 + i as y from range(100) t(i)"
        page = one.open(address(sql, view="chart"))
        one.until("document.querySelector('.canvas')?.dataset.lines === '2'")
        legend = page.locator(".chart .legend").inner_text()
        assert ("one" in legend, "two" in legend, "message" in legend) == (True, True, False)


def test_rows_with_a_label_each_are_one_line(watched):
    with watched() as one:
        sql = "select i::double as x, 'message ' || i as message, i as y from range(100) t(i)"
        one.open(address(sql, view="chart"))
        one.until("document.querySelector('.canvas')?.dataset.lines === '1'")


def test_series_that_a_number_tells_apart_are_lines_where_that_is_chosen(watched):
    with watched() as one:
        sql = "select i::double as x, i % 3 as host, i as y from range(99) t(i)"
        page = one.open(address(sql, view="chart", y="y"))
        one.until("document.querySelector('.canvas')?.dataset.lines === '1'")
        page.get_by_label("Series").select_option("host")
        one.until("document.querySelector('.canvas').dataset.lines === '3'")


def test_a_query_that_runs_is_cancelled_at_the_node(watched, node):
    with watched() as one, node.client() as client:
        page = one.open(address(LONG))
        page.locator("[data-state=running]").wait_for()
        end_s = time.monotonic() + 60
        while not client.get("/api/v1/queries").json()["queries"]:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("heading", name="Cancelled").wait_for()
        while client.get("/api/v1/queries").json()["queries"]:
            assert time.monotonic() < end_s
            time.sleep(0.05)


def test_an_error_is_marked_at_its_place_in_the_editor(watched):
    sql = "select 'é€😀' as text,\n  close\nfrom prices\nwher close > 3"
    with watched() as one:
        page = one.open(address(sql))
        page.get_by_text("Line 4, column 6").wait_for()
        assert page.locator(".cm-lintRange-error").inner_text() == "close"


def test_tables_columns_and_functions_are_completed_and_control_enter_runs(watched):
    with watched() as one:
        page = one.open("#/query")
        editor = page.get_by_role("textbox", name="SQL")
        editor.wait_for()
        one.until("performance.getEntriesByName(new URL('api/v1/words', location).href).length > 0")
        editor.press("Control+A")
        for typed, chosen in (("select ", ""), ("volu", "volume"), (", date_tr", "date_trunc")):
            editor.press_sequentially(typed)
            if chosen:
                option = page.get_by_role("option", name=chosen).first
                option.wait_for()
                option.click()
        editor.press_sequentially("'day', ts) from pri")
        page.get_by_role("option", name="prices").first.click()
        page.keyboard.press("Control+Enter")
        page.get_by_role("grid").wait_for()
        heads = page.get_by_role("columnheader").all_inner_texts()
        assert heads[1].split("\n")[0] == "volume"
        assert "date_trunc" in heads[2]


def test_an_answer_says_which_rows_were_hot_and_which_files_were_pruned(watched):
    with watched() as one:
        page = one.open(address("select count(*) as n from prices"))
        page.get_by_role("grid").wait_for()
        label = page.locator(".tierbar").get_attribute("aria-label")
        hot, cold = (int(part.split()[0].replace(",", "")) for part in label.split(", "))
        assert hot > 0
        assert cold > 0
        assert page.locator("#cell-0-0").inner_text() == str(hot + cold)
        page.get_by_text("pruned").wait_for()


def test_a_shared_link_restores_the_query_its_answer_and_its_view(watched):
    sql = "select ts, close, volume from prices where symbol = 'ARM' order by ts"
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    with watched(**allowed) as one:
        page = one.open(address(sql))
        page.get_by_role("grid").wait_for()
        page.get_by_text("Chart", exact=True).click()
        page.locator(".canvas canvas").wait_for()
        page.get_by_role("checkbox", name="volume").check()
        page.get_by_role("button", name="Share").click()
        page.get_by_text("Copied").wait_for()
        link = page.evaluate("navigator.clipboard.readText()")
        assert link.startswith(one.url)
    with watched() as other:
        page = other.open(link.removeprefix(one.url).lstrip("/"))
        page.locator(".canvas canvas").wait_for()
        assert page.get_by_role("checkbox", name="volume").is_checked()
        assert page.locator(".cm-content").inner_text().strip() == sql


@pytest.mark.parametrize("form", ["csv", "parquet", "json"])
def test_an_answer_is_downloaded_in_full(watched, form):
    sql = "select i from range(1000) t(i)"
    with watched() as one:
        page = one.open(address(sql))
        page.get_by_role("grid").wait_for()
        with page.expect_download() as started:
            page.get_by_label("Download the whole answer").select_option(form)
        with open(started.value.path(), "rb") as file:
            data = file.read()
        assert started.value.suggested_filename == f"answer.{form}"
        if form == "json":
            assert json.loads(data)["row_count"] == 1000
        else:
            read = csv.read_csv if form == "csv" else pq.read_table
            assert read(io.BytesIO(data)).num_rows == 1000


def test_values_keep_every_digit(watched):
    values = (
        "select 9223372036854775807::bigint as whole, 12345678901234567.89::decimal(20,2) as exact,"
        " timestamp_ns '2024-06-01 01:02:03.123456789' as moment, date '2024-06-01' as day,"
        " [1, 2] as list, null as nothing, true as yes"
    )
    with watched() as one:
        page = one.open(address(values))
        page.get_by_role("grid").wait_for()
        assert [page.locator(f"#cell-0-{place}").inner_text() for place in range(7)] == [
            "9223372036854775807",
            "12345678901234567.89",
            "2024-06-01 01:02:03.123456789",
            "2024-06-01",
            "[1,2]",
            "null",
            "true",
        ]
        sql = "select 9223372036854775807::bigint as n, 12345678901234567.89::decimal(20,2) as d"
        one.go(f"#/history/prices?sql={quote(sql)}")
        cells = page.locator(".travel tbody td")
        cells.first.wait_for()
        assert cells.all_inner_texts() == ["9223372036854775807", "12345678901234567.89"]


def test_a_past_query_is_taken_up_again(watched):
    with watched() as one:
        page = one.open(address("select 41 as first"))
        page.get_by_role("grid").wait_for()
        page.get_by_role("button", name="Past queries").click()
        page.get_by_role("button", name="select 41 as first").click()
        page.get_by_role("button", name="Run").click()
        page.get_by_role("grid").wait_for()


def test_a_node_that_is_gone_is_told_and_asked_again(watched):
    with watched() as one:
        page = one.open("#/tables")
        page.locator("td").first.wait_for()
        page.context.set_offline(True)
        one.go("#/keys")
        page.get_by_text("The node does not answer").wait_for()
        page.context.set_offline(False)
        page.get_by_role("button", name="Try again").click()
        page.get_by_role("heading", name="Create the first key").wait_for()


# A node with keys


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """A node that asks for keys, without entities."""
    with serving(tmp_path_factory.mktemp("locked"), has_keys=True) as served:
        with served.client() as client:
            make_prices(client)
            content = json.dumps([price(0), price(3)])
            headers = {"Content-Type": "application/json"}
            client.post("/api/v1/tables/prices/rows", content=content, headers=headers)
        yield served


SCREENS = (
    "metrics",
    "logs",
    "traces",
    "alerts",
    "tables",
    "coverage",
    "freshness",
    "history",
    "entities",
    "jobs",
    "keys",
)


def test_A02_with_a_wrong_key_every_screen_asks_for_another_and_the_right_one_opens_it(
    watched, locked
):
    with watched(locked.url) as one:
        page = one.open(address("select count(*) as n from prices"))
        page.locator("[data-state=forbidden]").wait_for()
        page.get_by_label("Key", exact=True).fill("tck_wrong000_nobodys")
        page.get_by_role("button", name="Use this key").click()
        for screen in SCREENS:
            one.go(f"#/{screen}")
            page.locator(f"[aria-current=page][href^='#/{screen}']").wait_for()
            page.locator("[data-state=forbidden]").wait_for()
        one.go(address("select 1 as one"))
        page.locator("[data-state=forbidden]").wait_for()
        page.get_by_label("Key", exact=True).fill(locked.key)
        page.get_by_role("button", name="Use this key").click()
        page.get_by_role("grid").wait_for()
        one.go("#/tables")
        page.get_by_role("link", name="prices").wait_for()
        kept = "JSON.stringify(localStorage) + location.href + document.cookie"
        assert locked.key not in page.evaluate(kept)
        assert all(locked.key not in url for url in one.requests)


def test_A02_a_key_without_the_scope_is_refused_on_its_screen_alone(watched, locked):
    key = locked.new_key(scopes=["query"])
    with watched(locked.url) as one:
        page = one.open("#/keys")
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_role("button", name="Use this key").click()
        page.get_by_text("This key does not allow this").wait_for()
        one.go("#/entities")
        page.get_by_text("This node keeps no entities").wait_for()
        one.go("#/jobs")
        page.get_by_role("heading", name="Flushes").wait_for()


def test_a_key_is_made_shown_once_and_revoked(watched, locked):
    with watched(locked.url) as one:
        page = one.open("#/keys")
        page.get_by_label("Key", exact=True).fill(locked.key)
        page.get_by_role("button", name="Use this key").click()
        page.get_by_label("Note").fill("<b>bold</b>")
        page.get_by_role("button", name="Create key").click()
        made = page.get_by_label("The new key").inner_text()
        assert made.startswith("tck_")
        page.get_by_role("cell", name="<b>bold</b>").wait_for()
        revoke = page.get_by_role("button", name=f"Revoke {made.split('_')[1]}")
        revoke.click()
        revoke.click()
        page.get_by_text("is revoked").wait_for()


def test_the_first_key_of_an_open_node_is_made_at_once_and_used_by_its_maker(watched, tmp_path):
    with serving(tmp_path) as served, watched(served.url) as one:
        page = one.open("#/keys")
        page.get_by_role("heading", name="Create the first key").wait_for()
        assert page.get_by_label("admin").is_checked()
        assert page.get_by_label("admin").is_disabled()
        page.get_by_role("button", name="Create key").click()
        page.get_by_label("The new key").wait_for()
        assert page.get_by_role("alert").count() == 0
        page.get_by_text("This tab uses it already").wait_for()
        page.get_by_role("heading", name="Create a key").wait_for()
        assert not page.get_by_label("admin").is_checked()
        page.locator("td .badge").get_by_text("yours").wait_for()
        one.go("#/tables")
        page.get_by_text("No tables yet").wait_for()


def test_the_gap_of_a_table_and_a_column_that_are_keywords_is_asked_for(watched, tmp_path):
    with serving(tmp_path, flush_age_s=3_600.0) as served, served.client() as client:
        body = {"name": "order", "time_column": "ts", "bucket": "1h", "entity_columns": ["group"]}
        assert client.post("/api/v1/tables", json=body).status_code == 201
        rows = [{"ts": f"2024-06-01T0{hour}:00:00Z", "group": "a", "v": 1} for hour in (0, 5)]
        answer = client.post("/api/v1/tables/order/rows", json=rows)
        assert answer.status_code == 200, answer.text
        entity = quote(json.dumps({"group": "a"}))
        stretch = "from=2024-06-01T00:00:00Z&to=2024-06-01T06:00:00Z"
        with watched(served.url) as one:
            page = one.open(f"#/coverage/order?entity={entity}&{stretch}")
            page.locator("[aria-labelledby=missing]").get_by_role("link", name="Query").click()
            page.get_by_role("grid").wait_for()
            page.locator("[role=gridcell]").get_by_text("2024-06-01 01:00").wait_for()


def test_a_table_of_whole_numbers_is_drawn_without_a_clock(watched, node):
    name = "heights"
    with node.client() as client:
        table = {"name": name, "index_column": "height", "bucket": 1_000}
        assert client.post("/api/v1/tables", json=table).status_code == 201
        rows = [{"height": 5}, {"height": 2_500}]
        assert client.post(f"/api/v1/tables/{name}/rows", json=rows).json() == {"rows": 2}
    with watched() as one:
        page = one.open(f"#/coverage/{name}")
        page.locator(".heat canvas").wait_for()
        one.settled()
        legend = page.locator(".legend .quiet").inner_text()
        assert legend.startswith("0 to 3,000, 3 buckets of 1000")
        box = page.locator(".blocks").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 10)
        page.get_by_text("all rows, 1,000 to 2,000: 1 bucket missing").wait_for()
        page.mouse.down()
        page.mouse.up()
        page.get_by_role("heading", name="Missing of all rows").wait_for()
        page.get_by_role("cell", name="1,000", exact=True).first.wait_for()
