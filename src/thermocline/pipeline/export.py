"""Exports PostgreSQL's changes to the lake: many workers read them from one snapshot.

In:   a type's entities; the number of connections to PostgreSQL
Out:  one version with every change of that snapshot; PostgreSQL then drops these changes

    1  freeze    the driver exports one snapshot and keeps its transaction: head, changes, keys
    2  stage     each worker imports it, reads a range of keys and writes segments sorted by key

- The other steps are those of every export, see `entity/export.py`.
- All partitions read the same snapshot. If each session took its own snapshot, money that is moved
  between two rows could be in both or in neither.
- If a worker cannot import the snapshot, the job fails: nothing is committed, and no version names
  the staged files.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from thermocline.cold.change.commit_staged import new_tag, sweep_staged
from thermocline.cold.change.export_plan import KEY_COLUMN, KeyedSegment
from thermocline.cold.segment.stage import SEGMENT_BYTES_MAX, SEGMENT_ROWS_MAX, Stage
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.entity.columns import conform_rows
from thermocline.entity.export import RowStaging, export
from thermocline.entity.table import EntityTable
from thermocline.errors import NotFound, Unavailable
from thermocline.format.log.state import TableState
from thermocline.hot.postgres.export.dirty import FrozenChanges
from thermocline.hot.postgres.export.key_range import (
    KeyRange,
    read_key_range,
    share_snapshot,
)
from thermocline.pipeline.run.job import (
    SessionFactory,
    Task,
    TaskProgress,
    TaskResult,
    find_tasks,
)
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.session import without_warnings
from thermocline.pipeline.spark.worker_stage import decode_staged, encode_staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from thermocline.entity.types import EntityCatalog

NAME = "export"
TRIES_MAX = 4
_LOGGERS = ("py4j", "pyspark.sql.connect.logging")
REPORT = "part long, low string, high string, staged binary"
_SCHEMA = pa.schema(
    {"part": pa.int64(), "low": pa.string(), "high": pa.string(), "staged": pa.binary()}
)


@dataclass(frozen=True, slots=True)
class ExportLimits:
    """How an export is split: at least `part_keys` keys a part, and one connection a part."""

    part_keys: int = 20_000
    connections_max: int = 8


def _find_changes(types: "EntityCatalog", name: str) -> Iterator[Task]:
    entities = types.table(name)
    changes = entities.source.pressure().changes
    behind = entities.table.state().version - entities.source.head().version
    if changes:
        yield Task(NAME, name, f"{changes:,} changes wait", {"changes": changes})
    elif behind:
        yield Task(NAME, name, "an export was not finished", {"versions": behind})


class ExportJob:
    """The job that exports entities."""

    name = NAME

    def __init__(self, limits: ExportLimits | None = None) -> None:
        self._limits = limits or ExportLimits()

    def due(self, site: JobWorkspace) -> Iterator[Task]:
        """Yield every type with changes to export, or with an export that is not finished."""
        types = site.entities()
        if types is not None:
            yield from find_tasks(NAME, types.names(), partial(_find_changes, types))

    def run(
        self, site: JobWorkspace, task: Task, spark: SessionFactory, tell: TaskProgress
    ) -> TaskResult:
        """Export one type; `Conflict` if other exports committed first in every try."""
        types = site.entities()
        if types is None:
            hint = "set postgres to a DSN, or to embedded for a server in the lake's folder"
            raise NotFound("this lake has no entities", hint=hint, table=task.table)
        entities = types.table(task.table)
        staging = _SparkStaging(entities, self._limits, spark, tell)
        done = export(entities.source, entities.table, staging, tries_max=TRIES_MAX)
        if done is None:
            return TaskResult(None)
        tell("committing", 1, 1)
        return TaskResult(
            done.version,
            {
                "keys": done.keys,
                "rows": done.rows,
                "changes": done.changes,
                "segments": len(staging.keyed),
                "bytes": sum(one.staged.checksum.size_bytes for one in staging.keyed),
            },
        )


class _SparkStaging(RowStaging):
    """Lets Spark's workers read the rows of a shared snapshot and write them as segments."""

    def __init__(
        self,
        entities: EntityTable,
        limits: ExportLimits,
        spark: SessionFactory,
        tell: TaskProgress,
    ) -> None:
        super().__init__(entities.source)
        self._entities = entities
        self._limits = limits
        self._spark = spark
        self._tell = tell
        self._tag = ""
        self.keyed: list[KeyedSegment] = []

    @contextmanager
    def freeze(self) -> Iterator[FrozenChanges | None]:
        self._tag = new_tag()
        if not self._source.pressure().changes:
            yield None
            return
        self._spark()  # Spark starts before the snapshot: its transaction should be short
        with share_snapshot(self._entities.store) as frozen:
            yield frozen
        if frozen is not None:
            self._tell("committing", 0, 1)

    def stage(self, frozen: FrozenChanges, state: TableState) -> list[KeyedSegment]:
        storage = self._entities.table.storage
        target = WriteTarget(storage.root, state.spec, state.schema, self._tag)
        parts = cut_parts(self._entities, frozen, self._limits)
        self._tell("reading", 0, len(parts))
        self.keyed = stage_parts(self._spark(), parts, target)
        self._tell("reading", len(parts), len(parts))
        return self.keyed

    def discard(self) -> None:
        sweep_staged(self._entities.table, self._tag)


def cut_parts(entities: EntityTable, frozen: FrozenChanges, limits: ExportLimits) -> list[KeyRange]:
    """Return key ranges of equal size that contain every key of the snapshot once."""
    keys = frozen.snapshot.keys
    wanted = min(max(len(keys) // limits.part_keys, 1), limits.connections_max, len(keys))
    edges = [len(keys) * place // wanted for place in range(wanted + 1)]
    store = entities.store
    whole = (store.pool.dsn, store.tenant, store.type_name, frozen.shared_id)
    return [
        KeyRange(*whole, keys[first].as_py(), keys[end - 1].as_py())
        for first, end in pairwise(edges)
    ]


def stage_parts(
    spark: "SparkSession", parts: Sequence[KeyRange], target: WriteTarget
) -> list[KeyedSegment]:
    """Let workers read and write the parts; return the segments in the order of their keys."""
    with without_warnings(), _without_debug_log():
        places = spark.range(0, len(parts), 1, len(parts))
        reports = places.mapInArrow(partial(_write_parts, tuple(parts), target), REPORT).collect()
    ended = sorted(report.part for report in reports if report.staged is None)
    if ended != list(range(len(parts))):
        raise Unavailable(
            "Spark did not return every part of the export once",
            hint="run the export again; nothing was committed",
            parts=len(parts),
            ended=len(ended),
        )
    found = [
        KeyedSegment(decode_staged(report.staged)[0], report.low, report.high)
        for report in reports
        if report.staged is not None
    ]
    return sorted(found, key=lambda one: one.low)


@contextmanager
def _without_debug_log() -> Iterator[None]:
    """Keep the parts out of debug logs: they contain the address of PostgreSQL."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(max(logger.getEffectiveLevel(), logging.INFO))
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _write_parts(
    parts: tuple[KeyRange, ...], target: WriteTarget, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place in batch.column(0).to_pylist():
            written = write_part(parts[place], target)
            output = [(place, one.low, one.high, encode_staged([one.staged])) for one in written]
            # The last row says that the part has ended, even if it has no segment.
            columns = zip(*output, (place, None, None, None), strict=True)
            arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA)]  # noqa: B905
            yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def write_part(part: KeyRange, target: WriteTarget) -> list[KeyedSegment]:
    """Read a part and write its segments, durable when this returns. For workers."""
    stage = target.stage()
    bounds: list[tuple[str, str]] = []
    held: list[pa.Table] = []
    try:
        for _, rows in read_key_range(part):
            held.append(conform_rows(rows, target.schema))
            rows_held = sum(one.num_rows for one in held)
            bytes_held = sum(one.nbytes for one in held)
            if rows_held >= SEGMENT_ROWS_MAX or bytes_held >= SEGMENT_BYTES_MAX:
                bounds.append(_write_segment(stage, held, target))
                held = []
        if held:
            bounds.append(_write_segment(stage, held, target))
    except BaseException:
        stage.discard()
        raise
    return [KeyedSegment(one, *ends) for one, ends in zip(stage.staged, bounds, strict=True)]


def _write_segment(stage: Stage, held: list[pa.Table], target: WriteTarget) -> tuple[str, str]:
    rows = pa.concat_tables(held)
    stage.write_table(rows, target.schema, target.spec)
    ids = rows.column(KEY_COLUMN)
    return ids[0].as_py(), ids[-1].as_py()
