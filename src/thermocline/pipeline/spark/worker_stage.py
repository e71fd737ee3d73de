"""What Spark's workers need to stage segments, and how they report them to the driver.

In:   a frame's batches, and the table to write
Out:  segments that workers made durable in the table's folder, for the driver to commit

- Spark gives the driver the results of one attempt of each task, even if a task was retried or ran
  twice. The driver commits only what these attempts report, so no row counts twice.
- The clocks of workers are never used.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from thermocline.cold.segment.stage import Stage, StagedSegment
from thermocline.cold.storage.open_storage import open_storage
from thermocline.format.log.action import TableSpec
from thermocline.format.schema import Schema


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The table that workers write to.

    `schema` has the table's columns as of the commit to be made; `mark` is the prefix of the names
    of the staged files.
    """

    root: str
    spec: TableSpec
    schema: Schema
    mark: str
    options: Mapping[str, str] = field(default_factory=dict)

    def stage(self) -> Stage:
        """Return the stage for new segments, in any process."""
        return Stage(open_storage(self.root, self.options or None), workers=1, mark=self.mark)


def write_segments(target: WriteTarget, batches: Iterable[pa.RecordBatch]) -> list[StagedSegment]:
    """Write batches as segments, durable when this returns. For workers."""
    stage = target.stage()
    try:
        stage.write_batches(batches, target.schema, target.spec)
    except BaseException:
        stage.discard()
        raise
    return stage.staged


def encode_staged(staged: list[StagedSegment]) -> bytes:
    """Return a worker's report as bytes."""
    return pickle.dumps(staged)


def decode_staged(report: bytes) -> list[StagedSegment]:
    """Return the segments of a worker's report."""
    return pickle.loads(report)  # noqa: S301  pickled by our workers
