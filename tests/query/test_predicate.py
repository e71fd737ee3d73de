"""A condition gives a mask for every batch, reads only its columns, and implies bounds."""

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.errors import Invalid, NotFound
from thermocline.query.sql.plan import Constraint
from thermocline.query.sql.predicate import compile_predicate

SCHEMA = pa.schema(
    {
        "ts": pa.timestamp("us"),
        "a": pa.int64(),
        "Symbol": pa.string(),
        "list": pa.list_(pa.int64()),
        "half": pa.float16(),
        "wide": pa.decimal256(50, 2),
        "span": pa.duration("us"),
        "code": pa.dictionary(pa.int32(), pa.string()),
        "select": pa.struct([("x", pa.int32())]),
    }
)


def batch(**columns) -> pa.RecordBatch:
    """Return a batch with these columns and nulls in the others."""
    count = len(next(iter(columns.values())))
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


BATCH = batch(
    ts=[0, 1, 2],
    a=[1, None, 3],
    Symbol=["x", "y", "z"],
    list=[[1], [5, 6], None],
    half=[0.5, 1.5, None],
    span=[1, 2, 3],
    code=["k", None, "l"],
)


@pytest.mark.parametrize(
    ("where", "columns", "mask"),
    [
        ("a > 1", ("a",), [False, False, True]),
        ("A is null", ("a",), [False, True, False]),
        ("not (a > 1)", ("a",), [True, False, False]),
        ("a > 1 or symbol = 'x'", ("a", "Symbol"), [True, False, True]),
        ("true", (), [True, True, True]),
        ("null", (), [False, False, False]),
        ("1 = 2", (), [False, False, False]),
        ("list_sum(list) > 5", ("list",), [False, True, False]),
        ("len(list_filter(list, lambda v: v > 1)) > 0", ("list",), [False, True, False]),
        ("half > 1", ("half",), [False, True, False]),
        ("span >= 2", ("span",), [False, True, True]),
        ("code = 'k'", ("code",), [True, False, False]),
        ('"select".x is null', ("select",), [True, True, True]),
        ("ts < now()", ("ts",), [True, True, True]),
        ("ts < current_timestamp", ("ts",), [True, True, True]),
        ("a > 1 -- and a comment", ("a",), [False, False, True]),
        ("a\n>\n1", ("a",), [False, False, True]),
        ("case when a = 1 then true end", ("a",), [True, False, False]),
    ],
)
def test_a_condition_is_true_of_these_rows(where, columns, mask):
    predicate = compile_predicate(where, SCHEMA)
    assert predicate.columns == columns
    assert predicate(BATCH).to_pylist() == mask
    assert predicate.mask(BATCH.select(list(columns))).to_pylist() == mask
    assert predicate(BATCH.slice(1, 2)).to_pylist() == mask[1:]
    assert predicate(BATCH.slice(0, 0)).to_pylist() == []
    assert isinstance(predicate(BATCH), pa.BooleanArray)


@pytest.mark.parametrize(
    "where",
    [
        "",
        "a",
        "a + 1",
        "sum(a) > 1",
        "row_number() over () = 1",
        "unnest(list) = 1",
        "(select true)",
        "a in (select 1)",
        "exists (select 1)",
        "a = $1",
        "a = ?",
        "a > 1; select 1",
        "a > 1) or (true",
        "a > 1), (a > 2",
        "a > 1) from x --",
        "a > 1) as b, (true",
        "a > 1 as b",
        "a > 1, a > 2",
        "distinct a > 1",
        "a > 1 from __thermocline_batch union all select true",
        "a > 1 from __thermocline_batch where true limit 1 --",
        "true group by all --",
        "true) from __thermocline_batch where (true",
        "a > 1 order by a",
        "*",
        "columns(*) > 1",
        "read_text('/etc/passwd') is not null",
        "getvariable('x') = 1",
        "gaps('t') = 1",
        "#1 = 1",
        "a >",
    ],
)
def test_what_is_not_one_condition_of_a_row_is_refused(where):
    with pytest.raises(Invalid):
        compile_predicate(where, SCHEMA)


def test_an_unknown_column_is_named_with_those_that_exist():
    with pytest.raises(NotFound) as raised:
        compile_predicate("nope = 1", SCHEMA)
    assert raised.value.facts["column"] == "nope"
    assert "Symbol" in raised.value.facts["columns"]


def test_a_syntax_error_has_its_place_in_the_condition():
    with pytest.raises(Invalid) as raised:
        compile_predicate("a >> > 1", SCHEMA)
    assert raised.value.facts["position"] == 5


def test_an_error_in_a_row_is_raised_and_not_taken_for_false():
    predicate = compile_predicate("cast(symbol as integer) = 1", SCHEMA)
    with pytest.raises(Invalid):
        predicate(BATCH)


def test_the_constraints_are_those_of_its_conjuncts():
    where = "a > 1 and ts >= '1970-01-01' and symbol in ('x', 'y') and (a = 5 or symbol = 'q')"
    assert set(compile_predicate(where, SCHEMA).constraints) == {
        Constraint("a", low=1, low_inclusive=False),
        Constraint("ts", low=0),
        Constraint("Symbol", "x", "y", values=("x", "y")),
    }


def test_the_clock_stands_still_between_batches():
    predicate = compile_predicate("ts < now()", SCHEMA)
    (constraint,) = predicate.constraints
    edge = constraint.high // 1000
    for _ in range(3):
        assert predicate(batch(ts=[edge - 1, edge])).to_pylist() == [True, False]


def test_batches_are_asked_from_many_threads():
    predicate = compile_predicate("a % 2 = 0", SCHEMA)
    wrong: list[int] = []

    def ask(first: int) -> None:
        values = list(range(first, first + 1000))
        if predicate(batch(a=values)).to_pylist() != [value % 2 == 0 for value in values]:
            wrong.append(first)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


PARITY = compile_predicate("a % 3 = 0", SCHEMA)


@given(st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40)), max_size=300))
def test_the_mask_is_in_the_order_of_the_rows(values):
    mask = PARITY(batch(a=values)).to_pylist() if values else []
    assert mask == [value is not None and value % 3 == 0 for value in values]


def test_a_batch_of_many_rows_keeps_its_order():
    values = list(range(300_000))
    mask = PARITY(batch(a=values))
    assert mask.to_pylist() == [value % 3 == 0 for value in values]
