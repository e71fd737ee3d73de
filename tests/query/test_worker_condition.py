"""Conditions of clients: evaluated in a worker, with the outcome that this process would have."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from fixtures.timing import wait_until
from thermocline.config import LakeSettings
from thermocline.errors import Invalid, NotFound, Overloaded, QueryTimeout
from thermocline.node import Node
from thermocline.query.sql.predicate import compile_predicate
from thermocline.query.worker.pool import QueryPool

SCHEMA = pa.schema(
    [("ts", pa.timestamp("us", "UTC")), ("x", pa.int64()), ("s", pa.string()), ("b", pa.bool_())]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "ts": datetime(2024, 6, 1, n % 24, tzinfo=UTC),
            "x": None if n % 7 == 0 else n,
            "s": None if n % 5 == 0 else "a" * (n % 9),
            "b": n % 3 == 0,
        }
        for n in range(1_003)
    ],
    SCHEMA,
)
STUBBORN = "levenshtein(repeat('a', 40000 + x::int % 2), repeat('b', 40000)) > 3"
HOSTILE = {
    "more memory than the limit": "length(repeat(s, 400000000)) > 3",
    "a list without end": "len(range(1000000000)) > x",
    "a deep expression": "x > 0" + " and (x > 0" * 4_000 + ")" * 4_000,
    "deep JSON": "json_transform('{}', '" + '{"a":' * 9_000 + '"int"' + "}" * 9_000 + "') is null",
}


@pytest.fixture(scope="module")
def pool():
    """One worker, which a query may use for three seconds."""
    with QueryPool(workers=1, timeout_s=3.0, wait_s=60.0) as opened:
        yield opened


@pytest.mark.parametrize(
    "where",
    [
        "x > 3",
        "s = 'aa'",
        "b",
        "s is null or x in (4, 9)",
        "ts >= '2024-06-01T05:00:00Z' and x < 90",
    ],
)
@pytest.mark.parametrize("slice_bytes", [100, 16 << 20])
def test_a_worker_answers_as_this_process_does(pool, monkeypatch, where, slice_bytes):
    monkeypatch.setattr(
        "thermocline.query.worker.worker_condition.BATCH_BYTES_MAX", slice_bytes * 40
    )
    local = compile_predicate(where, SCHEMA)
    with pool.open_condition(where, SCHEMA) as remote:
        assert remote.columns == local.columns
        assert remote.window("ts") == local.window("ts")
        for batch in (ROWS, ROWS.slice(0, 0), ROWS.slice(17, 100)):
            batch = batch.select(list(local.columns))
            assert remote.mask(batch).equals(local.mask(batch))
    assert pool.queue.of_tenant("") == []


@pytest.mark.parametrize(
    ("where", "error"),
    [("x in (select 1)", Invalid), ("nope > 3", NotFound), ("x +", Invalid), ("x + 1", Invalid)],
)
def test_a_condition_that_is_none_has_the_same_error_from_a_worker(pool, where, error):
    with pytest.raises(error) as local:
        compile_predicate(where, SCHEMA)
    with pytest.raises(error) as remote:
        pool.open_condition(where, SCHEMA)
    assert remote.value.message == local.value.message
    assert pool.queue.of_tenant("") == []


@pytest.mark.parametrize("where", HOSTILE.values(), ids=HOSTILE)
def test_A12_a_hostile_condition_harms_only_its_worker(pool, where):
    with pytest.raises((Invalid, Overloaded)), pool.open_condition(where, SCHEMA) as remote:
        remote.mask(ROWS.select(list(remote.columns)))
    assert pool.sql("select 1 as n").to_pylist() == [{"n": 1}]


def test_A12_a_condition_has_a_deadline_over_all_batches(pool):
    with pytest.raises(QueryTimeout), pool.open_condition(STUBBORN, SCHEMA) as remote:
        remote.mask(ROWS.select(["x"]))
    assert pool.sql("select 2 as n").to_pylist() == [{"n": 2}]


def test_a_condition_that_is_left_in_the_middle_frees_its_worker(pool):
    def fail():
        with pool.open_condition("x > 3", SCHEMA) as remote:
            remote.mask(ROWS.select(["x"]))
            raise KeyError("the caller failed")

    with pytest.raises(KeyError):
        fail()
    wait_until(lambda: not pool.queue.of_tenant(""))
    assert pool.sql("select 3 as n").to_pylist() == [{"n": 3}]


def test_A12_a_nodes_deletes_never_evaluate_a_condition_in_the_node(tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("the node itself compiled a client's condition")

    with Node(str(tmp_path), LakeSettings(query_workers=1)) as node:
        table = node.lake().create_table("p", time_column="ts", bucket="1h")
        table.write([{"ts": datetime(2024, 6, 1, n, tzinfo=UTC), "x": n} for n in range(9)])
        monkeypatch.setattr("thermocline.query.sql.predicate.compile_predicate", refuse)
        table.delete("x < 4 and ts < '2024-06-01T03:00:00Z'")
        assert node.lake().sql("select x from p order by x")["x"].to_pylist() == [3, 4, 5, 6, 7, 8]
