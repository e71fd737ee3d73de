"""gaps and coverage on the command line."""

import json

import pytest


def rows(ran):
    return [line.split(",") for line in ran.out.splitlines()]


def test_gaps_are_csv_in_a_pipe(market):
    assert rows(market.ok("gaps", "prices")) == [
        ["symbol", "start", "end", "buckets"],
        ["AMD", "2024-06-02T09:00:00Z", "2024-06-02T15:00:00Z", "6"],
    ]


def test_gaps_reach_over_a_stretch_that_is_not_held(market):
    found = rows(market.ok("gaps", "prices", "--end", "2024-06-05", "--entity", "NVDA"))
    assert found[1:] == [["NVDA", "2024-06-04T00:00:00Z", "2024-06-05T00:00:00Z", "24"]]


def test_without_entities_a_bucket_is_held_by_any(market):
    assert rows(market.ok("gaps", "prices", "--no-entities")) == [["start", "end", "buckets"]]


def test_gaps_in_json_say_what_was_asked_and_what_is_missing(market):
    told = market.ok("gaps", "prices", "--json").json()
    assert told == {
        "root": str(market.folder / "prices"),
        "version": 4,
        "bucket": "1h",
        "start": "2024-06-01T00:00:00Z",
        "end": "2024-06-04T00:00:00Z",
        "buckets": 144,
        "buckets_held": 138,
        "ratio": 138 / 144,
        "is_verified": True,
        "holes": [],
        "gaps": [
            {
                "symbol": "AMD",
                "start": "2024-06-02T09:00:00Z",
                "end": "2024-06-02T15:00:00Z",
                "buckets": 6,
            }
        ],
    }


def test_gaps_at_a_version_are_of_that_version(market):
    told = market.ok("gaps", "prices", "--at", "2", "--json").json()
    assert (told["version"], told["gaps"]) == (2, [])


def test_an_entity_that_was_never_seen_is_not_found(market):
    for command in ("gaps", "coverage"):
        ran = market.run(command, "prices", "--entity", "symbol=XYZ")
        assert ran.code == 3
        assert "XYZ" in ran.told()[1]


def test_coverage_is_cut_off_where_the_stretch_ends(market):
    words = ("--start", "2024-06-02T06:00:00Z", "--end", "2024-06-02T18:00:00Z")
    assert rows(market.ok("coverage", "prices", *words, "--entity", "symbol=AMD"))[1:] == [
        ["AMD", "2024-06-02T06:00:00Z", "2024-06-02T09:00:00Z", "3"],
        ["AMD", "2024-06-02T15:00:00Z", "2024-06-02T18:00:00Z", "3"],
    ]


def test_coverage_in_json_counts_what_is_held(market):
    told = market.ok("coverage", "prices", "--no-entities", "--json").json()
    assert (told["buckets"], told["buckets_held"], told["ratio"]) == (72, 72, 1.0)
    assert told["stretches"] == [
        {"start": "2024-06-01T00:00:00Z", "end": "2024-06-04T00:00:00Z", "buckets": 72}
    ]


def test_coverage_as_json_lines_is_one_object_a_line(market):
    lines = market.ok("coverage", "prices", "--format", "ndjson").out.splitlines()
    assert [json.loads(line)["symbol"] for line in lines] == ["AMD", "AMD", "NVDA"]


def test_an_empty_table_has_no_gaps_and_nothing_held(shell):
    shell.ok("table", "create", "empty", "--time-column", "ts", "--bucket", "1d")
    for command, key in (("gaps", "gaps"), ("coverage", "stretches")):
        told = shell.ok(command, "empty", "--json").json()
        assert (told[key], told["start"], told["ratio"]) == ([], None, 0.0)


def test_an_end_before_the_start_is_invalid(market):
    ran = market.run("gaps", "prices", "--start", "2024-06-02", "--end", "2024-06-01")
    assert ran.code == 2
    ran.told()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--fail",), 10),
        (("--max-missing", "100%"), 0),
        (("--max-missing", "0.01%"), 10),
        (("--max-missing", "1000000"), 0),
        (("--max-missing", "101%"), 2),
        (("--max-missing", "-1"), 2),
        (("--fail", "--start", "2019-01-01", "--end", "2019-01-02"), 10),
    ],
)
def test_a_gate_passes_only_if_no_more_is_missing_than_allowed(market, words, code):
    ran = market.run("gaps", "prices", *words, "--json")
    assert ran.code == code, ran.err
    if code != 2:
        told = ran.json()
        assert told["passed"] is (code == 0)
        assert told["missing"] == told["buckets"] - told["buckets_held"]
        assert bool(told["reason"]) is (code == 10)
        assert ran.err.startswith("gate: ") is (code == 10)


def test_a_gate_without_a_bucket_does_not_pass(shell):
    shell.ok("table", "create", "prices", "--time-column", "ts", "--bucket", "1h")
    ran = shell.run("gaps", "prices", "--max-missing", "100%")
    assert ran.code == 10
    assert "nothing was checked" in ran.err
