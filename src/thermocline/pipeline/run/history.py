"""The history of jobs: one row for each task, in an ordinary table of the lake.

In:   a `TaskRecord` when a task ends
Out:  the table `pipeline_jobs`, which SQL reads like any other; its newest rows, without Spark

- A row is written when its task has ended, done or failed. If the row cannot be written, that is
  logged and the job has not failed: the log of its table says what it did.
- A row contains no password: messages are masked, and only the address of the master is stored.
- The job `retain` deletes rows older than `RETENTION`.
"""

import logging
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from thermocline.cold.change.append import AppendOptions
from thermocline.cold.segment.parquet import read_rows
from thermocline.cold.table import ColdTable
from thermocline.errors import ThermoclineError
from thermocline.format.instant import from_datetime
from thermocline.pipeline.spark.spark_errors import mask_text
from thermocline.table import new_spec

if TYPE_CHECKING:
    from thermocline.pipeline.run.workspace import JobWorkspace

NAME = "pipeline_jobs"
RETENTION = "90d"
ROWS_MAX = 1_000
DONE, FAILED, NOTHING, BUSY = "done", "failed", "nothing", "busy"
NOT_RUN = "not run"
COLUMNS = pa.schema(
    [
        pa.field("started_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("job", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("state", pa.string()),
        pa.field("took_ms", pa.int64()),
        pa.field("version", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("numbers", pa.string()),
        pa.field("error_code", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("master", pa.string()),
    ]
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task that has ended: `done`, `failed`, `nothing` (to do), or `busy` (another job had it).

    `not run` is a task that needs Spark, after Spark could not be started for an earlier task.
    """

    started_at: datetime
    job: str
    table: str
    state: str
    took_ms: int = 0
    version: int | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    error: ThermoclineError | None = None
    master: str = ""

    def row(self) -> dict[str, Any]:
        """Return the task as a row of the history."""
        error = self.error
        return {
            "started_at": self.started_at,
            "job": self.job,
            "table_name": self.table,
            "state": self.state,
            "took_ms": self.took_ms,
            "version": self.version,
            "rows": self.numbers.get("rows"),
            "bytes": self.numbers.get("bytes", self.numbers.get("size_bytes")),
            "numbers": orjson.dumps(self.numbers).decode(),
            "error_code": None if error is None else error.code,
            "error_message": None
            if error is None
            else mask_text(str(error).partition("\nhint: ")[0]),
            "master": master_address(self.master) or None,
        }


def master_address(master: str) -> str:
    """Return the master's address without tokens and logins, as in `sc://host:15002/;token=...`."""
    return re.sub(r"(?<=://)[^/@]*@", "", master.partition(";")[0]).rstrip("/")


def write_record(site: "JobWorkspace", ran: TaskRecord) -> None:
    """Write the row of a task; a task that was busy or had nothing to do gets no row."""
    if ran.state not in (DONE, FAILED, NOT_RUN):
        return
    try:
        spec = new_spec("started_at", "1h", overlap="allow", retention=RETENTION)
        table = site.ensure_table(NAME, spec)
        rows = pa.RecordBatch.from_pylist([ran.row()], COLUMNS)
        reader = pa.RecordBatchReader.from_batches(COLUMNS, [rows])
        table.append(reader, AppendOptions(evolve=True))
    except ThermoclineError as error:
        described = (ran.job, ran.table, mask_text(str(error)))
        logger.warning("the row of job %s on %s was not written: %s", *described)


def last_runs(table: ColdTable, limit: int = 100) -> list[dict[str, Any]]:
    """Return the newest rows of the history, the newest first, with Python values by column."""
    state = table.state()
    if not state.schema.columns:
        return []
    limit = min(limit, ROWS_MAX)
    names = [name for name in COLUMNS.names if name in state.schema.by_name]
    found: list[dict[str, Any]] = []
    for segment in sorted(state.segments, key=lambda one: -one.ts_max):
        if len(found) >= limit and segment.ts_max < from_datetime(found[limit - 1]["started_at"]):
            break
        for rows in read_rows(table.storage, state, segment, names):
            found += rows.batch.to_pylist()
        found.sort(key=lambda row: row["started_at"], reverse=True)
    return found[:limit]


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)
