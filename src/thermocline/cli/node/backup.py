"""Commands that copy and restore a lake: backup and restore.

- A backup is made beside a running node: clients do not wait for it, and it is one consistent
  snapshot.
- A restore checks every byte, and writes only into an empty folder.
"""

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from thermocline.cli.argument import CommandList, JsonOption
from thermocline.cli.node.node_options import (
    ConfigOption,
    DataOption,
    data_folder,
    private_files,
    settings_from,
)
from thermocline.cli.terminal.terminal import print_line, show_progress

if TYPE_CHECKING:
    from thermocline.config import LakeSettings

POSTGRES_FOLDER = "postgres"


def backup(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A new folder, or a new .tar, .tar.gz or .tgz file."),
    ],
    data: DataOption = None,
    config: ConfigOption = None,
    without_entities: Annotated[
        bool,
        typer.Option("--without-entities", help="Omit the rows in PostgreSQL, and report that."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Copy a lake with its hot rows and its entities, even while it is written."""
    from thermocline.backup.backup import backup as copy

    folder = data_folder(data, config)
    settings = settings_from(config, data=folder).lake
    left_out = _find_left_out(folder, settings, without_entities=without_entities)
    with private_files(), show_progress("copying") as report:
        if settings.postgres and not left_out:
            from thermocline.backup.entity_copy import copy_entities

            made = copy(folder, target, report, partial(copy_entities, settings, folder))
        else:
            made = copy(folder, target, report)
    if json:
        from thermocline.cli.terminal.output import print_json

        facts = {"lake_id": made.lake_id, "lsn": made.lsn, "tables": made.tables}
        sizes = {"files": len(made.files), "size_bytes": made.size_bytes}
        summary = {"target": os.path.abspath(target), **facts, **sizes, "left_out": left_out}
        print_json(summary)
    else:
        count = len(made.tables)
        print_line(
            f"copied {count} {'table' if count == 1 else 'tables'}, {len(made.files)} files, "
            f"{made.size_bytes:,} bytes to {target}"
        )
        if left_out:
            print_line("omitted: entities that are only in PostgreSQL; copy them with pg_dump")


def _find_left_out(folder: str, settings: "LakeSettings", *, without_entities: bool) -> list[str]:
    """Return what the copy omits: rows of a database server that is excluded or not configured."""
    has_folder = os.path.isdir(os.path.join(folder, POSTGRES_FOLDER))
    if settings.postgres:
        return ["postgres"] if without_entities else []
    return ["postgres"] if has_folder else []


def restore(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder or tar file that `backup` made.")
    ],
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Restore a data folder from a backup.

    The folder must be new or empty; every byte is checked before the folder becomes a lake.
    """
    from thermocline.backup.backup import restore as bring_back

    folder = data_folder(data, config)
    with private_files():
        manifest = bring_back(source, folder)
    if json:
        from thermocline.cli.terminal.output import print_json

        kept = {key: manifest[key] for key in ("lake_id", "lsn", "tables")}
        print_json({"folder": folder, **kept, "files": len(manifest["files"])})
    else:
        print_line(f"restored {len(manifest['tables'])} tables into {folder}")


COMMANDS: CommandList = (
    (
        "backup",
        backup,
        ("thermocline backup monday", "thermocline backup monday.tar --data /var/lib/thermocline"),
    ),
    ("restore", restore, ("thermocline restore monday.tar --data restored",)),
)
