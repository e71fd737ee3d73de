"""Commands about the pipeline: run, backfill, erase, prepare, jobs, rollups.

- They work on a data folder; a node may be running there.
- Progress goes to stderr: a bar on a terminal, otherwise one line a task. The result goes to
  stdout.
- A job that fails does not stop the others; the exit code is that of the first failure.
"""

from typing import Annotated

import typer

from thermocline.cli.argument import CommandList, FormatOption, JsonOption, expand_options
from thermocline.cli.node.node_options import settings_from
from thermocline.cli.pipeline import backfill, erase
from thermocline.cli.pipeline.job_progress import (
    due_rows,
    report_record,
    row_json,
    show_task_progress,
    task_json,
    write_answer,
    write_summary,
)
from thermocline.cli.pipeline.workspace import (
    JobTarget,
    MasterOption,
    open_runner,
    open_workspace,
    read_job_settings,
)


@expand_options
def run(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB", help="export, compact, rollup or retain; default: all."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="Only this table.")
    ] = None,
    master: MasterOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is due, and do nothing.")
    ] = False,
    *,
    target: JobTarget,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Let retain delete every row of a table.")
    ] = False,
    format: FormatOption = None,  # noqa: A002
    json: JsonOption = False,
) -> None:
    """Run the due jobs: export entities, compact, roll up, delete rows past their retention."""
    from thermocline.pipeline.run.runner import order_jobs
    from thermocline.pipeline.spark.java_gateway import spark_home

    names = order_jobs(jobs or ())
    with open_runner(target, master, yes=yes) as (site, runner):
        if table is not None and table.lower() not in {
            one.lower() for one in (*site.tables(), *_rollup_names(target.config))
        }:
            site.table(table)  # raises `NotFound` with the existing tables
        if dry_run:
            due = list(runner.due(names, table))
            write_answer(
                due_rows(due), "due", [task_json(one) for one in due], format, is_json=json
            )
            return
        spark_home()
        with show_task_progress() as tell:
            ran = [report_record(one) for one in runner.run(names, table, tell)]
    write_summary(ran, format, is_json=json)


def _rollup_names(config: str | None) -> list[str]:
    return [one.name for one in read_job_settings(settings_from(config)).rollups]


def prepare(json: JsonOption = False) -> None:
    """Let Spark start in half the time: takes a minute and 200 MB, once for an installation.

    Java records one start of Spark and writes a cache beside the installed packages. Run this again
    after an upgrade.
    """
    from thermocline.cli.terminal.output import print_json
    from thermocline.cli.terminal.terminal import message_console, print_line
    from thermocline.pipeline.spark.java_cds_archive import learn

    path = learn(lambda text: message_console().print(text))
    size_bytes = path.stat().st_size
    if json:
        print_json({"path": str(path), "size_bytes": size_bytes})
    else:
        print_line(f"Spark starts faster from now on: {size_bytes:,} bytes in {path}")


@expand_options
def list_jobs(
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000, metavar="N", help="At most this many.")
    ] = 20,
    *,
    target: JobTarget,
    format: FormatOption = None,  # noqa: A002
    json: JsonOption = False,
) -> None:
    """List the tasks of jobs, the newest first. SQL reads the same rows in `pipeline_jobs`."""
    import pyarrow as pa

    from thermocline.errors import NotFound
    from thermocline.pipeline.run.history import COLUMNS, NAME, last_runs

    with open_workspace(target) as site:
        try:
            rows = last_runs(site.table(NAME), limit)
        except NotFound:
            rows = []  # no job has run yet
    listed = [row_json(row) for row in rows]
    write_answer(pa.Table.from_pylist(rows, COLUMNS), "jobs", listed, format, is_json=json)


@expand_options
def rollups(
    *,
    target: JobTarget,
    format: FormatOption = None,  # noqa: A002
    json: JsonOption = False,
) -> None:
    """List the declared rollups, and whether each is up to date."""
    import pyarrow as pa

    with open_runner(target, None) as (_, runner):
        declared = runner.settings.rollups
        due = {task.table: task.why for task in runner.due(["rollup"])}
    listed = [
        {
            "rollup": one.name,
            **{k: one.declaration[k] for k in ("source", "every", "by", "aggregates", "where")},
            "due": due.get(one.name),
        }
        for one in declared
    ]
    rows = [
        {
            "rollup": one["rollup"],
            "source": one["source"],
            "every": one["every"],
            "by": ", ".join(one["by"]),
            "aggregates": ", ".join(one["aggregates"]),
            "due": one["due"] or "up to date",
        }
        for one in listed
    ]
    names = ("rollup", "source", "every", "by", "aggregates", "due")
    schema = pa.schema([(name, pa.string()) for name in names])
    write_answer(pa.Table.from_pylist(rows, schema), "rollups", listed, format, is_json=json)


COMMANDS: CommandList = (
    (
        "run",
        run,
        (
            "thermocline pipeline run --data /var/lib/thermocline",
            "thermocline pipeline run --dry-run",
            "thermocline pipeline run compact rollup --table metrics --master spark://head:7077",
            "thermocline pipeline run --config node.toml --yes --json",
        ),
    ),
    (
        "backfill",
        backfill.backfill,
        (
            "thermocline pipeline backfill metrics 'june/*.parquet'",
            "thermocline pipeline backfill metrics june.csv --batch june --drift add",
            "thermocline pipeline backfill metrics june --time-column ts --bucket 1h --dry-run",
        ),
    ),
    (
        "erase",
        erase.erase,
        (
            "thermocline pipeline erase --subject email=ada@example.org --dry-run",
            "thermocline pipeline erase --subject email=ada@example.org --by 'request 17' --yes",
        ),
    ),
    ("prepare", prepare, ("thermocline pipeline prepare",)),
    (
        "jobs",
        list_jobs,
        ("thermocline pipeline jobs", "thermocline pipeline jobs --limit 5 --json"),
    ),
    ("rollups", rollups, ("thermocline pipeline rollups --config node.toml",)),
)
