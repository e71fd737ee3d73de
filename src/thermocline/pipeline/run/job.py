"""What a job is: `due` finds its tasks, `run` does one of them.

In:   a `JobWorkspace`
Out:  `Task`s, found from metadata alone; a `TaskResult` once a task is in a committed version

- `due` needs no Spark and changes nothing, so a dry run only calls `due`.
- A task that is already done is a no-op when it runs again.
- A table whose log cannot be read is a task that fails with the reason; the other tables have
  their tasks.
- A job reads one pinned version, applies a pure function to the frame, and makes one commit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from thermocline.errors import Corruption, ThermoclineError, Unsupported
from thermocline.format.layout import Version
from thermocline.pipeline.run.workspace import JobWorkspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TaskProgress: TypeAlias = Callable[[str, int, int], None]
"""Receives what is being done, how many parts of it are done, and how many there are."""

SessionFactory: TypeAlias = "Callable[[], SparkSession]"
"""Returns the session; the first call starts it."""


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work on one table; `why` says for a person why it is due.

    A task with an error stands for a table that cannot be read: it fails with this error.
    """

    job: str
    table: str
    why: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    detail: Any = None
    error: ThermoclineError | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A task's result: the version that it committed, None if there was nothing to do."""

    version: Version | None
    numbers: Mapping[str, int] = field(default_factory=dict)


class Job(Protocol):
    """One kind of work."""

    @property
    def name(self) -> str:
        """The job's name on the command line."""
        ...

    def due(self, site: JobWorkspace) -> Iterator[Task]:
        """Yield the tasks that are due now, from metadata alone."""
        ...

    def run(
        self, site: JobWorkspace, task: Task, spark: SessionFactory, tell: TaskProgress
    ) -> TaskResult:
        """Do one task, in one commit."""
        ...


def find_tasks(
    job: str, tables: Iterable[str], find: Callable[[str], Iterable[Task]]
) -> Iterator[Task]:
    """Yield the due tasks of each table; one that cannot be read is a task that fails."""
    for table in tables:
        try:
            yield from list(find(table))
        except (Corruption, Unsupported) as error:
            yield Task(job, table, f"the table cannot be read: {error.message}", error=error)


def ignore_progress(what: str, done: int, total: int) -> None:
    """Ignore the progress."""
