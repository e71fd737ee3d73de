"""A worker's task in a rollup: read the segments of some windows, aggregate, write the result.

In:   the source at one version, the windows of a piece and the segments that overlap them
Out:  durable segments of the target that no version names yet

- A window is computed in one piece, from every segment that may have rows in it.
- A worker needs only this package and the table's files.
"""

from dataclasses import dataclass

from thermocline.cold.segment.parquet import read_rows
from thermocline.cold.segment.stage import StagedSegment
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.cold.storage.open_storage import open_storage
from thermocline.format.coverage import Buckets
from thermocline.format.log.action import Segment
from thermocline.format.log.state import TableState
from thermocline.pipeline.rollup.kernel import RollupKernel
from thermocline.pipeline.spark.worker_stage import write_segments


@dataclass(frozen=True, slots=True)
class WindowPiece:
    """The windows that one task computes, and the segments that may have rows in them."""

    windows: Buckets
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class RollupWork:
    """What the tasks of a run need: the source at one version, and the target."""

    kernel: RollupKernel
    source_root: str
    read_at: TableState
    target: WriteTarget
    pieces: tuple[WindowPiece, ...]


def compute_piece(work: RollupWork, number: int) -> list[StagedSegment]:
    """Compute the windows of one piece, and stage them. For workers."""
    piece = work.pieces[number]
    storage, names = open_storage(work.source_root), work.kernel.columns
    rows = (
        rows.batch
        for segment in piece.segments
        for rows in read_rows(storage, work.read_at, segment, names)
    )
    result = work.kernel.aggregate(rows, piece.windows)
    return write_segments(work.target, result.to_batches())
