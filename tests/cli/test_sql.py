"""SQL on the command line: formats, files, parameters, pipes and Ctrl-C."""

import csv
import io
import json
import signal
import subprocess
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COUNT = "select symbol, count(*) as n from prices group by all order by all"
ENDLESS = (
    "select count(*) from prices a, prices b, prices c, prices d, prices e "
    "where a.close * b.close > c.close * d.close + e.close"
)


def test_an_answer_is_csv_in_a_pipe(market):
    ran = market.ok("sql", COUNT)
    assert ran.out == "symbol,n\nAMD,66\nNVDA,72\n"
    assert ran.err == ""


def test_an_answer_in_json_has_columns_and_rows(market):
    assert market.ok("sql", COUNT, "--json").json() == {
        "columns": [{"name": "symbol", "type": "string"}, {"name": "n", "type": "int64"}],
        "rows": [{"symbol": "AMD", "n": 66}, {"symbol": "NVDA", "n": 72}],
    }


def test_json_lines_are_one_object_a_line(market):
    lines = market.ok("sql", COUNT, "--format", "ndjson").out.splitlines()
    assert [json.loads(line)["n"] for line in lines] == [66, 72]


def test_two_columns_of_one_name_are_both_in_an_object(market):
    told = market.ok("sql", "select 1 as a, 2 as a, 3 as a_2", "--json").json()
    assert sorted(told["rows"][0].values()) == [1, 2, 3]


def test_null_and_empty_text_differ_in_csv(market):
    out = market.ok("sql", "select note from prices where symbol = 'AMD' order by ts limit 3").out
    assert out == 'note\n""\n\nnull\n'


def test_arrow_and_parquet_come_through_a_pipe_whole(market):
    rows = "select * from prices"
    for form, read in (
        ("arrow", lambda data: pa.ipc.open_stream(data).read_all()),
        ("parquet", lambda data: pq.read_table(io.BytesIO(data))),
    ):
        process = market.start("sql", rows, "--format", form, stdout=subprocess.PIPE)
        data, _ = process.communicate()
        assert read(data).num_rows == 138


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.ndjson", "a.arrow", "a.parquet"])
def test_a_file_has_the_format_of_its_ending(market, name):
    ran = market.ok("sql", COUNT, "--output", name)
    assert ran.out == ""
    data = (market.folder / name).read_bytes()
    read = {
        "a.csv": lambda: csv.DictReader(io.StringIO(data.decode())),
        "a.json": lambda: json.loads(data)["rows"],
        "a.ndjson": lambda: [json.loads(line) for line in data.splitlines()],
        "a.arrow": lambda: pa.ipc.open_file(data).read_all().to_pylist(),
        "a.parquet": lambda: pq.read_table(io.BytesIO(data)).to_pylist(),
    }
    assert [int(row["n"]) for row in read[name]()] == [66, 72]


def test_a_query_that_fails_leaves_no_file(market):
    ran = market.run("sql", "select error('no') from prices", "--output", "a.csv")
    assert ran.code == 2
    ran.told()
    assert sorted(path.name for path in market.folder.iterdir()) == ["prices"]


def test_a_file_that_cannot_be_written_is_unavailable_and_named(market):
    ran = market.run("sql", COUNT, "--output", "nowhere/a.csv")
    assert ran.code == 6
    assert "nowhere/a.csv" in ran.told()[1]


def test_parameters_are_given_by_name_or_by_position(market):
    by_name = "select count(*) as n from prices where symbol = $s and ts >= $t and close < $c"
    words = ("--param", "s=NVDA", "--param", "t=2024-06-03", "--param", "c=110.5")
    assert market.ok("sql", by_name, *words).out == "n\n11\n"
    by_place = "select count(*) as n from prices where symbol = ? and close < ?"
    assert market.ok("sql", by_place, "--param", "NVDA", "--param", "101").out == "n\n3\n"


def test_a_parameter_in_quotes_is_text(market):
    told = market.ok("sql", "select typeof($x) as t, $x as x", "--param", 'x="007"', "--json")
    assert told.json()["rows"] == [{"t": "VARCHAR", "x": "007"}]


def test_parameters_by_name_and_by_position_do_not_mix(market):
    ran = market.run("sql", "select ?", "--param", "a=1", "--param", "2")
    assert ran.code == 2
    ran.told()


def test_tables_are_found_by_option_in_a_folder_and_here(market):
    other = market.folder / "elsewhere"
    other.mkdir()
    (market.folder / "prices").rename(other / "prices")
    query = "select count(*) as n from prices"
    assert market.run("sql", query).code == 3
    assert market.ok("sql", query, "--tables", "elsewhere").out == "n\n138\n"
    assert market.ok("sql", query, "--table", "prices=elsewhere/prices").out == "n\n138\n"


def test_a_parquet_file_is_joined_under_a_name(market):
    names = pa.table({"symbol": ["AMD", "NVDA"], "name": ["Advanced Micro", "Nvidia"]})
    pq.write_table(names, market.folder / "names.parquet")
    query = (
        "select name, max(close) as m from prices join names using (symbol) group by all order by 1"
    )
    ran = market.ok("sql", query, "--table", "names=names.parquet")
    assert ran.out == "name,m\nAdvanced Micro,123.0\nNvidia,123.0\n"


def test_a_version_is_read_as_of(market):
    assert market.ok("sql", "select count(*) as n from prices as of version 2").out == "n\n48\n"


def test_the_query_may_come_from_standard_input(market):
    ran = market.run("sql", "-", typed=COUNT)
    assert (ran.code, ran.out) == (0, "symbol,n\nAMD,66\nNVDA,72\n")


def test_a_table_nobody_knows_is_not_found_and_the_option_is_named(shell):
    ran = shell.run("sql", "select * from prices")
    assert ran.code == 3
    assert "--table prices=PATH" in ran.told()[2]


def test_a_syntax_error_is_three_lines(market):
    ran = market.run("sql", "selec 1")
    assert ran.code == 2
    ran.told()
    assert ran.out == ""


def test_json_errors_are_json(market):
    ran = market.run("sql", "select nope from prices", "--json")
    assert ran.code == 2
    assert ran.error()["code"] == "invalid"
    assert ran.error()["hint"]


def test_json_and_another_format_contradict_each_other(market):
    ran = market.run("sql", COUNT, "--json", "--format", "csv")
    assert ran.code == 2
    assert "--format" in ran.error()["message"]


@pytest.mark.parametrize("form", ["csv", "json", "arrow", "parquet"])
def test_a_closed_pipe_ends_the_command_quietly(market, form):
    query = "select a.* from prices a, prices b, prices c"
    process = market.start(
        "sql", query, "--format", form, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.read(4)
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 141
    assert said == b""


def test_ctrl_c_ends_a_long_query_at_once_and_leaves_no_file(market):
    process = market.start("sql", ENDLESS, "--output", "a.csv", stderr=subprocess.PIPE)
    part = market.folder / "a.csv.part"
    pins = market.folder / "prices" / "_pins"
    limit = time.monotonic() + 180
    while not (pins.exists() and any(pins.iterdir())) and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said == b""
    assert not part.exists()
    assert not (market.folder / "a.csv").exists()
