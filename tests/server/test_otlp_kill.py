"""What was answered is there after kill -9 and after SIGTERM, and the SDK finds its way back."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

import thermocline as tc

PATIENCE_S = 120  # the SDK's own is 10; a machine under tests may take as long to start a process
# Below the ephemeral ports, so that no other process gets the port between two starts.
PORTS = range(20_000, 32_000)
SCRIPT = Path(__file__).with_name("otlp_process.py")


def free_port():
    """Return a free port that the system does not hand out as an ephemeral port."""
    chosen = random.SystemRandom()
    while True:
        port = chosen.choice(PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return str(port)


class Process:
    """A node in a separate process; a second `start` uses the same ports."""

    def __init__(self, root):
        self.root, self.ports = root, [free_port(), free_port()]
        self.process = None

    def start(self):
        command = [sys.executable, str(SCRIPT), str(self.root), *self.ports]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.ports = self.process.stdout.readline().split()
        assert len(self.ports) == 2

    def end(self, number):
        os.kill(self.process.pid, number)
        code = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        return code


@pytest.fixture
def process(tmp_path):
    """Start a node; it is killed at the end if it still runs."""
    made = Process(tmp_path / "node")
    made.start()
    yield made
    if made.process.poll() is None:
        made.end(signal.SIGKILL)


def records(first, count):
    """Return log records of the SDK's, as its processor hands them to an exporter."""
    memory = InMemoryLogRecordExporter()
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(memory))
    for number in range(first, first + count):
        provider.get_logger("t").emit(LogRecord(timestamp=1_000 + number, body=f"{number}"))
    return memory.get_finished_logs()


class Sender(threading.Thread):
    """Exports batches of ten until told to stop; remembers which were answered as taken."""

    def __init__(self, exporter, first):
        super().__init__()
        self.exporter, self.first = exporter, first
        self.taken, self.failed = [], []
        self.is_told = threading.Event()

    def run(self):
        while not self.is_told.is_set():
            numbers = range(self.first, self.first + 10)
            result = self.exporter.export(records(self.first, 10))
            (self.taken if result.name == "SUCCESS" else self.failed).extend(numbers)
            self.first += 10
        self.exporter.shutdown()


def senders(process, count=2):
    """Return exporters at work, by HTTP and by gRPC."""
    made = []
    for place in range(count):
        by_http = place % 2 == 0
        port = process.ports[0 if by_http else 1]
        address = f"http://127.0.0.1:{port}"
        exporter = (
            HttpLogs(endpoint=f"{address}/v1/logs", timeout=PATIENCE_S)
            if by_http
            else GrpcLogs(endpoint=address, insecure=True, timeout=PATIENCE_S)
        )
        made.append(Sender(exporter, place * 1_000_000))
        made[-1].start()
    return made


def await_taken(made, count):
    """Wait until each sender has so many records answered."""
    end_s = time.monotonic() + PATIENCE_S
    while any(len(one.taken) < count for one in made):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def stored(root):
    """Return the numbers of all records, as SQL finds them in the folder."""
    with tc.connect(root) as lake:
        return [int(row["body"]) for row in lake.sql("select body from logs").to_pylist()]


def test_after_kill_9_the_sdk_sends_again_and_everything_it_was_told_is_there(process):
    made = senders(process)
    await_taken(made, 50)
    process.end(signal.SIGKILL)
    process.start()
    await_taken(made, 50 + max(len(one.taken) for one in made))
    for one in made:
        one.is_told.set()
    for one in made:
        one.join()
    process.end(signal.SIGKILL)
    found = stored(process.root)
    taken = {number for one in made for number in one.taken}
    assert taken <= set(found)
    assert [one.failed for one in made] == [[], []]
    # Only what was under way at the kill may be there twice: a batch of ten for each sender.
    assert len(found) - len(set(found)) <= 20


def test_I21_sigterm_under_load_ends_in_time_with_0_and_loses_nothing(process):
    made = senders(process)
    await_taken(made, 50)
    assert process.end(signal.SIGTERM) == 0  # waits no longer than its patience
    taken = {number for one in made for number in list(one.taken)}
    process.start()
    await_taken(made, 20 + max(len(one.taken) for one in made))
    for one in made:
        one.is_told.set()
    for one in made:
        one.join()
    taken |= {number for one in made for number in one.taken}
    assert process.end(signal.SIGTERM) == 0
    found = stored(process.root)
    assert taken <= set(found)
    assert [one.failed for one in made] == [[], []]
    # What has begun was answered: nothing had to be sent twice.
    assert len(found) == len(set(found))
