"""The node's own lines: JSON, without keys, and never in the way."""

import json
import os
import threading

import pytest

from thermocline.errors import Conflict
from thermocline.server.observe.log import LINES_WAITING_MAX, EventLog

NO_DESCRIPTOR = 1 << 30  # above the limit of descriptors, so it is never open
KEY = "tck_abcdefgh_" + "x" * 43


@pytest.fixture
def pipe():
    """A pipe: its reading end and a log that writes into the other."""
    reading, writing = os.pipe()
    log = EventLog(writing)
    yield reading, log, writing
    os.close(reading)
    # The next pipe may get this number: no line may be on its way when it is given back.
    assert log.flush(60)
    os.close(writing)


def lines_of(reading, log):
    assert log.flush(60)
    return [json.loads(line) for line in os.read(reading, 1 << 20).splitlines()]


def test_an_event_is_one_line_of_json(pipe):
    reading, log, _ = pipe
    log.event("started", port=4320, addresses=["a", "b"], nothing=None, raw=b"\xff\n")
    (line,) = lines_of(reading, log)
    assert line["event"] == "started"
    assert line["port"] == 4320
    assert line["time"].endswith("Z")
    assert line["nothing"] is None


def test_an_error_tells_its_code_its_words_and_its_facts(pipe):
    reading, log, _ = pipe
    log.error("flush failed", error=Conflict("taken", hint="wait", table="m"), tries=2)
    log.error("request failed", error=ValueError("odd"))
    ours, others = lines_of(reading, log)
    assert (ours["code"], ours["message"], ours["table"], ours["tries"]) == (
        "conflict",
        "taken",
        "m",
        2,
    )
    assert (others["code"], others["message"]) == ("bug", "ValueError: odd")


@pytest.mark.parametrize(
    "facts",
    [
        {"header": f"Bearer {KEY}"},
        {"path": f"/api/v1/query?key={KEY}"},
        {"authorization": "Basic c2VjcmV0"},
        {"headers": {"Authorization": "c2VjcmV0", "x": [KEY]}},
        {"why": ValueError(KEY)},
        {"url": "postgres://me:c2VjcmV0@host/db"},
        {"api_key": "c2VjcmV0"},
        {"raw": KEY.encode()},
        {"sent": "bearer c2VjcmV0"},
    ],
)
def test_A08_no_key_is_ever_in_a_line(pipe, facts):
    reading, log, _ = pipe
    log.event("request", **facts)
    told = json.dumps(lines_of(reading, log))
    assert "xxxx" not in told
    assert "c2VjcmV0" not in told
    assert "***" in told


def test_O07_a_closed_stderr_stops_nobody():
    reading, writing = os.pipe()
    os.close(reading)
    log = EventLog(writing)
    for number in range(100):
        log.event("request", number=number)
    assert log.flush(60)
    assert log.dropped == 100
    os.close(writing)


def test_O07_a_stderr_that_was_never_opened_stops_nobody():
    log = EventLog(NO_DESCRIPTOR)
    log.event("request")
    assert log.flush(60)
    assert log.dropped == 1


def test_O07_a_full_stderr_makes_nobody_wait_and_what_was_lost_is_told(pipe):
    reading, log, writing = pipe
    os.set_blocking(writing, False)
    filler = fill(writing)
    os.set_blocking(writing, True)
    for number in range(LINES_WAITING_MAX * 3):
        log.event("request", number=number, text="x" * 200)
    assert not log.flush(0.05)
    assert log.dropped > 0
    found = []
    thread = threading.Thread(target=lambda: found.append(read_all(reading)), daemon=True)
    thread.start()
    assert log.flush(120)
    log.event("end")
    thread.join(120)
    told = [json.loads(line) for line in found[0][filler:].splitlines()]
    numbers = [line["number"] for line in told if line["event"] == "request"]
    lost = sum(line["lines"] for line in told if line["event"] == "lines dropped")
    assert numbers == sorted(numbers)
    assert len(numbers) + lost == LINES_WAITING_MAX * 3


def fill(writing):
    """Write into a pipe until it takes no more; return how many bytes it took."""
    taken = 0
    try:
        while True:
            taken += os.write(writing, b" " * 4096)
    except BlockingIOError:
        return taken


def read_all(reading):
    """Read up to the line that tells of the end."""
    data = b""
    while b'"end"' not in data:
        data += os.read(reading, 65_536)
    return data


def test_O07_a_full_disk_under_stderr_stops_nobody():
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        log = EventLog(full)
        log.event("request")
        assert log.flush(60)
        assert log.dropped == 1
    finally:
        os.close(full)


def test_a_line_has_a_limit(pipe):
    reading, log, _ = pipe
    log.event("request", text="x" * 1_000_000)
    (line,) = lines_of(reading, log)
    assert line["event"] == "request"
    assert line["cut_bytes"] > 1_000_000


def test_facts_that_json_does_not_know_are_told_as_text(pipe):
    reading, log, _ = pipe
    log.event("odd", surrogate="\udc80", many={1, 2}, error=ValueError("x"), huge=1 << 80)
    (line,) = lines_of(reading, log)
    assert line["event"] == "odd"
