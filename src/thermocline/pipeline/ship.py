"""What goes to Spark's workers and what comes back: batches out, staged segments in.

In:   a frame, and the table it goes to
Out:  segments that workers made durable in the table's folder, for the driver to commit

- Spark gives the driver the results of one attempt of each task, whatever was retried or ran
  twice. Only what those report is committed, so no row counts twice.
- The clocks of workers are not asked for anything.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from thermocline.format.action import TableSpec
from thermocline.format.schema import Schema
from thermocline.lake.place import open_storage
from thermocline.lake.stage import Stage, Staged


@dataclass(frozen=True, slots=True)
class Target:
    """The table that workers write to, as they need to know it.

    `schema` are the table's columns as of the commit to be made; `mark` is that of the work.
    """

    root: str
    spec: TableSpec
    schema: Schema
    mark: str
    options: Mapping[str, str] = field(default_factory=dict)

    def stage(self) -> Stage:
        """Return where to stage segments, in whatever process this is."""
        return Stage(open_storage(self.root, self.options or None), workers=1, mark=self.mark)


def write(target: Target, batches: Iterable[pa.RecordBatch]) -> list[Staged]:
    """Write batches as segments, durable when this returns. For workers."""
    stage = target.stage()
    try:
        stage.write_batches(batches, target.schema, target.spec)
    except BaseException:
        stage.discard()
        raise
    return stage.staged


def sealed(staged: list[Staged]) -> bytes:
    """Return what a worker reports, as bytes."""
    return pickle.dumps(staged)


def opened(report: bytes) -> list[Staged]:
    """Return what a worker reported."""
    return pickle.loads(report)  # noqa: S301  our own workers, who ran our own code
