"""`thermocline worker`: runs the jobs of a data folder by the clock, beside a node or without one.

- It writes one line a task on stdout, or one JSON object with `--json`.
- After SIGTERM or Ctrl-C the running task finishes, and no other task starts.
"""

import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from thermocline.cli.argument import CommandList, JsonOption
from thermocline.cli.node.node_options import (
    ConfigOption,
    DataOption,
    lake_folder,
    settings_from,
)
from thermocline.cli.pipeline.job_progress import record_json, record_line
from thermocline.cli.pipeline.workspace import MasterOption, read_job_settings
from thermocline.cli.terminal.terminal import print_line

if TYPE_CHECKING:
    from thermocline.pipeline.run.history import TaskRecord
    from thermocline.pipeline.run.settings import PipelineSettings


def worker(
    data: DataOption = None,
    config: ConfigOption = None,
    master: MasterOption = None,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="TIME", help="How often to check, such as 10s or 1m."),
    ] = None,
    job: Annotated[
        list[str] | None,
        typer.Option("--job", metavar="JOB", help="Only this job; may be given again."),
    ] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option("--tenant", metavar="NAME", help="Only this tenant; may be given again."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Show how jobs would run, and stop.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run the due jobs by the clock, until SIGTERM or Ctrl-C."""
    from thermocline.pipeline.run.clock import JobClock
    from thermocline.pipeline.run.runner import order_jobs
    from thermocline.pipeline.spark.java_gateway import spark_home

    spark_home()  # raises at once if Spark is not installed
    order_jobs(job or ())
    settings = settings_from(config, data=data)
    folder, wanted = (
        lake_folder(data, config),
        read_job_settings(settings, master=master, every=every),
    )
    if check:
        _print_settings(wanted, is_json=json)
        return
    clock = JobClock(
        folder,
        wanted,
        settings.lake,
        tenants=tenant or (),
        jobs=job or (),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: clock.stop())

    def listen(owner: str, ran: "TaskRecord") -> None:
        _print_record(owner, ran, is_json=json)

    clock.run(listen)


def _print_record(tenant: str, ran: "TaskRecord", *, is_json: bool) -> None:
    if is_json:
        from thermocline.cli.terminal.output import print_json

        print_json({"tenant": tenant, **record_json(ran)})
    else:
        print_line(f"{ran.started_at:%Y-%m-%dT%H:%M:%SZ}  {tenant}  {record_line(ran)}")
    sys.stdout.flush()


def _print_settings(settings: "PipelineSettings", *, is_json: bool) -> None:
    from thermocline.pipeline.run.settings import describe_settings

    described = describe_settings(settings)
    if is_json:
        from thermocline.cli.terminal.output import print_json

        print_json({"settings": described})
        return
    width = max(len(name) for name in described)
    for name, value in described.items():
        print_line(f"{name:<{width}}  {value}")


COMMANDS: CommandList = (
    (
        "worker",
        worker,
        (
            "thermocline worker --data /var/lib/thermocline",
            "thermocline worker --config node.toml --master spark://head:7077 --every 30s",
            "thermocline worker --job compact --job retain --json",
        ),
    ),
)
