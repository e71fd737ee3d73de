"""The terminal: who is looking, how wide it is, and whether colours are wanted.

- Without a terminal, or with NO_COLOR set, no escape sequence is ever written.
- What a command answers goes to stdout; everything said meanwhile goes to stderr.
- Text is printed as it is: square brackets in data are no markup.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from thermocline.errors import Invalid

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[int, int], None]
"""Told how much is done, of how much."""


def is_watched() -> bool:
    """Tell whether a person sees what is written to stdout."""
    return sys.stdout.isatty()


def answers() -> "Console":
    """Return the console for what a command answers."""
    return _console(sys.stdout)


def remarks() -> "Console":
    """Return the console for what is said meanwhile."""
    return _console(sys.stderr)


def _console(file: IO[str]) -> "Console":
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


def say(text: str) -> None:
    """Write one line of answer for people."""
    from thermocline.show.text import visible

    print(visible(text))


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """Show a bar on stderr while the block runs, where a person is watching it."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=remarks(), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def confirmed(question: str, *, is_yes: bool, otherwise: str) -> bool:
    """Ask a person; `Invalid` when nobody can be asked and `--yes` was not given.

    `otherwise` says what could not be asked about, for that error.
    """
    if is_yes:
        return True
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Invalid(
            "this needs a yes, and nobody can be asked here",
            hint="look at what it would do, then add --yes",
            it_would=otherwise,
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
