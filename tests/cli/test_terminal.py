"""What a person sees: boxes, bars of blocks, questions, and colours only where wanted."""

import pyarrow.parquet as pq

from cli.conftest import ESCAPES, ticks


def test_an_answer_is_a_box_on_a_terminal(market):
    shown = market.on_terminal("sql", "select symbol, count(*) as n from prices group by all")
    assert shown.code == 0
    assert "╭────────┬────╮" in shown.out
    assert "│ AMD    │ 66 │" in shown.out
    assert "2 rows" in shown.out


def test_gaps_are_drawn_as_a_bar_of_blocks_above_the_list(market):
    shown = market.on_terminal("gaps", "prices")
    lines = shown.out.splitlines()
    assert lines[0].startswith("AMD   ████")
    assert "···" in lines[0]
    assert lines[0].endswith("91.6 %")
    assert lines[1].startswith("NVDA  ████")
    assert lines[1].endswith("100 %")
    assert "2024-06-01" in lines[3]
    assert "2024-06-04" in lines[3]
    assert "missing" in lines[4]
    assert "│ AMD    │ 2024-06-02 09:00 │ 2024-06-02 15:00 │       6 │" in shown.out
    assert lines[-1] == "1 gap, 6 of 144 buckets missing"


def test_every_line_fits_a_terminal_of_any_width(market):
    for columns in (40, 80, 120):
        for words in (
            ("gaps", "prices"),
            ("coverage", "prices"),
            ("table", "history", "prices"),
            ("sql", "select * from prices"),
        ):
            shown = market.on_terminal(*words, columns=columns)
            assert shown.code == 0
            widths = [len(line) for line in shown.out.splitlines()]
            assert max(widths) <= columns, (words, columns)


def test_a_wide_terminal_is_used(market):
    shown = market.on_terminal("gaps", "prices", columns=120)
    assert len(shown.out.splitlines()[0]) > 80


def test_no_gaps_is_said_in_words(market):
    shown = market.on_terminal("gaps", "prices", "--entity", "symbol=NVDA")
    assert "no gaps: every bucket is held" in shown.out


def test_info_shows_the_bar_too(market):
    shown = market.on_terminal("table", "info", "prices")
    assert "coverage     95.8 % of 144 buckets" in shown.out
    assert "AMD   ████" in shown.out
    assert "volume  int32" in shown.out


def test_colours_are_used_on_a_terminal_and_never_with_no_color(market):
    assert ESCAPES.search(market.on_terminal("gaps", "prices", plain=False).out)
    for words in (("gaps", "prices"), ("table", "info", "nowhere"), ("sql", "select 1")):
        shown = market.on_terminal(*words, plain=False, NO_COLOR="1")
        assert not ESCAPES.search(shown.out), words


def test_no_colour_goes_into_a_pipe(market):
    ran = market.run("gaps", "prices", "--format", "box", FORCE_COLOR="")
    assert "████" in ran.out
    assert not ESCAPES.search(ran.out)


def test_an_error_on_a_terminal_says_what_why_and_what_to_do(market):
    shown = market.on_terminal("table", "info", "nowhere")
    assert shown.code == 3
    labels = [line.split(":")[0].strip() for line in shown.out.splitlines() if ":" in line[:7]]
    assert labels == ["error", "why", "do"]


def test_a_delete_asks_and_a_no_deletes_nothing(market):
    words = ("table", "delete", "prices", "--where", "symbol = 'AMD'")
    shown = market.on_terminal(*words, typed="n\n")
    assert "delete 66 of 138 rows" in shown.out
    assert "[y/N]" in shown.out
    assert "nothing was deleted" in shown.out
    assert shown.code == 1
    assert market.ok("sql", "select count(*) as n from prices").out == "n\n138\n"


def test_a_delete_asks_and_a_yes_deletes(market):
    words = ("table", "delete", "prices", "--where", "symbol = 'AMD'")
    shown = market.on_terminal(*words, typed="y\n")
    assert shown.code == 0
    assert "deleted 66 rows (version 5)" in shown.out


def test_bytes_that_are_no_text_do_not_go_to_a_terminal(market):
    shown = market.on_terminal("sql", "select 1", "--format", "parquet")
    assert shown.code == 2
    assert "--output" in shown.out


def test_an_append_of_many_files_shows_how_far_it_is(market):
    for day in range(4, 12):
        pq.write_table(ticks(day), market.folder / f"june-{day:02d}.parquet")
    shown = market.on_terminal("table", "append", "prices", "june-*.parquet", plain=False)
    assert shown.code == 0
    assert "appending" in shown.out
    assert "8/8" in shown.out
    assert "appended 384 rows from 8 files (version 5)" in shown.out


def test_a_terminal_that_is_no_utf_8_gets_no_traceback(market):
    shown = market.on_terminal("gaps", "prices", PYTHONIOENCODING="ascii")
    assert shown.code == 0
    assert "Traceback" not in shown.out
