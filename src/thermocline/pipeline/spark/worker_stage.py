"""What Spark's workers need to stage segments, and how they report them to the driver.

In:   a frame's batches, and the table to write
Out:  segments that workers made durable in the table's folder, for the driver to commit

- Spark gives the driver the results of one attempt of each task, even if a task was retried or ran
  twice. The driver commits only what these attempts report, so no row counts twice.
- The clocks of workers are never used.
"""

import pickle
from collections.abc import Iterable

import pyarrow as pa

from thermocline.cold.segment.stage import StagedSegment
from thermocline.cold.segment.write_target import WriteTarget


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
