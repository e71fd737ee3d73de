"""What commands about a node share: its settings from options, and its data folder.

In:   `--data`, `--config`, `--set` and the environment
Out:  settings; a folder that is a lake

- A command finds the data folder as `serve` does: option, environment, file, default.
- Only this user may read the files that a command creates for a node.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.errors import Invalid, NotFound

if TYPE_CHECKING:
    from thermocline.config import NodeSettings

PRIVATE_UMASK = 0o077

DataOption = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="The node's data folder.", show_default=False),
]
ConfigOption = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="A TOML file of settings.", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be given again."),
]
HttpOption = Annotated[
    str | None,
    typer.Option("--http", metavar="ADDRESS", help="The address of OTLP over HTTP, or off."),
]
GrpcOption = Annotated[
    str | None,
    typer.Option("--grpc", metavar="ADDRESS", help="The address of OTLP over gRPC, or off."),
]
ApiOption = Annotated[
    str | None,
    typer.Option("--api", metavar="ADDRESS", help="The address of SQL and health, or off."),
]
FlightOption = Annotated[
    str | None,
    typer.Option("--flight", metavar="ADDRESS", help="The address of Arrow Flight SQL, or off."),
]


def settings_from(
    config: str | None, words: Sequence[str] | None = None, **options: Any
) -> "NodeSettings":
    """Return a node's settings; `Invalid` names the wrong setting and its origin."""
    from thermocline.config import node_settings

    for word in words or ():
        name, is_pair, value = word.partition("=")
        if not is_pair:
            hint = "write --set NAME=VALUE, such as --set flush_age_s=30s"
            raise Invalid("expected a setting and its value", hint=hint, got=word)
        options[name.strip()] = value.strip()
    settings = node_settings(options, os.environ, config)
    if settings.pipeline:
        from thermocline.pipeline.run.settings import pipeline_settings

        pipeline_settings(settings.pipeline)  # every command that reads the file checks it
    return settings


def data_folder(data: str | None, config: str | None) -> str:
    """Return the data folder, which may not exist."""
    return os.path.abspath(settings_from(config, data=data).data)


def lake_folder(data: str | None, config: str | None) -> str:
    """Return the data folder of a node that has been started before; `NotFound` otherwise."""
    lake_place(data, config)
    return data_folder(data, config)


def lake_place(data: str | None, config: str | None) -> str:
    """Return where the lake of a node is: its data folder, or the place in `lake_url`."""
    from thermocline.cold.catalog import Catalog

    settings = settings_from(config, data=data)
    place = settings.lake_url or os.path.abspath(settings.data)
    is_missing = not settings.lake_url and not os.path.isdir(place)
    if is_missing or Catalog(place).identity() is None:
        raise NotFound(
            "the folder has no data of a node",
            hint="check --data; `thermocline serve` or `key create --first` creates it",
            folder=place,
        )
    return place


@contextmanager
def private_files() -> Iterator[None]:
    """Let only this user read the files that the block creates."""
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)
