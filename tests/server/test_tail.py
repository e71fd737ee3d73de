"""The live tail: every row that becomes durable, once, in its order, to clients that read."""

import json
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import httpx2
import pyarrow as pa
import pytest

from fixtures.api import serving
from thermocline.cli.main import run
from thermocline.errors import Overloaded
from thermocline.server.api.handle import tail
from thermocline.server.api.handle.tail import TailBuffer
from thermocline.server.api.open_tails import TAILS_OF_TENANT_MAX, OpenTails

WAIT_S = 120


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("tail"), has_keys=True) as served:
        lake = served.node.lake()
        lake.create_table(
            "logs",
            time_column="ts",
            bucket="1h",
            schema=pa.schema(
                [
                    pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
                    ("body", pa.string()),
                    ("n", pa.int64()),
                ]
            ),
        )
        yield served


def write(node, *numbers, body="x"):
    rows = [{"ts": datetime.now(UTC), "body": body, "n": number} for number in numbers]
    node.node.lake().table("logs").write(rows)


class Listening:
    """A client of a tail, which reads in a thread until the stream ends."""

    def __init__(self, node, **params):
        self.rows, self.ends, self.quiet = [], [], 0
        self.status = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(node, params), daemon=True)
        self._thread.start()
        assert self._begun.wait(WAIT_S)

    def _read(self, node, params):
        with (
            suppress(httpx2.HTTPError),  # the server of the tests ends before the stream does
            node.client() as client,
            client.stream("GET", "/api/v1/tables/logs/tail", params=params) as answer,
        ):
            self.status = answer.status_code
            event = ""
            for line in answer.iter_lines():
                self._begun.set()
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    value = json.loads(line.removeprefix("data: "))
                    (self.rows if event == "rows" else self.ends).append(value)
            self._begun.set()

    def wait_for(self, count):
        end_s = time.monotonic() + WAIT_S
        while len(self.rows) < count:
            assert time.monotonic() < end_s, (len(self.rows), self.ends)
            time.sleep(0.02)
        return self.rows

    def wait_for_end(self):
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.ends


def test_rows_arrive_once_in_their_order_through_a_flush_and_only_those_that_match(node):
    write(node, 1)
    found = Listening(
        node, where="n % 2 = 0 and has_token(body, 'paid')", columns="n,body", seconds=3_600
    )
    for number in range(2, 42):
        write(node, number, body="PAID: yes" if number % 4 else "unpaid")
        if number % 10 == 0:
            node.node.lake().table("logs").flush()
    wanted = [{"n": n, "body": "PAID: yes"} for n in range(2, 42) if n % 2 == 0 and n % 4]
    assert found.wait_for(len(wanted)) == wanted
    write(node, 1_000, body="paid")
    assert found.wait_for(len(wanted) + 1)[len(wanted) :] == [{"n": 1_000, "body": "paid"}]


def test_a_stream_whose_time_is_over_says_so(node):
    found = Listening(node, seconds=1)
    assert found.wait_for_end() == [{"reason": "time", "message": "the time is over: ask again"}]


def test_a_new_column_appears_in_the_rows_after_it(node):
    found = Listening(node, columns="n", seconds=3_600)
    everything = Listening(node, seconds=3_600)
    table = node.node.lake().table("logs")
    table.write([{"ts": datetime.now(UTC), "body": "y", "n": 7, "level": "warn"}], evolve=True)
    (row,) = everything.wait_for(1)
    assert (row["level"], row["n"]) == ("warn", 7)
    assert found.wait_for(1) == [{"n": 7}]


def test_a_client_that_reads_too_slowly_is_told_so(node, monkeypatch):
    monkeypatch.setattr(tail, "GATHER_S", 1.0)
    monkeypatch.setattr(tail, "TailBuffer", partial(TailBuffer, bytes_max=2_000))
    found = Listening(node, columns="n", seconds=3_600)
    for number in range(60):
        write(node, *range(number * 10, number * 10 + 10))
    (end,) = found.wait_for_end()
    assert end["reason"] == "slow"
    numbers = [row["n"] for row in found.rows]
    assert numbers == list(range(len(numbers)))  # a beginning, without a gap
    assert len(numbers) < 600


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"where": "n >"}, 400),
        ({"where": "read_text('/etc/passwd') = ''"}, 400),
        ({"where": "missing = 1"}, 404),
        ({"columns": "missing"}, 400),
        ({"seconds": "0"}, 400),
        ({"since": "1"}, 400),
    ],
)
def test_a_wrong_request_is_refused_before_the_stream_begins(node, params, status):
    with node.client() as client:
        answer = client.get("/api/v1/tables/logs/tail", params=params)
        assert (answer.status_code, "event" in answer.text) == (status, False)
        assert client.get("/api/v1/tables/none/tail").status_code == 404
        head = client.head("/api/v1/tables/logs/tail")
        assert (head.status_code, head.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )


def test_a_tail_needs_a_key_that_may_query_and_sees_its_tenant_only(node):
    key = node.new_key(scopes=("ingest",))
    with node.client(key) as client:
        assert client.get("/api/v1/tables/logs/tail").status_code == 403
    node.node.create_tenant("other")
    with node.client(node.new_key("other")) as client:
        assert client.get("/api/v1/tables/logs/tail").status_code == 404


def test_a_tenant_opens_a_bounded_number_of_tails(node):
    tails = OpenTails()
    for _ in range(TAILS_OF_TENANT_MAX):
        tails.enter("a")
    with pytest.raises(Overloaded):
        tails.enter("a")
    tails.enter("b")
    tails.leave("a")
    tails.enter("a")


def test_the_command_prints_rows_and_says_what_is_wrong(node, capfd, monkeypatch):
    monkeypatch.setenv("THERMOCLINE_URL", node.url)
    monkeypatch.setenv("THERMOCLINE_API_KEY", node.key)
    stop = threading.Event()

    def keep_writing():
        while not stop.wait(0.2):
            write(node, 5, body="two\nlines")

    writing = threading.Thread(target=keep_writing)
    writing.start()
    try:
        words = ["tail", "logs", "--column", "n", "--column", "body", "--where", "n = 5"]
        assert run([*words, "--seconds", "6"]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert set(lines) == {"5  two\\nlines"}
        assert run([*words, "--seconds", "6", "--json"]) == 0
        rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert rows[0] == {"n": 5, "body": "two\nlines"}
    finally:
        stop.set()
        writing.join()
    assert run(["tail", "logs", "--where", "n >"]) == 2
    assert run(["tail", "none"]) == 3
