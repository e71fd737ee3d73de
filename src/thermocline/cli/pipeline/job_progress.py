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

from thermocline.cli.terminal.terminal import make_bar

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.pipeline.run.history import TaskRecord
    from thermocline.pipeline.run.job import Task, TaskProgress


@contextmanager
def show_task_progress() -> "Iterator[Callable[[Task], TaskProgress]]":
    """Show a bar for the running task on a terminal; otherwise write one line a task."""
    if not sys.stderr.isatty():

        def lines(task: "Task") -> "TaskProgress":
            print(f"{task.job} {task.table}: {task.why}", file=sys.stderr, flush=True)
            return lambda what, done, total: None

        yield lines
        return
    with make_bar() as bar:

        def bars(task: "Task") -> "TaskProgress":
            for before in bar.task_ids:
                bar.remove_task(before)
            title = f"{task.job} {task.table}"
            shown = bar.add_task(title, total=None)
            return lambda what, done, total: bar.update(
                shown, description=f"{title}: {what}", completed=done, total=total
            )

        yield bars


def report_record(ran: "TaskRecord") -> "TaskRecord":
    """Write a task's record to stderr, unless a bar is drawn; return the record."""
    if not sys.stderr.isatty():
        print(record_line(ran), file=sys.stderr, flush=True)
    return ran


def record_line(ran: "TaskRecord") -> str:
    """Return a task's record as one line."""
    place = f"{ran.job} {ran.table}".strip()
    if ran.error is not None:
        facts = "; ".join(f"{name}: {value}" for name, value in ran.error.facts.items())
        reason = f"{ran.error.message} ({facts})" if facts else ran.error.message
        return f"{place} {ran.state}: {' '.join(reason.split())}"
    numbers = ", ".join(f"{value:,} {name}" for name, value in ran.numbers.items())
    version = "" if ran.version is None else f", version {ran.version:,}"
    return f"{place} {ran.state}{version}{f', {numbers}' if numbers else ''} ({ran.took_ms:,} ms)"


def record_json(ran: "TaskRecord") -> dict[str, Any]:
    """Return a task's record for machines: the row of the history, with its numbers."""
    return row_json(ran.row())


def row_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the history for machines."""
    import orjson

    from thermocline.format.instant import format_instant, from_datetime

    numbers = orjson.loads(row["numbers"] or "{}")
    return {
        **row,
        "started_at": format_instant(from_datetime(row["started_at"])),
        "numbers": numbers,
    }


def task_json(task: "Task") -> dict[str, Any]:
    """Return a due task for machines."""
    return {"job": task.job, "table": task.table, "why": task.why, "numbers": dict(task.numbers)}


def due_rows(due: "Sequence[Task]") -> "pa.Table":
    """Return due tasks as rows."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.string()) for name in ("job", "table", "why")])
    rows = [{"job": one.job, "table": one.table, "why": one.why} for one in due]
    return pa.Table.from_pylist(rows, schema)


def write_summary(ran: "Sequence[TaskRecord]", form: Any, *, is_json: bool) -> None:
    """Write the records of tasks; then raise the first failure, if there was one."""
    import pyarrow as pa

    from thermocline.pipeline.run.history import BUSY, COLUMNS

    names = ("job", "table_name", "state", "took_ms", "version", "rows", "error_message")
    rows = pa.Table.from_pylist([one.row() for one in ran], COLUMNS).select(list(names))
    write_answer(rows, "ran", [record_json(one) for one in ran], form, is_json=is_json)
    for one in ran:
        if one.error is not None and one.state != BUSY:
            raise one.error


def write_answer(rows: "pa.Table", name: str, listed: Any, form: Any, *, is_json: bool) -> None:
    """Write rows in the requested format; as JSON write `listed`, under a name."""
    from thermocline.cli.terminal.output import choose_output, print_json

    if is_json:
        print_json({name: listed})
    else:
        choose_output(form).write(rows.to_reader())
