"""The audit trail: one JSON line for each change of a key or tenant, and for each refusal.

In:   an action, its actor, its facts
Out:  lines in `<data>/audit.jsonl`, oldest first; older files `audit.1.jsonl` and up

- The file is bounded: at `FILE_BYTES_MAX` it becomes `audit.1.jsonl`. `FILES_MAX` older files are
  kept. Many processes may write; each line is one write.
- Refusals past `REFUSALS_PER_S` are only counted: a flood of them becomes one line with a number.
- When a line cannot be written, the action goes on and the node's log reports the lost line.
"""

import os
import threading
import time as clock
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from thermocline.errors import ThermoclineError
from thermocline.server.access.private_files import append_line, hold_lock
from thermocline.server.observe.log import EventLog, encode_line

AUDIT_NAME = "audit.jsonl"
LOCK_NAME = ".audit.lock"
FILE_BYTES_MAX = 8 << 20
FILES_MAX = 4
REFUSALS_PER_S = 10


class Audit:
    """The audit lines of one data folder. Safe to use from any thread and process."""

    def __init__(
        self,
        folder: str,
        log: EventLog | None = None,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        now_s: Callable[[], float] = clock.time,
    ) -> None:
        self._path = os.path.join(folder, AUDIT_NAME)
        self._log = log
        self._file_bytes_max = file_bytes_max
        self._now_s = now_s
        self._lock = threading.Lock()
        self._second = 0
        self._refusals = 0

    def record_action(self, name: str, actor: str, **facts: Any) -> bool:
        """Record an action; the line is durable when this returns True."""
        return self._write({"action": name, "actor": actor, **facts}, is_durable=True)

    def record_refusal(self, code: str, actor: str, **facts: Any) -> bool:
        """Record a refusal; past `REFUSALS_PER_S` only their number is recorded."""
        with self._lock:
            second = int(self._now_s())
            if second != self._second:
                missed, self._second = self._refusals - REFUSALS_PER_S, second
                self._refusals = 0
            else:
                missed = 0
            self._refusals += 1
            is_told = self._refusals <= REFUSALS_PER_S
        if missed > 0:
            self._write({"action": "refused", "actor": "many", "more": missed}, is_durable=False)
        line = {"action": "refused", "actor": actor, "code": code, **facts}
        return is_told and self._write(line, is_durable=False)

    def _write(self, facts: dict[str, Any], *, is_durable: bool) -> bool:
        time = datetime.fromtimestamp(self._now_s(), UTC).isoformat(timespec="milliseconds")
        try:
            line = encode_line({"time": time.replace("+00:00", "Z"), **facts})
            size_bytes = append_line(self._path, line, is_durable=is_durable)
            if size_bytes >= self._file_bytes_max:
                self._rotate()
        except (OSError, ThermoclineError) as error:
            if self._log is not None:
                self._log.error("audit line lost", error=error, action=facts["action"])
            return False
        return True

    def _rotate(self) -> None:
        lock = os.path.join(os.path.dirname(self._path), LOCK_NAME)
        with hold_lock(lock, what="rotates the audit file"):
            if os.path.getsize(self._path) < self._file_bytes_max:
                return  # another process was first
            stem = self._path.removesuffix(".jsonl")
            for number in range(FILES_MAX - 1, 0, -1):
                with suppress(FileNotFoundError):
                    os.replace(f"{stem}.{number}.jsonl", f"{stem}.{number + 1}.jsonl")
            os.replace(self._path, f"{stem}.1.jsonl")
