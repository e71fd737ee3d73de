"""Arrow Flight SQL over a real socket: ADBC as users have it, and calls that no driver makes."""

import base64
import datetime as dt
import os
import threading
import time
from contextlib import closing, contextmanager
from decimal import Decimal

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import grpc
import numpy as np
import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions

from fixtures.api import ENDLESS, FAILS_LATE, make_prices, price, serving
from fixtures.flight import listening
from fixtures.timing import wait_until
from thermocline.config import QuotaSettings
from thermocline.errors import Invalid
from thermocline.server.flight import messages
from thermocline.server.flight.catalog import matches
from thermocline.server.flight.service import SERVICE
from thermocline.server.flight.statement import PREPARED_MAX, FlightStatement, PreparedQueries

METHODS = ("Handshake", "GetFlightInfo", "GetSchema", "DoGet", "DoPut", "DoAction", "ListActions")
TYPES = """select 1::tinyint as i8, 9007199254740993::bigint as i64,
    18446744073709551615::ubigint as u64, 12345678901234567890.123456789::decimal(38, 9) as money,
    'NaN'::double as nan, 'é' as text, '\\xAB\\x00'::blob as bytes, true as yes,
    '2024-06-01 00:00:00.123456789'::timestamp_ns as ns, '2024-06-01'::date as day,
    '2024-06-01 00:00:00.5+00'::timestamptz as zoned, [1, null, 3] as list,
    {'a': 1, 'b': 'x'} as struct, map {'k': 1} as map, null as nothing"""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flight")
    with serving(folder, has_keys=True, flush_age_s=3_600.0) as served, listening(served):
        for tenant in ("alpha", "beta"):
            served.node.create_tenant(tenant)
        with served.client(served.new_key("alpha")) as client:
            make_prices(client)
        table = served.node.lake("alpha").table("prices")
        table.write([price(hour, close=float(hour)) for hour in range(4)])
        table.flush()
        table.write([price(4, close=4.0)])
        yield served


@contextmanager
def connected(node, key=None, **options):
    """Return a connection of ADBC with a key."""
    key = key or node.new_key("alpha", ["query"])
    given = options or {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {key}"}
    with closing(
        flight_sql.connect(f"grpc://{node.flight}", db_kwargs=given, autocommit=True)
    ) as found:
        yield found


def ask(connection, sql, values=None):
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql, values)
        return cursor.fetch_arrow_table()


def test_a_query_answers_the_hot_and_the_cold_rows_as_http_does(node):
    sql = "select * from prices order by ts"
    with node.client(node.new_key("alpha")) as client, connected(node) as connection:
        body = {"sql": sql, "format": "arrow"}
        over_http = pa.ipc.open_stream(client.post("/api/v1/query", json=body).content).read_all()
        found = ask(connection, sql)
        assert found == over_http
        assert found["close"].to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        body["sql"] = TYPES
        over_http = pa.ipc.open_stream(client.post("/api/v1/query", json=body).content).read_all()
        # A NaN is no other NaN, so rows are compared by their bytes.
        found = ask(connection, TYPES)
        assert found.schema == over_http.schema
        assert str(found.to_pylist()) == str(over_http.to_pylist())
        assert ask(connection, "select 1 as a where false").num_rows == 0
        assert ask(connection, "explain select * from prices").num_rows > 0
        defined = "create temp view v as select close from prices; select count(*) as n from v"
        assert ask(connection, defined).to_pylist() == [{"n": 5}]


def test_parameters_keep_their_types_to_the_last_digit(node):
    exact = pa.table(
        {
            "1": pa.array([1717200000123456789], pa.timestamp("ns")),
            "2": pa.array([Decimal("12345678901234567890.123456789")]),
            "3": pa.array([9007199254740993]),
            "4": pa.array([b"\xab\x00"]),
            "5": pa.array([dt.datetime(2024, 6, 1, tzinfo=dt.UTC)]),
            "6": pa.array([None], pa.int64()),
            "7": pa.array([[1, 2]]),
        }
    )
    with connected(node) as connection, closing(connection.cursor()) as cursor:
        columns = ", ".join(f"? as c{place}" for place in range(1, 8))
        cursor.execute(f"select {columns}", exact.to_batches()[0])
        row = cursor.fetch_arrow_table()
        assert row["c1"].cast(pa.int64()).to_pylist() == [1717200000123456789]
        assert row["c2"].to_pylist() == exact["2"].to_pylist()
        assert [row[name][0].as_py() for name in ("c3", "c4", "c6", "c7")] == [
            9007199254740993,
            b"\xab\x00",
            None,
            [1, 2],
        ]
        assert row["c5"].cast(pa.timestamp("us")).to_pylist() == [dt.datetime(2024, 6, 1)]
        since = dt.datetime(2024, 6, 1, 2)
        sql = "select close from prices where ts >= ? and symbol = ? order by ts"
        cursor.execute(sql, (since, "NVDA"))
        assert cursor.fetchall() == [(2.0,), (3.0,), (4.0,)]
        cursor.execute(sql, (dt.datetime(2024, 6, 1, 4), "NVDA"))  # prepared once, run again
        assert cursor.fetchall() == [(4.0,)]
        cursor.execute("select close from prices where close = $least", (3.0,))
        assert cursor.fetchall() == [(3.0,)]
        for values in ((since,), (since, "NVDA", 1)):
            with pytest.raises(adbc_driver_manager.Error, match="parameters"):
                ask(connection, sql, values)
        with pytest.raises(adbc_driver_manager.Error, match="parameters are one row"):
            cursor.execute(sql, pa.record_batch({"1": [since] * 2, "2": ["NVDA", "AMD"]}))


def test_a_prepared_query_announces_the_types_of_its_parameters(node):
    caller = Caller(node, [f"Bearer {node.new_key('alpha')}"])
    sql = """select close + ?, ?::timestamptz from prices p where p.ts between ? and ?
        and ? < close and symbol in (?, ?) and $8 = close + 1 limit ?"""
    body = messages.pack("ActionCreatePreparedStatementRequest", query=sql.replace("$8", "?"))
    action = messages.encode("Action", type="CreatePreparedStatement", body=body)
    (answer,) = caller.call("DoAction", action)
    made = messages.unpack(messages.decode("Result", answer).body)[1]
    found = pa.ipc.read_schema(pa.py_buffer(made.parameter_schema))
    text, time_us, number = pa.string(), pa.timestamp("us"), pa.float64()
    zoned = pa.timestamp("us", "UTC")
    expected = [text, zoned, time_us, time_us, number, text, text, text, pa.int64()]
    assert found.names == [str(place) for place in range(1, 10)]
    assert found.types == expected
    assert pa.ipc.read_schema(pa.py_buffer(made.dataset_schema)).types[1] == zoned


def test_the_catalogue_is_that_of_the_tenant(node):
    with connected(node) as connection:
        info = connection.adbc_get_info()
        assert info["vendor_name"] == "thermocline"
        assert connection.adbc_get_table_types() == ["TABLE"]
        found = connection.adbc_get_objects().read_all().to_pylist()
        assert [one["catalog_name"] for one in found] == ["thermocline"]
        (schema,) = found[0]["catalog_db_schemas"]
        (table,) = schema["db_schema_tables"]
        assert (schema["db_schema_name"], table["table_name"]) == ("main", "prices")
        columns = [one["column_name"] for one in table["table_columns"]]
        assert columns == ["ts", "symbol", "close"]
        held = connection.adbc_get_table_schema("prices")
        assert held.names == columns
        assert held.field("ts").type == pa.timestamp("us")
        none = connection.adbc_get_objects(table_name_filter="no%").read_all().to_pylist()
        assert none[0]["catalog_db_schemas"][0]["db_schema_tables"] == []
        with closing(connection.cursor()) as cursor:
            schema = cursor.adbc_execute_schema("select ts, close + ? as c from prices")
            assert schema.names == ["ts", "c"]


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("%", "", True),
        ("pri_es", "prices", True),
        ("p%s", "prices", True),
        ("p%x", "prices", False),
        ("prices", "Prices", False),
        ("%ice%", "prices", True),
        ("_", "", False),
        ("a.c", "abc", False),
        ("%a" * 30 + "b", "a" * 63, False),
    ],
)
def test_a_pattern_matches_as_like_does(pattern, name, is_match):
    assert matches(pattern, name) is is_match


@pytest.mark.parametrize(
    ("sql", "kind", "words"),
    [
        ("select * from nowhere", adbc_driver_manager.ProgrammingError, "no such table"),
        ("select close from prices where", adbc_driver_manager.ProgrammingError, "syntax error"),
        ("drop table prices", adbc_driver_manager.ProgrammingError, "only a SELECT"),
        ("select * from read_csv('/etc/passwd')", adbc_driver_manager.ProgrammingError, "read_csv"),
        ("select 1) as a, (select 2", adbc_driver_manager.ProgrammingError, "syntax error"),
        (FAILS_LATE, adbc_driver_manager.Error, "x"),
    ],
)
def test_what_cannot_be_run_is_an_error_with_its_reason(node, sql, kind, words):
    with connected(node) as connection, pytest.raises(kind, match=words) as caught:
        ask(connection, sql)
    assert "/tmp" not in str(caught.value)


def test_writes_are_refused_by_name(node):
    with connected(node) as connection, closing(connection.cursor()) as cursor:
        with pytest.raises(adbc_driver_manager.Error, match="only a SELECT"):
            cursor.execute("insert into prices values (1)")
        with pytest.raises(adbc_driver_manager.Error, match="no writes"):
            cursor.adbc_ingest("prices", pa.table({"a": [1]}), mode="append")
        with pytest.raises(adbc_driver_manager.Error, match="no writes"):
            cursor.executemany("select close from prices where close = ?", [(1.0,), (2.0,)])


# Access


class Caller:
    """Calls of one client, made by hand."""

    def __init__(self, node, authorization):
        self._node = node
        self._metadata = [("authorization", text) for text in authorization]

    def call(self, method, *sent):
        """Return what a call answers; it raises the status of a refusal."""
        with grpc.insecure_channel(self._node.flight) as channel:
            run = channel.stream_stream(SERVICE + method)
            return list(run(iter(sent), metadata=self._metadata, timeout=60))

    def status(self, method, *sent):
        try:
            self.call(method, *sent)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def prepare(self, sql):
        body = messages.pack("ActionCreatePreparedStatementRequest", query=sql)
        action = messages.encode("Action", type="CreatePreparedStatement", body=body)
        (answer,) = self.call("DoAction", action)
        return messages.unpack(messages.decode("Result", answer).body)[1].prepared_statement_handle

    def info(self, name, **fields):
        (answer,) = self.call("GetFlightInfo", described(name, **fields))
        return messages.decode("FlightInfo", answer)


def described(name, **fields):
    return messages.encode("FlightDescriptor", cmd=messages.pack(name, **fields))


def right_calls():
    """Return one message for each method that a client with a key may send."""
    query = described("CommandStatementQuery", query="select * from prices")
    create = messages.pack("ActionCreatePreparedStatementRequest", query="select 1")
    return {
        "Handshake": (),
        "GetFlightInfo": (query,),
        "GetSchema": (query,),
        "DoGet": (messages.encode("Ticket", ticket=messages.pack("CommandGetTables")),),
        "DoAction": (messages.encode("Action", type="CreatePreparedStatement", body=create),),
        "ListActions": (b"",),
        "ListFlights": (b"",),
    }


def basic(password, name="anyone"):
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_A02_no_call_is_answered_without_a_valid_key_of_scope_query(node):
    key = node.new_key("alpha")
    revoked = node.store.create("alpha", ["query"])
    node.store.revoke(revoked.key.key_id)
    expired = node.store.create("alpha", ["query"], lifetime_s=0.001)
    time.sleep(0.01)
    node.guard.reload()
    strangers = {
        "no key": [],
        "empty": [""],
        "a key of nobody": ["Bearer tck_nobodys1_" + "A" * 43],
        "half a key": [f"Bearer {key[:-1]}"],
        "another scheme": [f"Digest {key}"],
        "revoked": [f"Bearer {revoked.text}"],
        "expired": [f"Bearer {expired.text}"],
        "two keys": [f"Bearer {key}"] * 2,
        "a wrong password": [basic(key[:-1])],
        "a key as a name": [basic("", name=key)],
        "no base64": ["Basic ***"],
    }
    others = [["ingest"], ["admin"], ["ingest", "admin"]]
    for method, sent in right_calls().items():
        for who, authorization in strangers.items():
            code = Caller(node, authorization).status(method, *sent)
            assert code == grpc.StatusCode.UNAUTHENTICATED, (method, who)
        for scopes in others:
            caller = Caller(node, [f"Bearer {node.new_key('alpha', scopes)}"])
            assert caller.status(method, *sent) == grpc.StatusCode.PERMISSION_DENIED
        for authorization in (f"Bearer {key}", basic(key), basic(key).rstrip("=")):
            assert Caller(node, [authorization]).status(method, *sent) == grpc.StatusCode.OK
    with connected(node, username="me", password=key) as connection:
        assert ask(connection, "select 1 as a").num_rows == 1


def test_A01_handles_tickets_and_queries_of_another_tenant_do_not_exist(node):
    alpha, beta = (Caller(node, [f"Bearer {node.new_key(name)}"]) for name in ("alpha", "beta"))
    handle = alpha.prepare("select * from prices")
    fields = {"prepared_statement_handle": handle}
    info = alpha.info("CommandPreparedStatementQuery", **fields)
    ticket = info.endpoint[0].ticket.SerializeToString()
    assert len(alpha.call("DoGet", ticket)) > 1
    with pytest.raises(grpc.RpcError) as caught:
        beta.call("GetFlightInfo", described("CommandPreparedStatementQuery", **fields))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as caught:
        beta.call("DoGet", ticket)  # its text is run as beta's own
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert "prices" not in caught.value.details().replace("table=prices", "")
    put = messages.encode(
        "FlightData",
        flight_descriptor=messages.decode(
            "FlightDescriptor", described("CommandPreparedStatementQuery", **fields)
        ),
    )
    assert beta.status("DoPut", put) == grpc.StatusCode.NOT_FOUND
    body = messages.pack("ActionClosePreparedStatementRequest", **fields)
    close = messages.encode("Action", type="ClosePreparedStatement", body=body)
    beta.call("DoAction", close)
    assert alpha.info("CommandPreparedStatementQuery", **fields).endpoint
    listed = beta.call("DoGet", messages.encode("Ticket", ticket=messages.pack("CommandGetTables")))
    assert b"prices" not in b"".join(listed)
    running = alpha.info("CommandStatementQuery", query=ENDLESS)
    thread = threading.Thread(
        target=alpha.status, args=("DoGet", running.endpoint[0].ticket.SerializeToString())
    )
    thread.start()
    queue = node.node.pool.queue
    wait_until(lambda: queue.of_tenant("alpha"))
    cancel = messages.encode("CancelFlightInfoRequest", info=running)
    action = messages.encode("Action", type="CancelFlightInfo", body=cancel)

    def cancelled(caller):
        (answer,) = caller.call("DoAction", action)
        body = messages.decode("Result", answer).body
        return messages.decode("CancelFlightInfoResult", body).status

    assert cancelled(beta) == 3
    assert queue.of_tenant("alpha")
    assert cancelled(alpha) == 1
    thread.join(60)
    wait_until(lambda: not queue.of_tenant("alpha"))
    assert cancelled(alpha) == 3
    alpha.call("DoAction", close)
    with pytest.raises(grpc.RpcError) as caught:
        alpha.info("CommandPreparedStatementQuery", **fields)
    assert "prepare it again" in caught.value.details()


@pytest.mark.parametrize("seed", range(20))
def test_A05_bytes_that_are_no_message_are_a_status_and_no_bug(node, seed):
    rng = np.random.default_rng(seed)
    caller = Caller(node, [f"Bearer {node.new_key('alpha')}"])
    known = [message for sent in right_calls().values() for message in sent if message]
    for method in METHODS[1:]:
        data = bytearray(known[seed % len(known)])
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(0, 256)
        for sent in (bytes(data), rng.bytes(40), bytes(data[: len(data) // 2])):
            assert caller.status(method, sent) != grpc.StatusCode.INTERNAL, (method, sent)
    assert "a call of Flight failed" not in node.logged()


def test_A05_parameters_that_are_no_arrow_are_refused(node):
    caller = Caller(node, [f"Bearer {node.new_key('alpha')}"])
    handle = caller.prepare("select ? as a")
    fields = {"prepared_statement_handle": handle}
    command = messages.decode(
        "FlightDescriptor", described("CommandPreparedStatementQuery", **fields)
    )
    schema = pa.ipc.read_message(pa.schema([("a", pa.int64())]).serialize()).metadata
    batch = pa.ipc.read_message(pa.record_batch({"a": [1]}).serialize())
    parts = [(schema, b""), (batch.metadata, batch.body)]
    for change in ("head", "body", "cut"):
        sent = []
        for header, body in parts:
            head, rest = bytearray(header.to_pybytes()), bytes(body or b"")
            if change == "head":
                head[len(head) // 2] ^= 0xFF
            if change == "body":
                rest = rest[: len(rest) // 2]
            if change == "cut":
                head = head[:8]
            sent.append(messages.encode("FlightData", data_header=bytes(head), data_body=rest))
        first = messages.decode("FlightData", sent[0])
        first.flight_descriptor.CopyFrom(command)
        status = caller.status("DoPut", first.SerializeToString(), sent[1])
        assert status == grpc.StatusCode.INVALID_ARGUMENT, change


# Limits and ends


def test_a_client_that_goes_ends_its_query_and_frees_its_worker(node):
    queue = node.node.pool.queue
    key = node.new_key("alpha")
    with connected(node, key) as connection:
        cursor = connection.cursor()
        failed = []

        def run():
            try:
                cursor.execute(ENDLESS)
                cursor.fetchone()
            except adbc_driver_manager.Error as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: queue.of_tenant("alpha"))
        cursor.adbc_cancel()
        thread.join(60)
        wait_until(lambda: not queue.of_tenant("alpha"))
        assert failed
        cursor.close()
        assert ask(connection, "select 1 as a").num_rows == 1


def test_a_client_that_does_not_read_fills_no_memory(node):
    queue = node.node.pool.queue
    with connected(node) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("select range as i, hash(range) as h from range(1000000000)")
        reader = cursor.fetch_record_batch()
        assert reader.read_next_batch().num_rows > 0
        (running,) = queue.of_tenant("alpha")

        def rows_are_still():
            before = running._rows
            time.sleep(0.3)
            return running._rows == before

        wait_until(rows_are_still)
        assert running._rows < 50_000_000
    wait_until(lambda: not queue.of_tenant("alpha"))


def test_a_quota_holds_over_flight_too(tmp_path):
    with (
        serving(tmp_path, has_keys=True, quota=QuotaSettings(rows_max=1_000)) as served,
        listening(served),
        connected(served, served.new_key("default")) as connection,
    ):
        assert ask(connection, "select * from range(1000)").num_rows == 1_000
        with pytest.raises(adbc_driver_manager.Error, match="more rows than the quota"):
            ask(connection, "select * from range(100000)")
        with served.client() as client:
            scraped = client.get("/metrics").text
        assert 'listener="flight"' in scraped
        assert 'thermocline_queries_total{outcome="overloaded"} 1.0' in scraped


def test_a_node_without_keys_serves_this_machine(tmp_path):
    with (
        serving(tmp_path) as served,
        listening(served),
        closing(flight_sql.connect(f"grpc://{served.flight}", autocommit=True)) as connection,
    ):
        assert ask(connection, "select 1 as a").to_pylist() == [{"a": 1}]


def test_a_tenant_keeps_a_bounded_number_of_prepared_statements():
    kept = PreparedQueries()
    first = kept.keep("alpha", FlightStatement("select 0"))
    second = kept.keep("alpha", FlightStatement("select 1"))
    for number in range(PREPARED_MAX - 1):
        kept.find("alpha", second)
        kept.keep("alpha", FlightStatement(f"select {number}"))
    assert kept.find("alpha", second).sql == "select 1"
    with pytest.raises(Exception, match="no such prepared statement"):
        kept.find("alpha", first)
    with pytest.raises(Invalid):
        kept.keep("alpha", FlightStatement("x" * (3 << 20)))
    big = kept.keep("beta", FlightStatement(os.urandom(900_000).hex()))
    for _ in range(40):
        kept.keep("beta", FlightStatement(os.urandom(900_000).hex()))
    with pytest.raises(Exception, match="no such prepared statement"):
        kept.find("beta", big)
