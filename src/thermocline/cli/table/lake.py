"""Commands about a lake: create it, and list, rename, copy, drop and bring back its tables.

- A lake is a folder that no other process writes, or the address of a node.
- `drop` and `vacuum` ask for confirmation; a vacuum is a dry run by default.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import (
    CommandList,
    Format,
    FormatOption,
    JsonOption,
    YesOption,
    parse_at,
)
from thermocline.cli.node_address import KeyFileOption, read_key
from thermocline.cli.table.target import check_lake, is_lake, is_url, open_lake
from thermocline.cli.terminal.terminal import confirm, print_line
from thermocline.errors import Conflict

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.client import Client
    from thermocline.lake import Lake

LakeArgument = Annotated[
    str, typer.Argument(metavar="LAKE", help="The lake's folder, or the address of its node.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The table's name.")]


@contextmanager
def open_for_change(place: str, key_file: str | None) -> Iterator["Lake | Client"]:
    """Open a lake for a change: a node's, or one in a folder that no other process writes."""
    from thermocline.entry_point import connect

    if is_url(place):
        with connect(place, api_key=read_key(key_file)) as node:
            yield node
        return
    check_lake(place)
    try:
        lake = connect(place)
    except Conflict as error:
        hint = "if a node has it open, name the node's address instead of the folder"
        raise Conflict(error.message, hint=hint, **error.facts) from error
    with lake:
        yield lake


@contextmanager
def open_for_reading(place: str, key_file: str | None) -> Iterator["Lake | Client"]:
    """Open a lake for reading: a node's, or one in a folder, which another process may write."""
    if is_url(place):
        with open_for_change(place, key_file) as node:
            yield node
        return
    check_lake(place)
    with open_lake(place) as lake:
        yield lake


def _report(json: bool, line: str, **facts: Any) -> None:
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json(facts)
    else:
        print_line(line)


def print_rows(
    rows: "pa.Table", form: Format | None, is_json: bool, *, name: str = "tables"
) -> None:
    """Print rows in a format; as JSON, they are a list under a name."""
    from thermocline.cli.terminal.output import choose_output, print_json

    output = choose_output(form, is_json=is_json)
    if output.form is Format.JSON:
        from thermocline.cli.table.info import rows_json

        print_json({name: rows_json(rows)})
    else:
        output.write(rows.to_reader())


def create(
    lake: Annotated[str, typer.Argument(metavar="LAKE", help="A folder, empty or not there.")],
    json: JsonOption = False,
) -> None:
    """Create a lake in a folder. A folder that is a lake already stays as it is."""
    from thermocline.entry_point import connect

    is_new = not is_lake(lake)
    if is_new:
        connect(lake).close()
    root = os.path.abspath(lake)
    line = f"created a lake in {root}" if is_new else f"{root} is a lake already"
    _report(json, line, root=root, created=is_new)


def tables(
    lake: LakeArgument,
    key_file: KeyFileOption = None,
    form: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """List the tables with their rows, versions and buckets."""
    import pyarrow as pa

    with open_for_reading(lake, key_file) as opened:
        found = [opened.table(name).info() for name in opened.tables()]
    columns = {
        "table": pa.array([one["name"] for one in found], pa.string()),
        "rows": pa.array([one["rows"] + one["hot_rows"] for one in found], pa.int64()),
        "version": pa.array([one["version"] for one in found], pa.int64()),
        "time_column": pa.array([one["time_column"] for one in found], pa.string()),
        "bucket": pa.array([str(one["bucket"]) for one in found], pa.string()),
    }
    print_rows(pa.table(columns), form, json)


def rename(
    lake: LakeArgument,
    name: NameArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="Its new name.")],
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Give a table another name; its rows and its history stay."""
    with open_for_change(lake, key_file) as opened:
        table = opened.rename_table(name, to)
    _report(json, f"renamed {name} to {table.name}", table=table.name, was=name)


def drop(
    lake: LakeArgument,
    name: NameArgument,
    yes: YesOption = False,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Drop a table; `undrop` brings it back until a vacuum removes its files."""
    with open_for_change(lake, key_file) as opened:
        info = opened.table(name).info()
        rows = info["rows"] + info["hot_rows"]
        question = f"drop {info['name']} with {rows:,} rows?"
        if not confirm(question, is_yes=yes, otherwise=f"drop a table of {rows:,} rows"):
            print_line("nothing was dropped")
            return
        opened.drop_table(name)
    line = f"dropped {info['name']}; `thermocline lake undrop` brings it back"
    _report(json, line, table=info["name"], rows=rows)


def list_dropped(
    lake: LakeArgument,
    key_file: KeyFileOption = None,
    form: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """List the dropped tables that can be brought back."""
    with open_for_reading(lake, key_file) as opened:
        found = opened.dropped_tables()
    print_rows(found, form, json)


def undrop(
    lake: LakeArgument,
    name: NameArgument,
    to: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Bring it back under this name.")
    ] = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Bring back the table that was dropped last under a name."""
    with open_for_change(lake, key_file) as opened:
        info = opened.undrop_table(name, to).info()
    rows = info["rows"] + info["hot_rows"]
    _report(json, f"{info['name']} is back with {rows:,} rows", table=info["name"], rows=rows)


def copy(
    lake: LakeArgument,
    name: NameArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="The name of the copy.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="VERSION|TIME", help="Copy this version or instant."),
    ] = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Copy a table to a new one; its files are shared where the file system can link them."""
    with open_for_change(lake, key_file) as opened:
        info = opened.copy_table(name, to, at=parse_at(at)).info()
    line = f"copied {name} to {info['name']}: {info['rows']:,} rows"
    _report(json, line, table=info["name"], source=name, rows=info["rows"])


def vacuum(
    lake: LakeArgument,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="AGE", help="Keep tables dropped since then: 7d is the default."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Remove the files instead of listing the tables.")
    ] = False,
    allow_short_grace: Annotated[
        bool,
        typer.Option(
            "--allow-short-grace",
            help="Allow less than 1h; only safe while no other process reads.",
        ),
    ] = False,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Remove the files of dropped tables permanently. A dry run by default."""
    with open_for_change(lake, key_file) as opened:
        found = opened.vacuum_dropped(
            dry_run=not yes, grace=grace, allow_short_grace=allow_short_grace
        )
    names = ", ".join(found)
    if not found:
        line = "nothing to remove"
    elif yes:
        line = f"removed {names}"
    else:
        line = f"would remove {names}; this was a dry run, --yes removes the files"
    _report(json, line, is_dry_run=not yes, tables=found)


COMMANDS: CommandList = (
    ("create", create, ("thermocline lake create lake",)),
    ("tables", tables, ("thermocline lake tables lake",)),
    ("rename", rename, ("thermocline lake rename lake prices quotes",)),
    (
        "copy",
        copy,
        (
            "thermocline lake copy lake prices prices_june",
            "thermocline lake copy lake prices prices_before --at 2024-06-08",
        ),
    ),
    ("drop", drop, ("thermocline lake drop lake prices --yes",)),
    ("dropped", list_dropped, ("thermocline lake dropped lake",)),
    (
        "undrop",
        undrop,
        (
            "thermocline lake undrop lake prices",
            "thermocline lake undrop lake prices --as prices_before",
        ),
    ),
    ("vacuum", vacuum, ("thermocline lake vacuum lake --grace 30d --yes",)),
)
