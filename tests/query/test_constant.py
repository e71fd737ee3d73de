"""A constant that is read without the engine equals the engine's value."""

from dataclasses import replace
from datetime import datetime

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from thermocline.query.sql.constant import evaluate_constants, parse_constant
from thermocline.query.sql.syntax import RewrittenText, parse

TIME_COLUMNS = ["TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ_NS"]
KINDS = ["", "timestamp", "date", "timestamptz", "timestamp with time zone"]

moments = st.datetimes(datetime(1600, 1, 1), datetime(2300, 1, 1))
forms = st.sampled_from(
    ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M"]
)
written = st.builds(lambda moment, form: moment.strftime(form), moments, forms)
shortened = st.builds(lambda text, cut: text[: len(text) - cut], written, st.integers(0, 7))
resembling = st.from_regex(
    r"\d{4}-[01]\d-[0-3]\d([ T][0-2]\d:[0-6]\d:[0-6]\d(\.\d{1,7})?)?(Z|\+01)?", fullmatch=True
)


@pytest.fixture(scope="module")
def nobody():
    """A cursor that fails at every call."""
    closed = duckdb.connect(":memory:")
    closed.close()
    return closed


def expressed(parser, kind: str, text: str):
    tree = parse(parser, RewrittenText(f"select {kind} '{text}'"))
    return parse_constant(parser, tree["node"]["select_list"][0])


@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.one_of(written, shortened, resembling))
@example("timestamp", "2024-02-30 00:00:00")
@example("timestamp", "2024-02-29T23:59:59.9")
@example("timestamptz", "1700-01-01")
@example("", "2200-12-31 23:59:59.999999")
@example("", "٢٠٢٤-٠٦-٠١")
def test_a_time_that_reads_as_it_is_written_is_the_engines(parser, nobody, kind, text):
    one = expressed(parser, kind, text)
    for column in [*TIME_COLUMNS, "VARCHAR"]:
        values = evaluate_constants(nobody, [(one, column)], {})
        if values is not None:
            assert values == evaluate_constants(parser, [(replace(one, literal=None), column)], {})


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("timestamp", "2024-06-01"),
        ("TIMESTAMP", "2024-06-01 13:00:00"),
        ("timestamptz", "2024-06-01T13:00:00.123456"),
        ("timestamp with time zone", "2024-06-01 13:00:00.5"),
        ("date", "2024-06-01"),
        ("", "2024-06-01"),
        ("", "2024-06-01 13:00:00"),
    ],
)
def test_the_engine_is_not_asked_for_a_plain_time(parser, nobody, kind, text):
    one = expressed(parser, kind, text)
    assert all(
        evaluate_constants(nobody, [(one, column)], {}) is not None for column in TIME_COLUMNS
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("timestamp", "2024-06-01 24:00:00"),
        ("timestamp", "2024-06-01 13:00:60"),
        ("timestamp", "2024-06-01 13:00"),
        ("timestamp", "2024-06-01 13:00:00.1234567"),
        ("timestamp", "2024-06-01 13:00:00+02"),
        ("timestamp", "2024-02-30"),
        ("timestamp", "1699-12-31"),
        ("timestamp", "infinity"),
        ("timestamp", " 2024-06-01"),
        ("timestamp", "2024-06-01.5"),
        ("timestamp", "2024-06-01\n"),
        ("timestamp_ns", "2024-06-01"),
        ("date", "2024-06-01 13:00:00"),
        ("", "2024-06-01Z"),
        ("", "٢٠٢٤-٠٦-٠١"),
    ],
)
def test_the_engine_is_asked_for_whatever_else_may_be_a_time(parser, nobody, kind, text):
    one = expressed(parser, kind, text)
    assert all(evaluate_constants(nobody, [(one, column)], {}) is None for column in TIME_COLUMNS)


@pytest.mark.parametrize(
    "sql",
    [
        "try_cast('2024-06-01' as timestamp)",
        "'2024-06-01'::timestamp[]",
        "timestamp(0) '2024-06-01'",
    ],
)
def test_another_cast_is_the_engines_work(parser, nobody, sql):
    tree = parse(parser, RewrittenText(f"select {sql}"))
    one = parse_constant(parser, tree["node"]["select_list"][0])
    assert evaluate_constants(nobody, [(one, "TIMESTAMP")], {}) is None
