"""A shell to run commands in: verbs for processes, pipes and terminals."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COMMAND = (sys.executable, "-m", "thermocline.cli.main")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
TIMEOUT_S = 120


@dataclass(frozen=True)
class Ran:
    """What a command answered."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def error(self) -> dict[str, Any]:
        return json.loads(self.err)["error"]

    def told(self) -> list[str]:
        """Return the three lines of an error; fails when it is anything else."""
        lines = self.err.splitlines()
        assert len(lines) == 3, self.err
        assert lines[0].startswith("error: ")
        assert lines[1].startswith("  why: ")
        assert lines[2].startswith("   do: ")
        assert "Traceback" not in self.err
        return lines


class Shell:
    """A folder in which commands are run as real processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self, **extra: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        return {**kept, "TERM": "xterm-256color", **extra}

    def run(self, *words: str, typed: str | None = None, **extra: str) -> Ran:
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=self.folder,
            env=self.environment(**extra),
            input=typed,
            stdin=subprocess.DEVNULL if typed is None else None,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str, typed: str | None = None) -> Ran:
        ran = self.run(*words, typed=typed)
        assert ran.code == 0, ran.err
        return ran

    def start(self, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*COMMAND, *words], cwd=self.folder, env=self.environment(), **options
        )

    def on_terminal(
        self, *words: str, columns: int = 80, typed: str = "", plain: bool = True, **extra: str
    ) -> Ran:
        """Run a command with a terminal of this width as stdin, stdout and stderr."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process = subprocess.Popen(
            [*COMMAND, *words],
            cwd=self.folder,
            env=self.environment(**extra),
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        os.write(master, typed.encode())
        shown = b""
        while True:
            try:
                piece = os.read(master, 65_536)
            except OSError:  # the terminal's other end is closed
                break
            if not piece:
                break
            shown += piece
        os.close(master)
        text = shown.decode().replace("\r\n", "\n")
        code = process.wait(TIMEOUT_S)
        return Ran(code, ESCAPES.sub("", text) if plain else text, "")


def ticks(day: int, symbols: tuple[str, ...] = ("NVDA", "AMD"), hours: Any = range(24)) -> pa.Table:
    """Return rows of one day, one an hour for each symbol."""
    rows = [(hour, symbol) for hour in hours for symbol in symbols]
    return pa.table(
        {
            "ts": pa.array(
                [datetime(2024, 6, day, hour, 30, tzinfo=UTC) for hour, _ in rows],
                pa.timestamp("us", tz="UTC"),
            ),
            "symbol": [symbol for _, symbol in rows],
            "close": [100.0 + hour for hour, _ in rows],
            "volume": pa.array([day * 100 + hour for hour, _ in rows], pa.int32()),
            "note": [None if hour % 2 else ("null" if hour % 4 else "") for hour, _ in rows],
        }
    )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """An empty folder to run commands in."""
    return Shell(tmp_path)


@pytest.fixture
def market(shell: Shell) -> Shell:
    """A folder with `prices`: June 1 to 3, AMD without June 2 from 9:00 to 15:00."""
    import thermocline as tc

    hours = [*range(9), *range(15, 24)]
    table = tc.TimeSeriesTable.create(
        shell.folder / "prices", time_column="ts", bucket="1h", entity_columns=["symbol"]
    )
    table.append(ticks(1))
    table.append(pa.concat_tables([ticks(2, ("NVDA",)), ticks(2, ("AMD",), hours)]))
    table.append(ticks(3))
    return shell


@pytest.fixture
def incoming(shell: Shell) -> Shell:
    """A folder with june-01.parquet to june-03.parquet, and no table."""
    for day in (1, 2, 3):
        pq.write_table(ticks(day), shell.folder / f"june-{day:02d}.parquet")
    return shell
