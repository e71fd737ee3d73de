"""Commands that copy a lake and bring it back: backup and restore.

- A backup is made beside a running node: nobody waits for it, and it is of one moment.
- A restore checks every byte, and makes a lake of an empty folder only.
"""

import os
from typing import Annotated

import typer

from thermocline.cli.argument import JsonOption
from thermocline.cli.node import (
    ConfigOption,
    DataOption,
    data_folder,
    private_files,
    settings_from,
)
from thermocline.cli.screen import progress, say

POSTGRES_FOLDER = "postgres"


def backup(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A new folder, or a new .tar, .tar.gz or .tgz file."),
    ],
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a lake, its hot rows too, while it is written."""
    from thermocline.server.backup import backup as copy

    folder = data_folder(data, config)
    with private_files(), progress("copying") as report:
        made = copy(folder, target, report)
    left_out = _left_out(folder, config)
    if json:
        from thermocline.cli.output import say_json

        facts = {"lake_id": made.lake_id, "lsn": made.lsn, "tables": made.tables}
        sizes = {"files": len(made.files), "size_bytes": made.size_bytes}
        told = {"target": os.path.abspath(target), **facts, **sizes, "left_out": left_out}
        say_json(told)
    else:
        count = len(made.tables)
        say(
            f"copied {count} {'table' if count == 1 else 'tables'}, {len(made.files)} files, "
            f"{made.size_bytes:,} bytes to {target}"
        )
        if left_out:
            say("left out: what of entities is in PostgreSQL alone; copy it with pg_dump")


def _left_out(folder: str, config: str | None) -> list[str]:
    """Return what a copy of files cannot have: rows that a database server keeps."""
    settings = settings_from(config, data=folder)
    has_server = settings.lake.postgres or os.path.isdir(os.path.join(folder, POSTGRES_FOLDER))
    return ["postgres"] if has_server else []


def restore(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder or tar file that `backup` made.")
    ],
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Make a data folder from a backup.

    The folder is new or empty; every byte is checked before it becomes a lake.
    """
    from thermocline.server.backup import restore as bring_back

    folder = data_folder(data, config)
    with private_files():
        manifest = bring_back(source, folder)
    if json:
        from thermocline.cli.output import say_json

        kept = {key: manifest[key] for key in ("lake_id", "lsn", "tables")}
        say_json({"folder": folder, **kept, "files": len(manifest["files"])})
    else:
        say(f"restored {len(manifest['tables'])} tables into {folder}")
