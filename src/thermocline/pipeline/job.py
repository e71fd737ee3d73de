"""What a job is: a look that finds what is due, and a run that does one piece of it.

In:   a `Site`
Out:  `Task`s, found from metadata alone; `Done`, once a task is in a committed version

- Looking needs no Spark and changes nothing: a dry run is a look.
- A task that was done already is a no-op when it is run again.
- A job is a pure function from frame to frame between a read of one pinned version and one commit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from thermocline.format.layout import Version
from thermocline.pipeline.site import Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell: TypeAlias = Callable[[str, int, int], None]
"""Is told what is being done, how many parts of it are done, and how many there are."""

Sparks: TypeAlias = "Callable[[], SparkSession]"
"""Gives the session, started when it is first asked for."""


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work on one table; `why` tells a person what makes it due."""

    job: str
    table: str
    why: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    detail: Any = None


@dataclass(frozen=True, slots=True)
class Done:
    """What a task came to: the version that has it, None where there was nothing to do."""

    version: Version | None
    numbers: Mapping[str, int] = field(default_factory=dict)


class Job(Protocol):
    """One kind of work."""

    @property
    def name(self) -> str:
        """What the job is called on the command line."""
        ...

    def due(self, site: Site) -> Iterator[Task]:
        """Yield what is to be done now, from metadata alone."""
        ...

    def run(self, site: Site, task: Task, spark: Sparks, tell: Tell) -> Done:
        """Do one task, in one commit."""
        ...


def silent(what: str, done: int, total: int) -> None:
    """Tell nobody."""
