"""The terminal: whether there is one, its width, and whether colours are enabled.

- Without a terminal, or with NO_COLOR set, no escape sequence is ever written.
- A command's answer goes to stdout; all messages go to stderr.
- Text is printed unchanged: square brackets in data are not markup.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from thermocline.errors import Invalid

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

Progress = Callable[[int, int], None]
"""Receives the amount that is done, and the total."""


def is_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return sys.stdout.isatty()


def answer_console() -> "Console":
    """Return the console for a command's answer."""
    return _make_console(sys.stdout)


def message_console() -> "Console":
    """Return the console for messages."""
    return _make_console(sys.stderr)


def _make_console(file: IO[str]) -> "Console":
    from rich.console import Console

    is_plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        file=file,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if is_plain else "auto",
        legacy_windows=False,
    )


def print_line(text: str) -> None:
    """Write one line of the answer, with control characters made visible."""
    from thermocline.show.text import visible

    print(visible(text))


@contextmanager
def show_progress(title: str) -> Iterator[Progress]:
    """Show a bar on stderr while the block runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with make_bar() as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def make_bar() -> "Bar":
    """Return a bar on stderr, which disappears at its end."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Bar(*columns, console=message_console(), transient=True)


def confirm(question: str, *, is_yes: bool, otherwise: str) -> bool:
    """Ask the user; `Invalid` without a terminal and without `--yes`.

    `otherwise` says for this error what the command would do.
    """
    if is_yes:
        return True
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Invalid(
            "this needs a confirmation, and there is no terminal",
            hint="check what the command would do, then add --yes",
            it_would=otherwise,
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
