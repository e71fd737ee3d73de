"""The node's log: one JSON object a line on stderr.

In:   the name of an event and its facts
Out:  lines such as `{"time": "2024-06-01T00:00:00.000Z", "event": "started", "port": 4320}`

- `event` never blocks and never fails: lines go through a bounded queue to a writer thread. While
  stderr is full or closed, lines are counted and dropped; before the next line that can be
  written, the thread writes the number of dropped lines.
- No line has a key: text that looks like a key is blanked, and so are values with a name such as
  `password`.
"""

import atexit
import os
import re
import threading
import time as clock
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson

from thermocline.errors import ThermoclineError
from thermocline.names import API_KEY_IN_LOG, LIBPQ_NAMED

LINES_WAITING_MAX = 1_000
LINE_BYTES_MAX = 16_384
DEPTH_MAX = 8
STOP_WAIT_S = 1.0
BLANK = "***"

_KEY = re.compile(rf"{API_KEY_IN_LOG}|(?i:bearer\s+)\S+|(?<=://)[^/@\s]+@|{LIBPQ_NAMED}")
_NAMED = re.compile(r"(?i)authorization|secret|password|token|api_?key|cookie")


class EventLog:
    """Queues lines for a file descriptor. Safe to use from any thread."""

    def __init__(self, descriptor: int = 2, now_s: Callable[[], float] = clock.time) -> None:
        self._descriptor = descriptor
        self._now_s = now_s
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_writing = False
        self._is_started = False
        self.dropped = 0

    def event(self, name: str, **facts: Any) -> None:
        """Log an event; returns at once, even if the line is dropped."""
        time = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="milliseconds")
        line = encode_line({"time": time.replace("+00:00", "Z"), "event": name, **facts})
        with self._changed:
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._run, name="thermocline-log", daemon=True).start()
                atexit.register(self.flush)
            if len(self._waiting) >= LINES_WAITING_MAX:
                self.dropped += 1
                return
            self._waiting.append(line)
            self._changed.notify()

    def error(self, name: str, error: BaseException, **facts: Any) -> None:
        """Log a failure, with the error's message and facts."""
        if isinstance(error, ThermoclineError):
            facts = {"code": error.code, "message": error.message, **error.facts, **facts}
        else:
            facts = {"code": "bug", "message": f"{type(error).__name__}: {error}", **facts}
        self.event(name, **facts)

    def flush(self, wait_s: float = STOP_WAIT_S) -> bool:
        """Wait at most `wait_s` until every line is written; return whether it is."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._is_writing, wait_s
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting.popleft()
                dropped, self.dropped = self.dropped, 0
                self._is_writing = True
            if dropped:
                line = encode_line({"event": "lines dropped", "lines": dropped}) + line
            if not self._write(line):
                with self._changed:
                    self.dropped += dropped + 1

    def _write(self, line: bytes) -> bool:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            return False  # closed, or its disk is full; the node continues
        return True


def encode_line(facts: dict[str, Any]) -> bytes:
    """Return one line of JSON, with everything that looks like a key blanked."""
    shown = {name: _blank_secrets(name, value) for name, value in facts.items()}
    options = orjson.OPT_APPEND_NEWLINE
    line = orjson.dumps(shown, option=options)
    if len(line) > LINE_BYTES_MAX:
        kept = {name: facts[name] for name in ("time", "event") if name in facts}
        line = orjson.dumps({**kept, "cut_bytes": len(line)}, option=options)
    return line


def _blank_secrets(name: Any, value: Any, depth: int = 0) -> Any:
    if isinstance(name, str) and _NAMED.search(name) and value:
        return BLANK
    if isinstance(value, dict) and depth < DEPTH_MAX:
        return {_text(key): _blank_secrets(key, one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < DEPTH_MAX:
        return [_blank_secrets(name, one, depth + 1) for one in value]
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    return _text(value)


def _text(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return _KEY.sub(
        lambda found: f"{found['named'] or ''}{BLANK}", text.encode(errors="replace").decode()
    )
