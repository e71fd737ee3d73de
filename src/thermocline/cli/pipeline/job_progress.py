"""Shows jobs on the command line: while they run, and when they have ended.

In:   tasks and their records
Out:  a bar or lines on stderr; a box, CSV or JSON on stdout

- If stderr is a terminal, a bar is drawn; otherwise each task is one line.
- A failed task is in the answer; then its error is raised, and its code is the exit code.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from thermocline.cli.terminal.terminal import remarks

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.pipeline.run.history import Ran
    from thermocline.pipeline.run.job import Task, Tell


@contextmanager
def progress() -> "Iterator[Callable[[Task], Tell]]":
    """Show a bar for the running task on a terminal; otherwise write one line a task."""
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
    """Write a task's record to stderr, unless a bar is drawn; return the record."""
    if not sys.stderr.isatty():
        print(line_of(ran), file=sys.stderr, flush=True)
    return ran


def line_of(ran: "Ran") -> str:
    """Return a task's record as one line."""
    place = f"{ran.job} {ran.table}".strip()
    if ran.error is not None:
        facts = "; ".join(f"{name}: {value}" for name, value in ran.error.facts.items())
        told = f"{ran.error.message} ({facts})" if facts else ran.error.message
        return f"{place} {ran.state}: {' '.join(told.split())}"
    numbers = ", ".join(f"{value:,} {name}" for name, value in ran.numbers.items())
    version = "" if ran.version is None else f", version {ran.version:,}"
    return f"{place} {ran.state}{version}{f', {numbers}' if numbers else ''} ({ran.took_ms:,} ms)"


def told_of_run(ran: "Ran") -> dict[str, Any]:
    """Return a task's record for machines: the row of the history, with its numbers."""
    return told_row(ran.row())


def told_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the history for machines."""
    import orjson

    from thermocline.format.instant import from_datetime, written

    numbers = orjson.loads(row["numbers"] or "{}")
    return {**row, "started_at": written(from_datetime(row["started_at"])), "numbers": numbers}


def told_task(task: "Task") -> dict[str, Any]:
    """Return a due task for machines."""
    return {"job": task.job, "table": task.table, "why": task.why, "numbers": dict(task.numbers)}


def due_rows(due: "Sequence[Task]") -> "pa.Table":
    """Return due tasks as rows."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in ("job", "table", "why")])
    rows = [{"job": one.job, "table": one.table, "why": one.why} for one in due]
    return pa.Table.from_pylist(rows, schema)


def summary(ran: "Sequence[Ran]", form: Any, *, is_json: bool) -> None:
    """Write the records of tasks; then raise the first failure, if there was one."""
    import pyarrow as pa

    from thermocline.pipeline.run.history import BUSY, COLUMNS

    names = ("job", "table_name", "state", "took_ms", "version", "rows", "error_message")
    rows = pa.Table.from_pylist([one.row() for one in ran], COLUMNS).select(list(names))
    answer(rows, "ran", [told_of_run(one) for one in ran], form, is_json=is_json)
    for one in ran:
        if one.error is not None and one.state != BUSY:
            raise one.error


def answer(rows: "pa.Table", name: str, told: Any, form: Any, *, is_json: bool) -> None:
    """Write rows in the requested format; as JSON write `told`, under a name."""
    from thermocline.cli.terminal.output import chosen, say_json

    if is_json:
        say_json({name: told})
    else:
        chosen(form).write(rows.to_reader())
