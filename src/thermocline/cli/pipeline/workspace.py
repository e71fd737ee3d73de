"""Opens the workspace of a command's jobs: a data folder, a tenant, and the Spark master.

In:   `--data`, `--config`, `--tenant`, `--master`
Out:  a workspace and a runner of jobs; both are closed at the end

- A command finds the data folder as `serve` does; a node may be running there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.node.node_options import (
    ConfigOption,
    DataOption,
    data_folder,
    lake_place,
    settings_from,
)

if TYPE_CHECKING:
    from thermocline.config import NodeSettings
    from thermocline.pipeline.run.runner import Runner
    from thermocline.pipeline.run.settings import PipelineSettings
    from thermocline.pipeline.run.workspace import JobWorkspace

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[*], spark://…, k8s://…, yarn or sc://….",
        show_default=False,
    ),
]
TenantOption = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="The tenant that owns the tables.")
]


@dataclass(frozen=True)
class JobTarget:
    """The options of every command about jobs: which lake."""

    data: DataOption = None
    config: ConfigOption = None
    tenant: TenantOption = "default"


def read_job_settings(node: "NodeSettings", **options: Any) -> "PipelineSettings":
    """Return the settings of jobs: those of the file, overridden by options."""
    from thermocline.config import read_settings, settings_in
    from thermocline.pipeline.run.settings import PipelineSettings, pipeline_settings

    given = {name: value for name, value in options.items() if value is not None}
    read = read_settings(given, settings_in(PipelineSettings), "option")
    return replace(pipeline_settings(node.pipeline), **read)


@contextmanager
def open_workspace(target: JobTarget, **node: Any) -> Iterator["JobWorkspace"]:
    """Give the block the workspace that the options name; `node` is how to call a running node."""
    from thermocline.pipeline.run.workspace import JobWorkspace

    settings = settings_from(target.config, data=target.data).lake
    place, data = (find(target.data, target.config) for find in (lake_place, data_folder))
    with JobWorkspace(place, target.tenant, data=data, settings=settings, **node) as site:
        yield site


@contextmanager
def open_runner(
    target: JobTarget, master: str | None, *, yes: bool = False, **node: str | None
) -> Iterator["tuple[JobWorkspace, Runner]"]:
    """Give the block the workspace and a runner of its jobs; stop Spark at the end."""
    from thermocline.pipeline.run.runner import Runner

    settings = read_job_settings(settings_from(target.config, data=target.data), master=master)
    with open_workspace(target, **node) as site:
        runner = Runner(site, settings, yes=yes)
        try:
            yield site, runner
        finally:
            runner.sessions.close()
