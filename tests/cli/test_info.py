"""Commands that look at a table."""

import csv


def test_info_tells_what_a_notebook_tells(market):
    import thermocline as tc
    from thermocline.cold.coverage_report import report_coverage
    from thermocline.show import table_facts

    out = market.ok("table", "info", "prices").out
    table = tc.TimeSeriesTable.open(market.folder / "prices")
    html = table._repr_html_()
    for label, text in table_facts(report_coverage(table.cold), table.root()).items():
        assert any(line.split("  ")[0] == label and text in line for line in out.splitlines())
        assert text in html
    assert "volume  int32" in out


def test_info_in_json_has_the_keys_that_are_documented(market):
    told = market.ok("table", "info", "prices", "--json").json()
    assert told["rows"] == 138
    assert told["segments"] == 3
    assert told["version"] == 4
    assert told["start"] == "2024-06-01T00:00:00Z"
    assert told["end"] == "2024-06-04T00:00:00Z"
    assert (told["buckets"], told["buckets_held"]) == (144, 138)
    assert told["ratio"] == 138 / 144
    assert told["entity_columns"] == ["symbol"]
    assert told["entities"] == 2
    assert told["retention"] is None
    assert told["columns"][0] == {
        "name": "ts",
        "type": "timestamp[us, tz=UTC]",
        "nullable": False,
    }


def test_info_of_an_empty_table_has_no_range(shell):
    shell.ok("table", "create", "empty", "--time-column", "ts", "--bucket", "1d")
    told = shell.ok("table", "info", "empty", "--json").json()
    assert (told["rows"], told["start"], told["ratio"], told["columns"]) == (0, None, 0.0, [])
    assert "nothing is held yet" in shell.ok("table", "info", "empty").out


def test_info_at_a_version_is_of_that_version(market):
    assert market.ok("table", "info", "prices", "--at", "2", "--json").json()["rows"] == 48


def test_a_table_that_is_not_there_is_not_found(shell):
    ran = shell.run("table", "info", "nowhere")
    assert ran.code == 3
    assert "nowhere" in ran.told()[1]
    assert ran.out == ""


def test_history_is_csv_in_a_pipe_the_newest_first(market):
    rows = list(csv.DictReader(market.ok("table", "history", "prices").out.splitlines()))
    assert [row["version"] for row in rows] == ["4", "3", "2", "1"]
    assert [row["operation"] for row in rows] == ["append", "append", "append", "create"]
    assert rows[0]["rows_added"] == "48"
    assert rows[0]["time"].endswith("Z")
    assert len(rows[0]["txn_id"]) == 32


def test_history_in_json_is_a_list_of_versions(market):
    told = market.ok("table", "history", "prices", "--limit", "2", "--json").json()
    assert [row["version"] for row in told["versions"]] == [4, 3]
    assert told["versions"][0]["segments_added"] == 1


def test_a_diff_tells_what_came_and_what_went(market):
    market.ok("table", "delete", "prices", "--where", "symbol = 'AMD'", "--yes")
    told = market.ok("table", "diff", "prices", "3", "--json").json()
    assert (told["old"], told["new"]) == (3, 5)
    assert told["rows"] == 48 - 66
    assert len(told["added"]) == 1
    assert len(told["changed"]) == 2
    assert "versions  3 to 4" in market.ok("table", "diff", "prices", "3", "4").out


def test_a_time_that_is_none_is_invalid(market):
    ran = market.run("table", "info", "prices", "--at", "yesterday")
    assert ran.code == 2
    assert "yesterday" in ran.told()[1]
