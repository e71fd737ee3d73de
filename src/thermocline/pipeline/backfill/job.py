"""Backfill: loads thousands of files into a table in one commit; bad rows go to its quarantine.

In:   Parquet, CSV and JSON files, a table, policies for overlap, bad rows and new columns
Out:  one version that has all good rows, or none; bad rows in `<table>_quarantine`

- Workers read, check, write and measure; the driver combines their measurements and checks overlap
  while it plans the commit, as every append does.
- The user declares the types of new columns, or workers count every cell of every file to find them
  (`guess`). An existing column keeps its type.
- A batch is loaded once: the commit carries the batch's name, and a run that finds this name in the
  log does nothing.
- Order matters: bad rows are in the quarantine before the good rows are in the table. A crash
  between the two loses no row, and the next run of the batch stores no bad row twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from os import PathLike

import pyarrow as pa

from thermocline.cold.change.append import AppendColumns, AppendOptions, AppendPlanner
from thermocline.cold.change.commit_staged import (
    adopt_staged,
    append_staged,
    new_tag,
    sweep_staged,
)
from thermocline.cold.change.export_plan import check_not_entities
from thermocline.cold.segment.stage import StagedSegment
from thermocline.cold.segment.write_target import WriteTarget
from thermocline.cold.table import ColdTable
from thermocline.errors import Invalid, OutcomeUnknown
from thermocline.format.log.state import TableState
from thermocline.ingest.files.bad_rows import (
    BAD_ROWS_MAX_DEFAULT,
    BAD_ROWS_MAX_LIMIT,
    ON_BAD,
    BadRow,
    check_count,
)
from thermocline.ingest.files.file_columns import (
    check_declared,
    declare_types,
    unite_columns,
)
from thermocline.ingest.files.input_files import InputFile, batch_name, find_input_files
from thermocline.pipeline.backfill.quarantine import quarantine_name, quarantine_rows
from thermocline.pipeline.backfill.task import (
    BackfillContext,
    BackfillReport,
    read_piece_columns,
    write_piece,
)
from thermocline.pipeline.run.job import SessionFactory, TaskProgress, TaskResult, ignore_progress
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.tasks import run_tasks

DRIFT = ("fail", "add", "ignore")
PIECE_BYTES = 64 << 20
PIECES_MIN = 8
PIECES_MAX = 2_000


def backfill(
    site: JobWorkspace,
    table: str,
    sources: Iterable[str | PathLike[str]],
    *,
    format: str | None = None,  # noqa: A002
    overlap: str | None = None,
    on_bad: str = "quarantine",
    bad_rows_max: int = BAD_ROWS_MAX_DEFAULT,
    drift: str = "fail",
    batch_id: str | None = None,
    types: Mapping[str, str] | None = None,
    spark: SessionFactory,
    tell: TaskProgress = ignore_progress,
) -> TaskResult:
    """Load files into a table in one commit; do nothing if the batch was loaded before.

    When this returns, every good row is in a durable version and every bad row in the quarantine;
    `bad_rows` of the numbers counts the bad rows. `types` declares the types of new columns by
    name. If this raises anything but `OutcomeUnknown`, the table is unchanged.
    """
    _check_options(on_bad, drift, bad_rows_max)
    found = site.table(table)
    state = found.state()
    check_not_entities(state.spec, "backfill")
    if on_bad == "quarantine":
        quarantine_name(table)
    declared = declare_types(state, types or {}, may_add=drift == "add")
    files = find_input_files(sources, format)
    batch = batch_id or batch_name(files, state.spec.table_id)
    txn = (f"backfill:{batch}", 1)
    if state.txns.get(txn[0], 0) >= txn[1]:
        return TaskResult(None, {"files": len(files), "rows": 0})
    commit_options = AppendOptions(
        overlap, evolve=drift == "add" or not state.schema.columns, txn=txn
    )
    pieces = cut_pieces(files)
    columns = _find_columns(state, pieces, declared, drift, spark, tell)
    target = WriteTarget(found.storage.root, state.spec, columns.schema, new_tag())
    order = BackfillContext(target, pieces, on_bad, bad_rows_max, drift)
    try:
        tell("reading files", 0, len(files))
        staged, bad = _gather_reports(
            found, run_tasks(spark(), partial(write_piece, order), len(pieces))
        )
        tell("reading files", len(files), len(files))
        check_count(bad, bad_rows_max)
        after = _commit(site, table, batch, staged, bad, commit_options)
    except OutcomeUnknown:
        raise  # the commit may have succeeded, so its staged files must stay
    except BaseException:
        sweep_staged(found, target.tag)
        raise
    sweep_staged(found, target.tag, {path for s in staged for path in s.paths})
    numbers = {
        "files": len(files),
        "rows": sum(one.measured.row_count for one in staged),
        "segments": len(staged),
        "bad_rows": len(bad),
    }
    return TaskResult(after.version, numbers)


def _check_options(on_bad: str, drift: str, bad_rows_max: int) -> None:
    for name, got, allowed in (("on_bad", on_bad, ON_BAD), ("drift", drift, DRIFT)):
        if not isinstance(got, str) or got not in allowed:
            hint = f"use one of {', '.join(allowed)}"
            raise Invalid("not a policy of a backfill", hint=hint, policy=name, got=got)
    if not 0 <= bad_rows_max <= BAD_ROWS_MAX_LIMIT:
        hint = f"use a number from 0 to {BAD_ROWS_MAX_LIMIT}"
        raise Invalid("bad_rows_max is out of range", hint=hint, got=bad_rows_max)


def cut_pieces(files: Sequence[InputFile]) -> tuple[tuple[InputFile, ...], ...]:
    """Cut files, in their order, into pieces of about the same size."""
    total = sum(file.size_bytes for file in files)
    count = min(len(files), PIECES_MAX, max(PIECES_MIN, -(-total // PIECE_BYTES)))
    share = max(1, -(-total // count))
    pieces: list[list[InputFile]] = [[]]
    held = 0
    for file in files:
        if pieces[-1] and held >= share * len(pieces) and len(pieces) < count:
            pieces.append([])
        pieces[-1].append(file)
        held += file.size_bytes
    return tuple(tuple(piece) for piece in pieces)


def _find_columns(
    state: TableState,
    pieces: tuple[tuple[InputFile, ...], ...],
    declared: Mapping[str, pa.DataType],
    drift: str,
    spark: SessionFactory,
    tell: TaskProgress,
) -> AppendColumns:
    """Return the columns that the table has after the batch; workers scan the files if needed."""
    if state.schema.columns and drift != "add":
        return AppendColumns(state.spec, state.schema_id, state.schema, is_new=False)
    tell("finding columns", 0, len(pieces))
    look = partial(read_piece_columns, state.spec, state.schema, declared, pieces)
    looks = run_tasks(spark(), look, len(pieces))
    tell("finding columns", len(pieces), len(pieces))
    found = [look for part in looks for look in part]
    if not found:
        raise Invalid(
            "none of the files can be read",
            hint="check the files and their format",
            files=sum(len(piece) for piece in pieces),
            first=pieces[0][0].path,
        )
    check_declared(declared, found)
    return unite_columns(state, found, declared)


def _gather_reports(
    table: ColdTable, reports: Sequence[BackfillReport]
) -> tuple[list[StagedSegment], list[BadRow]]:
    """Return all staged segments and bad rows; raise the first failure if a task failed."""
    staged = [one for report in reports for one in report.staged]
    failure = next((report.failure for report in reports if report.failure), None)
    if failure is not None:
        adopt_staged(table, staged).discard()
        raise failure
    return staged, [one for report in reports for one in report.bad]


def _commit(
    site: JobWorkspace,
    name: str,
    batch: str,
    staged: list[StagedSegment],
    bad: list[BadRow],
    commit_options: AppendOptions,
) -> TableState:
    table = site.table(name)
    if bad and (commit_options.overlap or table.state().spec.overlap) == "reject":
        # Check the overlap before the bad rows are stored: a refused batch leaves nothing behind.
        stage = adopt_staged(table, staged)
        AppendPlanner(table.storage, table.index, stage, commit_options).plan(table.state())
    # Order matters: see the module's docstring.
    quarantine_rows(site, name, batch, bad)
    return append_staged(table, staged, commit_options)
