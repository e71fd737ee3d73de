"""What a job is: `due` finds its tasks, `run` does one of them.

In:   a `JobWorkspace`
Out:  `Task`s, found from metadata alone; a `TaskResult` once a task is in a committed version

- `due` needs no Spark and changes nothing, so a dry run only calls `due`.
- A task that is already done is a no-op when it runs again.
- A job reads one pinned version, applies a pure function to the frame, and makes one commit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

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
    """One piece of work on one table; `why` says for a person why it is due."""

    job: str
    table: str
    why: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    detail: Any = None


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


def ignore_progress(what: str, done: int, total: int) -> None:
    """Ignore the progress."""
