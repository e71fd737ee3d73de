"""Mixed load on a real node: writers, readers, flushes, a full disk, a slow disk, kills.

Every record has a number and every request an idempotency key, and a writer sends a request again
until it is answered. So at the end each number must be there exactly once, and at any time a
reader finds all rows answered before its query, no row twice, and no row that was never sent.
"""

import http.client
import itertools
import json
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, deque
from pathlib import Path
from typing import IO

MOODS = ("ok", "full", "ok", "slow")
MOOD_S = (1.0, 4.0)
KILL_EVERY_S = 15.0
WRITERS = 3
RECORDS_PER_REQUEST = 20
WAIT_S = 60.0
ANSWER_S = 20.0
SCRIPT = Path(__file__).parent / "moody_node.py"
NAMES = ("http", "grpc", "api", "flight")
OPTIONS = tuple(word for name in NAMES for word in (f"--{name}", "127.0.0.1:0"))
COUNT = (
    "select count(*) as n, count(distinct body) as d, max(cast(body as bigint)) as top from logs"
)


class MovingNode:
    """A node that is killed and started again; its ports change each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mood = folder / "mood"
        self.ports: dict[str, int] = {}
        self.log: deque[str] = deque(maxlen=50)
        self.set_mood("ok")
        self._process: subprocess.Popen[str] | None = None

    def set_mood(self, mood: str) -> None:
        """Let the disk be like this from now on."""
        new = self._folder / "mood.new"
        new.write_text(mood)
        new.rename(self._mood)

    def start(self) -> None:
        """Start the node and wait until it is ready."""
        words = ["serve", "--data", str(self._folder / "data"), *OPTIONS, "--set", "flush_age_s=2s"]
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self._mood), *words],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            told = json.loads(line)
            if told["event"] == "listening":
                ports = {name: told[name] for name in ("http", "api")}
            if told["event"] == "ready":
                self.ports = ports
                self._draining = threading.Thread(target=self._drain, args=(self._process.stderr,))
                self._draining.start()
                return
        raise AssertionError("the node ended before it was ready")

    def _drain(self, log: IO[str]) -> None:
        with log:
            for line in log:
                self.log.append(line)

    def kill(self) -> None:
        """End the process with -9."""
        assert self._process is not None
        self.ports = {}
        self._process.kill()
        self._process.wait()
        self._draining.join()

    def stop(self) -> int:
        """Stop as a service manager does; return the exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(WAIT_S)
        self._draining.join()
        return code

    def post(self, listener: str, path: str, body: dict, **headers: str) -> tuple[int, bytes]:
        """Send one request; status 0 when there was no answer."""
        port = self.ports.get(listener)
        if port is None:
            return 0, b""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
        try:
            sent = {"Content-Type": "application/json", **headers}
            connection.request("POST", path, json.dumps(body), sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


class MixedLoad:
    """The ledger: what was sent, what was answered, what readers found wrong."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.node = MovingNode(folder)
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._sent = self._answered = 0
        self._is_over = threading.Event()

    def run(self, seconds: float) -> Counter[str]:
        """Load the node for so long, then let every writer finish, and balance the ledger."""
        self.node.start()
        writers = [threading.Thread(target=self._write) for _ in range(WRITERS)]
        reader = threading.Thread(target=self._read)
        for thread in (*writers, reader):
            thread.start()
        self._trouble(seconds)
        self._is_over.set()
        for thread in (*writers, reader):
            thread.join(WAIT_S * 2)
            self.counts["hung"] += thread.is_alive()
        self._balance()
        self.counts["trouble"] += self.node.stop() != 0
        return self.counts

    def _trouble(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        killed_s = time.monotonic()
        for mood in itertools.cycle(MOODS):
            self.node.set_mood(mood)
            self.counts[f"moods_{mood}"] += 1
            time.sleep(self._rng.uniform(*MOOD_S))
            if time.monotonic() - killed_s > KILL_EVERY_S:
                self.node.kill()
                self.counts["kills"] += 1
                self.node.set_mood("ok")
                self.node.start()
                killed_s = time.monotonic()
            if time.monotonic() > end_s:
                break
        self.node.set_mood("ok")

    def _write(self) -> None:
        while not self._is_over.is_set():
            with self._lock:
                numbers = list(itertools.islice(self._numbers, RECORDS_PER_REQUEST))
                self._sent = max(self._sent, numbers[-1])
            key, until_s = uuid.uuid4().hex, time.monotonic() + WAIT_S
            while True:
                status, _ = self.node.post("http", "/v1/logs", _logs(numbers), **_key(key))
                self.counts[f"status_{status}"] += 1
                if status == 200:
                    break
                if status not in (0, 429, 503) or time.monotonic() > until_s:
                    self.counts["trouble"] += 1  # refused for good, or refused for too long
                    return
                time.sleep(self._rng.uniform(0.05, 0.3))
            with self._lock:
                self._answered += len(numbers)

    def _read(self) -> None:
        while not self._is_over.is_set():
            with self._lock:
                answered = self._answered
            found = self._found()
            if found is not None:
                self.counts["readings"] += 1
                self.counts["short_reads"] += found["n"] < answered
                self.counts["dup"] += found["n"] - found["d"]
                self.counts["dirty"] += (found["top"] or 0) > self._sent
            time.sleep(0.05)

    def _found(self) -> dict[str, int] | None:
        status, body = self.node.post("api", "/api/v1/query", {"sql": COUNT})
        if status == 404 and not self._answered:
            return None  # the first record makes the table
        if status != 200:
            self.counts[f"read_status_{status}"] += 1
            return None
        return json.loads(body)["rows"][0]

    def _balance(self) -> None:
        """Every number that was answered is there, once; of the others none twice."""
        query = {"sql": "select cast(body as bigint) as n from logs"}
        end_s = time.monotonic() + WAIT_S
        status, body = self.node.post("api", "/api/v1/query", query)
        while status != 200 and time.monotonic() < end_s:
            time.sleep(0.2)  # started again a moment ago, it may be busy yet
            status, body = self.node.post("api", "/api/v1/query", query)
        assert status == 200, body
        found = [row["n"] for row in json.loads(body)["rows"]]
        self.counts["acked"] = self._answered
        self.counts["dup"] += len(found) - len(set(found))
        self.counts["lost"] += max(0, self._answered - len(set(found)))
        self.counts["dirty"] += len(set(found) - set(range(1, self._sent + 1)))


def _key(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key}


def _logs(numbers: list[int]) -> dict:
    time_ns = str(time.time_ns())
    records = [{"timeUnixNano": time_ns, "body": {"stringValue": str(n)}} for n in numbers]
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}


def mixed_load(folder: Path, seconds: float, seed: int) -> Counter[str]:
    """Run the load in a folder and return what was counted."""
    return MixedLoad(folder, seed).run(seconds)
