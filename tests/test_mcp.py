"""The server for assistants, asked by the official client of the protocol and by hand."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading

import mcp
import pytest
from mcp.client.stdio import stdio_client

import thermocline as tc
from fixtures.api import ENDLESS, make_prices, price, serving
from fixtures.timing import wait_until
from thermocline.mcp.tools import ROWS_MAX, TOOLS

COMMAND = ["-m", "thermocline.cli.main", "mcp"]
ROWS = [price(hour, close=float(hour)) for hour in (0, 1, 4)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """A lake that this process writes, with cold and hot rows."""
    folder = tmp_path_factory.mktemp("mcp") / "lake"
    with tc.connect(folder, flush_age_s=3_600) as lake:
        table = lake.create_table(
            "prices", time_column="ts", bucket="1h", entity_columns=["symbol"]
        )
        table.write(ROWS[:2])
        table.flush()
        table.write(ROWS[2:])
        yield str(folder)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("node"), has_keys=True) as served:
        with served.client() as client:
            make_prices(client)
            served.node.lake().table("prices").write(ROWS)
        yield served


def asked(place, calls, **environment):
    """Return what the official client gets for some calls of tools: text, or an error."""

    async def run():
        words = mcp.StdioServerParameters(
            command=sys.executable, args=[*COMMAND, place], env={**os.environ, **environment}
        )
        async with (
            stdio_client(words) as streams,
            mcp.ClientSession(*streams) as session,
        ):
            await session.initialize()
            listed = await session.list_tools()
            assert {tool.name for tool in listed.tools} == set(TOOLS)
            return [await session.call_tool(name, given) for name, given in calls]

    answers = asyncio.run(asyncio.wait_for(run(), 120))
    return [json.loads(one.content[0].text) for one in answers]


CALLS = [
    ("list_tables", {}),
    ("describe_table", {"table": "prices"}),
    ("find_gaps", {"table": "prices"}),
    ("query", {"sql": "select close from prices where close >= ? order by ts", "parameters": [1]}),
    ("query", {"sql": "select range as i from range(10)", "rows_max": 3}),
    ("query", {"sql": "select * from nowhere"}),
    ("query", {"sql": "drop table prices"}),
    ("query", {"sql": "select 1", "rows_max": ROWS_MAX + 1}),
    ("query", {"text": "select 1"}),
    ("describe_table", {}),
    ("find_gaps", {"table": "nowhere"}),
]


def check_answers(answers):
    names, table, gaps, rows, cut, *errors = answers
    assert names["tables"] == ["prices"]
    assert [column["name"] for column in table["columns"]] == ["ts", "symbol", "close"]
    (gap,) = gaps["rows"]
    assert (gap["symbol"], gap["buckets"]) == ("NVDA", 2)
    assert rows["rows"] == [{"close": 1.0}, {"close": 4.0}]
    assert not rows["is_truncated"]
    assert cut["rows"] == [{"i": 0}, {"i": 1}, {"i": 2}]
    assert cut["is_truncated"]
    codes = [one["error"]["code"] for one in errors]
    assert codes == ["not_found", *["invalid"] * 4, "not_found"]
    assert all(one["error"]["hint"] for one in errors)


def test_an_assistant_reads_a_lake_in_a_folder_while_another_process_writes_it(lake):
    check_answers(asked(lake, CALLS))


def test_an_assistant_reads_a_node_with_the_rights_of_its_key(node):
    key = node.new_key(scopes=["query"])
    check_answers(asked(node.url, CALLS, THERMOCLINE_API_KEY=key))
    other = node.new_key(scopes=["ingest"])
    (refused,) = asked(node.url, [("list_tables", {})], THERMOCLINE_API_KEY=other)
    assert refused["error"]["code"] == "forbidden"


@contextlib.contextmanager
def spoken_to(place):
    """Start the server; yield a function that sends a line and one that returns the next answer."""
    with subprocess.Popen(
        [sys.executable, *COMMAND, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:

        def send(line):
            data = line if isinstance(line, bytes) else json.dumps(line).encode()
            process.stdin.write(data + b"\n")
            process.stdin.flush()

        yield send, lambda: json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(60) == 0


def request(number, method, **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def test_a_query_is_cancelled_and_others_are_answered_meanwhile(lake):
    with spoken_to(lake) as (send, answer):
        send(request(1, "tools/call", name="query", arguments={"sql": ENDLESS}))
        for number in range(2, 5):
            send(request(number, "ping"))
            assert answer()["id"] == number
        stop = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        found = []
        reader = threading.Thread(target=lambda: found.append(answer()))
        reader.start()

        def is_cancelled():
            send(stop)  # the query may not have begun when the first one comes
            return bool(found)

        wait_until(is_cancelled)
        reader.join(60)
        assert found[0]["id"] == 1
        assert found[0]["result"]["isError"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": []}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "resources/list"}', -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}', -32602),
        (b" " * (5 << 20), -32600),
    ],
)
def test_a_message_that_breaks_the_protocol_is_refused_and_the_next_is_answered(lines, line, code):
    send, answer = lines
    send(line)
    assert answer()["error"]["code"] == code
    send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    send(request(7, "initialize", protocolVersion="2099-01-01"))
    found = answer()
    assert (found["id"], found["result"]["protocolVersion"]) == (7, "2025-11-25")


@pytest.fixture(scope="module")
def lines(lake):
    with spoken_to(lake) as both:
        yield both


def test_a_folder_that_is_no_lake_is_an_error_with_its_way_out(tmp_path):
    done = subprocess.run(
        [sys.executable, *COMMAND, str(tmp_path / "nothing")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert "do:" in done.stderr
