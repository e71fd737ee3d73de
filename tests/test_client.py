"""The client: one program, embedded and over HTTP, with equal answers and equal errors."""

import datetime as dt
import socket
import threading
from contextlib import contextmanager
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fixtures.api import ENDLESS, FAILS_LATE, price, serving
from fixtures.timing import soonest, wait_until
from thermocline.client import Client, ClientTable, http
from thermocline.config import read_lake_settings
from thermocline.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    ThermoclineError,
    Unauthenticated,
    Unavailable,
)
from thermocline.node import Node

UTC = dt.UTC


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("node"), has_keys=True) as served:
        yield served


@pytest.fixture
def client(node):
    with Client(node.url, node.key, timeout_s=60) as client:
        yield client


@pytest.fixture
def embedded(tmp_path):
    node = Node(str(tmp_path / "lake"), read_lake_settings({"query_workers": 1}))
    try:
        yield node.lake()
    finally:
        node.close()


def exact_rows():
    """Return a row of every kind that a program may write."""
    return pa.table(
        {
            "ts": pa.array([1_717_200_000_123_456_789], pa.timestamp("ns", tz="UTC")),
            "symbol": pa.array(["é\0"]),
            "money": pa.array([Decimal("12345678901234567890.123456789")], pa.decimal128(38, 9)),
            "bytes": pa.array([b"\x00\xff"], pa.binary()),
            "nan": pa.array([float("nan")]),
            "big": pa.array([2**63 - 1], pa.int64()),
            "tags": pa.array([["a", None]], pa.list_(pa.string())),
            "more": pa.array(
                [{"x": 1, "y": "z"}], pa.struct([("x", pa.int8()), ("y", pa.string())])
            ),
            "day": pa.array([dt.date(2024, 6, 1)]),
            "took": pa.array([dt.timedelta(microseconds=5)], pa.duration("us")),
        }
    )


def program(lake, name):
    """Do what a user does with a lake, and return every answer."""
    told = []

    def tell(value):
        told.append(plain(value))

    def tell_error(act):
        with pytest.raises(ThermoclineError) as caught:
            act()
        error = caught.value
        facts = {k: v for k, v in error.facts.items() if k not in ("query_id", "tables")}
        told.append((type(error), error.message, error.hint, facts.keys()))

    table = lake.create_table(name, time_column="ts", bucket="1h", entity_columns=["symbol"])
    tell(table.name)
    tell(table.coverage())
    tell(table.write([price(0), price(1), price(5, "AMD")]))
    tell(table.write([]))
    tell(table.write(pa.Table.from_pylist([price(6)]).cast(table.schema())))
    tell(table.write(pd.DataFrame([price(7)]).assign(ts=pd.Timestamp("2024-06-01T07:00:00"))))
    frame = pl.DataFrame([price(8)]).with_columns(pl.col("ts").str.to_datetime(time_unit="us"))
    tell(table.write(frame))
    tell(table.schema())
    tell(table.gaps())
    tell(table.gaps("2024-06-01", dt.datetime(2024, 6, 1, 4, tzinfo=UTC), entity="AMD"))
    tell(table.gaps(entity={"symbol": "NVDA"}))
    tell(table.gaps(entity=("AMD",), per_entity=False))
    tell(table.coverage(per_entity=False))
    version = table.flush()
    tell(version)
    tell(table.version())
    tell(table.write([price(9, "AMD")], request_id="the-same", wait_s=1.5))
    table.write([price(9, "AMD")], request_id="the-same")
    tell(lake.sql(f"select * from {name} order by ts, symbol"))
    day = dt.datetime(2024, 6, 1)
    tell(lake.sql(f"select count(*) from {name} where ts >= ? and symbol = ?", [day, "AMD"]))
    tell(lake.sql("select $a as a, $b as b, $c as c, $d as d, $e as e", {
        "a": Decimal("1.50"), "b": b"\x00", "c": dt.date(2024, 6, 1), "d": [1, 2], "e": None,
    }))  # fmt: skip
    with lake.sql_reader(f"select symbol from {name} order by ts") as reader:
        tell(reader.schema)
        tell(reader.read_all())
    answer = lake.answer(f"select 1 as a from {name}")
    report = answer.report.tables[name]
    tell((report.version, report.hot_rows, report.cold_rows))
    answer.close()
    tell(table.coverage_ratio())
    tell(table.coverage_ratio("2024-06-01", "2024-06-02", entity="AMD"))
    tell(table.is_covered("2024-06-01", "2024-06-01T02:00:00Z", entity="NVDA"))
    tell(table.is_covered("2024-06-01", "2024-06-01T04:00:00Z"))
    tell(table.last_fully_covered_window("2h", entity="NVDA"))
    tell(table.last_fully_covered_window("9h"))
    tell(table.silent_entities("2024-06-01T07:00:00", "2024-06-01T09:00:00"))
    tell(table.holes())
    tell(table.delete("symbol = 'AMD'", start="2024-06-01"))
    tell(lake.sql(f"select count(*) from {name}"))
    tell(table.restore(version))
    tell(lake.sql(f"select count(*) from {name}"))
    found = table.history()
    tell(found.select(["version", "operation", "rows_added", "rows_removed"]))
    tell(found.schema)
    tell(table.history(2).num_rows)
    diff = table.diff(version)
    tell((diff.old, diff.new, diff.rows, diff.buckets_gained, diff.columns))
    tell(table.set_retention("9000d"))
    tell(table.set_retention(None))
    compacted = table.compact()
    tell((compacted.commits, compacted.segments_before, compacted.segments, compacted.rows))
    tell(table.compact().commits)
    tell(lake.sql(f"select * from {name} order by ts, symbol"))
    vacuumed = table.vacuum()
    tell((vacuumed.is_dry_run, len(vacuumed.files)))
    tell(name in lake.tables())
    table.write([price(10)])
    tell(sorted(lake.flush(name)))
    tell(lake.flush(name))
    other = lake.create_table(f"{name}_exact", time_column="ts", bucket="1d")
    tell(other.write(exact_rows()))
    tell(lake.sql(f"select * from {name}_exact"))
    tell(other.schema())

    tell_error(lambda: lake.table("nothing"))
    tell_error(lambda: lake.table("../x"))
    tell_error(lambda: lake.create_table(name, time_column="ts", bucket="1h"))
    tell_error(lambda: lake.create_table("x", time_column="ts", bucket="never"))
    tell_error(lambda: lake.sql("select * from nothing"))
    tell_error(lambda: lake.sql("drop table x"))
    tell_error(lambda: lake.sql("select cast('x' as int)"))
    tell_error(lambda: lake.sql(FAILS_LATE))
    tell_error(lambda: table.write([{**price(0), "more": 1}]))
    tell_error(lambda: table.write([{**price(0), "close": "much"}]))
    tell_error(lambda: table.write([{"symbol": "A"}]))
    tell_error(lambda: table.write(7))
    tell_error(lambda: table.gaps("2024-06-02", "2024-06-01"))
    tell_error(lambda: table.gaps("yesterday"))
    tell_error(lambda: table.gaps(entity="NOBODY"))
    tell_error(lambda: table.restore(10_000))
    tell_error(lambda: table.set_retention("soon"))
    tell_error(lambda: table.retain(yes=True))
    tell_error(lambda: table.delete())
    tell_error(lambda: table.vacuum(dry_run=False, grace="1s"))
    tell_error(lambda: lake.sql("select ?", [1, 2]))
    return told


def plain(value):
    """Return a value that compares: NaN equals itself, and a table is its types and its rows."""
    if isinstance(value, pa.Table):
        metadata = value.schema.metadata or {}
        return [
            str(value.schema.remove_metadata()),
            sorted(metadata.items()),
            repr(value.to_pylist()),
        ]
    if isinstance(value, pa.Schema):
        return str(value.remove_metadata())
    return value


def test_one_program_runs_embedded_and_over_http_with_equal_answers(node, embedded):
    local = program(embedded, "prices")
    node.node.create_tenant("parity")  # errors name what else there is: here, too, nothing else
    with Client(node.url, node.new_key("parity"), timeout_s=30) as client:
        remote = program(client, "prices")
    for place, (one, other) in enumerate(zip(local, remote, strict=True)):
        assert one == other, place


def test_A02_a_key_that_is_none_or_may_not_is_the_same_kind_of_error(node):
    with Client(node.url) as nobody, pytest.raises(Unauthenticated):
        nobody.tables()
    key = node.new_key("default", ["ingest"])
    with Client(node.url, key) as writer, pytest.raises(Forbidden) as caught:
        writer.tables()
    assert caught.value.facts["scope"] == "query"
    assert key not in str(caught.value) + repr(writer)


def test_Q03_an_answer_that_fails_half_way_raises_the_engines_own_error(client):
    reader = client.sql_reader(FAILS_LATE)
    assert reader.read_next_batch().num_rows > 0
    with pytest.raises(Invalid) as caught:
        reader.read_all()
    assert caught.value.message == "the query cannot be run"
    with pytest.raises(Invalid):
        reader.read_next_batch()


def test_Q04_an_answer_that_is_closed_or_let_go_ends_its_query(node, client):
    running = node.node.pool.queue
    reader = client.sql_reader("select i from range(4000000000) t(i)")
    reader.read_next_batch()
    assert running.of_tenant("default")
    reader.close()
    wait_until(lambda: not running.of_tenant("default"))
    with pytest.raises((Unavailable, ValueError)):
        reader.read_next_batch()
    reader = client.sql_reader("select i from range(4000000000) t(i)")
    assert running.of_tenant("default")
    del reader
    wait_until(lambda: not running.of_tenant("default"))


def test_Q04_a_query_is_cancelled_by_its_id(client):
    errors = []

    def run():
        try:
            client.answer(ENDLESS, query_id="cancel-by-client")
        except ThermoclineError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: client.cancel("cancel-by-client"))
    thread.join(60)
    assert isinstance(errors[0], Unavailable)
    assert errors[0].message == "the query was cancelled"
    wait_until(lambda: not client.cancel("cancel-by-client"))
    assert client.cancel("never-was-one") is False


def test_Q05_a_query_past_its_time_is_overloaded_and_not_tried_again(client):
    def act():
        with pytest.raises(Overloaded) as caught:
            client.answer(ENDLESS, timeout_s=0.5)
        assert caught.value.facts["timeout_s"] == 0.5

    assert soonest(act, 3) < 3


# A wire that breaks


@contextmanager
def breaking(url, breaks):
    """Stand between client and node; `breaks(n)` says what becomes of the n-th answer.

    None passes it on; a number passes on so many bytes of it and hangs up.
    """
    host, port = url.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()
    count = 0

    def serve():
        nonlocal count
        while not is_over.is_set():
            try:
                near, _ = listener.accept()
            except OSError:
                return
            count += 1
            with near, socket.create_connection((host, int(port))) as far:
                passed(near, far, breaks(count))

    def passed(near, far, kept):
        near.settimeout(60)
        far.settimeout(60)
        request = received(near)
        far.sendall(request.replace(b"\r\nHost:", b"\r\nConnection: close\r\nHost:", 1))
        answer = b""
        while part := far.recv(1 << 20):
            answer += part
        near.sendall(answer if kept is None else answer[:kept])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", lambda: count
    finally:
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


def received(near):
    """Return one request, with its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += near.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    missing = (int(lengths[0].split(b":")[1]) if lengths else 0) - len(body)
    while missing > 0:
        part = near.recv(1 << 16)
        data, missing = data + part, missing - len(part)
    return data


def test_I08_a_write_whose_answer_is_lost_is_sent_again_and_written_once(node, client):
    client.create_table("resent", time_column="ts", bucket="1h")
    rows = pa.table({"ts": pa.array([0, 1], pa.timestamp("us")), "n": [1, 2]})
    with breaking(node.url, lambda n: 0 if n <= 2 else None) as (url, count):
        with Client(url, node.key, timeout_s=60) as cut_off:
            table = ClientTable(cut_off._wire, "resent")
            assert table.write(rows) == 2
        assert count() == 3
    assert client.sql("select count(*) as n from resent").to_pylist() == [{"n": 2}]


def test_I08_a_change_that_cannot_be_repeated_is_sent_once_and_says_that_nobody_knows(node, client):
    client.create_table("once", time_column="ts", bucket="1h")
    with breaking(node.url, lambda n: 0) as (url, count):
        with Client(url, node.key, timeout_s=60) as cut_off:
            table = ClientTable(cut_off._wire, "once")
            with pytest.raises(OutcomeUnknown):
                table.delete("true")
        assert count() == 1


@pytest.mark.parametrize("kept", [900, 3_000])
def test_Q03_an_answer_cut_on_its_way_is_an_error_and_never_shorter(node, kept):
    with (
        breaking(node.url, lambda n: kept if n == 1 else None) as (url, _),
        Client(url, node.key, timeout_s=5) as cut_off,
        pytest.raises(Unavailable),
    ):
        cut_off.sql("select i from range(1000) t(i)")


def test_a_node_that_is_not_there_is_unavailable_and_soon():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening, so connections fail

        def act():
            with Client(f"http://127.0.0.1:{taken.getsockname()[1]}", timeout_s=1) as client:
                with pytest.raises(Unavailable) as caught:
                    client.tables()
                with pytest.raises(Unavailable):
                    client.sql("select 1")
            assert caught.value.message == "the node cannot be reached"

        assert soonest(act, 5) < 5


@pytest.mark.parametrize(
    "url", ["lake", "ftp://x", "http://", "http://[", "http://a b", "http://u:p@h"]
)
def test_what_is_no_address_is_refused(url):
    def reached():
        with Client(url, timeout_s=1) as client:
            client.tables()

    with pytest.raises((Invalid, Unavailable)):
        reached()


def test_something_that_is_no_node_is_told_from_one(monkeypatch):
    monkeypatch.setattr(http, "TRIES_MAX", 1)  # it answers once

    def answer(near):
        received(near)
        near.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\n<html")

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            near, _ = listener.accept()
            with near:
                answer(near)

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client,
            pytest.raises(Unavailable) as caught,
        ):
            client.tables()
        thread.join(60)
    assert caught.value.facts["status"] == 502


def test_Q03_a_stream_without_its_end_is_an_error_though_http_says_that_it_is_whole():
    sink = pa.BufferOutputStream()
    rows = pa.table({"a": [1, 2, 3]})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data = sink.getvalue().to_pybytes()[:-8]  # all but the end-of-stream
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            near, _ = listener.accept()
            with near:
                received(near)
                near.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url, timeout_s=1) as client, pytest.raises(Unavailable) as caught:
            client.sql("select 1")
        thread.join(60)
    assert caught.value.message == "the answer was truncated"


def test_kinds_of_errors_survive_the_wire():
    from thermocline.client.http import problem_error
    from thermocline.server.api.http.problem import problem_of

    for kind in (Conflict, Invalid, NotFound, Overloaded, OutcomeUnknown, Forbidden):
        error = kind("it is so", hint="do this", table="prices", count=3)
        problem = problem_of(error)
        told = {name: getattr(problem, name) for name in ("code", "detail", "hint", "facts")}
        back = problem_error(told)
        assert type(back) is kind
        assert str(back) == str(error)


@pytest.mark.parametrize(
    "value",
    [
        pd.Timestamp(1_717_243_200_123_456_789),
        pd.Timestamp(1_717_243_200_123_456_789, tz="UTC"),
        np.datetime64(1_717_243_200_123_456_789, "ns"),
        np.datetime64("2024-06-01T12:00:00", "s"),
        np.timedelta64(5_000, "ns"),
        pd.Timedelta("5us"),
        np.uint64(2**64 - 1),
        np.float32(0.1),
        [np.int64(1), np.int64(2)],
        np.array([1.5, 2.5]),
        pd.NaT,
        np.datetime64("NaT"),
    ],
    ids=repr,
)
def test_a_parameter_of_numpy_or_pandas_is_the_same_in_a_lake_and_on_a_node(
    client, embedded, value
):
    sql = "select $1 as x, typeof($1) as kind"
    assert client.sql(sql, [value]).to_pylist() == embedded.sql(sql, [value]).to_pylist()


@pytest.mark.parametrize("value", [pd.Timedelta("1ns"), np.timedelta64(1, "M"), 1j, object()])
def test_a_parameter_that_would_change_is_refused_before_it_is_sent(client, embedded, value):
    for lake in (client, embedded):
        with pytest.raises(Invalid):
            lake.sql("select $1 as x", [value])


TIMES = [
    np.datetime64("2024-06-01T00:00:00.123456789"),
    pd.Timestamp("2024-06-01T00:00:00.123456789+02:00"),
    np.datetime64("2024-06-01T00:00:00.5"),
    np.datetime64("NaT"),
    np.array(["2024-06-01T00:00:00.123456789"], "M8[ns]"),
    np.timedelta64(5, "s"),
    np.arange(3),
    np.zeros((2, 2)),
]


@pytest.mark.parametrize("value", TIMES, ids=repr)
def test_a_parameter_of_numpy_keeps_its_type_and_every_digit_on_the_way(client, embedded, value):
    query = "select ? as a, typeof(?) as kind"
    found = [one.sql(query, [value, value]).to_pylist() for one in (client, embedded)]
    assert found[0] == found[1]


def test_a_duration_that_no_interval_holds_is_refused_by_both(client, embedded):
    for one in (client, embedded):
        with pytest.raises(Invalid, match="cannot be passed to the engine exactly"):
            one.sql("select ?", [np.timedelta64(5, "ns")])


def test_a_table_of_whole_numbers_is_the_same_embedded_and_over_http(client, embedded):
    for lake in (client, embedded):
        table = lake.create_table(
            "blocks",
            index_column="height",
            bucket=100,
            index_type="uint64",
            entity_columns="chain",
            schema={"height": "uint64", "chain": "string", "gas": pa.float64()},
        )
        table.write([{"height": 7, "chain": "a"}, {"height": 2**63, "chain": "a", "gas": 1.5}])
        report = table.upsert([{"height": 7, "chain": "a", "gas": 2.5}], key=["height", "chain"])
        assert (report.matched, report.inserted, report.unchanged) == (1, 0, 0)
        assert table.gaps(0, 200, entity="a").to_pylist() == [
            {"chain": "a", "start": 100, "end": 200, "buckets": 1}
        ]
        assert table.last_fully_covered_window(100, before=1_000) == (0, 100)
        asked = "select gas from blocks where height >= 7 order by height"
        assert lake.sql(asked).column("gas").to_pylist() == [2.5, 1.5]
        with pytest.raises(Invalid):
            table.update_rows([{"height": 8, "chain": "a", "gas": 2.5}])
        assert table.schema().field("height").type == pa.uint64()
