"""`thermocline pipeline backfill`: loads many files into a table of a lake, in one commit.

- A batch has a name, given or made from its files, and is loaded once.
- `--dry-run` reads only the files' names and the log.
- If rows were set aside, the command reports their number and exits with code 2: the other rows are
  committed.
- With `--time-column` the command creates a table that does not exist.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import FormatOption, JsonOption, Overlap, expand_options, parse_types
from thermocline.cli.pipeline.job_progress import (
    report_record,
    show_task_progress,
    write_answer,
    write_summary,
)
from thermocline.cli.pipeline.workspace import (
    JobTarget,
    MasterOption,
    open_runner,
)
from thermocline.errors import Invalid, NotFound

if TYPE_CHECKING:
    from thermocline.pipeline.run.history import TaskRecord
    from thermocline.pipeline.run.workspace import JobWorkspace


InputFormatOption = Annotated[
    str | None,
    typer.Option(
        "--input-format",
        metavar="NAME",
        help="parquet, csv or json; default: by the file's ending.",
    ),
]
TimeColumnOption = Annotated[
    str | None,
    typer.Option("--time-column", metavar="NAME", help="Create the table if it does not exist."),
]
BucketOption = Annotated[
    str, typer.Option("--bucket", metavar="WIDTH", help="With --time-column: its buckets.")
]
EntityColumnOption = Annotated[
    list[str] | None,
    typer.Option("--entity-column", metavar="NAME", help="With --time-column; once for each."),
]
OnBadOption = Annotated[
    str, typer.Option("--on-bad", metavar="POLICY", help="Bad rows: quarantine or fail.")
]
BadRowsMaxOption = Annotated[
    int | None,
    typer.Option("--bad-rows-max", min=0, metavar="N", help="Fail when more rows are bad."),
]
DriftOption = Annotated[
    str, typer.Option("--drift", metavar="POLICY", help="New columns: fail, add or ignore.")
]
ColumnTypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column-type",
        metavar="NAME=TYPE",
        help="Declare a new column's type; once for each. By default all cells decide it.",
    ),
]


@expand_options
def backfill(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table of the lake.")],
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="Parquet, CSV or JSON files, folders, patterns."),
    ],
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="NAME", help="The batch's name; a batch is loaded once."),
    ] = None,
    input_format: InputFormatOption = None,
    time_column: TimeColumnOption = None,
    bucket: BucketOption = "1h",
    entity_columns: EntityColumnOption = None,
    overlap: Annotated[
        Overlap | None,
        typer.Option("--overlap", help="What to do with buckets that are held already."),
    ] = None,
    on_bad: OnBadOption = "quarantine",
    bad_rows_max: BadRowsMaxOption = None,
    drift: DriftOption = "fail",
    column_types: ColumnTypeOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be loaded, and do nothing.")
    ] = False,
    master: MasterOption = None,
    *,
    target: JobTarget,
    format: FormatOption = None,  # noqa: A002
    json: JsonOption = False,
) -> None:
    """Load files into a table in one commit; rows that do not fit go to its quarantine."""
    from thermocline.pipeline.backfill.job import backfill as take
    from thermocline.pipeline.run.job import Task
    from thermocline.pipeline.run.runner import RequestedJob
    from thermocline.pipeline.spark.java_gateway import spark_home
    from thermocline.table import new_spec

    more: dict[str, Any] = {} if bad_rows_max is None else {"bad_rows_max": bad_rows_max}
    more |= {"format": input_format, "on_bad": on_bad, "drift": drift, "batch_id": batch}
    more["types"] = parse_types(column_types or [])
    more["overlap"] = None if overlap is None else overlap.value
    with open_runner(target, master) as (site, runner):
        if dry_run:
            preview = _preview(
                site, table, files, input_format, batch, is_made=time_column is not None
            )
            _print_preview(preview, format, is_json=json)
            return
        spark_home()
        if time_column is not None:
            site.ensure_table(
                table, new_spec(time_column, bucket, entity_columns or (), overlap="allow")
            )
        site.table(table)
        job = RequestedJob(
            "backfill",
            lambda at, spark, tell: take(at, table, files, spark=spark, tell=tell, **more),
        )
        task = Task("backfill", table, "asked for")
        with show_task_progress() as tell:
            ran = report_record(runner.run_task(job, task, tell(task)))
    write_summary([ran], format, is_json=json)
    _raise_if_set_aside(table, ran)


def _raise_if_set_aside(table: str, ran: "TaskRecord") -> None:
    """Raise `Invalid` with the number of rows in the quarantine, if there are any."""
    from thermocline.pipeline.backfill.quarantine import quarantine_name

    aside = ran.numbers.get("bad_rows", 0)
    if aside:
        where = quarantine_name(table)
        raise Invalid(
            "bad rows were set aside; all other rows were loaded",
            hint=f"see file, line, column_name, reason and raw in table {where}",
            rows_set_aside=aside,
            rows_taken_in=ran.numbers.get("rows", 0),
            quarantine=where,
        )


def _preview(
    site: "JobWorkspace",
    table: str,
    sources: list[str],
    form: str | None,
    batch: str | None,
    *,
    is_made: bool,
) -> dict[str, Any]:
    """Return what a backfill would load, from the files' names and the log alone."""
    from thermocline.ingest.files.input_files import batch_name, find_input_files

    found = find_input_files(sources, form)
    preview: dict[str, Any] = {
        "table": table,
        "files": len(found),
        "size_bytes": sum(file.size_bytes for file in found),
    }
    try:
        state = site.table(table).state()
    except NotFound:
        if not is_made:
            raise
        return {**preview, "batch": batch, "is_in": False}
    name = batch or batch_name(found, state.spec.table_id)
    return {**preview, "batch": name, "is_in": f"backfill:{name}" in state.txns}


def _print_preview(preview: dict[str, Any], form: Any, *, is_json: bool) -> None:
    import pyarrow as pa

    write_answer(pa.Table.from_pylist([preview]), "backfill", preview, form, is_json=is_json)
