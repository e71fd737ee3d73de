"""Pictures of a table: blocks that never lie, HTML that is only text."""

import re
import unicodedata
from datetime import UTC, datetime
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.cold.coverage_report import CoverageReport
from thermocline.format.bucket import Bucket
from thermocline.format.coverage import Buckets, Coverage, entity_key, unite_buckets
from thermocline.format.instant import format_instant, from_datetime
from thermocline.format.log.action import TableSpec
from thermocline.format.log.state import SegmentSet, TableState, Totals
from thermocline.format.schema import Schema, TableColumn
from thermocline.show import (
    clock_text,
    coverage_bar,
    coverage_picture,
    share_text,
    size_text,
    table_html,
    visible,
)
from thermocline.show.picture import BLOCKS, FULL, LANES_MAX, SHARE_WIDTH, WIDTH_MIN, block_level
from thermocline.show.text import pad, shorten, text_width

HOUR_S = 3_600
JUNE = 477_000  # the hour in which June 2024 begins, counted from 1970


def held_of(parts, *, width_s=HOUR_S, columns=(), spec=None, root_version=7):
    """Return what a table holds: bucket numbers by entity, or without entities under None."""
    entities = {
        entity_key([k]): Buckets.from_numbers(np.array(v))
        for k, v in parts.items()
        if k is not None
    }
    whole = (
        unite_buckets(entities.values())
        if entities
        else Buckets.from_numbers(np.array(parts.get(None, [])))
    )
    names = ("symbol",) if entities else ()
    schema = Schema(tuple(TableColumn(n + 1, *column) for n, column in enumerate(columns)))
    state = TableState(
        root_version,
        from_datetime(datetime(2024, 6, 9, 12, tzinfo=UTC)),
        spec or TableSpec("id", "ts", Bucket(width_s), names),
        0,
        {0: schema},
        SegmentSet(),
        Totals(3, 120_000, 4_200_000),
    )
    return CoverageReport(state, Coverage(width_s, whole, entities))


def blocks(held, width, **which):
    """Return the blocks of the first lane."""
    return next(coverage_picture(held, width, **which).lines())[1]


HOURS = st.sets(st.integers(0, 400), min_size=1, max_size=400)


@given(HOURS, st.integers(0, 200))
def test_a_block_is_full_only_if_all_is_held_and_empty_only_if_nothing_is(hours, width):
    first, after = JUNE + min(hours), JUNE + max(hours) + 1
    held = held_of({None: sorted(JUNE + hour for hour in hours)})
    drawn = blocks(held, width)
    count = after - first
    each = max(1, len(drawn) // count)
    cells = [drawn[place] for place in range(0, len(drawn), each)]
    edges = [first + place * count // len(cells) for place in range(len(cells) + 1)]
    for cell, low, high in zip(cells, edges, edges[1:], strict=False):
        inside = [hour + JUNE in range(low, high) for hour in hours].count(True)
        assert (cell == BLOCKS[FULL]) == (inside == high - low)
        assert (cell == BLOCKS[0]) == (inside == 0)


@given(st.integers(1, 10**9), st.data())
def test_one_missing_in_a_thousand_million_is_not_full_and_one_held_is_not_empty(total, data):
    count = data.draw(st.integers(0, total) | st.sampled_from([0, 1, total - 1, total]))
    assert (block_level(count, total) == FULL) == (count == total)
    assert (block_level(count, total) == 0) == (count == 0)
    assert 0 <= block_level(count, total) <= FULL


@given(st.integers(1, 10**9), st.data())
def test_a_share_is_all_only_if_it_is_all_and_nothing_only_if_it_is_nothing(total, data):
    count = data.draw(st.integers(0, total) | st.sampled_from([0, 1, total - 1, total]))
    assert (share_text(count, total) == "100 %") == (count == total)
    assert (share_text(count, total) == "0 %") == (count == 0)


@given(HOURS, st.integers(0, 250), st.sampled_from([1, 60, HOUR_S, 86_400]))
def test_no_line_is_wider_than_asked(hours, width, width_s):
    held = held_of({"a long name 漢字": sorted(hours), "b": [max(hours)]}, width_s=width_s)
    for line in coverage_bar(held, width).splitlines():
        assert text_width(line) <= max(width, WIDTH_MIN)


def test_few_buckets_are_several_blocks_each_and_nothing_is_blurred():
    held = held_of({None: [JUNE, JUNE + 2]})
    assert blocks(held, 40) == "█" * 10 + "·" * 10 + "█" * 10


def test_one_missing_hour_in_ten_years_shows():
    hours = np.arange(87_600)
    held = held_of({None: JUNE + np.delete(hours, 50_000)})
    drawn = blocks(held, 80)
    assert drawn.count("█") == len(drawn) - 1
    assert "·" not in drawn


def test_one_held_hour_in_ten_years_shows():
    held = held_of({None: [JUNE + 50_000]})
    start, end = (
        format_instant(JUNE * HOUR_S * 10**9),
        format_instant((JUNE + 87_600) * HOUR_S * 10**9),
    )
    drawn = blocks(held, 80, start=start, end=end)
    assert drawn.count("·") == len(drawn) - 1
    assert "█" not in drawn


def test_the_least_complete_come_first_and_those_left_out_are_counted():
    parts = {f"s{n:02d}": list(range(JUNE, JUNE + 50 + n)) for n in range(15)}
    picture = coverage_picture(held_of(parts), 80)
    assert [lane.label for lane in picture.lanes] == [f"s{n:02d}" for n in range(LANES_MAX)]
    assert picture.more.startswith("and 5 more")


def test_one_entity_is_drawn_alone_and_all_of_them_as_one():
    held = held_of({"NVDA": [JUNE, JUNE + 3], "AMD": [JUNE + 1, JUNE + 2]})
    assert re.fullmatch("(█+)(·+)(█+)", blocks(held, 40, entity={"symbol": "NVDA"}))
    assert set(blocks(held, 40, per_entity=False)) == {"█"}


def test_the_axis_names_both_ends_and_round_times_between():
    held = held_of({None: list(range(JUNE, JUNE + 168))})
    ruler, labels = coverage_picture(held, 100).axis
    assert ruler[0] == "└"
    assert ruler[-1] == "┘"
    assert labels.startswith("2024-06-01 ")
    assert labels.endswith(" 2024-06-08")
    assert len(ruler) == len(labels) == 100 - SHARE_WIDTH
    for place, mark in enumerate(ruler):
        if mark == "┬":
            day = int(re.match(r"06-(\d\d)", labels[place:]).group(1))
            assert place == (day - 1) * 24 * len(ruler) // 168


@pytest.mark.parametrize(
    ("width_s", "first", "count"),
    [
        (1, 1_717_200_000, 90),
        (60, 28_620_433, 1_440),
        (86_400, 19_000, 1_500),
        (86_400, -719_000, 700_000),
        (86_400, 2_932_890, 7),  # the last days that a calendar can write
        (1, 0, 1),
    ],
)
def test_every_length_of_time_has_an_axis(width_s, first, count):
    held = held_of({None: [first, first + count - 1]}, width_s=width_s)
    for width in (40, 80, 200):
        assert len(coverage_picture(held, width).axis) >= 2


def test_an_empty_table_says_so():
    held = held_of({})
    assert "nothing is held" in coverage_bar(held, 80)
    assert coverage_bar(held, 80, "2024-06-01", "2024-06-02").count("·") > 50


def test_an_entity_that_is_an_escape_sequence_is_text():
    drawn = coverage_bar(held_of({"\x1b]0;x\x07": [JUNE], "\u202ea": [JUNE]}), 80)
    assert all(character.isprintable() for character in drawn.replace("\n", ""))


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (1_440_000, "1.4 MB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (-2_500, "-2.5 kB"),
        (3 * 10**18, "3.0 EB"),
    ],
)
def test_sizes_are_short(size_bytes, text):
    assert size_text(size_bytes) == text


def test_times_are_as_short_as_they_can_be():
    assert clock_text(datetime(2024, 6, 1)) == "2024-06-01"
    assert clock_text(datetime(2024, 6, 1, 7, 5)) == "2024-06-01 07:05"
    assert clock_text(datetime(2024, 6, 1, 0, 0, 9)) == "2024-06-01 00:00:09"


@given(st.text(max_size=30), st.integers(0, 40))
def test_text_is_made_harmless_and_fits(text, width):
    steering = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert not steering & {unicodedata.category(character) for character in visible(text)}
    assert text_width(shorten(text, width)) <= width
    assert text_width(pad(shorten(text, width), width)) == width


class Seen(HTMLParser):
    """Every tag, attribute and text of some HTML, and whether its tags are closed."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = set(), [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


NASTY = "<img src=x onerror=alert(1)>\"'&amp;</table><script>"


def test_the_html_shows_the_facts_the_columns_and_the_coverage():
    columns = [("ts", pa.timestamp("us"), False), ("close", pa.float64())]
    hours = list(range(JUNE, JUNE + 100))
    html = table_html(held_of({"NVDA": hours, "AMD": hours[:50]}, columns=columns), "/lake/prices")
    seen = Seen(html)
    assert seen.open == []
    text = " ".join(seen.texts)
    for expected in (
        "prices", "120,000", "4.2 MB", "7, committed 2024-06-09 12:00 UTC", "close", "double",
        "2024-06-01", "2 by symbol", "75.0 % of 200 buckets", "reject", "keeps all rows", "50.0 %",
    ):  # fmt: skip
        assert expected in text
    assert "svg" in seen.tags


def test_whatever_a_table_contains_is_text_in_the_html():
    spec = TableSpec("id", NASTY, Bucket(HOUR_S), (NASTY,), NASTY, NASTY, NASTY)
    columns = [(NASTY, pa.string())]
    seen = Seen(table_html(held_of({NASTY: [JUNE]}, columns=columns, spec=spec), f"/x/{NASTY}"))
    assert seen.open == []
    allowed = {"div", "strong", "span", "table", "tr", "td", "details", "summary", "svg", "rect"}
    assert seen.tags <= allowed | {"title"}
    assert not any(name.startswith("on") for name, _ in seen.attributes)
    assert not any(name in ("src", "href") for name, _ in seen.attributes)
    assert "".join(seen.texts).count(NASTY) >= 6


def test_the_html_asks_no_other_host_and_carries_no_script_or_style_sheet():
    html = table_html(held_of({None: [JUNE]}, columns=[("ts", pa.timestamp("us"))]), "prices")
    assert not re.search(r"https?:|//|url\(|<script|<style|<link|@import", html)


def test_the_drawing_tells_full_from_in_part_by_height_and_colour():
    hours = np.delete(np.arange(960), 500)
    html = table_html(held_of({None: JUNE + hours}), "prices")
    rects = re.findall(r'height="(\d+)" fill="([^"]+)"', html)
    assert len(rects) == 3
    assert rects[0] == rects[2]
    assert int(rects[1][0]) < int(rects[0][0])
    assert rects[1][1] != rects[0][1]


def test_a_table_of_very_many_columns_lists_the_first_of_them():
    columns = [(f"c{n}", pa.int64()) for n in range(250)]
    html = table_html(held_of({None: [JUNE]}, columns=columns), "prices")
    assert "and 150 more" in html
    assert "250 columns" in html


def test_an_empty_table_has_html_too():
    seen = Seen(table_html(held_of({}), "prices"))
    assert seen.open == []
    assert "nothing is held yet" in " ".join(seen.texts)
