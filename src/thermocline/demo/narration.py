"""The output of the demonstration: numbered steps, text, and commands as a user types them."""

import sys
import time as clock
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from thermocline.show.text import visible

if TYPE_CHECKING:
    import pyarrow as pa

INDENT = "      "


class Screen:
    """Writes the demonstration to stdout, step by step."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._step = 0
        self._began_s = clock.monotonic()

    def step(self, title: str, *words: str) -> None:
        """Begin the next step with a title and an explanation."""
        self._step += 1
        print(f"\n[{self._step}/{self._steps}] {title}")
        for word in words:
            self.say(word)
        print(flush=True)

    def say(self, text: str) -> None:
        """Write a line of a step."""
        print(f"{INDENT}{visible(text)}", flush=True)

    def command(self, line: str) -> None:
        """Show a command that a user could type."""
        print(f"$ {visible(line)}", flush=True)

    @contextmanager
    def time_step(self, what: str) -> Iterator[None]:
        """Show what the block does while it runs, and how long it took."""
        print(f"{INDENT}{what} ...", end="", flush=True)
        began_s = clock.monotonic()
        try:
            yield
        except BaseException:
            print(" failed", flush=True)
            raise
        print(f" {clock.monotonic() - began_s:.1f} s", flush=True)

    def rows(self, table: "pa.Table") -> None:
        """Show the rows of a small table in columns."""
        for line in format_columns(table.column_names, table.to_pylist()):
            self.say(line)

    def elapsed_s(self) -> float:
        """Return the seconds since the demonstration began."""
        return clock.monotonic() - self._began_s

    def flush(self) -> None:
        """Flush stdout before another process writes."""
        sys.stdout.flush()


def format_columns(names: Sequence[str], rows: Sequence[dict[str, object]]) -> Iterator[str]:
    """Yield a line of names, and lines with the values of rows under them."""
    texts = [[_text(row[name]) for name in names] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(names, *texts, strict=True)]
    for line in (names, ["-" * width for width in widths], *texts):
        yield "  ".join(f"{word:<{width}}" for word, width in zip(line, widths, strict=True))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
