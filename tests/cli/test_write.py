"""Commands that change a table, run as a person or a script would."""

import pyarrow as pa
import pyarrow.parquet as pq

from cli.conftest import ticks


def create(shell, *more):
    return shell.ok(
        "table", "create", "prices", "--time-column", "ts", "--bucket", "1h",
        "--entity-column", "symbol", *more,
    )  # fmt: skip


def count(shell):
    return int(shell.ok("sql", "select count(*) from prices").out.splitlines()[1])


def test_a_table_is_made_filled_and_read(incoming):
    assert "version 1" in create(incoming).out
    ran = incoming.ok("table", "append", "prices", "june-01.parquet", "june-02.parquet")
    assert ran.out == "appended 96 rows from 2 files (version 2)\n"
    assert ran.err == ""
    assert count(incoming) == 96


def test_a_pattern_in_quotes_is_all_files_that_match_in_one_commit(incoming):
    create(incoming)
    ran = incoming.ok("table", "append", "prices", "june-*.parquet", "--json")
    told = ran.json()
    assert told == {
        "root": str(incoming.folder / "prices"),
        "version": 2,
        "files": 3,
        "rows": 144,
        "segments": 3,
        "replaced": 0,
        "appended": True,
    }


def test_a_pattern_that_matches_nothing_is_not_found(incoming):
    create(incoming)
    ran = incoming.run("table", "append", "prices", "july-*.parquet")
    assert ran.code == 3
    assert "july-*.parquet" in ran.told()[1]


def test_a_folder_is_all_files_below_it_in_one_commit(incoming):
    create(incoming)
    nested = incoming.folder / "june" / "early"
    nested.mkdir(parents=True)
    for day in ("june-01", "june-02"):
        (incoming.folder / f"{day}.parquet").rename(nested / f"{day}.parquet")
    (nested / "_note.parquet").write_text("not one of them")
    assert incoming.ok("table", "append", "prices", "june", "--json").json()["rows"] == 96
    (incoming.folder / "empty").mkdir()
    ran = incoming.run("table", "append", "prices", "empty")
    assert ran.code == 2
    assert "name files" in ran.told()[2]


CSV = "ts,symbol,close,n\n2024-07-01T00:00:00Z,NVDA,1.5,1\n2024-07-01T01:00:00Z,AMD,2,\n"


def test_csv_and_json_lines_are_appended_without_spark(incoming):
    create(incoming)
    (incoming.folder / "a.csv").write_text(CSV)
    (incoming.folder / "b.ndjson").write_text(
        '{"ts": "2024-07-02", "symbol": "NVDA", "close": 3, "n": 9007199254740993}\n'
    )
    told = incoming.ok("table", "append", "prices", "a.csv", "b.ndjson", "--json").json()
    assert (told["rows"], told["files"], told["version"]) == (3, 2, 2)
    words = ("table", "append", "prices", "-", "--input-format", "csv", "--overlap", "replace")
    assert incoming.ok(*words, typed=CSV).out.startswith("appended 2 rows from 1 file, replacing")
    answer = incoming.ok("sql", "select close, n from prices order by ts", "--format", "csv").out
    assert answer.splitlines() == ["close,n", "1.5,1", "2.0,", "3.0,9007199254740993"]
    ran = incoming.run("table", "append", "prices", "-", typed=CSV)
    assert "--input-format" in ran.told()[2]


def test_one_bad_row_refuses_every_file_and_names_its_place(incoming):
    create(incoming)
    (incoming.folder / "a.csv").write_text(CSV)
    (incoming.folder / "b.csv").write_text(
        CSV.replace("07-01", "07-03").replace("Z,AMD,2,", "Z,AMD,2,2.7")
    )
    incoming.ok("table", "append", "prices", "a.csv", "--column-type", "n=int32")
    ran = incoming.run("table", "append", "prices", "b.csv")
    why = ran.told()[1]
    assert ran.code == 2
    assert "b.csv" in why
    assert "line: 3" in why
    assert "column n (int32)" in why
    assert count(incoming) == 2
    (incoming.folder / "c.csv").write_text("ts,symbol,venue\n2024-07-05,AMD,X\n")
    assert "--drift" in incoming.run("table", "append", "prices", "c.csv").told()[2]
    incoming.ok("table", "append", "prices", "c.csv", "--evolve")
    assert count(incoming) == 3


def test_an_overlap_is_refused_in_three_lines_and_the_hint_is_an_option(incoming):
    create(incoming)
    incoming.ok("table", "append", "prices", "june-01.parquet")
    ran = incoming.run("table", "append", "prices", "june-01.parquet")
    assert ran.code == 4
    what, why, do = ran.told()
    assert "already holds" in what
    assert "2024-06-01T00:00:00Z" in why
    assert "symbol=AMD" in why
    assert "--overlap replace" in do
    assert count(incoming) == 48


def test_an_overlap_is_replaced_when_that_is_asked(incoming):
    create(incoming)
    incoming.ok("table", "append", "prices", "june-01.parquet")
    ran = incoming.ok("table", "append", "prices", "june-01.parquet", "--overlap", "replace")
    assert "replacing rows in 1 segment" in ran.out
    assert count(incoming) == 48


def test_the_same_transaction_is_appended_once(incoming):
    create(incoming)
    words = ("table", "append", "prices", "june-01.parquet", "--txn", "nightly:7")
    incoming.ok(*words)
    assert (
        incoming.ok(*words).out == "nothing to append: nightly:7 was already appended (version 2)\n"
    )
    assert incoming.ok(*words, "--json").json()["appended"] is False
    assert count(incoming) == 48


def test_a_transaction_without_a_number_is_invalid(incoming):
    create(incoming)
    ran = incoming.run("table", "append", "prices", "june-01.parquet", "--txn", "nightly")
    assert ran.code == 2
    assert "--txn nightly:7" in ran.told()[2]


def test_new_columns_need_evolve(incoming):
    create(incoming)
    incoming.ok("table", "append", "prices", "june-01.parquet")
    wider = ticks(2).append_column("venue", pa.array(["X"] * 48))
    pq.write_table(wider, incoming.folder / "wider.parquet")
    ran = incoming.run("table", "append", "prices", "wider.parquet")
    assert ran.code == 2
    assert "--evolve" in ran.told()[2]
    incoming.ok("table", "append", "prices", "wider.parquet", "--evolve", "--link")
    assert count(incoming) == 96


def test_a_table_is_not_made_twice(shell):
    create(shell)
    ran = shell.run("table", "create", "prices", "--time-column", "ts", "--bucket", "1h")
    assert ran.code == 4
    ran.told()


def test_a_bucket_that_is_none_is_invalid(shell):
    ran = shell.run("table", "create", "prices", "--time-column", "ts", "--bucket", "soon")
    assert ran.code == 2
    assert "soon" in ran.told()[1]
    assert not (shell.folder / "prices").exists()


def test_a_delete_in_a_pipe_needs_a_yes_and_says_what_it_would_do(market):
    ran = market.run("table", "delete", "prices", "--where", "symbol = 'AMD'")
    assert ran.code == 2
    assert "delete 66 of 138 rows" in ran.told()[1]
    assert count(market) == 138


def test_a_delete_with_a_yes_deletes(market):
    ran = market.ok("table", "delete", "prices", "--where", "symbol = 'AMD'", "--yes")
    assert ran.out == "deleted 66 rows (version 5)\n"
    assert count(market) == 72


def test_a_delete_of_a_stretch_leaves_a_gap(market):
    words = ("--start", "2024-06-01T10:00:00Z", "--end", "2024-06-01T12:00:00Z", "--yes", "--json")
    assert market.ok("table", "delete", "prices", *words).json()["rows"] == 4
    gaps = market.ok("gaps", "prices", "--entity", "symbol=NVDA").out.splitlines()
    assert gaps[1:] == ["NVDA,2024-06-01T10:00:00Z,2024-06-01T12:00:00Z,2"]


def test_a_delete_that_matches_nothing_needs_no_yes(market):
    ran = market.ok("table", "delete", "prices", "--where", "symbol = 'XYZ'")
    assert ran.out == "no row matches (version 4)\n"


def test_a_delete_of_everything_must_be_said(market):
    ran = market.run("table", "delete", "prices", "--yes")
    assert ran.code == 2
    assert "--where true" in ran.told()[2]


def test_a_restore_brings_back_what_was(market):
    market.ok("table", "delete", "prices", "--where", "true", "--yes")
    assert count(market) == 0
    assert market.ok("table", "restore", "prices", "4").out == "restored version 4 (version 6)\n"
    assert count(market) == 138


def test_a_restore_of_a_version_that_never_was_is_not_found(market):
    ran = market.run("table", "restore", "prices", "99", "--json")
    assert ran.code == 3
    assert ran.error()["facts"] == {"version": 99, "newest": 4}


def test_retention_is_set_kept_and_asks_before_all_rows_go(market):
    assert market.run("table", "retain", "prices").code == 2
    ran = market.ok("table", "set", "prices", "--retention", "90d", "--overlap", "allow")
    assert "overlap is allow, retention is 90d" in ran.out
    ran = market.run("table", "retain", "prices")
    assert ran.code == 2
    assert "--yes" in ran.told()[2]
    assert market.ok("table", "retain", "prices", "--yes", "--json").json()["rows"] == 138
    assert count(market) == 0


def test_retention_can_be_for_ever_again(market):
    market.ok("table", "set", "prices", "--retention", "90d")
    told = market.ok("table", "set", "prices", "--retention", "forever", "--json").json()
    assert told["retention"] is None


def test_columns_are_added_renamed_and_widened(market):
    columns = ("table", "columns")
    market.ok(*columns, "add", "prices", "venue", "text")
    market.ok(*columns, "rename", "prices", "venue", "market")
    assert "int64" in market.ok(*columns, "widen", "prices", "volume", "int64").out
    found = market.ok(*columns, "list", "prices", "--json").json()["columns"]
    assert {"name": "market", "type": "string", "nullable": True} in found
    assert {"name": "volume", "type": "int64", "nullable": True} in found
    before = market.ok(*columns, "list", "prices", "--at", "4").out
    assert "market" not in before
    assert "never null" in before.splitlines()[0]


def test_a_type_that_is_none_is_invalid_and_types_are_named(market):
    ran = market.run("table", "columns", "add", "prices", "venue", "varchar(7)")
    assert ran.code == 2
    assert "float64" in ran.told()[2]


def test_a_table_of_whole_numbers_is_made_filled_updated_and_drawn(shell):
    shell.ok(
        "table", "create", "blocks", "--index-column", "height", "--bucket", "100",
        "--column", "height:int64", "--column", "gas:float64",
    )  # fmt: skip
    first, late = shell.folder / "first.parquet", shell.folder / "late.parquet"
    pq.write_table(pa.table({"height": [1, 150, 420], "gas": [1.0, 2.0, 3.0]}), first)
    pq.write_table(pa.table({"height": [150, 160], "gas": [20.0, 30.0]}), late)
    shell.ok("table", "append", "blocks", "first.parquet")
    gaps = shell.ok("gaps", "blocks", "--json").json()
    assert [(gap["start"], gap["end"]) for gap in gaps["gaps"]] == [(200, 400)]
    assert (gaps["start"], gaps["end"]) == ("0", "500")
    assert shell.run("table", "update", "blocks", "late.parquet").code == 2
    told = shell.ok("table", "upsert", "blocks", "late.parquet", "--json").json()
    assert (told["matched"], told["inserted"], told["unchanged"]) == (1, 1, 0)
    held = shell.ok("coverage", "blocks", "--start", "50", "--end", "150", "--format", "csv").out
    assert held.splitlines() == ["start,end,buckets", "0,200,2"]
    answer = shell.ok("sql", "select sum(gas) from blocks").out.splitlines()
    assert answer[1] == "54.0"
