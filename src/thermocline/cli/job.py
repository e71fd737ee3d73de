"""What is told of jobs on the command line: while they run, and when they have ended.

In:   tasks and what became of them
Out:  a bar or lines on stderr; a box, CSV or JSON on stdout

- A bar is drawn where a person looks at stderr; a line a task is written otherwise.
- An error is told in the answer of a command, and raised after it: its code is the exit code.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from thermocline.cli.screen import remarks

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.pipeline.history import Ran
    from thermocline.pipeline.job import Task, Tell


@contextmanager
def progress() -> "Iterator[Callable[[Task], Tell]]":
    """Show a bar for the task under way on a terminal; tell of each task in a line otherwise."""
    if not sys.stderr.isatty():

        def lines(task: "Task") -> "Tell":
            print(f"{task.job} {task.table}: {task.why}", file=sys.stderr, flush=True)
            return lambda what, done, total: None

        yield lines
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=remarks(), transient=True) as bar:

        def bars(task: "Task") -> "Tell":
            for before in bar.task_ids:
                bar.remove_task(before)
            title = f"{task.job} {task.table}"
            shown = bar.add_task(title, total=None)
            return lambda what, done, total: bar.update(
                shown, description=f"{title}: {what}", completed=done, total=total
            )

        yield bars


def said(ran: "Ran") -> "Ran":
    """Write what became of a task to stderr, where no bar is drawn; return it."""
    if not sys.stderr.isatty():
        print(line_of(ran), file=sys.stderr, flush=True)
    return ran


def line_of(ran: "Ran") -> str:
    """Return what became of a task in one line."""
    place = f"{ran.job} {ran.table}".strip()
    if ran.error is not None:
        facts = "; ".join(f"{name}: {value}" for name, value in ran.error.facts.items())
        told = f"{ran.error.message} ({facts})" if facts else ran.error.message
        return f"{place} {ran.state}: {' '.join(told.split())}"
    numbers = ", ".join(f"{value:,} {name}" for name, value in ran.numbers.items())
    version = "" if ran.version is None else f", version {ran.version:,}"
    return f"{place} {ran.state}{version}{f', {numbers}' if numbers else ''} ({ran.took_ms:,} ms)"


def told_of_run(ran: "Ran") -> dict[str, Any]:
    """Return what became of a task, for machines: the row of the history, with its numbers."""
    return told_row(ran.row())


def told_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the history, for machines."""
    import orjson

    from thermocline.format.instant import from_datetime, written

    numbers = orjson.loads(row["numbers"] or "{}")
    return {**row, "started_at": written(from_datetime(row["started_at"])), "numbers": numbers}


def told_task(task: "Task") -> dict[str, Any]:
    """Return a task that is due, for machines."""
    return {"job": task.job, "table": task.table, "why": task.why, "numbers": dict(task.numbers)}


def due_rows(due: "Sequence[Task]") -> "pa.Table":
    """Return tasks that are due as rows."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in ("job", "table", "why")])
    rows = [{"job": one.job, "table": one.table, "why": one.why} for one in due]
    return pa.Table.from_pylist(rows, schema)


def summary(ran: "Sequence[Ran]", form: Any, *, is_json: bool) -> None:
    """Write what became of each task; then raise the first failure, if there was one."""
    import pyarrow as pa

    from thermocline.pipeline.history import BUSY, COLUMNS

    names = ("job", "table_name", "state", "took_ms", "version", "rows", "error_message")
    rows = pa.Table.from_pylist([one.row() for one in ran], COLUMNS).select(list(names))
    answer(rows, "ran", [told_of_run(one) for one in ran], form, is_json=is_json)
    for one in ran:
        if one.error is not None and one.state != BUSY:
            raise one.error


def answer(rows: "pa.Table", name: str, told: Any, form: Any, *, is_json: bool) -> None:
    """Write rows as they are asked for; in JSON it is `told`, under a name."""
    from thermocline.cli.output import chosen, say_json

    if is_json:
        say_json({name: told})
    else:
        chosen(form).write(rows.to_reader())
